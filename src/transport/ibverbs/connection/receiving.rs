//! Posted receives, and the frames that have arrived in them.

use std::io::{self, IoSliceMut};

use ibverbs_sys as ffi;

use super::{Connection, RECEIVE, request_number};
use crate::transport::ibverbs::common::Common;
use crate::transport::ibverbs::frame::{self, FRAME_BYTES, Header, RecordKind};

impl Connection {
    /// The frame of the posted receive with this number: the receives' frames come first.
    pub(super) fn received(&self, index: u32, bytes: usize) -> &[u8] {
        // SAFETY: the receive has completed, so nothing writes to its frame until it is posted again.
        unsafe { std::slice::from_raw_parts(self.frame(index as usize), bytes.min(FRAME_BYTES)) }
    }

    /// Posts the receives in `to_post` again.
    pub(super) fn post_receives(&mut self, common: &mut Common) -> io::Result<()> {
        let key = self.frames.registered.keys.local[0];
        let mut parts = [ffi::ibv_sge::default(); 64];
        let mut requests = [ffi::ibv_recv_wr::default(); 64];
        while !self.to_post.is_empty() {
            let count = self.to_post.len().min(requests.len());
            let first = self.to_post.len() - count;
            for (at, index) in self.to_post.drain(first..).enumerate() {
                // SAFETY: there are so many frames.
                let address = unsafe { self.frames.pages.start().add(index as usize * FRAME_BYTES) };
                parts[at] = ffi::ibv_sge { addr: address as u64, length: FRAME_BYTES as u32, lkey: key };
                requests[at] = ffi::ibv_recv_wr {
                    wr_id: request_number(self.id, RECEIVE, 0, index.into()),
                    next: std::ptr::null_mut(),
                    sg_list: &mut parts[at],
                    num_sge: 1,
                };
            }
            let next: *mut ffi::ibv_recv_wr = requests.as_mut_ptr();
            for at in 1..count {
                // SAFETY: `at` is inside the array.
                requests[at - 1].next = unsafe { next.add(at) };
            }
            // SAFETY: the frames live longer than the queue pair, and are read only once their receive has completed.
            unsafe { self.pairs[0].queue_pair.post_receive(&mut requests[0])? };
            common.counters.receives += count as u64;
            self.owed += count;
        }
        Ok(())
    }

    /// The receive with this number has been read, and is posted again before long.
    pub(super) fn release(&mut self, index: u32, common: &mut Common) {
        self.to_post.push(index);
        if self.to_post.len() >= (self.depth.receives / 4).max(1)
            && self.broken.is_none()
            && let Err(error) = self.post_receives(common)
        {
            self.fail(&format!("cannot post receives: {error}"), common);
        }
    }

    pub(super) fn frame_arrived(&mut self, index: u32, bytes: usize, common: &mut Common) {
        let Some(header) = Header::decode(self.received(index, bytes)) else {
            return self.fail("the peer sent a malformed frame", common);
        };
        for number in 0..header.records.into() {
            let Some(record) = frame::record(self.received(index, bytes), number) else {
                return self.fail("the peer sent a malformed record", common);
            };
            match record.kind {
                RecordKind::Message => self.theirs.insert(record.key, record),
                RecordKind::Region => self.regions.insert(record.key, record),
                RecordKind::Retracted => self.regions.remove(&record.key),
            };
        }
        self.credits += usize::from(header.credits);
        if header.stream_at() < bytes {
            self.arrived.push_back((index, header.stream_at(), bytes));
        } else {
            self.release(index, common);
        }
    }

    /// Fills `parts` from the front with bytes that have arrived; see `Link::receive`.
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>], common: &mut Common) -> io::Result<usize> {
        let mut got = 0;
        let mut parts = parts.iter_mut().map(|part| &mut part[..]).filter(|part| !part.is_empty());
        let mut into: &mut [u8] = parts.next().unwrap_or_default();
        while let Some((index, start, end)) = self.arrived.front().copied() {
            if into.is_empty() {
                match parts.next() {
                    Some(next) => into = next,
                    None => break,
                }
            }
            let n = into.len().min(end - start);
            into[..n].copy_from_slice(&self.received(index, end)[start..start + n]);
            into = &mut into[n..];
            got += n;
            if start + n == end {
                self.arrived.pop_front();
                self.release(index, common);
            } else {
                self.arrived[0].1 = start + n;
            }
        }
        self.received_bytes += got as u64;
        self.progress(common);
        if got > 0 {
            return Ok(got);
        }
        self.receive_end(into, common)
    }
}

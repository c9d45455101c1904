//! What a connection posts to its send queues: frames with bytes of the stream, and parts of messages that are written.

use std::io::{self, IoSlice};

use ibverbs_sys as ffi;

use super::{Connection, Local, SEND, Signal, VALUE_MASK, request_number};
use crate::transport::ibverbs::common::Common;
use crate::transport::ibverbs::frame::{self, FRAME_BYTES, HEADER_BYTES, Header, MAX_RECORDS};

/// From this length on, a message is divided among the rails.
const STRIPED_BYTES: usize = 256 << 10;
/// Divided messages are cut at multiples of this.
const STRIPE_ALIGNMENT: usize = 4096;

impl Connection {
    /// The request that causes a completion with this value, and all before it, are over.
    pub(super) fn retire(&mut self, rail: usize, value: u64, common: &mut Common) {
        let Some(pair) = self.pairs.get_mut(rail) else { return };
        let Some(signal) = pair.signals.pop_front() else { return };
        debug_assert_eq!(signal.sequence & VALUE_MASK, value);
        pair.retired = signal.sequence + 1;
        if rail == 0 {
            self.frames_retired = self.frames_retired.max(signal.frames);
        } else {
            self.fence -= 1;
        }
        let Some(index) = signal.placement else { return };
        let placement = &mut self.placements[index];
        placement.left -= 1;
        if placement.left == 0
            && let Some(placement) = self.placements.remove(index)
        {
            match placement.local {
                Local::Program => self.finished.push_back(placement.ticket),
                Local::Copy { buffer, has_finished } => {
                    common.pool.give_back(buffer);
                    if !has_finished {
                        self.finished.push_back(placement.ticket);
                    }
                }
                Local::Into { buffer, memory, bytes } => {
                    if !memory.is_null() {
                        // SAFETY: who started the read guarantees that the memory is valid until the ticket is taken or
                        // cancelled.
                        unsafe { std::ptr::copy_nonoverlapping(buffer.memory.as_ptr(), memory, bytes) };
                        self.finished.push_back(placement.ticket);
                    }
                    common.pool.give_back(buffer);
                }
            }
        }
    }

    /// Whether a frame could be sent.
    pub(super) fn can_send(&self) -> bool {
        self.broken.is_none() && self.credits > 1 && self.fence == 0 && self.has_frame()
    }

    /// Whether there is memory and a place in the queue for another frame.
    fn has_frame(&self) -> bool {
        self.frames_sent - self.frames_retired < self.depth.sends as u64 && self.room(0) > 0
    }

    /// Requests for which the send queue of this rail has room.
    pub(super) fn room(&self, rail: usize) -> usize {
        let pair = &self.pairs[rail];
        self.depth.sends + self.depth.spare - (pair.posted - pair.retired) as usize
    }

    /// Takes bytes from the front of `parts`; see `Link::send`. All that waits is posted with one call for each rail.
    pub fn send(&mut self, parts: &[IoSlice<'_>], common: &mut Common) -> io::Result<usize> {
        if self.has_ended(common) {
            // The reason comes by `receive`.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.broken.is_some() {
            // The reason may come in the peer's close notice.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.queue_pieces(common);
        let mut rest = Rest { parts, part: 0, at: 0 };
        let mut taken = 0;
        while self.pieces.is_empty() && self.can_send_more() {
            if rest.is_empty() {
                break;
            }
            taken += self.queue_frame(&mut rest, common);
        }
        self.post(0, common);
        self.sent_bytes += taken as u64;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// [`Connection::can_send`], with requests that are about to be posted.
    fn can_send_more(&self) -> bool {
        self.can_send() && self.room(0) > self.requests.len()
    }

    /// Queues a frame with the records that wait and the next bytes of `rest`. Returns how many bytes.
    fn queue_frame(&mut self, rest: &mut Rest<'_, '_>, common: &mut Common) -> usize {
        let records = self.records.len().min(MAX_RECORDS);
        let index = self.depth.receives + (self.frames_sent % self.depth.sends as u64) as usize;
        // SAFETY: the frame is not being sent, since fewer than all are; it has this length.
        let frame = unsafe { std::slice::from_raw_parts_mut(self.frame(index), FRAME_BYTES) };
        let header = Header { records: records as u16, credits: self.owed as u16 };
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
        let places = frame[HEADER_BYTES..header.stream_at()].chunks_exact_mut(frame::RECORD_BYTES);
        for (place, record) in places.zip(self.records.drain(..records)) {
            place.copy_from_slice(&record.encode());
        }
        let taken = rest.copy_to(&mut frame[header.stream_at()..]);
        self.owed = 0;
        self.owes_records &= !self.records.is_empty();
        self.queue_send(index, header.stream_at() + taken, common);
        taken
    }

    /// Queues the send of a frame.
    fn queue_send(&mut self, index: usize, bytes: usize, common: &mut Common) {
        self.frames_sent += 1;
        self.credits -= 1;
        self.unsignaled += 1;
        let signaled = self.unsignaled >= (self.depth.sends / 4).max(1);
        let mut flags = 0;
        if signaled {
            self.unsignaled = 0;
            flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if bytes <= self.pairs[0].queue_pair.inline {
            flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let local = (self.frame(index) as u64, self.frames.registered.keys.local[0]);
        let mut request = self.request(0, ffi::ibv_wr_opcode::IBV_WR_SEND, flags);
        if signaled {
            self.signal(0, &mut request, None);
        }
        common.counters.sends += 1;
        common.counters.sent_bytes += bytes as u64;
        self.push(request, local, bytes);
    }

    pub(super) fn request(&self, rail: usize, opcode: ffi::ibv_wr_opcode::Type, flags: u32) -> ffi::ibv_send_wr {
        // SAFETY: zero is a valid value of all fields.
        let mut request: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
        (request.opcode, request.send_flags) = (opcode, flags);
        request.wr_id = request_number(self.id, SEND, rail, 0);
        request
    }

    /// Notes that `request`, which is pushed next, causes a completion.
    pub(super) fn signal(&mut self, rail: usize, request: &mut ffi::ibv_send_wr, placement: Option<u32>) {
        let queued = if rail == 0 { self.requests.len() } else { 0 };
        let pair = &mut self.pairs[rail];
        let sequence = pair.posted + queued as u64;
        request.wr_id = request_number(self.id, SEND, rail, sequence);
        pair.signals.push_back(Signal { sequence, frames: self.frames_sent, placement });
    }

    pub(super) fn push(&mut self, mut request: ffi::ibv_send_wr, (address, key): (u64, u32), bytes: usize) {
        self.parts.push(ffi::ibv_sge { addr: address, length: bytes as u32, lkey: key });
        request.num_sge = i32::from(bytes > 0);
        self.requests.push(request);
    }

    /// Posts the queued requests to the send queue of `rail`, with one call.
    pub(super) fn post(&mut self, rail: usize, common: &mut Common) {
        if self.requests.is_empty() {
            return;
        }
        let (first, first_part) = (self.requests.as_mut_ptr(), self.parts.as_mut_ptr());
        let count = self.requests.len();
        for (index, request) in self.requests.iter_mut().enumerate() {
            // SAFETY: there is a part for each request, and `next` of the last stays null.
            unsafe {
                request.sg_list = first_part.add(index);
                request.next = if index + 1 < count { first.add(index + 1) } else { std::ptr::null_mut() };
            }
        }
        let pair = &mut self.pairs[rail];
        // SAFETY: frames and buffers live longer than the queue pair; the program's memory is valid until its ticket is
        // finished or cancelled, which ends the access.
        let result = unsafe { pair.queue_pair.post_send(&mut self.requests[0]) };
        pair.posted += count as u64;
        self.requests.clear();
        self.parts.clear();
        common.counters.doorbells += 1;
        if let Err(error) = result {
            let name = common.rails[rail].describe();
            self.fail(&format!("{name}: cannot post a work request: {error}"), common);
        }
    }

    /// Queues parts of placements on the first rail, and posts those on other rails.
    fn queue_pieces(&mut self, common: &mut Common) {
        while let Some(piece) = self.pieces.front() {
            let rails = if self.pairs.len() > 1 && piece.bytes >= STRIPED_BYTES { self.pairs.len() } else { 1 };
            // A completion for each part; the first rail's requests are posted with the frames behind them.
            let fits = |rail: usize| self.room(rail) > if rail == 0 { self.requests.len() } else { 0 };
            if !(0..rails).all(fits) {
                return;
            }
            let piece = self.pieces.pop_front().expect("looked at above");
            let speeds: u64 = self.pairs[..rails].iter().map(|pair| u64::from(pair.speed)).sum();
            let mut at = 0;
            for rail in (0..rails).rev() {
                let share = (piece.bytes as u64 * u64::from(self.pairs[rail].speed) / speeds) as usize;
                let share = if rail == 0 { piece.bytes - at } else { share - share % STRIPE_ALIGNMENT };
                if share == 0 {
                    continue;
                }
                self.placements[piece.placement].left += 1;
                let (opcode, counted, bytes_counted) = match piece.reads {
                    true => (
                        ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
                        &mut common.counters.reads,
                        &mut common.counters.read_bytes,
                    ),
                    false => {
                        let counters = &mut common.counters;
                        (ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, &mut counters.writes, &mut counters.written_bytes)
                    }
                };
                *counted += 1;
                *bytes_counted += share as u64;
                let mut request = self.request(rail, opcode, ffi::ibv_send_flags::IBV_SEND_SIGNALED.0);
                request.wr.rdma.remote_addr = piece.remote + at as u64;
                request.wr.rdma.rkey = piece.remote_keys[rail];
                let local = (piece.local + at as u64, piece.local_keys.local[rail]);
                at += share;
                if rail == 0 {
                    self.signal(0, &mut request, Some(piece.placement));
                    self.push(request, local, share);
                } else {
                    self.post_alone(rail, request, local, share, piece.placement, common);
                }
            }
            // The part that stood for this one.
            self.placements[piece.placement].left -= 1;
        }
    }

    /// Posts one request to another rail than the first.
    fn post_alone(
        &mut self,
        rail: usize,
        mut request: ffi::ibv_send_wr,
        local: (u64, u32),
        bytes: usize,
        placement: u32,
        common: &mut Common,
    ) {
        let (requests, parts) = (std::mem::take(&mut self.requests), std::mem::take(&mut self.parts));
        self.signal(rail, &mut request, Some(placement));
        self.fence += 1;
        self.push(request, local, bytes);
        self.post(rail, common);
        (self.requests, self.parts) = (requests, parts);
    }

    /// Posts what has waited for room.
    pub fn progress(&mut self, common: &mut Common) {
        if self.broken.is_some() {
            return;
        }
        if !self.pieces.is_empty() {
            self.queue_pieces(common);
            self.post(0, common);
        }
        // The peer may be waiting for credits once half of its receives are used.
        let owes_credits = self.owed >= (self.depth.receives / 2).max(1) && self.credits > 0 && self.has_frame();
        if owes_credits || self.owes_records && self.can_send() {
            self.queue_frame(&mut Rest { parts: &[], part: 0, at: 0 }, common);
            self.post(0, common);
        }
    }
}

/// What is left of a list of slices.
struct Rest<'a, 'b> {
    parts: &'a [IoSlice<'b>],
    part: usize,
    at: usize,
}

impl Rest<'_, '_> {
    fn is_empty(&mut self) -> bool {
        while self.parts.get(self.part).is_some_and(|part| self.at == part.len()) {
            (self.part, self.at) = (self.part + 1, 0);
        }
        self.part == self.parts.len()
    }

    /// Copies as much as fits, and returns how much that is.
    fn copy_to(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() && !self.is_empty() {
            let part = &self.parts[self.part][self.at..];
            let n = part.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&part[..n]);
            done += n;
            self.at += n;
        }
        done
    }
}

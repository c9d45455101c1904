//! What a call publishes: copies, streams and publications by reference, and the waits for their readers.

use super::COPIED_IN_PLACE_BYTES;
use super::program::{Memory, ring_unit};
use super::run::{Call, Work};
use super::wait::Wait;
use crate::publications::Members;
use crate::schedule::{Buffer, Span};

/// After a publication of at least this many bytes, this rank looks at once whether peers sleep: one that is woken then
/// is awake when this rank needs what it does next. To look takes a fence, so after shorter ones it looks only before
/// it waits, and at the end of the call.
const WAKING_BYTES: usize = 64 << 10;

impl Call {
    #[inline]
    pub(super) fn publish(&mut self, work: &Work<'_>, span: &Span) {
        let bytes = span.len * work.binding.call.element;
        let from = self.pointer(work, span);
        let shared = work.shared;
        // What takes the place of scratch memory may be replaced at once, so it is copied.
        let is_scratch = span.buffer == Buffer::Scratch;
        let in_place =
            shared.reads && bytes > COPIED_IN_PLACE_BYTES && !is_scratch && shared.local.has_allocated(from, bytes);
        self.unannounced = true;
        let own = self.workspace();
        let (Memory { mut copied, ring, .. }, number) = (own.memory, own.handle.published());
        if shared.reads && work.program.is_by_reference(number, bytes) {
            copied = 0;
        } else if bytes > copied && !in_place {
            let readers = work.program.to[number];
            // A ring that is not longer than the publication, so that its pieces are short, too.
            let ring = ring.min(bytes.next_multiple_of(ring_unit(work.binding.call.element)));
            // SAFETY: as below; a stream is written to its end before the call ends.
            let stream = unsafe { shared.publications.publish_stream(&mut own.handle, from, bytes, ring, readers) };
            if let Some(stream) = stream {
                own.outgoing.push(stream);
                self.write_streams(work);
                return;
            }
        }
        let copied = if in_place { COPIED_IN_PLACE_BYTES } else { copied };
        // SAFETY: the span lies in the caller's buffers or in scratch memory, both valid until the call has ended,
        // which is after its readers have finished, or its publications were withdrawn.
        unsafe { shared.publications.publish(&mut own.handle, from, bytes, copied) };
        if bytes >= WAKING_BYTES {
            self.announce(work);
        }
    }

    /// Wakes peers that sleep, after a publication or an acknowledgement.
    pub fn announce(&mut self, work: &Work<'_>) {
        if std::mem::take(&mut self.unannounced) {
            work.shared.local.wake_members(work.program.peers);
        }
    }

    /// Whether a stream of this rank is not written to its end.
    pub(super) fn is_writing(&self) -> bool {
        // SAFETY: as for the workspace.
        !unsafe { &(*self.entry.as_ptr()).workspace }.outgoing.is_empty()
    }

    /// Writes the next piece of each stream, where there is room for it. Returns whether there was.
    #[inline]
    pub(super) fn write_streams(&mut self, work: &Work<'_>) -> bool {
        !self.workspace().outgoing.is_empty() && self.write_pieces(work)
    }

    #[cold]
    fn write_pieces(&mut self, work: &Work<'_>) -> bool {
        let mut any = false;
        self.workspace().outgoing.retain_mut(|stream| {
            any |= work.shared.publications.write(stream);
            !stream.is_written()
        });
        self.unannounced |= any;
        any
    }

    pub(super) fn await_readers(&mut self, work: &Work<'_>) -> Option<Wait> {
        let (next, last_fetch) = (self.next, &work.program.last_fetch);
        let own = self.workspace();
        // The end of the call acknowledges, too, unless peers may wait for the acknowledgement while this rank waits
        // for them again.
        if !own.handle.is_by_reference() && own.outgoing.is_empty() && next > work.program.last_shared {
            return None;
        }
        // The peers' calls wait for this rank's acknowledgement as this call does for theirs.
        let acknowledged = work.shared.publications.acknowledge(&mut own.handle, |member| last_fetch[member] < next);
        // A call that waits comes here again and again. If it woke others each time, two that wait would not let each
        // other sleep.
        self.unannounced |= acknowledged;
        while self.write_streams(work) {}
        self.missing_reader(work)
    }

    /// What this rank waits for before its buffers may be written again: that its streams are written to their ends,
    /// and its publications by reference read.
    pub(super) fn missing_reader(&mut self, work: &Work<'_>) -> Option<Wait> {
        let (publications, own) = (&work.shared.publications, self.workspace());
        let missing = match own.outgoing.first() {
            Some(stream) => Some(publications.slowest(stream)),
            None if own.handle.is_by_reference() => publications.missing_reader(&own.handle, work.program.readers),
            None => None,
        };
        missing.map(|member| Wait::Reader { member })
    }

    /// Another member without which a call that waits for a member does not end. It may be that other members, and so
    /// the first one, wait for nothing but that this rank writes on, for which this one has to read: then nobody else
    /// would notice its end.
    pub fn slow_reader(&mut self, work: &Work<'_>, wait: Wait) -> Option<Wait> {
        let (from, number, bytes) = match wait {
            Wait::Publication { member, number } => (member, number, 0),
            Wait::Piece { member, number, bytes } => (member, number, bytes),
            _ => return None,
        };
        let slow_reader = |stream| work.shared.publications.slow_reader(stream).filter(|member| *member != from);
        let member = self.workspace().outgoing.iter().find_map(slow_reader)?;
        Some(Wait::SlowReader { member, from, number, bytes })
    }

    /// The members one of which must do something before a call with this wait goes on.
    pub fn awaited(&mut self, work: &Work<'_>, wait: Wait) -> Members {
        let of_wait = match wait {
            // The member stands for all.
            Wait::Earlier { .. } => Members::MAX,
            Wait::SlowReader { member, from, .. } => 1 << member | 1 << from,
            _ => wait.member().map_or(0, |member| 1 << member),
        };
        of_wait | self.slow_readers(work)
    }

    /// All members that delay streams of this rank.
    pub(super) fn slow_readers(&mut self, work: &Work<'_>) -> Members {
        let of = |stream| work.shared.publications.slow_readers(stream);
        self.workspace().outgoing.iter().flat_map(of).fold(0, |all, member| all | 1 << member)
    }

    pub(super) fn is_delayed_by(&mut self, work: &Work<'_>, member: usize) -> bool {
        self.workspace().outgoing.iter().any(|stream| work.shared.publications.slow_reader(stream) == Some(member))
    }
}

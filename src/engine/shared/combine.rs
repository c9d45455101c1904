//! Combinations of what the members have published, wherever it is: in this process, in another one's memory, or in a
//! ring.

use std::ffi::c_void;
use std::ops::Range;

use super::run::{Call, Work};
use super::source::{Source, read};
use super::wait::Wait;
use crate::engine::prepared::Combine;
use crate::engine::scratch::Scratch;
use crate::engine::spin::LOOK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::publications::{MAX_MEMBERS, Publication};
use crate::reduce::{self, Stores};
use crate::schedule::Span;
use crate::schedule::compiled::Operand;

/// Bytes that are read at a time from each peer's buffers to be reduced: they stay in cache until then.
const STAGED_BYTES: usize = 128 << 10;

/// Results of this length count for the next look at the clock. All shorter ones of a call are not much.
const COUNTED_BYTES: usize = 64 << 10;

/// From this length on, the stores of results may have to bypass the caches.
const STREAMED_BYTES: usize = 1 << 20;

impl Call {
    /// The place of an operand of `bytes`; `None` if it is not published.
    #[inline(always)] // On the path of small collectives.
    fn locate(&mut self, work: &Work<'_>, operand: &Operand, bytes: usize) -> Result<Option<Source>> {
        match *operand {
            Operand::Own(span) => Ok(Some(Source::Here(self.pointer(work, &span)))),
            Operand::Peer { from, publication, at } => {
                let member = from as usize;
                let Some(found) = self.find(work, member, publication) else { return Ok(None) };
                let span = (at * work.binding.call.element, bytes);
                Source::published(work.shared, (member, publication), found, span).map(Some)
            }
        }
    }

    /// Looks for a publication, several times if the call has [`Call::looks`] left: that takes less time than to return
    /// what it waits for, and to come back.
    #[inline(always)] // As above.
    fn find(&mut self, work: &Work<'_>, member: usize, number: u32) -> Option<Option<Publication>> {
        loop {
            let found = work.shared.publications.find(&mut self.workspace().handle, member, number);
            if found.is_some() || self.looks == 0 || !self.workspace().outgoing.is_empty() {
                return found;
            }
            self.looks -= 1;
            std::hint::spin_loop();
        }
    }

    /// Combines this range of the program's operands into `into`, unless it must wait for one of them.
    #[inline]
    pub(super) fn combine(&mut self, work: &Work<'_>, range: &Range<usize>, into: &Span) -> Result<Option<Wait>> {
        let operands = &work.program.operands[range.clone()];
        let bytes = into.len * work.binding.call.element;
        if bytes >= COUNTED_BYTES {
            if bytes >= STREAMED_BYTES {
                return self.combine_many(work, range, into);
            }
            if self.is_clock_due() {
                return Ok(Some(Wait::Clock));
            }
        }
        // The most frequent cases by themselves, because they take a third of the instructions.
        if let [from] = operands
            && let Some(Source::Here(from)) = self.locate(work, from, bytes)?
        {
            // SAFETY: both spans are valid for `bytes`, and `copy` permits overlap.
            unsafe { std::ptr::copy(from, self.pointer(work, into), bytes) };
            self.count(bytes);
            return Ok(None);
        }
        if let ([left, right], Combine::Kernel(kernel, ..)) = (operands, work.binding.call.combine)
            && let Some(Source::Here(left)) = self.locate(work, left, bytes)?
            && let Some(Source::Here(right)) = self.locate(work, right, bytes)?
        {
            // SAFETY: both operands and the result are valid for `into.len` elements; by the verified schedule, the
            // result equals an operand or does not overlap it.
            unsafe { kernel(self.pointer(work, into), left, right, into.len) };
            self.count(bytes);
            return Ok(None);
        }
        self.combine_many(work, range, into)
    }

    #[inline(never)]
    fn combine_many(&mut self, work: &Work<'_>, range: &Range<usize>, into: &Span) -> Result<Option<Wait>> {
        let mut sources = std::mem::take(&mut self.workspace().sources);
        sources.clear();
        let result = self.combine_located(work, range, into, &mut sources);
        self.workspace().sources = sources;
        self.workspace().in_place.clear();
        result
    }

    fn combine_located(
        &mut self,
        work: &Work<'_>,
        range: &Range<usize>,
        into: &Span,
        sources: &mut Vec<Source>,
    ) -> Result<Option<Wait>> {
        let operands = &work.program.operands[range.clone()];
        // Empty unless means are computed.
        let contributions = work.program.contributions.get(range.clone()).unwrap_or(&[]);
        if self.is_clock_due() {
            return Ok(Some(Wait::Clock));
        }
        if let Combine::User = work.binding.call.combine {
            // The function may take long, and peers may sleep until they know of the last publication.
            self.announce(work);
        }
        let bytes = into.len * work.binding.call.element;
        let (mut is_unmapped, mut missing) = (false, None);
        for operand in operands {
            let source = match (self.locate(work, operand, bytes)?, operand) {
                (Some(source), _) => source,
                (None, Operand::Peer { from, publication, .. }) => {
                    // All are needed. Ranks tend to come in their order, since they are woken in it: whoever waits for
                    // the last one, and sleeps, wakes up once in place of once for each.
                    missing = Some(Wait::Publication { member: *from as usize, number: *publication });
                    continue;
                }
                (None, Operand::Own(_)) => return Err(no_operation()),
            };
            is_unmapped |= bytes > 0 && matches!(source, Source::There { .. });
            sources.push(source);
        }
        if missing.is_some() {
            return Ok(missing);
        }
        if bytes == 0 {
            // A stream is read to its end all the same.
            return self.consume(work, &*sources, usize::MAX).map(|()| None);
        }
        if is_unmapped {
            let mapped = &mut self.workspace().in_place;
            sources.iter_mut().for_each(|source| source.map(work.shared, bytes, mapped));
        }
        let sources = &sources[..];
        let into_pointer = self.pointer(work, into);
        let in_pieces = |source: &Source| match source {
            Source::Stream { .. } => true,
            Source::There { .. } => sources.len() > 1,
            _ => false,
        };
        let is_in_pieces = bytes > LOOK_BYTES || sources.iter().any(in_pieces);
        if !is_in_pieces {
            self.workspace().touched += bytes;
        }
        let read = match sources {
            _ if is_in_pieces => match self.combine_pieces(work, sources, contributions, into_pointer, into.len) {
                Ok(Some(wait)) => return Ok(Some(wait)),
                ended => {
                    self.workspace().done = 0;
                    ended.map(|_| ())
                }
            },
            [Source::Here(from)] => {
                // SAFETY: both spans are valid for `bytes`, and `copy` permits overlap.
                unsafe { std::ptr::copy(*from, into_pointer, bytes) };
                Ok(())
            }
            [Source::There { member, address }] => {
                // SAFETY: `into` lies in the caller's buffers or in scratch memory.
                unsafe { read(work.shared, *member, *address, into_pointer, bytes) }
            }
            _ => reduce(work, sources, contributions, into_pointer, into.len),
        };
        self.check_read(work, sources, read)
    }

    /// Counts bytes of results for the next look at the clock.
    #[inline(always)] // On the path of small collectives.
    fn count(&mut self, bytes: usize) {
        if bytes >= COUNTED_BYTES {
            self.workspace().touched += bytes;
        }
    }

    /// Whether the caller should look at the clock before the call touches more memory.
    fn is_clock_due(&mut self) -> bool {
        let own = self.workspace();
        let is_due = own.touched >= LOOK_BYTES;
        own.touched *= usize::from(!is_due);
        is_due
    }

    /// Combines operands piece by piece: some must be read from the peers' processes first, or are written while they
    /// are read, or they are long. Returns what it waits for; it goes on from there.
    fn combine_pieces(
        &mut self,
        work: &Work<'_>,
        sources: &[Source],
        contributions: &[u32],
        into: *mut u8,
        count: usize,
    ) -> Result<Option<Wait>> {
        let element = work.binding.call.element;
        let is_stream = sources.iter().any(|source| matches!(source, Source::Stream { .. }));
        // One that is only copied is read to where it belongs.
        let is_read_there = matches!(sources, [Source::There { .. }]);
        let staged_sources =
            sources.iter().filter(|source| matches!(source, Source::There { .. }) && !is_read_there).count();
        let piece = if is_stream || staged_sources > 0 { STAGED_BYTES } else { LOOK_BYTES };
        let max_elements = (piece / element).max(1).min(count);
        let stride = (max_elements * element).next_multiple_of(64);
        if self.workspace().done == 0 {
            // Tells the writer of each stream which first bytes this rank does not read, before it waits for any
            // stream: a writer that does not know may wait for this rank meanwhile.
            self.consume(work, sources.iter().filter(|source| matches!(source, Source::Stream { at: 1.., .. })), 0)?;
        }
        let mut staging =
            if staged_sources > 0 { work.shared.state().staging.pop().unwrap_or_default() } else { Scratch::default() };
        if !staging.reserve(&work.shared.kept, staged_sources * stride, 1) {
            return Err(no_memory(staged_sources * stride));
        }
        let mut local = std::mem::take(&mut self.workspace().staged);
        let result = loop {
            let done = self.workspace().done;
            if done == count {
                break self.consume(work, sources, usize::MAX).map(|()| None);
            }
            if self.is_clock_due() {
                break Ok(Some(Wait::Clock));
            }
            local.clear();
            let elements = match self.locate_pieces(work, sources, max_elements.min(count - done), &mut local) {
                Ok(Ok(elements)) => elements,
                // Peers may wait for what this rank writes.
                Ok(Err(_)) if self.write_streams(work) => continue,
                Ok(Err(wait)) => break Ok(Some(wait)),
                Err(error) => break Err(error),
            };
            let into = into.wrapping_add(done * element);
            let mut next = if is_read_there { into } else { staging.pointer() };
            let staged = sources.iter().zip(&mut local).try_for_each(|(source, local)| {
                let Source::There { member, address } = *source else { return Ok(()) };
                let (place, from) = (next, address.wrapping_add((done * element) as u64));
                next = place.wrapping_add(stride);
                *local = Source::Here(place);
                // SAFETY: the staging memory has `stride` bytes for each such source; `into` has as many as the pieces
                // of one.
                unsafe { read(work.shared, member, from, place, elements * element) }
            });
            let combined = staged.and_then(|()| {
                if is_read_there { Ok(()) } else { reduce(work, &local, contributions, into, elements) }
            });
            if let Err(error) = combined {
                break Err(error);
            }
            let own = self.workspace();
            (own.done, own.touched) = (done + elements, own.touched + elements * element);
            if let Err(error) = self.consume(work, sources, (done + elements) * element) {
                break Err(error);
            }
            if self.write_streams(work) || is_stream {
                self.announce(work);
            }
        };
        self.workspace().staged = local;
        if staged_sources > 0 {
            work.shared.state().staging.push(staging);
        }
        result
    }

    /// Where the next elements of each of `sources` are, at most `elements`; for memory of other processes: nowhere.
    /// Returns how many there are of all, or what to wait for if there are none.
    fn locate_pieces(
        &mut self,
        work: &Work<'_>,
        sources: &[Source],
        mut elements: usize,
        local: &mut Vec<Source>,
    ) -> Result<std::result::Result<usize, Wait>> {
        let (element, done) = (work.binding.call.element, self.workspace().done);
        for source in sources {
            match source.piece(work.shared, done * element, element, &mut elements)? {
                Ok(piece) => local.push(piece),
                Err(wait) => return Ok(Err(wait)),
            }
        }
        Ok(Ok(elements))
    }

    /// Says that this rank does not read the next `bytes` bytes of the streams among `sources` any more, nor what lies
    /// before them.
    fn consume<'a>(
        &mut self,
        work: &Work<'_>,
        sources: impl IntoIterator<Item = &'a Source>,
        bytes: usize,
    ) -> Result<()> {
        for source in sources {
            self.unannounced |= source.consume(work.shared, bytes)?;
        }
        Ok(())
    }

    /// Divides `span`, unless the caller is to look at the clock first.
    pub(super) fn divide(&mut self, work: &Work<'_>, span: &Span, by: u32) -> Result<Option<Wait>> {
        let divide = work.binding.call.combine.divide().ok_or_else(no_operation)?;
        let (element, data) = (work.binding.call.element, self.pointer(work, span));
        loop {
            let done = self.workspace().done;
            let elements = (LOOK_BYTES / element).min(span.len - done);
            // SAFETY: the span lies in the caller's buffers or in scratch memory; `by` is not 0 in a verified schedule.
            unsafe { divide(data.wrapping_add(done * element), elements, u64::from(by)) };
            let own = self.workspace();
            (own.done, own.touched) = (done + elements, own.touched + elements * element);
            if own.done == span.len {
                own.done = 0;
                return Ok(None);
            }
            if self.is_clock_due() {
                return Ok(Some(Wait::Clock));
            }
        }
    }

    /// After a read of the memory of peers: if one has withdrawn what was read, which may then have been other bytes or
    /// no memory at all, or its process has ended, the call waits for the reason, which the peer's link has, or gets.
    fn check_read(&mut self, work: &Work<'_>, sources: &[Source], read: Result<()>) -> Result<Option<Wait>> {
        let shared = work.shared;
        // A process that ends loses its memory before others are told of its end.
        let ended =
            read.as_ref().err().map(Error::details).filter(|of| of.errno == Some(libc::ESRCH)).and_then(|of| of.rank);
        for source in sources {
            if let Some(member) = source.member()
                && (!shared.publications.stands(&self.workspace().handle, member) || ended == Some(shared.rank(member)))
            {
                return Ok(Some(Wait::Reason { member }));
            }
        }
        read.map(|()| None)
    }
}

/// How the results of the call are stored.
fn stores(work: &Work<'_>) -> Stores {
    let Work { shared, binding, .. } = work;
    let buffers = 2 * shared.publications.members() * binding.call.count * binding.call.element;
    Stores::for_working_set(buffers, shared.cache_bytes)
}

/// `into` = the sources combined from left to right, which are all in this process; `contributions` has a number for
/// each, if the result is their mean.
fn reduce(work: &Work<'_>, sources: &[Source], contributions: &[u32], into: *mut u8, count: usize) -> Result<()> {
    let call = work.binding.call;
    let stores = stores(work);
    match (call.combine, sources) {
        (_, [from]) => {
            // SAFETY: both spans are valid for `count` elements. By the verified schedule an operand of this rank's
            // does not overlap `into`, and a peer's memory is not this rank's.
            unsafe { reduce::copy(into, from.here(), count * call.element, stores) };
            Ok(())
        }
        (Combine::Kernel(_, _, (dtype, op)), sources) => {
            let kernel = reduce::kernel_n(dtype, op).ok_or_else(no_operation)?;
            let mut pointers = [std::ptr::null(); MAX_MEMBERS];
            let pointers = pointers.get_mut(..sources.len()).ok_or_else(no_operation)?;
            pointers.iter_mut().zip(sources).for_each(|(pointer, source)| *pointer = source.here());
            // SAFETY: all operands and the result are valid for `count` elements; by the verified schedule, the result
            // equals an operand or does not overlap it.
            unsafe { kernel.run(into, pointers, count, stores) };
            Ok(())
        }
        (Combine::Exact(exact, _), sources) => {
            let mut pointers = [std::ptr::null(); MAX_MEMBERS];
            let pointers = pointers.get_mut(..sources.len()).ok_or_else(no_operation)?;
            pointers.iter_mut().zip(sources).for_each(|(pointer, source)| *pointer = source.here());
            // SAFETY: as above; the operands are all contributions.
            unsafe { exact(into, pointers, count) };
            Ok(())
        }
        (Combine::Mean(mean), sources) if contributions.len() == sources.len() => {
            let mut pointers = [std::ptr::null(); MAX_MEMBERS];
            let pointers = pointers.get_mut(..sources.len()).ok_or_else(no_operation)?;
            pointers.iter_mut().zip(sources).for_each(|(pointer, source)| *pointer = source.here());
            // SAFETY: as above; elements have 16 bits.
            unsafe { reduce::mean_n(mean, into, pointers, contributions, count) };
            Ok(())
        }
        (Combine::User, [left, right]) => {
            let (function, user) = work.binding.function.ok_or_else(no_operation)?;
            let (left, right) = (left.here().cast::<c_void>(), right.here().cast::<c_void>());
            // SAFETY: the caller guarantees that the function may be called on this thread, on which it made the call;
            // the pointers are valid as above.
            match unsafe { function(into.cast(), left, right, count, user) } {
                0 => Ok(()),
                status => {
                    Err(Error::new(ErrorKind::Callback, format!("the caller's reduction function returned {status}")))
                }
            }
        }
        _ => Err(no_operation()),
    }
}

#[cold]
fn no_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::ResourceExhausted, format!("no memory for {bytes} bytes that a collective keeps aside"))
}

#[cold]
fn no_operation() -> Error {
    Error::new(ErrorKind::Internal, "a schedule combines elements, but the call has no operation")
}

// Miri would take minutes, and the threads are not loom's.
#[cfg(all(test, not(any(miri, loom))))]
#[path = "combine_tests.rs"]
mod tests;

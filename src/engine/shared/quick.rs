//! Calls that were prepared before, which start in few steps: persistent requests, and a cache of plain calls, which have the same
//! arguments but for the buffers.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::engine::execution::Combine;
use crate::engine::plan::Plan;
use crate::memory;
use crate::reduce::Kernel;
use crate::schedule::compiled::{Op, Operand};
use crate::schedule::{Buffer, Span};
use crate::transport::board::{INLINE_BYTES, Opening, Place, Publication};

use super::program::Program;
use super::run::{Call, Start};
use super::{Entry, Shared, State};

/// The arguments of a plain call, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// From the lowest byte on: the collective's number, the data type's, the operation's, and the buffers; then the root.
    what: u64,
    count: usize,
}

/// A buffer of a call.
#[derive(Clone, Copy)]
pub struct Room {
    /// Its length in bytes.
    pub bytes: usize,
    /// Bits that are 0 in its address.
    unaligned: usize,
    /// One less than its address is at most this.
    most: usize,
}

/// The first publication of a call, in the slot itself, if nothing comes before it.
#[derive(Clone, Copy)]
pub struct First {
    /// Whether it is of the input, else of the output.
    pub input: bool,
    /// Where it begins there, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// Where what takes the place of scratch memory begins there, else the same as `offset`.
    pub scratch: usize,
    /// The elements that it is of, as the program names them.
    span: Span,
    /// The operation after it.
    pub next: usize,
}

/// What a call executes after its first publication, if it is one combination of what it has published with a publication of
/// another member. As the program has the publication's copy, it waits for no reader.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The member, and the number of its publication.
    pub member: usize,
    /// See `member`.
    pub publication: u32,
    /// Where the operand begins and ends in that publication, in bytes.
    pub at: usize,
    /// See `at`.
    pub end: usize,
    /// Whether the own operand is the left one.
    pub is_left: bool,
    /// Where the result begins in the output, in bytes.
    pub into: usize,
    /// Number of elements.
    pub count: usize,
    /// Combines them.
    pub kernel: Kernel,
}

/// A call of which all is known but the buffers.
pub struct Known {
    /// The plan, which has a program.
    pub plan: Arc<Plan>,
    /// The name of the algorithm.
    pub algorithm: &'static str,
    /// How elements are combined.
    pub combine: Combine,
    /// What the call needs to start.
    pub start: Start,
    /// Bytes of one element.
    pub element: usize,
    /// Elements of the call, for error messages.
    pub count: usize,
    /// The input, and the output, if the call uses them.
    pub input: Option<Room>,
    /// See `input`.
    pub output: Option<Room>,
    /// The first publication, if it needs no preparation.
    pub first: Option<First>,
    /// The rest of the call.
    pub pair: Option<Pair>,
}

// SAFETY: if `combine` is a function of the caller, this belongs to a request, whose caller allows that the thread which waits calls it with
// its `user`; else it is a kernel of the library.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

/// Of a key's buffers: the input is NULL; it is also the output.
const NO_INPUT: u64 = 1 << 24;
const IN_PLACE: u64 = 1 << 25;
/// The first of the bits between these and the root.
const UNUSED_BITS: u32 = 26;

impl Key {
    /// `None` if a number is that of no type or operation.
    #[inline]
    pub fn new(
        collective: u8,
        (dtype, op): (u32, u32),
        root: i32,
        count: usize,
        input: *const c_void,
        output: *const c_void,
    ) -> Option<Self> {
        if dtype | op > u32::from(u8::MAX) {
            return None;
        }
        let buffers = (u64::from(input.is_null()) * NO_INPUT) | (u64::from(input == output) * IN_PLACE);
        let numbers = u64::from(collective) | u64::from(dtype) << 8 | u64::from(op) << 16;
        Some(Self { what: numbers | buffers | u64::from(root as u32) << 32, count })
    }

    /// The collective's number.
    pub fn collective(&self) -> u8 {
        self.what as u8
    }

    /// The data type's number.
    pub fn dtype(&self) -> u8 {
        (self.what >> 8) as u8
    }

    /// The operation's number.
    pub fn op(&self) -> u8 {
        (self.what >> 16) as u8
    }

    /// The root.
    pub fn root(&self) -> i32 {
        (self.what >> 32) as i32
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the input is not NULL, and has another address than the output.
    pub fn has_other_input(&self) -> bool {
        self.what & (NO_INPUT | IN_PLACE) == 0
    }

    /// A hash, of which the highest bits are the best.
    #[inline(always)] // On the path of small collectives.
    pub fn hash(&self) -> u64 {
        // The lowest bits of the length meet bits that are always 0.
        (self.what ^ (self.count as u64).rotate_left(UNUSED_BITS)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl First {
    /// Of a plan with `program`, and elements of `element` bytes. None of a call that needs scratch memory, since it may not get any.
    pub fn of(plan: &Plan, program: &Program, element: usize) -> Option<Self> {
        let aside = program.skips_copy(element);
        if aside.is_none() && plan.scratch > 0 {
            return None;
        }
        let at = usize::from(aside.is_some());
        let Some(&Op::Publish(span)) = program.ops.get(at) else { return None };
        let mut from = span;
        if let Some(aside) = aside {
            if from.buffer != Buffer::Scratch {
                return None;
            }
            (from.buffer, from.offset) = (aside.buffer, aside.offset + from.offset);
        }
        let input = match from.buffer {
            Buffer::Input(_) => true,
            Buffer::Output(_) => false,
            // A signal has no bytes.
            Buffer::Scratch if from.len == 0 => false,
            Buffer::Scratch => return None,
        };
        let (offset, bytes) = (from.offset * element, from.len * element);
        let scratch = aside.map_or(offset, |aside| aside.offset * element);
        (bytes <= INLINE_BYTES).then_some(Self { input, offset, bytes, scratch, span, next: at + 1 })
    }
}

impl Pair {
    /// Of a program whose first publication is `first`, with elements of `element` bytes.
    pub fn of(program: &Program, first: &First, element: usize, combine: Combine) -> Option<Self> {
        let [Op::Combine { operands, into }, Op::AwaitReaders] = &program.ops[first.next..] else { return None };
        let Combine::Kernel(kernel, ..) = combine else { return None };
        let (own, peer, is_left) = match program.operands[operands.clone()] {
            [Operand::Own(own), peer] => (own, peer, true),
            [peer, Operand::Own(own)] => (own, peer, false),
            _ => return None,
        };
        let Operand::Peer { from, publication, at } = peer else { return None };
        if own != first.span || first.scratch != first.offset || !matches!(into.buffer, Buffer::Output(_)) {
            return None;
        }
        let (at, bytes) = (at * element, into.len * element);
        let (member, end, count) = (from as usize, at + bytes, into.len);
        Some(Self { member, publication, at, end, is_left, into: into.offset * element, count, kernel })
    }
}

impl Room {
    /// A buffer of `bytes` that is aligned to `align`.
    pub fn new(bytes: usize, align: usize) -> Self {
        match bytes {
            // Never accessed, so any address will do.
            0 => Self { bytes, unaligned: 0, most: usize::MAX },
            _ => Self { bytes, unaligned: align - 1, most: (isize::MAX as usize - bytes).wrapping_sub(1) },
        }
    }

    /// Whether the buffer can be at `pointer`.
    #[inline(always)] // On the path of small collectives.
    fn fits(&self, pointer: *const u8) -> bool {
        let address = pointer.addr();
        address & self.unaligned == 0
            && address.wrapping_sub(1) <= self.most
            && memory::check_host(pointer, String::new).is_ok()
    }
}

impl Known {
    /// Whether these are buffers in host memory that the call may use.
    #[inline(always)] // On the path of small collectives.
    pub fn fits(&self, input: *const u8, output: *const u8) -> bool {
        self.output.is_none_or(|room| room.fits(output))
            && self.input.is_none_or(|room| {
                let apart = |other: Room| {
                    let (i, o) = (input.addr(), output.addr());
                    i.wrapping_add(room.bytes) <= o || o.wrapping_add(other.bytes) <= i
                };
                room.fits(input) && self.output.is_none_or(apart)
            })
    }
}

/// The entry of a call that has begun, and its fingerprint.
type Begun = (NonNull<Entry>, u64);

/// The next operation of a call, and its scratch memory or what takes the place of that.
type Ready = (usize, *mut u8);

impl Call {
    /// Starts the plain call with these arguments, if it was remembered and these buffers can be used. The result describes the
    /// call, and is valid until that has ended. What is done before the first publication is kept short.
    ///
    /// # Safety
    /// The buffers are valid for their lengths until the call has ended.
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn start_quick(
        shared: &Shared,
        key: &Key,
        input: *const u8,
        output: *mut u8,
    ) -> Option<(Self, NonNull<Known>)> {
        let mut state = shared.state();
        let known = state.plain.get(key).filter(|known| known.fits(input, output))?;
        let pointer = NonNull::from(known);
        // SAFETY: the cache keeps it alive until no call is in progress.
        let known = unsafe { pointer.as_ref() };
        // What is constant takes fewer instructions.
        let start = Start { line: (known.start.line.0, 0), counted: true, from_table: true, ..known.start };
        // SAFETY: by the contract.
        let (begun, first) = unsafe { Self::publish_first(shared, &mut state, known, &start, input, output) }?;
        drop(state);
        let call = Self::after(begun, first, shared, known, input, output)?;
        Some((call, pointer))
    }

    /// Starts the call that `known` describes.
    ///
    /// # Safety
    /// As for [`Call::start_quick`]; `known` fits the buffers, and is valid until the call has ended.
    #[inline(always)] // As above.
    pub unsafe fn start_known(shared: &Shared, known: &Known, input: *const u8, output: *mut u8) -> Option<Self> {
        // SAFETY: by the contract.
        let (begun, first) =
            unsafe { Self::publish_first(shared, &mut shared.state(), known, &known.start, input, output) }?;
        Self::after(begun, first, shared, known, input, output)
    }

    /// The call after [`Call::publish_first`].
    #[inline(always)] // As above.
    fn after(
        begun: Begun,
        first: Option<Ready>,
        shared: &Shared,
        known: &Known,
        input: *const u8,
        output: *mut u8,
    ) -> Option<Self> {
        let ((entry, fingerprint), is_quick) = (begun, first.is_some());
        // No closure, which would keep all of this in memory.
        let (next, scratch) = match first {
            Some(ready) => ready,
            None => Self::prepare(shared, begun, known, input, output)?,
        };
        Some(Self { entry, fingerprint, next, scratch, unannounced: is_quick, is_quick, looks: 0, claims: false })
    }

    /// Begins a call, and publishes what is known to be its first publication, if it has got a slot.
    ///
    /// # Safety
    /// As for [`Call::start_known`]; `start` is that of `known`.
    #[inline(always)] // As above.
    unsafe fn publish_first(
        shared: &Shared,
        state: &mut State,
        known: &Known,
        start: &Start,
        input: *const u8,
        output: *mut u8,
    ) -> Option<(Begun, Option<Ready>)> {
        let mut ready = None;
        let publish = |call: &Opening| {
            let Some(first) = &known.first else { return false };
            let base = if first.input { input.cast_mut() } else { output };
            let from = base.wrapping_add(first.offset);
            // SAFETY: the caller guarantees the buffer, which is long enough for what the program publishes.
            unsafe { shared.board.publish_first(call, from, first.bytes) };
            ready = Some((first.next, base.wrapping_add(first.scratch)));
            true
        };
        let begun = Self::begin(shared, state, start, publish).ok()?;
        Some((begun, ready))
    }

    /// Makes scratch memory for a call that has not published anything.
    #[cold]
    fn prepare(shared: &Shared, begun: Begun, known: &Known, input: *const u8, output: *mut u8) -> Option<Ready> {
        let program = known.plan.program.as_ref()?;
        let mut call = Self::new(begun);
        let aside = program.skips_copy(known.element).filter(|_| call.workspace().copies).map(|span| {
            let base = if let Buffer::Input(_) = span.buffer { input.cast_mut() } else { output };
            base.wrapping_add(span.offset * known.element)
        });
        if !call.make_scratch(shared, aside, &known.plan, known.element) {
            call.withdraw(shared);
            return None;
        }
        Some((call.next, call.scratch))
    }

    /// Whether the call is one that [`Call::finish_pair`] may end.
    #[inline(always)] // On the path of small collectives.
    pub fn is_pair(&self, known: &Known) -> bool {
        self.is_quick && known.pair.is_some()
    }

    /// Executes the rest of a call that combines two operands after its first publication, if the peer has published its own. Returns
    /// whether the call has ended; if not, it is to be advanced.
    ///
    /// # Safety
    /// `known` and `output` are those of [`Call::start_quick`] or [`Call::start_known`].
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn finish_pair(&mut self, shared: &Shared, known: &Known, output: *mut u8) -> bool {
        let Some(pair) = known.pair.as_ref().filter(|_| self.is_quick) else { return false };
        let own = self.workspace();
        match shared.board.find(&mut own.seat, pair.member, pair.publication) {
            Some(Some(Publication { bytes, place: Place::Here(start) })) if pair.end <= bytes => {
                let (own, peer) = (self.scratch.cast_const(), start.wrapping_add(pair.at));
                let (left, right) = if pair.is_left { (own, peer) } else { (peer, own) };
                // SAFETY: as for other combinations; `end` is that of the operand in the publication, and `scratch` is the other.
                unsafe { (pair.kernel)(output.wrapping_add(pair.into), left, right, pair.count) };
            }
            _ => return false,
        }
        self.end(shared);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{known, plan};
    use super::*;
    use crate::transport::shm::HostGroup;

    #[test]
    fn what_a_call_in_progress_may_use_stays_until_it_has_ended() {
        const COUNT: usize = 4;
        let (input, mut output) = ([1f32; COUNT], [0f32; COUNT]);
        let (from, into) = (input.as_ptr().cast::<u8>(), output.as_mut_ptr().cast::<u8>());
        let shared = Shared::new(HostGroup::in_process(2).remove(0), Arc::default());
        let plan = Arc::new(plan(0, 2, COUNT));
        let key = Key::new(1, (2, 3), 0, COUNT, from.cast(), into.cast()).unwrap();
        let remember = || shared.remember(key, known(plan.clone(), COUNT));
        remember();
        // SAFETY: the buffers are valid until the call is withdrawn.
        let (mut call, used) = unsafe { Call::start_quick(&shared, &key, from, into) }.unwrap();
        (0..2).for_each(|_| remember());
        // The test's, the cache's, and two that were replaced.
        assert_eq!(Arc::strong_count(&plan), 4);
        // SAFETY: the call is in progress.
        assert_eq!(unsafe { used.as_ref() }.count, COUNT);
        call.withdraw(&shared);
        remember();
        assert_eq!(Arc::strong_count(&plan), 2);
    }

    #[test]
    fn keys_of_different_arguments_differ() {
        let [a, b] = [8, 16].map(std::ptr::without_provenance::<c_void>);
        let null = std::ptr::null();
        let key = |dtype, op, root, count, input, output| Key::new(3, (dtype, op), root, count, input, output);
        let keys = [
            key(1, 2, 0, 5, a, b),
            key(2, 1, 0, 5, a, b),
            key(1, 2, -1, 5, a, b),
            key(1, 2, 1, 5, a, b),
            key(1, 2, 0, 6, a, b),
            key(1, 2, 0, 5, null, b),
            key(1, 2, 0, 5, a, a),
            key(1, 2, 0, 5, null, null),
            Key::new(4, (1, 2), 0, 5, a, b),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert!(one.is_some() && !keys[index + 1..].contains(one), "{one:?}");
        }
        assert_eq!(key(1, 2, 0, 5, a, b), key(1, 2, 0, 5, b, a), "only whether they are equal");
        assert_eq!((key(256, 2, 0, 5, a, b), key(1, 256, 0, 5, a, b)), (None, None));
        let key = key(200, 7, -2, 9, a, b).unwrap();
        assert_eq!((key.collective(), key.dtype(), key.op(), key.root(), key.count()), (3, 200, 7, -2, 9));
    }

    #[test]
    fn a_buffer_is_aligned_and_within_the_address_space() {
        let cells = [0u64; 4];
        let (start, bytes) = (cells.as_ptr().cast::<u8>(), size_of_val(&cells));
        let fits = |bytes, address| Room::new(bytes, 8).fits(std::ptr::without_provenance(address));
        assert!(Room::new(bytes, 8).fits(start));
        assert!(!Room::new(bytes, 8).fits(start.wrapping_add(4)));
        assert!(!fits(8, 0));
        let most = isize::MAX as usize - 7;
        assert!(fits(7, most) && !fits(8, most) && !fits(8, 0usize.wrapping_sub(8)));
        assert!(fits(0, 0) && fits(0, 3), "never accessed");
    }
}

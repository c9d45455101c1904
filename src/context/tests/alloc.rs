//! Collectives and messages on memory that contexts have allocated.

use super::*;
use crate::collective::{Collective, Shape};
use crate::testing::tier::Tier;
use crate::types::DataType;

const COUNT: usize = (3 << 20) / 4;

/// Memory of a context for `COUNT` numbers, or of the process.
struct Memory<'a> {
    owner: Option<&'a Context>,
    start: *mut u32,
}

impl<'a> Memory<'a> {
    fn new(owner: Option<&'a Context>, first: u32) -> Self {
        let start = match owner {
            Some(context) => context.alloc(4 * COUNT).unwrap().as_ptr().cast(),
            None => Box::leak(vec![0u32; COUNT].into_boxed_slice()).as_mut_ptr(),
        };
        let memory = Self { owner, start };
        // SAFETY: there are so many numbers, and nothing else uses them.
        let numbers = unsafe { std::slice::from_raw_parts_mut(start, COUNT) };
        numbers.iter_mut().zip(first..).for_each(|(number, value)| *number = value);
        memory
    }

    fn numbers(&self) -> &[u32] {
        // SAFETY: as above; no call runs.
        unsafe { std::slice::from_raw_parts(self.start, COUNT) }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe {
            match self.owner {
                Some(context) => context.dealloc(self.start.cast()).unwrap(),
                None => drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, COUNT))),
            }
        }
    }
}

/// How many allocations of other ranks this one has mapped.
fn mapped(context: &Context) -> usize {
    let guard = context.lock().unwrap();
    let group = guard.messenger.connections().local_ranks().unwrap();
    (0..context.size()).map(|member| group.mapped(member)).sum()
}

/// An allreduce, on memory of the contexts on the ranks of `allocating`.
fn allreduce(context: &Context, allocating: std::ops::Range<usize>, algorithm: &'static str, in_place: bool) {
    let (rank, size) = (context.rank(), context.size());
    let owner = allocating.contains(&rank).then_some(context);
    let [input, output] = [Memory::new(owner, rank as u32), Memory::new(owner, if in_place { rank as u32 } else { 9 })];
    let shape = Shape { inputs: usize::from(!in_place), ..Shape::new(Collective::Allreduce, rank, size, COUNT) };
    let (inputs, outputs) = ([input.start.cast_const().cast()], [output.start.cast()]);
    let call = Call {
        inputs: &inputs[..shape.inputs],
        outputs: &outputs,
        algorithm: Some(algorithm),
        ..Call::new(shape, DataType::Uint32)
    };
    // SAFETY: the buffers have the lengths of the shape.
    unsafe { context.run(&call) }.unwrap();
    let expected = |at: usize| (size * at + size * (size - 1) / 2) as u32;
    let wrong = (0..COUNT).find(|at| output.numbers()[*at] != expected(*at));
    assert_eq!(wrong, None, "rank {rank}, {algorithm}, in place: {in_place}, allocates: {}", owner.is_some());
}

#[test]
fn collectives_use_memory_of_contexts_and_of_processes() {
    let contexts = shared::connected(3, false);
    let reads = contexts[0].shared_memory.get().is_some();
    run(&contexts, |context| {
        allreduce(context, 0..3, "shared_slices", false);
        assert_eq!(mapped(context), if reads { 4 } else { 0 }, "input and output of two ranks");
        let algorithms = ["shared_slices", "ring", "shared_flat", "halving_doubling"];
        for algorithm in algorithms.into_iter().take(Tier::from_environment().of(2, 4, 4)) {
            for (allocating, in_place) in [(0..3, true), (1..2, false), (1..2, true), (0..0, false), (0..3, false)] {
                allreduce(context, allocating, algorithm, in_place);
            }
        }
    });
}

#[test]
fn memory_may_be_used_in_another_context_and_outlive_the_connections() {
    let contexts = shared::connected(2, false);
    let others = shared::connected(2, false);
    run(&contexts, |context| {
        let memory = Memory::new(Some(&others[context.rank()]), 7);
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), 2, COUNT) };
        let call = Call { outputs: &[memory.start.cast()], ..Call::new(shape, DataType::Uint32) };
        // SAFETY: the buffer has the length of the shape.
        unsafe { context.run(&call) }.unwrap();
        assert_eq!(memory.numbers()[..2], [14, 16]);
        let late = Memory::new(Some(context), 1);
        context.close();
        assert_eq!((&late.numbers()[..2], Memory::new(Some(context), 3).numbers()[0]), (&[1, 2][..], 3));
    });
}

#[test]
fn memory_that_is_left_is_freed_with_its_context() {
    let listed = |start: *mut u8| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{:x}-", start.addr())))
    };
    let contexts = shared::connected(2, false);
    let left: Vec<_> = contexts.iter().map(|context| context.alloc(77 << 20).unwrap().as_ptr()).collect();
    assert!(left.iter().all(|memory| listed(*memory)));
    // SAFETY: nothing uses the memory.
    let error = unsafe { contexts[0].dealloc(left[1]) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    drop(contexts);
    assert!(!left.iter().any(|memory| listed(*memory)), "the memory is still mapped");
}

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::collective::{Algorithm, Collective};
use crate::ffi::enumeration::from_number;
use crate::ffi::*;

const SIZE: usize = 3;
const NONE: *mut c_void = ptr::null_mut();

/// What went wrong on this thread.
fn message() -> String {
    // SAFETY: the string is valid until the next call fails on this thread.
    unsafe { CStr::from_ptr(gloo_rs_last_error_message()) }.to_string_lossy().into_owned()
}

/// A collective of one input and one output of int32, with other fields as given.
macro_rules! call {
    ($context:expr, $kind:ident, $input:expr, $output:expr, $($field:ident: $value:expr),*) => {{
        let (inputs, outputs) = ([$input.cast_const()], [$output]);
        let mut options = MaybeUninit::<gloo_rs_collective_options_t>::uninit();
        // SAFETY: `init` fills the struct; buffers are as long as counts say, or not this rank's to use.
        unsafe {
            gloo_rs_collective_options_init(options.as_mut_ptr(), size_of::<gloo_rs_collective_options_t>());
            let mut options = options.assume_init();
            options.data_type = MaybeUninit::new(GLOO_RS_INT32);
            (options.inputs, options.num_inputs) = (inputs.as_ptr(), inputs.len());
            (options.outputs, options.num_outputs) = (outputs.as_ptr(), outputs.len());
            $(options.$field = $value;)*
            assert_eq!(gloo_rs_collective($context, MaybeUninit::new($kind), &options), GLOO_RS_OK, "{}", message());
        }
    }};
}

/// Every collective with a root, called as with MPI: the same arguments on all ranks, of which other ranks than the
/// root leave some without a meaning.
fn call_like_mpi(context: *mut gloo_rs_context_t, rank: usize, root: usize) {
    let is_root = rank == root;
    let only_root = |pointer: *mut c_void| if is_root { pointer } else { NONE };
    let number = |rank: usize| (100 * root + rank) as i32;
    let root_rank = root as i32;
    let all: Vec<i32> = (0..SIZE).map(number).collect();
    let (counts, no_counts) = ([1usize, 2, 3], ptr::without_provenance::<usize>(1));
    let counts_at_root = if is_root { counts.as_ptr() } else { no_counts };
    let blocks: Vec<i32> = counts.iter().zip(&all).flat_map(|(count, value)| vec![*value; *count]).collect();
    let own_block = vec![number(rank); counts[rank]];

    let mut own = [number(rank)];
    let mut whole = blocks.clone();
    let mut first = all.clone();

    let mut sum = [-1];
    call!(context, GLOO_RS_REDUCE,
        own.as_mut_ptr().cast::<c_void>(), only_root(sum.as_mut_ptr().cast()), root: root_rank, count: 1);
    assert_eq!(sum[0], if is_root { all.iter().sum() } else { -1 });

    let mut copy = [-1];
    call!(context, GLOO_RS_BROADCAST,
        only_root(own.as_mut_ptr().cast()), copy.as_mut_ptr().cast::<c_void>(), root: root_rank, count: 1);
    assert_eq!(copy, [number(root)]);

    let mut gathered = vec![-1; SIZE];
    call!(context, GLOO_RS_GATHER,
        own.as_mut_ptr().cast::<c_void>(), only_root(gathered.as_mut_ptr().cast()), root: root_rank, count: 1);
    assert_eq!(gathered, if is_root { all.clone() } else { vec![-1; SIZE] });

    let (mut block, mut gathered) = (own_block.clone(), vec![-1; blocks.len()]);
    call!(context, GLOO_RS_GATHERV,
        block.as_mut_ptr().cast::<c_void>(), only_root(gathered.as_mut_ptr().cast()),
        root: root_rank, count: counts[rank], recv_counts: counts_at_root, num_counts: SIZE);
    assert_eq!(gathered, if is_root { blocks.clone() } else { vec![-1; blocks.len()] });

    let mut part = [-1];
    call!(context, GLOO_RS_SCATTER,
        only_root(first.as_mut_ptr().cast()), part.as_mut_ptr().cast::<c_void>(), root: root_rank, count: 1);
    assert_eq!(part, [number(rank)]);

    let mut part = vec![-1; counts[rank]];
    call!(context, GLOO_RS_SCATTERV,
        only_root(whole.as_mut_ptr().cast()), part.as_mut_ptr().cast::<c_void>(),
        root: root_rank, count: counts[rank], send_counts: counts_at_root, num_counts: SIZE);
    assert_eq!(part, own_block);

    // SAFETY: the callers pass a live handle.
    assert_eq!(unsafe { gloo_rs_barrier(context) }, GLOO_RS_OK, "{}", message());
}

/// Runs `body` on each of `size` ranks, with its context.
fn on_ranks(size: usize, name: &CStr, body: impl Fn(*mut gloo_rs_context_t, usize) + Sync) {
    std::thread::scope(|scope| {
        for rank in 0..size {
            let body = &body;
            scope.spawn(move || {
                let (mut device, mut store, mut context) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
                // SAFETY: valid places for handles; options are NULL; each handle is destroyed once, after its last
                // use.
                unsafe {
                    assert_eq!(gloo_rs_device_create(ptr::null(), &mut device), GLOO_RS_OK);
                    assert_eq!(gloo_rs_store_create_in_process(name.as_ptr(), &mut store), GLOO_RS_OK);
                    let (own, size) = (rank as i32, size as i32);
                    assert_eq!(gloo_rs_context_create(device, own, size, ptr::null(), &mut context), GLOO_RS_OK);
                    assert_eq!(gloo_rs_context_connect(context, store), GLOO_RS_OK, "{}", message());
                    body(context, rank);
                    gloo_rs_context_destroy(context);
                    gloo_rs_store_destroy(store);
                    gloo_rs_device_destroy(device);
                }
            });
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn what_only_the_root_uses_is_ignored_on_other_ranks() {
    on_ranks(SIZE, c"root", |context, rank| (0..SIZE).for_each(|root| call_like_mpi(context, rank, root)));
}

/// The result of reduce_scatter and of scatter in the place of the own block of the input, by every algorithm.
fn own_blocks(context: *mut gloo_rs_context_t, size: usize, rank: usize) {
    const COUNT: usize = 1000;
    let value = |rank: usize, index: usize| (rank * 7919 + index) as i32;
    let own = rank * COUNT..(rank + 1) * COUNT;
    for collective in [Collective::ReduceScatter, Collective::Scatter] {
        let runs = |algorithm: &&Algorithm| algorithm.name != "local" && !algorithm.uses.needs_shared_memory();
        for algorithm in collective.algorithms().iter().filter(runs) {
            let before: Vec<i32> = (0..size * COUNT).map(|index| value(rank, index)).collect();
            let mut data = before.clone();
            let whole = data.as_mut_ptr();
            let output = whole.wrapping_add(own.start).cast::<c_void>();
            let (inputs, outputs) = ([whole.cast_const().cast::<c_void>()], [output]);
            let name = std::ffi::CString::new(algorithm.name).unwrap();
            let options = gloo_rs_collective_options_t {
                algorithm: name.as_ptr(),
                data_type: MaybeUninit::new(GLOO_RS_INT32),
                inputs: inputs.as_ptr(),
                num_inputs: 1,
                outputs: outputs.as_ptr(),
                num_outputs: 1,
                count: COUNT,
                // Several, so that the output is written before all of the input is read.
                max_segment_bytes: 256,
                ..super::options::DEFAULTS
            };
            // SAFETY: the vector is as long as the collective demands, and nothing else uses it meanwhile.
            let status = unsafe { gloo_rs_collective(context, from_number(collective as u32), &options) };
            assert_eq!(status, GLOO_RS_OK, "{}", message());
            let result = |index: usize| match collective {
                Collective::ReduceScatter => (0..size).map(|rank| value(rank, index)).sum::<i32>(),
                _ => value(0, index),
            };
            let expected = |index: usize| if own.contains(&index) { result(index) } else { before[index] };
            let wrong = (0..data.len()).find(|&index| data[index] != expected(index));
            assert_eq!(wrong, None, "{} {} on rank {rank} of {size}", collective.name(), algorithm.name);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn the_own_block_of_an_input_takes_the_result_by_every_algorithm() {
    for (size, name) in [(1, c"own 1"), (2, c"own 2"), (3, c"own 3"), (4, c"own 4")] {
        on_ranks(size, name, |context, rank| own_blocks(context, size, rank));
    }
}

/// Once the call is remembered, few of its arguments are at hand when it fails.
#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn a_reduce_scatter_that_times_out_says_how_many_elements_it_has() {
    const COUNT: usize = 3;
    on_ranks(2, c"described", |context, rank| {
        let (input, mut output) = ([1i32; 2 * COUNT], [0i32; COUNT]);
        let mut call = || {
            let (input, output) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
            let (dtype, op) = (MaybeUninit::new(GLOO_RS_INT32), MaybeUninit::new(GLOO_RS_SUM));
            // SAFETY: the context is live, and the arrays are as long as the collective demands.
            unsafe { gloo_rs_reduce_scatter(context, input, output, COUNT, dtype, op) }
        };
        for _ in 0..3 {
            assert_eq!(call(), GLOO_RS_OK, "{}", message());
        }
        if rank == 0 {
            // SAFETY: the context is live.
            assert_eq!(unsafe { gloo_rs_context_set_timeout(context, 50) }, GLOO_RS_OK);
            assert_eq!(call(), GLOO_RS_ERROR_TIMEOUT);
            assert!(message().contains(" of 6 int32 (24 bytes), tag 0"), "{}", message());
        } else {
            let mut broken = false;
            while !broken {
                // SAFETY: the context is live, and the result a valid place.
                assert_eq!(unsafe { gloo_rs_context_broken(context, &mut broken, ptr::null_mut()) }, GLOO_RS_OK);
            }
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn a_reduce_scatter_with_a_number_of_counts_and_no_counts_is_refused() {
    on_ranks(1, c"no counts", |context, _| {
        let (input, mut output) = ([1i32; 3], [0i32; 3]);
        let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
        let options = gloo_rs_collective_options_t {
            data_type: MaybeUninit::new(GLOO_RS_INT32),
            inputs: inputs.as_ptr(),
            num_inputs: 1,
            outputs: outputs.as_ptr(),
            num_outputs: 1,
            num_counts: 1,
            ..super::options::DEFAULTS
        };
        let kind = MaybeUninit::new(GLOO_RS_REDUCE_SCATTER);
        // SAFETY: the context is live, and the options are refused before anything is read by them.
        unsafe {
            assert_eq!(gloo_rs_collective(context, kind, &options), GLOO_RS_ERROR_INVALID_ARGUMENT);
            assert!(message().ends_with("recv_counts is NULL, but num_counts is 1"), "{}", message());
            let mut request = ptr::null_mut();
            assert_eq!(
                gloo_rs_collective_prepare(context, kind, &options, &mut request),
                GLOO_RS_ERROR_INVALID_ARGUMENT
            );
            assert!(message().ends_with("recv_counts is NULL, but num_counts is 1"), "{}", message());
        }
    });
}

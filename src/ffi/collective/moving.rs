//! Collectives that move elements, and the barrier.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::{DEFAULTS, gloo_rs_collective_options_t, plain, with};
use crate::collective::Collective;
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::gloo_rs_data_type_t;

/// Copies the root's buffer, of `count` elements, to the buffers of all other ranks.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_broadcast(
    context: *mut gloo_rs_context_t,
    buffer: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, data_type, root, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_broadcast", Collective::Broadcast, context, std::ptr::null(), buffer, options) }
}

/// As gloo_rs_broadcast, with one output or more, all of which get the root's elements. The root sends its input, which
/// other ranks need not have and which is ignored there; in place, with no input or with the first output as input, its
/// first output. A root with an input needs no output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_broadcast_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_broadcast_with", Collective::Broadcast, context, options) }
}

/// Puts the inputs of all ranks, `count` elements each, one after another into the root's output, in the order of
/// ranks. In place, on the root only, with NULL as `input` or with the place of the root's block in `output`, that
/// block already lies in its place. `output` is ignored on other ranks.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gather(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, data_type, root, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_gather", Collective::Gather, context, input, output, options) }
}

/// As gloo_rs_gather, with one input, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gather_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_gather_with", Collective::Gather, context, options) }
}

/// As gloo_rs_gather, with a number of elements of its own for each rank: each sends `count`, and the root says in
/// `counts`, with an entry for each rank, how many it expects from whom. Blocks lie one directly after another; there
/// are no displacements. The root's `count`, and `counts` on other ranks, are ignored.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gatherv(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    count: usize,
    output: *mut c_void,
    counts: *const usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, recv_counts: counts, data_type, root, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_gatherv", Collective::Gatherv, context, input, output, options) }
}

/// As gloo_rs_gatherv, with `counts` in `recv_counts`; one input, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gatherv_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_gatherv_with", Collective::Gatherv, context, options) }
}

/// Splits the root's input into blocks of `count` elements, one for each rank in the order of ranks, and puts each into
/// its rank's output. In place, on the root only, `output` is where the root's own block begins in `input` (which costs
/// a copy of it); or `input` is NULL: then the output holds all blocks, and the own one is moved to its start. `input`
/// is ignored on other ranks.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatter(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, data_type, root, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_scatter", Collective::Scatter, context, input, output, options) }
}

/// As gloo_rs_scatter, with one output. The root has one input, or none for in place, or as many inputs as there are
/// ranks, of `count` elements each.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatter_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_scatter_with", Collective::Scatter, context, options) }
}

/// As gloo_rs_scatter, with a number of elements of its own for each rank: the root says in `counts`, with an entry for
/// each rank, how many it sends to whom, and each other rank expects `count`. Blocks lie one directly after another;
/// there are no displacements. The root's `count`, and `counts` on other ranks, are ignored.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatterv(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    counts: *const usize,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, send_counts: counts, data_type, root, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_scatterv", Collective::Scatterv, context, input, output, options) }
}

/// As gloo_rs_scatterv, with `counts` in `send_counts`; one input on the root, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatterv_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_scatterv_with", Collective::Scatterv, context, options) }
}

/// Puts the inputs of all ranks, `count` elements each, one after another into the output of every rank, in the order
/// of ranks. In place, with NULL as `input` or with the place of the rank's block in `output`, that block already lies
/// in its place.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgather(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, data_type, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_allgather", Collective::Allgather, context, input, output, options) }
}

/// As gloo_rs_allgather, with any number of inputs, the same on all ranks, whose elements lie one after another in the
/// one output; or none for in place, as with one.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgather_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_allgather_with", Collective::Allgather, context, options) }
}

/// As gloo_rs_allgather, with `counts[r]` elements from rank r. `counts` has an entry for each rank, and is the same on
/// all. Blocks lie one directly after another; there are no displacements.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgatherv(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { recv_counts: counts, data_type, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_allgatherv", Collective::Allgatherv, context, input, output, options) }
}

/// As gloo_rs_allgatherv, with `counts` in `recv_counts`; one input, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgatherv_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_allgatherv_with", Collective::Allgatherv, context, options) }
}

/// Block j of rank i's input becomes block i of rank j's output; each has a block of `count` elements for each rank. In
/// place, with NULL or `output` as `input`, the output holds the input.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoall(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, data_type, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_alltoall", Collective::Alltoall, context, input, output, options) }
}

/// As gloo_rs_alltoall, with one input, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoall_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_alltoall_with", Collective::Alltoall, context, options) }
}

/// As gloo_rs_alltoall, with a number of elements of its own for each pair of ranks: `send_counts[r]` to rank r,
/// `recv_counts[r]` from it, which is what that rank has in its `send_counts` for this one. Blocks lie one directly
/// after another, in the order of ranks, in the input as in the output; there are no displacements. There is no form in
/// place.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoallv(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    send_counts: *const usize,
    output: *mut c_void,
    recv_counts: *const usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { send_counts, recv_counts, data_type, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_alltoallv", Collective::Alltoallv, context, input, output, options) }
}

/// As gloo_rs_alltoallv, with one input and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoallv_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_alltoallv_with", Collective::Alltoallv, context, options) }
}

/// Exchanges block i of the input for block i of the partner's, which is rank XOR 2^i: a pattern to measure a network
/// with. There are `destinations` blocks of `count` elements: at most the base-2 logarithm of the context's size, which
/// must be a power of two. There is no form in place.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pairwise_exchange(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    destinations: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = gloo_rs_collective_options_t { count, destinations, data_type, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_pairwise_exchange", Collective::PairwiseExchange, context, input, output, options) }
}

/// As gloo_rs_pairwise_exchange, with one input and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pairwise_exchange_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_pairwise_exchange_with", Collective::PairwiseExchange, context, options) }
}

/// Returns once all ranks have called it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_barrier(context: *mut gloo_rs_context_t) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_barrier", Collective::Barrier, context, std::ptr::null(), std::ptr::null_mut(), DEFAULTS) }
}

/// As gloo_rs_barrier, with an algorithm, a timeout or a tag. It has no buffers and no data type.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_barrier_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_barrier_with", Collective::Barrier, context, options) }
}

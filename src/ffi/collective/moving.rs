//! Collectives that move elements, and the barrier.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::{DEFAULTS, gloo_rs_collective_options_t, plain};
use crate::collective::Collective;
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::gloo_rs_data_type_t;

/// Copies the root's `buffer` of `count` elements to the `buffer` of every other rank.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_broadcast(
    context: *mut gloo_rs_context_t,
    buffer: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, root, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `buffer`, where this rank uses it, is
    // NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_broadcast", Collective::Broadcast, context, std::ptr::null(), buffer, options) }
}

/// Copies the inputs of all ranks to the root's output, in the order of ranks. Every input has `count` elements; the
/// output has `count` elements per rank, and is ignored on other ranks. In place, on the root only, `input` is NULL or
/// the position of the root's block in `output`, where that block already is.
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
    let options = move || gloo_rs_collective_options_t { count, data_type, root, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_gather", Collective::Gather, context, input, output, options) }
}

/// Like gloo_rs_gather, with a different number of elements per rank: each rank sends `count` elements, and the root
/// receives `counts[r]` from rank r. Blocks are contiguous; there are no displacements. `count` is ignored on the root,
/// `counts` on other ranks.
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
    let options = move || gloo_rs_collective_options_t { count, recv_counts: counts, data_type, root, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above; `counts` likewise, for one value per rank.
    unsafe { plain("gloo_rs_gatherv", Collective::Gatherv, context, input, output, options) }
}

/// Copies block r of the root's input to the output of rank r. The input has one block of `count` elements per rank,
/// and is ignored on other ranks; every output has `count` elements. There are two forms in place, on the root only. If
/// `output` is the position of the root's block in `input`, the call needs memory for a copy of the block. If `input`
/// is NULL, `output` holds all blocks, and the root's block is moved to its start.
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
    let options = move || gloo_rs_collective_options_t { count, data_type, root, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_scatter", Collective::Scatter, context, input, output, options) }
}

/// Like gloo_rs_scatter, with a different number of elements per rank: the root sends `counts[r]` elements to rank r,
/// and each other rank receives `count`. Blocks are contiguous; there are no displacements. `count` is ignored on the
/// root, `counts` on other ranks.
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
    let options = move || gloo_rs_collective_options_t { count, send_counts: counts, data_type, root, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above; `counts` likewise, for one value per rank.
    unsafe { plain("gloo_rs_scatterv", Collective::Scatterv, context, input, output, options) }
}

/// Copies the inputs of all ranks to the output of every rank, in the order of ranks. Every input has `count` elements;
/// every output has `count` elements per rank. In place, `input` is NULL or the position of this rank's block in
/// `output`, where that block already is.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgather(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_allgather", Collective::Allgather, context, input, output, options) }
}

/// Like gloo_rs_allgather, with `counts[r]` elements from rank r. `counts` has one entry per rank, the same on all
/// ranks. Blocks are contiguous; there are no displacements.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgatherv(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { recv_counts: counts, data_type, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above; `counts` likewise, for one value per rank.
    unsafe { plain("gloo_rs_allgatherv", Collective::Allgatherv, context, input, output, options) }
}

/// Copies block j of rank i's input to block i of rank j's output. Every input and output has one block of `count`
/// elements per rank. In place, `input` is NULL or equals `output`, which holds the input.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoall(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_alltoall", Collective::Alltoall, context, input, output, options) }
}

/// Like gloo_rs_alltoall, with a different number of elements per pair of ranks: this rank sends `send_counts[r]`
/// elements to rank r and receives `recv_counts[r]` from it, which must equal that rank's entry for this rank in its
/// `send_counts`. Blocks are contiguous, in the order of ranks; there are no displacements. There is no form in place.
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
    let options = move || gloo_rs_collective_options_t { send_counts, recv_counts, data_type, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above; `send_counts` and `recv_counts` likewise,
    // for one value per rank.
    unsafe { plain("gloo_rs_alltoallv", Collective::Alltoallv, context, input, output, options) }
}

/// Exchanges block i of the input with the partner rank XOR 2^i, whose block i is written to block i of the output: a
/// pattern for network measurements. There are `destinations` blocks of `count` elements, at most the base-2 logarithm
/// of the context's size, which must be a power of two. There is no form in place.
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
    let options = move || gloo_rs_collective_options_t { count, destinations, data_type, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_pairwise_exchange", Collective::PairwiseExchange, context, input, output, options) }
}

/// Returns when all ranks have called it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_barrier(context: *mut gloo_rs_context_t) -> gloo_rs_status_t {
    // SAFETY: the header demands that `context` is NULL or a live handle.
    unsafe {
        plain("gloo_rs_barrier", Collective::Barrier, context, std::ptr::null(), std::ptr::null_mut(), || DEFAULTS)
    }
}

//! Collectives that combine elements.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::{DEFAULTS, buffers, gloo_rs_collective_options_t, plain, unkeyed};
use crate::collective::Collective;
use crate::error::Error;
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::guard::guard;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::{self, gloo_rs_data_type_t, gloo_rs_op_t};
use crate::reduce;
use crate::types::ReduceOp;

/// Combines the inputs of all ranks by `op` and writes the result to the outputs of all ranks. Every input and output
/// has `count` elements. In place, `input` is NULL or equals `output`, which holds the input. GLOO_RS_AVERAGE divides
/// by the number of contributions.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allreduce(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_allreduce", Collective::Allreduce, context, input, output, options) }
}

/// Combines the inputs of all ranks by `op` and writes the result to the root's output. Every input, and the output,
/// has `count` elements. In place, `input` is NULL or equals `output`, which holds the input; on other ranks than the
/// root it is only read. If a rank other than the root has an input, `output` is ignored there.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
    root: i32,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, op, root, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_reduce", Collective::Reduce, context, input, output, options) }
}

/// Combines the inputs of all ranks by `op` and writes block r of the result to the output of rank r. Every input has
/// one block of `count` elements per rank; every output has `count` elements. There are two forms in place. If `output`
/// is the position of this rank's block in `input`, the rest of `input` does not change; the call needs memory for a
/// copy of the block. If `input` is NULL, `output` holds the whole input; the result is written to its start, and the
/// rest is unspecified afterwards.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_scatter(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_reduce_scatter", Collective::ReduceScatter, context, input, output, options) }
}

/// Like gloo_rs_reduce_scatter, with a block of `counts[r]` elements for rank r, in the order of ranks. `counts` has
/// one entry per rank, the same on all ranks.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_scatterv(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { recv_counts: counts, data_type, op, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above; `counts` likewise, for one value per rank.
    unsafe { unkeyed("gloo_rs_reduce_scatterv", Collective::ReduceScatter, context, input, output, options) }
}

/// Combines the inputs of ranks 0 to r by `op`, in this order, and writes the result to the output of rank r. Every
/// input and output has `count` elements. In place, `input` is NULL or equals `output`, which holds the input.
/// GLOO_RS_AVERAGE is not supported.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scan(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_scan", Collective::Scan, context, input, output, options) }
}

/// Combines the inputs of ranks 0 to r - 1 by `op`, in this order, and writes the result to the output of rank r. Rank
/// 0's output does not change. Every input and output has `count` elements. In place, `input` is NULL or equals
/// `output`, which holds the input. GLOO_RS_AVERAGE is not supported.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_exscan(
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
) -> gloo_rs_status_t {
    let options = move || gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header demands that `context` is NULL or a live handle, and `input` and `output`, where this rank
    // uses them, are NULL or valid for the elements that are stated above.
    unsafe { plain("gloo_rs_exscan", Collective::Exscan, context, input, output, options) }
}

/// Combines elements on this rank only: `inout[i] = input[i] op inout[i]` for `count` elements, as MPI_Reduce_local
/// does. `input` may equal `inout`; otherwise they must not overlap. GLOO_RS_AVERAGE is not supported.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_local(
    input: *const c_void,
    inout: *mut c_void,
    count: usize,
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    op: MaybeUninit<gloo_rs_op_t>,
) -> gloo_rs_status_t {
    guard("gloo_rs_reduce_local", || {
        // SAFETY: C initialises arguments; any number is accepted.
        let (dtype, op) = unsafe { (types::data_type(data_type)?, types::op(op)?) };
        let (input, inout) = (input.cast::<u8>(), inout.cast::<u8>());
        buffers::check_local(input, inout, count, dtype)?;
        let kernel = reduce::kernel(dtype, op).filter(|_| op != ReduceOp::Average && op.supports(dtype));
        let kernel = kernel.ok_or_else(|| Error::invalid(format!("the operation {op} is not defined on {dtype}")))?;
        if count > 0 {
            // SAFETY: `check_local` found both pointers aligned, not NULL, and equal or apart; the header demands that
            // they are valid for `count` elements. Kernels accept equal pointers.
            unsafe { kernel(inout, input, inout, count) };
        }
        Ok(())
    })
}

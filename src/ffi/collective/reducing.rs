//! Collectives that combine elements.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::{DEFAULTS, buffers, gloo_rs_collective_options_t, plain, with};
use crate::collective::Collective;
use crate::error::Error;
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::guard::guard;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::{self, gloo_rs_data_type_t, gloo_rs_op_t};
use crate::reduce;
use crate::types::ReduceOp;

/// Combines the inputs of all ranks, `count` elements each, by `op`; the outputs of all ranks, `count` elements each,
/// get the result. With GLOO_RS_AVERAGE it is divided by the number of contributions. In place, with NULL or `output`
/// as `input`, the output holds the input.
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
    let options = gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_allreduce", Collective::Allreduce, context, input, output, options) }
}

/// As gloo_rs_allreduce, with any number of inputs, all of which are combined, and one output or more, all of which get
/// the result. In place, with no inputs or with the very outputs as inputs, all outputs hold inputs.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allreduce_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_allreduce_with", Collective::Allreduce, context, options) }
}

/// Combines the inputs of all ranks, `count` elements each, by `op`; the root's output, of `count` elements, gets the
/// result. In place, with NULL or `output` as `input`, the output holds the input; on ranks other than the root it is
/// then read and left alone. With an input, `output` is ignored on other ranks.
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
    let options = gloo_rs_collective_options_t { count, data_type, op, root, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_reduce", Collective::Reduce, context, input, output, options) }
}

/// As gloo_rs_reduce, with any number of inputs, all of which are combined, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_reduce_with", Collective::Reduce, context, options) }
}

/// Combines the inputs of all ranks, a block of `count` elements for each rank, by `op`; the output of rank r, of
/// `count` elements, gets block r of the result. In place, `output` is where the rank's own block begins in `input`
/// (which costs a copy of it), of which the rest is left alone; or `input` is NULL: then the output holds all of the
/// input, the result is put at its start, and what follows is unspecified.
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
    let options = gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_reduce_scatter", Collective::ReduceScatter, context, input, output, options) }
}

/// As gloo_rs_reduce_scatter, with a block of `counts[r]` elements for rank r, in the order of ranks. `counts` has as
/// many entries as there are ranks, the same on all.
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
    let options = gloo_rs_collective_options_t { recv_counts: counts, data_type, op, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_reduce_scatterv", Collective::ReduceScatter, context, input, output, options) }
}

/// As gloo_rs_reduce_scatter with `count`, or as gloo_rs_reduce_scatterv with `recv_counts`; with any number of inputs,
/// all of which are combined, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_scatter_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_reduce_scatter_with", Collective::ReduceScatter, context, options) }
}

/// Rank r's output gets the inputs of ranks 0 to r, combined by `op` in this order; `count` elements each. In place,
/// with NULL or `output` as `input`, the output holds the input. There is no GLOO_RS_AVERAGE.
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
    let options = gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_scan", Collective::Scan, context, input, output, options) }
}

/// As gloo_rs_scan, with one input, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scan_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_scan_with", Collective::Scan, context, options) }
}

/// Rank r's output gets the inputs of ranks 0 to r - 1, combined by `op` in this order; `count` elements each. Rank 0's
/// output is left alone. In place, with NULL or `output` as `input`, the output holds the input. There is no
/// GLOO_RS_AVERAGE.
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
    let options = gloo_rs_collective_options_t { count, data_type, op, ..DEFAULTS };
    // SAFETY: the header's rules for pointers.
    unsafe { plain("gloo_rs_exscan", Collective::Exscan, context, input, output, options) }
}

/// As gloo_rs_exscan, with one input, or none for in place, and one output.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_exscan_with(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: the header's rules for pointers.
    unsafe { with("gloo_rs_exscan_with", Collective::Exscan, context, options) }
}

/// Combines elements on this rank alone, by the library's kernels: `inout[i] = input[i] op inout[i]`, as MPI_Reduce_local.
/// `input` may equal `inout`, and otherwise must not overlap it. There is no GLOO_RS_AVERAGE.
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
        // SAFETY: arguments from C are initialised.
        let (dtype, op) = unsafe { (types::data_type(data_type)?, types::op(op)?) };
        let (input, inout) = (input.cast::<u8>(), inout.cast::<u8>());
        buffers::check_local(input, inout, count, dtype)?;
        let kernel = reduce::kernel(dtype, op).filter(|_| op != ReduceOp::Average && op.supports(dtype));
        let kernel = kernel.ok_or_else(|| Error::invalid(format!("the operation {op} is not defined on {dtype}")))?;
        if count > 0 {
            // SAFETY: not NULL, aligned, of a possible length, and equal or apart; the caller vouches for the memory. A kernel's
            // pointers may be equal.
            unsafe { kernel(inout, input, inout, count) };
        }
        Ok(())
    })
}

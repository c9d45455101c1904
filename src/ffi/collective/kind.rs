//! The collective of a call by options, by its number.

use std::mem::MaybeUninit;

use super::{check_used, gloo_rs_collective_options_t, run_options};
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::enumeration::{number, unknown};
use crate::ffi::error::remember;
use crate::ffi::guard::guarded;
use crate::ffi::status::{GLOO_RS_OK, gloo_rs_status_t};
use crate::ffi::{handle, options};

/// The collectives of gloo_rs_collective and gloo_rs_collective_prepare. Each does what the function of its name does,
/// with the same lengths of buffers and the same forms in place. These comments say how many inputs and outputs
/// gloo_rs_collective_options_t has for it, and what else differs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_collective_t {
    /// Like gloo_rs_allreduce, with any number of inputs, which are all combined, and one or more outputs, which all
    /// get the result. In place, there are no inputs, or the inputs equal the outputs; every output then holds an
    /// input.
    GLOO_RS_ALLREDUCE = 0,
    /// Like gloo_rs_reduce, with any number of inputs, which are all combined, and one output.
    GLOO_RS_REDUCE = 1,
    /// Like gloo_rs_reduce_scatter with `count`, or like gloo_rs_reduce_scatterv with `recv_counts`; with any number of
    /// inputs, which are all combined, and one output.
    GLOO_RS_REDUCE_SCATTER = 2,
    /// Like gloo_rs_broadcast, with one or more outputs, which all get the root's elements. The root sends its input;
    /// in place, with no input or with the first output as input, it sends its first output. A root with an input needs
    /// no output. Inputs on other ranks are ignored.
    GLOO_RS_BROADCAST = 3,
    /// Like gloo_rs_allgather, with one output and any number of inputs, the same on all ranks, whose elements are
    /// contiguous in the output; in place as there, with no input or one.
    GLOO_RS_ALLGATHER = 4,
    /// Like gloo_rs_allgatherv, with `recv_counts` for `counts`; with one output, and one input or (in place) none.
    GLOO_RS_ALLGATHERV = 5,
    /// Like gloo_rs_gather, with one output, and one input or (in place) none.
    GLOO_RS_GATHER = 6,
    /// Like gloo_rs_gatherv, with `recv_counts` for `counts`; with one output, and one input or (in place) none. With
    /// the algorithm "binomial", the first start of a request sends the root's counts to all ranks: all of them start
    /// such a request for the first time together.
    GLOO_RS_GATHERV = 7,
    /// Like gloo_rs_scatter, with one output. The root has one input; or none, for in place; or one input of `count`
    /// elements per rank.
    GLOO_RS_SCATTER = 8,
    /// Like gloo_rs_scatterv, with `send_counts` for `counts`; with one output, and on the root one input or (in place)
    /// none. With the algorithm "binomial", the first start of a request sends the root's counts to all ranks: all of
    /// them start such a request for the first time together.
    GLOO_RS_SCATTERV = 9,
    /// Like gloo_rs_alltoall, with one output, and one input or (in place) none.
    GLOO_RS_ALLTOALL = 10,
    /// Like gloo_rs_alltoallv, with one input and one output. With the algorithm "bruck", the first start of a request
    /// sends the counts of all ranks to all ranks: all of them start such a request for the first time together.
    GLOO_RS_ALLTOALLV = 11,
    /// Like gloo_rs_barrier, with an algorithm, a timeout or a tag. There are no buffers and no data type.
    GLOO_RS_BARRIER = 12,
    /// Like gloo_rs_pairwise_exchange, with one input and one output.
    GLOO_RS_PAIRWISE_EXCHANGE = 13,
    /// Like gloo_rs_scan, with one output, and one input or (in place) none.
    GLOO_RS_SCAN = 14,
    /// Like gloo_rs_exscan, with one output, and one input or (in place) none.
    GLOO_RS_EXSCAN = 15,
}

pub use gloo_rs_collective_t::*;

/// Makes a call of the collective `kind` with `options`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_collective(
    context: *mut gloo_rs_context_t,
    kind: MaybeUninit<gloo_rs_collective_t>,
    options: *const gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    let call = |collective| {
        // SAFETY: the header demands that `options` is NULL or valid for its `struct_size` bytes.
        let options = unsafe { options::read(options) }?;
        check_used(&options, collective)?;
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        // SAFETY: the header demands that the pointers in `options` are valid as their comments say.
        unsafe { run_options(handle.context()?, collective, &options) }
    };
    // SAFETY: C initialises arguments; any number is accepted.
    unsafe { guard_kind("gloo_rs_collective", kind, call) }
}

/// Runs `body`, for the export `function`, with the collective that C passed as `kind`; as
/// [`guard`](crate::ffi::guard::guard).
///
/// # Safety
/// `kind` is initialised, with any number.
pub(in crate::ffi) unsafe fn guard_kind(
    function: &str,
    kind: MaybeUninit<gloo_rs_collective_t>,
    body: impl FnOnce(Collective) -> Result<()>,
) -> gloo_rs_status_t {
    // SAFETY: by the contract.
    let collective = match unsafe { kind_of(kind) } {
        Ok(collective) => collective,
        Err(error) => return remember(function, &error),
    };
    guarded(|| body(collective)).map_or_else(|error| failed(function, collective, error), |()| GLOO_RS_OK)
}

/// The collective that C passed as `kind`.
///
/// # Safety
/// `kind` is initialised, with any number.
pub(in crate::ffi) unsafe fn kind_of(kind: MaybeUninit<gloo_rs_collective_t>) -> Result<Collective> {
    // SAFETY: by the contract.
    let number = unsafe { number(kind) };
    Collective::ALL.get(number as usize).copied().ok_or_else(|| unknown("kind", number))
}

/// Stores the error of a call by options. Message and operation name the collective, which the name of the function
/// does not.
#[cold]
fn failed(function: &str, collective: Collective, error: Error) -> gloo_rs_status_t {
    let name = collective.name();
    let error = if error.details().operation.is_empty() { error.during(name) } else { error };
    remember(&format!("{function}({name})"), &error)
}

#[cfg(test)]
#[path = "kind_tests.rs"]
mod tests;

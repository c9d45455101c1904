//! The options of all collectives, and which collective uses which.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};

use super::gloo_rs_reduce_fn_t;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::ffi::enumeration::number;
use crate::ffi::options::{self, Options};
use crate::ffi::status::GLOO_RS_TIMEOUT_DEFAULT;
use crate::ffi::types::{GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM, gloo_rs_data_type_t, gloo_rs_op_t};

/// Options of every collective, for the functions gloo_rs_..._with. Set up by gloo_rs_collective_options_init. A field that
/// the collective does not use must keep its default: a call with another value is refused with
/// GLOO_RS_ERROR_INVALID_ARGUMENT and a message that names the collective and the field. Which buffers, of how many elements
/// each, the comment of the function says.
///
/// The functions without `_with` take one input and one output as arguments, and all else has its default: so their tag is 0,
/// and each of them can run once at a time on a context.
///
/// All collectives: every rank of the context makes the same call. The buffers and the options are the caller's; they are
/// used until the function returns, which it does when this rank's part is done. Counts are in elements, not bytes. A call
/// that is wrong in itself fails with GLOO_RS_ERROR_INVALID_ARGUMENT or GLOO_RS_ERROR_INVALID_OPERATION and nothing is sent;
/// one that fails later (with GLOO_RS_ERROR_TIMEOUT, GLOO_RS_ERROR_CONNECTION_LOST, GLOO_RS_ERROR_MISMATCH,
/// GLOO_RS_ERROR_CALLBACK and others) breaks the context, leaves its outputs unspecified, and every later collective on the
/// context fails. Threads may call different collectives at the same time, and one collective with different tags. With
/// check_calls in the context's options they need different tags for different collectives, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_collective_options_t {
    /// sizeof(gloo_rs_collective_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "ring"; NULL or "auto" lets the library choose. gloo_rs_algorithms tells the names. The same
    /// on all ranks. "binomial" of gatherv and scatterv and "bruck" of alltoallv first bring the counts that only some ranks
    /// have to all ranks, within the same call. Used by all.
    pub algorithm: *const c_char,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's. Used by all.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks. Used by all.
    pub max_segment_bytes: usize,
    /// Tells apart calls of one collective that run at the same time on one context; calls of different collectives are apart
    /// anyway. The same on all ranks. Used by all.
    pub tag: u64,
    /// Type of the elements. The same on all ranks. Used by all but barrier.
    pub data_type: MaybeUninit<gloo_rs_data_type_t>,
    /// Bytes of one element, for elements of the caller's own type, such as a struct of 12 bytes: instead of `data_type`, and where
    /// elements are combined, with `function`. Otherwise 0. The same on all ranks. Used by all but barrier.
    pub element_bytes: usize,
    /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks. Used by allreduce, reduce, reduce_scatter,
    /// scan, exscan.
    pub op: MaybeUninit<gloo_rs_op_t>,
    /// Rank of the root. The same on all ranks. Used by reduce, broadcast, gather, gatherv, scatter, scatterv.
    pub root: i32,
    /// The caller's operation instead of `op`, or NULL. Used by allreduce, reduce, reduce_scatter, scan, exscan.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`. Used by allreduce, reduce, reduce_scatter, scan, exscan.
    pub user: *mut c_void,
    /// Buffers that are only read. Used by all but barrier.
    pub inputs: *const *const c_void,
    /// Number of inputs; 0 for in place. Used by all but barrier.
    pub num_inputs: usize,
    /// Buffers for the result. Used by all but barrier.
    pub outputs: *const *mut c_void,
    /// Number of outputs. Used by all but barrier.
    pub num_outputs: usize,
    /// Elements of a buffer, or of a block of one that has a block for each rank. The same on all ranks; but of gatherv and
    /// scatterv what this rank sends or gets, and the root's is ignored. 0 where reduce_scatter has `recv_counts`. Used by all
    /// but allgatherv, alltoallv, barrier.
    pub count: usize,
    /// Elements for each rank, in the order of ranks; of scatterv on the root, and ignored on other ranks. Used by scatterv,
    /// alltoallv.
    pub send_counts: *const usize,
    /// Elements from each rank, in the order of ranks; of gatherv on the root, and ignored on other ranks. Of reduce_scatter,
    /// elements of the result that each rank gets; NULL if every rank gets `count`. Used by reduce_scatter, allgatherv, gatherv,
    /// alltoallv.
    pub recv_counts: *const usize,
    /// Length of `send_counts` and of `recv_counts`: the size of the context. Used by reduce_scatter, allgatherv, gatherv,
    /// scatterv, alltoallv.
    pub num_counts: usize,
    /// Number of partners: at most the base-2 logarithm of the context's size, which must be a power of two. The same on all
    /// ranks. Used by pairwise_exchange.
    pub destinations: usize,
    /// Group size of the algorithm "bcube"; 0 for 2. The same on all ranks. Used by allreduce.
    pub base: usize,
    /// The group of each rank, in the order of ranks: any numbers, equal for ranks of one group. For the algorithms
    /// "hierarchical", "torus_2d", "torus_nd" and "mesh_2d"; NULL for the hosts that the ranks run on. The same on all ranks.
    /// Used by allreduce.
    pub groups: *const u32,
    /// Length of `groups`: the size of the context, or 0. Used by allreduce.
    pub num_groups: usize,
    /// Extents of the grid that the ranks form, whose product is the size of the context; neighbours in the first dimension
    /// have consecutive ranks. For "torus_2d" and "mesh_2d", which have two dimensions, and "torus_nd"; they then do without
    /// groups. NULL for the library's choice. The same on all ranks. Used by allreduce.
    pub dims: *const usize,
    /// Length of `dims`. Used by allreduce.
    pub num_dims: usize,
}

pub(super) const DEFAULTS: gloo_rs_collective_options_t = gloo_rs_collective_options_t {
    struct_size: size_of::<gloo_rs_collective_options_t>(),
    algorithm: std::ptr::null(),
    timeout_ms: GLOO_RS_TIMEOUT_DEFAULT,
    max_segment_bytes: 0,
    tag: 0,
    data_type: MaybeUninit::new(GLOO_RS_DATA_TYPE_UNSET),
    element_bytes: 0,
    op: MaybeUninit::new(GLOO_RS_SUM),
    root: 0,
    function: None,
    user: std::ptr::null_mut(),
    inputs: std::ptr::null(),
    num_inputs: 0,
    outputs: std::ptr::null(),
    num_outputs: 0,
    count: 0,
    send_counts: std::ptr::null(),
    recv_counts: std::ptr::null(),
    num_counts: 0,
    destinations: 0,
    base: 0,
    groups: std::ptr::null(),
    num_groups: 0,
    dims: std::ptr::null(),
    num_dims: 0,
};

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_collective_options_t {
    const NAME: &'static str = "gloo_rs_collective_options_t";
    const REQUIRED: usize = offset_of!(gloo_rs_collective_options_t, base);
    fn set_defaults(&mut self) {
        *self = DEFAULTS;
    }
}

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_collective_options_t), with defaults: no
/// buffers, no elements, GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM, root 0, tag 0, GLOO_RS_TIMEOUT_DEFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_collective_options_init(
    options: *mut gloo_rs_collective_options_t,
    struct_size: usize,
) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Some collectives.
#[derive(Clone, Copy)]
struct Set(u32);

impl Set {
    const fn of(collectives: &[Collective]) -> Self {
        let (mut set, mut index) = (0, 0);
        while index < collectives.len() {
            set |= 1 << collectives[index] as u32;
            index += 1;
        }
        Self(set)
    }

    const fn all_but(collectives: &[Collective]) -> Self {
        Self(!Self::of(collectives).0)
    }
}

/// Refuses a field that has another value than its default and that `collective` does not use.
#[inline]
pub(super) fn check_used(options: &gloo_rs_collective_options_t, collective: Collective) -> Result<()> {
    use Collective::*;
    const REDUCING: Set = Set::of(&[Allreduce, Reduce, ReduceScatter, Scan, Exscan]);
    const WITH_ROOT: Set = Set::of(&[Reduce, Broadcast, Gather, Gatherv, Scatter, Scatterv]);
    const WITH_BUFFERS: Set = Set::all_but(&[Barrier]);
    const WITH_COUNT: Set = Set::all_but(&[Allgatherv, Alltoallv, Barrier]);
    const WITH_SEND_COUNTS: Set = Set::of(&[Scatterv, Alltoallv]);
    const WITH_RECV_COUNTS: Set = Set::of(&[ReduceScatter, Allgatherv, Gatherv, Alltoallv]);
    const PLACES: Set = Set::of(&[Allreduce]);
    let check = |is_set: bool, field: &str, used_by: Set| match is_set && used_by.0 >> collective as u32 & 1 == 0 {
        true => Err(unused(collective, field)),
        false => Ok(()),
    };
    // SAFETY: the caller's numbers, or the defaults.
    let (data_type, op) = unsafe { (number(options.data_type), number(options.op)) };
    check(data_type != GLOO_RS_DATA_TYPE_UNSET as u32, "data_type", WITH_BUFFERS)?;
    check(options.element_bytes != 0, "element_bytes", WITH_BUFFERS)?;
    check(op != GLOO_RS_SUM as u32, "op", REDUCING)?;
    check(options.root != DEFAULTS.root, "root", WITH_ROOT)?;
    check(options.function.is_some(), "function", REDUCING)?;
    check(!options.user.is_null(), "user", REDUCING)?;
    check(!options.inputs.is_null(), "inputs", WITH_BUFFERS)?;
    check(options.num_inputs != 0, "num_inputs", WITH_BUFFERS)?;
    check(!options.outputs.is_null(), "outputs", WITH_BUFFERS)?;
    check(options.num_outputs != 0, "num_outputs", WITH_BUFFERS)?;
    check(options.count != 0, "count", WITH_COUNT)?;
    check(!options.send_counts.is_null(), "send_counts", WITH_SEND_COUNTS)?;
    check(!options.recv_counts.is_null(), "recv_counts", WITH_RECV_COUNTS)?;
    check(options.num_counts != 0, "num_counts", Set(WITH_SEND_COUNTS.0 | WITH_RECV_COUNTS.0))?;
    check(options.destinations != 0, "destinations", Set::of(&[PairwiseExchange]))?;
    check(options.base != 0, "base", PLACES)?;
    check(!options.groups.is_null(), "groups", PLACES)?;
    check(options.num_groups != 0, "num_groups", PLACES)?;
    check(!options.dims.is_null(), "dims", PLACES)?;
    check(options.num_dims != 0, "num_dims", PLACES)
}

#[cold]
fn unused(collective: Collective, field: &str) -> Error {
    Error::invalid(format!("{} has no {field}: leave the field at its default", collective.name()))
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;

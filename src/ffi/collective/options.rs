//! The options of collectives, and which collective uses which options.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};

use super::gloo_rs_reduce_fn_t;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::ffi::enumeration::number;
use crate::ffi::options::{self, Options};
use crate::ffi::status::GLOO_RS_TIMEOUT_DEFAULT;
use crate::ffi::types::{
    GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_MEMORY_AUTO, GLOO_RS_SUM, gloo_rs_data_type_t, gloo_rs_memory_t, gloo_rs_op_t,
};

/// Options of every collective, for gloo_rs_collective and gloo_rs_collective_prepare. Initialise with
/// gloo_rs_collective_options_init. A field that the collective does not use must keep its default; otherwise the call
/// fails with GLOO_RS_ERROR_INVALID_ARGUMENT and a message that names the collective and the field. The comments of
/// gloo_rs_collective_t, and of the functions that they name, state buffers and their lengths.
///
/// The functions of single collectives, such as gloo_rs_allreduce, take one input and one output as arguments and use
/// the defaults of all other options. So their tag is 0, and each of them can run once at a time on a context.
///
/// All collectives: every rank of the context makes the same call. It returns when this rank's part is complete. The
/// caller owns the buffers and options and keeps them valid until then. Counts are in elements, not bytes. Invalid
/// calls fail with GLOO_RS_ERROR_INVALID_ARGUMENT or GLOO_RS_ERROR_INVALID_OPERATION before data is sent. A later
/// failure (GLOO_RS_ERROR_TIMEOUT, GLOO_RS_ERROR_CONNECTION_LOST, GLOO_RS_ERROR_MISMATCH, GLOO_RS_ERROR_CALLBACK and
/// others) leaves the outputs unspecified and breaks the context: all later collectives on it fail. Threads may run
/// different collectives at the same time, and one collective with different tags. With check_calls in the context's
/// options, different collectives need different tags, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_collective_options_t {
    /// sizeof(gloo_rs_collective_options_t).
    pub struct_size: usize,
    /// Name of the algorithm, such as "ring"; NULL or "auto" for the library's choice. gloo_rs_algorithms returns the
    /// names. The same on all ranks. "binomial" of gatherv and scatterv and "bruck" of alltoallv first send the counts,
    /// which only some ranks have, to all ranks. Used by all.
    pub algorithm: *const c_char,
    /// Timeout in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's. Used by all.
    pub timeout_ms: i64,
    /// Maximum size in bytes of a message; 0 for the context's, which a larger value does not raise. The same on all
    /// ranks. Used by all.
    pub max_segment_bytes: usize,
    /// Distinguishes calls of one collective that run at the same time on one context. Calls of different collectives
    /// may have the same tag. The same on all ranks. Used by all.
    pub tag: u64,
    /// Type of the elements. The same on all ranks. Used by all but barrier.
    pub data_type: MaybeUninit<gloo_rs_data_type_t>,
    /// Size in bytes of an element of the caller's own type, such as a struct of 12 bytes; it replaces `data_type`.
    /// Collectives that combine elements then need `function`. 0 if `data_type` is set. The same on all ranks. Used by
    /// all but barrier.
    pub element_bytes: usize,
    /// Operation that combines elements; GLOO_RS_SUM by default. The same on all ranks. Used by allreduce, reduce,
    /// reduce_scatter, scan, exscan.
    pub op: MaybeUninit<gloo_rs_op_t>,
    /// Rank of the root. The same on all ranks. Used by reduce, broadcast, gather, gatherv, scatter, scatterv.
    pub root: i32,
    /// Reduction function of the caller, which replaces `op`; or NULL. Used by allreduce, reduce, reduce_scatter, scan,
    /// exscan.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`. Used by allreduce, reduce, reduce_scatter, scan, exscan.
    pub user: *mut c_void,
    /// Input buffers, which are only read. Used by all but barrier.
    pub inputs: *const *const c_void,
    /// Length of `inputs`; 0 for in place. Used by all but barrier.
    pub num_inputs: usize,
    /// Output buffers. Used by all but barrier.
    pub outputs: *const *mut c_void,
    /// Length of `outputs`. Used by all but barrier.
    pub num_outputs: usize,
    /// Number of elements of a buffer, or of each block if a buffer has one block per rank. The same on all ranks. For
    /// gatherv and scatterv: the elements that this rank sends or receives; ignored on the root. 0 if reduce_scatter
    /// has `recv_counts`. Used by all but allgatherv, alltoallv, barrier.
    pub count: usize,
    /// Numbers of elements to each rank, in the order of ranks. For scatterv: only on the root, ignored on other ranks.
    /// Used by scatterv, alltoallv.
    pub send_counts: *const usize,
    /// Numbers of elements from each rank, in the order of ranks. For gatherv: only on the root, ignored on other
    /// ranks. For reduce_scatter: numbers of elements of the result for each rank; NULL if every rank gets `count`.
    /// Used by reduce_scatter, allgatherv, gatherv, alltoallv.
    pub recv_counts: *const usize,
    /// Length of `send_counts` and of `recv_counts`: the size of the context. Used by reduce_scatter, allgatherv,
    /// gatherv, scatterv, alltoallv.
    pub num_counts: usize,
    /// Number of partners, at most the base-2 logarithm of the context's size, which must be a power of two. The same
    /// on all ranks. Used by pairwise_exchange.
    pub destinations: usize,
    /// Group size of the algorithm "bcube"; 0 for 2. The same on all ranks. Used by allreduce.
    pub base: usize,
    /// Group numbers of the ranks, in the order of ranks; ranks with equal numbers form a group. For the algorithms
    /// "hierarchical", "hierarchical_direct", "torus_2d", "torus_nd" and "mesh_2d"; NULL if the ranks of each host form
    /// a group. For the algorithms on shared memory whose names begin with "shared_hierarchical": groups are last-level
    /// caches, those with the same upper 16 bits of one socket; NULL for the caches that the library has found. The
    /// same on all ranks. Used by allreduce, reduce, reduce_scatter, allgather, allgatherv, barrier.
    pub groups: *const u32,
    /// Length of `groups`: the size of the context, or 0. Used by allreduce, reduce, reduce_scatter, allgather,
    /// allgatherv, barrier.
    pub num_groups: usize,
    /// Extents of the grid that the ranks form; their product is the size of the context. Neighbours in the first
    /// dimension have consecutive ranks. For the algorithms "torus_2d" and "mesh_2d", which have two dimensions, and
    /// "torus_nd"; they then do not use groups. NULL for the library's choice. The same on all ranks. Used by
    /// allreduce.
    pub dims: *const usize,
    /// Length of `dims`. Used by allreduce.
    pub num_dims: usize,
    /// Where the buffers are; GLOO_RS_MEMORY_AUTO by default. Ranks need not agree. Used by all but barrier.
    pub memory: MaybeUninit<gloo_rs_memory_t>,
    /// Must be 0.
    pub reserved: u32,
    /// What each element of this rank's inputs is multiplied by before it is combined, as ncclRedOpCreatePreMulSum has
    /// it: one element of `data_type`, which is float16, bfloat16, float32 or float64; or NULL. `op` is GLOO_RS_SUM. It
    /// is read before the function returns. Inputs are only read, and in place only the result is written; the products
    /// take memory of the library. Ranks need not agree. Used by allreduce, reduce, reduce_scatter, scan, exscan.
    pub factor: *const c_void,
    /// 1: where a buffer has one block per rank, there is a buffer for each block, in the order of ranks: `num_inputs`
    /// or `num_outputs` is the size of the context, and each has the length of its block. These are the inputs of
    /// reduce_scatter, with one contribution per rank, and of scatter and scatterv on the root; the outputs of
    /// allgather and allgatherv, and of gather and gatherv on the root; and both of alltoall and alltoallv. In place,
    /// the only buffer of the other kind equals this rank's block; of alltoall, there are no inputs. 0: one buffer has
    /// all blocks. The buffers are in host memory. Ranks need not agree. Used by reduce_scatter, allgather, allgatherv,
    /// gather, gatherv, scatter, scatterv, alltoall, alltoallv.
    pub blocks: u64,
    /// "ranks": what the ranks contribute is combined in their order, from the left, ((x0 + x1) + x2) + ..., and before
    /// that the inputs of each rank in theirs; so the bits of the result depend on neither the algorithm nor the link,
    /// nor on hosts or segments. "reproducible": the sum of all contributions to an element, which an average divides,
    /// is exact, and rounded once; so the bits do not depend on how many ranks and inputs they come from, either. All
    /// ranks have the same number of inputs. For float32, float64, complex64 and complex128; minima, maxima, integers
    /// and bool are so anyway; other sums, averages and products, and functions of the caller, are refused.
    /// `algorithm`, if one is named, is one that does so. NULL: as the context's options say. The same on all ranks.
    /// Used by allreduce, reduce, reduce_scatter.
    pub order: *const c_char,
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
    memory: MaybeUninit::new(GLOO_RS_MEMORY_AUTO),
    reserved: 0,
    factor: std::ptr::null(),
    blocks: 0,
    order: std::ptr::null(),
};

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_collective_options_t {
    const NAME: &'static str = "gloo_rs_collective_options_t";
    const REQUIRED: usize = offset_of!(gloo_rs_collective_options_t, base);
    fn set_defaults(&mut self) {
        *self = DEFAULTS;
    }
}

/// Sets `*options` to defaults: no buffers, no elements, GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM, root 0, tag 0,
/// GLOO_RS_TIMEOUT_DEFAULT. `struct_size` is sizeof(gloo_rs_collective_options_t); at most that many bytes are written.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_collective_options_init(
    options: *mut gloo_rs_collective_options_t,
    struct_size: usize,
) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// A set of collectives.
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

/// Refuses a field that `collective` does not use and that does not have its default.
#[inline]
pub(super) fn check_used(options: &gloo_rs_collective_options_t, collective: Collective) -> Result<()> {
    use Collective::*;
    const REDUCING: Set = Set::of(&[Allreduce, Reduce, ReduceScatter, Scan, Exscan]);
    const WITH_ROOT: Set = Set::of(&[Reduce, Broadcast, Gather, Gatherv, Scatter, Scatterv]);
    const WITH_BUFFERS: Set = Set::all_but(&[Barrier]);
    const WITH_COUNT: Set = Set::all_but(&[Allgatherv, Alltoallv, Barrier]);
    const WITH_SEND_COUNTS: Set = Set::of(&[Scatterv, Alltoallv]);
    const WITH_RECV_COUNTS: Set = Set::of(&[ReduceScatter, Allgatherv, Gatherv, Alltoallv]);
    const WITH_BLOCKS: Set =
        Set::of(&[ReduceScatter, Allgather, Allgatherv, Gather, Gatherv, Scatter, Scatterv, Alltoall, Alltoallv]);
    const PLACES: Set = Set::of(&[Allreduce]);
    const GROUPED: Set = Set::of(&[Allreduce, Reduce, ReduceScatter, Allgather, Allgatherv, Barrier]);
    let check = |is_set: bool, field: &str, used_by: Set| match is_set && used_by.0 >> collective as u32 & 1 == 0 {
        true => Err(unused(collective, field)),
        false => Ok(()),
    };
    if options.reserved != 0 {
        return Err(Error::invalid(format!("reserved is {}; it must be 0", options.reserved)));
    }
    // SAFETY: C initialised these fields, or they have their defaults; any number is a valid `u32`.
    let (data_type, op, memory) = unsafe { (number(options.data_type), number(options.op), number(options.memory)) };
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
    check(!options.groups.is_null(), "groups", GROUPED)?;
    check(options.num_groups != 0, "num_groups", GROUPED)?;
    check(!options.dims.is_null(), "dims", PLACES)?;
    check(options.num_dims != 0, "num_dims", PLACES)?;
    check(memory != GLOO_RS_MEMORY_AUTO as u32, "memory", WITH_BUFFERS)?;
    check(!options.factor.is_null(), "factor", REDUCING)?;
    if options.blocks > 1 {
        return Err(Error::invalid(format!("blocks is {}; it must be 0 or 1", options.blocks)));
    }
    check(options.blocks != 0, "blocks", WITH_BLOCKS)?;
    check(!options.order.is_null(), "order", Set::of(&[Allreduce, Reduce, ReduceScatter]))
}

#[cold]
fn unused(collective: Collective, field: &str) -> Error {
    Error::invalid(format!("{} does not use {field}: leave the field at its default", collective.name()))
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;

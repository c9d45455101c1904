//! Collectives that move elements from or to a root.

use std::ffi::{c_char, c_void};

use super::{Request, collective_options, request, run};
use crate::collective::Collective;
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::guard::guard;
use crate::ffi::options;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::gloo_rs_data_type_t;
use crate::types::Rank;

/// How many of the caller's inputs, outputs and counts a rank's part in a call uses.
pub(super) struct Used {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) counts: usize,
}

/// What `rank` uses of `request`. What only the root's part is about is ignored on other ranks, whatever it is, so that
/// programs may pass the same arguments on all ranks, as they do with MPI.
pub(super) fn used(request: &Request, rank: Rank) -> Used {
    let mut used = Used { inputs: request.num_inputs, outputs: request.num_outputs, counts: request.num_counts };
    if usize::try_from(request.root) == Ok(rank) {
        return used;
    }
    match request.collective {
        Collective::Broadcast | Collective::Scatter => used.inputs = 0,
        Collective::Scatterv => (used.inputs, used.counts) = (0, 0),
        Collective::Gather => used.outputs = 0,
        Collective::Gatherv => (used.outputs, used.counts) = (0, 0),
        // Without inputs, the output holds this rank's contribution.
        Collective::Reduce if used.inputs > 0 => used.outputs = 0,
        _ => {}
    }
    used
}

/// Options of gloo_rs_broadcast. Set up by gloo_rs_broadcast_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_broadcast_options_t {
    /// sizeof(gloo_rs_broadcast_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "binomial"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// On the root: one buffer of `count` elements, read only. Ignored on other ranks.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1 on the root, or 0 for in place. Ignored on other ranks.
    pub num_inputs: usize,
    /// Buffers of `count` elements, each of which gets the root's.
    pub outputs: *const *mut c_void,
    /// Number of outputs; on the root, 0 is fine if it has an input.
    pub num_outputs: usize,
    /// Rank of the root. The same on all ranks.
    pub root: i32,
    /// Elements of each buffer. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_broadcast_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_broadcast_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_broadcast_options_init(options: *mut gloo_rs_broadcast_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Copies the root's input to all outputs of all ranks. In place (no input, or the first output as input) the root's
/// first output is sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_broadcast(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_broadcast_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_broadcast", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(Broadcast, options, data_type, inputs, num_inputs, outputs, num_outputs, root, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_gather. Set up by gloo_rs_gather_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_gather_options_t {
    /// sizeof(gloo_rs_gather_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "binomial"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// One buffer of `count` elements, read only; ignored if there is none.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1, or on the root 0 for in place.
    pub num_inputs: usize,
    /// On the root: one buffer of `count` elements for each rank. Ignored on other ranks.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1 on the root. Ignored on other ranks.
    pub num_outputs: usize,
    /// Rank of the root. The same on all ranks.
    pub root: i32,
    /// Elements of each input. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_gather_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_gather_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gather_options_init(options: *mut gloo_rs_gather_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Puts the inputs of all ranks one after another into the root's output, in the order of ranks. In place (no input)
/// the root's own block already lies in its place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gather(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_gather_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_gather", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(Gather, options, data_type, inputs, num_inputs, outputs, num_outputs, root, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_gatherv. Set up by gloo_rs_gatherv_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_gatherv_options_t {
    /// sizeof(gloo_rs_gatherv_options_t).
    pub struct_size: usize,
    /// Algorithm by name, "direct" or "binomial"; NULL or "auto" lets the library choose. The same on all ranks. "binomial"
    /// first brings the root's counts to all ranks, within the same call.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// One buffer of `recv_counts[rank]` elements on the root, `count` elsewhere, read only; ignored if there is none.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1, or on the root 0 for in place.
    pub num_inputs: usize,
    /// On the root: one buffer of as many elements as all `recv_counts` together. Ignored on other ranks.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1 on the root. Ignored on other ranks.
    pub num_outputs: usize,
    /// Rank of the root. The same on all ranks.
    pub root: i32,
    /// Elements of the input, on ranks other than the root.
    pub count: usize,
    /// On the root: elements that each rank sends, in the order of ranks. Ignored on other ranks.
    pub recv_counts: *const usize,
    /// Length of `recv_counts`: on the root, the size of the context. Ignored on other ranks.
    pub num_counts: usize,
}

collective_options!(gloo_rs_gatherv_options_t, num_counts: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_gatherv_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gatherv_options_init(options: *mut gloo_rs_gatherv_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// As gloo_rs_gather, with a number of elements of its own for each rank. The blocks lie in the output one directly after
/// another, in the order of ranks; there are no displacements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_gatherv(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_gatherv_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_gatherv", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            Gatherv,
            options,
            data_type,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            root,
            count,
            recv_counts,
            num_counts
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_scatter. Set up by gloo_rs_scatter_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_scatter_options_t {
    /// sizeof(gloo_rs_scatter_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "binomial"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// On the root: one buffer of `count` elements for each rank, or as many buffers as ranks, of `count` elements
    /// each; read only. Ignored on other ranks.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1 or the size of the context on the root, or 0 for in place. Ignored on other ranks.
    pub num_inputs: usize,
    /// One buffer of `count` elements; for in place on the root, of `count` for each rank.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Rank of the root. The same on all ranks.
    pub root: i32,
    /// Elements that each rank gets. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_scatter_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_scatter_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatter_options_init(options: *mut gloo_rs_scatter_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Splits the root's input into blocks, one for each rank in the order of ranks. In place (no input) the root's
/// output holds all blocks, and its own is moved to the start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatter(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_scatter_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_scatter", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(Scatter, options, data_type, inputs, num_inputs, outputs, num_outputs, root, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_scatterv. Set up by gloo_rs_scatterv_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_scatterv_options_t {
    /// sizeof(gloo_rs_scatterv_options_t).
    pub struct_size: usize,
    /// Algorithm by name, "direct" or "binomial"; NULL or "auto" lets the library choose. The same on all ranks. "binomial"
    /// first brings the root's counts to all ranks, within the same call.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// On the root: one buffer of as many elements as all `send_counts` together, read only. Ignored on other ranks.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1 on the root, or 0 for in place. Ignored on other ranks.
    pub num_inputs: usize,
    /// One buffer of `send_counts[rank]` elements on the root, `count` elsewhere; for in place on the root, of all.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Rank of the root. The same on all ranks.
    pub root: i32,
    /// Elements of the output, on ranks other than the root.
    pub count: usize,
    /// On the root: elements that each rank gets, in the order of ranks. Ignored on other ranks.
    pub send_counts: *const usize,
    /// Length of `send_counts`: on the root, the size of the context. Ignored on other ranks.
    pub num_counts: usize,
}

collective_options!(gloo_rs_scatterv_options_t, num_counts: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_scatterv_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatterv_options_init(options: *mut gloo_rs_scatterv_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// As gloo_rs_scatter, with a number of elements of its own for each rank. The blocks lie in the input one directly after
/// another, in the order of ranks; there are no displacements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scatterv(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_scatterv_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_scatterv", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            Scatterv,
            options,
            data_type,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            root,
            count,
            send_counts,
            num_counts
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

#[cfg(test)]
#[path = "rooted_tests.rs"]
mod tests;

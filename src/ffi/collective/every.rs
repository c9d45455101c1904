//! Collectives that move elements from every rank to every rank.

use std::ffi::{c_char, c_void};

use super::{collective_options, request, run};
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::guard::guard;
use crate::ffi::options;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::gloo_rs_data_type_t;

/// Options of gloo_rs_allgather. Set up by gloo_rs_allgather_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_allgather_options_t {
    /// sizeof(gloo_rs_allgather_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "bruck"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// Buffers of `count` elements, read only; ignored if there are none.
    pub inputs: *const *const c_void,
    /// Number of inputs; 0 for in place.
    pub num_inputs: usize,
    /// One buffer of `count` elements for each input of each rank.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements of each input. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_allgather_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_allgather_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgather_options_init(options: *mut gloo_rs_allgather_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Puts the inputs of all ranks one after another into the output of every rank, in the order of ranks. In place (no
/// inputs) the own block, of `count` elements, already lies in its place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgather(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_allgather_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_allgather", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(Allgather, options, data_type, inputs, num_inputs, outputs, num_outputs, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_allgatherv. Set up by gloo_rs_allgatherv_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_allgatherv_options_t {
    /// sizeof(gloo_rs_allgatherv_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "ring"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// One buffer of `recv_counts[rank]` elements, read only; ignored if there is none.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1, or 0 for in place.
    pub num_inputs: usize,
    /// One buffer of as many elements as all `recv_counts` together.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements that each rank sends, in the order of ranks. The same on all ranks.
    pub recv_counts: *const usize,
    /// Length of `recv_counts`: the size of the context.
    pub num_counts: usize,
}

collective_options!(gloo_rs_allgatherv_options_t, num_counts: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_allgatherv_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgatherv_options_init(
    options: *mut gloo_rs_allgatherv_options_t,
    struct_size: usize,
) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// As gloo_rs_allgather, with a number of elements of its own for each rank. The blocks lie in the output one directly after
/// another, in the order of ranks; there are no displacements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allgatherv(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_allgatherv_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_allgatherv", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request =
            request!(Allgatherv, options, data_type, inputs, num_inputs, outputs, num_outputs, recv_counts, num_counts);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_alltoall. Set up by gloo_rs_alltoall_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_alltoall_options_t {
    /// sizeof(gloo_rs_alltoall_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "pairwise"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// One buffer of `count` elements for each rank, read only; ignored if there is none.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1, or 0 for in place.
    pub num_inputs: usize,
    /// One buffer of `count` elements for each rank.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements from each rank to each rank. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_alltoall_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_alltoall_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoall_options_init(options: *mut gloo_rs_alltoall_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Block j of rank i's input becomes block i of rank j's output. In place (no input, or the very output as input)
/// the output holds the input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoall(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_alltoall_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_alltoall", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(Alltoall, options, data_type, inputs, num_inputs, outputs, num_outputs, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_alltoallv. Set up by gloo_rs_alltoallv_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_alltoallv_options_t {
    /// sizeof(gloo_rs_alltoallv_options_t).
    pub struct_size: usize,
    /// Algorithm by name, "pairwise" or "bruck"; NULL or "auto" lets the library choose. The same on all ranks. "bruck" first
    /// brings the counts of all ranks to all ranks, within the same call.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// One buffer of as many elements as all `send_counts` together, read only.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1; there is no form in place.
    pub num_inputs: usize,
    /// One buffer of as many elements as all `recv_counts` together.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements for each rank, in the order of ranks.
    pub send_counts: *const usize,
    /// Elements from each rank, in the order of ranks: what that rank has in its `send_counts` for this one.
    pub recv_counts: *const usize,
    /// Length of `send_counts` and of `recv_counts`: the size of the context.
    pub num_counts: usize,
}

collective_options!(gloo_rs_alltoallv_options_t, num_counts: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_alltoallv_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoallv_options_init(options: *mut gloo_rs_alltoallv_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// As gloo_rs_alltoall, with a number of elements of its own for each pair of ranks. Blocks lie one directly after
/// another, in the order of ranks, in the input as in the output; there are no displacements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alltoallv(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_alltoallv_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_alltoallv", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            Alltoallv,
            options,
            data_type,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            send_counts,
            recv_counts,
            num_counts
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_pairwise_exchange. Set up by gloo_rs_pairwise_exchange_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_pairwise_exchange_options_t {
    /// sizeof(gloo_rs_pairwise_exchange_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "pairwise_exchange"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// One buffer of `count` elements for each destination, read only.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1; there is no form in place.
    pub num_inputs: usize,
    /// One buffer of `count` elements for each destination.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements exchanged with each partner. The same on all ranks.
    pub count: usize,
    /// Number of partners: at most the base-2 logarithm of the context's size, which must be a power of two. The same
    /// on all ranks.
    pub destinations: usize,
}

collective_options!(gloo_rs_pairwise_exchange_options_t, destinations: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_pairwise_exchange_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pairwise_exchange_options_init(
    options: *mut gloo_rs_pairwise_exchange_options_t,
    struct_size: usize,
) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Exchanges block i of the input for block i of the partner's, which is rank XOR 2^i: a pattern to measure a
/// network with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pairwise_exchange(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_pairwise_exchange_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_pairwise_exchange", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            PairwiseExchange,
            options,
            data_type,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            count,
            destinations
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_barrier. Set up by gloo_rs_barrier_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_barrier_options_t {
    /// sizeof(gloo_rs_barrier_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "dissemination"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
}

collective_options!(gloo_rs_barrier_options_t, struct_size: usize);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_barrier_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_barrier_options_init(options: *mut gloo_rs_barrier_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Returns once all ranks have called it. `options` may be NULL for defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_barrier(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_barrier_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_barrier", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read_or_default(options) }?;
        let request = request!(Barrier, options);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

//! Collectives that combine elements.

use std::ffi::{c_char, c_void};

use super::{collective_options, gloo_rs_reduce_fn_t, request, run};
use crate::ffi::context::gloo_rs_context_t;
use crate::ffi::guard::guard;
use crate::ffi::options;
use crate::ffi::status::gloo_rs_status_t;
use crate::ffi::types::{gloo_rs_data_type_t, gloo_rs_op_t};

/// Options of gloo_rs_allreduce. Set up by gloo_rs_allreduce_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_allreduce_options_t {
    /// sizeof(gloo_rs_allreduce_options_t).
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
    /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks.
    pub op: gloo_rs_op_t,
    /// The caller's operation instead of `op`, or NULL.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`.
    pub user: *mut c_void,
    /// Buffers of `count` elements, read only; ignored if there are none.
    pub inputs: *const *const c_void,
    /// Number of inputs; 0 for in place.
    pub num_inputs: usize,
    /// Buffers of `count` elements, each of which gets the result.
    pub outputs: *const *mut c_void,
    /// Number of outputs.
    pub num_outputs: usize,
    /// Elements of each buffer. The same on all ranks.
    pub count: usize,
    /// Group size of the algorithm "bcube"; 0 for 2. The same on all ranks.
    pub base: usize,
    /// The group of each rank, in the order of ranks: any numbers, equal for ranks of one group. For the algorithms
    /// "hierarchical", "torus_2d", "torus_nd" and "mesh_2d"; NULL for the hosts that the ranks run on. The same on all ranks.
    pub groups: *const u32,
    /// Length of `groups`: the size of the context, or 0.
    pub num_groups: usize,
    /// Extents of the grid that the ranks form, whose product is the size of the context; neighbours in the first dimension
    /// have consecutive ranks. For "torus_2d" and "mesh_2d", which have two dimensions, and "torus_nd"; they then do without
    /// groups. NULL for the library's choice. The same on all ranks.
    pub dims: *const usize,
    /// Length of `dims`.
    pub num_dims: usize,
}

collective_options!(gloo_rs_allreduce_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_allreduce_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allreduce_options_init(options: *mut gloo_rs_allreduce_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Combines the inputs of all ranks; all outputs of all ranks get the result. With GLOO_RS_AVERAGE it is divided by
/// the number of contributions. In place (no inputs, or inputs that are the very outputs) the outputs hold the
/// inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_allreduce(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_allreduce_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_allreduce", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            Allreduce,
            options,
            data_type,
            op,
            function,
            user,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            count,
            base,
            groups,
            num_groups,
            dims,
            num_dims
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_reduce. Set up by gloo_rs_reduce_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_reduce_options_t {
    /// sizeof(gloo_rs_reduce_options_t).
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
    /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks.
    pub op: gloo_rs_op_t,
    /// The caller's operation instead of `op`, or NULL.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`.
    pub user: *mut c_void,
    /// Buffers of `count` elements, read only; ignored if there are none.
    pub inputs: *const *const c_void,
    /// Number of inputs; 0 for in place.
    pub num_inputs: usize,
    /// On the root, or for in place: one buffer of `count` elements, which gets the result. Ignored on other ranks that have
    /// inputs.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1 on the root, or for in place. Ignored on other ranks that have inputs.
    pub num_outputs: usize,
    /// Rank of the root. The same on all ranks.
    pub root: i32,
    /// Elements of each buffer. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_reduce_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_reduce_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_options_init(options: *mut gloo_rs_reduce_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Combines the inputs of all ranks; the root's output gets the result. In place (no inputs, or the very output as
/// input) the output holds the input; on ranks other than the root it is then read and left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_reduce_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_reduce", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            Reduce,
            options,
            data_type,
            op,
            function,
            user,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            root,
            count
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_reduce_scatter. Set up by gloo_rs_reduce_scatter_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_reduce_scatter_options_t {
    /// sizeof(gloo_rs_reduce_scatter_options_t).
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
    /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks.
    pub op: gloo_rs_op_t,
    /// The caller's operation instead of `op`, or NULL.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`.
    pub user: *mut c_void,
    /// Buffers of as many elements as all `recv_counts` together, read only; ignored if there are none.
    pub inputs: *const *const c_void,
    /// Number of inputs; 0 for in place.
    pub num_inputs: usize,
    /// One buffer of `recv_counts[rank]` elements; for in place, of all.
    pub outputs: *const *mut c_void,
    /// Number of outputs.
    pub num_outputs: usize,
    /// How many elements of the result each rank gets, in the order of ranks. The same on all ranks.
    pub recv_counts: *const usize,
    /// Length of `recv_counts`: the size of the context.
    pub num_counts: usize,
}

collective_options!(gloo_rs_reduce_scatter_options_t, num_counts: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_reduce_scatter_options_t), with
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_scatter_options_init(
    options: *mut gloo_rs_reduce_scatter_options_t,
    struct_size: usize,
) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Combines the inputs of all ranks and splits the result: rank 0 gets the first `recv_counts[0]` elements, and so on. In
/// place (no inputs) the output holds all of the input, and the result is put at its start; what follows it is then
/// unspecified.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_reduce_scatter(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_reduce_scatter_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_reduce_scatter", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request = request!(
            ReduceScatter,
            options,
            data_type,
            op,
            function,
            user,
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            recv_counts,
            num_counts
        );
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_scan. Set up by gloo_rs_scan_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_scan_options_t {
    /// sizeof(gloo_rs_scan_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "recursive_doubling"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks.
    pub op: gloo_rs_op_t,
    /// The caller's operation instead of `op`, or NULL.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`.
    pub user: *mut c_void,
    /// One buffer of `count` elements, read only; ignored if there is none.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1, or 0 for in place.
    pub num_inputs: usize,
    /// One buffer of `count` elements, which gets the result.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements of each buffer. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_scan_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_scan_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scan_options_init(options: *mut gloo_rs_scan_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Rank r's output gets the inputs of ranks 0 to r, combined in this order. In place (no input, or the very output
/// as input) the output holds the input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_scan(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_scan_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_scan", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request =
            request!(Scan, options, data_type, op, function, user, inputs, num_inputs, outputs, num_outputs, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

/// Options of gloo_rs_exscan. Set up by gloo_rs_exscan_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_exscan_options_t {
    /// sizeof(gloo_rs_exscan_options_t).
    pub struct_size: usize,
    /// Algorithm by name, such as "recursive_doubling"; NULL or "auto" lets the library choose. The same on all ranks.
    pub algorithm: *const c_char,
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's.
    pub timeout_ms: i64,
    /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks.
    pub max_segment_bytes: usize,
    /// Type of the elements. The same on all ranks.
    pub data_type: gloo_rs_data_type_t,
    /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks.
    pub op: gloo_rs_op_t,
    /// The caller's operation instead of `op`, or NULL.
    pub function: gloo_rs_reduce_fn_t,
    /// Passed to `function`.
    pub user: *mut c_void,
    /// One buffer of `count` elements, read only; ignored if there is none.
    pub inputs: *const *const c_void,
    /// Number of inputs: 1, or 0 for in place.
    pub num_inputs: usize,
    /// One buffer of `count` elements, which gets the result.
    pub outputs: *const *mut c_void,
    /// Number of outputs: 1.
    pub num_outputs: usize,
    /// Elements of each buffer. The same on all ranks.
    pub count: usize,
}

collective_options!(gloo_rs_exscan_options_t, count: usize, data_type);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_exscan_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_exscan_options_init(options: *mut gloo_rs_exscan_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Rank r's output gets the inputs of ranks 0 to r - 1, combined in this order; rank 0's output is left alone. In
/// place (no input, or the very output as input) the output holds the input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_exscan(
    context: *mut gloo_rs_context_t,
    options: *const gloo_rs_exscan_options_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_exscan", || {
        // SAFETY: the header's rules for pointers.
        let options = unsafe { options::read(options) }?;
        let request =
            request!(Exscan, options, data_type, op, function, user, inputs, num_inputs, outputs, num_outputs, count);
        // SAFETY: the header's rules for pointers.
        unsafe { run(context, &request) }
    })
}

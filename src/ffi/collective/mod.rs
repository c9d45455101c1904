//! Collectives: from options structs to a checked [`Call`].

// The header has this order.
mod reducing;

mod rooted;

mod every;

mod buffers;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::ffi::{c_char, c_void};

pub use every::*;
pub use reducing::*;
pub use rooted::*;

use super::context::gloo_rs_context_t;
use super::types::{GLOO_RS_SUM, GLOO_RS_UINT8, data_type, gloo_rs_data_type_t, gloo_rs_op_t, op};
use super::{handle, pointer};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Reduction};
use crate::error::Result;
use crate::types::ReduceOp;

/// Combines `count` elements the caller's way: `into[i] = left[i] op right[i]`. Returns 0, or anything else to fail the
/// call with GLOO_RS_ERROR_CALLBACK. `into` may equal `left` or `right`. Called only from the thread that made the
/// collective call, and only until that returns; no exception may leave it. Other threads can use the context meanwhile, and so
/// can the function: collectives on it need other tags than those that run; a context that the function closes or destroys fails
/// the call with GLOO_RS_ERROR_ABORTED once the function has returned. The call's timeout, too, is looked at only then. The
/// operation must be associative, and commutative but for scan and exscan.
pub type gloo_rs_reduce_fn_t = Option<
    unsafe extern "C" fn(
        into: *mut c_void,
        left: *const c_void,
        right: *const c_void,
        count: usize,
        user: *mut c_void,
    ) -> i32,
>;

/// The fields of all options structs. What a collective does not have stays as in [`Request::new`].
struct Request {
    collective: Collective,
    algorithm: *const c_char,
    tag: u32,
    timeout_ms: i64,
    max_segment_bytes: usize,
    data_type: gloo_rs_data_type_t,
    op: gloo_rs_op_t,
    function: gloo_rs_reduce_fn_t,
    user: *mut c_void,
    inputs: *const *const c_void,
    num_inputs: usize,
    outputs: *const *mut c_void,
    num_outputs: usize,
    root: i32,
    count: usize,
    send_counts: *const usize,
    recv_counts: *const usize,
    num_counts: usize,
    base: usize,
    destinations: usize,
    groups: *const u32,
    num_groups: usize,
    dims: *const usize,
    num_dims: usize,
}

impl Request {
    fn new(collective: Collective) -> Self {
        Self {
            collective,
            algorithm: std::ptr::null(),
            tag: 0,
            timeout_ms: -1,
            max_segment_bytes: 0,
            data_type: GLOO_RS_UINT8,
            op: GLOO_RS_SUM,
            function: None,
            user: std::ptr::null_mut(),
            inputs: std::ptr::null(),
            num_inputs: 0,
            outputs: std::ptr::null(),
            num_outputs: 0,
            root: 0,
            count: 0,
            send_counts: std::ptr::null(),
            recv_counts: std::ptr::null(),
            num_counts: 0,
            base: 0,
            destinations: 0,
            groups: std::ptr::null(),
            num_groups: 0,
            dims: std::ptr::null(),
            num_dims: 0,
        }
    }
}

/// A [`Request`] with the fields that all options structs have, and those named.
macro_rules! request {
    ($collective:ident, $options:ident $(, $field:ident)* $(,)?) => {
        crate::ffi::collective::Request {
            algorithm: $options.algorithm,
            tag: $options.tag,
            timeout_ms: $options.timeout_ms,
            max_segment_bytes: $options.max_segment_bytes,
            $($field: $options.$field,)*
            ..crate::ffi::collective::Request::new(crate::collective::Collective::$collective)
        }
    };
}

/// `Options` for a collective's struct; calls need all fields up to `$last`.
macro_rules! collective_options {
    ($name:ident, $last:ident: $type:ty $(, $data_type:ident)?) => {
        // SAFETY: repr(C), a usize first, and integers and pointers only.
        unsafe impl crate::ffi::options::Options for $name {
            const NAME: &'static str = stringify!($name);
            const REQUIRED: usize = std::mem::offset_of!($name, $last) + size_of::<$type>();
            fn set_defaults(&mut self) {
                self.timeout_ms = crate::ffi::GLOO_RS_TIMEOUT_DEFAULT;
                $(self.$data_type = crate::ffi::GLOO_RS_DATA_TYPE_UNSET;)?
            }
        }
    };
}

use {collective_options, request};

/// Checks `request` and runs it.
///
/// # Safety
/// Pointers are NULL or valid: the buffers for the elements that the collective demands, until this returns.
unsafe fn run(context: *mut gloo_rs_context_t, request: &Request) -> Result<()> {
    let collective = request.collective;
    // SAFETY: the same contract, for every block here.
    let handle = unsafe { handle::get(context, "context") }?;
    let context = &handle.context;
    let used = rooted::used(request, context.rank());
    let dtype = data_type(request.data_type)?;
    let reduction = match request.function {
        Some(function) => Reduction::User { function, user: request.user },
        None => Reduction::Op(op(request.op)?),
    };
    // SAFETY: as above. `*const c_void` and `*const u8` are the same in memory.
    let (inputs, outputs) = unsafe {
        let inputs = pointer::slice(request.inputs.cast::<*const u8>(), used.inputs, "inputs")?;
        (inputs, pointer::slice(request.outputs.cast::<*mut u8>(), used.outputs, "outputs")?)
    };
    // SAFETY: as above.
    let counts = |counts, what| unsafe { pointer::optional_slice(counts, used.counts, what) };
    // SAFETY: as above.
    let algorithm = unsafe { pointer::optional_text(request.algorithm, "algorithm") }?;
    let size = context.size();
    let mut call = Call {
        shape: Shape {
            root: pointer::rank(request.root, size, "root")?,
            send_counts: counts(request.send_counts, "send_counts")?,
            recv_counts: counts(request.recv_counts, "recv_counts")?,
            inputs: inputs.len(),
            outputs: outputs.len(),
            average: collective.reduces() && matches!(reduction, Reduction::Op(ReduceOp::Average)),
            base: if request.base == 0 { 2 } else { request.base },
            destinations: request.destinations,
            // SAFETY: as above.
            groups: unsafe { pointer::optional_slice(request.groups, request.num_groups, "groups") }?,
            // SAFETY: as above.
            dims: unsafe { pointer::optional_slice(request.dims, request.num_dims, "dims") }?,
            ..Shape::new(collective, context.rank(), size, request.count)
        },
        algorithm,
        dtype,
        reduction,
        inputs,
        outputs,
        tag: request.tag,
        timeout: pointer::timeout(request.timeout_ms)?,
        max_segment_bytes: (request.max_segment_bytes > 0).then_some(request.max_segment_bytes),
    };
    let mut known = context.check(&call)?;
    let checked = buffers::check(&call.shape, dtype, inputs, outputs)?;
    if checked.in_place {
        call.inputs = &[];
    }
    let replaced;
    if checked.has_null {
        // The floors below may make slices of buffers, also of those without elements.
        replaced = buffers::without_null(call.inputs, outputs);
        (call.inputs, call.outputs) = (&replaced.0, &replaced.1);
    }
    if call.shape.inputs != call.inputs.len() {
        call.shape.inputs = call.inputs.len();
        known = context.check(&call)?;
    }
    // SAFETY: `buffers::check` found the pointers possible and outputs apart from all else; the caller vouches for the rest.
    unsafe { context.run_checked(&call, known) }
}

//! Collectives: from arguments and options to a checked [`Call`].

// The header has this order.
mod options;

mod kind;

mod reducing;

mod moving;

mod buffers;
#[cfg(test)]
mod calls_tests;
#[cfg(any(test, fuzzing))]
#[path = "../../testing/fuzz/options.rs"]
pub(crate) mod fuzz;

use std::ffi::c_void;
use std::sync::Arc;

pub use kind::*;
pub use moving::*;
pub use options::*;
pub use reducing::*;

use self::buffers::Form;
pub(super) use self::kind::{guard_kind, kind_of};
use super::context::gloo_rs_context_t;
use super::enumeration::{from_number, number};
use super::error::remember;
use super::guard::{guard, guarded};
use super::status::{GLOO_RS_OK, gloo_rs_status_t};
use super::types::{element_type, memory, op, order};
use super::{handle, pointer};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, Reduction, Request};
use crate::engine::cache::{CallKey, Key};
use crate::engine::{Prepared, plan};
use crate::error::{Error, Result};
use crate::reduce::Factor;
use crate::reserve::try_zeros;
use crate::types::{DataType, ElementType, Rank, ReduceOp};

/// A reduction function of the caller: `into[i] = left[i] op right[i]` for `count` elements. Returns 0; any other
/// number fails the collective with GLOO_RS_ERROR_CALLBACK. `into` may equal `left` or `right`. The operation must be
/// associative. It must also be commutative, except for scan and exscan, and where the call names an algorithm that
/// combines in the order of ranks: docs/semantics.md lists these.
///
/// The function is called only on the thread that made the collective call, and only until that returns. That of a
/// request is called while the request is active, on any thread that waits on its context, one at a time. It must not
/// throw or longjmp, nor wait for the request. Other threads can use the context meanwhile, and so can the function: if
/// it calls the collective that is running, it needs another tag. If the function closes or destroys the context, the
/// collective fails with GLOO_RS_ERROR_CLOSED after the function has returned. The collective's timeout is not checked
/// while the function runs.
pub type gloo_rs_reduce_fn_t = Option<
    unsafe extern "C" fn(
        into: *mut c_void,
        left: *const c_void,
        right: *const c_void,
        count: usize,
        user: *mut c_void,
    ) -> i32,
>;

/// The buffers of a call that this rank uses, and the length of its lists of counts.
#[derive(Clone, Copy)]
struct Lists<'a> {
    inputs: &'a [*const u8],
    outputs: &'a [*mut u8],
    num_counts: usize,
}

/// [`run`] on the buffers of the options.
///
/// # Safety
/// As for [`run`]; and `inputs` and `outputs` are NULL or valid for reads of as many pointers as this rank uses.
unsafe fn run_options(context: &Context, collective: Collective, options: &gloo_rs_collective_options_t) -> Result<()> {
    // SAFETY: by the contract, the pointers in `options` are as `lists` and `run` demand.
    unsafe { run(context, collective, options, lists(context, collective, options)?, None) }
}

/// The lists in the options.
///
/// # Safety
/// `inputs` and `outputs` are NULL or valid for reads of as many pointers as this rank uses. `*const c_void` and
/// `*const u8` have the same layout.
#[inline(always)] // A part of `run_options`.
unsafe fn lists<'a>(
    context: &Context,
    collective: Collective,
    options: &'a gloo_rs_collective_options_t,
) -> Result<Lists<'a>> {
    // Without a list, this collective takes equal blocks; the others refuse to have none.
    if collective == Collective::ReduceScatter && options.num_counts != 0 && options.recv_counts.is_null() {
        return Err(Error::invalid(format!("recv_counts is NULL, but num_counts is {}", options.num_counts)));
    }
    let used = used(collective, options, context.rank());
    // SAFETY: by the contract, both lists are NULL or valid for reads of as many pointers as this rank uses.
    unsafe {
        let inputs = pointer::slice(options.inputs.cast::<*const u8>(), used.inputs, "inputs")?;
        let outputs = pointer::slice(options.outputs.cast::<*mut u8>(), used.outputs, "outputs")?;
        Ok(Lists { inputs, outputs, num_counts: used.counts })
    }
}

/// A request of `options`.
///
/// # Safety
/// The lists in `options` are NULL or valid for reads of their lengths, `algorithm` is NULL or a string. Whenever the
/// request is active, the buffers are NULL or valid for the elements that the collective demands, and the library alone
/// accesses the outputs.
pub(super) unsafe fn request(
    context: &Arc<Context>,
    collective: Collective,
    options: &gloo_rs_collective_options_t,
    in_order: bool,
) -> Result<Request> {
    check_used(options, collective)?;
    let prepare = |call: &Call<'_>, key: Option<&CallKey<'_>>, cached| {
        // SAFETY: the call has passed all checks. By the contract, its buffers are valid whenever the request is
        // active.
        unsafe { context.request_checked(call, key, cached, in_order) }
    };
    // SAFETY: by the contract, lists in `options` are valid for reads of their lengths, and `algorithm` is NULL or a
    // string.
    unsafe { checked(context, collective, options, lists(context, collective, options)?, None, prepare) }
}

/// Makes a call of one input, or none, and one output, for the export `function`. `options` returns the other
/// arguments; the length of its lists is the context's size.
///
/// # Safety
/// `context` is NULL or a live handle. The buffers and lists that this rank uses are as [`run`] demands.
#[inline(always)] // Inlined, it makes the options only if they are needed.
unsafe fn plain(
    function: &str,
    collective: Collective,
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    options: impl Fn() -> gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: by the contract, which is that of both.
    unsafe {
        match quick_key(collective, &options(), input, output) {
            Some(key) => quick(context, key, input, output),
            None => unkeyed(function, collective, context, input, output, options),
        }
    }
}

/// Makes a plain call that has no key.
///
/// # Safety
/// As for [`plain`].
#[cold]
unsafe fn unkeyed(
    function: &str,
    collective: Collective,
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    options: impl Fn() -> gloo_rs_collective_options_t,
) -> gloo_rs_status_t {
    // SAFETY: by the contract.
    guard(function, || unsafe { prepared(collective, context, input, output, options(), None) })
}

/// Makes the plain call `key`. All its arguments fit into registers.
///
/// # Safety
/// As for [`plain`].
#[inline(never)]
unsafe fn quick(
    context: *mut gloo_rs_context_t,
    key: Key,
    input: *const c_void,
    output: *mut c_void,
) -> gloo_rs_status_t {
    let mut made = true;
    let result = guarded(|| {
        // SAFETY: by the contract, `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        // SAFETY: by the contract, the buffers that this rank uses are NULL or valid for their lengths, which `key`
        // determines.
        let run = |context: &Context| unsafe { context.run_cached(&key, input.cast(), output.cast()) };
        let result = handle.present().and_then(run);
        made = result.is_some();
        result.unwrap_or(Ok(()))
    });
    let collective = Collective::ALL[usize::from(key.collective())];
    let result = match result {
        Ok(()) if made => return GLOO_RS_OK,
        Ok(()) => {
            let (data_type, op) = (from_number(u32::from(key.dtype())), from_number(u32::from(key.op())));
            let (count, root) = (key.count(), key.root());
            let options = gloo_rs_collective_options_t { count, data_type, op, root, ..DEFAULTS };
            // SAFETY: by the contract; `key` has the other arguments.
            guarded(|| unsafe { prepared(collective, context, input, output, options, Some(key)) })
        }
        failed => failed,
    };
    result.map_or_else(|error| failed(collective, &error), |()| GLOO_RS_OK)
}

/// Stores the error of a plain call.
#[cold]
fn failed(collective: Collective, error: &Error) -> gloo_rs_status_t {
    remember(&format!("gloo_rs_{}", collective.name()), error)
}

/// Prepares and makes a plain call.
///
/// # Safety
/// As for [`plain`].
#[inline(never)]
unsafe fn prepared(
    collective: Collective,
    context: *mut gloo_rs_context_t,
    input: *const c_void,
    output: *mut c_void,
    mut options: gloo_rs_collective_options_t,
    key: Option<Key>,
) -> Result<()> {
    // SAFETY: by the contract, `context` is NULL or a live handle.
    let handle = unsafe { handle::get(context, "context") }?;
    let context = handle.context()?;
    let is_root = usize::try_from(options.root) == Ok(context.rank());
    // NULL stands for in place, where the rank has that form.
    options.num_inputs = match collective {
        Collective::Broadcast | Collective::Barrier => 0,
        Collective::Alltoallv | Collective::PairwiseExchange => 1,
        Collective::Gather | Collective::Gatherv if !is_root => 1,
        _ => usize::from(!input.is_null()),
    };
    options.num_outputs = usize::from(collective != Collective::Barrier);
    options.num_counts = context.size();
    let used = used(collective, &options, context.rank());
    let (inputs, outputs) = (&[input.cast::<u8>()][..used.inputs], &[output.cast::<u8>()][..used.outputs]);
    // SAFETY: by the contract, the buffers and lists that this rank uses are NULL or valid for their lengths;
    // `used` leaves out the others. `options` has no other pointers: the exports take the rest from `DEFAULTS`.
    unsafe { run(context, collective, &options, Lists { inputs, outputs, num_counts: used.counts }, key) }
}

/// The arguments of a plain call; `None` for a collective with lists, or whose ranks have results of single
/// contributions.
#[inline(always)] // A part of `plain`.
fn quick_key(
    collective: Collective,
    options: &gloo_rs_collective_options_t,
    input: *const c_void,
    output: *mut c_void,
) -> Option<Key> {
    use Collective::*;
    if !matches!(
        collective,
        Allreduce | Reduce | ReduceScatter | Broadcast | Allgather | Gather | Scatter | Alltoall | Barrier
    ) || !options.recv_counts.is_null()
    {
        return None;
    }
    // SAFETY: C initialised both fields, or they have their defaults.
    let numbers = unsafe { (number(options.data_type), number(options.op)) };
    Key::new(collective as u8, numbers, options.root, options.count, input, output)
}

/// Numbers of the caller's inputs, outputs and counts that a rank uses in a call.
struct Used {
    inputs: usize,
    outputs: usize,
    counts: usize,
}

/// The part of `options` that `rank` uses. Arguments that only the root needs are ignored on other ranks, so programs
/// may pass the same arguments on all ranks, as in MPI.
fn used(collective: Collective, options: &gloo_rs_collective_options_t, rank: Rank) -> Used {
    let mut used = Used { inputs: options.num_inputs, outputs: options.num_outputs, counts: options.num_counts };
    if usize::try_from(options.root) == Ok(rank) {
        return used;
    }
    match collective {
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

/// Checks and runs a call of `options`, whose unused fields have their defaults, on the buffers in `lists`. `key` has
/// the arguments of a plain call.
///
/// # Safety
/// Until this returns, the buffers are NULL or valid for the elements that the collective demands, and the library
/// alone accesses the outputs. Lists in `options` are NULL or valid for reads of their lengths, `algorithm` is NULL or
/// a string.
unsafe fn run(
    context: &Context,
    collective: Collective,
    options: &gloo_rs_collective_options_t,
    lists: Lists<'_>,
    key: Option<Key>,
) -> Result<()> {
    let run = |call: &Call<'_>, key: Option<&CallKey<'_>>, cached| {
        // SAFETY: the call has passed all checks, every output is disjoint from all other buffers or known to be a part
        // of one, and by the contract, they are valid until this returns.
        unsafe { context.run_checked(call, key, cached) }
    };
    // SAFETY: by the contract.
    unsafe { checked(context, collective, options, lists, key, run) }
}

/// Checks a call, and passes it on to `then`, with what it is looked up by, and an equal call that was prepared before.
/// Arguments as for [`run`].
///
/// # Safety
/// Lists in `options` are NULL or valid for reads of their lengths, `factor` is NULL or valid for a read of an element,
/// and `algorithm` is NULL or a string.
#[inline(always)] // A part of `run`.
unsafe fn checked<R>(
    context: &Context,
    collective: Collective,
    options: &gloo_rs_collective_options_t,
    lists: Lists<'_>,
    key: Option<Key>,
    then: impl FnOnce(&Call<'_>, Option<&CallKey<'_>>, Option<Arc<Prepared>>) -> Result<R>,
) -> Result<R> {
    let Lists { inputs, outputs, num_counts } = lists;
    let (rank, size) = (context.rank(), context.size());
    let dtype = match collective {
        Collective::Barrier => DataType::Uint8.into(),
        // SAFETY: C initialised `data_type`, or it has its default.
        _ => unsafe { element_type(options.data_type, options.element_bytes) }?,
    };
    let reduction = match options.function {
        Some(function) => Reduction::User { function, user: options.user },
        // SAFETY: C initialised `op`, or it has its default.
        None => Reduction::Op(unsafe { op(options.op) }?),
    };
    // SAFETY: by the contract, lists of counts are NULL or valid for reads of `num_counts` values.
    let counts = |counts, what| unsafe { pointer::optional_slice(counts, num_counts, what) };
    // SAFETY: by the contract, `algorithm` is NULL or a string.
    let algorithm = unsafe { pointer::optional_text(options.algorithm, "algorithm") }?;
    let shape = Shape {
        root: pointer::rank(options.root, size, "root")?,
        send_counts: counts(options.send_counts, "send_counts")?,
        recv_counts: counts(options.recv_counts, "recv_counts")?,
        inputs: inputs.len(),
        outputs: outputs.len(),
        // SAFETY: by the contract, `order` is NULL or a string.
        order: unsafe { order(options.order) }?,
        average: collective.reduces() && matches!(reduction, Reduction::Op(ReduceOp::Average)),
        base: if options.base == 0 { 2 } else { options.base },
        destinations: options.destinations,
        // SAFETY: by the contract, `groups` is valid for reads of `num_groups` values.
        groups: unsafe { pointer::list(options.groups, options.num_groups, "groups") }?,
        // SAFETY: by the contract, `dims` is valid for reads of `num_dims` values.
        dims: unsafe { pointer::list(options.dims, options.num_dims, "dims") }?,
        ..Shape::new(collective, rank, size, options.count)
    };
    let shape = if options.blocks != 0 { shape.in_blocks()? } else { shape };
    let mut call = Call {
        inputs,
        outputs,
        algorithm,
        reduction,
        tag: options.tag,
        timeout: pointer::timeout(options.timeout_ms)?,
        // SAFETY: C initialised `memory`, or it has its default.
        memory: unsafe { memory(options.memory) }?,
        max_segment_bytes: (options.max_segment_bytes > 0).then_some(options.max_segment_bytes),
        factor: match options.factor {
            element if element.is_null() || !collective.reduces() => None,
            // SAFETY: by the contract, it is valid for a read of an element.
            element => Some(unsafe { factor(element, dtype, reduction) }?),
        },
        dtype,
        ..Call::new(shape, DataType::Uint8)
    };
    let equal_counts;
    if collective == Collective::ReduceScatter {
        if options.recv_counts.is_null() {
            plan::check_size(&call.shape)?;
            equal_counts = repeat(options.count, size)?;
            call.shape.recv_counts = &equal_counts;
        } else if options.count != 0 {
            return Err(Error::invalid("reduce_scatter has both count and recv_counts: set one of them"));
        }
        call.shape.count = 0;
    }
    let form = buffers::form(&call);
    if form == Form::InPlace {
        (call.inputs, call.shape.inputs) = (&[], 0);
    }
    // In place by another address than the output's, the buffers are not what the plain call's arguments say.
    let plain = key.filter(|key| !key.has_other_input() || call.inputs.len() == inputs.len());
    let key = context.key_of(&call).map(|own| plain.map_or(own, CallKey::from));
    let cached = context.check(&call, key.as_ref())?;
    let replaced;
    if buffers::check(&call, form)? {
        // Lower modules may make slices of buffers, also of those without elements.
        replaced = buffers::without_null(call.inputs, outputs)?;
        (call.inputs, call.outputs) = (&replaced.0, &replaced.1);
    }
    call.own_block = form == Form::OwnBlock;
    then(&call, key.as_ref(), cached)
}

/// The factor at `element`.
///
/// # Safety
/// `element` is valid for a read of an element of `dtype`.
#[cold]
unsafe fn factor(element: *const c_void, dtype: ElementType, reduction: Reduction) -> Result<Factor> {
    match reduction {
        Reduction::Op(ReduceOp::Sum) => {}
        Reduction::Op(op) => return Err(Error::invalid(format!("factor: the operation is {op}; it must be sum"))),
        Reduction::User { .. } => return Err(Error::invalid("factor: function is set, which can multiply itself")),
    }
    let mut bytes = [0; 8];
    // SAFETY: by the contract; no more than one element is read.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(element.cast(), dtype.size().min(8)) };
    let known = if let ElementType::Known(dtype) = dtype { Factor::new(dtype, bytes) } else { None };
    known.ok_or_else(|| {
        let text = format!("factor: it is for elements of float16, bfloat16, float32 or float64, not for {dtype}");
        Error::invalid(text)
    })
}

fn repeat(count: usize, size: usize) -> Result<Vec<usize>> {
    let mut counts = try_zeros(size, "the counts of all ranks")?;
    counts.fill(count);
    Ok(counts)
}

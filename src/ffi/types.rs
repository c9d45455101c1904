//! Element types and operations, and names.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use super::enumeration::{self, number, unknown};
use super::pointer;
use crate::collective::Order;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::types::{DataType, ElementType, ReduceOp};
use crate::wait_mode::WaitMode;

/// The type of an element. The buffers of collectives must have the alignment that is stated here.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_data_type_t {
    /// No type: the default in options. A collective needs a type, or `element_bytes`.
    GLOO_RS_DATA_TYPE_UNSET = 0,
    /// Signed 8-bit integer; any alignment.
    GLOO_RS_INT8 = 1,
    /// Unsigned 8-bit integer; any alignment.
    GLOO_RS_UINT8 = 2,
    /// Signed 16-bit integer; aligned to 2 bytes.
    GLOO_RS_INT16 = 3,
    /// Unsigned 16-bit integer; aligned to 2 bytes.
    GLOO_RS_UINT16 = 4,
    /// Signed 32-bit integer; aligned to 4 bytes.
    GLOO_RS_INT32 = 5,
    /// Unsigned 32-bit integer; aligned to 4 bytes.
    GLOO_RS_UINT32 = 6,
    /// Signed 64-bit integer; aligned to 8 bytes.
    GLOO_RS_INT64 = 7,
    /// Unsigned 64-bit integer; aligned to 8 bytes.
    GLOO_RS_UINT64 = 8,
    /// IEEE 754 binary16; aligned to 2 bytes.
    GLOO_RS_FLOAT16 = 9,
    /// The upper half of an IEEE 754 binary32; aligned to 2 bytes.
    GLOO_RS_BFLOAT16 = 10,
    /// IEEE 754 binary32: `float`; aligned to 4 bytes.
    GLOO_RS_FLOAT32 = 11,
    /// IEEE 754 binary64: `double`; aligned to 8 bytes.
    GLOO_RS_FLOAT64 = 12,
    /// Two binary32, real and imaginary: `float _Complex`, `std::complex<float>`; aligned to 4 bytes.
    GLOO_RS_COMPLEX64 = 13,
    /// Two binary64, real and imaginary: `double _Complex`, `std::complex<double>`; aligned to 8 bytes.
    GLOO_RS_COMPLEX128 = 14,
    /// One byte: zero is false, any other value is true; results are 0 or 1. Any alignment.
    GLOO_RS_BOOL = 15,
}

pub use gloo_rs_data_type_t::*;

/// The operation that combines two elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_op_t {
    /// `a + b`. Integers wrap; logical or for GLOO_RS_BOOL.
    GLOO_RS_SUM = 0,
    /// `a * b`. Integers wrap; logical and for GLOO_RS_BOOL.
    GLOO_RS_PRODUCT = 1,
    /// The minimum. NaN takes precedence over numbers. Not for complex types.
    GLOO_RS_MIN = 2,
    /// The maximum. NaN takes precedence over numbers. Not for complex types.
    GLOO_RS_MAX = 3,
    /// The sum, divided once at the end by the number of contributions; integers truncate towards zero. The sum is made
    /// in the type of the elements: if an integer sum wraps, the average is wrong, and if a sum of floats overflows, it
    /// is infinite, though the mean itself would fit. For float16 each reduction computes the mean of its operands,
    /// weighted by their contributions, which does not overflow; with more than 256 ranks it is a divided sum. Not for
    /// GLOO_RS_BOOL, scan and exscan. All ranks must pass the same number of inputs.
    GLOO_RS_AVERAGE = 4,
    /// Bitwise and; integers and GLOO_RS_BOOL only.
    GLOO_RS_AND = 5,
    /// Bitwise or; integers and GLOO_RS_BOOL only.
    GLOO_RS_OR = 6,
    /// Bitwise exclusive or; integers and GLOO_RS_BOOL only.
    GLOO_RS_XOR = 7,
}

pub use gloo_rs_op_t::*;

/// Where the buffers of a call are. Managed and pinned memory of CUDA count as host memory, and may be used as memory
/// of devices too. A call on memory of devices is synchronous: the caller has waited for all of its own work on the
/// buffers, and the result is there when the call returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_memory_t {
    /// Each buffer is either host memory or memory of a CUDA device. CUDA's driver is asked which, once it is loaded in
    /// the process.
    GLOO_RS_MEMORY_AUTO = 0,
    /// Host memory; nobody is asked. Memory of a device makes the process crash.
    GLOO_RS_MEMORY_HOST = 1,
    /// Memory of CUDA devices. Another buffer is refused with GLOO_RS_ERROR_INVALID_ARGUMENT.
    GLOO_RS_MEMORY_DEVICE = 2,
}

pub use gloo_rs_memory_t::*;

/// # Safety
/// The number is initialised.
pub(super) unsafe fn data_type(data_type: MaybeUninit<gloo_rs_data_type_t>) -> Result<DataType> {
    // SAFETY: by the contract, `data_type` is initialised.
    match unsafe { number(data_type) } {
        0 => Err(Error::invalid("data_type is not set")),
        number => DataType::try_from(number - 1).map_err(|_| unknown("data_type", number)),
    }
}

/// The type of the elements, from its number or from the size of an element.
///
/// # Safety
/// The number is initialised.
pub(super) unsafe fn element_type(
    data_type: MaybeUninit<gloo_rs_data_type_t>,
    element_bytes: usize,
) -> Result<ElementType> {
    // SAFETY: by the contract, `data_type` is initialised.
    match (unsafe { number(data_type) }, element_bytes) {
        // SAFETY: by the contract, `data_type` is initialised.
        (_, 0) => unsafe { self::data_type(data_type) }.map(ElementType::Known),
        (0, bytes) => Ok(ElementType::Opaque(bytes)),
        (_, _) => Err(Error::invalid("data_type and element_bytes are both set: set one of them")),
    }
}

/// # Safety
/// The number is initialised.
pub(super) unsafe fn op(op: MaybeUninit<gloo_rs_op_t>) -> Result<ReduceOp> {
    // SAFETY: by the contract, `op` is initialised.
    ReduceOp::try_from(unsafe { number(op) })
}

/// # Safety
/// The number is initialised.
pub(super) unsafe fn memory(memory: MaybeUninit<gloo_rs_memory_t>) -> Result<Memory> {
    let known = [
        (GLOO_RS_MEMORY_AUTO, Memory::Auto),
        (GLOO_RS_MEMORY_HOST, Memory::Host),
        (GLOO_RS_MEMORY_DEVICE, Memory::Device),
    ];
    // SAFETY: by the contract, `memory` is initialised.
    unsafe { enumeration::known(memory, "memory", &known) }
}

/// Returns the bytes of one element of `data_type`; 0 for numbers that are no type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_data_type_size(data_type: MaybeUninit<gloo_rs_data_type_t>) -> usize {
    // SAFETY: C initialises arguments; any number is accepted.
    unsafe { self::data_type(data_type) }.map_or(0, DataType::size)
}

/// The `order` of a call's or a context's options.
///
/// # Safety
/// `name` is NULL or a string.
pub(super) unsafe fn order(name: *const c_char) -> Result<Order> {
    // SAFETY: by the contract.
    match unsafe { pointer::optional_text(name, "order") }? {
        None => Ok(Order::Any),
        Some("ranks") => Ok(Order::Ranks),
        Some("reproducible") => Ok(Order::Reproducible),
        Some(other) => {
            Err(Error::invalid(format!("order is \"{other}\"; it must be \"ranks\", \"reproducible\", or NULL")))
        }
    }
}

/// The `wait` of a device's or a context's options.
///
/// # Safety
/// `name` is NULL or a string.
pub(super) unsafe fn wait_mode(name: *const c_char) -> Result<Option<WaitMode>> {
    // SAFETY: by the contract.
    let name = unsafe { pointer::optional_text(name, "wait") }?;
    name.map(|name| WaitMode::parse("wait", name.as_ref())).transpose()
}

//! Element types and operations, as numbers of fixed width.

use crate::error::{Error, Result};
use crate::types::{DataType, ReduceOp};

/// The type of one element: one of GLOO_RS_INT8 and the following. Buffers of collectives are aligned as each says.
pub type gloo_rs_data_type_t = u32;

/// What options hold once their init function has run, until the caller sets their data type; calls refuse it.
pub const GLOO_RS_DATA_TYPE_UNSET: gloo_rs_data_type_t = 0xffff_ffff;
/// Signed 8-bit integer; any alignment. It is number 0, so options that were filled with zeros, not by their init function,
/// mean this type.
pub const GLOO_RS_INT8: gloo_rs_data_type_t = 0;
/// Unsigned 8-bit integer; any alignment.
pub const GLOO_RS_UINT8: gloo_rs_data_type_t = 1;
/// Signed 16-bit integer; aligned to 2 bytes.
pub const GLOO_RS_INT16: gloo_rs_data_type_t = 2;
/// Unsigned 16-bit integer; aligned to 2 bytes.
pub const GLOO_RS_UINT16: gloo_rs_data_type_t = 3;
/// Signed 32-bit integer; aligned to 4 bytes.
pub const GLOO_RS_INT32: gloo_rs_data_type_t = 4;
/// Unsigned 32-bit integer; aligned to 4 bytes.
pub const GLOO_RS_UINT32: gloo_rs_data_type_t = 5;
/// Signed 64-bit integer; aligned to 8 bytes.
pub const GLOO_RS_INT64: gloo_rs_data_type_t = 6;
/// Unsigned 64-bit integer; aligned to 8 bytes.
pub const GLOO_RS_UINT64: gloo_rs_data_type_t = 7;
/// IEEE 754 binary16; aligned to 2 bytes.
pub const GLOO_RS_FLOAT16: gloo_rs_data_type_t = 8;
/// The upper half of an IEEE 754 binary32; aligned to 2 bytes.
pub const GLOO_RS_BFLOAT16: gloo_rs_data_type_t = 9;
/// IEEE 754 binary32: `float`; aligned to 4 bytes.
pub const GLOO_RS_FLOAT32: gloo_rs_data_type_t = 10;
/// IEEE 754 binary64: `double`; aligned to 8 bytes.
pub const GLOO_RS_FLOAT64: gloo_rs_data_type_t = 11;
/// Two binary32, real and imaginary: `float _Complex`, `std::complex<float>`; aligned to 4 bytes.
pub const GLOO_RS_COMPLEX64: gloo_rs_data_type_t = 12;
/// Two binary64, real and imaginary: `double _Complex`, `std::complex<double>`; aligned to 8 bytes.
pub const GLOO_RS_COMPLEX128: gloo_rs_data_type_t = 13;
/// One byte: zero is false, anything else is true; results are 0 or 1. Any alignment.
pub const GLOO_RS_BOOL: gloo_rs_data_type_t = 14;

/// How two elements become one: one of GLOO_RS_SUM and the following.
pub type gloo_rs_op_t = u32;

/// `a + b`; integers wrap; logical or for GLOO_RS_BOOL.
pub const GLOO_RS_SUM: gloo_rs_op_t = 0;
/// `a * b`; integers wrap; logical and for GLOO_RS_BOOL.
pub const GLOO_RS_PRODUCT: gloo_rs_op_t = 1;
/// The smaller; a NaN wins over numbers. Not for complex types.
pub const GLOO_RS_MIN: gloo_rs_op_t = 2;
/// The larger; a NaN wins over numbers. Not for complex types.
pub const GLOO_RS_MAX: gloo_rs_op_t = 3;
/// The sum, divided once at the end by the number of contributions; integers truncate towards zero. Not for GLOO_RS_BOOL,
/// nor for scan and exscan. All ranks must pass the same number of inputs.
pub const GLOO_RS_AVERAGE: gloo_rs_op_t = 4;
/// Bitwise and; integers and GLOO_RS_BOOL only.
pub const GLOO_RS_AND: gloo_rs_op_t = 5;
/// Bitwise or; integers and GLOO_RS_BOOL only.
pub const GLOO_RS_OR: gloo_rs_op_t = 6;
/// Bitwise exclusive or; integers and GLOO_RS_BOOL only.
pub const GLOO_RS_XOR: gloo_rs_op_t = 7;

pub(super) fn data_type(number: gloo_rs_data_type_t) -> Result<DataType> {
    if number == GLOO_RS_DATA_TYPE_UNSET {
        return Err(Error::invalid("data_type was not set"));
    }
    DataType::try_from(number)
}

pub(super) fn op(number: gloo_rs_op_t) -> Result<ReduceOp> {
    ReduceOp::try_from(number)
}

/// Bytes of one element of `data_type`; 0 for numbers that name no type.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_data_type_size(data_type: gloo_rs_data_type_t) -> usize {
    DataType::try_from(data_type).map_or(0, DataType::size)
}

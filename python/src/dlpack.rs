//! Tensors of host memory by DLPack's protocol, as https://dmlc.github.io/dlpack/latest/c_api.html has it.

use crate::abi::*;
use crate::error::{invalid, unsupported};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use std::ffi::c_void;

/// Host memory of a tensor.
pub struct Tensor {
    pub address: *mut c_void,
    pub bytes: usize,
    pub data_type: gloo_rs_data_type_t,
    pub element_bytes: usize,
    /// Keeps the memory valid.
    pub capsule: Py<PyAny>,
}

/// kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged: memory that the processor can access.
const HOST_DEVICES: [i32; 4] = [1, 3, 11, 13];

/// kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLComplex, kDLBool.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

/// DLTensor, with the fields of DLDevice and DLDataType in place; also the beginning of DLManagedTensor.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The tensor that `object` exports; none if it has no such method.
pub fn tensor(object: &Bound<'_, PyAny>, operation: &str, name: &str) -> PyResult<Option<Tensor>> {
    let py = object.py();
    let Some(export) = object.getattr_opt(intern!(py, "__dlpack__"))? else { return Ok(None) };
    let (device, id): (i32, i32) = object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    if !HOST_DEVICES.contains(&device) {
        let message = format!(
            "{name} is in the memory of a device (DLPack's type {device}, number {id}), which calls do not take"
        );
        return Err(unsupported(py, operation, &message));
    }
    let capsule = export.call0()?;
    // SAFETY: a capsule of this name has a DLManagedTensor, which begins with a DLTensor, until somebody renames it.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()) };
    if pointer.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: as above.
    let tensor = unsafe { &*pointer.cast::<DlTensor>() };
    // SAFETY: a shape has `ndim` numbers.
    let shape = unsafe { numbers(tensor.shape, tensor.ndim) };
    if !tensor.strides.is_null() {
        // SAFETY: as have strides, if there are any.
        let strides = unsafe { numbers(tensor.strides, tensor.ndim) };
        if !is_contiguous(shape, strides) {
            return Err(invalid(
                py,
                operation,
                &format!("{name} is strided; calls take contiguous tensors, as .contiguous() makes them"),
            ));
        }
    }
    let bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
    if bits == 0 || bits % 8 != 0 {
        return Err(invalid(py, operation, &format!("{name} has elements of {bits} bits, which are no whole bytes")));
    }
    let elements: usize = shape.iter().map(|&extent| extent as usize).product();
    Ok(Some(Tensor {
        address: tensor.data.wrapping_byte_add(tensor.byte_offset as usize),
        bytes: elements * bits / 8,
        data_type: if tensor.lanes == 1 { data_type(tensor.code, tensor.bits) } else { GLOO_RS_DATA_TYPE_UNSET },
        element_bytes: bits / 8,
        capsule: capsule.unbind(),
    }))
}

/// # Safety
/// There are `n` numbers at the address.
unsafe fn numbers<'a>(at: *const i64, n: i32) -> &'a [i64] {
    // SAFETY: by the contract of this function.
    if n <= 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, n as usize) } }
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut wanted = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent == 1 || stride == wanted;
        wanted *= extent;
        fits
    })
}

fn data_type(code: u8, bits: u8) -> gloo_rs_data_type_t {
    match (code, bits) {
        (INT, 8) => GLOO_RS_INT8,
        (INT, 16) => GLOO_RS_INT16,
        (INT, 32) => GLOO_RS_INT32,
        (INT, 64) => GLOO_RS_INT64,
        (UINT, 8) => GLOO_RS_UINT8,
        (UINT, 16) => GLOO_RS_UINT16,
        (UINT, 32) => GLOO_RS_UINT32,
        (UINT, 64) => GLOO_RS_UINT64,
        (FLOAT, 16) => GLOO_RS_FLOAT16,
        (FLOAT, 32) => GLOO_RS_FLOAT32,
        (FLOAT, 64) => GLOO_RS_FLOAT64,
        (BFLOAT, 16) => GLOO_RS_BFLOAT16,
        (COMPLEX, 64) => GLOO_RS_COMPLEX64,
        (COMPLEX, 128) => GLOO_RS_COMPLEX128,
        (BOOL, 8) => GLOO_RS_BOOL,
        _ => GLOO_RS_DATA_TYPE_UNSET,
    }
}

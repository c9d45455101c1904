//! Memory of Python's objects: by the buffer protocol (numpy, bytearray, memoryview, array, mmap) or DLPack (torch and
//! others).

use crate::abi::*;
use crate::dlpack;
use crate::error::invalid;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

/// What the caller does with the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Contiguous memory of an object of Python, which keeps it valid as long as this lives.
pub struct Memory {
    pub address: *mut c_void,
    pub bytes: usize,
    /// The type of the elements; GLOO_RS_DATA_TYPE_UNSET for one that the library does not know, and can only move.
    pub data_type: gloo_rs_data_type_t,
    pub element_bytes: usize,
    _keeper: Keeper,
}

// SAFETY: an address; what keeps it valid is `Keeper`.
unsafe impl Send for Memory {}
// SAFETY: as above; the library accesses the memory, with the rules of its calls.
unsafe impl Sync for Memory {}

/// What keeps the memory valid. Dropped by a thread with the interpreter's lock, as are all objects of Python.
enum Keeper {
    View(ffi::Py_buffer),
    /// Whose destructor calls the producer's deleter.
    Capsule {
        _capsule: Py<PyAny>,
    },
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Self::View(view) = self {
            // SAFETY: PyObject_GetBuffer has filled the view, and nobody has released it.
            unsafe { ffi::PyBuffer_Release(view) }
        }
    }
}

impl Memory {
    /// The memory of `object`, which is the argument `name` of `operation`.
    pub fn of(object: &Bound<'_, PyAny>, access: Access, operation: &str, name: &str) -> PyResult<Self> {
        // SAFETY: both functions take any object.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Self::of_buffer(object, access, operation, name);
        }
        let Some(tensor) = dlpack::tensor(object, operation, name)? else {
            let class = object.get_type();
            return Err(PyTypeError::new_err(format!(
                "{operation}: {name} is of {class}, which has neither the buffer protocol nor DLPack"
            )));
        };
        let dlpack::Tensor { address, bytes, data_type, element_bytes, capsule } = tensor;
        Ok(Self { address, bytes, data_type, element_bytes, _keeper: Keeper::Capsule { _capsule: capsule } })
    }

    #[inline]
    fn of_buffer(object: &Bound<'_, PyAny>, access: Access, operation: &str, name: &str) -> PyResult<Self> {
        let writable = if access == Access::Write { ffi::PyBUF_WRITABLE } else { 0 };
        let (view, data_type) = match get(object, ffi::PyBUF_ND | ffi::PyBUF_FORMAT | writable) {
            Ok(view) => {
                let data_type = data_type(view.format, view.itemsize);
                (view, data_type)
            }
            Err(error) if error.is_instance_of::<PyValueError>(object.py()) => {
                // numpy has no format for the types that other packages define, as ml_dtypes does.
                let view =
                    get(object, ffi::PyBUF_ND | writable).map_err(|error| explained(error, object, operation, name))?;
                (view, named_type(object)?)
            }
            Err(error) => return Err(explained(error, object, operation, name)),
        };
        Ok(Self {
            address: view.buf,
            bytes: view.len as usize,
            data_type,
            element_bytes: view.itemsize as usize,
            _keeper: Keeper::View(view),
        })
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.checked_div(self.element_bytes).unwrap_or(0)
    }

    /// Takes the bytes for elements of another type.
    pub fn take_as(
        &mut self,
        py: Python<'_>,
        data_type: gloo_rs_data_type_t,
        operation: &str,
        name: &str,
    ) -> PyResult<()> {
        // SAFETY: any number is allowed.
        self.element_bytes = unsafe { gloo_rs_data_type_size(data_type) };
        self.data_type = data_type;
        if self.bytes.is_multiple_of(self.element_bytes) {
            return Ok(());
        }
        let message = format!("{name} has {} bytes, which are no elements of {} bytes", self.bytes, self.element_bytes);
        Err(invalid(py, operation, &message))
    }
}

#[inline]
fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<ffi::Py_buffer> {
    let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
    // SAFETY: the function fills the view if it succeeds. Exporters find what they keep by `obj` and `internal`, so
    // that the view may be moved.
    unsafe {
        if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(view.assume_init())
    }
}

/// Says in a sentence why the exporter refused.
#[cold]
fn explained(error: PyErr, object: &Bound<'_, PyAny>, operation: &str, name: &str) -> PyErr {
    let py = object.py();
    if !error.is_instance_of::<PyBufferError>(py) && !error.is_instance_of::<PyValueError>(py) {
        return error;
    }
    let can = |flags| get(object, flags).map(Keeper::View).is_ok();
    let cause = if can(ffi::PyBUF_STRIDES) && !can(ffi::PyBUF_ND) {
        "is strided; calls take contiguous memory in the order of C, as numpy.ascontiguousarray makes it"
    } else if can(ffi::PyBUF_ND) && !can(ffi::PyBUF_ND | ffi::PyBUF_WRITABLE) {
        "is read-only, and the call writes to it"
    } else {
        return error;
    };
    invalid(py, operation, &format!("{name} {cause}"))
}

/// The type that a format of the buffer protocol says.
fn data_type(format: *const std::ffi::c_char, bytes: isize) -> gloo_rs_data_type_t {
    if format.is_null() {
        return GLOO_RS_UINT8;
    }
    // SAFETY: a format ends with a NUL byte.
    let format = unsafe { CStr::from_ptr(format) }.to_bytes();
    let native = if cfg!(target_endian = "little") { b'<' } else { b'>' };
    let format = match format {
        [first, rest @ ..] if [b'@', b'=', b'^', native].contains(first) => rest,
        _ => format,
    };
    match (format, bytes) {
        (b"f", 4) => GLOO_RS_FLOAT32,
        (b"d", 8) => GLOO_RS_FLOAT64,
        (b"e", 2) => GLOO_RS_FLOAT16,
        (b"Zf", 8) => GLOO_RS_COMPLEX64,
        (b"Zd", 16) => GLOO_RS_COMPLEX128,
        (b"?", 1) => GLOO_RS_BOOL,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 1) => GLOO_RS_INT8,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 2) => GLOO_RS_INT16,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 4) => GLOO_RS_INT32,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 8) => GLOO_RS_INT64,
        (b"B" | b"c" | b"H" | b"I" | b"L" | b"Q" | b"N", 1) => GLOO_RS_UINT8,
        (b"B" | b"H" | b"I" | b"L" | b"Q" | b"N", 2) => GLOO_RS_UINT16,
        (b"B" | b"H" | b"I" | b"L" | b"Q" | b"N", 4) => GLOO_RS_UINT32,
        (b"B" | b"H" | b"I" | b"L" | b"Q" | b"N", 8) => GLOO_RS_UINT64,
        _ => GLOO_RS_DATA_TYPE_UNSET,
    }
}

/// The type of an array whose exporter has no format for it.
fn named_type(object: &Bound<'_, PyAny>) -> PyResult<gloo_rs_data_type_t> {
    let name = object.getattr("dtype")?.getattr("name")?;
    Ok(if name.eq("bfloat16")? { GLOO_RS_BFLOAT16 } else { GLOO_RS_DATA_TYPE_UNSET })
}

/// The types by the names that numpy, ml_dtypes and torch give them.
const NAMES: [(&str, gloo_rs_data_type_t); 15] = [
    ("int8", GLOO_RS_INT8),
    ("uint8", GLOO_RS_UINT8),
    ("int16", GLOO_RS_INT16),
    ("uint16", GLOO_RS_UINT16),
    ("int32", GLOO_RS_INT32),
    ("uint32", GLOO_RS_UINT32),
    ("int64", GLOO_RS_INT64),
    ("uint64", GLOO_RS_UINT64),
    ("float16", GLOO_RS_FLOAT16),
    ("bfloat16", GLOO_RS_BFLOAT16),
    ("float32", GLOO_RS_FLOAT32),
    ("float64", GLOO_RS_FLOAT64),
    ("complex64", GLOO_RS_COMPLEX64),
    ("complex128", GLOO_RS_COMPLEX128),
    ("bool", GLOO_RS_BOOL),
];

/// The type of this name.
pub fn type_of_name(py: Python<'_>, name: &str) -> PyResult<gloo_rs_data_type_t> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, data_type)| *data_type).ok_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        invalid(py, "", &format!("dtype is {name:?}; the types are {}", known.join(", ")))
    })
}

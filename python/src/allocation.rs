//! Memory of a context, for Python's buffer protocol.

use crate::abi::*;
use crate::context::Context;
use crate::error::{check, detached};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};

/// Memory of `Context.alloc`, with the buffer protocol. It is freed when the last object that uses it is.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Allocation {
    memory: *mut c_void,
    bytes: usize,
    context: Py<Context>,
}

// SAFETY: an address of memory that any thread may use.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `bytes` of memory of a context.
    pub fn of(py: Python<'_>, context: Py<Context>, bytes: usize) -> PyResult<Self> {
        let mut memory = std::ptr::null_mut();
        let handle = context.get().handle();
        // SAFETY: the handle lives.
        check(py, detached(py, || unsafe { gloo_rs_alloc(handle, bytes, &mut memory) }))?;
        Ok(Self { memory, bytes, context })
    }
}

#[pymethods]
impl Allocation {
    fn __len__(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// The interpreter calls it with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: the memory is that of this object, to which the view holds a reference.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.memory, this.bytes as isize, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the memory is this context's, and no view of it is left. It can only fail for other memory.
        unsafe { gloo_rs_dealloc(self.context.get().handle(), self.memory) };
    }
}

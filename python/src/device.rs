//! Devices, and what the library says of itself.

use crate::abi::*;
use crate::error::{check, text_of};
use crate::handle::Handle;
use crate::options::with_device_options;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The addresses of this host on which this process accepts connections.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Device(Handle<gloo_rs_device_t>);

impl Device {
    pub fn create(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        with_device_options(options, |options| {
            // SAFETY: the options and what they point to live until the call returns.
            Handle::create(py, gloo_rs_device_destroy, |device| unsafe { gloo_rs_device_create(options, device) })
                .map(Self)
        })
    }

    pub fn handle(&self) -> *mut gloo_rs_device_t {
        self.0.get()
    }
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Self::create(py, options)
    }

    /// The address that peers connect to; empty while the device does not listen.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        // SAFETY: `copied` passes a buffer and its capacity.
        copied(py, |buffer, capacity, needed| unsafe {
            gloo_rs_device_address(self.0.get(), buffer.cast(), capacity, needed)
        })
        .map(text_without_nul)
    }

    /// The network interface with that address; empty if none has it.
    #[getter]
    fn interface(&self, py: Python<'_>) -> PyResult<String> {
        // SAFETY: as above.
        copied(py, |buffer, capacity, needed| unsafe {
            gloo_rs_device_interface(self.0.get(), buffer.cast(), capacity, needed)
        })
        .map(text_without_nul)
    }

    /// The `gloo_rs_device_t *` of the C ABI, for code in C or C++ in this process; valid as long as this object.
    #[getter]
    fn handle_address(&self) -> usize {
        self.0.get().expose_provenance()
    }
}

/// What a function of the library copies into a buffer, once it has said how long it is.
pub fn copied(py: Python<'_>, copy: impl Fn(*mut u8, usize, *mut usize) -> gloo_rs_status_t) -> PyResult<Vec<u8>> {
    let mut needed = 0;
    check(py, copy(std::ptr::null_mut(), 0, &mut needed))?;
    let mut bytes = vec![0; needed];
    check(py, copy(bytes.as_mut_ptr(), bytes.len(), &mut needed))?;
    bytes.truncate(needed);
    Ok(bytes)
}

/// A text of the library, without the NUL byte at its end.
pub fn text_without_nul(mut bytes: Vec<u8>) -> String {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The version of the library that this process runs with.
#[pyfunction]
pub fn library_version() -> String {
    // SAFETY: a static string.
    text_of(unsafe { gloo_rs_version() })
}

/// The features of the library that this process runs with.
#[pyfunction]
pub fn built_features() -> Vec<String> {
    // SAFETY: a static string.
    text_of(unsafe { gloo_rs_built_features() }).split(',').map(str::to_owned).collect()
}

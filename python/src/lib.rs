//! `gloo_rs._native`: the library's objects as classes of Python, over the C ABI of `libgloo_rs.so`. The package around
//! it, in `python/gloo_rs/`, has the exceptions and enumerations. docs/python.md is its manual.
//!
//! Every call that can wait for another rank, or that copies or combines data, is made without the interpreter's lock.

// The header's names and types, as bindgen writes them.
#[allow(missing_docs, non_camel_case_types, dead_code, clippy::all)]
mod abi;
mod allocation;
mod arguments;
mod callback;
mod collective;
mod context;
mod counters;
mod custom_store;
mod device;
mod dlpack;
mod error;
mod group;
mod handle;
mod interrupt;
mod memory;
mod message;
mod options;
mod pair;
mod place;
mod queue;
mod request;
mod store;

/// The module.
///
/// It needs no global lock: its classes are frozen, and what changes in them has locks of its own.
#[pyo3::pymodule(name = "_native", gil_used = false)]
mod native {
    #[pymodule_export]
    use crate::allocation::Allocation;
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::counters::prometheus_text;
    #[pymodule_export]
    use crate::device::{Device, built_features, library_version};
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::message::{UnboundBuffer, remote_key_parse};
    #[pymodule_export]
    use crate::pair::{Buffer, Pair};
    #[pymodule_export]
    use crate::queue::{Entry, Queue};
    #[pymodule_export]
    use crate::request::{Request, reduce_local, wait_all, wait_any};
    #[pymodule_export]
    use crate::store::{Store, launch_from_env, local_rank_from_env};

    use pyo3::exceptions::PyImportError;
    use pyo3::prelude::*;

    /// Refuses subinterpreters: the classes of exceptions, which all share, are objects of one interpreter.
    #[pymodule_init]
    fn init(_: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: this thread has the lock of an interpreter.
        let id = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
        if id == 0 { Ok(()) } else { Err(PyImportError::new_err("gloo_rs does not serve subinterpreters")) }
    }
}

//! Stores that are objects of Python.

use crate::abi::*;
use crate::arguments::seconds;
use crate::store::Store;
use pyo3::exceptions::{PyKeyError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::{CStr, c_char, c_void};

/// A store whose calls are methods of `object`, with the names and arguments of [`Store`]'s own. Any thread calls them.
pub fn create(py: Python<'_>, object: Py<PyAny>) -> PyResult<Store> {
    // SAFETY: a number, pointers and functions, which may all be zero; the function writes no more than the size.
    let mut callbacks: gloo_rs_store_callbacks_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { gloo_rs_store_callbacks_init(&mut callbacks, size_of::<gloo_rs_store_callbacks_t>()) };
    callbacks.set = Some(set);
    callbacks.get = Some(get);
    callbacks.wait = Some(wait);
    callbacks.add = Some(add);
    callbacks.remove = Some(remove);
    callbacks.destroy = Some(destroy);
    let user = Box::into_raw(Box::new(object));
    callbacks.user = user.cast();
    // SAFETY: the functions are those of the header, and `destroy` frees what `user` points to.
    let store = Store::create(py, |store| unsafe { gloo_rs_store_create_callbacks(&callbacks, store) });
    if store.is_err() {
        // SAFETY: the library does not call `destroy` if it has made no store.
        drop(unsafe { Box::from_raw(user) });
    }
    store
}

/// Makes a call of the object. What it raises cannot pass through the library: Python's hook for such exceptions gets
/// it, unless it says that the time is over.
///
/// # Safety
/// `user` is that of `create`, and has not been destroyed.
unsafe fn call(user: *mut c_void, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) -> gloo_rs_status_t {
    let called = Python::try_attach(|py| {
        // SAFETY: by the contract.
        let object = unsafe { &*user.cast_const().cast::<Py<PyAny>>() }.bind(py);
        match call(object) {
            Ok(()) => GLOO_RS_OK,
            Err(error) if error.is_instance_of::<PyTimeoutError>(py) => GLOO_RS_ERROR_TIMEOUT,
            Err(error) if error.is_instance_of::<PyKeyError>(py) => GLOO_RS_ERROR_NOT_FOUND,
            Err(error) => {
                error.write_unraisable(py, Some(object));
                GLOO_RS_ERROR_CALLBACK
            }
        }
    });
    // The interpreter is ending.
    called.unwrap_or(GLOO_RS_ERROR_CALLBACK)
}

/// # Safety
/// A text of the library.
unsafe fn name(key: *const c_char) -> String {
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(key) }.to_string_lossy().into_owned()
}

extern "C" fn set(key: *const c_char, value: *const c_void, bytes: usize, user: *mut c_void) -> gloo_rs_status_t {
    // SAFETY: by the header, key and value are valid until this returns, and `user` is that of `create`.
    unsafe {
        call(user, |object| {
            let value = if bytes == 0 { &[] } else { std::slice::from_raw_parts(value.cast(), bytes) };
            object.call_method1("set", (name(key), PyBytes::new(object.py(), value))).map(drop)
        })
    }
}

extern "C" fn get(key: *const c_char, timeout_ms: i64, sink: *mut c_void, user: *mut c_void) -> gloo_rs_status_t {
    let mut returned = GLOO_RS_OK;
    // SAFETY: as in `set`.
    let called = unsafe {
        call(user, |object| {
            let value = object.call_method1("get", (name(key), seconds(timeout_ms)))?;
            let value: &[u8] = value.extract()?;
            returned = gloo_rs_store_return_value(sink, value.as_ptr().cast(), value.len());
            Ok(())
        })
    };
    if called == GLOO_RS_OK { returned } else { called }
}

extern "C" fn wait(keys: *const *const c_char, n: usize, timeout_ms: i64, user: *mut c_void) -> gloo_rs_status_t {
    // SAFETY: as in `set`, and there are `n` keys.
    unsafe {
        call(user, |object| {
            let keys = if n == 0 { &[] } else { std::slice::from_raw_parts(keys, n) };
            let keys: Vec<String> = keys.iter().map(|key| name(*key)).collect();
            object.call_method1("wait", (keys, seconds(timeout_ms))).map(drop)
        })
    }
}

extern "C" fn add(key: *const c_char, amount: i64, sum: *mut i64, user: *mut c_void) -> gloo_rs_status_t {
    // SAFETY: as in `set`, and there is room for the sum.
    unsafe {
        call(user, |object| {
            *sum = object.call_method1("add", (name(key), amount))?.extract()?;
            Ok(())
        })
    }
}

extern "C" fn remove(key: *const c_char, existed: *mut bool, user: *mut c_void) -> gloo_rs_status_t {
    // SAFETY: as in `set`, and there is room for the result.
    unsafe {
        call(user, |object| {
            *existed = object.call_method1("delete", (name(key),))?.extract()?;
            Ok(())
        })
    }
}

extern "C" fn destroy(user: *mut c_void) {
    // Objects can be dropped with an interpreter only; where it is ending, nobody misses their memory.
    // SAFETY: this is the last call with `user`, which `create` made.
    let _ = Python::try_attach(|_| drop(unsafe { Box::from_raw(user.cast::<Py<PyAny>>()) }));
}

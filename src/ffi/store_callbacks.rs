//! Stores that the caller implements.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::Arc;

use super::guard::guard;
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use super::store::{self, gloo_rs_store_t};
use crate::rendezvous::{CallbackStore, StoreCallbacks, callback};

/// The functions of a store that the caller implements. Initialise with gloo_rs_store_callbacks_init. Set missing
/// functions to NULL.
///
/// All functions return a status: GLOO_RS_OK, GLOO_RS_ERROR_TIMEOUT if the timeout expired, or the number of another
/// error. The threads that use the store call them with `user`, possibly several at once. They must not throw or
/// longjmp. Their pointer arguments are valid only during the call. Their `timeout_ms` is never negative: 0 asks once,
/// and GLOO_RS_TIMEOUT_INFINITE never expires.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_store_callbacks_t {
    /// sizeof(gloo_rs_store_callbacks_t).
    pub struct_size: usize,
    /// Whether these functions treat a `timeout_ms` of 0 as no timeout, as Gloo's stores do. If so, they are never
    /// called with 0. The library then cannot ask the store once: the error of a failed connect does not name the
    /// missing ranks, and gloo_rs_store_get and others fail with GLOO_RS_ERROR_UNSUPPORTED if their timeout is 0.
    pub waits_block: MaybeUninit<bool>,
    /// Passed to every function.
    pub user: *mut c_void,
    /// Sets the value of `key` to the `bytes` bytes at `value`. Replaces an existing value. Required.
    pub set: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            value: *const c_void,
            bytes: usize,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Waits until `key` has a value, and passes the value, with `sink`, to gloo_rs_store_return_value before it
    /// returns. Required.
    pub get: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            timeout_ms: i64,
            sink: *mut c_void,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Waits until all `n` `keys` have values. If NULL, `get` is called for each.
    pub wait: Option<
        unsafe extern "C" fn(
            keys: *const *const c_char,
            n: usize,
            timeout_ms: i64,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Waits until all `n` `keys` have values, and passes the values, with `sink`, to gloo_rs_store_return_value: one
    /// per key, in the order of `keys`. If NULL, `wait` and `get` are called.
    pub multi_get: Option<
        unsafe extern "C" fn(
            keys: *const *const c_char,
            n: usize,
            timeout_ms: i64,
            sink: *mut c_void,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Sets the value of each `keys[i]`, with i from 0 to `n` - 1, to the `bytes[i]` bytes at `values[i]`. If NULL,
    /// `set` is called for each.
    pub multi_set: Option<
        unsafe extern "C" fn(
            keys: *const *const c_char,
            values: *const *const c_void,
            bytes: *const usize,
            n: usize,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Adds `amount` to the decimal integer at `key`, which counts as 0 if the key has no value, and sets `*sum` to the
    /// result. Atomic. If NULL, the store does not support addition.
    pub add: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            amount: i64,
            sum: *mut i64,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Appends the `bytes` bytes at `value` to the value of `key`, which counts as empty if the key has none. Atomic.
    /// If NULL, the store does not support appending.
    pub append: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            value: *const c_void,
            bytes: usize,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Removes `key`, and sets `*existed` to whether the key had a value. If NULL, the store does not support deletion.
    pub remove: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            existed: *mut bool,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Called once, after the last call of the other functions, when the store and its prefix stores are destroyed. May
    /// be NULL.
    pub destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_store_callbacks_t {
    const NAME: &'static str = "gloo_rs_store_callbacks_t";
    const REQUIRED: usize = offset_of!(Self, get) + size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Sets all functions to NULL. `struct_size` is sizeof(gloo_rs_store_callbacks_t); at most that many bytes are written.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_callbacks_init(callbacks: *mut gloo_rs_store_callbacks_t, struct_size: usize) {
    // SAFETY: the header demands that `callbacks` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(callbacks, struct_size) }
}

/// Creates a store from functions of the caller. The struct is copied. `destroy` in it is called when the store is no
/// longer used; it is not called if this function fails. The caller destroys `*store` with gloo_rs_store_destroy; it is
/// NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_callbacks(
    callbacks: *const gloo_rs_store_callbacks_t,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_callbacks", || {
        // SAFETY: the header demands that `store` is NULL or valid for a write.
        let out = unsafe { Out::handle(store, "store") }?;
        pointer::check(callbacks, "callbacks")?;
        // SAFETY: the header demands that `callbacks` is NULL or valid for reads of its `struct_size` bytes.
        let given = unsafe { options::read(callbacks) }?;
        const { assert!(size_of::<StoreCallbacks>() == size_of::<gloo_rs_store_callbacks_t>()) };
        // SAFETY: the structs differ only in the functions' return type, an enumeration or its number, which C returns
        // alike.
        let callbacks = unsafe { (&raw const given).cast::<StoreCallbacks>().read() };
        // SAFETY: the header states the types and the contract of the functions, which `CallbackStore::new` demands.
        store::create(Arc::new(unsafe { CallbackStore::new(callbacks) }?), None, out);
        Ok(())
    })
}

/// Passes a value from `get` or `multi_get` of gloo_rs_store_callbacks_t to the library, which copies the `bytes` bytes
/// at `value`. Only these functions may call it, on the thread that called them, with the `sink` that they got, once
/// per key in the order of keys. If there are fewer or more calls, the operation fails with GLOO_RS_ERROR_CALLBACK.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_return_value(
    sink: *mut c_void,
    value: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_return_value", || {
        // SAFETY: the header demands that `sink` is the one that the calling function got, and `value` is NULL or valid
        // for reads of `bytes`.
        unsafe { callback::return_value(sink, value, bytes) }
    })
}

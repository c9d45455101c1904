//! Stores made of the caller's functions.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::Arc;

use super::guard::guard;
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use super::store::{self, gloo_rs_store_t};
use crate::rendezvous::{CallbackStore, StoreCallbacks, callback};

/// The functions of a store of the caller's. Set up by gloo_rs_store_callbacks_init; functions that are missing are NULL.
///
/// All return a status: GLOO_RS_OK, GLOO_RS_ERROR_TIMEOUT when time is up, or another error's number. They are called on the
/// threads that use the store, possibly on several at once, get `user`, and must not let exceptions out. Pointers that they
/// get are valid during the call only. Their `timeout_ms` is never negative: 0 asks once, and
/// GLOO_RS_TIMEOUT_INFINITE has no end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_store_callbacks_t {
    /// sizeof(gloo_rs_store_callbacks_t).
    pub struct_size: usize,
    /// Whether a `timeout_ms` of 0 means no timeout to these functions, as to Gloo's stores. They are then never called with 0. So the
    /// library cannot ask such a store once: the error of a failed connect does not name the ranks that are missing, and
    /// gloo_rs_store_get and others with a timeout of 0 fail with GLOO_RS_ERROR_UNSUPPORTED.
    pub waits_block: MaybeUninit<bool>,
    /// Passed to every function.
    pub user: *mut c_void,
    /// Sets `key` to the `bytes` at `value`, replacing what it has. Required.
    pub set: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            value: *const c_void,
            bytes: usize,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Waits until `key` has a value, and passes it to gloo_rs_store_return_value with `sink` before it returns. Required.
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
    /// Waits until all `n` `keys` have values, and passes each to gloo_rs_store_return_value with `sink`, one for each key, in their
    /// order. If NULL, `wait` and `get` are called.
    pub multi_get: Option<
        unsafe extern "C" fn(
            keys: *const *const c_char,
            n: usize,
            timeout_ms: i64,
            sink: *mut c_void,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Sets each of the `n` `keys` to the `bytes[i]` bytes at `values[i]`. If NULL, `set` is called for each.
    pub multi_set: Option<
        unsafe extern "C" fn(
            keys: *const *const c_char,
            values: *const *const c_void,
            bytes: *const usize,
            n: usize,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Adds `amount` to the decimal integer at `key`, 0 if it has no value, atomically, and sets `*sum` to the result. If
    /// NULL, the store cannot add.
    pub add: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            amount: i64,
            sum: *mut i64,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Appends the `bytes` at `value` to the value of `key`, empty if it has none, atomically. If NULL, the store cannot
    /// append.
    pub append: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            value: *const c_void,
            bytes: usize,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Removes `key`, and sets `*existed` to whether it was there. If NULL, the store cannot delete.
    pub remove: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            existed: *mut bool,
            user: *mut c_void,
        ) -> MaybeUninit<gloo_rs_status_t>,
    >,
    /// Called once, when nothing uses the store any more. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_store_callbacks_t {
    const NAME: &'static str = "gloo_rs_store_callbacks_t";
    const REQUIRED: usize = offset_of!(Self, get) + size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Sets all functions to NULL. `struct_size` is sizeof(gloo_rs_store_callbacks_t). NULL is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_callbacks_init(callbacks: *mut gloo_rs_store_callbacks_t, struct_size: usize) {
    // SAFETY: the caller vouches for `struct_size` bytes at `callbacks`.
    unsafe { options::init(callbacks, struct_size) }
}

/// A store made of the caller's functions, which are copied. On success, `destroy` among them is called when nothing uses
/// the store any more; on failure it is not, and `*store` is NULL. The caller owns the result and ends it with
/// gloo_rs_store_destroy.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_callbacks(
    callbacks: *const gloo_rs_store_callbacks_t,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_callbacks", || {
        // SAFETY: the header's rules for pointers.
        let out = unsafe { Out::handle(store, "store") }?;
        pointer::check(callbacks, "callbacks")?;
        // SAFETY: as above.
        let given = unsafe { options::read(callbacks) }?;
        const { assert!(size_of::<StoreCallbacks>() == size_of::<gloo_rs_store_callbacks_t>()) };
        // SAFETY: the same struct, but that a status is a number there: C functions that return an enumeration return its number.
        let callbacks = unsafe { (&raw const given).cast::<StoreCallbacks>().read() };
        // SAFETY: the header tells what the functions must keep to.
        store::create(Arc::new(unsafe { CallbackStore::new(callbacks) }?), None, out);
        Ok(())
    })
}

/// Hands a value that a `get` or `multi_get` of gloo_rs_store_callbacks_t found to the library, which copies it: `sink` is what the
/// function got, `value` has `bytes` bytes. Only to be called by that function, on its thread, once for each key, in the order of
/// keys. Fewer or more calls fail what the library wanted with GLOO_RS_ERROR_CALLBACK.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_return_value(
    sink: *mut c_void,
    value: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_return_value", || {
        // SAFETY: the header's rules for pointers.
        unsafe { callback::return_value(sink, value, bytes) }
    })
}

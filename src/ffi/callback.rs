//! Callbacks: functions of the program that are called when a request's call or a buffer's operation has ended.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use super::guard::guard;
use super::handle;
use super::queue::{entry_of, gloo_rs_queue_entry_t};
use super::request::gloo_rs_request_t;
use super::status::gloo_rs_status_t;
use super::unbound_buffer::gloo_rs_unbound_buffer_t;
use crate::context::{Callback, call_back_buffer, call_back_request};
use crate::error::{Error, Result};

/// A function that is called when the call of a request, or an operation of an unbound buffer, has ended: once for each
/// end, with what gloo_rs_queue_wait_entry would have given. `entry->status` is what the wait would have returned; if it
/// is not GLOO_RS_OK, that failure is the calling thread's last error. `entry->user` is 0. The entry is valid during the
/// call. The buffers are the program's again, and the request is inactive.
///
/// It is called on a thread of the device, with all signals blocked and no lock held, also while no thread of the program
/// is in the library. It may call any function: it may wait, start the request again, free it, abort or close its context,
/// and destroy what it has ended for, the device included. Callbacks of a device are called one after the other, in the
/// order of the ends, as long as each returns within a millisecond. If one has not, and there are more, another thread
/// calls these, so callbacks may wait for each other and for other ranks; if the system has no more threads, the others
/// have to wait. Threads that are not needed end after a second.
///
/// It must not throw, nor longjmp. A child that it forks must not return from it.
pub type gloo_rs_callback_fn_t = Option<unsafe extern "C" fn(entry: *const gloo_rs_queue_entry_t, user: *mut c_void)>;

/// The caller's functions.
struct Functions {
    callback: unsafe extern "C" fn(*const gloo_rs_queue_entry_t, *mut c_void),
    user: *mut c_void,
    destroy: OnceLock<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header says that threads of the device call the functions, with this pointer.
unsafe impl Send for Functions {}
// SAFETY: the header says that several threads may call `callback` at once.
unsafe impl Sync for Functions {}

impl Functions {
    /// Those of the caller, with `set`, which takes over what calls `callback`. `destroy` is not called if this fails.
    fn set(
        callback: gloo_rs_callback_fn_t,
        user: *mut c_void,
        destroy: Option<unsafe extern "C" fn(*mut c_void)>,
        set: impl FnOnce(Callback) -> Result<()>,
    ) -> Result<()> {
        let callback = callback.ok_or_else(|| Error::invalid("callback is NULL"))?;
        let functions = Arc::new(Self { callback, user, destroy: OnceLock::new() });
        let own = functions.clone();
        set(Arc::new(move |completion| {
            let mut entry = entry_of("callback", completion).expect("ranks fit into 32 bits");
            entry.struct_size = size_of::<gloo_rs_queue_entry_t>();
            // SAFETY: the function has this type; the header demands that `user` is valid until `destroy` is called,
            // which follows the drop of this closure. The entry lives until the function has returned.
            unsafe { (own.callback)(&entry, own.user) }
        }))?;
        destroy.map(|destroy| functions.destroy.set(destroy));
        Ok(())
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy.get() {
            // SAFETY: the function has this type; this is its only call, and no callback that uses `user` is left.
            unsafe { destroy(self.user) }
        }
    }
}

/// Has `callback` called with `user` at the end of each call of a request from now on: of the one that is in progress or
/// has ended, if the request is active, and of those that gloo_rs_start or a group starts later. It is set once, in place
/// of waits, tests and queues, which are refused with GLOO_RS_ERROR_INVALID_OPERATION. Calls go on while nobody waits, and
/// their own timeouts run. Reduction functions of the caller are called by the same threads.
///
/// gloo_rs_request_free of an active request detaches it: the call goes on, and the callback says when the buffers are
/// the program's again. gloo_rs_context_close ends calls with GLOO_RS_ERROR_CLOSED, and gloo_rs_context_abort with
/// GLOO_RS_ERROR_ABORTED, of which the callbacks are told; a context that is destroyed lives on as long as its requests.
/// No call waits for a callback that runs, not even the destruction of the device. A child by fork has no callbacks, nor
/// the threads: there, this is refused as all calls are.
///
/// `destroy` is NULL, or called once with `user` when the callback has returned and will not be called any more: after
/// the request was freed and its last call has ended. It may call what a callback may. It is not called if this call
/// fails: with GLOO_RS_ERROR_INVALID_OPERATION if the request has a callback or is attached to a queue, and with
/// GLOO_RS_ERROR_IO if the device cannot start a thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_request_set_callback(
    request: *mut gloo_rs_request_t,
    callback: gloo_rs_callback_fn_t,
    user: *mut c_void,
    destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
) -> gloo_rs_status_t {
    guard("gloo_rs_request_set_callback", || {
        // SAFETY: the header demands that `request` is NULL or a live handle.
        let request = unsafe { handle::get(request, "request") }?;
        Functions::set(callback, user, destroy, |callback| call_back_request(request, callback))
    })
}

/// Has `callback` called with `user` at the end of each send, put, get and receive of an unbound buffer from now on, as
/// gloo_rs_request_set_callback does; also of those that have begun or ended before, if no wait has returned for them.
/// `entry->kind` tells which it is, and `entry->rank` the peer. Waits for the buffer and queues are refused meanwhile. When
/// the buffer has been destroyed, the callback is called no more, except for ends that its threads had taken before: after
/// the last one, `destroy` is called. Operations have no timeout; a lost connection, or the end of the context, ends them.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_set_callback(
    buffer: *mut gloo_rs_unbound_buffer_t,
    callback: gloo_rs_callback_fn_t,
    user: *mut c_void,
    destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_set_callback", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        let buffer = unsafe { handle::get(buffer, "buffer") }?;
        Functions::set(callback, user, destroy, |callback| call_back_buffer(&buffer.buffer, callback))
    })
}

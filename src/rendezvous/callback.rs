//! A store made of the caller's functions, behind the C ABI's conventions.

use std::ffi::{CString, c_char, c_void};
use std::mem::{offset_of, size_of};
use std::time::Duration;

use super::Store;
use super::support::{Deadline, NAMED_KEYS, check_key, check_value, no_value, quote, seconds};
use crate::error::{Error, ErrorKind, Result, first_few};

/// The functions of a store of the caller's, each of which gets `user` last.
///
/// All return a status: 0 for success, `GLOO_RS_ERROR_TIMEOUT` when time is up, or another error's number. They are called
/// on the threads that use the store, possibly on several at the same time, and must not throw. Pointers that they get are
/// valid during the call only; keys end with a NUL byte. `timeout_ms` is never negative; 0 asks once, and `INT64_MAX` has no
/// end. A field beyond `struct_size` counts as NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreCallbacks {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// Given to every function; the library does not look at it.
    pub user: *mut c_void,
    /// Sets `key` to `bytes` bytes at `value`, replacing what was there. Required.
    pub set:
        Option<unsafe extern "C" fn(key: *const c_char, value: *const c_void, bytes: usize, user: *mut c_void) -> u32>,
    /// Waits until `key` has a value, and passes it to `gloo_rs_store_return_value(sink, ...)` before it returns. Required.
    pub get:
        Option<unsafe extern "C" fn(key: *const c_char, timeout_ms: i64, sink: *mut c_void, user: *mut c_void) -> u32>,
    /// Waits until all `count` keys have values. If NULL, `get` is called for each.
    pub wait: Option<
        unsafe extern "C" fn(keys: *const *const c_char, count: usize, timeout_ms: i64, user: *mut c_void) -> u32,
    >,
    /// Adds `amount` to the decimal integer at `key` (absent: 0) atomically and stores the sum in `*sum`.
    /// If NULL, the store cannot add.
    pub add: Option<unsafe extern "C" fn(key: *const c_char, amount: i64, sum: *mut i64, user: *mut c_void) -> u32>,
    /// Appends `bytes` bytes at `value` to the value of `key` (absent: empty) atomically. If NULL, the store cannot append.
    pub append:
        Option<unsafe extern "C" fn(key: *const c_char, value: *const c_void, bytes: usize, user: *mut c_void) -> u32>,
    /// Removes `key`, and stores in `*existed` whether it was there. If NULL, the store cannot delete.
    pub remove: Option<unsafe extern "C" fn(key: *const c_char, existed: *mut bool, user: *mut c_void) -> u32>,
    /// Called once, when the store is not used any more. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// Where a `get` callback puts its value. C code knows it as a `void *`.
#[derive(Default)]
struct Sink(Option<Vec<u8>>);

/// Hands a `get` callback's value to the library, which copies it. The last call counts. The C ABI exports this as
/// `gloo_rs_store_return_value`. Fails if `sink` is null, or `value` is null and `bytes` is not 0.
///
/// # Safety
/// `sink` is null, or what the running callback got; `value` is valid for reads of `bytes`.
pub unsafe fn return_value(sink: *mut c_void, value: *const c_void, bytes: usize) -> Result<()> {
    if sink.is_null() || (value.is_null() && bytes > 0) || isize::try_from(bytes).is_err() {
        return Err(Error::invalid(format!(
            "gloo_rs_store_return_value got a sink {sink:p} and {bytes} bytes at {value:p}"
        )));
    }
    let value = match bytes {
        0 => Vec::new(),
        // SAFETY: not null here, and valid for `bytes` by the contract.
        _ => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) }.to_vec(),
    };
    // SAFETY: `get` made this pointer from its own Sink, which it does not touch while the callback runs.
    unsafe { (*sink.cast::<Sink>()).0 = Some(value) };
    Ok(())
}

/// A store made of the caller's functions. Where one is missing that others can stand in for, they do; where not, calls fail
/// with `Unsupported` and name it.
pub struct CallbackStore {
    callbacks: StoreCallbacks,
    set: unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void) -> u32,
    get: unsafe extern "C" fn(*const c_char, i64, *mut c_void, *mut c_void) -> u32,
}

// SAFETY: who makes a store promises that its functions may be called with `user` on any thread, and on several at once.
unsafe impl Send for CallbackStore {}
// SAFETY: as above; the store itself never changes.
unsafe impl Sync for CallbackStore {}

impl CallbackStore {
    /// A store of the functions in `callbacks`, which are copied. Fails, without calling `destroy`, if `callbacks` is null or
    /// too short, or lacks `set` or `get`.
    ///
    /// # Safety
    /// `callbacks` is null, or aligned and points to `struct_size` readable bytes. Its functions keep to [`StoreCallbacks`], and may be
    /// called with `user` on any thread, and on several at once, until `destroy` is called.
    pub unsafe fn new(callbacks: *const StoreCallbacks) -> Result<Self> {
        let needed = offset_of!(StoreCallbacks, get) + size_of::<usize>();
        if callbacks.is_null() {
            return Err(Error::invalid("the callbacks for a store are NULL"));
        }
        // SAFETY: not null, and a caller that fills in struct_size has at least that field.
        let struct_size = unsafe { (*callbacks).struct_size };
        if struct_size < needed {
            return Err(Error::invalid(format!(
                "the callbacks for a store have struct_size {struct_size}, and need {needed} at least"
            )));
        }
        let mut whole = StoreCallbacks {
            struct_size,
            user: std::ptr::null_mut(),
            set: None,
            get: None,
            wait: None,
            add: None,
            append: None,
            remove: None,
            destroy: None,
        };
        // Every field has the size of a pointer: only whole ones are taken.
        let known = struct_size.min(size_of::<StoreCallbacks>()) / size_of::<usize>() * size_of::<usize>();
        // SAFETY: the source has struct_size readable bytes, `whole` has its own size, and `known` exceeds neither. Any
        // bytes that C writes into these fields are valid for them: integers, and pointers to functions or NULL.
        unsafe { std::ptr::copy_nonoverlapping(callbacks.cast::<u8>(), (&raw mut whole).cast::<u8>(), known) };
        match (whole.set, whole.get) {
            (Some(set), Some(get)) => Ok(Self { callbacks: whole, set, get }),
            (None, _) => Err(Error::invalid("the callbacks for a store lack `set`")),
            (_, None) => Err(Error::invalid("the callbacks for a store lack `get`")),
        }
    }

    fn c_key(&self, key: &str) -> Result<CString> {
        check_key(|| self.describe(), key)?;
        CString::new(key).map_err(|_| Error::invalid(format!("{}: {key:?} holds a NUL byte", self.describe())))
    }

    /// What a callback's status means.
    fn outcome(&self, callback: &str, keys: &[&str], status: u32, since: &Deadline) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let kind = ErrorKind::of_number(status).unwrap_or(ErrorKind::Callback);
        let elapsed = since.elapsed();
        if kind == ErrorKind::Timeout && keys.len() == 1 {
            return Err(no_value(&self.describe(), 1, 1, keys.iter().copied(), elapsed));
        }
        let message = format!(
            "{}: the callback `{callback}` returned status {status} ({kind:?}) for {} after {}",
            self.describe(),
            first_few(keys.iter().map(|key| quote(key)), NAMED_KEYS, ", "),
            seconds(elapsed)
        );
        Err(Error::new(kind, message))
    }

    fn unsupported(&self, callback: &str, key: &str) -> Error {
        let message =
            format!("{}: its maker gave no callback `{callback}`, needed for {}", self.describe(), quote(key));
        Error::new(ErrorKind::Unsupported, message)
    }

    fn get_by(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        let c_key = self.c_key(key)?;
        let mut sink = Sink::default();
        // SAFETY: the functions' contract (`new`); key and sink live through the call.
        let status = unsafe {
            (self.get)(
                c_key.as_ptr(),
                milliseconds(deadline.remaining()),
                (&raw mut sink).cast::<c_void>(),
                self.callbacks.user,
            )
        };
        self.outcome("get", &[key], status, deadline)?;
        sink.0.ok_or_else(|| {
            let message =
                format!("{}: the callback `get` succeeded without a value for {}", self.describe(), quote(key));
            Error::new(ErrorKind::Callback, message)
        })
    }
}

impl Drop for CallbackStore {
    fn drop(&mut self) {
        if let Some(destroy) = self.callbacks.destroy {
            // SAFETY: the functions' contract; nothing calls any of them afterwards.
            unsafe { destroy(self.callbacks.user) };
        }
    }
}

/// Rounded up, so that a wait is not cut short.
fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

impl Store for CallbackStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let c_key = self.c_key(key)?;
        check_value(|| self.describe(), key, value.len())?;
        let began = Deadline::after(Duration::ZERO);
        // SAFETY: the functions' contract (`new`); key and value live through the call.
        let status =
            unsafe { (self.set)(c_key.as_ptr(), value.as_ptr().cast::<c_void>(), value.len(), self.callbacks.user) };
        self.outcome("set", &[key], status, &began)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.get_by(key, &Deadline::after(timeout))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let c_keys = keys.iter().map(|key| self.c_key(key)).collect::<Result<Vec<_>>>()?;
        let deadline = Deadline::after(timeout);
        let Some(wait) = self.callbacks.wait else {
            return keys.iter().try_for_each(|key| self.get_by(key, &deadline).map(drop));
        };
        if keys.is_empty() {
            return Ok(());
        }
        let pointers: Vec<_> = c_keys.iter().map(|key| key.as_ptr()).collect();
        // SAFETY: the functions' contract (`new`); keys and pointers live through the call.
        let status = unsafe { wait(pointers.as_ptr(), pointers.len(), milliseconds(timeout), self.callbacks.user) };
        self.outcome("wait", keys, status, &deadline)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let c_key = self.c_key(key)?;
        let add = self.callbacks.add.ok_or_else(|| self.unsupported("add", key))?;
        let began = Deadline::after(Duration::ZERO);
        let mut sum = 0;
        // SAFETY: the functions' contract (`new`); key and sum live through the call.
        let status = unsafe { add(c_key.as_ptr(), amount, &mut sum, self.callbacks.user) };
        self.outcome("add", &[key], status, &began)?;
        Ok(sum)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let c_key = self.c_key(key)?;
        check_value(|| self.describe(), key, value.len())?;
        let append = self.callbacks.append.ok_or_else(|| self.unsupported("append", key))?;
        let began = Deadline::after(Duration::ZERO);
        // SAFETY: the functions' contract (`new`); key and value live through the call.
        let status =
            unsafe { append(c_key.as_ptr(), value.as_ptr().cast::<c_void>(), value.len(), self.callbacks.user) };
        self.outcome("append", &[key], status, &began)
    }

    /// Waits for all, then gets one after another; if one is deleted meanwhile, the wait for it goes on.
    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let deadline = Deadline::after(timeout);
        if self.callbacks.wait.is_some() {
            self.wait(keys, timeout)?;
        }
        keys.iter().map(|key| self.get_by(key, &deadline)).collect()
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let c_key = self.c_key(key)?;
        let remove = self.callbacks.remove.ok_or_else(|| self.unsupported("remove", key))?;
        let began = Deadline::after(Duration::ZERO);
        // A byte, since C may write any number into what it takes for a bool.
        let mut existed = 0u8;
        // SAFETY: the functions' contract (`new`); key and flag live through the call, and a bool has the size of a byte.
        let status = unsafe { remove(c_key.as_ptr(), (&raw mut existed).cast::<bool>(), self.callbacks.user) };
        self.outcome("remove", &[key], status, &began)?;
        Ok(existed != 0)
    }

    fn describe(&self) -> String {
        format!("the caller's store {:p}", self.callbacks.user)
    }
}

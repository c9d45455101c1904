//! A store made of the caller's functions, behind the C ABI's conventions.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use super::Store;
use super::support::{Deadline, NAMED_KEYS, check_key, check_value, no_value, quote, seconds};
use crate::error::{Error, ErrorKind, Result, first_few};
use crate::reserve::{try_collect, try_copy, try_reserve};

type Key = *const c_char;
type User = *mut c_void;

/// The functions of a store of the caller's, each of which gets `user` last.
///
/// All return a status: 0 for success, `GLOO_RS_ERROR_TIMEOUT` when time is up, or another error's number. They are
/// called on the threads that use the store, possibly on several at the same time, and must not throw. Pointers that
/// they get are valid during the call only; keys end with a NUL byte. `timeout_ms` is never negative; 0 asks once, and
/// `INT64_MAX` has no end. Values go to [`return_value`] with the `sink`, one for each key, in the order of keys,
/// before the function returns.
///
/// The C ABI's struct has the same layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreCallbacks {
    /// The C ABI's.
    pub struct_size: usize,
    /// A value other than 0 says that a `timeout_ms` of 0 means no timeout to these functions, so that they never get
    /// it.
    pub waits_block: u8,
    /// Given to every function; the library does not look at it.
    pub user: User,
    /// Sets a key to so many bytes at the pointer, replacing what was there. Required.
    pub set: Option<unsafe extern "C" fn(Key, value: *const c_void, bytes: usize, User) -> u32>,
    /// Waits until a key has a value, and returns it by the sink. Required.
    pub get: Option<unsafe extern "C" fn(Key, timeout_ms: i64, sink: *mut c_void, User) -> u32>,
    /// Waits until all keys have values.
    pub wait: Option<unsafe extern "C" fn(*const Key, count: usize, timeout_ms: i64, User) -> u32>,
    /// Waits until all keys have values, and returns them by the sink.
    pub multi_get:
        Option<unsafe extern "C" fn(*const Key, count: usize, timeout_ms: i64, sink: *mut c_void, User) -> u32>,
    /// Sets every key to as many bytes at its pointer as its number says.
    pub multi_set: Option<
        unsafe extern "C" fn(*const Key, values: *const *const c_void, bytes: *const usize, count: usize, User) -> u32,
    >,
    /// Adds to the decimal integer at a key (absent: 0) atomically, and stores the sum.
    pub add: Option<unsafe extern "C" fn(Key, amount: i64, sum: *mut i64, User) -> u32>,
    /// Appends so many bytes to the value of a key (absent: empty) atomically.
    pub append: Option<unsafe extern "C" fn(Key, value: *const c_void, bytes: usize, User) -> u32>,
    /// Removes a key, and stores whether it was there.
    pub remove: Option<unsafe extern "C" fn(Key, existed: *mut bool, User) -> u32>,
    /// Called once, when the store is not used any more.
    pub destroy: Option<unsafe extern "C" fn(User)>,
}

/// Where a callback puts its values. C code knows it as a `void *`.
struct Sink {
    values: Vec<Vec<u8>>,
    /// How many keys the callback has.
    expected: usize,
    /// How many values have come, those included that are too many.
    returned: usize,
    /// Why one of them was not kept.
    failed: Option<Error>,
}

impl Sink {
    fn new(expected: usize) -> Self {
        Self { values: Vec::new(), expected, returned: 0, failed: None }
    }

    fn keep(&mut self, value: &[u8]) -> Result<()> {
        let copy = try_copy(value, "a value from a callback")?;
        try_reserve(&mut self.values, 1, "the values from a callback")?;
        self.values.push(copy);
        Ok(())
    }
}

/// Hands a value that a callback found to the library, which copies it: for each key one, in the order of keys. The C
/// ABI exports this as `gloo_rs_store_return_value`. Fails if `sink` is null, or `value` is null and `bytes` is not 0,
/// or if there is no key left whose value it could be.
///
/// # Safety
/// `sink` is null, or what the running callback got; `value` is valid for reads of `bytes`.
pub unsafe fn return_value(sink: *mut c_void, value: *const c_void, bytes: usize) -> Result<()> {
    if sink.is_null() || (value.is_null() && bytes > 0) || isize::try_from(bytes).is_err() {
        return Err(Error::invalid(format!(
            "gloo_rs_store_return_value got a sink {sink:p} and {bytes} bytes at {value:p}"
        )));
    }
    // SAFETY: the store made this pointer from its own Sink, which it does not touch while the callback runs.
    let sink = unsafe { &mut *sink.cast::<Sink>() };
    sink.returned += 1;
    if sink.returned > sink.expected {
        let text = format!("gloo_rs_store_return_value was called more than once for each of {} keys", sink.expected);
        return Err(Error::new(ErrorKind::InvalidOperation, text));
    }
    let value = match bytes {
        0 => &[],
        // SAFETY: not null here, and valid for `bytes` by the contract.
        _ => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) },
    };
    // The callback may not pass the error on.
    sink.keep(value).inspect_err(|error| sink.failed = Some(error.clone()))
}

/// A store made of the caller's functions. Where one is missing that others can stand in for, they do; where not, calls
/// fail with `Unsupported` and name it.
pub struct CallbackStore {
    callbacks: StoreCallbacks,
    set: unsafe extern "C" fn(Key, *const c_void, usize, User) -> u32,
    get: unsafe extern "C" fn(Key, i64, *mut c_void, User) -> u32,
}

// SAFETY: who makes a store promises that its functions may be called with `user` on any thread, and on several at
// once.
unsafe impl Send for CallbackStore {}
// SAFETY: as above; the store itself never changes.
unsafe impl Sync for CallbackStore {}

impl CallbackStore {
    /// A store of these functions. Fails, without calling `destroy`, if `set` or `get` is missing.
    ///
    /// # Safety
    /// The functions keep to [`StoreCallbacks`], and may be called with `user` on any thread, and on several at once,
    /// until `destroy` is called.
    pub unsafe fn new(callbacks: StoreCallbacks) -> Result<Self> {
        match (callbacks.set, callbacks.get) {
            (Some(set), Some(get)) => Ok(Self { callbacks, set, get }),
            (None, _) => Err(Error::invalid("the callbacks for a store lack `set`")),
            (_, None) => Err(Error::invalid("the callbacks for a store lack `get`")),
        }
    }

    fn waits_block(&self) -> bool {
        self.callbacks.waits_block != 0
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

    /// What a wait of so long tells the functions, of which `left` is left.
    fn milliseconds(&self, left: Duration) -> i64 {
        milliseconds(left).max(i64::from(self.waits_block()))
    }

    /// Refuses to ask once where that cannot be done.
    fn check_wait(&self, timeout: Duration) -> Result<()> {
        if timeout.is_zero() && self.waits_block() {
            let text = format!("{}: its waits block, and cannot end at once: give them time", self.describe());
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(())
    }

    fn get_by(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        let c_key = self.c_key(key)?;
        let values = self.collect("get", &[key], deadline, |timeout, sink| {
            // SAFETY: the functions' contract (`new`); key and sink live through the call.
            unsafe { (self.get)(c_key.as_ptr(), timeout, sink, self.callbacks.user) }
        })?;
        Ok(values.into_iter().next().expect("one value for one key"))
    }

    /// The values of `keys` that `call`, given a timeout and a sink, returns.
    fn collect(
        &self,
        callback: &str,
        keys: &[&str],
        deadline: &Deadline,
        call: impl FnOnce(i64, *mut c_void) -> u32,
    ) -> Result<Vec<Vec<u8>>> {
        let mut sink = Sink::new(keys.len());
        let status = call(self.milliseconds(deadline.remaining()), (&raw mut sink).cast::<c_void>());
        if let Some(error) = sink.failed {
            return Err(self.failed(callback, keys, &error));
        }
        self.outcome(callback, keys, status, deadline)?;
        if sink.returned == sink.expected {
            return Ok(sink.values);
        }
        let message = format!(
            "{}: the callback `{callback}` succeeded and returned {} values for {} keys: {}",
            self.describe(),
            sink.returned,
            sink.expected,
            first_few(keys.iter().map(|key| quote(key)), NAMED_KEYS, ", ")
        );
        Err(Error::new(ErrorKind::Callback, message))
    }

    fn failed(&self, callback: &str, keys: &[&str], error: &Error) -> Error {
        let keys = first_few(keys.iter().map(|key| quote(key)), NAMED_KEYS, ", ");
        error.context(format_args!("{}: the callback `{callback}` for {keys}", self.describe()))
    }

    /// The keys, and the pointers to them, which are valid as long as the keys.
    fn c_keys(&self, keys: &[&str]) -> Result<(Vec<CString>, Vec<Key>)> {
        let c_keys = try_collect(keys.iter().map(|key| self.c_key(key)), KEYS)?;
        let pointers = try_collect(c_keys.iter().map(|key| Ok(key.as_ptr())), KEYS)?;
        Ok((c_keys, pointers))
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

/// What there is no memory for, in errors.
const KEYS: &str = "the keys for a callback";

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
        self.check_wait(timeout)?;
        self.get_by(key, &Deadline::after(timeout))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let Some(wait) = self.callbacks.wait else { return self.multi_get(keys, timeout).map(drop) };
        self.check_wait(timeout)?;
        let (_c_keys, pointers) = self.c_keys(keys)?;
        if keys.is_empty() {
            return Ok(());
        }
        let deadline = Deadline::after(timeout);
        // SAFETY: the functions' contract (`new`); keys and pointers live through the call.
        let status =
            unsafe { wait(pointers.as_ptr(), pointers.len(), self.milliseconds(timeout), self.callbacks.user) };
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

    /// Without a callback for it, waits for all, then gets one after another; if one is deleted meanwhile, the wait for
    /// it goes on.
    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.check_wait(timeout)?;
        let (_c_keys, pointers) = self.c_keys(keys)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let deadline = Deadline::after(timeout);
        let Some(multi_get) = self.callbacks.multi_get else {
            if self.callbacks.wait.is_some() {
                self.wait(keys, timeout)?;
            }
            return try_collect(keys.iter().map(|key| self.get_by(key, &deadline)), "the values from a callback");
        };
        self.collect("multi_get", keys, &deadline, |timeout, sink| {
            // SAFETY: the functions' contract (`new`); keys, pointers and sink live through the call.
            unsafe { multi_get(pointers.as_ptr(), pointers.len(), timeout, sink, self.callbacks.user) }
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let Some(multi_set) = self.callbacks.multi_set.filter(|_| !pairs.is_empty()) else {
            return pairs.iter().try_for_each(|(key, value)| self.set(key, value));
        };
        let keys = try_collect(pairs.iter().map(|(key, _)| Ok(*key)), KEYS)?;
        let (_c_keys, pointers) = self.c_keys(&keys)?;
        pairs.iter().try_for_each(|(key, value)| check_value(|| self.describe(), key, value.len()))?;
        let began = Deadline::after(Duration::ZERO);
        let bytes = try_collect(pairs.iter().map(|(_, value)| Ok(value.len())), KEYS)?;
        let values = try_collect(pairs.iter().map(|(_, value)| Ok(value.as_ptr().cast::<c_void>())), KEYS)?;
        // SAFETY: the functions' contract (`new`); keys, values and the three lists live through the call.
        let status = unsafe {
            multi_set(pointers.as_ptr(), values.as_ptr(), bytes.as_ptr(), pointers.len(), self.callbacks.user)
        };
        self.outcome("multi_set", &keys, status, &began)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let c_key = self.c_key(key)?;
        let remove = self.callbacks.remove.ok_or_else(|| self.unsupported("remove", key))?;
        let began = Deadline::after(Duration::ZERO);
        // A byte, since C may write any number into what it takes for a bool.
        let mut existed = 0u8;
        // SAFETY: the functions' contract (`new`); key and flag live through the call, and a bool has the size of a
        // byte.
        let status = unsafe { remove(c_key.as_ptr(), (&raw mut existed).cast::<bool>(), self.callbacks.user) };
        self.outcome("remove", &[key], status, &began)?;
        Ok(existed != 0)
    }

    fn describe(&self) -> String {
        format!("the caller's store {:p}", self.callbacks.user)
    }
}

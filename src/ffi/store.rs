//! Stores, through which ranks find each other.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::device::{Log, gloo_rs_log_fn_t};
use super::guard::guard;
use super::handle::{self, Handle};
use super::options::{self, Options};
use super::pointer::{self, Malloced, Out};
use super::status::gloo_rs_status_t;
use super::tls::{self, gloo_rs_tls_options_t};
use crate::environment;
use crate::error::{Error, ErrorKind, Result};
use crate::net::admission::ConnectionStatistics;
use crate::rendezvous::tcp::TcpStoreOptions;
use crate::rendezvous::{FileStore, InProcessStore, PrefixStore, Store, TcpStore, url};
use crate::reserve::try_collect;
use crate::secret::JobToken;

/// A key-value store that all ranks of a job can access, and through which they find each other. Keys are non-empty
/// strings of at most 4096 bytes; values are at most 64 MiB of any bytes. Thread-safe.
pub struct gloo_rs_store_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_store_t {
    type Inner = StoreHandle;
    const TAG: u32 = u32::from_ne_bytes(*b"stor");
    const NAME: &'static str = "gloo_rs_store_t";
}

/// The object behind a store's handle.
pub struct StoreHandle {
    store: Arc<dyn Store>,
    /// The store as a TCP store, if gloo_rs_store_create_tcp or gloo_rs_store_create_tcp_with created it.
    tcp: Option<Arc<TcpStore>>,
}

impl StoreHandle {
    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The part of the store under `prefix`.
    pub(super) fn part(&self, prefix: impl Into<String>) -> PrefixStore {
        PrefixStore::new(prefix, self.store.clone())
    }

    fn tcp(&self) -> Result<&TcpStore> {
        self.tcp.as_deref().ok_or_else(|| {
            let store = self.store.describe();
            Error::new(ErrorKind::InvalidOperation, format!("{store} was not created by gloo_rs_store_create_tcp"))
        })
    }

    pub(super) fn connection_statistics(&self) -> Result<ConnectionStatistics> {
        self.tcp()?.statistics().ok_or_else(|| {
            let store = self.store.describe();
            Error::new(ErrorKind::InvalidOperation, format!("{store} is served by another process"))
        })
    }
}

pub(super) fn create(store: Arc<dyn Store>, tcp: Option<Arc<TcpStore>>, out: Out<*mut gloo_rs_store_t>) {
    handle::create(StoreHandle { store, tcp }, out);
}

/// Calls `body` with a timeout from C. The error of a call that names none says what sets it.
pub(super) fn within<T>(ms: i64, body: impl FnOnce(Duration) -> Result<T>) -> Result<T> {
    match pointer::timeout(ms)? {
        Some(timeout) => body(timeout),
        None => body(environment::default_timeout()?).map_err(environment::by_default),
    }
}

/// Creates a store over TCP. The process with `serve` runs the server until it destroys the handle; the others connect
/// to it. `host` is the server's name or address. `port` is its port; with `serve`, 0 takes a free port of
/// GLOO_RS_PORT_RANGE, or lets the system choose (gloo_rs_store_port returns it). The others try to connect until
/// `timeout_ms` expires; GLOO_RS_TIMEOUT_DEFAULT is GLOO_RS_TIMEOUT or 30 s. The caller destroys `*store` with
/// gloo_rs_store_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_tcp(
    host: *const c_char,
    port: u16,
    serve: bool,
    timeout_ms: i64,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_tcp", || {
        // SAFETY: the header demands that `host` is NULL or a string, and `store` is NULL or valid for a write; the
        // options are NULL.
        unsafe { create_tcp(host, port, serve, timeout_ms, std::ptr::null(), store) }
    })
}

/// Options of a store over TCP. Initialise with gloo_rs_tcp_store_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_tcp_store_options_t {
    /// sizeof(gloo_rs_tcp_store_options_t).
    pub struct_size: usize,
    /// The job's token, the same in the server and all clients. NULL for the value of the environment variable
    /// GLOO_RS_TOKEN. Empty for none: then every process that can reach the server's port can read and change all keys.
    /// Copied.
    pub token: *const c_char,
    /// With `serve`: callback for messages about connections that the server drops. NULL as in
    /// gloo_rs_device_options_t.
    pub log: gloo_rs_log_fn_t,
    /// Passed to `log` and to `log_destroy`.
    pub log_user: *mut c_void,
    /// Called once, on any thread, after the last call of `log`, when the store and its prefix stores are destroyed.
    /// Not called if `log` is NULL, or if creating the store fails. Must not call this library. May be NULL.
    pub log_destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// See gloo_rs_device_options_t; with `ibverbs`, stores use TCP alone.
    pub transport: *const c_char,
    /// See gloo_rs_device_options_t.
    pub tls: *const gloo_rs_tls_options_t,
}

// SAFETY: repr(C), a usize first, and pointers only.
unsafe impl Options for gloo_rs_tcp_store_options_t {
    const NAME: &'static str = "gloo_rs_tcp_store_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Sets `*options` to defaults. `struct_size` is sizeof(gloo_rs_tcp_store_options_t); at most that many bytes are
/// written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_tcp_store_options_init(options: *mut gloo_rs_tcp_store_options_t, struct_size: usize) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// Like gloo_rs_store_create_tcp, with options; NULL for defaults. Fails with GLOO_RS_ERROR_MISMATCH if the server has
/// another token, or if only one side has a token.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_tcp_with(
    host: *const c_char,
    port: u16,
    serve: bool,
    timeout_ms: i64,
    options: *const gloo_rs_tcp_store_options_t,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_tcp_with", || {
        // SAFETY: the header demands that `host` is NULL or a string, `store` is NULL or valid for a write, and
        // `options` is NULL or valid for reads of its `struct_size` bytes, with `token` NULL or a string.
        unsafe { create_tcp(host, port, serve, timeout_ms, options, store) }
    })
}

/// # Safety
/// `host` is NULL or a string, `store` NULL or valid for a write, and `options` NULL or valid for reads of its
/// `struct_size` bytes, with strings or NULL.
unsafe fn create_tcp(
    host: *const c_char,
    port: u16,
    serve: bool,
    timeout_ms: i64,
    options: *const gloo_rs_tcp_store_options_t,
    store: *mut *mut gloo_rs_store_t,
) -> Result<()> {
    // SAFETY: by the contract, `store` is NULL or valid for a write, `host` is NULL or a string, and `options` is NULL
    // or valid for reads of its `struct_size` bytes.
    let (out, host, options) =
        unsafe { (Out::handle(store, "store")?, pointer::text(host, "host")?, options::read_or_default(options)?) };
    let log = Log::new(options.log, options.log_user);
    let log_destroy = options.log_destroy;
    let options = TcpStoreOptions {
        // SAFETY: by the contract, `token` is NULL or a string.
        token: unsafe { pointer::optional_secret(options.token) }.map(JobToken::new),
        log: log.as_ref().map(Log::callback),
        // SAFETY: by the contract, a string, and a struct with its size.
        transport: unsafe { tls::transport(options.transport, options.tls) }?,
    };
    let store = Arc::new(within(timeout_ms, |timeout| match serve {
        true => TcpStore::serve_with(host, port, &options),
        false => TcpStore::connect_with(host, port, timeout, &options),
    })?);
    log.inspect(|log| log.set_destroy(log_destroy));
    create(store.clone(), Some(store), out);
    Ok(())
}

/// Sets `*port` to the server's port. Fails with GLOO_RS_ERROR_INVALID_OPERATION for stores that are not from
/// gloo_rs_store_create_tcp or gloo_rs_store_create_tcp_with.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_port(store: *const gloo_rs_store_t, port: *mut u16) -> gloo_rs_status_t {
    guard("gloo_rs_store_port", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, and `port` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(store, "store")?, Out::new(port, "port")?) };
        out.set(handle.tcp()?.port());
        Ok(())
    })
}

/// Creates a store in the directory `path`, which all ranks must see. Creates the directory if it does not exist. Each
/// job needs a directory, or a prefix, that no other job has used. The caller destroys `*store` with
/// gloo_rs_store_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_file(
    path: *const c_char,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_file", || {
        // SAFETY: the header demands that `store` is NULL or valid for a write, and `path` is NULL or a string.
        let (out, path) = unsafe { (Out::handle(store, "store")?, pointer::text(path, "path")?) };
        create(Arc::new(FileStore::new(path)?), None, out);
        Ok(())
    })
}

/// Opens the store `name` of this process, for ranks that are threads. It exists until the last handle on it, or on a
/// prefix of it, is destroyed. The caller destroys `*store` with gloo_rs_store_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_in_process(
    name: *const c_char,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_in_process", || {
        // SAFETY: the header demands that `store` is NULL or valid for a write, and `name` is NULL or a string.
        let (out, name) = unsafe { (Out::handle(store, "store")?, pointer::text(name, "name")?) };
        create(InProcessStore::open(name)?, None, out);
        Ok(())
    })
}

/// Creates a store that puts `prefix` and a slash in front of every key and uses `base` for them. It keeps the store
/// behind `base` alive; the handle `base` may be destroyed. The caller destroys `*store` with gloo_rs_store_destroy; it
/// is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_prefix(
    prefix: *const c_char,
    base: *mut gloo_rs_store_t,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_prefix", || {
        // SAFETY: the header demands that `base` is NULL or a live handle, `store` is NULL or valid for a write, and
        // `prefix` is NULL or a string.
        let (out, prefix, base) =
            unsafe { (Out::handle(store, "store")?, pointer::text(prefix, "prefix")?, handle::get(base, "base")?) };
        create(Arc::new(base.part(prefix)), None, out);
        Ok(())
    })
}

/// Creates the store that `url` names: `tcp://HOST:PORT`, which rank 0 serves; `file:///DIRECTORY`;
/// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss` for TLS; or `inproc://NAME`, in this process. `rank`
/// is this process's rank. Clients try to connect to a server until `timeout_ms` expires; GLOO_RS_TIMEOUT_DEFAULT is
/// GLOO_RS_TIMEOUT or 30 s. The options of gloo_rs_redis_options_t follow a question mark:
/// `?prefix=job-17/&ttl=3600&ca=FILE&cert=FILE&key=FILE&insecure=true`. User, password and options may contain percent
/// escapes such as `%40`. The caller destroys `*store` with gloo_rs_store_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_url(
    url: *const c_char,
    rank: i32,
    timeout_ms: i64,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_url", || {
        // SAFETY: the header demands that `store` is NULL or valid for a write, and `url` is NULL or a string.
        let (out, url) = unsafe { (Out::handle(store, "store")?, pointer::text(url, "url")?) };
        let rank =
            usize::try_from(rank).map_err(|_| Error::invalid(format!("rank is {rank}; it must not be negative")))?;
        create(within(timeout_ms, |timeout| url::open(url, rank, timeout))?, None, out);
        Ok(())
    })
}

/// Sets the value of `key` to a copy of the `bytes` bytes at `value`. Replaces an existing value. Waits for the server
/// for at most what GLOO_RS_TIMEOUT said when the store was created, or 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_set(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    value: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_set", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, `key` is NULL or a string, and `value` is
        // NULL or valid for reads of `bytes` bytes.
        let (handle, key, value) = unsafe {
            let value = pointer::slice(value.cast::<u8>(), bytes, "value")?;
            (handle::get(store, "store")?, pointer::text(key, "key")?, value)
        };
        handle.store.set(key, value)
    })
}

/// Waits until `key` has a value, and sets `*value` to a copy of it and `*bytes` to its length in bytes. The caller
/// frees the copy with gloo_rs_free; it is not NULL even if the length is 0. Fails with GLOO_RS_ERROR_TIMEOUT after
/// `timeout_ms`; GLOO_RS_TIMEOUT_DEFAULT is GLOO_RS_TIMEOUT or 30 s, 0 asks once.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_get(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    timeout_ms: i64,
    value: *mut *mut c_void,
    bytes: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_get", || {
        // SAFETY: the header demands that `value` and `bytes` are NULL or valid for a write.
        let (out, out_bytes) = unsafe { (Out::handle(value, "value")?, Out::new(bytes, "bytes")?) };
        // SAFETY: the header demands that `store` is NULL or a live handle, and `key` is NULL or a string.
        let (handle, key) = unsafe { (handle::get(store, "store")?, pointer::text(key, "key")?) };
        let value = within(timeout_ms, |timeout| handle.store.get(key, timeout))?;
        out.set(Malloced::copy_of(&value)?.into_raw());
        out_bytes.set(value.len());
        Ok(())
    })
}

/// Waits until all `n` `keys` have values. After `timeout_ms`, fails with GLOO_RS_ERROR_TIMEOUT and a message that
/// names the missing keys; GLOO_RS_TIMEOUT_DEFAULT is GLOO_RS_TIMEOUT or 30 s, 0 asks once.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_wait(
    store: *mut gloo_rs_store_t,
    keys: *const *const c_char,
    n: usize,
    timeout_ms: i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_wait", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, and `keys` is NULL or valid for reads of
        // `n` strings.
        let (handle, keys) = unsafe { (handle::get(store, "store")?, pointer::texts(keys, n, "keys")?) };
        within(timeout_ms, |timeout| handle.store.wait(&keys, timeout))
    })
}

/// Adds `amount` to the decimal integer at `key`, which counts as 0 if the key has no value, and sets `*sum` to the
/// result. Atomic. Waits for the server for at most what GLOO_RS_TIMEOUT said when the store was created, or 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_add(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    amount: i64,
    sum: *mut i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_add", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, `sum` is NULL or valid for a write, and
        // `key` is NULL or a string.
        let (handle, key, out) =
            unsafe { (handle::get(store, "store")?, pointer::text(key, "key")?, Out::new(sum, "sum")?) };
        out.set(handle.store.add(key, amount)?);
        Ok(())
    })
}

/// Appends the `bytes` bytes at `value` to the value of `key`, which counts as empty if the key has none. Atomic. Waits
/// for the server for at most what GLOO_RS_TIMEOUT said when the store was created, or 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_append(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    value: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_append", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, `key` is NULL or a string, and `value` is
        // NULL or valid for reads of `bytes` bytes.
        let (handle, key, value) = unsafe {
            let value = pointer::slice(value.cast::<u8>(), bytes, "value")?;
            (handle::get(store, "store")?, pointer::text(key, "key")?, value)
        };
        handle.store.append(key, value)
    })
}

/// Waits until all `n` `keys` have values, and sets `values[i]` and `bytes[i]` for each, as gloo_rs_store_get does. The
/// caller frees each copy with gloo_rs_free; all are NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_multi_get(
    store: *mut gloo_rs_store_t,
    keys: *const *const c_char,
    n: usize,
    timeout_ms: i64,
    values: *mut *mut c_void,
    bytes: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_multi_get", || {
        // SAFETY: the header demands that `values` and `bytes` are NULL or valid for writes of `n` values.
        let values = unsafe { Outs::new(values, n, "values") }?;
        (0..n).for_each(|i| values.set(i, std::ptr::null_mut()));
        // SAFETY: as above.
        let bytes = unsafe { Outs::new(bytes, n, "bytes") }?;
        // SAFETY: the header demands that `store` is NULL or a live handle, and `keys` is NULL or valid for reads of
        // `n` strings.
        let (handle, keys) = unsafe { (handle::get(store, "store")?, pointer::texts(keys, n, "keys")?) };
        let got = within(timeout_ms, |timeout| handle.store.multi_get(&keys, timeout))?;
        if got.len() != n {
            let message = format!("{} returned {} values for {n} keys", handle.store.describe(), got.len());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let copies = try_collect(got.iter().map(|value| Malloced::copy_of(value)), "the copies of values")?;
        for (i, (copy, value)) in copies.into_iter().zip(&got).enumerate() {
            values.set(i, copy.into_raw());
            bytes.set(i, value.len());
        }
        Ok(())
    })
}

/// Sets the value of each `keys[i]`, with i from 0 to `n` - 1, to a copy of the `bytes[i]` bytes at `values[i]`. Waits
/// for the server for at most what GLOO_RS_TIMEOUT said when the store was created, or 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_multi_set(
    store: *mut gloo_rs_store_t,
    keys: *const *const c_char,
    values: *const *const c_void,
    bytes: *const usize,
    n: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_multi_set", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, and `keys` is NULL or valid for reads of
        // `n` strings.
        let (handle, keys) = unsafe { (handle::get(store, "store")?, pointer::texts(keys, n, "keys")?) };
        // SAFETY: the header demands that `values` is NULL or valid for reads of `n` values, and `bytes` is NULL or
        // valid for reads of `n` values.
        let (values, bytes) = unsafe { (pointer::slice(values, n, "values")?, pointer::slice(bytes, n, "bytes")?) };
        let pairs = keys.iter().zip(values).zip(bytes).map(|((key, value), bytes)| {
            // SAFETY: the header demands that each value is NULL or valid for reads of its number of bytes.
            Ok((*key, unsafe { pointer::slice(value.cast::<u8>(), *bytes, "a value") }?))
        });
        handle.store.multi_set(&try_collect(pairs, "a list of keys and values")?)
    })
}

/// Removes `key`. If `existed` is not NULL, sets `*existed` to whether the key had a value. Waits for the server for at
/// most what GLOO_RS_TIMEOUT said when the store was created, or 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_delete(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    existed: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_delete", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, `existed` is NULL or valid for a write, and
        // `key` is NULL or a string.
        let (handle, key, out) =
            unsafe { (handle::get(store, "store")?, pointer::text(key, "key")?, Out::optional(existed, "existed")?) };
        let existed = handle.store.delete(key)?;
        out.inspect(|out| out.set(existed));
        Ok(())
    })
}

/// Releases the caller's reference to the store. If this process serves the store over TCP, the server ends with the
/// last handle on it or on a prefix of it. No other thread may begin a call on the handle meanwhile. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_destroy(store: *mut gloo_rs_store_t) {
    guard("gloo_rs_store_destroy", || {
        // SAFETY: the header demands that `store` is NULL or a live handle on which no other call begins.
        unsafe { handle::take(store, "store") }.map(drop)
    });
}

/// A result list.
struct Outs<T>(*mut T);

impl<T> Outs<T> {
    /// # Safety
    /// `pointer` is NULL or valid for writes of `n` values as long as this is used.
    unsafe fn new(pointer: *mut T, n: usize, what: &str) -> Result<Self> {
        // `slice` checks the length. The memory may be uninitialised, hence no slice of `T`.
        // SAFETY: by the contract, `pointer` is NULL or valid for `n` values, which may be uninitialised.
        unsafe { pointer::slice(pointer.cast::<std::mem::MaybeUninit<T>>(), n, what) }.map(|_| Self(pointer))
    }

    /// Sets the value `index`, which is below the `n` of [`Outs::new`].
    fn set(&self, index: usize, value: T) {
        // SAFETY: by the contract of `new`, the pointer is valid for writes of `n` values, of which `index` is one.
        unsafe { self.0.add(index).write(value) }
    }
}

//! Stores: where ranks find each other.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::device::{Log, gloo_rs_log_fn_t};
use super::guard::guard;
use super::handle::{self, Handle};
use super::options::{self, Options};
use super::pointer::{self, Malloced, Out};
use super::status::gloo_rs_status_t;
use crate::error::{Error, ErrorKind, Result};
use crate::net::admission::ConnectionStatistics;
use crate::rendezvous::tcp::TcpStoreOptions;
use crate::rendezvous::{FileStore, InProcessStore, PrefixStore, Store, TcpStore, url};
use crate::secret::JobToken;

/// A key-value store that all ranks of a job reach. Keys are non-empty strings of at most 4096 bytes; values are any bytes,
/// at most 64 MiB. Safe to use from several threads.
pub struct gloo_rs_store_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_store_t {
    type Inner = StoreHandle;
    const TAG: u64 = u64::from_ne_bytes(*b"gloostor");
    const NAME: &'static str = "gloo_rs_store_t";
}

/// What a store's handle stands for.
pub struct StoreHandle {
    store: Arc<dyn Store>,
    /// The same, if it is one that gloo_rs_store_create_tcp made.
    tcp: Option<Arc<TcpStore>>,
}

impl StoreHandle {
    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn tcp(&self) -> Result<&TcpStore> {
        self.tcp.as_deref().ok_or_else(|| {
            let store = self.store.describe();
            Error::new(ErrorKind::InvalidOperation, format!("{store} was not made by gloo_rs_store_create_tcp"))
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

/// Store calls that get GLOO_RS_TIMEOUT_DEFAULT wait so long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn timeout(ms: i64) -> Result<Duration> {
    Ok(pointer::timeout(ms)?.unwrap_or(DEFAULT_TIMEOUT))
}

/// A store that one process, the one with `serve`, serves to all over TCP, until it destroys the handle. `host` is the
/// server's name or address; `port` its port, or 0 with `serve` to let the system choose (gloo_rs_store_port tells). The
/// others try to connect until `timeout_ms`; GLOO_RS_TIMEOUT_DEFAULT for 30 s. The caller owns the result and ends it with
/// gloo_rs_store_destroy; on failure `*store` is NULL.
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
        // SAFETY: the header's rules for pointers.
        unsafe { create_tcp(host, port, serve, timeout_ms, std::ptr::null(), store) }
    })
}

/// How a store over TCP behaves. Set up by gloo_rs_tcp_store_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_tcp_store_options_t {
    /// sizeof(gloo_rs_tcp_store_options_t).
    pub struct_size: usize,
    /// The job's token, which server and clients must all have. NULL for what GLOO_RS_TOKEN holds in the environment; empty
    /// for none: then whoever reaches the server's port can read and change every key. Copied.
    pub token: *const c_char,
    /// With `serve`, callback for messages about connections that the server drops. NULL as in gloo_rs_device_options_t.
    pub log: gloo_rs_log_fn_t,
    /// Passed to `log` and to `log_destroy`.
    pub log_user: *mut c_void,
    /// Called once, on any thread, when `log` will not be called any more: the store and its prefixes are destroyed. Not called
    /// if creating the store fails. It must not call this library. May be NULL.
    pub log_destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: repr(C), a usize first, and pointers only.
unsafe impl Options for gloo_rs_tcp_store_options_t {
    const NAME: &'static str = "gloo_rs_tcp_store_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_tcp_store_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_tcp_store_options_init(options: *mut gloo_rs_tcp_store_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// As gloo_rs_store_create_tcp, with options; NULL for defaults. Fails with GLOO_RS_ERROR_MISMATCH if the server has another
/// token, or only one side has one.
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
        // SAFETY: the header's rules for pointers.
        unsafe { create_tcp(host, port, serve, timeout_ms, options, store) }
    })
}

/// # Safety
/// The header's rules for pointers.
unsafe fn create_tcp(
    host: *const c_char,
    port: u16,
    serve: bool,
    timeout_ms: i64,
    options: *const gloo_rs_tcp_store_options_t,
    store: *mut *mut gloo_rs_store_t,
) -> Result<()> {
    // SAFETY: the same contract.
    let (out, host, options) =
        unsafe { (Out::handle(store, "store")?, pointer::text(host, "host")?, options::read_or_default(options)?) };
    let timeout = timeout(timeout_ms)?;
    let log = Log::new(options.log, options.log_user);
    let log_destroy = options.log_destroy;
    let options = TcpStoreOptions {
        // SAFETY: the same contract, for the string in the options.
        token: unsafe { pointer::optional_secret(options.token) }.map(JobToken::new),
        log: log.as_ref().map(Log::callback),
    };
    let store = if serve {
        TcpStore::serve_with(host, port, &options)
    } else {
        TcpStore::connect_with(host, port, timeout, &options)
    };
    let store = Arc::new(store?);
    log.inspect(|log| log.set_destroy(log_destroy));
    create(store.clone(), Some(store), out);
    Ok(())
}

/// The port of a store made by gloo_rs_store_create_tcp; others fail with GLOO_RS_ERROR_INVALID_OPERATION.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_port(store: *const gloo_rs_store_t, port: *mut u16) -> gloo_rs_status_t {
    guard("gloo_rs_store_port", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(store, "store")?, Out::new(port, "port")?) };
        out.set(handle.tcp()?.port());
        Ok(())
    })
}

/// A store in the directory `path`, which all ranks see and which is made if it is not there. Each job needs a directory,
/// or a prefix, that no job used before. The caller owns the result and ends it with gloo_rs_store_destroy; on failure
/// `*store` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_file(
    path: *const c_char,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_file", || {
        // SAFETY: the header's rules for pointers.
        let (out, path) = unsafe { (Out::handle(store, "store")?, pointer::text(path, "path")?) };
        create(Arc::new(FileStore::new(path)?), None, out);
        Ok(())
    })
}

/// The store of this process with that `name`, for ranks that are threads; it lives as long as somebody has it. The caller
/// owns the result and ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_in_process(
    name: *const c_char,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_in_process", || {
        // SAFETY: the header's rules for pointers.
        let (out, name) = unsafe { (Out::handle(store, "store")?, pointer::text(name, "name")?) };
        create(InProcessStore::open(name)?, None, out);
        Ok(())
    })
}

/// The part of `base` whose keys begin with `prefix` and a slash, which it puts before every key. Keeps `base`'s store alive
/// by itself. The caller owns the result and ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_prefix(
    prefix: *const c_char,
    base: *mut gloo_rs_store_t,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_prefix", || {
        // SAFETY: the header's rules for pointers.
        let (out, prefix, base) =
            unsafe { (Out::handle(store, "store")?, pointer::text(prefix, "prefix")?, handle::get(base, "base")?) };
        create(Arc::new(PrefixStore::new(prefix, base.store.clone())), None, out);
        Ok(())
    })
}

/// The store that `url` names: `tcp://HOST:PORT`, which rank 0 serves; `file:///DIRECTORY`;
/// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, over TLS with `rediss`; or `inproc://NAME`, in this process. A server is
/// looked for until `timeout_ms`, GLOO_RS_TIMEOUT_DEFAULT for 30 s. The options of gloo_rs_redis_options_t stand behind a
/// question mark: `?prefix=job-17/&ttl=3600&ca=FILE&cert=FILE&key=FILE&insecure=true`; user, password and options may hold
/// escapes like `%40`. The caller owns the result and ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_url(
    url: *const c_char,
    rank: i32,
    timeout_ms: i64,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_url", || {
        // SAFETY: the header's rules for pointers.
        let (out, url) = unsafe { (Out::handle(store, "store")?, pointer::text(url, "url")?) };
        let rank = usize::try_from(rank).map_err(|_| Error::invalid(format!("rank is {rank}")))?;
        create(url::open(url, rank, timeout(timeout_ms)?)?, None, out);
        Ok(())
    })
}

/// Sets `key` to a copy of the `bytes` at `value`, replacing what it has.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_set(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    value: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_set", || {
        // SAFETY: the header's rules for pointers.
        let (handle, key, value) = unsafe {
            let value = pointer::slice(value.cast::<u8>(), bytes, "value")?;
            (handle::get(store, "store")?, pointer::text(key, "key")?, value)
        };
        handle.store.set(key, value)
    })
}

/// Waits until `key` has a value, and sets `*value` to a copy of it and `*bytes` to its length. The caller ends the copy
/// with gloo_rs_free; it is not NULL even if the length is 0. `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for
/// 30 s, 0 to ask once.
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
        // SAFETY: the header's rules for pointers.
        let (out, out_bytes) = unsafe { (Out::handle(value, "value")?, Out::new(bytes, "bytes")?) };
        // SAFETY: as above.
        let (handle, key) = unsafe { (handle::get(store, "store")?, pointer::text(key, "key")?) };
        let value = handle.store.get(key, timeout(timeout_ms)?)?;
        out.set(Malloced::copy_of(&value)?.into_raw());
        out_bytes.set(value.len());
        Ok(())
    })
}

/// Waits until all `n` `keys` have values. Fails with GLOO_RS_ERROR_TIMEOUT, naming those that have none. `timeout_ms` is in
/// milliseconds; GLOO_RS_TIMEOUT_DEFAULT for 30 s, 0 to ask once.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_wait(
    store: *mut gloo_rs_store_t,
    keys: *const *const c_char,
    n: usize,
    timeout_ms: i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_wait", || {
        // SAFETY: the header's rules for pointers.
        let (handle, keys) = unsafe { (handle::get(store, "store")?, texts(keys, n)?) };
        handle.store.wait(&keys, timeout(timeout_ms)?)
    })
}

/// Adds `amount` to the decimal integer at `key`, 0 if it has no value, and sets `*sum` to the result. Atomic.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_add(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    amount: i64,
    sum: *mut i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_add", || {
        // SAFETY: the header's rules for pointers.
        let (handle, key, out) =
            unsafe { (handle::get(store, "store")?, pointer::text(key, "key")?, Out::new(sum, "sum")?) };
        out.set(handle.store.add(key, amount)?);
        Ok(())
    })
}

/// Appends the `bytes` at `value` to the value of `key`, empty if it has none. Atomic.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_append(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    value: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_append", || {
        // SAFETY: the header's rules for pointers.
        let (handle, key, value) = unsafe {
            let value = pointer::slice(value.cast::<u8>(), bytes, "value")?;
            (handle::get(store, "store")?, pointer::text(key, "key")?, value)
        };
        handle.store.append(key, value)
    })
}

/// Waits until all `n` `keys` have values, and sets `values[i]` and `bytes[i]` as gloo_rs_store_get does. The caller ends
/// each copy with gloo_rs_free; on failure all are NULL.
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
        // SAFETY: the header's rules for pointers.
        let (values, bytes) = unsafe { (Outs::new(values, n, "values")?, Outs::new(bytes, n, "bytes")?) };
        (0..n).for_each(|i| values.set(i, std::ptr::null_mut()));
        // SAFETY: as above.
        let (handle, keys) = unsafe { (handle::get(store, "store")?, texts(keys, n)?) };
        let got = handle.store.multi_get(&keys, timeout(timeout_ms)?)?;
        if got.len() != n {
            let message = format!("{} values for {n} keys from {}", got.len(), handle.store.describe());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let copies: Vec<_> = got.iter().map(|value| Malloced::copy_of(value)).collect::<Result<_>>()?;
        for (i, (copy, value)) in copies.into_iter().zip(&got).enumerate() {
            values.set(i, copy.into_raw());
            bytes.set(i, value.len());
        }
        Ok(())
    })
}

/// Sets each of the `n` `keys` to a copy of the `bytes[i]` bytes at `values[i]`.
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
        // SAFETY: the header's rules for pointers.
        let (handle, keys) = unsafe { (handle::get(store, "store")?, texts(keys, n)?) };
        // SAFETY: as above.
        let (values, bytes) = unsafe { (pointer::slice(values, n, "values")?, pointer::slice(bytes, n, "bytes")?) };
        let pairs = keys.iter().zip(values).zip(bytes).map(|((key, value), bytes)| {
            // SAFETY: as above.
            Ok((*key, unsafe { pointer::slice(value.cast::<u8>(), *bytes, "a value") }?))
        });
        handle.store.multi_set(&pairs.collect::<Result<Vec<_>>>()?)
    })
}

/// Removes `key`, and sets `*existed`, if not NULL, to whether it was there.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_delete(
    store: *mut gloo_rs_store_t,
    key: *const c_char,
    existed: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_delete", || {
        // SAFETY: the header's rules for pointers.
        let (handle, key, out) =
            unsafe { (handle::get(store, "store")?, pointer::text(key, "key")?, Out::optional(existed, "existed")?) };
        let existed = handle.store.delete(key)?;
        out.inspect(|out| out.set(existed));
        Ok(())
    })
}

/// Ends the caller's hold on the store. A store that this process serves over TCP ends with it, unless a prefix of it lives.
/// No other thread may be beginning a call on the handle. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_destroy(store: *mut gloo_rs_store_t) {
    guard("gloo_rs_store_destroy", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::take(store, "store") }.map(drop)
    });
}

/// # Safety
/// `keys` is NULL or valid for reads of `n` pointers, each NULL or a string.
unsafe fn texts<'a>(keys: *const *const c_char, n: usize) -> Result<Vec<&'a str>> {
    // SAFETY: the same contract, also for the closure.
    let keys = unsafe { pointer::slice(keys, n, "keys") }?;
    // SAFETY: as above.
    keys.iter().map(|key| unsafe { pointer::text(*key, "a key") }).collect()
}

/// A result array.
struct Outs<T>(*mut T);

impl<T> Outs<T> {
    /// # Safety
    /// `pointer` is NULL or valid for writes of `n` values as long as this is used.
    unsafe fn new(pointer: *mut T, n: usize, what: &str) -> Result<Self> {
        // The length is one that memory can have, but the memory may be uninitialised: no slice of `T`.
        // SAFETY: the same contract.
        unsafe { pointer::slice(pointer.cast::<std::mem::MaybeUninit<T>>(), n, what) }.map(|_| Self(pointer))
    }

    /// Sets the value `index`, which is below the `n` of [`Outs::new`].
    fn set(&self, index: usize, value: T) {
        // SAFETY: vouched for in `new`.
        unsafe { self.0.add(index).write(value) }
    }
}

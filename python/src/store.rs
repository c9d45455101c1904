//! Stores, and the environment that launchers set.

use crate::abi::*;
use crate::arguments::{Texts, milliseconds, text};
use crate::error::{Failed, check, detached};
use crate::handle::Handle;
use crate::interrupt::waiting_on_thread;
use crate::memory::{Access, Memory};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

/// A key-value store through which the ranks of a job find each other.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Store(pub Arc<Handle<gloo_rs_store_t>>);

impl Store {
    pub fn create(
        py: Python<'_>,
        create: impl FnOnce(*mut *mut gloo_rs_store_t) -> gloo_rs_status_t,
    ) -> PyResult<Self> {
        Handle::create(py, gloo_rs_store_destroy, create).map(|handle| Self(Arc::new(handle)))
    }

    /// Makes a store by a function that may have to wait for `what`, as `create` does by others.
    ///
    /// # Safety
    /// See [`waiting_on_thread`].
    unsafe fn create_on_thread(
        py: Python<'_>,
        what: &str,
        create: impl FnOnce(*mut *mut gloo_rs_store_t) -> gloo_rs_status_t + 'static,
    ) -> PyResult<Self> {
        let create = || Handle::create_on_thread(gloo_rs_store_destroy, create);
        // SAFETY: by the contract; stores are thread-safe.
        let handle = unsafe { waiting_on_thread(py, "store", what, || (), create) }?;
        Ok(Self(Arc::new(handle)))
    }

    /// Waits for `keys` with `get`.
    ///
    /// # Safety
    /// See [`waiting_on_thread`].
    unsafe fn wait_on_thread<T: Send + 'static>(
        py: Python<'_>,
        keys: &str,
        wait: impl FnOnce() -> Result<T, Failed> + 'static,
    ) -> PyResult<T> {
        let what = format!("the store to have {keys}");
        // SAFETY: by the contract.
        unsafe { waiting_on_thread(py, "store", &what, || (), wait) }
    }

    pub fn handle(&self) -> *mut gloo_rs_store_t {
        self.0.get()
    }
}

#[pymethods]
impl Store {
    /// The store in a directory, which all ranks must see.
    #[staticmethod]
    fn file(py: Python<'_>, path: std::path::PathBuf) -> PyResult<Self> {
        let path = path.to_str().ok_or_else(|| PyValueError::new_err(format!("{} is not UTF-8", path.display())))?;
        let path = text(path)?;
        // SAFETY: the text lives until the call returns.
        Self::create(py, |store| unsafe { gloo_rs_store_create_file(path.as_ptr(), store) })
    }

    /// The store over TCP: the process with `serve` runs its server, the others connect to it.
    #[staticmethod]
    #[pyo3(signature = (host, port, *, serve = false, timeout = None, token = None, transport = None))]
    fn tcp(
        py: Python<'_>,
        host: &str,
        port: u16,
        serve: bool,
        timeout: Option<f64>,
        token: Option<&str>,
        transport: Option<&str>,
    ) -> PyResult<Self> {
        let (host, timeout) = (text(host)?, milliseconds(timeout)?);
        let mut texts = Texts::default();
        // SAFETY: integers and pointers, which may all be zero; the function writes no more than the size.
        let mut options: gloo_rs_tcp_store_options_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { gloo_rs_tcp_store_options_init(&mut options, size_of::<gloo_rs_tcp_store_options_t>()) };
        (options.token, options.transport) = (texts.add(token)?, texts.add(transport)?);
        let what = format!("the store at {}, port {port}", host.to_string_lossy());
        let create = move |store: *mut _| {
            let _owned = &texts;
            // SAFETY: the options and their texts live until the call returns.
            unsafe { gloo_rs_store_create_tcp_with(host.as_ptr(), port, serve, timeout, &options, store) }
        };
        // SAFETY: the closure owns the texts.
        unsafe { Self::create_on_thread(py, &what, create) }
    }

    /// The store of this name in this process, for ranks that are threads.
    #[staticmethod]
    fn hash(py: Python<'_>, name: &str) -> PyResult<Self> {
        let name = text(name)?;
        // SAFETY: the text lives until the call returns.
        Self::create(py, |store| unsafe { gloo_rs_store_create_in_process(name.as_ptr(), store) })
    }

    /// The store in a Redis server.
    #[staticmethod]
    #[pyo3(signature = (
        host, port = 6379, *, prefix = None, username = None, password = None, database = 0, ttl = None, tls = false,
        insecure = false, ca_file = None, cert_file = None, key_file = None, timeout = None
    ))]
    #[allow(clippy::too_many_arguments)] // the options of such a store
    fn redis(
        py: Python<'_>,
        host: &str,
        port: u16,
        prefix: Option<&str>,
        username: Option<&str>,
        password: Option<&str>,
        database: u32,
        ttl: Option<u32>,
        tls: bool,
        insecure: bool,
        ca_file: Option<&str>,
        cert_file: Option<&str>,
        key_file: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let (host, timeout) = (text(host)?, milliseconds(timeout)?);
        let mut texts = Texts::default();
        // SAFETY: integers and pointers, which may all be zero; the function writes no more than the size.
        let mut options: gloo_rs_redis_options_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { gloo_rs_redis_options_init(&mut options, size_of::<gloo_rs_redis_options_t>()) };
        (options.tls, options.insecure, options.database) = (tls, insecure, database);
        options.ttl_s = ttl.unwrap_or(options.ttl_s);
        (options.username, options.password) = (texts.add(username)?, texts.add(password)?);
        options.prefix = texts.add(prefix)?;
        (options.ca_file, options.cert_file) = (texts.add(ca_file)?, texts.add(cert_file)?);
        options.key_file = texts.add(key_file)?;
        let what = format!("Redis at {}, port {port}", host.to_string_lossy());
        let create = move |store: *mut _| {
            let _owned = &texts;
            // SAFETY: the options and their texts live until the call returns.
            unsafe { gloo_rs_store_create_redis(host.as_ptr(), port, &options, timeout, store) }
        };
        // SAFETY: the closure owns the texts.
        unsafe { Self::create_on_thread(py, &what, create) }
    }

    /// The store that a URL names: `tcp://`, `file://`, `redis://`, `rediss://` or `inproc://`.
    #[staticmethod]
    #[pyo3(signature = (url, rank, *, timeout = None))]
    fn url(py: Python<'_>, url: &str, rank: i32, timeout: Option<f64>) -> PyResult<Self> {
        let (url, timeout) = (text(url)?, milliseconds(timeout)?);
        // SAFETY: the text lives until the call returns.
        let create = move |store: *mut _| unsafe { gloo_rs_store_create_url(url.as_ptr(), rank, timeout, store) };
        // SAFETY: the closure owns the text. Its words are not those of the error: a URL may have a password.
        unsafe { Self::create_on_thread(py, "the store of a URL", create) }
    }

    /// A store whose calls are those of an object with the methods `set(key, value)`, `get(key, timeout)`,
    /// `wait(keys, timeout)`, `add(key, amount)` and `delete(key)`.
    #[staticmethod]
    fn custom(py: Python<'_>, store: Py<PyAny>) -> PyResult<Self> {
        crate::custom_store::create(py, store)
    }

    /// This store with `prefix` and a slash in front of every key.
    fn prefix(&self, py: Python<'_>, prefix: &str) -> PyResult<Self> {
        let prefix = text(prefix)?;
        // SAFETY: the text and the handle live until the call returns.
        Self::create(py, |store| unsafe { gloo_rs_store_create_prefix(prefix.as_ptr(), self.handle(), store) })
    }

    /// The port of the server that this process runs.
    #[getter]
    fn port(&self, py: Python<'_>) -> PyResult<u16> {
        let mut port = 0;
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_store_port(self.handle(), &mut port) })?;
        Ok(port)
    }

    fn set(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (text(key)?, Memory::of(value, Access::Read, "store set", "value")?);
        // SAFETY: key and value live until the call returns.
        check(
            py,
            detached(py, || unsafe { gloo_rs_store_set(self.handle(), key.as_ptr(), value.address, value.bytes) }),
        )
    }

    #[pyo3(signature = (key, *, timeout = None))]
    fn get<'py>(&self, py: Python<'py>, key: &str, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        let (own_key, timeout, store) = (text(key)?, milliseconds(timeout)?, self.0.clone());
        let get = move || {
            let mut value = Value::default();
            // SAFETY: handle and key live until the call returns.
            let got =
                unsafe { gloo_rs_store_get(store.get(), own_key.as_ptr(), timeout, &mut value.at, &mut value.bytes) };
            Failed::check(got).map(|()| value)
        };
        // SAFETY: the closure owns handle and key.
        unsafe { Self::wait_on_thread(py, key, get) }.map(|value| value.copy(py))
    }

    #[pyo3(signature = (keys, *, timeout = None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (own_keys, timeout, store) = (Keys::new(&keys)?, milliseconds(timeout)?, self.0.clone());
        let get = move || {
            let n = own_keys.1.len();
            let (mut values, mut bytes) = (vec![std::ptr::null_mut(); n], vec![0; n]);
            let into = (values.as_mut_ptr(), bytes.as_mut_ptr());
            // SAFETY: handle and keys live until the call returns, and there is room for as many values.
            let got = unsafe { gloo_rs_store_multi_get(store.get(), own_keys.1.as_ptr(), n, timeout, into.0, into.1) };
            let values = values.into_iter().zip(bytes).map(|(at, bytes)| Value { at, bytes });
            Failed::check(got).map(|()| values.collect::<Vec<Value>>())
        };
        // SAFETY: the closure owns handle and keys.
        let values = unsafe { Self::wait_on_thread(py, &keys.join(", "), get) }?;
        Ok(values.iter().map(|value| value.copy(py)).collect())
    }

    #[pyo3(signature = (keys, *, timeout = None))]
    fn wait(&self, py: Python<'_>, keys: Vec<String>, timeout: Option<f64>) -> PyResult<()> {
        let (own_keys, timeout, store) = (Keys::new(&keys)?, milliseconds(timeout)?, self.0.clone());
        let wait = move || {
            let own_keys = &own_keys.1;
            // SAFETY: handle and keys live until the call returns.
            Failed::check(unsafe { gloo_rs_store_wait(store.get(), own_keys.as_ptr(), own_keys.len(), timeout) })
        };
        // SAFETY: the closure owns handle and keys.
        unsafe { Self::wait_on_thread(py, &keys.join(", "), wait) }
    }

    fn add(&self, py: Python<'_>, key: &str, amount: i64) -> PyResult<i64> {
        let (key, mut sum) = (text(key)?, 0);
        // SAFETY: the key lives until the call returns.
        check(py, detached(py, || unsafe { gloo_rs_store_add(self.handle(), key.as_ptr(), amount, &mut sum) }))?;
        Ok(sum)
    }

    fn append(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (text(key)?, Memory::of(value, Access::Read, "store append", "value")?);
        // SAFETY: key and value live until the call returns.
        check(
            py,
            detached(py, || unsafe { gloo_rs_store_append(self.handle(), key.as_ptr(), value.address, value.bytes) }),
        )
    }

    /// Removes a key, and returns whether it had a value.
    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        let (key, mut existed) = (text(key)?, false);
        // SAFETY: the key lives until the call returns.
        check(py, detached(py, || unsafe { gloo_rs_store_delete(self.handle(), key.as_ptr(), &mut existed) }))?;
        Ok(existed)
    }
}

/// Keys, and pointers to them.
struct Keys(#[expect(dead_code, reason = "keeps what the pointers point to")] Vec<CString>, Vec<*const c_char>);

impl Keys {
    fn new(keys: &[String]) -> PyResult<Self> {
        let keys = keys.iter().map(|key| text(key)).collect::<PyResult<Vec<CString>>>()?;
        let pointers = keys.iter().map(|key| key.as_ptr()).collect();
        Ok(Self(keys, pointers))
    }
}

/// A value that the library has allocated.
struct Value {
    at: *mut c_void,
    bytes: usize,
}

impl Default for Value {
    fn default() -> Self {
        Self { at: std::ptr::null_mut(), bytes: 0 }
    }
}

// SAFETY: memory that nobody else has.
unsafe impl Send for Value {}

impl Value {
    fn copy<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        // SAFETY: the library has set both; the pointer is not null even if the value is empty.
        PyBytes::new(py, unsafe { std::slice::from_raw_parts(self.at.cast_const().cast(), self.bytes) })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the library has allocated it, or it is null.
        unsafe { gloo_rs_free(self.at) }
    }
}

/// The store, the rank and the size of a launched job.
#[pyfunction]
#[pyo3(signature = (*, timeout = None))]
pub fn launch_from_env(py: Python<'_>, timeout: Option<f64>) -> PyResult<(Store, i32, i32)> {
    let timeout = milliseconds(timeout)?;
    let launch = move || {
        let (mut rank, mut size) = (0, 0);
        let store = Handle::create_on_thread(gloo_rs_store_destroy, |store| {
            // SAFETY: the results are a handle and numbers.
            unsafe { gloo_rs_launch_from_env(timeout, store, &mut rank, &mut size) }
        })?;
        Ok((store, rank, size))
    };
    // SAFETY: the closure has no pointers.
    let (store, rank, size) = unsafe { waiting_on_thread(py, "launch", "the job's store", || (), launch) }?;
    Ok((Store(Arc::new(store)), rank, size))
}

/// This process's rank among the job's processes on this host, and their number; None for what the launcher does not
/// say.
#[pyfunction]
pub fn local_rank_from_env(py: Python<'_>) -> PyResult<(Option<i32>, Option<i32>)> {
    let (mut rank, mut size) = (-1, -1);
    // SAFETY: the results are numbers.
    check(py, unsafe { gloo_rs_launch_local_rank_from_env(&mut rank, &mut size) })?;
    let said = |number: i32| (number >= 0).then_some(number);
    Ok((said(rank), said(size)))
}

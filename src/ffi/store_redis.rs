//! Stores in Redis servers.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::time::Duration;

use super::enumeration::is_set;
use super::guard::guard;
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use super::store::{self, gloo_rs_store_t};
use crate::error::Result;
use crate::rendezvous::redis::{self, RedisOptions, RedisTls};

/// Options of a store in a Redis server. Initialise with gloo_rs_redis_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_redis_options_t {
    /// sizeof(gloo_rs_redis_options_t).
    pub struct_size: usize,
    /// Whether to use TLS.
    pub tls: MaybeUninit<bool>,
    /// With `tls`: whether to accept any certificate. For tests only.
    pub insecure: MaybeUninit<bool>,
    /// User of the server's access control list; NULL for the default user.
    pub username: *const c_char,
    /// Password of the user or of the server; NULL for none. No message contains it.
    pub password: *const c_char,
    /// Prefix of every key; NULL for `gloo_rs/`. Each job needs a prefix that no other job has used, unless it has its
    /// own server or database.
    pub prefix: *const c_char,
    /// With `tls`: file in PEM format with the certificate authorities to trust; NULL for those that the system trusts.
    pub ca_file: *const c_char,
    /// With `tls`: file in PEM format with the client's certificate; NULL for none.
    pub cert_file: *const c_char,
    /// With `cert_file`: file in PEM format with its private key.
    pub key_file: *const c_char,
    /// Number of the server's database.
    pub database: u32,
    /// Seconds that a key exists after the last write to it, 86400 by default; 0 for no limit.
    pub ttl_s: u32,
}

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_redis_options_t {
    const NAME: &'static str = "gloo_rs_redis_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {
        self.ttl_s = 86_400;
    }
}

/// Sets `*options` to defaults. `struct_size` is sizeof(gloo_rs_redis_options_t); at most that many bytes are written.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_redis_options_init(options: *mut gloo_rs_redis_options_t, struct_size: usize) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// Creates a store in the Redis server at `host` and `port`. Tries to connect until `timeout_ms` expires;
/// GLOO_RS_TIMEOUT_DEFAULT is GLOO_RS_TIMEOUT or 30 s. `options` may be NULL for defaults. All ranks use the same
/// server and options. Fails with GLOO_RS_ERROR_UNSUPPORTED if this build has no Redis store (see
/// gloo_rs_built_features). The caller destroys `*store` with gloo_rs_store_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_create_redis(
    host: *const c_char,
    port: u16,
    options: *const gloo_rs_redis_options_t,
    timeout_ms: i64,
    store: *mut *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_create_redis", || {
        // SAFETY: the header demands that `store` is NULL or valid for a write, and `host` is NULL or a string.
        let (out, host) = unsafe { (Out::handle(store, "store")?, pointer::text(host, "host")?) };
        // SAFETY: the header demands that `options` is NULL or valid for reads of its `struct_size` bytes, and the
        // pointers in it are NULL or strings.
        let options = unsafe { to_rust(host, port, &options::read_or_default(options)?)? };
        store::create(store::within(timeout_ms, |timeout| redis::open(options, timeout))?, None, out);
        Ok(())
    })
}

/// # Safety
/// The pointers in `given` are NULL or strings.
unsafe fn to_rust(host: &str, port: u16, given: &gloo_rs_redis_options_t) -> Result<RedisOptions> {
    // SAFETY: by the contract, the pointers in `given`, with which alone this is called, are NULL or strings.
    let text = |text, what| unsafe { pointer::optional_text(text, what) }.map(|text| text.map(str::to_owned));
    let mut options = RedisOptions::new(host, port);
    options.username = text(given.username, "username")?;
    options.password = text(given.password, "password")?;
    options.database = given.database;
    options.ttl = Duration::from_secs(given.ttl_s.into());
    if let Some(prefix) = text(given.prefix, "prefix")? {
        options.prefix = prefix;
    }
    let tls = RedisTls {
        ca_file: text(given.ca_file, "ca_file")?.map(Into::into),
        cert_file: text(given.cert_file, "cert_file")?.map(Into::into),
        key_file: text(given.key_file, "key_file")?.map(Into::into),
        // SAFETY: C initialised `insecure`, or it has its default.
        insecure: unsafe { is_set(given.insecure) },
    };
    // SAFETY: C initialised `tls`, or it has its default.
    options.tls = unsafe { is_set(given.tls) }.then_some(tls);
    Ok(options)
}

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
use crate::error::{Error, Result};
use crate::rendezvous::redis::{self, RedisOptions, RedisTls};

/// How to use a Redis server. Set up by gloo_rs_redis_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_redis_options_t {
    /// sizeof(gloo_rs_redis_options_t).
    pub struct_size: usize,
    /// Whether to speak TLS.
    pub tls: MaybeUninit<bool>,
    /// With `tls`: whether to accept any certificate, which is for tests only.
    pub insecure: MaybeUninit<bool>,
    /// A user of the server's access control list; NULL for the default user.
    pub username: *const c_char,
    /// The user's, or the server's, password; NULL for none. In no message.
    pub password: *const c_char,
    /// What is put in front of every key; NULL for `gloo_rs/`. Each job needs one that no job used before, unless it has a
    /// server or a database for itself.
    pub prefix: *const c_char,
    /// With `tls`: a file in PEM format with the only authorities to trust; NULL for those that the system trusts.
    pub ca_file: *const c_char,
    /// With `tls`: a file in PEM format with the certificate to show; NULL for none.
    pub cert_file: *const c_char,
    /// With `cert_file`: a file in PEM format with its private key.
    pub key_file: *const c_char,
    /// Number of the server's database.
    pub database: u32,
    /// Seconds that a key lives after it was written last, 86400 by default; 0 for ever.
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

/// Sets the defaults. `struct_size` is sizeof(gloo_rs_redis_options_t). NULL is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_redis_options_init(options: *mut gloo_rs_redis_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// A store in the Redis server at `host` and `port`, which is looked for until `timeout_ms`, GLOO_RS_TIMEOUT_DEFAULT for
/// 30 s. `options` may be NULL. All ranks use the same server and options; any number of them may come and go. Fails with
/// GLOO_RS_ERROR_UNSUPPORTED if this build has no Redis store (gloo_rs_built_features tells). The caller owns the result and
/// ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
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
        // SAFETY: the header's rules for pointers.
        let (out, host) = unsafe { (Out::handle(store, "store")?, pointer::text(host, "host")?) };
        // SAFETY: as above.
        let options = unsafe { to_rust(host, port, &options::read_or_default(options)?)? };
        store::create(redis::open(options, store::timeout(timeout_ms)?)?, None, out);
        Ok(())
    })
}

/// # Safety
/// The pointers in `given` are NULL or strings.
unsafe fn to_rust(host: &str, port: u16, given: &gloo_rs_redis_options_t) -> Result<RedisOptions> {
    // SAFETY: the same contract.
    let text = |text, what| unsafe { pointer::optional_text(text, what) }.map(|text| text.map(str::to_owned));
    let mut options = RedisOptions::new(host, port);
    options.username = text(given.username, "username")?;
    // The error would quote it.
    options.password = text(given.password, "password").map_err(|_| Error::invalid("password is not UTF-8"))?;
    options.database = given.database;
    options.ttl = Duration::from_secs(given.ttl_s.into());
    if let Some(prefix) = text(given.prefix, "prefix")? {
        options.prefix = prefix;
    }
    let tls = RedisTls {
        ca_file: text(given.ca_file, "ca_file")?.map(Into::into),
        cert_file: text(given.cert_file, "cert_file")?.map(Into::into),
        key_file: text(given.key_file, "key_file")?.map(Into::into),
        // SAFETY: the caller's flag, or the default.
        insecure: unsafe { is_set(given.insecure) },
    };
    // SAFETY: as above.
    options.tls = unsafe { is_set(given.tls) }.then_some(tls);
    Ok(options)
}

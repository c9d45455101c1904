//! The options of TLS, which devices and TCP stores have.

use std::ffi::c_char;

use super::options::{self, Options};
use super::pointer;
use crate::error::{Error, Result};
use crate::net::stream::Transport;
#[cfg(feature = "tls")]
use crate::net::tls;

/// The files of this rank's identity and of its authority, in PEM format, which devices and TCP stores with the
/// transport `tls` read when they are created, and again when a file has changed and a connection is made. What is NULL
/// is taken from the environment: GLOO_RS_TLS_CERT, _KEY, _CA_FILE, _CA_PATH and _NAMES, or Gloo's
/// GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT, _PKEY, _CA_FILE and _CA_PATH. The text of a file, which begins with
/// `-----BEGIN`, may take the place of its path. All strings are copied. Initialise with gloo_rs_tls_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_tls_options_t {
    /// sizeof(gloo_rs_tls_options_t).
    pub struct_size: usize,
    /// Path of this rank's certificate, followed by those between it and the authority. It must be valid for servers
    /// and for clients.
    pub cert: *const c_char,
    /// Path of its private key: PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key: *const c_char,
    /// Path of the certificates of authorities. A peer is whoever one of them has signed, directly or through others.
    pub ca_file: *const c_char,
    /// Path of a folder with such files, under any names. With `ca_file`, both are trusted.
    pub ca_path: *const c_char,
    /// DNS names and IP addresses, separated by commas, one of which a peer's certificate must be for; any if empty.
    pub names: *const c_char,
}

// SAFETY: repr(C), a usize first, and pointers only.
unsafe impl Options for gloo_rs_tls_options_t {
    const NAME: &'static str = "gloo_rs_tls_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Sets `*options` to defaults. `struct_size` is sizeof(gloo_rs_tls_options_t); at most that many bytes are written.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_tls_options_init(options: *mut gloo_rs_tls_options_t, struct_size: usize) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// The transport that the options of a device or a store name; `None` if they leave that to the environment.
///
/// # Safety
/// `transport` is NULL or a string, and `tls` NULL or valid for reads of its `struct_size` bytes, with strings or NULL.
pub(super) unsafe fn transport(
    transport: *const c_char,
    tls: *const gloo_rs_tls_options_t,
) -> Result<Option<Transport>> {
    // SAFETY: by the contract.
    let (name, files) = unsafe { (pointer::optional_text(transport, "transport")?, options::read_or_default(tls)?) };
    let named = name.map(|name| Transport::named(name, "transport")).transpose()?;
    if tls.is_null() {
        return Ok(named);
    }
    match named {
        Some(named) if !named.is_encrypted() => {
            Err(Error::invalid(format!("tls is set, but transport is {}, which does not use it", named.name())))
        }
        // SAFETY: by the contract.
        _ => unsafe { with_files(&files) }.map(Some),
    }
}

/// # Safety
/// The fields of `files` are NULL or strings.
#[cfg(feature = "tls")]
unsafe fn with_files(files: &gloo_rs_tls_options_t) -> Result<Transport> {
    // SAFETY: by the contract.
    let text = |path, name| unsafe { pointer::optional_text(path, name) };
    let path = |path, name| Ok::<_, Error>(text(path, name)?.filter(|path| !path.is_empty()).map(Into::into));
    Ok(Transport::Tls(tls::Options {
        cert: path(files.cert, "tls->cert")?,
        key: path(files.key, "tls->key")?,
        ca_file: path(files.ca_file, "tls->ca_file")?,
        ca_path: path(files.ca_path, "tls->ca_path")?,
        names: tls::Options::names_in(text(files.names, "tls->names")?.unwrap_or_default()),
        ..tls::Options::default()
    }))
}

/// # Safety
/// None.
#[cfg(not(feature = "tls"))]
unsafe fn with_files(_: &gloo_rs_tls_options_t) -> Result<Transport> {
    Transport::named("tls", "transport")
}

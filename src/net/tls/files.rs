//! The PEM files of certificates and keys.

use std::fmt;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::sys::file::{Stamp, Until, open_to_others, stamp};

/// What [`read`] has read.
pub struct Files {
    /// The chain begins with this rank's certificate.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub roots: RootCertStore,
    pub warning: Option<String>,
}

/// By what a file is recognised as another one, or as changed; `None` where there is none.
#[derive(PartialEq, Eq)]
pub struct Stamps([Option<Stamp>; 4]);

impl Stamps {
    /// A pipe has none: it can be read once, and whoever writes to it changes its times.
    pub fn of(options: &Options) -> Self {
        let lasting = |path: &PathBuf| fs::metadata(path).ok().filter(|of| of.is_file() || of.is_dir());
        let of = |path: &Option<PathBuf>| path.as_ref().and_then(lasting).map(|metadata| stamp(&metadata));
        Self([&options.cert, &options.key, &options.ca_file, &options.ca_path].map(of))
    }
}

/// The names of the options, in the order of [`Options::variables`].
const OPTIONS: [&str; 4] = ["cert", "key", "ca_file", "ca_path"];

/// A file, or a folder, and what has named it.
#[derive(Clone, Copy)]
struct Named<'a> {
    path: &'a Path,
    index: usize,
    variable: Option<&'static str>,
}

impl<'a> Named<'a> {
    fn of(options: &'a Options, index: usize) -> Option<Self> {
        let path = [&options.cert, &options.key, &options.ca_file, &options.ca_path][index].as_deref()?;
        Some(Self { path, index, variable: options.variables[index] })
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match inline(self.path) {
            None => write!(f, "{}", self.path.display())?,
            Some(_) => write!(f, "the PEM text in place of a path")?,
        }
        match self.variable {
            Some(variable) => write!(f, " ({variable})"),
            None => write!(f, " (TLS option {})", OPTIONS[self.index]),
        }
    }
}

/// A file in error messages, by its position in [`Options::variables`].
pub fn named(options: &Options, index: usize) -> String {
    Named::of(options, index).map(|file| file.to_string()).unwrap_or_default()
}

/// The maximum number of bytes of a file of certificates, or of a key.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What takes the place of the path of a file.
fn inline(file: &Path) -> Option<&[u8]> {
    Some(file.as_os_str().as_encoded_bytes()).filter(|text| text.starts_with(b"-----BEGIN "))
}

/// `until`: how long files that are pipes are waited for.
pub fn read(options: &Options, until: Until) -> Result<Files> {
    let missing = |what: &str, variable: &str| Error::invalid(format!("TLS needs {what}: the option, or {variable}"));
    let [cert, key, ca_file, ca_path] = std::array::from_fn(|index| Named::of(options, index));
    let cert = &cert.ok_or_else(|| missing("a certificate", super::VARIABLES[0][0]))?;
    let key = &key.ok_or_else(|| missing("the certificate's private key", super::VARIABLES[1][0]))?;
    let text = |file: &Named<'_>| text(file, until);
    let mut roots = RootCertStore::empty();
    if let Some(file) = &ca_file {
        trust(&mut roots, file, &text(file)?)?;
    }
    if let Some(folder) = &ca_path {
        trust_folder(&mut roots, folder, text)?;
    }
    if roots.is_empty() {
        let variables = format!("{} or {}", super::VARIABLES[2][0], super::VARIABLES[3][0]);
        return Err(missing("the certificate of an authority", &variables));
    }
    let chain = certificates(cert, &text(cert)?)?;
    let (private, metadata) = (text(key)?, fs::metadata(key.path).ok());
    Ok(Files { chain, key: private_key(key, &private)?, roots, warning: metadata.and_then(|of| exposed(key, &of)) })
}

fn text(file: &Named<'_>, until: Until) -> Result<Vec<u8>> {
    if let Some(text) = inline(file.path) {
        return Ok(text.to_vec());
    }
    sys::file::read(file.path, MAX_FILE_BYTES, until).map_err(|error| {
        let failed = Error::io(format_args!("cannot read {file}"), &error);
        // Only a pipe that its writer does not close is read until the timeout.
        let timed_out = error.kind() == std::io::ErrorKind::TimedOut;
        if timed_out { Error::new(ErrorKind::Timeout, failed.message()) } else { failed }
    })
}

/// A warning about a key that others than its owner and its group can read.
fn exposed(file: &Named<'_>, of: &Metadata) -> Option<String> {
    let open = open_to_others(of) & 0o004 != 0;
    open.then(|| format!("{file}: every user of this host can read this private key; make it mode 600"))
}

/// The certificates in a PEM file, at least one; other sections are skipped.
fn certificates(file: &Named<'_>, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let mut found = Vec::new();
    for (index, section) in CertificateDer::pem_slice_iter(text).enumerate() {
        found.push(section.map_err(|error| malformed(file, text, "CERTIFICATE", index, &error))?);
    }
    if found.is_empty() {
        return Err(Error::invalid(format!("{}: there is no certificate in it", file)));
    }
    Ok(found)
}

fn private_key(file: &Named<'_>, text: &[u8]) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound if contains(text, b"ENCRYPTED PRIVATE KEY") => {
            Error::invalid(format!("{}: this private key is encrypted; it must not be", file))
        }
        pem::Error::NoItemsFound => Error::invalid(format!("{}: there is no private key in it", file)),
        error => malformed(file, text, "PRIVATE KEY", 0, &error),
    })
}

fn trust(roots: &mut RootCertStore, file: &Named<'_>, text: &[u8]) -> Result<()> {
    for (index, certificate) in certificates(file, text)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| {
            let line = line_of(text, "CERTIFICATE", index);
            Error::invalid(format!("{}, line {line}: cannot trust this certificate: {error}", file))
        })?;
    }
    Ok(())
}

/// Every file in `folder` that contains certificates: it may contain other files, too.
fn trust_folder(
    roots: &mut RootCertStore,
    folder: &Named<'_>,
    text: impl Fn(&Named<'_>) -> Result<Vec<u8>>,
) -> Result<()> {
    let unreadable = |error: std::io::Error| Error::io(format_args!("cannot read the folder {folder}"), &error);
    let entries =
        fs::read_dir(folder.path).map_err(unreadable)?.collect::<std::io::Result<Vec<_>>>().map_err(unreadable)?;
    let before = roots.len();
    for entry in entries {
        let path = entry.path();
        let file = &Named { path: &path, ..*folder };
        if path.is_file()
            && let text = text(file)?
            && contains(&text, b"-----BEGIN CERTIFICATE-----")
        {
            trust(roots, file, &text)?;
        }
    }
    match roots.len() {
        after if after > before => Ok(()),
        _ => Err(Error::invalid(format!("{folder}: there is no certificate in any file of this folder"))),
    }
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|window| window == what)
}

fn malformed(file: &Named<'_>, text: &[u8], kind: &str, index: usize, error: &pem::Error) -> Error {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "this section has no end".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "this is not the beginning of a section".to_owned(),
        pem::Error::Base64Decode(_) => "what follows is not base64".to_owned(),
        other => other.to_string(),
    };
    Error::invalid(format!("{}, line {}: {what}", file, line_of(text, kind, index)))
}

/// The line at which section `index` of those whose name ends in `kind` begins, from 1.
fn line_of(text: &[u8], kind: &str, index: usize) -> usize {
    let begins = |line: &&[u8]| line.starts_with(b"-----BEGIN ") && contains(line, kind.as_bytes());
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| begins(line));
    lines.map(|(line, _)| line + 1).nth(index).unwrap_or(1)
}

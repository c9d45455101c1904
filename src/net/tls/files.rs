//! The PEM files of certificates and keys.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Options;
use crate::error::{Error, Result};
use crate::sys;
use crate::sys::file::{Stamp, open_to_others, stamp};

/// What [`read`] has read.
pub struct Files {
    /// This rank's certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub roots: RootCertStore,
    pub warning: Option<String>,
}

/// By what a file is recognised as another one, or as changed; `None` where there is none.
#[derive(PartialEq, Eq)]
pub struct Stamps([Option<Stamp>; 4]);

impl Stamps {
    pub fn of(options: &Options) -> Self {
        let of = |path: &Option<PathBuf>| Some(stamp(&fs::metadata(path.as_ref()?).ok()?));
        Self([&options.cert, &options.key, &options.ca_file, &options.ca_path].map(of))
    }
}

/// A file in error messages.
pub fn named(path: &Option<PathBuf>) -> String {
    path.as_deref().map(shown).unwrap_or_default()
}

/// Most bytes of a file of certificates, or of a key.
const MOST_BYTES: u64 = 1 << 20;

/// What takes the place of the path of a file.
fn inline(file: &Path) -> Option<&[u8]> {
    Some(file.as_os_str().as_encoded_bytes()).filter(|text| text.starts_with(b"-----BEGIN "))
}

fn shown(file: &Path) -> String {
    inline(file).map_or_else(|| file.display().to_string(), |_| "the PEM text in place of a path".to_owned())
}

pub fn read(options: &Options) -> Result<Files> {
    let missing = |what: &str, variable: &str| Error::invalid(format!("TLS needs {what}: the option, or {variable}"));
    let cert = options.cert.as_ref().ok_or_else(|| missing("a certificate", super::VARIABLES[0][0]))?;
    let key = options.key.as_ref().ok_or_else(|| missing("the certificate's private key", super::VARIABLES[1][0]))?;
    let mut roots = RootCertStore::empty();
    if let Some(file) = &options.ca_file {
        trust(&mut roots, file, &text(file)?)?;
    }
    if let Some(folder) = &options.ca_path {
        trust_folder(&mut roots, folder)?;
    }
    if roots.is_empty() {
        let variables = format!("{} or {}", super::VARIABLES[2][0], super::VARIABLES[3][0]);
        return Err(missing("the certificate of an authority", &variables));
    }
    let chain = certificates(cert, &text(cert)?)?;
    let (private, metadata) = (text(key)?, fs::metadata(key).ok());
    Ok(Files { chain, key: private_key(key, &private)?, roots, warning: metadata.and_then(|of| exposed(key, &of)) })
}

fn text(file: &Path) -> Result<Vec<u8>> {
    if let Some(text) = inline(file) {
        return Ok(text.to_vec());
    }
    sys::file::read(file, MOST_BYTES).map_err(|error| Error::io(format_args!("cannot read {}", shown(file)), &error))
}

/// A warning about a key that others than its owner and its group can read.
fn exposed(file: &Path, of: &Metadata) -> Option<String> {
    let open = open_to_others(of) & 0o004 != 0;
    open.then(|| format!("{}: every user of this host can read this private key; make it mode 600", shown(file)))
}

/// The certificates in a PEM file, at least one; other sections are skipped.
fn certificates(file: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let mut found = Vec::new();
    for (index, section) in CertificateDer::pem_slice_iter(text).enumerate() {
        found.push(section.map_err(|error| malformed(file, text, "CERTIFICATE", index, &error))?);
    }
    if found.is_empty() {
        return Err(Error::invalid(format!("{}: there is no certificate in it", shown(file))));
    }
    Ok(found)
}

fn private_key(file: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound if contains(text, b"ENCRYPTED PRIVATE KEY") => {
            Error::invalid(format!("{}: this private key is encrypted; it must not be", shown(file)))
        }
        pem::Error::NoItemsFound => Error::invalid(format!("{}: there is no private key in it", shown(file))),
        error => malformed(file, text, "PRIVATE KEY", 0, &error),
    })
}

fn trust(roots: &mut RootCertStore, file: &Path, text: &[u8]) -> Result<()> {
    for (index, certificate) in certificates(file, text)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| {
            let line = line_of(text, "CERTIFICATE", index);
            Error::invalid(format!("{}, line {line}: cannot trust this certificate: {error}", shown(file)))
        })?;
    }
    Ok(())
}

/// Every file in `folder` that contains certificates: it may contain other files, too.
fn trust_folder(roots: &mut RootCertStore, folder: &Path) -> Result<()> {
    let unreadable =
        |error: std::io::Error| Error::io(format_args!("cannot read the folder {}", folder.display()), &error);
    let entries = fs::read_dir(folder).map_err(unreadable)?.collect::<std::io::Result<Vec<_>>>().map_err(unreadable)?;
    let before = roots.len();
    for entry in entries {
        let path = entry.path();
        if path.is_file()
            && let text = text(&path)?
            && contains(&text, b"-----BEGIN CERTIFICATE-----")
        {
            trust(roots, &path, &text)?;
        }
    }
    match roots.len() {
        after if after > before => Ok(()),
        _ => Err(Error::invalid(format!("{}: there is no certificate in any file of this folder", folder.display()))),
    }
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|window| window == what)
}

fn malformed(file: &Path, text: &[u8], kind: &str, index: usize, error: &pem::Error) -> Error {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "this section has no end".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "this is not the beginning of a section".to_owned(),
        pem::Error::Base64Decode(_) => "what follows is not base64".to_owned(),
        other => other.to_string(),
    };
    Error::invalid(format!("{}, line {}: {what}", shown(file), line_of(text, kind, index)))
}

/// The line at which section `index` of those whose name ends in `kind` begins, from 1.
fn line_of(text: &[u8], kind: &str, index: usize) -> usize {
    let begins = |line: &&[u8]| line.starts_with(b"-----BEGIN ") && contains(line, kind.as_bytes());
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| begins(line));
    lines.map(|(line, _)| line + 1).nth(index).unwrap_or(1)
}

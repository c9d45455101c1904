//! TLS to a Redis server, by rustls with ring. The crypto provider is passed explicitly: none is installed for the
//! process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::RedisTls;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::sys::file::Until;

/// The maximum number of bytes of a file of certificates, or of a key.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The TLS configuration. The error says what is wrong and names the file. `until`: how long a file that is a pipe is
/// waited for.
pub(super) fn client(tls: &RedisTls, until: Until) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| Error::invalid(error.to_string()))?;
    let builder = if tls.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        builder.with_root_certificates(authorities(tls.ca_file.as_deref(), until)?)
    };
    let config = match (&tls.cert_file, &tls.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "option cert", until)?;
            let private = PrivateKeyDer::from_pem_slice(&read(key, "option key", until)?);
            let private = private.map_err(|error| unusable(key, "option key", &error))?;
            let config = builder.with_client_auth_cert(chain, private);
            config.map_err(|error| {
                let (key, cert) = (key.display(), cert.display());
                Error::invalid(format!("cannot use {key} (option key) with {cert} (option cert): {error}"))
            })?
        }
        _ => return Err(Error::invalid("a client's certificate and its key are of use together only")),
    };
    Ok(Arc::new(config))
}

/// The file, and the folders, of the certificates of authorities that this machine's programs trust, as OpenSSL's.
const SYSTEM_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

fn authorities(file: Option<&Path>, until: Until) -> Result<RootCertStore> {
    let Some(file) = file else { return system_authorities(SYSTEM_VARIABLES.map(std::env::var_os), until) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, "option ca", until)? {
        roots
            .add(certificate)
            .map_err(|error| Error::invalid(format!("cannot trust {} (option ca): {error}", file.display())))?;
    }
    Ok(roots)
}

/// The certificates in what the [`SYSTEM_VARIABLES`] name, or else those that the system has. Some may be unreadable;
/// it is enough if one can be used.
fn system_authorities([file, folders]: [Option<OsString>; 2], until: Until) -> Result<RootCertStore> {
    let folders = folders.iter().flat_map(std::env::split_paths).filter(|folder| !folder.as_os_str().is_empty());
    let folders: Vec<PathBuf> = folders.collect();
    let file = file.filter(|file| !file.is_empty());
    let (mut found, mut failed) = (Vec::new(), None);
    if file.is_none() && folders.is_empty() {
        found = rustls_native_certs::load_native_certs().certs;
    }
    let [by_file, by_folders] = SYSTEM_VARIABLES;
    let named = file.iter().map(|file| read(Path::new(file), by_file, until));
    let in_folders = folders.iter().flat_map(|folder| match fs::read_dir(folder) {
        // A folder may contain folders and other things, too.
        Ok(entries) => {
            let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
            files.map(|file| read(&file, by_folders, until)).collect()
        }
        Err(error) => vec![Err(unreadable(folder, by_folders, &error))],
    });
    for text in named.chain(in_folders) {
        match text {
            Ok(text) => found.extend(CertificateDer::pem_slice_iter(&text).flatten()),
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    // A folder has links to its files, and often to the file that the other variable names.
    found.sort_unstable_by(|a, b| a.cmp(b));
    found.dedup();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found);
    let none = "this system has no certificates of authorities; name a file of them, in a URL with ?ca=FILE";
    if roots.is_empty() { Err(failed.unwrap_or_else(|| Error::invalid(none))) } else { Ok(roots) }
}

/// `by`: what has named the file.
fn certificates(file: &Path, by: &str, until: Until) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(file, by, until)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unusable(file, by, &error))?;
    if found.is_empty() { Err(unusable(file, by, &pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn read(file: &Path, by: &str, until: Until) -> Result<Vec<u8>> {
    sys::file::read(file, MAX_FILE_BYTES, until).map_err(|error| unreadable(file, by, &error))
}

fn unreadable(file: &Path, by: &str, error: &io::Error) -> Error {
    let failed = Error::io(format_args!("cannot use {} ({by})", file.display()), error);
    // A lack of descriptors or memory is the process's; any other failure is the fault of who named the file.
    if failed.kind() == ErrorKind::ResourceExhausted { failed } else { Error::invalid(failed.message()) }
}

fn unusable(file: &Path, by: &str, error: &pem::Error) -> Error {
    Error::invalid(format!("cannot use {} ({by}): {error}", file.display()))
}

/// Accepts every certificate, for the option `insecure`; the peer must still have its private key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Each option names what has no end: a FIFO that nobody writes to, and a device.
    #[test]
    fn files_without_an_end_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let certificate = folder.path().join("cert.pem");
        std::fs::write(&certificate, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n").unwrap();
        for (file, why) in [
            (fifo.as_path(), "this pipe's writer has not closed it after 20ms"),
            (Path::new("/dev/zero"), "it is neither a regular file nor a pipe"),
        ] {
            let (file, insecure) = (Some(file.to_owned()), RedisTls { insecure: true, ..RedisTls::default() });
            for (option, tls) in [
                ("ca", RedisTls { ca_file: file.clone(), ..RedisTls::default() }),
                ("cert", RedisTls { cert_file: file.clone(), key_file: file.clone(), ..insecure.clone() }),
                ("key", RedisTls { cert_file: Some(certificate.clone()), key_file: file.clone(), ..insecure }),
            ] {
                let error = client(&tls, Until::after(Duration::from_millis(20))).unwrap_err();
                let expected = format!("cannot use {} (option {option}): {why}", file.as_ref().unwrap().display());
                assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, &*expected));
            }
        }
    }

    #[test]
    fn what_the_variables_of_the_system_name_is_read_up_to_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let [fifo, long, certificate] = ["fifo", "long", "certificate"].map(path);
        let until = || Until::after(Duration::from_millis(20));
        let of = |file: Option<&Path>, folder: Option<&Path>| {
            system_authorities([file, folder].map(|named| named.map(|path| path.as_os_str().to_owned())), until())
        };
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        fs::File::create(&long).unwrap().set_len(1 << 40).unwrap();
        let refused = |error: Error| (error.kind(), error.message().to_owned());
        for (file, why) in [
            (fifo.as_path(), "this pipe's writer has not closed it after 20ms"),
            (Path::new("/dev/zero"), "it is neither a regular file nor a pipe"),
            (&long, "it has more than 1048576 bytes"),
        ] {
            let expected = format!("cannot use {} (SSL_CERT_FILE): {why}", file.display());
            assert_eq!(refused(of(Some(file), None).unwrap_err()), (ErrorKind::InvalidArgument, expected));
        }
        // In a folder, what is no file is skipped.
        let expected = format!("cannot use {} (SSL_CERT_DIR): it has more than 1048576 bytes", long.display());
        assert_eq!(refused(of(None, Some(folder.path())).unwrap_err()), (ErrorKind::InvalidArgument, expected));
        let missing = path("missing");
        let expected =
            format!("cannot use {} (SSL_CERT_DIR): No such file or directory (os error 2)", missing.display());
        assert_eq!(refused(of(None, Some(&missing)).unwrap_err()), (ErrorKind::InvalidArgument, expected));
        // One that can be used is enough, and counts once.
        let authority = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
        fs::write(&certificate, authority.cert.pem()).unwrap();
        assert_eq!(of(Some(&fifo), Some(folder.path())).unwrap().len(), 1);
        assert_eq!(of(Some(&certificate), Some(folder.path())).unwrap().len(), 1);
    }
}

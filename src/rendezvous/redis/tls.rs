//! TLS to a Redis server, by rustls with ring. The crypto provider is passed explicitly: none is installed for the process.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::RedisTls;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::sys::file::Until;

/// Most bytes of a file of certificates, or of a key.
const MOST_BYTES: u64 = 1 << 20;

/// The TLS configuration. The error says what is wrong and names the file. `until`: how long a file that is a pipe is waited for.
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
            let chain = certificates(cert, "cert", until)?;
            let private = PrivateKeyDer::from_pem_slice(&read(key, "key", until)?);
            let private = private.map_err(|error| unusable(key, "key", &error))?;
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

fn authorities(file: Option<&Path>, until: Until) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        // Some of the system's certificates may be unreadable; it is enough if one can be used.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let none = "this system has no certificates of authorities; name a file of them, in a URL with ?ca=FILE";
        return if roots.is_empty() { Err(Error::invalid(none)) } else { Ok(roots) };
    };
    for certificate in certificates(file, "ca", until)? {
        roots
            .add(certificate)
            .map_err(|error| Error::invalid(format!("cannot trust {} (option ca): {error}", file.display())))?;
    }
    Ok(roots)
}

fn certificates(file: &Path, option: &str, until: Until) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(file, option, until)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unusable(file, option, &error))?;
    if found.is_empty() { Err(unusable(file, option, &pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn read(file: &Path, option: &str, until: Until) -> Result<Vec<u8>> {
    sys::file::read(file, MOST_BYTES, until).map_err(|error| {
        let failed = Error::io(format_args!("cannot use {} (option {option})", file.display()), &error);
        // Of anything but a lack of descriptors or memory, the URL is the cause.
        if failed.kind() == ErrorKind::ResourceExhausted { failed } else { Error::invalid(failed.message()) }
    })
}

fn unusable(file: &Path, option: &str, error: &pem::Error) -> Error {
    Error::invalid(format!("cannot use {} (option {option}): {error}", file.display()))
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
}

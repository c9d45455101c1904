//! TLS to a Redis server, by rustls with ring. The crypto provider is passed explicitly: none is installed for the process.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::RedisTls;

/// The TLS configuration. The error says what is wrong and names the file.
pub(super) fn client(tls: &RedisTls) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let builder = if tls.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        builder.with_root_certificates(authorities(tls.ca_file.as_deref())?)
    };
    let config = match (&tls.cert_file, &tls.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "cert")?;
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, "key", &error))?;
            let config = builder.with_client_auth_cert(chain, private);
            config.map_err(|error| {
                format!("cannot use {} (option key) with {} (option cert): {error}", key.display(), cert.display())
            })?
        }
        _ => return Err("a client's certificate and its key are of use together only".to_owned()),
    };
    Ok(Arc::new(config))
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        // Some of the system's certificates may be unreadable; it is enough if one can be used.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let none = "this system has no certificates of authorities; name a file of them, in a URL with ?ca=FILE";
        return if roots.is_empty() { Err(none.to_owned()) } else { Ok(roots) };
    };
    for certificate in certificates(file, "ca")? {
        roots.add(certificate).map_err(|error| format!("cannot trust {} (option ca): {error}", file.display()))?;
    }
    Ok(roots)
}

fn certificates(file: &Path, option: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    let found = found.map_err(|error| unusable(file, option, &error))?;
    if found.is_empty() { Err(unusable(file, option, &pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn unusable(file: &Path, option: &str, error: &pem::Error) -> String {
    format!("cannot use {} (option {option}): {error}", file.display())
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

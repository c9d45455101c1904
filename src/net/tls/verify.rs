//! Who is trusted, and what is wrong with a peer in words.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore,
    SignatureScheme,
};

use super::version1::Version1;
use crate::error::{Error, Result};
use crate::net::handshake::{BadCertificate, Fault};

/// Accepts the certificates that the authorities have signed, in either role.
#[derive(Debug)]
pub struct Authority {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    names: Vec<ServerName<'static>>,
}

impl Authority {
    pub fn new(provider: Arc<CryptoProvider>, roots: RootCertStore, names: &[String]) -> Result<Self> {
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let clients = clients.map_err(|error| Error::invalid(format!("cannot use the authority: {error}")))?;
        let name = |name: &String| {
            let parsed = ServerName::try_from(name.clone());
            parsed.map_err(|_| Error::invalid(format!("{name:?} is neither a DNS name nor an IP address")))
        };
        Ok(Self { provider, roots, clients, names: names.iter().map(name).collect::<Result<_>>()? })
    }

    /// Checks this rank's own certificate as its peers will. The error says what they would find.
    pub fn check_own(&self, chain: &[CertificateDer<'static>]) -> std::result::Result<(), String> {
        let Some((own, others)) = chain.split_first() else { return Err("there is no certificate in it".into()) };
        let now = UnixTime::now();
        let as_server = self.signed(own, others, now);
        let as_client = || self.signed_as_client(own, others, now);
        as_server.and_then(|()| as_client()).map_err(|error| match error {
            TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "this certificate is not signed by the authority that this rank trusts".to_owned()
            }
            TlsError::InvalidCertificate(of) => format!("this certificate {}", certificate(&of)),
            error => error.to_string(),
        })
    }

    fn signed(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<(), TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        if let Some(certificate) = Version1::of(end_entity) {
            return certificate.check(&self.roots, now, algorithms);
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms.all)
    }

    fn signed_as_client(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<(), TlsError> {
        // Without extensions, there is no difference.
        match Version1::of(end_entity) {
            Some(_) => self.signed(end_entity, intermediates, now),
            None => self.clients.verify_client_cert(end_entity, intermediates, now).map(drop),
        }
    }

    /// Whether the certificate is for one of the names; one of version 1 is for none.
    fn permitted(&self, end_entity: &CertificateDer<'_>) -> std::result::Result<(), TlsError> {
        if self.names.is_empty() {
            return Ok(());
        }
        if Version1::of(end_entity).is_some() {
            return Err(CertificateError::NotValidForName.into());
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let permitted = self.names.iter().any(|name| verify_server_name(&parsed, name).is_ok());
        if permitted { Ok(()) } else { Err(CertificateError::NotValidForName.into()) }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match Version1::of(cert) {
            Some(cert) => verify_tls13_signature_with_raw_key(message, &cert.public_key()?, dss, algorithms),
            None => verify_tls13_signature(message, cert, dss, algorithms),
        }
    }
}

impl ServerCertVerifier for Authority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        self.signed(end_entity, intermediates, now)?;
        self.permitted(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Authority {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, TlsError> {
        self.signed_as_client(end_entity, intermediates, now)?;
        self.permitted(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}

/// What is wrong with a certificate.
fn certificate(error: &CertificateError) -> BadCertificate {
    use CertificateError::*;
    let otherwise = |error: &_| match error {
        Expired => "has expired",
        NotValidYet => "is not valid yet: are the clocks right?",
        Revoked => "is revoked",
        UnknownIssuer => "is not signed by the authority that this rank trusts",
        BadSignature => "has a signature that is not of the authority with this name that this rank trusts",
        NotValidForName | NotValidForNameContext { .. } => "is for none of the names that this rank accepts",
        InvalidPurpose | InvalidPurposeContext { .. } => {
            "is not for both roles: its extended key usage must contain serverAuth and clientAuth, or be absent"
        }
        BadEncoding => "is malformed",
        // rustls has no word of its own for what its verifier refuses there.
        Other(of) if of.to_string().contains("UnsupportedCertVersion") => {
            "is not of X.509 version 1 or 3, or is signed by one that is not of version 3"
        }
        _ => "cannot be used",
    };
    BadCertificate::of_time(error).unwrap_or_else(|| BadCertificate::Otherwise(otherwise(error)))
}

/// What the peer's TLS is accused of, if `error` says that: it comes out of a [`Session`](super::Session).
pub fn fault(error: &io::Error) -> Option<Fault> {
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    Some(match error {
        TlsError::InvalidCertificate(of) => Fault::Certificate(certificate(of)),
        TlsError::NoCertificatesPresented => Fault::Certificate(BadCertificate::Otherwise("is missing")),
        TlsError::AlertReceived(alert) => Fault::Alert(match alert {
            AlertDescription::CertificateExpired => "its clock says that this rank's certificate has expired",
            AlertDescription::UnknownCA => "it does not trust the authority of this rank's certificate",
            AlertDescription::CertificateRequired => "it needs a certificate of this rank",
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied
            | AlertDescription::UnsupportedCertificate => "it does not accept this rank's certificate",
            AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
            _ => "it ended the TLS session with an alert",
        }),
        TlsError::PeerIncompatible(_) => Fault::Tls("it does not speak TLS 1.3 with certificates of both sides"),
        TlsError::InvalidMessage(_) | TlsError::InappropriateMessage { .. } => Fault::Tls(
            "what it sends is not TLS: GLOO_RS_TRANSPORT, or the option in its place, must be the same on all ranks",
        ),
        TlsError::DecryptError | TlsError::PeerSentOversizedRecord => {
            Fault::Tls("what it sends has been changed on the way")
        }
        _ => Fault::Tls("its TLS handshake is wrong"),
    })
}

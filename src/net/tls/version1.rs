//! Certificates of X.509 version 1, which have no extensions. rustls' verifier refuses them, but `openssl x509 -req` of
//! OpenSSL 3.0 makes them unless a file of extensions is named, and Gloo's own tests use such.

#[cfg(test)]
mod tests;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, Error, RootCertStore};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Encode, Tag};
use x509_cert::spki::SubjectPublicKeyInfoRef;
use x509_cert::{Certificate, Version};

/// A rank's certificate of version 1, which an authority has signed itself: no other certificate is between the two.
pub struct Version1(Certificate);

impl Version1 {
    /// `None` if `certificate` is of another version, or malformed.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = Certificate::from_der(certificate).ok()?;
        let tbs = parsed.tbs_certificate();
        (tbs.version() == Version::V1 && tbs.extensions().is_none()).then_some(Self(parsed))
    }

    /// The SubjectPublicKeyInfo.
    pub fn public_key(&self) -> Result<SubjectPublicKeyInfoDer<'static>, Error> {
        Ok(encoded(self.0.tbs_certificate().subject_public_key_info())?.into())
    }

    /// Checks that one of `roots` has signed it, by an algorithm of `known`, and that it is valid at `now`.
    pub fn check(&self, roots: &RootCertStore, now: UnixTime, known: &WebPkiSupportedAlgorithms) -> Result<(), Error> {
        let issuer = encoded(self.0.tbs_certificate().issuer())?;
        let issuer = AnyRef::from_der(&issuer).map_err(malformed)?.value();
        // A certificate without extensions does not tell whether it is for the names to which an authority is
        // constrained.
        let anchors =
            roots.roots.iter().filter(|root| root.subject.as_ref() == issuer && root.name_constraints.is_none());
        let mut result = Err(CertificateError::UnknownIssuer.into());
        for anchor in anchors {
            result = self.check_signature(anchor, known);
            if result.is_ok() {
                break;
            }
        }
        result?;
        let validity = self.0.tbs_certificate().validity();
        let [not_before, not_after] =
            [validity.not_before, validity.not_after].map(|time| UnixTime::since_unix_epoch(time.to_unix_duration()));
        match now {
            time if time < not_before => Err(CertificateError::NotValidYetContext { time, not_before }.into()),
            time if time > not_after => Err(CertificateError::ExpiredContext { time, not_after }.into()),
            _ => Ok(()),
        }
    }

    fn check_signature(&self, anchor: &TrustAnchor<'_>, known: &WebPkiSupportedAlgorithms) -> Result<(), Error> {
        let key = AnyRef::new(Tag::Sequence, &anchor.subject_public_key_info).and_then(|key| key.to_der());
        let key = key.map_err(malformed)?;
        let key = SubjectPublicKeyInfoRef::from_der(&key).map_err(malformed)?;
        let (of_key, of_signature) = (contents(&key.algorithm)?, contents(self.0.signature_algorithm())?);
        let bad = || Error::from(CertificateError::BadSignature);
        if self.0.tbs_certificate().signature() != self.0.signature_algorithm() {
            return Err(bad());
        }
        let usable = known.all.iter().filter(|algorithm| {
            *algorithm.public_key_alg_id() == *of_key && *algorithm.signature_alg_id() == *of_signature
        });
        let message = encoded(self.0.tbs_certificate())?;
        let (key, signature) = (key.subject_public_key.as_bytes(), self.0.signature().as_bytes());
        let (key, signature) = key.zip(signature).ok_or_else(bad)?;
        let mut verified = usable.map(|algorithm| algorithm.verify_signature(key, &message, signature));
        if verified.any(|result| result.is_ok()) { Ok(()) } else { Err(bad()) }
    }
}

fn malformed(_: x509_cert::der::Error) -> Error {
    CertificateError::BadEncoding.into()
}

fn encoded(value: &impl Encode) -> Result<Vec<u8>, Error> {
    value.to_der().map_err(malformed)
}

/// What rustls compares of an identifier: without tag and length.
fn contents(identifier: &impl Encode) -> Result<Vec<u8>, Error> {
    Ok(AnyRef::from_der(&encoded(identifier)?).map_err(malformed)?.value().to_vec())
}

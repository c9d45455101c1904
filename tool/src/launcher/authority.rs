//! A throw-away authority for the TLS of one job. Its key is forgotten at once.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// How long the certificates are valid: longer than any job.
const VALID: Duration = Duration::from_secs(3650 * 24 * 3600);
/// How far the clocks of other hosts may be behind this one's.
const SKEW: Duration = Duration::from_secs(24 * 3600);

/// Variables with which all ranks of a job use TLS: one certificate and its key for all of them, as text, so that no
/// file is left behind.
pub fn environment() -> Result<Vec<(OsString, OsString)>, String> {
    let [authority, certificate, key] = certificates().map_err(|error| format!("cannot make certificates: {error}"))?;
    let variables = [
        ("GLOO_RS_TRANSPORT", "tls".to_owned()),
        ("GLOO_RS_TLS_CERT", certificate),
        ("GLOO_RS_TLS_KEY", key),
        ("GLOO_RS_TLS_CA_FILE", authority),
        ("GLOO_RS_TLS_CA_PATH", String::new()),
        ("GLOO_RS_TLS_NAMES", String::new()),
    ];
    Ok(variables.map(|(name, value)| (name.into(), value.into())).into())
}

/// The certificates of an authority and of a rank, and the key of the latter.
fn certificates() -> Result<[String; 3], rcgen::Error> {
    let now = SystemTime::now();
    let params = |name: &str| {
        let mut params = CertificateParams::new(vec![format!("{name}.gloo-rs.invalid")])?;
        params.distinguished_name.push(DnType::CommonName, format!("gloo-rs run: {name}"));
        (params.not_before, params.not_after) = ((now - SKEW).into(), (now + VALID).into());
        Ok::<_, rcgen::Error>(params)
    };
    let mut authority = params("authority")?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority_key = KeyPair::generate()?;
    let own = authority.self_signed(&authority_key)?;
    let mut rank = params("rank")?;
    rank.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = rank.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok([own.pem(), certificate.pem(), key.serialize_pem()])
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;
    use gloo_rs::net::tls::{Credentials, Options};

    #[test]
    fn ranks_accept_what_it_has_made() {
        let [authority, certificate, key] = certificates().unwrap();
        let options = |ca: &str| Options {
            cert: Some(certificate.clone().into()),
            key: Some(key.clone().into()),
            ca_file: Some(ca.into()),
            ..Options::default()
        };
        Credentials::new(options(&authority), None).unwrap();
        let [another, ..] = certificates().unwrap();
        assert!(Credentials::new(options(&another), None).is_err(), "each job has its own");
    }
}

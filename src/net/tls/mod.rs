//! TLS 1.3 for connections between ranks and to the TCP store, by rustls with ring. The crypto provider is passed
//! explicitly: none is installed for the process.
//!
//! Both sides present a certificate. A peer is whoever the authority has signed, whatever host it is on: ranks find
//! each other by addresses that they exchange, not by names. [`Options::names`] narrows that. The job's token is proven
//! as without TLS, and its proofs cover the session ([`Session::binding`]), so they cannot be relayed from one session
//! into another.

mod buffer;
mod connection;
mod exporter;
mod files;
mod session;
mod sink;
#[cfg(test)]
pub(crate) mod tests;
mod verify;
mod version1;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, InconsistentKeys, ServerConfig, version};

pub use session::Session;
pub use verify::fault;

use crate::environment;
use crate::error::{Error, Result};
use crate::log::{Level, LogCallback};
use crate::sys::file::Until;
use files::{Files, Stamps};
use verify::Authority;
use version1::Version1;

/// Environment variables of the files, and Gloo's names for them.
const VARIABLES: [[&str; 2]; 4] = [
    ["GLOO_RS_TLS_CERT", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT"],
    ["GLOO_RS_TLS_KEY", "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY"],
    ["GLOO_RS_TLS_CA_FILE", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE"],
    ["GLOO_RS_TLS_CA_PATH", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_PATH"],
];
/// Environment variable of [`Options::names`], separated by commas.
const NAMES: &str = "GLOO_RS_TLS_NAMES";

/// The files of this rank's identity and of its authority, all in PEM format. The text of a file, which begins with
/// `-----BEGIN`, may take the place of its path: so a launcher passes them on without files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The certificate of this rank, and those between it and the authority.
    pub cert: Option<PathBuf>,
    /// The certificate's private key: PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key: Option<PathBuf>,
    /// Certificates of authorities.
    pub ca_file: Option<PathBuf>,
    /// A folder of such files, named as OpenSSL's `rehash` does or in any other way.
    pub ca_path: Option<PathBuf>,
    /// DNS names and IP addresses, one of which a peer's certificate must be for; any if there are none.
    pub names: Vec<String>,
    /// The environment variables that named the files, in the order of the fields; `None` for the options themselves.
    pub variables: [Option<&'static str>; 4],
}

impl Options {
    /// The names in a list with commas.
    pub fn names_in(list: &str) -> Vec<String> {
        list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// Returns these options, and what the environment says where they say nothing. `ca_file` and `ca_path` together
    /// replace the environment's.
    pub fn or_environment(mut self) -> Self {
        let names_authority = self.ca_file.is_some() || self.ca_path.is_some();
        let named = [self.cert.is_some(), self.key.is_some(), names_authority, names_authority];
        let files = [&mut self.cert, &mut self.key, &mut self.ca_file, &mut self.ca_path];
        for (index, file) in files.into_iter().enumerate().filter(|(index, _)| !named[*index]) {
            let set = VARIABLES[index].into_iter().map(|name| (name, std::env::var_os(name).unwrap_or_default()));
            if let Some((name, value)) = set.into_iter().find(|(_, value)| !value.is_empty()) {
                (*file, self.variables[index]) = (Some(value.into()), Some(name));
            }
        }
        if self.names.is_empty() {
            self.names = Self::names_in(&std::env::var(NAMES).unwrap_or_default());
        }
        self
    }
}

/// What connections need, in both roles.
#[derive(Clone)]
struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// The certificate of this process, its key, and the authority. Thread-safe.
pub struct Credentials {
    options: Options,
    log: Option<LogCallback>,
    current: Mutex<(Stamps, Configs)>,
}

impl Credentials {
    /// Reads the files. Errors name the file, and the line where there is one; a key that others can read is a warning
    /// in `log`.
    pub fn new(options: Options, log: Option<LogCallback>) -> Result<Arc<Self>> {
        let stamps = Stamps::of(&options);
        // What reads the files has no timeout of its own: it is a part of starting.
        let until = Until::after(environment::default_timeout()?);
        let (configs, warning) = read(&options, until).map_err(environment::by_default)?;
        let credentials = Self { options, log, current: Mutex::new((stamps, configs)) };
        if let Some(warning) = warning {
            credentials.log(&warning);
        }
        Ok(Arc::new(credentials))
    }

    /// A session of the side that connects.
    pub fn connect(&self) -> std::io::Result<Session> {
        Session::client(&self.configs().client)
    }

    /// A session of the side that accepts.
    pub fn accept(&self) -> std::io::Result<Session> {
        Session::server(&self.configs().server)
    }

    /// Returns what the files hold now: certificates may be renewed while the job runs. If what is new cannot be used,
    /// what was read before still is.
    fn configs(&self) -> Configs {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = Stamps::of(&self.options);
        if stamps != current.0 {
            current.0 = stamps;
            // Who connects or accepts does not wait for the writer of a pipe.
            match read(&self.options, Until::after(Duration::ZERO)) {
                Ok((configs, warning)) => {
                    current.1 = configs;
                    self.log(&warning.unwrap_or_else(|| "the TLS files have changed: new connections use them".into()));
                }
                Err(error) => self.log(&format!("the TLS files have changed, and are not used: {error}")),
            }
        }
        current.1.clone()
    }

    fn log(&self, text: &str) {
        if let Some(log) = &self.log {
            log(Level::Warning, text);
        }
    }
}

fn read(options: &Options, until: Until) -> Result<(Configs, Option<String>)> {
    read_for(options, Arc::new(ring::default_provider()), until)
}

fn read_for(options: &Options, provider: Arc<CryptoProvider>, until: Until) -> Result<(Configs, Option<String>)> {
    let Files { chain, key, roots, warning } = files::read(options, until)?;
    let (cert_file, key_file) = (files::named(options, 0), files::named(options, 1));
    let authority = Arc::new(Authority::new(provider.clone(), roots, &options.names)?);
    authority.check_own(&chain).map_err(|why| Error::invalid(format!("{cert_file}: {why}")))?;
    let unusable = |error: rustls::Error| match error {
        rustls::Error::InconsistentKeys(_) => {
            Error::invalid(format!("{key_file} is not the private key of the certificate in {cert_file}"))
        }
        error => Error::invalid(format!("cannot use {key_file} with {cert_file}: {error}")),
    };
    let own = Arc::new(SingleCertAndKey::from(certified(chain, key, &provider).map_err(unusable)?));
    let versions = &[&version::TLS13];
    let internal = |error: rustls::Error| Error::invalid(format!("cannot use TLS: {error}"));
    let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions);
    let client = client.map_err(internal)?.dangerous().with_custom_certificate_verifier(authority.clone());
    let mut client = client.with_client_cert_resolver(own.clone());
    let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).map_err(internal)?;
    let mut server = server.with_client_cert_verifier(authority).with_cert_resolver(own);
    // Every connection proves the certificates anew.
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    Ok((Configs { client: Arc::new(client), server: Arc::new(server) }, warning))
}

/// Returns this rank's certificate with its key, if they belong together.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> std::result::Result<CertifiedKey, rustls::Error> {
    let certified = CertifiedKey::new(chain, provider.key_provider.load_private_key(key)?);
    let matches = match Version1::of(certified.end_entity_cert()?) {
        None => certified.keys_match(),
        Some(certificate) => match certified.key.public_key() {
            Some(key) if key != certificate.public_key()? => Err(InconsistentKeys::KeyMismatch.into()),
            _ => Ok(()),
        },
    };
    match matches {
        // Some kinds of keys do not tell.
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        matches => matches.map(|()| certified),
    }
}

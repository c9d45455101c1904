//! Ranks that are killed or stopped, where all connections, those to the store too, are TLS: the errors are those over
//! TCP.

use gloo_rs::net::stream::Transport;
use gloo_rs::net::tls::Options;
use gloo_rs::rendezvous::tcp::TcpStoreOptions;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::job::Job;
use super::{lost, silent};

/// A certificate of an authority of its own, its key, and the authority's certificate, as text.
fn certificates() -> [String; 3] {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let trusted = authority.self_signed(&authority_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let rank = CertificateParams::new(vec!["rank.example".into()]).unwrap();
    let own = rank.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap().pem();
    [own, key.serialize_pem(), trusted]
}

/// A job whose ranks share no memory, and whose links have so many connections.
fn start(scenario: &str, what: &str, streams: u32) -> Job {
    let [cert, key, authority] = certificates();
    let options = Options {
        cert: Some(cert.clone().into()),
        key: Some(key.clone().into()),
        ca_file: Some(authority.clone().into()),
        ..Options::default()
    };
    let options = TcpStoreOptions { transport: Some(Transport::Tls(options)), ..TcpStoreOptions::default() };
    let variables = vec![
        ("GLOO_RS_TRANSPORT", "tls".to_owned()),
        ("GLOO_RS_TLS_CERT", cert),
        ("GLOO_RS_TLS_KEY", key),
        ("GLOO_RS_TLS_CA_FILE", authority),
        ("GLOO_RS_SHM", "0".to_owned()),
        ("GLOO_RS_STREAMS", streams.to_string()),
    ];
    Job::start_with(scenario, what, &options, variables)
}

#[test]
fn a_rank_is_killed_over_tls() {
    lost::kill_in_the_middle(start("lost", "killed", 1));
}

#[test]
fn a_rank_is_killed_over_tls_with_several_connections() {
    lost::kill_in_the_middle(start("lost", "killed", 3));
}

#[test]
fn a_rank_is_stopped_over_tls() {
    silent::stop_in_the_middle(start("silent", "stopped", 1));
}

#[test]
fn a_rank_is_stopped_over_tls_with_several_connections() {
    silent::stop_in_the_middle(start("silent", "stopped", 3));
}

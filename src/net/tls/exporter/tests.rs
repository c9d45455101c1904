use std::io::{IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::{ServerConfig, ServerConnection, version};

use super::LABEL;
use crate::net::tls::tests::{Authority, now};
use crate::net::tls::{Credentials, files};
use crate::sys::AsRaw;

/// rustls itself exports keying material of connections with buffers.
#[test]
fn rustls_exports_the_same_at_the_other_end() {
    let authority = Authority::new();
    let suites = ring::ALL_CIPHER_SUITES.iter().copied().filter(|suite| suite.tls13().is_some());
    for suite in suites {
        let provider = CryptoProvider { cipher_suites: vec![suite], ..ring::default_provider() };
        let files = files::read(&authority.member(), now()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(provider));
        let config = config.with_protocol_versions(&[&version::TLS13]).unwrap().with_no_client_auth();
        let mut server =
            ServerConnection::new(Arc::new(config.with_single_cert(files.chain, files.key).unwrap())).unwrap();
        let mut session = Credentials::new(authority.member(), None).unwrap().connect().unwrap();
        let (own, mut other) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        other.set_nonblocking(true).unwrap();
        assert!(session.binding().is_none());
        for _ in 0..4 {
            let mut bytes = [0; 10_000];
            assert!(
                session.receive(own.raw(), &mut [IoSliceMut::new(&mut [0; 10])]).is_err(),
                "there is nothing to receive"
            );
            let mut bytes = match other.read(&mut bytes) {
                Ok(count) => &bytes[..count],
                Err(_) => &[],
            };
            while !bytes.is_empty() {
                server.read_tls(&mut bytes).unwrap();
                server.process_new_packets().unwrap();
            }
            while server.wants_write() {
                server.write_tls(&mut other).unwrap();
            }
            other.flush().unwrap();
        }
        let theirs = server.export_keying_material([0; 32], LABEL, Some(b"")).unwrap();
        assert_eq!(session.binding(), Some(theirs), "{suite:?}");
    }
}

use std::fs;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundOpaqueMessage, OutboundPlainMessage, Tls13AeadAlgorithm,
    UnsupportedOperationError,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ConnectionTrafficSecrets, ContentType, SupportedCipherSuite, Tls13CipherSuite};
use tempfile::TempDir;

use super::*;
use crate::net::handshake::{BadCertificate, Fault};
use crate::net::stream::{Security, Stream};

/// An authority with a folder of its own.
pub(crate) struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

/// What a certificate is made for.
pub(super) struct Terms {
    pub names: Vec<String>,
    /// Days from now.
    pub from: i64,
    pub until: i64,
    pub usages: Vec<ExtendedKeyUsagePurpose>,
}

impl Default for Terms {
    fn default() -> Self {
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Self { names: vec!["rank.example".into()], from: -1, until: 1, usages }
    }
}

/// A name that no other authority has.
fn name_of(folder: &TempDir) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, folder.path().display().to_string());
    name
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = name_of(&folder);
        let key = KeyPair::generate().unwrap();
        fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// A certificate that is valid until yesterday.
    pub fn expired(&self) -> Options {
        self.issue("expired", &Terms { from: -3, until: -1, ..Terms::default() })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The files of a rank with a certificate for `rank.example`. They exist as long as the authority; what has read
    /// them goes on with what it has read.
    pub fn member(&self) -> Options {
        self.issue("rank", &Terms::default())
    }

    pub(super) fn issue(&self, name: &str, terms: &Terms) -> Options {
        let mut params = CertificateParams::new(terms.names.clone()).unwrap();
        let day = |days: i64| {
            let (now, time) = (SystemTime::now(), Duration::from_secs(days.unsigned_abs() * 24 * 3600));
            if days < 0 { now - time } else { now + time }
        };
        (params.not_before, params.not_after) = (day(terms.from).into(), day(terms.until).into());
        params.extended_key_usages = terms.usages.clone();
        self.sign(name, params, &KeyPair::generate().unwrap())
    }

    fn sign(&self, name: &str, params: CertificateParams, key: &KeyPair) -> Options {
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        let (cert, private) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&cert, certificate.pem()).unwrap();
        fs::write(&private, key.serialize_pem()).unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
        Options { cert: Some(cert), key: Some(private), ca_file: Some(self.path("ca.pem")), ..Options::default() }
    }
}

/// Until when files are read that are no pipes.
pub(super) fn now() -> Until {
    Until::after(Duration::ZERO)
}

pub(super) fn pem_of(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let quad = |three: &[u8]| {
        let number = three.iter().chain([0; 2].iter()).take(3).fold(0u32, |all, byte| all << 8 | u32::from(*byte));
        let digit = |at: usize| DIGITS[(number >> (18 - 6 * at)) as usize & 63] as char;
        (0..4).map(|at| if at <= three.len() { digit(at) } else { '=' }).collect::<String>()
    };
    let lines: Vec<String> = der.chunks(48).map(|line| line.chunks(3).map(quad).collect()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

pub(super) fn security(options: Options) -> Security {
    Security::Tls(Credentials::new(options, None).unwrap())
}

pub(super) fn sockets() -> [OwnedFd; 2] {
    let (left, right) = UnixStream::pair().unwrap();
    [left, right].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        socket.into()
    })
}

/// Returns both ends of a connection, first the one that connects.
pub(crate) fn pair(client: Options, server: Options) -> [Stream; 2] {
    let [left, right] = sockets();
    [security(client).connect(left.into()).unwrap(), security(server).accept(right.into()).unwrap()]
}

pub(crate) fn send(stream: &mut Stream, bytes: &[u8]) -> std::io::Result<usize> {
    stream.send(&[IoSlice::new(bytes)])
}

/// Lets both sides go on until neither can; returns what each has received, and how it ended if it did.
pub(crate) fn settle(ends: &mut [Stream; 2]) -> [(Vec<u8>, Option<std::io::Result<()>>); 2] {
    let mut got = [(Vec::new(), None), (Vec::new(), None)];
    let mut idle = 0;
    while idle < 4 {
        idle += 1;
        for (end, (bytes, over)) in ends.iter_mut().zip(&mut got) {
            let mut into = [0; 1000];
            if over.is_some() {
                continue;
            }
            match end.receive(&mut [IoSliceMut::new(&mut into)]) {
                Ok(0) => *over = Some(Ok(())),
                Ok(n) => {
                    bytes.extend(&into[..n]);
                    idle = 0;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => *over = Some(Err(error)),
            }
        }
    }
    got
}

/// What each side says of the other after a handshake that must fail.
pub(super) fn faults(client: Options, server: Options) -> [Option<Fault>; 2] {
    let mut ends = pair(client, server);
    send(&mut ends[0], b"hello").unwrap();
    let got = settle(&mut ends);
    assert!(got.iter().all(|(bytes, _)| bytes.is_empty()), "nothing arrives before the handshake is over");
    got.map(|(_, over)| over.and_then(|over| crate::net::stream::fault(&over.unwrap_err())))
}

#[test]
fn bytes_arrive_in_order_whatever_their_number() {
    let authority = Authority::new();
    let mut ends = pair(authority.member(), authority.member());
    let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    for length in [1, 40, 16_383, 16_384, 16_385, 100_000, data.len()] {
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut sent, mut received) = (0, Vec::<u8>::new());
            while received.len() < length {
                if sent < length {
                    let (a, b) = data[sent..length].split_at((length - sent) / 3);
                    match ends[from].send(&[IoSlice::new(a), IoSlice::new(b)]) {
                        Ok(n) => sent += n,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
                ends[from].flush().unwrap();
                let got = settle(&mut ends);
                assert!(got[from].0.is_empty() && got[0].1.is_none() && got[1].1.is_none());
                received.extend(&got[to].0);
            }
            assert!(received == data[..length], "{length} bytes from {from}");
        }
    }
    let bindings = ends.each_mut().map(Stream::binding);
    assert_eq!((bindings[0].len(), &bindings[0]), (32, &bindings[1]));
    let mut others = pair(authority.member(), authority.member());
    settle(&mut others);
    assert_ne!(others[0].binding(), bindings[0], "each session has its own");
}

#[test]
fn a_part_that_is_filled_says_that_there_may_be_more() {
    let authority = Authority::new();
    let mut ends = pair(authority.member(), authority.member());
    settle(&mut ends);
    send(&mut ends[0], &[7; 100]).unwrap();
    let mut some = [0; 30];
    for left in [true, true, true, false] {
        let got = ends[1].receive(&mut [IoSliceMut::new(&mut some)]).unwrap();
        assert_eq!((got, ends[1].has_received()), (if left { 30 } else { 10 }, left));
    }
    let again = ends[1].receive(&mut [IoSliceMut::new(&mut some)]);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn bytes_can_be_received_in_place_and_copied_by_turns() {
    let authority = Authority::new();
    let mut ends = pair(authority.member(), authority.member());
    settle(&mut ends);
    let data: Vec<u8> = (0..70_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    for max in [0, 1, 20_000, 40_000, usize::MAX] {
        assert_eq!(send(&mut ends[0], &data).unwrap(), data.len());
        let mut received = Vec::<u8>::new();
        // A part that is shorter than a record, whose rest is then received in place.
        let mut some = [0; 100];
        assert_eq!(ends[1].receive(&mut [IoSliceMut::new(&mut some)]).unwrap(), 100);
        received.extend(some);
        while received.len() < data.len() {
            let (mut passed, mut full) = (0, false);
            let result = ends[1].receive_in_place(&mut |bytes| {
                assert!(!full && !bytes.is_empty(), "bytes follow although no more are wanted");
                received.extend(bytes);
                passed += bytes.len();
                full = passed > max;
                !full
            });
            assert_eq!(result.unwrap().unwrap(), passed);
            assert!(full || received.len() == data.len(), "{max}: stops after {passed} bytes");
        }
        assert!(received == data, "{max}");
        let again = ends[1].receive_in_place(&mut |_| panic!("there is no more")).unwrap();
        assert_eq!(again.unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    ends[0].close();
    ends[0].flush().unwrap();
    assert_eq!(ends[1].receive_in_place(&mut |_| panic!("this is the end")).unwrap().unwrap(), 0);
}

/// A cipher that counts the keys by which something is encrypted.
struct Cipher {
    original: &'static dyn Tls13AeadAlgorithm,
    keys: AtomicUsize,
    /// What is sent is said to be a part of the handshake.
    disguises: Arc<AtomicBool>,
}

struct Encrypter {
    original: Box<dyn MessageEncrypter>,
    disguises: Arc<AtomicBool>,
}

impl Tls13AeadAlgorithm for Cipher {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.keys.fetch_add(1, Ordering::Relaxed);
        Box::new(Encrypter { original: self.original.encrypter(key, iv), disguises: self.disguises.clone() })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.original.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.original.key_len()
    }

    fn extract_keys(&self, key: AeadKey, iv: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.original.extract_keys(key, iv)
    }
}

impl MessageEncrypter for Encrypter {
    fn encrypt(
        &mut self,
        mut message: OutboundPlainMessage<'_>,
        number: u64,
    ) -> Result<OutboundOpaqueMessage, rustls::Error> {
        if message.typ == ContentType::ApplicationData && self.disguises.load(Ordering::Relaxed) {
            message.typ = ContentType::Handshake;
        }
        self.original.encrypt(message, number)
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        self.original.encrypted_payload_len(length)
    }
}

/// Returns both ends of a session that encrypts `max` records with a key.
fn pair_by(max: u64) -> ([Stream; 2], &'static Cipher) {
    let original = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let cipher = Cipher { original: original.aead_alg, keys: AtomicUsize::new(0), disguises: Arc::default() };
    let cipher: &Cipher = Box::leak(Box::new(cipher));
    let common = CipherSuiteCommon {
        suite: original.common.suite,
        hash_provider: original.common.hash_provider,
        confidentiality_limit: max,
    };
    let suite = Tls13CipherSuite { common, hkdf_provider: original.hkdf_provider, aead_alg: cipher, quic: None };
    let suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)));
    let provider = Arc::new(CryptoProvider { cipher_suites: vec![suite], ..ring::default_provider() });
    let authority = Authority::new();
    let options = authority.member();
    let stamps = Stamps::of(&options);
    let (configs, _) = read_for(&options, provider, now()).unwrap();
    let security = Security::Tls(Arc::new(Credentials { options, log: None, current: Mutex::new((stamps, configs)) }));
    let [left, right] = sockets();
    let mut ends = [security.connect(left.into()).unwrap(), security.accept(right.into()).unwrap()];
    settle(&mut ends);
    (ends, cipher)
}

/// AES-GCM may encrypt 2^24 records with a key, at most 256 GiB.
#[test]
fn keys_are_renewed_while_both_sides_send() {
    const RECORDS: u64 = 5;
    let (mut ends, cipher) = pair_by(RECORDS);
    let before = cipher.keys.load(Ordering::Relaxed);
    let data: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let (mut sent, mut received) = ([0; 2], [Vec::<u8>::new(), Vec::new()]);
    for turn in 0.. {
        assert!(turn < 10_000, "{} and {} bytes have come", received[0].len(), received[1].len());
        for (side, end) in ends.iter_mut().enumerate() {
            let max = (sent[side] + [1, 20_000, 70_000][turn % 3]).min(data.len());
            match send(end, &data[sent[side]..max]) {
                Ok(n) => sent[side] += n,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            end.flush().unwrap();
        }
        for (got, (bytes, over)) in received.iter_mut().zip(settle(&mut ends)) {
            assert!(over.is_none(), "{over:?}");
            got.extend(bytes);
        }
        if received.iter().all(|got| got.len() == data.len()) {
            break;
        }
    }
    assert!(received.iter().all(|got| *got == data));
    let records = 2 * data.len() / (16 << 10);
    let renewed = cipher.keys.load(Ordering::Relaxed) - before;
    assert!(renewed >= records / RECORDS as usize, "{renewed} new keys for {records} records or more");
}

/// TLS 1.3 has no renegotiation.
#[test]
fn a_peer_that_begins_a_second_handshake_is_refused() {
    for hello in [[1, 0, 0, 2, 3, 3], [0, 0, 0, 2, 3, 3]] {
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut ends, cipher) = pair_by(1 << 24);
            cipher.disguises.store(true, Ordering::Relaxed);
            send(&mut ends[from], &hello).unwrap();
            let got = settle(&mut ends);
            // The one that began is told by an alert.
            for side in [to, from] {
                let error = got[side].1.as_ref().expect("an end").as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            }
            assert!(got[to].0.is_empty());
        }
    }
}

#[test]
fn what_the_socket_does_not_take_is_kept_and_sent_later() {
    let authority = Authority::new();
    let mut ends = pair(authority.member(), authority.member());
    settle(&mut ends);
    let block = vec![3; 1 << 20];
    let mut sent = 0;
    loop {
        match send(&mut ends[0], &block) {
            Ok(n) => sent += n,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(sent < 100 << 20, "the socket is never full");
    }
    assert!(ends[0].has_unsent());
    let mut received = 0;
    while ends[0].has_unsent() || received < sent {
        received += settle(&mut ends)[1].0.len();
        ends[0].flush().unwrap();
    }
    assert_eq!(received, sent);
}

#[test]
fn an_end_is_orderly_only_if_the_peer_has_said_so() {
    let authority = Authority::new();
    for orderly in [true, false] {
        let mut ends = pair(authority.member(), authority.member());
        settle(&mut ends);
        send(&mut ends[0], b"last words").unwrap();
        if orderly {
            ends[0].close();
            ends[0].flush().unwrap();
        }
        let [left, mut right] = ends;
        drop(left);
        let mut into = [0; 100];
        let mut receive = || right.receive(&mut [IoSliceMut::new(&mut into)]);
        assert_eq!(receive().unwrap(), 10);
        for _ in 0..2 {
            match receive() {
                Ok(0) => assert!(orderly),
                Err(error) => assert!(!orderly && error.kind() == ErrorKind::UnexpectedEof, "{error}"),
                Ok(_) => panic!("there is no more"),
            }
        }
    }
}

/// A rank that gives up sends the reason and closes; the others may find out while they send.
#[test]
fn what_was_sent_before_the_end_is_received_although_nothing_can_be_sent() {
    let authority = Authority::new();
    let mut ends = pair(authority.member(), authority.member());
    settle(&mut ends);
    send(&mut ends[0], b"last words").unwrap();
    ends[0].close();
    ends[0].flush().unwrap();
    let [left, mut right] = ends;
    drop(left);
    assert!((0..10).any(|_| send(&mut right, &[1; 1000]).is_err()), "the connection is broken");
    let mut into = [0; 100];
    assert_eq!(right.receive(&mut [IoSliceMut::new(&mut into)]).unwrap(), 10);
    assert_eq!(right.receive(&mut [IoSliceMut::new(&mut into)]).unwrap(), 0);
    assert!(!right.has_unsent() && send(&mut right, b"more").is_err());
}

/// The connection itself may stay open for a while.
#[test]
fn the_end_of_the_session_is_the_end_of_the_stream() {
    let authority = Authority::new();
    let mut ends = pair(authority.member(), authority.member());
    settle(&mut ends);
    ends[0].close();
    ends[0].flush().unwrap();
    let mut into = [0; 100];
    assert_eq!(ends[1].receive(&mut [IoSliceMut::new(&mut into)]).unwrap(), 0);
    // The other direction is still open.
    send(&mut ends[1], b"more").unwrap();
    assert_eq!(ends[0].receive(&mut [IoSliceMut::new(&mut into)]).unwrap(), 4);
}

#[test]
fn certificates_that_are_not_accepted_are_named_on_both_sides() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let good = ours.member();
    // The owner of this certificate trusts our authority, which has not signed it.
    let foreign = || {
        let mut foreign = theirs.issue("foreign", &Terms::default());
        fs::write(
            ours.path("both.pem"),
            [&good, &foreign].map(|of| fs::read(of.ca_file.as_ref().unwrap()).unwrap()).concat(),
        )
        .unwrap();
        foreign.ca_file = Some(ours.path("both.pem"));
        foreign
    };
    let untrusted =
        Fault::Certificate(BadCertificate::Otherwise("is not signed by the authority that this rank trusts"));
    let distrusts = Fault::Alert("it does not trust the authority of this rank's certificate");
    assert_eq!(faults(foreign(), good.clone()), [Some(distrusts), Some(untrusted)]);
    assert_eq!(faults(good.clone(), foreign()), [Some(untrusted), Some(distrusts)]);
    let named = |names: &[&str]| Options { names: names.iter().map(|name| name.to_string()).collect(), ..good.clone() };
    let [ours_says, theirs_says] = faults(good.clone(), named(&["other.example", "10.0.0.1"]));
    assert_eq!(
        theirs_says,
        Some(Fault::Certificate(BadCertificate::Otherwise("is for none of the names that this rank accepts")))
    );
    assert_eq!(ours_says, Some(Fault::Alert("it does not accept this rank's certificate")));
    // One of several names is enough.
    let mut ends = pair(good.clone(), named(&["other.example", "rank.example"]));
    send(&mut ends[0], b"hello").unwrap();
    assert_eq!(settle(&mut ends)[1].0, b"hello");
}

#[test]
fn a_peer_without_a_certificate_or_with_tls_1_2_is_refused() {
    let authority = Authority::new();
    let roots = files::read(&authority.member(), now()).unwrap().roots;
    let anonymous = |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots.clone()).with_no_client_auth()
    };
    for (versions, expected) in [
        (&[&version::TLS13][..], Fault::Certificate(BadCertificate::Otherwise("is missing"))),
        #[cfg(feature = "redis")]
        (&[&version::TLS12][..], Fault::Tls("it does not speak TLS 1.3 with certificates of both sides")),
    ] {
        let [left, right] = sockets();
        let mut server = security(authority.member()).accept(right.into()).unwrap();
        let name = "rank.example".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(anonymous(versions)), name).unwrap();
        let mut socket = UnixStream::from(left);
        let error = loop {
            let _ = client.complete_io(&mut socket);
            match server.receive(&mut [IoSliceMut::new(&mut [0; 10])]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(crate::net::stream::fault(&error), Some(expected));
    }
}

#[test]
fn what_is_not_tls_is_refused_at_once() {
    let authority = Authority::new();
    for bytes in [&b"gloo_rs\x07rest"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 64]] {
        let [left, right] = sockets();
        let mut server = security(authority.member()).accept(right.into()).unwrap();
        UnixStream::from(left.try_clone().unwrap()).write_all(bytes).unwrap();
        let error = server.receive(&mut [IoSliceMut::new(&mut [0; 10])]).unwrap_err();
        let Some(Fault::Tls(why)) = crate::net::stream::fault(&error) else { panic!("{error}") };
        assert!(why.starts_with("what it sends is not TLS"), "{why}");
        // The other end gets an alert, which a side without TLS recognises.
        let mut answer = [0; 7];
        UnixStream::from(left).read_exact(&mut answer).unwrap();
        assert_eq!(Fault::foreign(&answer[..1]), Fault::foreign(&[0x15]));
        assert!(server.receive(&mut [IoSliceMut::new(&mut [0; 10])]).is_err(), "it stays refused");
    }
}

#[test]
fn records_may_arrive_byte_by_byte_and_changed_ones_are_noticed() {
    let authority = Authority::new();
    for changed in [None, Some(9), Some(400)] {
        let [[left, near], [far, right]] = [sockets(), sockets()];
        let mut ends = [
            security(authority.member()).connect(left.into()).unwrap(),
            security(authority.member()).accept(right.into()).unwrap(),
        ];
        send(&mut ends[0], b"hello").unwrap();
        let (mut near, mut far) = (UnixStream::from(near), UnixStream::from(far));
        let (mut received, mut passed) = (Vec::<u8>::new(), 0);
        let error = 'over: loop {
            for forward in [true, false] {
                let (from, to) = if forward { (&mut near, &mut far) } else { (&mut far, &mut near) };
                let mut byte = [0];
                if from.read(&mut byte).is_ok_and(|n| n == 1) {
                    passed += usize::from(forward);
                    if forward && changed == Some(passed) {
                        byte[0] ^= 1;
                    }
                    to.write_all(&byte).unwrap();
                }
                for (end, got) in ends.iter_mut().zip([&mut Vec::new(), &mut received]) {
                    let mut into = [0; 10];
                    match end.receive(&mut [IoSliceMut::new(&mut into)]) {
                        Ok(n) => got.extend(&into[..n]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) => break 'over Some(error),
                    }
                }
                if received == b"hello" {
                    break 'over None;
                }
            }
        };
        assert_eq!(error.is_some(), changed.is_some(), "{changed:?}: {error:?}");
        if let Some(error) = error {
            assert!(crate::net::stream::fault(&error).is_some(), "{error}");
        }
    }
}

pub(super) fn refused(options: Options) -> String {
    match Credentials::new(options, None) {
        Ok(_) => panic!("these files can be used"),
        Err(error) => error.message().to_owned(),
    }
}

#[test]
fn errors_name_the_file_and_the_line() {
    let authority = Authority::new();
    let good = authority.member();
    let by = |path: &Path, option: &str| format!("{} (TLS option {option})", path.display());
    let at = |path: &Path, option: &str, line: usize| format!("{}, line {line}: ", by(path, option));
    let file = |name: &str, text: &str| {
        fs::write(authority.path(name), text).unwrap();
        Some(authority.path(name))
    };
    assert_eq!(
        refused(Options { cert: None, ..good.clone() }),
        "TLS needs a certificate: the option, or GLOO_RS_TLS_CERT"
    );
    let no_authority = refused(Options { ca_file: None, ..good.clone() });
    assert!(no_authority.ends_with("GLOO_RS_TLS_CA_FILE or GLOO_RS_TLS_CA_PATH"), "{no_authority}");
    let missing = refused(Options { key: Some("/nowhere/key.pem".into()), ..good.clone() });
    assert!(missing.starts_with("cannot read /nowhere/key.pem (TLS option key): "), "{missing}");
    let variables = [None, Some("GLOO_RS_TLS_KEY"), None, None];
    let missing = refused(Options { key: Some("/nowhere/key.pem".into()), variables, ..good.clone() });
    assert!(missing.starts_with("cannot read /nowhere/key.pem (GLOO_RS_TLS_KEY): "), "{missing}");

    let empty = file("empty.pem", "hello\n");
    let named =
        |option: &str, what: &str| format!("{}: there is no {what} in it", by(&authority.path("empty.pem"), option));
    assert_eq!(refused(Options { cert: empty.clone(), ..good.clone() }), named("cert", "certificate"));
    assert_eq!(refused(Options { key: empty.clone(), ..good.clone() }), named("key", "private key"));
    assert_eq!(refused(Options { ca_file: empty, ..good.clone() }), named("ca_file", "certificate"));

    let pem = fs::read_to_string(good.cert.as_ref().unwrap()).unwrap();
    let lines = pem.lines().count();
    let cut = file("cut.pem", &format!("{pem}{}", pem.lines().take(3).collect::<Vec<_>>().join("\n")));
    assert_eq!(
        refused(Options { cert: cut, ..good.clone() }),
        at(&authority.path("cut.pem"), "cert", lines + 1) + "this section has no end"
    );
    let garbled = file("garbled.pem", &pem.replacen("M", "?", 1));
    assert_eq!(
        refused(Options { cert: garbled, ..good.clone() }),
        at(&authority.path("garbled.pem"), "cert", 1) + "what follows is not base64"
    );
    let no_ca = file("noca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let why = refused(Options { ca_file: no_ca, ..good.clone() });
    assert!(
        why.starts_with(&(at(&authority.path("noca.pem"), "ca_file", 1) + "cannot trust this certificate")),
        "{why}"
    );

    let other = authority.issue("other", &Terms::default());
    let (cert, key) = (good.cert.clone().unwrap(), other.key.clone().unwrap());
    assert_eq!(
        refused(Options { key: other.key.clone(), ..good.clone() }),
        format!("{} is not the private key of the certificate in {}", by(&key, "key"), by(&cert, "cert"))
    );
    for (terms, why) in [
        (Terms { from: -3, until: -2, ..Terms::default() }, "has expired: it was valid until 2"),
        (Terms { from: 2, until: 3, ..Terms::default() }, "is not valid before 2"),
        (
            Terms { usages: vec![ExtendedKeyUsagePurpose::ServerAuth], ..Terms::default() },
            "is not for both roles: its extended key usage must contain serverAuth and clientAuth, or be absent",
        ),
    ] {
        let bad = authority.issue("bad", &terms);
        let said = refused(bad.clone());
        assert!(said.starts_with(&format!("{}: this certificate {why}", by(&bad.cert.unwrap(), "cert"))), "{said}");
    }
    let mut der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec();
    let version_3 = [0xa0, 3, 2, 1, 2];
    let at = der.windows(version_3.len()).position(|bytes| bytes == version_3).unwrap();
    der[at + 4] = 1;
    let version_2 = file("v2.pem", &pem_of(&der));
    let why = refused(Options { cert: version_2, ..good.clone() });
    assert!(why.contains("v2.pem (TLS option cert): this certificate is not of X.509 version 1 or 3"), "{why}");
    let elsewhere = Authority::new();
    let stranger = elsewhere.member();
    let why = refused(Options { ca_file: good.ca_file.clone(), ..stranger.clone() });
    let path = stranger.cert.unwrap();
    assert_eq!(
        why,
        format!("{}: this certificate is not signed by the authority that this rank trusts", by(&path, "cert"))
    );
    assert_eq!(
        refused(Options { names: vec!["a b".into()], ..good }),
        "\"a b\" is neither a DNS name nor an IP address"
    );
}

#[test]
fn the_text_of_a_file_may_take_the_place_of_its_path() {
    let authority = Authority::new();
    let member = authority.member();
    let text = |path: &Option<PathBuf>| Some(PathBuf::from(fs::read_to_string(path.as_ref().unwrap()).unwrap()));
    let texts = Options {
        cert: text(&member.cert),
        key: text(&member.key),
        ca_file: text(&member.ca_file),
        ..Options::default()
    };
    let mut ends = pair(texts.clone(), member.clone());
    send(&mut ends[0], b"hello").unwrap();
    assert_eq!(settle(&mut ends)[1].0, b"hello");
    let other = authority.issue("other", &Terms::default());
    let why = refused(Options { key: text(&other.key), ..texts });
    assert!(
        why.starts_with("the PEM text in place of a path (TLS option key) is not the private key"),
        "no key in a message: {why}"
    );
}

#[test]
fn private_keys_may_be_in_pkcs_8_pkcs_1_or_sec_1() {
    let authority = Authority::new();
    let openssl = |arguments: &[&str], out: &Path| {
        let mut command = Command::new("openssl");
        let made = command.args(arguments).arg("-out").arg(out).output();
        let made = made.expect("openssl is needed: scripts/setup.sh installs it");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    for (algorithm, option, traditional) in [
        ("EC", "ec_paramgen_curve:P-256", "-----BEGIN EC PRIVATE KEY-----"),
        ("RSA", "rsa_keygen_bits:2048", "-----BEGIN RSA PRIVATE KEY-----"),
    ] {
        let made = authority.path("made.key");
        openssl(&["genpkey", "-algorithm", algorithm, "-pkeyopt", option], &made);
        let pem = fs::read_to_string(&made).unwrap();
        assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----"));
        let params = CertificateParams::new(vec!["rank.example".into()]).unwrap();
        let options = authority.sign(algorithm, params, &KeyPair::from_pem(&pem).unwrap());
        let other = authority.path("traditional.key");
        openssl(&["pkey", "-traditional", "-in", made.to_str().unwrap()], &other);
        assert!(fs::read_to_string(&other).unwrap().contains(traditional), "{algorithm}");
        for key in [made, other] {
            let mut ends = pair(Options { key: Some(key), ..options.clone() }, authority.member());
            send(&mut ends[0], b"hello").unwrap();
            let got = settle(&mut ends);
            assert!(got[1].0 == b"hello" && got[0].1.is_none() && got[1].1.is_none(), "{algorithm}");
        }
    }
}

#[test]
fn a_folder_of_authorities_may_contain_other_files() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let in_folder = || Options { ca_file: None, ca_path: Some(folder.path().into()), ..authority.member() };
    fs::write(folder.path().join("README"), "not a certificate").unwrap();
    assert!(refused(in_folder()).ends_with("there is no certificate in any file of this folder"));
    // OpenSSL's rehash gives certificates such names.
    std::os::unix::fs::symlink(authority.path("ca.pem"), folder.path().join("0a1b2c3d.0")).unwrap();
    let mut ends = pair(in_folder(), authority.member());
    send(&mut ends[0], b"hello").unwrap();
    assert_eq!(settle(&mut ends)[1].0, b"hello");
}

#[test]
fn renewed_files_are_used_and_bad_ones_are_not() {
    let authority = Authority::new();
    let said = Arc::new(Mutex::new(Vec::new()));
    let log: LogCallback = {
        let said = said.clone();
        Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_owned()))
    };
    let options = authority.issue("renewed", &Terms::default());
    fs::set_permissions(options.key.as_ref().unwrap(), fs::Permissions::from_mode(0o644)).unwrap();
    let credentials = Credentials::new(options.clone(), Some(log)).unwrap();
    let warned = said.lock().unwrap().pop().unwrap();
    assert!(warned.contains("every user of this host can read this private key"), "{warned}");
    // A peer that accepts one name only.
    let connects = |names: &str| {
        let [left, right] = sockets();
        let only = Options { names: vec![names.into()], ..authority.member() };
        let mut ends = [
            Security::Tls(credentials.clone()).connect(left.into()).unwrap(),
            security(only).accept(right.into()).unwrap(),
        ];
        send(&mut ends[0], b"hello").unwrap();
        settle(&mut ends)[1].0 == b"hello"
    };
    assert!(connects("rank.example") && !connects("new.example"));
    // The modification times of files have the precision of the system's clock ticks.
    std::thread::sleep(Duration::from_millis(20));
    authority.issue("renewed", &Terms { names: vec!["new.example".into()], ..Terms::default() });
    assert!(connects("new.example") && !connects("rank.example"));
    assert_eq!(said.lock().unwrap().pop().unwrap(), "the TLS files have changed: new connections use them");
    std::thread::sleep(Duration::from_millis(20));
    fs::write(options.cert.as_ref().unwrap(), "").unwrap();
    assert!(connects("new.example"), "what was read before is used");
    let why = said.lock().unwrap().pop().unwrap();
    assert!(why.starts_with("the TLS files have changed, and are not used: "), "{why}");
    assert!(said.lock().unwrap().is_empty(), "once");
}

/// A FIFO that another thread writes `text` to, once.
fn written_once(path: &Path, text: String) -> std::thread::JoinHandle<()> {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let path = path.to_owned();
    // Opening waits for the reader.
    std::thread::spawn(move || fs::write(path, text).unwrap())
}

#[test]
fn files_that_are_pipes_are_read_once() {
    let authority = Authority::new();
    let said = Arc::new(Mutex::new(Vec::new()));
    let log: LogCallback = {
        let said = said.clone();
        Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_owned()))
    };
    let mut options = authority.member();
    let text = fs::read_to_string(options.cert.as_ref().unwrap()).unwrap();
    let fifo = authority.path("fifo");
    let writer = written_once(&fifo, text);
    options.cert = Some(fifo);
    let credentials = Credentials::new(options.clone(), Some(log)).unwrap();
    writer.join().unwrap();
    credentials.connect().unwrap();
    assert_eq!(*said.lock().unwrap(), [""; 0], "the FIFO's times are not its content's");

    // What has changed is read, and the FIFO with it: nobody waits for its writer.
    let renewed = format!("{}\n", fs::read_to_string(options.ca_file.as_ref().unwrap()).unwrap());
    fs::write(options.ca_file.as_ref().unwrap(), renewed).unwrap();
    credentials.connect().unwrap();
    let why = said.lock().unwrap().pop().unwrap();
    assert!(why.starts_with("the TLS files have changed, and are not used: cannot read "), "{why}");
    assert!(why.ends_with("fifo (TLS option cert): this pipe's writer has not closed it after 0ns"), "{why}");
}

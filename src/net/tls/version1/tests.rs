use std::fs;
use std::sync::{Arc, Mutex};

use rcgen::SigningKey;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, Der, PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, Error, RootCertStore};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Encode, Reader, SliceReader, Tag, TagNumber, Tagged};

use super::Version1;
use crate::net::handshake::{BadCertificate, Fault};
use crate::net::stream::Security;
use crate::net::tls::files::Stamps;
use crate::net::tls::tests::{Authority, Terms, faults, now, pair, pem_of, refused, security, send, settle, sockets};
use crate::net::tls::{Credentials, Options, read_for};

/// The values in a sequence, each with its tag and length.
fn values(sequence: &[u8]) -> Vec<Vec<u8>> {
    let contents = AnyRef::from_der(sequence).unwrap().value();
    let mut reader = SliceReader::new(contents).unwrap();
    let mut values = Vec::new();
    while !reader.is_finished() {
        values.push(AnyRef::decode(&mut reader).unwrap().to_der().unwrap());
    }
    values
}

fn sequence(values: &[Vec<u8>]) -> Vec<u8> {
    AnyRef::new(Tag::Sequence, &values.concat()).unwrap().to_der().unwrap()
}

/// The positions of values in what is signed.
const SIGNATURE_ALGORITHM: usize = 1;
const ISSUER: usize = 2;

/// A certificate without version and extensions, otherwise as `of`; `change` changes what is signed.
fn version_1(authority: &Authority, of: &[u8], change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<u8> {
    let mut outer = values(of);
    let mut signed = values(&outer[0]);
    let context = |number| Tag::ContextSpecific { constructed: true, number: TagNumber(number) };
    signed.retain(|value| ![context(0), context(3)].contains(&AnyRef::from_der(value).unwrap().tag()));
    change(&mut signed);
    outer[0] = sequence(&signed);
    let signature = authority.issuer.key().sign(&outer[0]).unwrap();
    let bits = [&[0], &signature[..]].concat();
    outer[2] = AnyRef::new(Tag::BitString, &bits).unwrap().to_der().unwrap();
    sequence(&outer)
}

fn der(options: &Options) -> Vec<u8> {
    let pem = fs::read(options.cert.as_ref().unwrap()).unwrap();
    CertificateDer::from_pem_slice(&pem).unwrap().to_vec()
}

/// The files of a rank with a certificate of version 1.
fn member(authority: &Authority, terms: &Terms) -> Options {
    let options = authority.issue("version1", terms);
    let certificate = version_1(authority, &der(&options), |_| {});
    fs::write(options.cert.as_ref().unwrap(), pem_of(&certificate)).unwrap();
    options
}

fn roots(authority: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap()).unwrap();
    roots
}

fn check(certificate: &[u8], roots: &RootCertStore, now: UnixTime) -> Result<(), Error> {
    let provider = ring::default_provider();
    let certificate = Version1::of(&CertificateDer::from(certificate)).expect("a certificate of version 1");
    certificate.check(roots, now, &provider.signature_verification_algorithms)
}

#[test]
fn a_certificate_of_version_1_proves_a_rank_in_both_roles() {
    let authority = Authority::new();
    let (old, new) = (member(&authority, &Terms::default()), authority.member());
    for (client, server) in [(&old, &new), (&new, &old), (&old, &old)] {
        let mut ends = pair(client.clone(), server.clone());
        for (from, to) in [(0, 1), (1, 0)] {
            send(&mut ends[from], b"hello").unwrap();
            assert_eq!(settle(&mut ends)[to].0, b"hello");
        }
    }
}

#[test]
fn it_is_refused_where_another_one_is() {
    let authority = Authority::new();
    let of = |from, until| Terms { from, until, ..Terms::default() };
    let key = authority.issue("other", &Terms::default()).key;
    let why = refused(Options { key, ..member(&authority, &Terms::default()) });
    assert!(why.contains("is not the private key of the certificate in"), "{why}");
    let expired = refused(member(&authority, &of(-3, -2)));
    assert!(expired.contains("this certificate has expired: it was valid until 2"), "{expired}");
    let early = refused(member(&authority, &of(2, 3)));
    assert!(early.contains("this certificate is not valid before 2"), "{early}");

    // The certificate is for no name.
    let narrow = Options { names: vec!["rank.example".into()], ..authority.member() };
    let said = faults(member(&authority, &Terms::default()), narrow);
    assert_eq!(
        said[1],
        Some(Fault::Certificate(BadCertificate::Otherwise("is for none of the names that this rank accepts")))
    );

    let elsewhere = Authority::new();
    let stranger = member(&elsewhere, &Terms::default());
    for (client, server) in [(&stranger, &authority.member()), (&authority.member(), &stranger)] {
        let said = faults(client.clone(), server.clone());
        let unknown =
            Fault::Certificate(BadCertificate::Otherwise("is not signed by the authority that this rank trusts"));
        assert!(said.contains(&Some(unknown)), "{said:?}");
    }
}

/// A peer has the certificate of another rank, but not its key.
#[test]
fn a_peer_must_have_its_key() {
    let authority = Authority::new();
    let own = authority.member();
    let stolen = der(&member(&authority, &Terms::default()));
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::from_pem_file(own.key.as_ref().unwrap()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let thief = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![stolen.into()], key)));
    for thief_connects in [true, false] {
        let stamps = Stamps::of(&own);
        let (mut configs, _) = read_for(&own, provider.clone(), now()).unwrap();
        Arc::get_mut(&mut configs.client).unwrap().client_auth_cert_resolver = thief.clone();
        Arc::get_mut(&mut configs.server).unwrap().cert_resolver = thief.clone();
        let credentials = Credentials { options: own.clone(), log: None, current: Mutex::new((stamps, configs)) };
        let (thief, honest) =
            (Security::Tls(Arc::new(credentials)), security(authority.issue("honest", &Terms::default())));
        let [left, right] = sockets();
        let (client, server) = if thief_connects { (&thief, &honest) } else { (&honest, &thief) };
        let mut ends = [client.connect(left.into()).unwrap(), server.accept(right.into()).unwrap()];
        send(&mut ends[0], b"hello").unwrap();
        let got = settle(&mut ends);
        let why = got[usize::from(thief_connects)].1.as_ref().expect("an end").as_ref().unwrap_err();
        assert!(why.to_string().contains("BadSignature"), "{why}");
    }
}

#[test]
fn its_signature_must_be_the_authoritys() {
    let authority = Authority::new();
    let now = UnixTime::now();
    let roots_of = roots(&authority);
    let original = der(&authority.member());
    let good = version_1(&authority, &original, |_| {});
    check(&good, &roots_of, now).unwrap();

    let bad = Err(CertificateError::BadSignature.into());
    for changed in 1..9 {
        let mut parts = values(&good);
        let at = parts[2].len() * changed / 9;
        // Tag, length and the number of unused bits stay.
        parts[2][at.max(4)] ^= 1;
        assert_eq!(check(&sequence(&parts), &roots_of, now), bad, "byte {at} of the signature");
    }
    // What is signed, after it was.
    let other = version_1(&authority, &der(&authority.issue("other", &Terms::default())), |_| {});
    let mixed = [values(&other)[0].clone(), values(&good)[1].clone(), values(&good)[2].clone()];
    assert_eq!(check(&sequence(&mixed), &roots_of, now), bad);
    // Signed by an authority that only has the name of a trusted one.
    let impostor = Authority::new();
    let issuer = values(&values(&good)[0])[ISSUER].clone();
    let forged = version_1(&impostor, &original, |signed| signed[ISSUER] = issuer);
    assert_eq!(check(&forged, &roots_of, now), bad);
    let stranger = version_1(&impostor, &der(&impostor.member()), |_| {});
    assert_eq!(check(&stranger, &roots_of, now), Err(CertificateError::UnknownIssuer.into()));
    // The signed part and the outer one must name the same algorithm.
    let sha384: [u8; 12] = [0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
    let unlike = version_1(&authority, &original, |signed| signed[SIGNATURE_ALGORITHM] = sha384.into());
    assert_eq!(check(&unlike, &roots_of, now), bad);
    let mut parts = values(&unlike);
    parts[1] = sha384.into();
    assert_eq!(check(&sequence(&parts), &roots_of, now), bad, "signed with SHA-256");
}

#[test]
fn an_authority_may_not_be_constrained_to_names() {
    let authority = Authority::new();
    let good = version_1(&authority, &der(&authority.member()), |_| {});
    let mut roots = roots(&authority);
    // Permitted subtrees: the DNS name "example".
    roots.roots[0].name_constraints = Some(Der::from_slice(b"\xa0\x0b\x30\x09\x82\x07example"));
    assert_eq!(check(&good, &roots, UnixTime::now()), Err(CertificateError::UnknownIssuer.into()));
}

#[test]
fn other_versions_and_what_is_malformed_are_left_to_rustls() {
    let authority = Authority::new();
    let original = der(&authority.member());
    assert!(Version1::of(&original.clone().into()).is_none(), "version 3");
    let good = version_1(&authority, &original, |_| {});
    for length in 0..good.len() {
        assert!(Version1::of(&good[..length].into()).is_none(), "{length} bytes of {}", good.len());
    }
    let longer = [&good[..], &[0]].concat();
    assert!(Version1::of(&longer.into()).is_none());
}

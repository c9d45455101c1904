use proptest::prelude::*;

use super::*;

const IDENTITY: Identity = [7; 16];
const OTHER: Identity = [8; 16];

fn token(text: &str) -> JobToken {
    JobToken::new(text)
}

fn acceptor() -> Acceptor {
    Acceptor::new([1; 32])
}

fn connector_with(key: SecretKey) -> Connector {
    let (to, from) = (handle(&IDENTITY), handle(&OTHER));
    Connector::new(key, &Hello { has_token: false, rank: 3, to, from, nonce: [2; 32], part: Part::first(1) })
}

fn connector(job: &str) -> Connector {
    connector_with(key(&token(job), &IDENTITY))
}

/// The lookup of a device that has one context, the one of `IDENTITY`.
fn find(job: &str) -> impl FnOnce(&Handle) -> Option<SecretKey> {
    let key = key(&token(job), &IDENTITY);
    move |sought| (*sought == handle(&IDENTITY)).then_some(key)
}

fn challenge(acceptor: &mut Acceptor, connector: &Connector, job: &str) -> [u8; CHALLENGE_BYTES] {
    match acceptor.take(connector.hello(), find(job)) {
        Ok(Accepting::Send(challenge)) => challenge.try_into().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn proof(connector: &mut Connector, challenge: &[u8]) -> Proof {
    match connector.take(challenge) {
        Ok(Connecting::Send(proof)) => proof,
        other => panic!("{other:?}"),
    }
}

/// All four messages of a successful handshake.
fn record(job: &str, nonces: [u8; 2]) -> (Vec<u8>, Vec<u8>, Proof, Proven) {
    let (mut acceptor, mut connector) = (Acceptor::new([nonces[0]; 32]), connector(job));
    connector.hello[45..77].fill(nonces[1]);
    let challenge = challenge(&mut acceptor, &connector, job);
    let proof = proof(&mut connector, &challenge);
    let Ok(Accepting::Proven(proven)) = acceptor.take(&proof, find(job)) else { panic!("not proven") };
    (connector.hello().to_vec(), challenge.to_vec(), proof, proven)
}

#[test]
fn members_of_a_job_connect_and_agree_on_the_frame_number() {
    for job in ["", "a token"] {
        for answer in [Answer::Accepted, Answer::Yield, Answer::Refused(Reason::Closed)] {
            let (mut acceptor, mut connector) = (acceptor(), connector(job));
            let challenge = challenge(&mut acceptor, &connector, job);
            assert_eq!(acceptor.claims(), Some(3));
            let proof = proof(&mut connector, &challenge);
            let Ok(Accepting::Proven(proven)) = acceptor.take(&proof, find(job)) else { panic!("not proven") };
            assert_eq!((proven.to, proven.from, proven.rank), (handle(&IDENTITY), handle(&OTHER), 3));
            assert_eq!(connector.take(&answer.encode()), Ok(Connecting::Done(answer, proven.frames)));
        }
    }
}

#[test]
fn messages_may_arrive_byte_by_byte() {
    let (mut acceptor, mut connector) = (acceptor(), connector("t"));
    let mut challenge = Vec::new();
    for byte in *connector.hello() {
        match acceptor.take(&[byte], find("t")).unwrap() {
            Accepting::Send(bytes) => challenge.extend(bytes),
            other => assert_eq!(other, Accepting::Waiting),
        }
    }
    let mut proof = Vec::new();
    for byte in challenge {
        assert!(connector.wanted() > 0);
        match connector.take(&[byte]).unwrap() {
            Connecting::Send(bytes) => proof.extend(bytes),
            other => assert_eq!(other, Connecting::Waiting),
        }
    }
    let mut proven = None;
    for byte in proof {
        match acceptor.take(&[byte], find("t")).unwrap() {
            Accepting::Proven(who) => proven = Some(who),
            other => assert_eq!(other, Accepting::Waiting),
        }
    }
    let mut done = None;
    for byte in Answer::Yield.encode() {
        match connector.take(&[byte]).unwrap() {
            Connecting::Done(answer, frames) => done = Some((answer, frames)),
            other => assert_eq!(other, Connecting::Waiting),
        }
    }
    assert_eq!(done, Some((Answer::Yield, proven.unwrap().frames)));
}

#[test]
fn no_message_holds_a_secret() {
    let (hello, challenge, proof, _) = record("a token", [1, 2]);
    let all = [&hello[..], &challenge, &proof].concat();
    for secret in [&IDENTITY[..], &OTHER, b"a token"] {
        assert!(!all.windows(secret.len()).any(|part| part == secret));
    }
}

#[test]
fn tokens_that_differ_are_found_by_both_sides() {
    let (mut acceptor, mut connector) = (acceptor(), connector("one"));
    let challenge = challenge(&mut acceptor, &connector, "two");
    assert_eq!(connector.take(&challenge), Err(Fault::Proof));
    assert_eq!(acceptor.take(&NO_PROOF, find("two")), Err(Fault::Proof));
    assert!(Fault::Proof.to_string().contains("GLOO_RS_TOKEN"));
}

#[test]
fn both_sides_report_a_token_on_one_side_only() {
    for (theirs, ours) in [("", "t"), ("t", "")] {
        let (mut acceptor, mut connector) = (acceptor(), connector(theirs));
        let fault = acceptor.take(connector.hello(), find(ours)).unwrap_err();
        assert_eq!(fault, Fault::OneToken { theirs: ours.is_empty() });
        let answer = fault.answer().unwrap();
        assert_eq!(connector.take(&answer.encode()), Err(Fault::OneToken { theirs: theirs.is_empty() }));
        // An acceptor that sends a challenge all the same is detected.
        let mut lax = connector_with(key(&token(theirs), &IDENTITY));
        let (_, mut challenge, ..) = record(ours, [1, 2]);
        challenge[9] = u8::from(!ours.is_empty());
        assert_eq!(lax.take(&challenge), Err(Fault::OneToken { theirs: theirs.is_empty() }));
    }
}

#[test]
fn without_a_token_the_identity_still_protects() {
    // The stranger knows the handle, which it has seen on a connection, but not the identity.
    let (mut acceptor, mut stranger) = (acceptor(), connector_with(key(&token(""), &OTHER)));
    let challenge = challenge(&mut acceptor, &stranger, "");
    assert_eq!(stranger.take(&challenge), Err(Fault::Proof));
    let forged = key(&token(""), &OTHER).prove(CONNECTOR, &[stranger.hello(), &challenge]);
    assert_eq!(acceptor.take(&forged, find("")), Err(Fault::Proof));
}

#[test]
fn a_recorded_handshake_cannot_be_replayed() {
    let (hello, challenge, proof, proven) = record("t", [1, 2]);
    // Replayed to the acceptor, which has another nonce.
    let mut acceptor = Acceptor::new([9; 32]);
    assert!(matches!(acceptor.take(&hello, find("t")), Ok(Accepting::Send(_))));
    assert_eq!(acceptor.take(&proof, find("t")), Err(Fault::Proof));
    // Replayed to the connector.
    let mut connector = connector("t");
    connector.hello[45..77].fill(9);
    assert_eq!(connector.take(&challenge), Err(Fault::Proof));
    // The frame numbers of another connection differ, too.
    assert_ne!(record("t", [1, 3]).3.frames, proven.frames);
    assert_ne!(record("t", [3, 2]).3.frames, proven.frames);
}

#[test]
fn messages_cannot_be_reflected_to_their_sender() {
    let (mut acceptor, connector) = (acceptor(), connector("t"));
    let challenge = challenge(&mut acceptor, &connector, "t");
    // The acceptor's own proof as the connector's.
    assert_eq!(acceptor.take(&challenge[42..], find("t")), Err(Fault::Proof));
    // The connector's own hello as the reply.
    let mut reflected = connector_with(key(&token("t"), &IDENTITY));
    let hello = *reflected.hello();
    assert!(reflected.take(&hello).is_err());
}

#[test]
fn nothing_is_accepted_before_the_proof() {
    for answer in [Answer::Accepted, Answer::Yield] {
        assert_eq!(connector("t").take(&answer.encode()), Err(Fault::Proof));
    }
    let refused = Answer::Refused(Reason::NoContext);
    assert_eq!(connector("t").take(&refused.encode()), Ok(Connecting::Done(refused, 0)));
    // A second challenge instead of the last message.
    let (mut acceptor, mut connector) = (acceptor(), connector("t"));
    let challenge = challenge(&mut acceptor, &connector, "t");
    proof(&mut connector, &challenge);
    assert_eq!(connector.take(&challenge), Err(Fault::Malformed));
}

#[test]
fn every_bit_counts() {
    let (hello, challenge, proof, _) = record("t", [1, 2]);
    for bit in 0..hello.len() * 8 {
        let mut wrong = hello.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        let mut acceptor = acceptor();
        match acceptor.take(&wrong, find("t")) {
            // The proofs cover other bytes than the connector has sent.
            Ok(Accepting::Send(challenge)) => {
                let mut connector = connector("t");
                assert_eq!(connector.take(&challenge), Err(Fault::Proof), "bit {bit} of the hello");
                assert_eq!(acceptor.take(&proof, find("t")), Err(Fault::Proof), "bit {bit} of the hello");
            }
            Err(_) => {}
            other => panic!("bit {bit} of the hello: {other:?}"),
        }
    }
    for bit in 0..challenge.len() * 8 {
        let mut wrong = challenge.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert!(connector("t").take(&wrong).is_err(), "bit {bit} of the challenge");
    }
    for bit in 0..proof.len() * 8 {
        let mut wrong = proof;
        wrong[bit / 8] ^= 1 << (bit % 8);
        let mut acceptor = acceptor();
        acceptor.take(&hello, find("t")).unwrap();
        assert_eq!(acceptor.take(&wrong, find("t")), Err(Fault::Proof), "bit {bit} of the proof");
    }
}

#[test]
fn other_protocols_and_other_versions_are_distinguished() {
    assert_eq!(acceptor().take(b"GET / HTTP/1.1\r\n\r\n", find("")), Err(Fault::Foreign));
    assert_eq!(acceptor().take(b"x", find("")), Err(Fault::Foreign));
    assert_eq!(connector("").take(b"SSH-2.0-OpenSSH"), Err(Fault::Foreign));
    let mut hello = *connector("").hello();
    hello[7] = VERSION + 1;
    let fault = acceptor().take(&hello[..8], find("")).unwrap_err();
    assert_eq!(fault, Fault::Version(VERSION + 1));
    assert!(fault.to_string().contains(&format!("version {}", VERSION + 1)));
    // Messages of all versions begin in the same way.
    let mut answer = fault.answer().unwrap().encode();
    answer[7] = VERSION + 1;
    assert_eq!(connector("").take(&answer), Err(Fault::Version(VERSION + 1)));
    let mut seeks_another = connector_with(key(&token(""), &IDENTITY));
    seeks_another.hello[13] ^= 1;
    assert_eq!(acceptor().take(seeks_another.hello(), find("")), Err(Fault::NoContext));
}

#[test]
fn answers_survive_the_wire() {
    let reasons = (0..=255).filter_map(Reason::from_byte).map(Answer::Refused);
    let all: Vec<_> = [Answer::Accepted, Answer::Yield].into_iter().chain(reasons).collect();
    assert_eq!(all.len(), 9);
    all.into_iter().for_each(|answer| assert_eq!(Answer::decode(&answer.encode()), Ok(answer)));
    let mut odd = Answer::Accepted.encode();
    odd[9] = 1;
    assert_eq!(Answer::decode(&odd), Err(Fault::Malformed));
}

proptest! {
    #[test]
    fn hellos_survive_the_wire(
        (has_token, rank, to, from) in any::<(bool, u32, [u8; 16], [u8; 16])>(),
        nonce in any::<[u8; 32]>(),
        (streams, index, first) in any::<(u8, u8, u32)>(),
    ) {
        let hello = Hello { has_token, rank, to, from, nonce, part: Part { streams, index, first } };
        let is_possible = (1..=MAX_STREAMS).contains(&streams) && index < streams && (index > 0 || first == 0);
        prop_assert_eq!(Hello::decode(&hello.encode()), if is_possible { Ok(hello) } else { Err(Fault::Malformed) });
    }

    #[test]
    fn the_connections_of_a_link_survive_the_wire(streams in 1..=MAX_STREAMS, place in any::<u8>(), number in any::<u32>()) {
        let index = place % streams;
        let part = Part { streams, index, first: if index == 0 { 0 } else { number } };
        let hello = Hello { has_token: true, rank: 0, to: [1; 16], from: [2; 16], nonce: [3; 32], part };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn random_bytes_are_not_accepted(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..8),
        right in 0usize..=HELLO_BYTES,
    ) {
        let (mut acceptor, mut connector) = (acceptor(), connector("t"));
        let hello = *connector.hello();
        let mut going = acceptor.take(&hello[..right], find("t")).is_ok();
        for piece in pieces {
            if going {
                let taken = acceptor.take(&piece, find("t"));
                prop_assert!(!matches!(taken, Ok(Accepting::Proven(_))));
                going = taken.is_ok();
            }
            match connector.take(&piece) {
                Ok(Connecting::Waiting) => {}
                Ok(Connecting::Done(Answer::Refused(_), 0)) | Err(_) => break,
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}

#[test]
fn the_page_on_security_says_how_much_is_read() {
    let said = format!("reads at most {} bytes", HELLO_BYTES + PROOF_BYTES);
    assert!(include_str!("../../docs/security.md").contains(&said), "it does not say: {said}");
}

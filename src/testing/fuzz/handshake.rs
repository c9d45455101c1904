//! Fuzz body: both sides of the handshake, with an attacker between them, and addresses from a store.

use super::Input;
use crate::net::address::Address;
use crate::net::handshake::{
    Accepting, Acceptor, Answer, CHALLENGE_BYTES, Connecting, Connector, HELLO_BYTES, Handle, Hello, Identity, Part,
    handle, key,
};
use crate::secret::{JobToken, SecretKey};

const IDENTITY: Identity = [7; 16];

/// The handshake fails on a side whose input was changed; unchanged messages succeed, in whatever pieces they arrive.
/// Bytes of a process without the key never succeed.
pub fn handshake(data: &[u8]) {
    if let Ok(address) = Address::deserialize(data) {
        // Equal as numbers: an IPv4 address and its mapped IPv6 form are the same.
        assert_eq!(Address::deserialize(&address.serialize()).expect("its own bytes"), address);
    }
    strange_to_the_acceptor(&mut Input(data));
    strange_to_the_connector(&mut Input(data));
    let _ = between(&mut Input(data));
}

fn token(number: u8) -> JobToken {
    [JobToken::none(), JobToken::new("one"), JobToken::new("another")][usize::from(number) % 3].clone()
}

fn connector(token: &JobToken) -> Connector {
    let hello = Hello {
        has_token: false,
        rank: 3,
        to: handle(&IDENTITY),
        from: handle(&[8; 16]),
        nonce: [2; 32],
        part: Part::first(1),
    };
    Connector::new(key(token, &IDENTITY), &hello)
}

fn find(token: &JobToken) -> impl FnOnce(&Handle) -> Option<SecretKey> {
    let key = key(token, &IDENTITY);
    move |sought| (*sought == handle(&IDENTITY)).then_some(key)
}

/// Without the key no message proves anything, even if it names the right context.
fn strange_to_the_acceptor(input: &mut Input<'_>) {
    let Some(shape) = input.byte() else { return };
    let token = token(shape);
    let mut acceptor = Acceptor::new([1; 32]);
    if shape & 128 != 0 {
        let hello = *connector(&token).hello();
        assert!(matches!(acceptor.take(&hello, find(&token)), Ok(Accepting::Send(_))));
    }
    while let Some(n) = input.byte() {
        let n = usize::from(n).min(acceptor.wanted()).min(input.0.len());
        assert!(acceptor.wanted() > 0 && acceptor.wanted() <= HELLO_BYTES);
        let Some(bytes) = input.take(n) else { return };
        match acceptor.take(bytes, find(&token)) {
            Ok(Accepting::Proven(_)) => panic!("a stranger is accepted"),
            Ok(_) => {}
            Err(fault) => return drop((fault.to_string(), fault.answer().map(Answer::encode))),
        }
    }
}

fn strange_to_the_connector(input: &mut Input<'_>) {
    let Some(shape) = input.byte() else { return };
    let mut connector = connector(&token(shape));
    while let Some(n) = input.byte() {
        let n = usize::from(n).min(connector.wanted()).min(input.0.len());
        assert!(connector.wanted() > 0 && connector.wanted() <= CHALLENGE_BYTES);
        let Some(bytes) = input.take(n) else { return };
        match connector.take(bytes) {
            Ok(Connecting::Waiting) => {}
            Ok(Connecting::Done(Answer::Refused(_), _)) | Err(_) => return,
            other => panic!("a stranger gets on: {other:?}"),
        }
    }
}

/// Passes `message` to `take` in pieces whose sizes are from `input`, until the result is not `waiting`.
fn in_pieces<T: PartialEq, E>(
    input: &mut Input<'_>,
    mut message: &[u8],
    waiting: &T,
    mut take: impl FnMut(&[u8]) -> Result<T, E>,
) -> Result<Option<T>, E> {
    while !message.is_empty() {
        let n = input.byte().map_or(message.len(), |n| usize::from(n) % message.len() + 1);
        let (now, rest) = message.split_at(n);
        message = rest;
        let result = take(now)?;
        if result != *waiting {
            assert!(message.is_empty(), "an answer before the end");
            return Ok(Some(result));
        }
    }
    Ok(None)
}

/// A connector and an acceptor with tokens of their own; one bit of one message may be changed on the way.
fn between(input: &mut Input<'_>) -> Option<()> {
    let (theirs, ours) = (input.byte()? % 3, input.byte()? % 3);
    let flipped = input.byte().map(|which| usize::from(which) % 8)?;
    let (index, bit) = (usize::from(input.byte()?), 1 << (input.byte()? % 8));
    let tamper = |which: usize, message: &[u8]| {
        let mut message = message.to_vec();
        if flipped == which {
            let index = index % message.len();
            message[index] ^= bit;
        }
        message
    };
    let (mut connector, mut acceptor) = (connector(&token(theirs)), Acceptor::new([1; 32]));
    let honest = ours == theirs && flipped > 3;
    let good = (|| {
        let hello = tamper(0, connector.hello());
        let take = |bytes: &[u8]| acceptor.take(bytes, find(&token(ours)));
        let Accepting::Send(challenge) = in_pieces(input, &hello, &Accepting::Waiting, take).ok()?? else {
            return None;
        };
        let challenge = tamper(1, &challenge);
        let take = |bytes: &[u8]| connector.take(bytes);
        let Connecting::Send(proof) = in_pieces(input, &challenge, &Connecting::Waiting, take).ok()?? else {
            return None;
        };
        assert!(ours == theirs && flipped > 1, "an acceptor is believed");
        let proof = tamper(2, &proof);
        let take = |bytes: &[u8]| acceptor.take(bytes, |_| None);
        let Accepting::Proven(proven) = in_pieces(input, &proof, &Accepting::Waiting, take).ok()?? else { return None };
        assert!(flipped > 2, "a connector is believed");
        assert_eq!((proven.rank, proven.to, proven.from), (3, handle(&IDENTITY), handle(&[8; 16])));
        let answer = tamper(3, &Answer::Accepted.encode());
        let take = |bytes: &[u8]| connector.take(bytes);
        match in_pieces(input, &answer, &Connecting::Waiting, take).ok()?? {
            Connecting::Done(answer, frames) => {
                assert_eq!(frames, proven.frames);
                Some(answer)
            }
            other => panic!("{other:?}"),
        }
    })();
    // The last message is not authenticated: an attacker who can change it can also cut the connection.
    assert!(good == Some(Answer::Accepted) || !honest, "no good end");
    assert!(good.is_none() || (ours == theirs && flipped > 2));
    Some(())
}

//! Fuzz body: both ends of a TLS connection, with an attacker between them, and bytes that no TLS has sent.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::Input;
use crate::net::stream::{self, Security, Stream};
use crate::net::tls::{Credentials, Options};

/// The certificate of an authority that signs nothing else, valid for a hundred years.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBmDCCAT+gAwIBAgIUVYGfR1e+Xmf9N3cAk1lUfm+GU9kwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWZ2xvb19ycyBmdXp6IGF1dGhvcml0eTAgFw0yNjExMjQwMzA3
NDdaGA8yMTI2MTAzMTAzMDc0N1owITEfMB0GA1UEAwwWZ2xvb19ycyBmdXp6IGF1
dGhvcml0eTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABLkBpBvS7Tg9OPtiR/vx
0Crku/2tOpjmnMYXfkfuPtCC1ffuYsr9h8uBDf0NUzB5O09U6eBUNpxy23+fbkMj
dQejUzBRMB0GA1UdDgQWBBR8ZxdaQeVsPR1k0x53nzmuF3fQljAfBgNVHSMEGDAW
gBR8ZxdaQeVsPR1k0x53nzmuF3fQljAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49
BAMCA0cAMEQCIEaPmCZ46UrRcnIKath+frbYmlgFJMIlSc8q1WWut9gQAiA9RNHC
DRwdTadVJU+0gypV9ByGY6xBo4F7TSJoeASV1w==
-----END CERTIFICATE-----
";
/// The certificate of both ends.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBpzCCAU2gAwIBAgIUZ7pU9XbkeuBAfZnM7Eyrq05W4g8wCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWZ2xvb19ycyBmdXp6IGF1dGhvcml0eTAgFw0yNjExMjQwMzA3
NDdaGA8yMTI2MTAzMTAzMDc0N1owHDEaMBgGA1UEAwwRZ2xvb19ycyBmdXp6IHJh
bmswWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATLsbeKg7l8BCAEF/pmtaATHMFh
h1i3Z9j3/87JpMZ7UFCD81XVwly1yEreZunsdh9W86yoEOFV9F5DroXnZXWZo2Yw
ZDAJBgNVHRMEAjAAMBcGA1UdEQQQMA6CDHJhbmsuZXhhbXBsZTAdBgNVHQ4EFgQU
KusGHernunPE2AXuC/A0ocRJChcwHwYDVR0jBBgwFoAUfGcXWkHlbD0dZNMed585
rhd30JYwCgYIKoZIzj0EAwIDSAAwRQIhALkgDfcmGwiCqoX5loGM3cbY3NK+KTHT
lKn9xhT3QnHrAiB9BPYUqP8tlF+h/I7Vu+qxSt2EL0wzTTnALUJmcrvivQ==
-----END CERTIFICATE-----
";
/// The certificate's key, which is no secret.
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgO7Iskt1Lx1Fu95bl
SRmq/LWJoLIUodChICHA9COeav+hRANCAATLsbeKg7l8BCAEF/pmtaATHMFhh1i3
Z9j3/87JpMZ7UFCD81XVwly1yEreZunsdh9W86yoEOFV9F5DroXnZXWZ
-----END PRIVATE KEY-----
";

/// Whatever passes between the ends, each receives the beginning of what the other has sent, and nothing else; it finds
/// an orderly end only after all that, and only if the other has ended the session. Bytes of a stranger are refused.
pub fn tls(data: &[u8]) {
    let options = Options {
        cert: Some(CERTIFICATE.into()),
        key: Some(KEY.into()),
        ca_file: Some(AUTHORITY.into()),
        ..Options::default()
    };
    let security = Security::Tls(Credentials::new(options, None).expect("valid certificates"));
    stranger(&security, data);
    let _ = between(&security, &mut Input(data));
}

/// One end, and the attacker's end of its socket.
fn end(security: &Security, accepts: bool) -> (Stream, UnixStream) {
    let (own, attackers) = UnixStream::pair().expect("a pair of sockets");
    own.set_nonblocking(true).and_then(|()| attackers.set_nonblocking(true)).expect("sockets that do not block");
    let stream = if accepts { security.accept(own.into()) } else { security.connect(own.into()) };
    (stream.expect("a session"), attackers)
}

/// Without the other end nothing is received, and each side says what is wrong, or waits.
fn stranger(security: &Security, data: &[u8]) {
    for accepts in [false, true] {
        let (mut stream, mut attackers) = end(security, accepts);
        // More than fits into the socket is not needed.
        let _ = attackers.write(data);
        for _ in 0..4 {
            match stream.receive(&mut [IoSliceMut::new(&mut [0; 64])]) {
                // Before the handshake is over, anyone can end the session.
                Ok(0) => {}
                Ok(n) => panic!("{n} bytes of a stranger are received"),
                Err(error) => drop(stream::fault(&error).map(|fault| fault.to_string())),
            }
        }
        drop(attackers);
        let last = stream.receive(&mut [IoSliceMut::new(&mut [0; 64])]);
        assert!(!matches!(&last, Err(e) if e.kind() == ErrorKind::WouldBlock), "the connection has ended");
    }
}

/// What one end has sent and received.
struct Side {
    stream: Stream,
    attackers: UnixStream,
    /// What the end's socket has sent and the attacker has not passed on.
    passing: Vec<u8>,
    sent: Vec<u8>,
    received: usize,
    closed: bool,
    /// Whether this end has found the other's end or an error.
    over: bool,
}

fn between(security: &Security, input: &mut Input<'_>) -> Option<()> {
    let mut sides = [false, true].map(|accepts| {
        let (stream, attackers) = end(security, accepts);
        Side { stream, attackers, passing: Vec::new(), sent: Vec::new(), received: 0, closed: false, over: false }
    });
    // The attacker may let the handshake pass.
    if input.byte()? & 1 == 0 {
        for _ in 0..4 {
            receive(&mut sides);
            pass(&mut sides, 0, usize::MAX);
            pass(&mut sides, 1, usize::MAX);
        }
        assert!(sides.iter_mut().all(|side| !side.stream.binding().is_empty()), "the handshake has ended");
    }
    while let Some(action) = input.byte() {
        let from = usize::from(action & 1);
        match action >> 1 & 7 {
            0 | 1 => {
                let side = &mut sides[from];
                let n = usize::from(input.byte()?) * if action & 128 == 0 { 1 } else { 200 };
                let bytes: Vec<u8> = (side.sent.len()..side.sent.len() + n).map(|i| (i * 7 + from) as u8).collect();
                if !side.closed {
                    let taken = side.stream.send(&[IoSlice::new(&bytes)]).unwrap_or(0);
                    side.sent.extend(&bytes[..taken]);
                }
            }
            2 | 3 => pass(&mut sides, from, usize::from(input.byte()?) * if action & 128 == 0 { 1 } else { 100 }),
            // Records split at every byte.
            4 => (0..input.byte()?).for_each(|_| {
                pass(&mut sides, from, 1);
                receive(&mut sides);
            }),
            5 => {
                let (at, change) = (usize::from(input.byte()?), input.byte()?);
                let passing = taken(&mut sides[from]);
                if let Some(byte) = passing.get_mut(at) {
                    *byte ^= change;
                }
            }
            6 => {
                let (at, number) = (usize::from(input.byte()?), usize::from(input.byte()?));
                let passing = taken(&mut sides[from]);
                let at = at.min(passing.len());
                if action & 128 == 0 {
                    passing.drain(at..(at + number).min(passing.len()));
                } else {
                    let more = input.take(number)?;
                    passing.splice(at..at, more.iter().copied());
                }
            }
            _ => {
                let side = &mut sides[from];
                if action & 128 == 0 {
                    // What was taken before the handshake is over would not precede the end; the library has no end to
                    // send then.
                    if !side.stream.binding().is_empty() {
                        side.stream.close();
                        side.closed = true;
                    }
                } else {
                    let _ = side.attackers.shutdown(Shutdown::Write);
                }
            }
        }
        sides.iter_mut().for_each(|side| drop(side.stream.flush()));
        receive(&mut sides);
    }
    Some(())
}

/// What the end has sent, as far as the attacker has it.
fn taken(side: &mut Side) -> &mut Vec<u8> {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = side.attackers.read(&mut bytes) {
        side.passing.extend(&bytes[..n]);
    }
    &mut side.passing
}

/// Passes on up to `max` bytes of the end `from`.
fn pass(sides: &mut [Side; 2], from: usize, max: usize) {
    let _ = sides[from].stream.flush();
    let passing = taken(&mut sides[from]);
    let bytes: Vec<u8> = passing.drain(..max.min(passing.len())).collect();
    let mut rest = &bytes[..];
    while let Ok(n @ 1..) = sides[1 - from].attackers.write(rest) {
        rest = &rest[n..];
    }
    let back = rest.to_vec();
    sides[from].passing.splice(..0, back);
}

/// Receives all there is at both ends.
fn receive(sides: &mut [Side; 2]) {
    for to in [0, 1] {
        let mut into = [0; 300];
        // The library receives nothing after its own end. In debug builds rustls asserts that no alert follows that of
        // the end.
        sides[to].over |= sides[to].closed;
        while !sides[to].over {
            let result = sides[to].stream.receive(&mut [IoSliceMut::new(&mut into)]);
            let (side, other) = if to == 0 {
                let [a, b] = sides;
                (a, b)
            } else {
                let [a, b] = sides;
                (b, a)
            };
            match result {
                Ok(0) => {
                    // Before the handshake is over, anyone can end the session.
                    if !side.stream.binding().is_empty() {
                        assert!(
                            other.closed && side.received == other.sent.len(),
                            "an orderly end that nobody has made"
                        );
                    }
                    side.over = true;
                }
                Ok(n) => {
                    let expected = other.sent.get(side.received..side.received + n);
                    assert_eq!(expected, Some(&into[..n]), "bytes that the other end has not sent");
                    side.received += n;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    let _ = stream::fault(&error).map(|fault| fault.to_string());
                    side.over = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 2000 }))]

        #[test]
        fn what_is_received_is_what_was_sent(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            super::tls(&data);
        }
    }
}

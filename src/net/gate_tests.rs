use super::*;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// A toy handshake of two bytes: the first is the name, the second the proof; each gets a reply.
#[derive(Default)]
struct TwoBytes(Vec<u8>);

impl Handshake for TwoBytes {
    type Proven = u8;

    fn wanted(&self) -> usize {
        1
    }

    fn claims(&self) -> Option<u32> {
        self.0.first().map(|rank| u32::from(*rank))
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Accepting<u8>, Refused> {
        self.0.extend(bytes);
        match self.0[..] {
            [name] => Ok(Accepting::Send(vec![name])),
            [name, b'!'] => Ok(Accepting::Proven(name)),
            _ => Err(Refused(Fault::Proof, Some(b"no".to_vec()))),
        }
    }
}

fn gate<S: Stream>(wrap: impl Fn(OwnedSocket) -> S + Send + 'static) -> (Gate<S, TwoBytes>, Listeners) {
    let listeners = Listeners::new(&Poller::new(sys::PollerKind::SYSTEM).unwrap());
    let begin = move |socket| Ok((wrap(socket), TwoBytes::default()));
    (Gate::new("test", None, &listeners, Duration::from_secs(5), begin), listeners)
}

fn pair() -> (OwnedSocket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours.into(), theirs)
}

#[test]
fn one_address_does_not_use_up_the_room_of_others() {
    let max = max_handshakes() as u64;
    let (mut gate, _) = gate(|socket| socket);
    let mut come = |host: u8, port: u16| {
        let before: Vec<u64> = gate.handshakes.keys().copied().collect();
        gate.enter(pair().0, Some(SocketAddr::from(([127, 0, 0, host], port)))).unwrap();
        assert!(gate.handshakes.len() as u64 <= max);
        let gone = before.iter().find(|number| !gate.handshakes.contains_key(number));
        gone.map(|number| number - LISTENER)
    };
    // A few from one address, which are the oldest; then the maximum and more from another.
    (1..=3).for_each(|port| assert_eq!(come(3, port), None));
    let dropped: Vec<u64> = (0..max + 50).filter_map(|_| come(2, 9)).collect();
    assert_eq!(dropped, (4..57).collect::<Vec<_>>());
    assert_eq!(come(4, 9), Some(57));
    (1..=3).for_each(|number| assert!(gate.handshakes.contains_key(&(LISTENER + number))));
}

/// A wrapper like TLS: no data passes until both sides have sent a first byte; then every bit is inverted. It reads all
/// available bytes from its socket and buffers them.
struct Wrapped {
    socket: OwnedSocket,
    open: bool,
    kept: Vec<u8>,
}

impl AsRawFd for Wrapped {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Stream for Wrapped {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = [0; 100];
        if self.kept.is_empty() {
            let n = self.socket.receive(&mut bytes)?;
            self.kept.extend(bytes[..n].iter().map(|byte| !byte));
        }
        if !self.open && !self.kept.is_empty() {
            self.open = true;
            self.kept.remove(0);
            self.socket.send(b"#")?;
            return self.receive(into);
        }
        let n = into.len().min(self.kept.len());
        self.kept.drain(..n).zip(into).for_each(|(byte, into)| *into = byte);
        Ok(n)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.send(&bytes.iter().map(|byte| !byte).collect::<Vec<_>>())
    }
}

#[test]
fn a_wrapped_socket_does_its_own_handshake_first() {
    // In three pieces; and all at once, so that the socket has no bytes left for which it could be reported.
    for pieces in [&[&b"#"[..], &[!7], &[!b'!', !b'x']][..], &[&[b'#', !7, !b'!', !b'x']]] {
        let (mut gate, listeners) = gate(|socket| Wrapped { socket, open: false, kept: Vec::new() });
        let (ours, mut theirs) = pair();
        let number = gate.enter(ours, None).unwrap();
        assert!(gate.ready(number).is_empty());
        let mut proven = Vec::new();
        for piece in pieces {
            theirs.write_all(piece).unwrap();
            proven.extend(gate.ready(number));
        }
        let Some((mut stream, 7)) = proven.pop() else { panic!("not proven") };
        let mut rest = [0; 10];
        assert_eq!((stream.receive(&mut rest).unwrap(), rest[0]), (1, b'x'), "what it kept goes with it");
        drop(stream);
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, [b'#', !7]);
        assert!(gate.is_empty());
        assert_eq!((listeners.statistics().accepted, listeners.statistics().refused()), (1, 0));
    }
}

#[test]
fn a_connection_that_cannot_be_served_is_counted() {
    let listeners = Listeners::new(&Poller::new(sys::PollerKind::SYSTEM).unwrap());
    let lacks = |_| Err(io::Error::from_raw_os_error(libc::ENOMEM));
    let mut gate: Gate<OwnedSocket, TwoBytes> = Gate::new("test", None, &listeners, Duration::from_secs(5), lacks);
    let (ours, mut theirs) = pair();
    assert_eq!((gate.enter(ours, None), listeners.statistics().incomplete), (None, 1));
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_failed_proof_gets_a_reply_and_a_silent_connection_is_dropped_in_time() {
    let (mut gate, listeners) = gate(|socket| socket);
    let (ours, mut theirs) = pair();
    let number = gate.enter(ours, None).unwrap();
    theirs.write_all(b"7? and more").unwrap();
    assert!(gate.ready(number).is_empty() && gate.is_empty());
    let mut heard = Vec::new();
    theirs.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"7no");
    let (ours, _silent) = pair();
    gate.enter(ours, None).unwrap();
    let due = gate.next_tick().unwrap();
    gate.tick(due - Duration::from_millis(1));
    assert!(!gate.is_empty());
    gate.tick(due);
    assert!(gate.is_empty() && gate.next_tick().is_none());
    let statistics = listeners.statistics();
    assert_eq!((statistics.unproven, statistics.timed_out, statistics.refused()), (1, 1, 2));
}

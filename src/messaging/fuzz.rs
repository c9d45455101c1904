//! Fuzz bodies: an endpoint whose peer says anything, and two endpoints that talk to each other.

mod exchange;
mod frames;

use std::os::unix::net::UnixStream;

pub use exchange::exchange;
pub use frames::frames;

use super::Endpoint;
use crate::secret::JobToken;
use crate::transport::matching::EAGER_BYTES;
use crate::net::handshake::Handle;
use crate::types::Rank;

/// What a handshake would have agreed on: the peer's handle, and what frames carry.
const PEER: Handle = [2; 16];
const FRAMES: u32 = 0x0102_0304;

/// Around the lengths at which messages are treated differently.
const SIZES: [usize; 11] = [0, 1, 3, 8, 40, 64, 4095, 5000, EAGER_BYTES, EAGER_BYTES + 1, 70_001];

/// More would only be slow.
const MAX_STEPS: usize = 100;

fn endpoint(rank: Rank, size: usize) -> Endpoint {
    Endpoint::new(rank, size, &JobToken::none(), vec![([127, 0, 0, 1], 1).into()], None).expect("an endpoint")
}

fn sockets() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("non-blocking sockets");
    (ours, theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::transport::frame::{Header, Kind};
    use crate::transport::{Event, Outcome, Remote, Send, Space, Token, Transport};
    use std::io::Write;

    #[test]
    fn a_message_without_credit_for_a_rank_of_unknown_address_ends_with_the_endpoint() {
        let mut endpoint = endpoint(0, 3);
        let message = vec![0; EAGER_BYTES + 1];
        let token = Token { owner: 1, detail: 0 };
        let (space, from, bytes) = (Space::Collective, message.as_ptr(), message.len());
        // SAFETY: the message outlives the endpoint's use of it.
        unsafe { endpoint.send(Send { to: 2, space, slot: 0, check: 0, from, bytes, token }) };
        endpoint.close(&Error::invalid("the end"), None);
        let mut events = Vec::new();
        endpoint.progress(&mut events);
        assert!(matches!(&events[..], [Event { token: ended, outcome: Outcome::Failed(_) }] if *ended == token));
    }

    #[test]
    fn a_put_is_not_over_before_it_has_left() {
        let (ours, mut peer) = sockets();
        let mut endpoint = endpoint(0, 2);
        endpoint.established(1, ours.into(), &PEER, FRAMES);
        let memory = vec![0; 16 << 20];
        let (token, remote) = (Token { owner: 1, detail: 0 }, Remote { rank: 1, region: 0, offset: 0 });
        // SAFETY: the memory outlives the endpoint's use of it.
        unsafe { endpoint.put(remote, memory.as_ptr(), memory.len(), token) };
        let mut events = Vec::new();
        endpoint.progress(&mut events);
        peer.write_all(&Header::new(Kind::PutDone, 0, 0).encode(FRAMES)).unwrap();
        endpoint.progress(&mut events);
        let [Event { outcome: Outcome::Failed(error), .. }] = &events[..] else { panic!("{events:?}") };
        assert!(error.message().contains("before it was sent"), "{error}");
    }
}

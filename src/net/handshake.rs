//! The handshake of a connection between two contexts, by which both sides prove that they belong to the same job
//! before anything else is read. Without I/O.
//!
//! Numbers are little-endian. The positions of the magic and the version are the same in every version of this
//! protocol. Which version of the library a rank runs is known before it connects: what it publishes begins with that.
//!
//! | from | message | bytes |
//! |---|---|---|
//! | connector | [`Hello`] | magic (7), version (1), flags (1), rank (4), handle sought (16), own handle (16), nonce (32), [`Part`]: streams (1), index (1), first (4) |
//! | acceptor | challenge | magic (7), version (1), 4, flags (1), nonce (32), proof (32) |
//! | connector | proof | 32 bytes |
//! | acceptor | [`Answer`] | magic (7), version (1), 1 accepted, 2 yield or 3 refused, reason (1) |
//!
//! An acceptor that refuses without a challenge sends the last message at once. Flag 1: the sender has a job token.
//!
//! A handle is a digest of a context's [`Identity`], which is published in the store and never sent over a connection.
//! The key of all proofs is derived from the acceptor's identity and the job's token. Each proof covers all bytes sent
//! before it, including both sides' fresh nonces, so a recorded proof cannot be replayed; the acceptor's and the
//! connector's proofs have different labels, so neither can be reflected. The number in the headers of the connection's
//! frames is derived from the same key.

mod fault;

pub use fault::{BadCertificate, Fault};

use crate::secret::{self, JobToken, Proof, SecretKey};
use crate::wire::VERSION;

/// A secret random number of a context, which it publishes to its peers in the store.
pub type Identity = [u8; 16];

/// Public name of a context.
pub type Handle = [u8; 16];

/// Random bytes that are used only once.
pub type Nonce = [u8; 32];

const MAGIC: [u8; 7] = *b"gloo_rs";
const PREFIX_BYTES: usize = 8;
const FLAG_TOKEN: u8 = 1;
const CHALLENGE: u8 = 4;

/// Length of a [`Hello`] on the wire.
pub const HELLO_BYTES: usize = PREFIX_BYTES + 1 + 4 + 16 + 16 + 32 + 6;
/// The maximum number of connections of a link.
pub const MAX_STREAMS: u8 = 16;
/// Length of a challenge on the wire.
pub const CHALLENGE_BYTES: usize = ANSWER_BYTES + 32 + 32;
/// Length of an [`Answer`] on the wire.
pub const ANSWER_BYTES: usize = PREFIX_BYTES + 2;
/// Length of a proof on the wire.
pub const PROOF_BYTES: usize = 32;

/// The handle of the context with this identity.
pub fn handle(identity: &Identity) -> Handle {
    secret::fingerprint(identity)
}

/// The key of connections to the context with this identity.
pub fn key(token: &JobToken, identity: &Identity) -> SecretKey {
    SecretKey::derive(token, "gloo_rs connection", identity)
}

/// Why the acceptor refuses a connection, as sent to the connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The connector uses another version of the protocol.
    Version = 1,
    /// The context does not exist, or no longer.
    NoContext = 2,
    /// One side has a job token and the other none.
    OneToken = 3,
    /// The proof is invalid.
    Proof = 4,
    /// The context has no such peer, or knows it by another handle.
    Stranger = 5,
    /// The context is closed, or its connection to this peer has ended.
    Closed = 6,
    /// The rank has a connection to this peer already.
    Connected = 7,
}

impl Reason {
    fn from_byte(byte: u8) -> Option<Self> {
        use Reason::*;
        [Version, NoContext, OneToken, Proof, Stranger, Closed, Connected].into_iter().find(|r| *r as u8 == byte)
    }
}

/// The acceptor's last message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection is established.
    Accepted,
    /// The acceptor is connecting to the connector itself, and that connection is used.
    Yield,
    /// The connection is refused.
    Refused(Reason),
}

impl Answer {
    /// Encodes the message.
    pub fn encode(self) -> [u8; ANSWER_BYTES] {
        let mut out = [0; ANSWER_BYTES];
        out[..PREFIX_BYTES].copy_from_slice(&prefix());
        (out[8], out[9]) = match self {
            Self::Accepted => (1, 0),
            Self::Yield => (2, 0),
            Self::Refused(reason) => (3, reason as u8),
        };
        out
    }

    /// Decodes the message.
    pub fn decode(wire: &[u8; ANSWER_BYTES]) -> Result<Self, Fault> {
        check_prefix(wire)?;
        match (wire[8], wire[9]) {
            (1, 0) => Ok(Self::Accepted),
            (2, 0) => Ok(Self::Yield),
            (3, reason) => Reason::from_byte(reason).map(Self::Refused).ok_or(Fault::Malformed),
            _ => Err(Fault::Malformed),
        }
    }
}

fn prefix() -> [u8; PREFIX_BYTES] {
    let mut out = [VERSION; PREFIX_BYTES];
    out[..7].copy_from_slice(&MAGIC);
    out
}

/// Fails as soon as the first bytes cannot be the beginning of a message.
fn check_prefix(wire: &[u8]) -> Result<(), Fault> {
    let n = wire.len().min(MAGIC.len());
    if wire[..n] != MAGIC[..n] {
        return Err(Fault::foreign(wire));
    }
    match wire.get(7) {
        Some(version) if *version != VERSION => Err(Fault::Version(*version)),
        _ => Ok(()),
    }
}

/// The part of `wire` that begins at `at`; the callers ensure that it is long enough.
fn array<const N: usize>(wire: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| wire[at + i])
}

/// The position of a connection among those of its link. The first is made alone; the others name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of connections of the link: 1 to [`MAX_STREAMS`].
    pub streams: u8,
    /// Position of this one.
    pub index: u8,
    /// The number in the headers of the link's frames, which the first connection has agreed on; 0 for that one itself.
    pub first: u32,
}

impl Part {
    /// The first connection of a link that has so many.
    pub fn first(streams: u8) -> Self {
        Self { streams, index: 0, first: 0 }
    }
}

/// The first message: names the two contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Whether the connector has a job token.
    pub has_token: bool,
    /// The rank that the connector says it is.
    pub rank: u32,
    /// The context to connect to.
    pub to: Handle,
    /// The context that connects.
    pub from: Handle,
    /// The connector's nonce.
    pub nonce: Nonce,
    /// Which connection of the link this is.
    pub part: Part,
}

impl Hello {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&prefix());
        out[8] = if self.has_token { FLAG_TOKEN } else { 0 };
        out[9..13].copy_from_slice(&self.rank.to_le_bytes());
        out[13..29].copy_from_slice(&self.to);
        out[29..45].copy_from_slice(&self.from);
        out[45..77].copy_from_slice(&self.nonce);
        (out[77], out[78]) = (self.part.streams, self.part.index);
        out[79..].copy_from_slice(&self.part.first.to_le_bytes());
        out
    }

    /// Decodes the message.
    pub fn decode(wire: &[u8; HELLO_BYTES]) -> Result<Self, Fault> {
        check_prefix(wire)?;
        let part = Part { streams: wire[77], index: wire[78], first: u32::from_le_bytes(array(wire, 79)) };
        let is_possible =
            part.index < part.streams && part.streams <= MAX_STREAMS && (part.index > 0 || part.first == 0);
        if !is_possible {
            return Err(Fault::Malformed);
        }
        Ok(Self {
            has_token: flag(wire[8])?,
            rank: u32::from_le_bytes(array(wire, 9)),
            to: array(wire, 13),
            from: array(wire, 29),
            nonce: array(wire, 45),
            part,
        })
    }
}

fn flag(byte: u8) -> Result<bool, Fault> {
    if byte & !FLAG_TOKEN == 0 { Ok(byte == FLAG_TOKEN) } else { Err(Fault::Malformed) }
}

/// An authenticated connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The context to which it connects.
    pub to: Handle,
    /// The connector's own context.
    pub from: Handle,
    /// The rank that it claims.
    pub rank: u32,
    /// The number that the headers of the connection's frames contain.
    pub frames: u32,
    /// Which connection of the link this is.
    pub part: Part,
}

/// Labels of the two proofs.
const ACCEPTOR: &str = "gloo_rs acceptor";
const CONNECTOR: &str = "gloo_rs connector";

fn frames(key: &SecretKey, transcript: &[&[u8]]) -> u32 {
    u32::from_le_bytes(array(&key.prove("gloo_rs frames", transcript), 0))
}

/// What the acceptor does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepting<P> {
    /// Waits for more bytes.
    Waiting,
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Passes the connection on; its receiver sends the last message.
    Proven(P),
}

/// The accepting side.
#[derive(Debug)]
pub struct Acceptor {
    nonce: Nonce,
    wire: [u8; HELLO_BYTES],
    have: usize,
    challenged: Option<Challenged>,
}

#[derive(Debug)]
struct Challenged {
    hello: Hello,
    key: SecretKey,
    challenge: [u8; CHALLENGE_BYTES],
    proof: Proof,
    have: usize,
}

impl Acceptor {
    /// Makes the acceptor of one connection. `nonce` must be random and never used before.
    pub fn new(nonce: Nonce) -> Self {
        Self { nonce, wire: [0; HELLO_BYTES], have: 0, challenged: None }
    }

    /// Number of bytes that the current message still lacks: never read more.
    pub fn wanted(&self) -> usize {
        match &self.challenged {
            None => HELLO_BYTES - self.have,
            Some(challenged) => PROOF_BYTES - challenged.have,
        }
    }

    /// The rank that the connector claims, once it has named a context that exists here, unless a fault has occurred
    /// since.
    pub fn claims(&self) -> Option<u32> {
        self.challenged.as_ref().map(|challenged| challenged.hello.rank)
    }

    /// Processes received bytes, at most [`Acceptor::wanted`]. `find` returns the key of a context that exists here.
    /// After a fault the connection must not be used again.
    pub fn take(
        &mut self,
        bytes: &[u8],
        find: impl FnOnce(&Handle) -> Option<SecretKey>,
    ) -> Result<Accepting<Proven>, Fault> {
        let bytes = &bytes[..bytes.len().min(self.wanted())];
        let Some(challenged) = &mut self.challenged else {
            self.wire[self.have..self.have + bytes.len()].copy_from_slice(bytes);
            self.have += bytes.len();
            check_prefix(&self.wire[..self.have])?;
            return if self.have == HELLO_BYTES { self.challenge(find) } else { Ok(Accepting::Waiting) };
        };
        challenged.proof[challenged.have..challenged.have + bytes.len()].copy_from_slice(bytes);
        challenged.have += bytes.len();
        if challenged.have < PROOF_BYTES {
            return Ok(Accepting::Waiting);
        }
        let Challenged { hello, key, challenge, proof, .. } = challenged;
        let transcript = [&self.wire[..], &challenge[..]];
        if !key.verify(CONNECTOR, &transcript, proof) {
            return Err(Fault::Proof);
        }
        let frames = frames(key, &transcript);
        Ok(Accepting::Proven(Proven { to: hello.to, from: hello.from, rank: hello.rank, frames, part: hello.part }))
    }

    fn challenge(&mut self, find: impl FnOnce(&Handle) -> Option<SecretKey>) -> Result<Accepting<Proven>, Fault> {
        let hello = Hello::decode(&self.wire)?;
        let key = find(&hello.to).ok_or(Fault::NoContext)?;
        if key.has_token() != hello.has_token {
            return Err(Fault::OneToken { theirs: hello.has_token });
        }
        let mut challenge = [0; CHALLENGE_BYTES];
        challenge[..8].copy_from_slice(&prefix());
        challenge[8] = CHALLENGE;
        challenge[9] = if key.has_token() { FLAG_TOKEN } else { 0 };
        challenge[10..42].copy_from_slice(&self.nonce);
        let proof = key.prove(ACCEPTOR, &[&self.wire, &challenge[..42]]);
        challenge[42..].copy_from_slice(&proof);
        self.challenged = Some(Challenged { hello, key, challenge, proof: [0; PROOF_BYTES], have: 0 });
        Ok(Accepting::Send(challenge.to_vec()))
    }
}

/// What a [`Connector`] does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// Waits for more bytes.
    Waiting,
    /// Sends these bytes.
    Send(Proof),
    /// The handshake is over. After [`Answer::Accepted`], the headers of the connection's frames contain this number.
    Done(Answer, u32),
}

/// Sent by a connector that has found the acceptor's proof invalid, so that the acceptor can report the reason, too.
pub const NO_PROOF: Proof = [0; PROOF_BYTES];

/// The connecting side.
#[derive(Debug)]
pub struct Connector {
    key: SecretKey,
    bound: bool,
    hello: [u8; HELLO_BYTES],
    wire: [u8; CHALLENGE_BYTES],
    have: usize,
    /// Set once the acceptor has proven its identity.
    frames: Option<u32>,
}

impl Connector {
    /// Makes the connector of one connection, to a context with this `key`.
    pub fn new(key: SecretKey, hello: &Hello) -> Self {
        let hello = Hello { has_token: key.has_token(), ..*hello }.encode();
        Self { key, bound: false, hello, wire: [0; CHALLENGE_BYTES], have: 0, frames: None }
    }

    /// Makes the proofs hold only in the session with this binding. The first call counts, before any bytes are taken.
    pub fn bind(&mut self, binding: impl FnOnce() -> Vec<u8>) {
        if !std::mem::replace(&mut self.bound, true) {
            self.key = self.key.bound(&binding());
        }
    }

    /// The first bytes to send.
    pub fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// How many connections the link has.
    pub fn streams(&self) -> u8 {
        self.hello[77]
    }

    /// The number that the headers of the connection's frames contain, once the proof has been made: from then on the
    /// acceptor may consider the connection as established.
    pub fn connection(&self) -> Option<u32> {
        self.frames
    }

    /// Number of bytes that the current message still lacks: never read more.
    pub fn wanted(&self) -> usize {
        let challenged = self.have >= ANSWER_BYTES && self.wire[8] == CHALLENGE && self.frames.is_none();
        if challenged { CHALLENGE_BYTES - self.have } else { ANSWER_BYTES.saturating_sub(self.have) }
    }

    /// Processes received bytes, at most [`Connector::wanted`]. After a fault the connection must not be used again.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Connecting, Fault> {
        // Runs a second time if the bytes are the beginning of a challenge, whose length is then known.
        while !bytes.is_empty() && self.wanted() > 0 {
            let (now, rest) = bytes.split_at(bytes.len().min(self.wanted()));
            self.wire[self.have..self.have + now.len()].copy_from_slice(now);
            self.have += now.len();
            bytes = rest;
            check_prefix(&self.wire[..self.have])?;
        }
        if self.have < ANSWER_BYTES || self.wanted() > 0 {
            return Ok(Connecting::Waiting);
        }
        if self.wire[8] != CHALLENGE || self.frames.is_some() {
            let answer = Answer::decode(&array(&self.wire, 0))?;
            return match (answer, self.frames) {
                (Answer::Refused(Reason::OneToken), _) => Err(Fault::OneToken { theirs: !self.key.has_token() }),
                (Answer::Refused(_), frames) => Ok(Connecting::Done(answer, frames.unwrap_or(0))),
                (_, Some(frames)) => Ok(Connecting::Done(answer, frames)),
                // An acceptor that has not proven its identity may not accept.
                (_, None) => Err(Fault::Proof),
            };
        }
        if flag(self.wire[9])? != self.key.has_token() {
            return Err(Fault::OneToken { theirs: !self.key.has_token() });
        }
        let theirs: Proof = array(&self.wire, 42);
        if !self.key.verify(ACCEPTOR, &[&self.hello, &self.wire[..42]], &theirs) {
            return Err(Fault::Proof);
        }
        let transcript = [&self.hello[..], &self.wire[..]];
        let proof = self.key.prove(CONNECTOR, &transcript);
        self.frames = Some(frames(&self.key, &transcript));
        self.have = 0;
        Ok(Connecting::Send(proof))
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;

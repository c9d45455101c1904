//! How a connection between two contexts begins: both sides prove that they belong together before anything else is read.
//! Without I/O.
//!
//! Numbers are little-endian; the magic and the version stand where no version may move them.
//!
//! | from | message | bytes |
//! |---|---|---|
//! | connector | [`Hello`] | magic (7), version (1), flags (1), rank (4), handle sought (16), own handle (16), nonce (32) |
//! | acceptor | challenge | magic (7), version (1), 4, flags (1), nonce (32), proof (32) |
//! | connector | proof | 32 bytes |
//! | acceptor | [`Answer`] | magic (7), version (1), 1 accepted, 2 yield or 3 refused, reason (1) |
//!
//! An acceptor that does not even challenge sends the last message at once. Flag 1 says that the sender has a job token.
//!
//! A handle is a digest of a context's [`Identity`], which crosses the store and never a connection. The key of all proofs is
//! made of the acceptor's identity and the job's token. Each proof covers everything that was said before it, both sides'
//! fresh nonces with it, so one that was recorded is worth nothing; the acceptor's and the connector's have different
//! labels, so neither can be sent back as the other. The number that the connection's frames carry comes from the same key.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use crate::secret::{self, JobToken, Proof, SecretKey};
use crate::wire::VERSION;

/// A secret number that a context draws and tells its peers over the store.
pub type Identity = [u8; 16];

/// What a context is called in the open.
pub type Handle = [u8; 16];

/// Random bytes that are used once.
pub type Nonce = [u8; 32];

const MAGIC: [u8; 7] = *b"gloo_rs";
const PREFIX_BYTES: usize = 8;
const FLAG_TOKEN: u8 = 1;
const CHALLENGE: u8 = 4;

/// Length of a [`Hello`] on the wire.
pub const HELLO_BYTES: usize = PREFIX_BYTES + 1 + 4 + 16 + 16 + 32;
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

/// Why a connection is not wanted, as the acceptor tells the connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// It speaks another version.
    Version = 1,
    /// There is no such context, or no longer.
    NoContext = 2,
    /// One side has a job token and the other none.
    OneToken = 3,
    /// The proof is wrong.
    Proof = 4,
    /// The context has no such peer, or knows it by another handle.
    Stranger = 5,
    /// The context is closed, or its connection to this peer is over.
    Over = 6,
    /// There is a connection to this peer already.
    Connected = 7,
}

impl Reason {
    fn from_byte(byte: u8) -> Option<Self> {
        use Reason::*;
        [Version, NoContext, OneToken, Proof, Stranger, Over, Connected].into_iter().find(|r| *r as u8 == byte)
    }
}

/// The acceptor's last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection stands.
    Accepted,
    /// The answering side is connecting itself, and its connection is the one to keep.
    Yield,
    /// Not wanted.
    Refused(Reason),
}

impl Answer {
    /// For the wire.
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

    /// From the wire.
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

/// What is wrong with what the other side says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin as this protocol does.
    Foreign,
    /// It speaks this version instead of [`VERSION`].
    Version(u8),
    /// It begins right and goes on wrong.
    Malformed,
    /// It seeks a context that is not here.
    NoContext,
    /// One side has a job token and the other none.
    OneToken {
        /// Whether the other side has it.
        theirs: bool,
    },
    /// Its proof is wrong.
    Proof,
}

impl Fault {
    /// What the connector is told, if it can be supposed to understand.
    pub fn answer(self) -> Option<Answer> {
        match self {
            Self::Foreign | Self::Malformed => None,
            Self::Version(_) => Some(Answer::Refused(Reason::Version)),
            Self::NoContext => Some(Answer::Refused(Reason::NoContext)),
            Self::OneToken { .. } => Some(Answer::Refused(Reason::OneToken)),
            Self::Proof => Some(Answer::Refused(Reason::Proof)),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign => f.write_str("it does not speak this protocol"),
            Self::Version(theirs) => {
                write!(f, "it speaks version {theirs} of the protocol, this library version {VERSION}")
            }
            Self::Malformed => f.write_str("its handshake is malformed"),
            Self::NoContext => f.write_str("it seeks a context that is not here"),
            Self::OneToken { theirs: true } => f.write_str(
                "it has a job token and this process has none: GLOO_RS_TOKEN, or the option in its place, must be the \
                 same on all ranks",
            ),
            Self::OneToken { theirs: false } => f.write_str(
                "it has no job token and this process has one: GLOO_RS_TOKEN, or the option in its place, must be the \
                 same on all ranks",
            ),
            Self::Proof => f.write_str(
                "it did not prove that it belongs to this job: is its job token (GLOO_RS_TOKEN) another one?",
            ),
        }
    }
}

fn prefix() -> [u8; PREFIX_BYTES] {
    let mut out = [VERSION; PREFIX_BYTES];
    out[..7].copy_from_slice(&MAGIC);
    out
}

/// Refuses a beginning that no message has, as soon as it shows.
fn check_prefix(wire: &[u8]) -> Result<(), Fault> {
    let n = wire.len().min(MAGIC.len());
    if wire[..n] != MAGIC[..n] {
        return Err(Fault::Foreign);
    }
    match wire.get(7) {
        Some(version) if *version != VERSION => Err(Fault::Version(*version)),
        _ => Ok(()),
    }
}

/// The part of `wire` that begins at `at`; the callers' messages are long enough.
fn array<const N: usize>(wire: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| wire[at + i])
}

/// The first message: who seeks whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Whether the connector has a job token.
    pub has_token: bool,
    /// The rank that the connector says it is.
    pub rank: u32,
    /// The context that is sought.
    pub to: Handle,
    /// The context that seeks.
    pub from: Handle,
    /// The connector's.
    pub nonce: Nonce,
}

impl Hello {
    /// For the wire.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&prefix());
        out[8] = if self.has_token { FLAG_TOKEN } else { 0 };
        out[9..13].copy_from_slice(&self.rank.to_le_bytes());
        out[13..29].copy_from_slice(&self.to);
        out[29..45].copy_from_slice(&self.from);
        out[45..].copy_from_slice(&self.nonce);
        out
    }

    /// From the wire.
    pub fn decode(wire: &[u8; HELLO_BYTES]) -> Result<Self, Fault> {
        check_prefix(wire)?;
        Ok(Self {
            has_token: flag(wire[8])?,
            rank: u32::from_le_bytes(array(wire, 9)),
            to: array(wire, 13),
            from: array(wire, 29),
            nonce: array(wire, 45),
        })
    }
}

fn flag(byte: u8) -> Result<bool, Fault> {
    if byte & !FLAG_TOKEN == 0 { Ok(byte == FLAG_TOKEN) } else { Err(Fault::Malformed) }
}

/// A connector that has proven that it belongs to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The context that it sought.
    pub to: Handle,
    /// Its own context.
    pub from: Handle,
    /// The rank that it says it is.
    pub rank: u32,
    /// What the connection's frames carry.
    pub frames: u32,
}

/// Labels of the two proofs.
const ACCEPTOR: &str = "gloo_rs acceptor";
const CONNECTOR: &str = "gloo_rs connector";

fn frames(key: &SecretKey, transcript: &[&[u8]]) -> u32 {
    u32::from_le_bytes(array(&key.prove("gloo_rs frames", transcript), 0))
}

/// What the side that was connected to does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepting<P> {
    /// Nothing, until more has come.
    Waiting,
    /// It sends this.
    Send(Vec<u8>),
    /// It hands the connection on; whoever it is for says the last word.
    Proven(P),
}

/// The side that was connected to.
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
    /// For one connection. `nonce` is random and was never used before.
    pub fn new(nonce: Nonce) -> Self {
        Self { nonce, wire: [0; HELLO_BYTES], have: 0, challenged: None }
    }

    /// How many bytes the message that is coming in lacks: never more are to be read.
    pub fn wanted(&self) -> usize {
        match &self.challenged {
            None => HELLO_BYTES - self.have,
            Some(challenged) => PROOF_BYTES - challenged.have,
        }
    }

    /// Who the connector says it is, once it has named a context that is here, and not said anything wrong since.
    pub fn claims(&self) -> Option<u32> {
        self.challenged.as_ref().map(|challenged| challenged.hello.rank)
    }

    /// Takes what has come, which is at most [`Acceptor::wanted`]. `find` gives the key of a context that is here. After a
    /// fault the connection is of no more use.
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
        Ok(Accepting::Proven(Proven { to: hello.to, from: hello.from, rank: hello.rank, frames }))
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
    /// Nothing, until more has come.
    Waiting,
    /// It sends this.
    Send(Proof),
    /// It is over. With [`Answer::Accepted`], the connection's frames carry this number.
    Done(Answer, u32),
}

/// What a connector sends that has found the acceptor's proof wrong: so the acceptor can say what is the matter, too.
pub const NO_PROOF: Proof = [0; PROOF_BYTES];

/// The side that connects.
#[derive(Debug)]
pub struct Connector {
    key: SecretKey,
    hello: [u8; HELLO_BYTES],
    wire: [u8; CHALLENGE_BYTES],
    have: usize,
    /// Set once the acceptor has proven itself.
    frames: Option<u32>,
}

impl Connector {
    /// For one connection, to a context with this `key`.
    pub fn new(key: SecretKey, hello: &Hello) -> Self {
        let hello = Hello { has_token: key.has_token(), ..*hello }.encode();
        Self { key, hello, wire: [0; CHALLENGE_BYTES], have: 0, frames: None }
    }

    /// What to send first.
    pub fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// How many bytes the message that is coming in lacks: never more are to be read.
    pub fn wanted(&self) -> usize {
        let challenged = self.have >= ANSWER_BYTES && self.wire[8] == CHALLENGE && self.frames.is_none();
        if challenged { CHALLENGE_BYTES - self.have } else { ANSWER_BYTES.saturating_sub(self.have) }
    }

    /// Takes what has come, which is at most [`Connector::wanted`]. After a fault the connection is of no more use.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Connecting, Fault> {
        // Twice, if it is the beginning of a challenge and goes on.
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
                // Who has proven nothing has nothing to accept.
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

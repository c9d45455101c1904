//! What ranks tell each other to agree, and how it is encoded: numbers little-endian, lists with their length before
//! them.

use crate::error::{Error, ErrorKind, Result};
use crate::reserve::try_reserve;
use crate::types::Rank;

/// What one rank contributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The decision has the bits that all votes have.
    pub flags: u64,
    /// Bytes of the rank that the decision makes known to all.
    pub record: Vec<u8>,
}

/// What all ranks that are left have agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The bits that the flags of all votes have.
    pub flags: u64,
    /// The ranks that are lost, in ascending order.
    pub lost: Vec<Rank>,
    /// The ranks that have voted, in ascending order, with their records.
    pub records: Vec<(Rank, Vec<u8>)>,
}

/// What a rank tells another one about an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number of the agreement.
    pub number: u64,
    /// What is told.
    pub content: Content,
}

/// The content of a [`Message`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// To the leader: the sender's vote, the ranks that it has lost, and the proposal that it has accepted.
    Vote(Vote, Vec<Rank>, Option<Decision>),
    /// From the leader: what is to be decided.
    Proposal(Decision),
    /// To the leader: the sender has accepted the proposal.
    Acceptance,
    /// All have accepted this.
    Decision(Decision),
    /// Asks for the decision.
    Question,
}

const VOTE: u8 = 1;
const PROPOSAL: u8 = 2;
const ACCEPTANCE: u8 = 3;
const DECISION: u8 = 4;
const QUESTION: u8 = 5;

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match &self.content {
            Content::Vote(..) => VOTE,
            Content::Proposal(_) => PROPOSAL,
            Content::Acceptance => ACCEPTANCE,
            Content::Decision(_) => DECISION,
            Content::Question => QUESTION,
        };
        let mut out = vec![kind];
        out.extend_from_slice(&self.number.to_le_bytes());
        match &self.content {
            Content::Vote(vote, lost, accepted) => {
                out.extend_from_slice(&vote.flags.to_le_bytes());
                put_bytes(&mut out, &vote.record);
                put_ranks(&mut out, lost);
                out.push(u8::from(accepted.is_some()));
                accepted.iter().for_each(|decision| put_decision(&mut out, decision));
            }
            Content::Proposal(decision) | Content::Decision(decision) => put_decision(&mut out, decision),
            Content::Acceptance | Content::Question => {}
        }
        out
    }

    /// Decodes a message of a context of `size` ranks.
    pub fn decode(bytes: &[u8], size: usize) -> Result<Self> {
        let mut input = Input { bytes, size };
        let (kind, number) = (input.byte()?, input.u64()?);
        let content = match kind {
            VOTE => {
                let (flags, record, lost) = (input.u64()?, input.bytes()?, input.ranks()?);
                let accepted = match input.byte()? {
                    0 => None,
                    _ => Some(input.decision()?),
                };
                Content::Vote(Vote { flags, record }, lost, accepted)
            }
            PROPOSAL => Content::Proposal(input.decision()?),
            ACCEPTANCE => Content::Acceptance,
            DECISION => Content::Decision(input.decision()?),
            QUESTION => Content::Question,
            other => return malformed(format_args!("kind {other}")),
        };
        match input.bytes.len() {
            0 => Ok(Self { number, content }),
            more => malformed(format_args!("{more} bytes too many")),
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_ranks(out: &mut Vec<u8>, ranks: &[Rank]) {
    out.extend_from_slice(&(ranks.len() as u32).to_le_bytes());
    ranks.iter().for_each(|rank| out.extend_from_slice(&(*rank as u32).to_le_bytes()));
}

fn put_decision(out: &mut Vec<u8>, decision: &Decision) {
    out.extend_from_slice(&decision.flags.to_le_bytes());
    put_ranks(out, &decision.lost);
    out.extend_from_slice(&(decision.records.len() as u32).to_le_bytes());
    for (rank, record) in &decision.records {
        out.extend_from_slice(&(*rank as u32).to_le_bytes());
        put_bytes(out, record);
    }
}

#[cold]
fn malformed<T>(what: std::fmt::Arguments<'_>) -> Result<T> {
    Err(Error::new(ErrorKind::Mismatch, format!("malformed message of an agreement: {what}")))
}

/// What is left of a message.
struct Input<'a> {
    bytes: &'a [u8],
    /// The number of ranks.
    size: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.bytes.split_at_checked(bytes) else {
            return malformed(format_args!("{bytes} bytes are wanted where {} are left", self.bytes.len()));
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")) as usize)
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let length = self.u32()?;
        let taken = self.take(length)?;
        let mut bytes = Vec::new();
        try_reserve(&mut bytes, length, "a record of a rank")?;
        bytes.extend_from_slice(taken);
        Ok(bytes)
    }

    /// Entries for ranks, in ascending order.
    fn by_rank<T>(&mut self, mut entry: impl FnMut(&mut Self, Rank) -> Result<T>) -> Result<Vec<T>> {
        let (number, mut entries, mut next) = (self.u32()?, Vec::new(), 0);
        if number > self.size {
            return malformed(format_args!("{number} of {} ranks", self.size));
        }
        try_reserve(&mut entries, number, "the ranks of an agreement")?;
        for _ in 0..number {
            let rank = self.u32()?;
            if rank < next || rank >= self.size {
                return malformed(format_args!(
                    "rank {rank} of {}, where {next} or a later one is expected",
                    self.size
                ));
            }
            next = rank + 1;
            entries.push(entry(self, rank)?);
        }
        Ok(entries)
    }

    fn ranks(&mut self) -> Result<Vec<Rank>> {
        self.by_rank(|_, rank| Ok(rank))
    }

    fn decision(&mut self) -> Result<Decision> {
        Ok(Decision {
            flags: self.u64()?,
            lost: self.ranks()?,
            records: self.by_rank(|input, rank| Ok((rank, input.bytes()?)))?,
        })
    }
}

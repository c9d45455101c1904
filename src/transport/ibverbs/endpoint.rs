//! What two ranks tell each other over their TCP connection, so that their queue pairs can be connected, and when their
//! link ends.
//!
//! Each side sends one message of a fixed length, [`Offer`]: its queue pairs, or why it has none. When a side has
//! connected its queue pairs, so that they can receive, it sends [`READY`]. The last message is [`End`] or [`Broke`],
//! followed by the end of the stream.

use super::memory::MAX_RAILS;
use super::port::GidType;
use crate::error::{Error, ErrorKind, Result};

/// The first bytes of an offer: the version is that of everything between two links, frames included.
const MAGIC: [u8; 8] = *b"gloo_ib\x01";
/// Bytes of a reason.
const REASON_BYTES: usize = 256;
const RAIL_BYTES: usize = 4 + 4 + 4 + 4 + 2 + 1 + 1 + 16;
const RAILS_AT: usize = MAGIC.len() + 4 + 4 + 4 + 4;
const REASON_AT: usize = RAILS_AT + MAX_RAILS * RAIL_BYTES;
/// Bytes of an offer.
pub const OFFER_BYTES: usize = REASON_AT + REASON_BYTES;
/// The message of a side whose queue pairs can receive.
pub const READY: u8 = 0x52;

/// A queue pair of one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The queue pair's number.
    pub number: u32,
    /// The number of the first packet that it sends.
    pub packet: u32,
    /// Bytes of the longest message of its port.
    pub max_message: u32,
    /// Mbit/s of its port.
    pub speed: u32,
    /// The local identifier of the queue pair's port.
    pub lid: u16,
    /// The longest packet of its port, as verbs number it.
    pub mtu: u8,
    /// The GID of its port.
    pub gid: [u8; 16],
    /// What that is.
    pub gid_type: GidType,
}

/// The queue pairs of a side, one for each rail, or the reason why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The queue pairs.
    pub rails: Vec<Peer>,
    /// Receive buffers that are posted on the first of them.
    pub receives: u32,
    /// Bytes of each.
    pub frame_bytes: u32,
    /// RDMA reads that each queue pair serves at one time.
    pub reads: u32,
    /// Why there are no queue pairs.
    pub reason: String,
}

impl Offer {
    /// Returns the offer of a side that cannot make queue pairs.
    pub fn refusal(reason: &str) -> Self {
        Self { rails: Vec::new(), receives: 0, frame_bytes: 0, reads: 0, reason: reason.to_owned() }
    }

    /// Encodes it: [`OFFER_BYTES`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(OFFER_BYTES);
        out.extend_from_slice(&MAGIC);
        for number in [self.rails.len() as u32, self.receives, self.frame_bytes, self.reads] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for rail in &self.rails {
            for number in [rail.number, rail.packet, rail.max_message, rail.speed] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&rail.lid.to_le_bytes());
            out.extend_from_slice(&[rail.mtu, rail.gid_type as u8]);
            out.extend_from_slice(&rail.gid);
        }
        out.resize(REASON_AT, 0);
        let reason = &self.reason[..self.reason.floor_char_boundary(REASON_BYTES)];
        out.extend_from_slice(reason.as_bytes());
        out.resize(OFFER_BYTES, 0);
        out
    }

    /// Whether these bytes may be the first of an offer, of any version.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(&MAGIC[..MAGIC.len() - 1]).all(|(byte, expected)| byte == expected)
    }

    /// Decodes what a peer has sent.
    pub fn decode(bytes: &[u8; OFFER_BYTES]) -> Result<Self> {
        let malformed = |what: &str| Error::new(ErrorKind::Mismatch, format!("malformed offer of queue pairs: {what}"));
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(malformed("it is of another version"));
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let [count, receives, frame_bytes, reads] = [0, 1, 2, 3].map(|index| u32_at(MAGIC.len() + 4 * index));
        if count as usize > MAX_RAILS {
            return Err(malformed(&format!("{count} rails")));
        }
        let rail = |index: usize| {
            let at = RAILS_AT + index * RAIL_BYTES;
            Peer {
                number: u32_at(at),
                packet: u32_at(at + 4),
                max_message: u32_at(at + 8),
                speed: u32_at(at + 12),
                lid: u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]),
                mtu: bytes[at + 18],
                gid_type: GidType::of(bytes[at + 19].into()).unwrap_or(GidType::InfiniBand),
                gid: bytes[at + 20..at + 36].try_into().expect("16 bytes"),
            }
        };
        let rails: Vec<Peer> = (0..count as usize).map(rail).collect();
        let reason = String::from_utf8_lossy(&bytes[REASON_AT..]).trim_end_matches('\0').to_owned();
        if rails.is_empty() && reason.is_empty() {
            return Err(malformed("it has neither queue pairs nor a reason"));
        }
        if rails.iter().any(|rail| !(1..=5).contains(&rail.mtu) || rail.max_message == 0) {
            return Err(malformed("its ports' longest packet or message"));
        }
        Ok(Self { rails, receives, frame_bytes, reads, reason })
    }
}

/// The end of a link: what follows the bytes that were sent by the queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// How many bytes of the stream were sent by the queue pairs.
    pub total: u64,
    /// Bytes that follow them, the rest of a message.
    pub rest: Vec<u8>,
    /// The close notice, which follows those.
    pub notice: Vec<u8>,
}

/// What the peer of a connection that broke is told, in place of [`End`]: why, as this side knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broke {
    /// A port of this side, and what has failed there.
    pub why: String,
}

const BROKE: u8 = 0x42;

impl Broke {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let why = &self.why[..self.why.floor_char_boundary(REASON_BYTES)];
        [&[BROKE], why.as_bytes()].concat()
    }

    /// Decodes all that a peer has sent before the end of the stream; `None` if that is something else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&BROKE, why) = bytes.split_first()? else { return None };
        (why.len() <= REASON_BYTES).then(|| Self { why: String::from_utf8_lossy(why).into_owned() })
    }
}

const END: u8 = 0x45;
const END_BYTES: usize = 1 + 8 + 4;

impl End {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![END];
        out.extend_from_slice(&self.total.to_le_bytes());
        out.extend_from_slice(&(self.rest.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.rest);
        out.extend_from_slice(&self.notice);
        out
    }

    /// Decodes all that a peer has sent before the end of the stream; `None` if that is no end.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, ref numbers @ ..], after) = bytes.split_first_chunk::<END_BYTES>()?;
        let total = u64::from_le_bytes(numbers[..8].try_into().ok()?);
        let rest = u32::from_le_bytes(numbers[8..].try_into().ok()?) as usize;
        let (rest, notice) = after.split_at_checked(rest)?;
        (kind == END).then(|| Self { total, rest: rest.to_vec(), notice: notice.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(rails: usize) -> Offer {
        let rail = |index: usize| Peer {
            number: 17 + index as u32,
            packet: 0xff_ffff,
            max_message: 1 << 30,
            speed: 200_000,
            lid: 7,
            mtu: 5,
            gid: [index as u8; 16],
            gid_type: [GidType::InfiniBand, GidType::RoceV1, GidType::RoceV2][index % 3],
        };
        Offer {
            rails: (0..rails).map(rail).collect(),
            receives: 64,
            frame_bytes: 8192,
            reads: 16,
            reason: String::new(),
        }
    }

    fn decoded(bytes: &[u8]) -> Result<Offer> {
        Offer::decode(bytes.try_into().expect("the length of an offer"))
    }

    #[test]
    fn offers_survive_encoding() {
        for rails in 1..=MAX_RAILS {
            assert_eq!(decoded(&offer(rails).encode()).unwrap(), offer(rails));
        }
        let long = Offer::refusal(&"ä".repeat(REASON_BYTES));
        assert_eq!(decoded(&long.encode()).unwrap().reason, "ä".repeat(REASON_BYTES / 2));
    }

    #[test]
    fn offers_of_others_are_refused() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = offer(2).encode();
            change(&mut bytes);
            decoded(&bytes).unwrap_err().message().to_owned()
        };
        assert!(refused(&|bytes| bytes[7] = 2).contains("another version"));
        assert!(refused(&|bytes| bytes[8] = 5).contains("5 rails"));
        assert!(refused(&|bytes| bytes[8] = 0).contains("neither queue pairs nor a reason"));
        assert!(refused(&|bytes| bytes[RAILS_AT + 18] = 6).contains("longest packet"));
    }

    proptest! {
        #[test]
        fn any_end_survives_encoding(total: u64, rest: Vec<u8>, notice: Vec<u8>) {
            let end = End { total, rest, notice };
            prop_assert_eq!(End::decode(&end.encode()), Some(end));
        }

        #[test]
        fn any_reason_survives_encoding(why in ".{0,60}") {
            let broke = Broke { why };
            prop_assert_eq!(Broke::decode(&broke.encode()), Some(broke.clone()));
            prop_assert_eq!(End::decode(&broke.encode()), None);
        }

        #[test]
        fn any_bytes_are_an_end_or_not(bytes: Vec<u8>) {
            if let Some(end) = End::decode(&bytes) {
                prop_assert_eq!(end.encode(), bytes);
            }
        }
    }
}

//! What stands in front of every message on a byte stream. No I/O.
//!
//! A header is [`Header::BYTES`] bytes, little-endian: kind, version, space, flags (one byte each), identity (4), check (8), slot
//! (8), bytes (8), offset (8). `identity` is the connection's, agreed on in the handshake.

use crate::error::{Error, ErrorKind, Result};
use crate::transport::Space;

/// Version of everything on the wire; peers with another one are refused.
pub const VERSION: u8 = 1;

macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident = $value:literal,)*) => {
        /// What a header announces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$meta])* $name = $value,)* }

        impl Kind {
            fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// A message; `bytes` of payload follow.
    Data = 1,
    /// A large message of `bytes` waits for its receiver. No payload.
    ReadyToSend = 2,
    /// The receiver of one large message in this slot is ready. No payload.
    ClearToSend = 3,
    /// `bytes` of payload for the buffer bound to `slot`, at `offset`.
    Write = 4,
    /// `bytes` of payload for region `check`, at `offset`; `slot` numbers the request.
    Put = 5,
    /// Answers `Put` request `slot`; `offset` is 0 for done, 1 for refused. No payload.
    PutDone = 6,
    /// Asks for `bytes` of region `check` at `offset`; `slot` numbers the request. No payload.
    Get = 7,
    /// Answers `Get` request `slot`: `bytes` of payload, or none with `offset` 1 for refused.
    GetDone = 8,
    /// The sender gives its context up; `bytes` of text say why, `check` is 1 where ranks disagree.
    Abort = 9,
    /// The sender is done with this connection. No payload.
    Goodbye = 10,
    /// The sender has waited in vain, and asks what the receiver is doing; `check` and `slot` are
    /// its own call's. No payload.
    Ask = 11,
    /// Answers `Ask` with `bytes` of text; `offset` is 1 where the same call waits there, too.
    Tell = 12,
}

/// In `flags`: the payload was announced by `ReadyToSend`.
pub const FLAG_ANNOUNCED: u8 = 1;

/// Longest text of an `Abort` or a `Tell`, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Whose slots.
    pub space: Space,
    /// `FLAG_…`.
    pub flags: u8,
    /// See [`crate::transport::Recv::check`]; a region's number for `Put` and `Get`.
    pub check: u64,
    /// Slot, or number of a request.
    pub slot: u64,
    /// Payload, or length of what is announced.
    pub bytes: u64,
    /// Offset in the receiver's memory, or a status.
    pub offset: u64,
}

impl Header {
    /// Length on the wire.
    pub const BYTES: usize = 40;

    /// A header with everything else zero.
    pub const fn new(kind: Kind, slot: u64, bytes: u64) -> Self {
        Self { kind, space: Space::User, flags: 0, check: 0, slot, bytes, offset: 0 }
    }

    /// For the wire.
    pub fn encode(&self, identity: u32) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&[self.kind as u8, VERSION, self.space as u8, self.flags]);
        out[4..8].copy_from_slice(&identity.to_le_bytes());
        out[8..16].copy_from_slice(&self.check.to_le_bytes());
        out[16..24].copy_from_slice(&self.slot.to_le_bytes());
        out[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// From the wire; refuses what no peer of this version and connection would send.
    pub fn decode(wire: &[u8; Self::BYTES], identity: u32) -> Result<Self> {
        let bad = |what: String| Err(Error::new(ErrorKind::Mismatch, format!("malformed frame: {what}")));
        let u32_at = |at: usize| u32::from_le_bytes(wire[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().expect("8 bytes"));
        if wire[1] != VERSION {
            return bad(format!("version {} instead of {VERSION}", wire[1]));
        }
        if u32_at(4) != identity {
            return bad(format!("identity {:#010x} instead of {identity:#010x}", u32_at(4)));
        }
        let Some(kind) = Kind::from_byte(wire[0]) else { return bad(format!("kind {}", wire[0])) };
        let space = match wire[2] {
            0 => Space::User,
            1 => Space::Collective,
            other => return bad(format!("space {other}")),
        };
        if wire[3] & !FLAG_ANNOUNCED != 0 {
            return bad(format!("flags {:#04x}", wire[3]));
        }
        // Only what belongs to a collective has a number.
        let numbered = match kind {
            Kind::Data | Kind::ReadyToSend => space == Space::Collective,
            kind => kind == Kind::Ask,
        };
        if u32_at(12) != 0 && !numbered {
            return bad(format!("{:#010x} where zeros stand", u32_at(12)));
        }
        let header = Self {
            kind,
            space,
            flags: wire[3],
            check: u64_at(8),
            slot: u64_at(16),
            bytes: u64_at(24),
            offset: u64_at(32),
        };
        if header.bytes > isize::MAX as u64 {
            return bad(format!("{} bytes", header.bytes));
        }
        if matches!(kind, Kind::Abort | Kind::Tell) && header.bytes > MAX_TEXT_BYTES as u64 {
            return bad(format!("a text of {} bytes", header.bytes));
        }
        Ok(header)
    }

    /// The region of a `Put` or a `Get`.
    pub fn region(&self) -> u32 {
        self.check as u32
    }

    /// Bytes that follow this header on the wire.
    pub fn payload(&self) -> usize {
        match self.kind {
            Kind::Data | Kind::Write | Kind::Put | Kind::GetDone | Kind::Abort | Kind::Tell => self.bytes as usize,
            Kind::ReadyToSend | Kind::ClearToSend | Kind::PutDone | Kind::Get | Kind::Goodbye | Kind::Ask => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_header_survives_the_wire(kind in 1u8..=12, flags: u8, check: u64, slot: u64, bytes in 0u64..4096, offset: u64, identity: u32) {
            let kind = Kind::from_byte(kind).unwrap();
            let header = Header { kind, space: Space::Collective, flags: flags & FLAG_ANNOUNCED, check, slot, bytes, offset };
            let numbered = matches!(kind, Kind::Data | Kind::ReadyToSend | Kind::Ask);
            prop_assert!(numbered || check >> 32 == 0 || Header::decode(&header.encode(identity), identity).is_err());
            let header = if numbered { header } else { Header { check: check & 0xffff_ffff, ..header } };
            prop_assert_eq!(Header::decode(&header.encode(identity), identity).unwrap(), header);
            prop_assert!(Header::decode(&header.encode(identity), identity ^ 1).is_err());
        }

        #[test]
        fn any_bytes_are_a_header_or_an_error(wire: [u8; 32], tail: [u8; 8]) {
            let mut all = [0; Header::BYTES];
            all[..32].copy_from_slice(&wire);
            all[32..].copy_from_slice(&tail);
            all[1] = VERSION;
            let identity = u32::from_le_bytes(all[4..8].try_into().unwrap());
            if let Ok(header) = Header::decode(&all, identity) {
                prop_assert!(header.bytes <= isize::MAX as u64);
                prop_assert!(!matches!(header.kind, Kind::Abort | Kind::Tell) || header.payload() <= MAX_TEXT_BYTES);
            }
        }
    }

    #[test]
    fn refuses_other_versions() {
        let mut wire = Header::new(Kind::Data, 1, 2).encode(7);
        wire[1] = VERSION + 1;
        let error = Header::decode(&wire, 7).unwrap_err();
        assert!(error.message().contains("version 2 instead of 1"), "{error}");
    }
}

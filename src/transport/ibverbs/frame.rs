//! A frame: what one send carries. After its header come records, then bytes of the stream.

use super::memory::MAX_RAILS;

/// Bytes of a frame, and of each posted receive.
pub const FRAME_BYTES: usize = 8 << 10;
/// Bytes of its header.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 4 + 4 + 8 + 8 + 4 * MAX_RAILS;
/// The maximum number of records of a frame.
pub const MAX_RECORDS: usize = (FRAME_BYTES - HEADER_BYTES) / RECORD_BYTES;

/// Memory that the sender of the record has exposed, which the receiver may access: for one message, or until it is
/// withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number of the record's memory on this link.
    pub key: u32,
    /// What happens to it.
    pub kind: RecordKind,
    /// The memory's address on the side that exposes it.
    pub address: u64,
    /// The memory's length in bytes.
    pub bytes: u64,
    /// The memory's keys with each rail.
    pub keys: [u32; MAX_RAILS],
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// One message may be written there.
    Message = 1,
    /// A region may be read and written until it is retracted.
    Region = 2,
    /// A region may not be accessed any more.
    Retracted = 3,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many records follow.
    pub records: u16,
    /// How many receives the sender has posted since its last frame.
    pub credits: u16,
}

impl Header {
    /// Encodes it.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..2].copy_from_slice(&self.records.to_le_bytes());
        out[2..4].copy_from_slice(&self.credits.to_le_bytes());
        out
    }

    /// The header of a received frame; `None` if it is malformed.
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let header = frame.get(..HEADER_BYTES)?;
        let header = Self {
            records: u16::from_le_bytes([header[0], header[1]]),
            credits: u16::from_le_bytes([header[2], header[3]]),
        };
        (frame[4..HEADER_BYTES] == [0; 4] && header.stream_at() <= frame.len()).then_some(header)
    }

    /// Where the bytes of the stream begin.
    pub fn stream_at(self) -> usize {
        HEADER_BYTES + usize::from(self.records) * RECORD_BYTES
    }
}

impl Record {
    /// Encodes it.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[..4].copy_from_slice(&self.key.to_le_bytes());
        out[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[8..16].copy_from_slice(&self.address.to_le_bytes());
        out[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        for (index, key) in self.keys.iter().enumerate() {
            out[24 + 4 * index..28 + 4 * index].copy_from_slice(&key.to_le_bytes());
        }
        out
    }

    /// Decodes it; `None` if it is malformed.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kind = match u32_at(4) {
            1 => RecordKind::Message,
            2 => RecordKind::Region,
            3 => RecordKind::Retracted,
            _ => return None,
        };
        let keys = std::array::from_fn(|index| u32_at(24 + 4 * index));
        Some(Self { key: u32_at(0), kind, address: u64_at(8), bytes: u64_at(16), keys })
    }
}

/// A record of a received frame, whose header has been decoded; `None` if it is malformed, or there are fewer.
pub fn record(frame: &[u8], index: usize) -> Option<Record> {
    let at = HEADER_BYTES + index * RECORD_BYTES;
    Record::decode(frame.get(at..at + RECORD_BYTES)?.try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_record_survives_encoding(key: u32, kind in 0..3usize, address: u64, bytes: u64, keys: [u32; MAX_RAILS]) {
            let kind = [RecordKind::Message, RecordKind::Region, RecordKind::Retracted][kind];
            let record = Record { key, kind, address, bytes, keys };
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn any_bytes_are_a_frame_or_not(bytes: Vec<u8>, records_of: u8) {
            let mut frame = bytes;
            if let Some(first) = frame.get_mut(0) {
                *first = records_of % 4;
            }
            if let Some(header) = Header::decode(&frame) {
                prop_assert!(header.stream_at() <= frame.len());
                prop_assert_eq!(&header.encode()[..], &frame[..HEADER_BYTES]);
                let all = (0..header.records.into()).map(|index| record(&frame, index));
                all.for_each(drop);
            }
        }
    }
}

//! The fingerprint of a call, 64 bits by which ranks detect that their calls differ: a digest of what all ranks must
//! agree on, and the number of the call among those of its [`kind`] on its tag.
//!
//! | field | bits | contents |
//! |---|---|---|
//! | rest | 17 | a hash of everything that has no field of its own |
//! | operation | 5 | how elements are combined: a [`ReduceOp`], [`USER_OPERATION`] or [`NO_OPERATION`] |
//! | data type | 5 | a [`DataType`] |
//! | algorithm | 5 | its position in the collective's list |
//! | collective | 5 | its number |
//! | purpose | 3 | a [`Purpose`] |
//! | number | 24 | 1 for the first call of a kind on a tag; 0 if they are not counted |
//!
//! The first field is in the lowest bits. All fields but the number form the digest. If a list has more entries than
//! its field has values, the code does not compile; this version has 16 collectives, at most 15 algorithms for one, 15
//! data types and 8 operations.

use crate::types::{DataType, ReduceOp};

/// A bit field of a fingerprint.
#[derive(Clone, Copy)]
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    /// The field in the next higher bits.
    const fn then(self, bits: u32) -> Self {
        Self { at: self.at + self.bits, bits }
    }

    const fn max(self) -> u32 {
        (1 << self.bits) - 1
    }

    const fn put(self, value: u32) -> u64 {
        ((value & self.max()) as u64) << self.at
    }

    const fn get(self, from: u64) -> u32 {
        (from >> self.at) as u32 & self.max()
    }
}

const REST: Field = Field { at: 0, bits: 17 };
const OPERATION: Field = REST.then(5);
const DATA_TYPE: Field = OPERATION.then(5);
const ALGORITHM: Field = DATA_TYPE.then(5);
const COLLECTIVE: Field = ALGORITHM.then(5);
const PURPOSE: Field = COLLECTIVE.then(3);
const NUMBER: Field = PURPOSE.then(24);

/// The largest number of a collective that a fingerprint can contain.
pub const MAX_COLLECTIVE: usize = COLLECTIVE.max() as usize;
/// The largest position of an algorithm in its list that a fingerprint can contain.
pub const MAX_ALGORITHM: usize = ALGORITHM.max() as usize;
/// The largest number of a call; 1 follows it.
pub const MAX_NUMBER: u32 = NUMBER.max();

/// Elements of a type of the caller's.
pub const OPAQUE_TYPE: u32 = DATA_TYPE.max();
/// A reduction function of the caller.
pub const USER_OPERATION: u32 = OPERATION.max() - 1;
/// Nothing is combined.
pub const NO_OPERATION: u32 = OPERATION.max();

const _: () = {
    assert!(NUMBER.at + NUMBER.bits == u64::BITS, "the fields of a fingerprint must fill 64 bits");
    assert!(DataType::ALL.len() <= OPAQUE_TYPE as usize, "more data types than a fingerprint's field has values");
    assert!(ReduceOp::ALL.len() <= USER_OPERATION as usize, "more operations than a fingerprint's field has values");
    assert!(Purpose::ALL.len() <= 1 << PURPOSE.bits, "more purposes than a fingerprint's field has values");
};

/// The purpose of a collective's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The call itself.
    Call = 0,
    /// The counts of the call, which its algorithm needs and only some ranks know.
    Counts = 1,
    /// The call, which joins several ones of a group.
    Fused = 2,
    /// A comparison of the ranks' calls; the fields for the call are not used.
    Comparison = 3,
    /// A measurement of a link; belongs to no call.
    Measurement = 4,
    /// Makes a context; belongs to no call.
    Setup = 5,
}

impl Purpose {
    const ALL: &[Self] = &[Self::Call, Self::Counts, Self::Fused, Self::Comparison, Self::Measurement, Self::Setup];

    /// The digest of a message with this purpose that belongs to no call.
    pub const fn alone(self) -> u64 {
        PURPOSE.put(self as u32)
    }

    /// The digest of a message with this purpose that belongs to the call with `digest`.
    pub const fn of(self, digest: u64) -> u64 {
        digest & !PURPOSE.put(PURPOSE.max()) | self.alone()
    }

    /// The purpose of a message with `digest`; `None` if this version does not know it.
    pub fn decode(digest: u64) -> Option<Self> {
        Self::ALL.get(PURPOSE.get(digest) as usize).copied()
    }
}

/// What all ranks must agree on, in fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Number of the collective.
    pub collective: u32,
    /// Position of the algorithm in the collective's list.
    pub algorithm: u32,
    /// Number of the [`DataType`].
    pub dtype: u32,
    /// Number of the [`ReduceOp`], [`USER_OPERATION`] or [`NO_OPERATION`].
    pub operation: u32,
    /// A hash of everything else.
    pub rest: u32,
}

impl Digest {
    /// Encodes the digest, for [`Purpose::Call`]. The upper bits of a value that is too large for its field, such as a
    /// hash, are cut.
    pub const fn encode(&self) -> u64 {
        COLLECTIVE.put(self.collective)
            | ALGORITHM.put(self.algorithm)
            | DATA_TYPE.put(self.dtype)
            | OPERATION.put(self.operation)
            | REST.put(self.rest)
    }

    /// Decodes a digest; ignores the purpose.
    pub fn decode(digest: u64) -> Self {
        Self {
            collective: COLLECTIVE.get(digest),
            algorithm: ALGORITHM.get(digest),
            dtype: DATA_TYPE.get(digest),
            operation: OPERATION.get(digest),
            rest: REST.get(digest),
        }
    }
}

/// The kind of a call: only messages of one kind and tag match. The calls of each collective, with those that are fused
/// and the messages by which they share their counts, are one kind, and so are comparisons of calls, measurements, and what makes a
/// context. Never 0.
#[inline]
pub const fn kind(fingerprint: u64) -> u8 {
    let collective = (COLLECTIVE.get(fingerprint) + 1) as u8;
    match PURPOSE.get(fingerprint) {
        purpose if purpose <= Purpose::Fused as u32 => collective,
        purpose => MAX_COLLECTIVE as u8 + purpose as u8,
    }
}

/// The [`kind`] of comparisons of calls.
pub const COMPARISON: u8 = kind(Purpose::Comparison.alone());
/// The [`kind`] of measurements. Some of their messages are never received.
pub const MEASUREMENT: u8 = kind(Purpose::Measurement.alone());
/// The [`kind`] of what makes a context.
pub const SETUP: u8 = kind(Purpose::Setup.alone());
/// The greatest [`kind`].
pub const LAST_KIND: u8 = SETUP;

/// The fingerprint of a call with this digest and number (at most [`MAX_NUMBER`]; 0 if calls are not counted).
pub const fn fingerprint(digest: u64, number: u32) -> u64 {
    (number as u64) << NUMBER.at | digest
}

/// The digest of a [`fingerprint`].
pub const fn digest(fingerprint: u64) -> u64 {
    fingerprint & ((1 << NUMBER.at) - 1)
}

/// The number of a [`fingerprint`].
pub const fn number(fingerprint: u64) -> u32 {
    (fingerprint >> NUMBER.at) as u32
}

/// The number of the call that follows the one with `number`.
#[inline]
pub const fn next_number(number: u32) -> u32 {
    // 0 means that calls are not counted.
    if number == MAX_NUMBER { 1 } else { number + 1 }
}

/// Whether messages with these fingerprints belong to different calls.
pub const fn differs(a: u64, b: u64) -> bool {
    a != b && (digest(a) != digest(b) || (number(a) != 0 && number(b) != 0))
}

/// Whether `a` and `b` are the same call by kind and number, on one tag, but differ in what ranks must agree on.
pub const fn replaces(a: u64, b: u64) -> bool {
    kind(a) == kind(b) && number(a) == number(b) && number(a) != 0 && digest(a) != digest(b)
}

/// Whether `a` belongs to an earlier call than `b`, of one kind on one tag; numbers wrap, so the shorter distance
/// decides.
pub const fn is_earlier(a: u64, b: u64) -> bool {
    number(a).wrapping_sub(number(b)) & MAX_NUMBER > MAX_NUMBER / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes, and nothing of it is unsafe")]
    fn every_value_of_every_field_comes_back_and_changes_no_other() {
        let zeros = Digest { collective: 0, algorithm: 0, dtype: 0, operation: 0, rest: 0 };
        let ones = Digest {
            collective: MAX_COLLECTIVE as u32,
            algorithm: MAX_ALGORITHM as u32,
            dtype: DATA_TYPE.max(),
            operation: NO_OPERATION,
            rest: REST.max(),
        };
        for base in [zeros, ones] {
            let with = |change: &dyn Fn(&mut Digest)| {
                let mut digest = base;
                change(&mut digest);
                for (purpose, number) in Purpose::ALL.iter().flat_map(|p| [0, 1, MAX_NUMBER].map(|n| (*p, n))) {
                    let own = purpose.of(digest.encode());
                    let whole = fingerprint(own, number);
                    assert_eq!((super::digest(whole), super::number(whole)), (own, number));
                    assert_eq!((Digest::decode(own), Purpose::decode(own)), (digest, Some(purpose)));
                    assert_eq!(Purpose::Call.of(own), digest.encode());
                }
            };
            (0..=MAX_COLLECTIVE as u32).for_each(|value| with(&|d| d.collective = value));
            (0..=MAX_ALGORITHM as u32).for_each(|value| with(&|d| d.algorithm = value));
            (0..=DATA_TYPE.max()).for_each(|value| with(&|d| d.dtype = value));
            (0..=OPERATION.max()).for_each(|value| with(&|d| d.operation = value));
            (0..=REST.max()).for_each(|value| with(&|d| d.rest = value));
        }
        assert_eq!(Purpose::decode(u64::MAX), None);
    }

    #[test]
    fn a_value_that_is_too_large_does_not_change_other_fields() {
        let digest = |algorithm| Digest { algorithm, ..Digest::decode(0) }.encode();
        assert_eq!(digest(MAX_ALGORITHM as u32 + 1), digest(0));
        assert_ne!(digest(16), digest(0));
    }

    #[test]
    fn calls_of_one_collective_are_of_one_kind_and_all_else_of_others() {
        let mut kinds = std::collections::HashMap::new();
        for collective in 0..=MAX_COLLECTIVE as u32 {
            for (algorithm, rest) in [(0, 0), (MAX_ALGORITHM as u32, REST.max())] {
                let digest = Digest { collective, algorithm, dtype: 3, operation: 4, rest }.encode();
                let own = fingerprint(digest, 1 + rest);
                assert_eq!(*kinds.entry(kind(own)).or_insert(collective), collective);
                assert_eq!(kind(Purpose::Counts.of(digest)), kind(own), "ranks of which one shares counts must meet");
                assert_eq!(kind(Purpose::Fused.of(digest)), kind(own), "ranks of which one fuses its calls must meet");
            }
        }
        let alone = [Purpose::Comparison, Purpose::Measurement, Purpose::Setup].map(|purpose| kind(purpose.alone()));
        assert!(kinds.len() == MAX_COLLECTIVE + 1 && !kinds.contains_key(&0));
        assert!(alone.iter().all(|kind| !kinds.contains_key(kind)) && alone == [COMPARISON, MEASUREMENT, SETUP]);
    }

    #[test]
    fn numbers_wrap() {
        assert_eq!([1, 2, MAX_NUMBER - 1, MAX_NUMBER].map(next_number), [2, 3, MAX_NUMBER, 1]);
        let of = |number| fingerprint(7, number);
        assert!(is_earlier(of(1), of(2)) && is_earlier(of(MAX_NUMBER), of(1)) && is_earlier(of(MAX_NUMBER - 9), of(9)));
        assert!(!is_earlier(of(2), of(1)) && !is_earlier(of(1), of(MAX_NUMBER)) && !is_earlier(of(5), of(5)));
    }

    #[test]
    fn calls_differ_by_digest_or_by_numbers_that_are_counted() {
        let (a, b) = (fingerprint(7, 3), fingerprint(8, 3));
        assert!(differs(a, b) && differs(a, fingerprint(7, 4)) && differs(fingerprint(7, 0), b));
        assert!(!differs(a, a) && !differs(a, fingerprint(7, 0)));
    }
}

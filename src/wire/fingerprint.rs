//! The 64 bits by which ranks notice that their calls differ: a digest of what all ranks must agree on, and the number of the
//! collective on its tag.

/// Of a call with this digest, and this number on its tag or 0 where that is not counted.
pub const fn fingerprint(digest: u32, number: u32) -> u64 {
    (number as u64) << 32 | digest as u64
}

/// The digest of a [`fingerprint`].
pub const fn digest(fingerprint: u64) -> u32 {
    fingerprint as u32
}

/// The number of a [`fingerprint`].
pub const fn number(fingerprint: u64) -> u32 {
    (fingerprint >> 32) as u32
}

/// Whether messages with these fingerprints belong to different calls.
pub const fn differs(a: u64, b: u64) -> bool {
    a != b && (digest(a) != digest(b) || (number(a) != 0 && number(b) != 0))
}

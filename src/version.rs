//! The version of this library, which ranks tell each other before they connect.

use std::fmt;

/// Length of an encoded version.
pub const VERSION_BYTES: usize = 8;

/// With what an encoded version begins.
const MAGIC: [u8; 2] = *b"gr";

/// A version of this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Changes when programs or ranks do not work together any more.
    pub major: u16,
    /// While `major` is 0, changes in its place.
    pub minor: u16,
    /// Changes with every other release.
    pub patch: u16,
}

impl Version {
    /// The version of this library.
    pub const OWN: Self = Self {
        major: number(env!("CARGO_PKG_VERSION_MAJOR")),
        minor: number(env!("CARGO_PKG_VERSION_MINOR")),
        patch: number(env!("CARGO_PKG_VERSION_PATCH")),
    };

    /// Encodes the version. Other versions decode it, too: this never changes.
    pub fn encode(self) -> [u8; VERSION_BYTES] {
        let [major, minor, patch] = [self.major, self.minor, self.patch].map(u16::to_le_bytes);
        [MAGIC[0], MAGIC[1], major[0], major[1], minor[0], minor[1], patch[0], patch[1]]
    }

    /// The version with which `bytes` begin, and the rest of them; `None` if they begin with none.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (version, rest) = bytes.split_first_chunk::<VERSION_BYTES>()?;
        if version[..2] != MAGIC {
            return None;
        }
        let [major, minor, patch] = [2, 4, 6].map(|at| u16::from_le_bytes([version[at], version[at + 1]]));
        Some((Self { major, minor, patch }, rest))
    }

    /// Whether ranks of these two versions work together.
    pub fn works_with(self, other: Self) -> bool {
        self.major == other.major && (self.major > 0 || self.minor == other.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

const fn number(text: &str) -> u16 {
    match u16::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is not a number of 16 bits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(major: u16, minor: u16, patch: u16) -> Version {
        Version { major, minor, patch }
    }

    #[test]
    fn the_minor_version_separates_ranks_while_the_major_one_is_0() {
        for (one, other, together) in [
            (version(0, 2, 0), version(0, 2, 7), true),
            (version(0, 2, 0), version(0, 3, 0), false),
            (version(0, 2, 0), version(1, 2, 0), false),
            (version(1, 2, 0), version(1, 3, 4), true),
            (version(1, 2, 0), version(2, 2, 0), false),
        ] {
            assert_eq!((one.works_with(other), other.works_with(one)), (together, together), "{one} and {other}");
        }
    }

    #[test]
    fn versions_survive_encoding_and_are_written_as_releases_are() {
        assert_eq!(Version::OWN.to_string(), env!("CARGO_PKG_VERSION"));
        let bytes = [&version(1, 0x203, 65535).encode()[..], b"rest"].concat();
        assert_eq!(bytes, *b"gr\x01\0\x03\x02\xff\xffrest");
        assert_eq!(Version::decode(&bytes), Some((version(1, 0x203, 65535), &b"rest"[..])));
        assert_eq!([&bytes[..7], &bytes[1..], &[0; 9]].map(Version::decode), [None; 3]);
    }
}

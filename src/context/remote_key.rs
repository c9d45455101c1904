//! The text form of keys to remote memory.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::types::Rank;

/// Identifies an unbound buffer of another rank, for [`UnboundBuffer::put`](super::UnboundBuffer::put) and
/// [`UnboundBuffer::get`](super::UnboundBuffer::get). As text it is `rkey2:RANK:BYTES:ID:CONTEXT`, in decimal digits;
/// `2` is the version of this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    /// The rank that owns the buffer.
    pub rank: Rank,
    /// Identifies the buffer on that rank.
    pub id: u32,
    /// Length of the buffer.
    pub bytes: usize,
    /// Identifies the context of that rank, and its membership.
    pub context: u32,
}

const VERSION: &str = "rkey2";
/// Longest part of an invalid text in an error.
const SHOWN: usize = 64;

impl fmt::Display for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, id, bytes, context } = self;
        write!(f, "{VERSION}:{rank}:{bytes}:{id}:{context}")
    }
}

impl FromStr for RemoteKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            let shown: String = text.chars().take(SHOWN).collect();
            let more = if shown.len() < text.len() { "…" } else { "" };
            Error::invalid(format!(
                "{shown:?}{more} is not a remote key, which is {VERSION}:RANK:BYTES:ID:CONTEXT in digits"
            ))
        })
    }
}

fn parse(text: &str) -> Option<RemoteKey> {
    let mut fields = text.split(':');
    if fields.next()? != VERSION {
        return None;
    }
    let rank: i32 = number(fields.next()?)?;
    let (bytes, id, context) = (number(fields.next()?)?, number(fields.next()?)?, number(fields.next()?)?);
    let rank = Rank::try_from(rank).ok()?;
    fields.next().is_none().then_some(RemoteKey { rank, id, bytes, context })
}

/// Parses decimal digits without sign or leading zero.
fn number<T: FromStr>(digits: &str) -> Option<T> {
    let canonical = digits == "0" || digits.starts_with(|first: char| matches!(first, '1'..='9'));
    canonical.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_survive_the_way(rank in 0..=i32::MAX as Rank, id: u32, bytes: usize, context: u32) {
            let key = RemoteKey { rank, id, bytes, context };
            let longest = RemoteKey { rank: i32::MAX as Rank, id: u32::MAX, bytes: usize::MAX, context: u32::MAX };
            let text = key.to_string();
            prop_assert!(text.len() <= longest.to_string().len() && longest.to_string().len() < 64);
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<RemoteKey>().unwrap(), key);
        }

        /// Each key has one text.
        #[test]
        fn any_text_is_a_key_or_an_error(text in "\\PC*|rkey2(:[0-9+-]{0,12}){3,5}|rkey[0-9]:[0-9]{1,10}:[0-9]{1,20}(:[0-9]{1,10}){2}") {
            match text.parse::<RemoteKey>() {
                Ok(key) => prop_assert_eq!(key.to_string(), text),
                Err(error) => prop_assert!(error.message().contains("is not a remote key"), "{}", error),
            }
        }
    }

    #[test]
    fn a_key_shows_whose_memory_it_is_and_how_much() {
        assert_eq!(RemoteKey { rank: 3, id: 0, bytes: 4096, context: 7 }.to_string(), "rkey2:3:4096:0:7");
    }

    #[test]
    fn what_is_no_key_is_shown() {
        for text in [
            "",
            "rkey2",
            "rkey2:1:2:3",
            "rkey2:1:2:3:4:5",
            "rkey2:1:2:3:4 ",
            " rkey2:1:2:3:4",
            "rkey1:1:2:3",
            "rkey1:1:2:3:4",
            "RKEY2:1:2:3:4",
            "rkey2:-1:2:3:4",
            "rkey2:+1:2:3:4",
            "rkey2:01:2:3:4",
            "rkey2:1:2:3:",
            "rkey2:2147483648:2:3:4",
            "rkey2:1:18446744073709551616:3:4",
            "rkey2:1:2:4294967296:4",
            "rkey2:1:2:3:4294967296",
            "gloorsK1\u{1}\u{7f}\u{10ffff}",
        ] {
            let error = text.parse::<RemoteKey>().unwrap_err();
            assert!(error.message().contains(&format!("{text:?} is not a remote key")), "{error}");
        }
        let error = "é".repeat(1000).parse::<RemoteKey>().unwrap_err();
        assert!(error.message().len() < 300 && error.message().contains("é\"… is not"), "{error}");
    }
}

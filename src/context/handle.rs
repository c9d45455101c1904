//! The handles of processes, which say who is to be a member of a group.

use crate::error::{Error, Result};
use crate::net::handshake::Identity;
use crate::types::Rank;

/// What a handle begins with; `1` is the version of this form.
const HANDLE: &str = "member1:";

/// The handle of the process with the context that has this identity, or stands for having none.
pub(super) fn text_of(identity: &Identity) -> String {
    let digits: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{HANDLE}{digits}")
}

fn is_handle(text: &str) -> bool {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix(HANDLE)
        .is_some_and(|digits| digits.len() == 2 * size_of::<Identity>() && digits.bytes().all(is_digit))
}

/// The members in the order of their ranks, and the rank of `own`.
pub(super) fn arrange<'a>(own: &str, handles: &[&'a str], ordered: bool) -> Result<(Vec<&'a str>, Rank)> {
    if let Some(at) = handles.iter().position(|handle| !is_handle(handle)) {
        return Err(Error::invalid(format!("handles[{at}] is not the handle of a context: {:?}", handles[at])));
    }
    let mut sorted = handles.to_vec();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("{} is twice among the handles", pair[0])));
    }
    let members = if ordered { handles.to_vec() } else { sorted };
    match members.iter().position(|handle| *handle == own) {
        Some(rank) => Ok((members, rank)),
        None => Err(Error::invalid(format!("the handle of this context, {own}, is not among the {}", members.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_order_is_that_of_the_list_or_of_the_handles() {
        let [a, b, c] = [1, 2, 3].map(|byte| text_of(&[byte; 16]));
        let (members, rank) = arrange(&c, &[&c, &a, &b], true).unwrap();
        assert_eq!((members, rank), (vec![&*c, &a, &b], 0));
        let (members, rank) = arrange(&c, &[&c, &a, &b], false).unwrap();
        assert_eq!((members, rank), (vec![&*a, &b, &c], 2));
        for (handles, text) in [
            (vec![&*a, &c, &a], "is twice among the handles"),
            (vec![&*a, &b], "is not among the 2"),
            (vec![], "is not among the 0"),
            (vec![&*c, "member1:"], "handles[1] is not the handle of a context"),
            (vec!["member1:0123456789abcdef0123456789abcdeF", &c], "handles[0] is not the handle of a context"),
        ] {
            let error = arrange(&c, &handles, true).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains(text), "{error}");
        }
    }
}

//! Errors of calls that several executors give.

use crate::engine::numbers::MAX_RANGES;
use crate::environment::SHARED_MEMORY;
use crate::error::{Error, ErrorKind};
use crate::wire::fingerprint::{COMPARISON, digest};

/// The error of a call whose deadline passes while it waits for nobody.
#[cold]
pub fn too_slow() -> Error {
    Error::new(ErrorKind::Timeout, "the timeout has passed while this rank was copying or combining in its own memory")
}

/// The error for a call without scratch memory.
#[cold]
pub fn no_room(elements: usize, element: usize) -> Error {
    let text = format!("no memory for {elements} elements of {element} bytes that the algorithm keeps aside");
    Error::new(ErrorKind::ResourceExhausted, text)
}

/// The error for a call on shared memory that has no number; see [`numbers`](super::numbers).
#[cold]
pub fn uncounted(tag: u64) -> Error {
    let text = format!(
        "more than {MAX_RANGES} ranges of tags were used on this context, so the calls on tag {tag} are not counted, and in \
         shared memory not told apart: use adjacent tags, a new context, or {SHARED_MEMORY}=0"
    );
    Error::new(ErrorKind::ResourceExhausted, text)
}

/// The error for a call of kind `own` on `tag` that cannot start while a call with the fingerprint `other` runs there.
#[cold]
pub fn already_running(other: u64, tag: u64, own: u8, explain: fn(u64) -> String) -> Error {
    let what = explain(digest(other));
    let why = if own == COMPARISON {
        ", and check_calls does not tell apart calls that run at the same time with one tag"
    } else {
        ""
    };
    Error::new(ErrorKind::InvalidOperation, format!("{what} with tag {tag} is running on this context already{why}"))
}

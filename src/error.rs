//! The one error type: what kind of failure, and a message that an operator can act on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::rank::Rank;
use crate::sys;

/// What kind of failure an [`Error`] is. The C ABI's status codes are these, in this order, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller passed something that no call could accept.
    InvalidArgument,
    /// The call makes no sense in the state that the object is in.
    InvalidOperation,
    /// The deadline passed first.
    Timeout,
    /// The operating system refused; a file, a socket, an interface. Or CUDA's driver did.
    Io,
    /// A peer is gone, or its connection broke.
    ConnectionLost,
    /// The context was aborted, by this rank or another, or the wait was ended by an abort function.
    Aborted,
    /// Ranks disagree: another collective, count, type, operation or root; or a peer spoke another protocol.
    Mismatch,
    /// A key is not in the store.
    NotFound,
    /// The feature is not built in, or not on this machine.
    Unsupported,
    /// Memory or descriptors ran out.
    ResourceExhausted,
    /// A callback of the caller's returned an error.
    Callback,
    /// A defect of this library.
    Internal,
    /// The process has closed the context or the pair, or destroyed the buffer.
    Closed,
}

impl ErrorKind {
    /// Whether a program has ended the context, or a wait, because it wanted to.
    pub fn is_intended(self) -> bool {
        matches!(self, Self::Closed | Self::Aborted)
    }

    /// All kinds, in the order of their numbers.
    const ALL: [Self; 13] = [
        Self::InvalidArgument,
        Self::InvalidOperation,
        Self::Timeout,
        Self::Io,
        Self::ConnectionLost,
        Self::Aborted,
        Self::Mismatch,
        Self::NotFound,
        Self::Unsupported,
        Self::ResourceExhausted,
        Self::Callback,
        Self::Internal,
        Self::Closed,
    ];

    /// The number of this kind: the C ABI's status.
    pub fn number(self) -> u32 {
        self as u32 + 1
    }

    /// The reverse; `None` for numbers of no kind.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.get((number as usize).checked_sub(1)?).copied()
    }
}

/// An error with its message. Cheap to clone, so that one broken connection can fail many operations.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    reason: Option<String>,
    details: Details,
}

/// What an error is about, for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The rank where the failure began, or for which this one waited in vain, if it is known.
    pub rank: Option<Rank>,
    /// The operating system's error number.
    pub errno: Option<i32>,
    /// Bytes done and wanted of what the operation waited for; both 0 where that says nothing.
    pub bytes: (usize, usize),
    /// What was called: a collective's name, `connect`, `split`, `send`, `recv`; or empty.
    pub operation: &'static str,
}

/// The operating system's error, and what to raise if a limit on descriptors is reached.
pub fn in_words(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            let (now, max) = sys::descriptor_limits();
            format!("{error}: this process may have {now} descriptors; raise that with ulimit -n (up to {max} here)")
        }
        Some(libc::ENFILE) => format!("{error}: raise the system's limit, fs.file-max"),
        _ => error.to_string(),
    }
}

/// The first `shown` of `items` with `separator` between them, and how many more there are: `1, 2, 5 and 3 more`.
pub fn first_few<T: fmt::Display>(items: impl ExactSizeIterator<Item = T>, shown: usize, separator: &str) -> String {
    let more = items.len().saturating_sub(shown);
    let first = items.take(shown).map(|item| item.to_string()).collect::<Vec<_>>().join(separator);
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// A timeout, where it was too short: `after 1.5s`.
pub fn after(timeout: Duration) -> String {
    if timeout.is_zero() { "without waiting (the timeout is 0)".to_owned() } else { format!("after {timeout:?}") }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that reads `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), reason: None, details: Details::default() }))
    }

    /// Shorthand for the most frequent kind.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// The operating system's error, after what was being done.
    pub fn io(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            _ if sys::socket::is_exhausted(error) => ErrorKind::ResourceExhausted,
            // An error without a number is not the system's.
            _ if error.raw_os_error().is_none() => ErrorKind::Io,
            Io::ConnectionReset | Io::ConnectionRefused | Io::BrokenPipe | Io::ConnectionAborted | Io::NotConnected => {
                ErrorKind::ConnectionLost
            }
            Io::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{doing}: {}", in_words(error))).with_errno(error.raw_os_error())
    }

    /// What a peer said when it gave up, after `who`: `reason` and `rank`, where the failure began, go on to other
    /// ranks as they are, so that all hear of the same beginning.
    pub fn reported_by_peer(kind: ErrorKind, who: impl fmt::Display, reason: String, rank: Rank) -> Self {
        let mut error = Self::new(kind, format!("{who} gave up: {reason}")).with_rank(rank);
        error.inner().reason = Some(reason);
        error
    }

    /// Returns contents of this error alone, to be changed.
    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// Returns the error as one that began with `rank`, unless it is known to have begun with another.
    pub fn with_rank(mut self, rank: Rank) -> Self {
        self.inner().details.rank.get_or_insert(rank);
        self
    }

    /// Returns the error with the operating system's number.
    pub fn with_errno(mut self, errno: Option<i32>) -> Self {
        self.inner().details.errno = errno;
        self
    }

    /// Returns the error with these details.
    pub fn about(mut self, details: Details) -> Self {
        self.inner().details = details;
        self
    }

    /// Returns the error as one of this operation.
    pub fn during(mut self, operation: &'static str) -> Self {
        self.inner().details.operation = operation;
        self
    }

    /// Returns a copy of the error with `what` and a colon in front of its message.
    pub fn context(&self, what: impl fmt::Display) -> Self {
        self.with_message(format!("{what}: {}", self.0.message))
    }

    /// Returns a copy of the error with `what` behind its message.
    pub fn and(&self, what: impl fmt::Display) -> Self {
        self.with_message(format!("{}{what}", self.0.message))
    }

    fn with_message(&self, message: String) -> Self {
        let Inner { kind, details, .. } = *self.0;
        Self(Arc::new(Inner { kind, message, reason: self.0.reason.clone(), details }))
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What failed, with whom, and how far it came.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What it is about.
    pub fn details(&self) -> &Details {
        &self.0.details
    }

    /// What other ranks are to hear: the message, or what a peer that gave up before had said.
    pub fn reason(&self) -> &str {
        self.0.reason.as_deref().unwrap_or(&self.0.message)
    }

    /// Whether a peer's giving up is the cause.
    pub fn is_reported_by_peer(&self) -> bool {
        self.0.reason.is_some()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_from_1_in_their_order() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.number(), index as u32 + 1);
            assert_eq!(ErrorKind::of_number(kind.number()), Some(kind));
        }
        assert_eq!((ErrorKind::of_number(0), ErrorKind::of_number(14)), (None, None));
    }
}

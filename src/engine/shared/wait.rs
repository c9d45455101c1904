//! What a call waits for.

/// What a call waits for.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A publication of a member.
    Publication { member: usize, number: u32 },
    /// The first `bytes` bytes of a publication of a member.
    Piece { member: usize, number: u32, bytes: usize },
    /// A piece of the publication of member `from`, see [`Wait::Piece`], or that `member`, which delays a stream of
    /// this rank, reads on.
    SlowReader { member: usize, from: usize, number: u32, bytes: usize },
    /// The end of a member's reads of this call's publications.
    Reader { member: usize },
    /// The end of a member's reads of an earlier call's publications.
    Earlier { member: usize },
    /// Why a member has ended this call while its memory was read, or that its process has ended: its link says so.
    Reason { member: usize },
    /// Nothing: much was done since the caller has looked at the clock.
    Clock,
}

impl Wait {
    /// The member for which the call waits, if there is one.
    pub fn member(self) -> Option<usize> {
        match self {
            Self::Clock => None,
            Self::Publication { member, .. }
            | Self::Piece { member, .. }
            | Self::SlowReader { member, .. }
            | Self::Reader { member }
            | Self::Earlier { member }
            | Self::Reason { member } => Some(member),
        }
    }
}

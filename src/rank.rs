//! What names a process among those that communicate.

/// Index of a process in a context: `0..size`.
pub type Rank = usize;

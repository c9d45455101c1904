//! Ranks of one host that share memory.
//!
//! Each rank of a context has a [`segment`], memory that it alone writes and that the other ranks of its host map for reading.
//! A [`group`] is what these ranks have of each other.

pub mod group;
pub mod segment;

pub use group::HostGroup;

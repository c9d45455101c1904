//! The messages that ranks exchange over an authenticated connection, with one type for each kind.

pub mod fingerprint;
pub mod header;
pub mod message;

pub use message::{Envelope, Message};

/// Version of the handshake, the addresses and the messages; a peer with another version is refused.
pub const VERSION: u8 = 1;

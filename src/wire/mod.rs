//! What crosses a connection once both sides have proven that they belong to the job: one type for each kind of message.

pub mod fingerprint;
pub mod message;

pub use message::{Envelope, Message};

/// Version of everything that ranks tell each other; a peer with another one is refused.
pub const VERSION: u8 = 1;

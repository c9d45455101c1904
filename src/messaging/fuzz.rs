//! Fuzz bodies: a messenger whose peer says anything, and two messengers that talk to each other.

mod exchange;
mod frames;

pub use exchange::exchange;
pub use frames::frames;

use super::matching::EAGER_BYTES;

/// What a handshake would have agreed on: the number in the headers.
const CONNECTION: u32 = 0x0102_0304;

/// Around the lengths at which messages are treated differently.
const SIZES: [usize; 11] = [0, 1, 3, 8, 40, 64, 4095, 5000, EAGER_BYTES, EAGER_BYTES + 1, 70_001];

/// More would only be slow.
const MAX_STEPS: usize = 100;

//! Fuzz targets: a messenger whose peer sends arbitrary bytes, and two messengers connected to each other.

mod exchange;
mod frames;

pub use exchange::exchange;
pub use frames::frames;

use crate::messaging::matching::EAGER_BYTES;

/// Connection number in the headers, as agreed in a handshake.
const CONNECTION: u32 = 0x0102_0304;

/// Message lengths around those at which the protocol changes.
const SIZES: [usize; 11] = [0, 1, 3, 8, 40, 64, 4095, 5000, EAGER_BYTES, EAGER_BYTES + 1, 70_001];

/// Limits the time of one run.
const MAX_STEPS: usize = 100;

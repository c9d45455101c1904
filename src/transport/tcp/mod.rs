//! TCP over non-blocking sockets.

pub mod device;
pub use device::{Device, DeviceOptions};

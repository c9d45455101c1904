//! TCP over non-blocking sockets.

pub mod device;
pub mod interface;
pub use device::{Device, DeviceOptions};

//! Transports: how bytes reach another rank.

use std::sync::Arc;

pub mod tcp;

/// Told what happens on the side: level (1 warning, 2 notice, 3 detail) and text. May be called from the device's own
/// thread, while locks of the library are held: it must not call the library.
pub type LogCallback = Arc<dyn Fn(u32, &str) + Send + Sync>;

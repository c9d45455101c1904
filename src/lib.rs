//! Collective communications for training jobs. The C ABI is in `ffi`; this crate's Rust interface serves it and the
//! command-line tool.

#[deny(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod agreement;
pub mod collective;
pub mod context;
pub mod cuda;
pub mod engine;
pub mod environment;
pub mod error;
pub mod ffi;
pub mod hash;
pub mod log;
pub mod memory;
#[deny(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod messaging;
pub mod nearest;
pub mod net;
pub mod publications;
pub mod rank;
pub mod reduce;
pub mod rendezvous;
pub mod reserve;
#[deny(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod schedule;
pub mod secret;
pub mod size;
pub mod slab;
mod sync;
pub mod sys;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod testing;
pub mod transport;
pub mod tuner;
pub mod types;
pub mod utc;
pub mod version;
pub mod wait_mode;
pub mod wire;

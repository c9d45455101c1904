//! The C ABI: one file per handle. Here are pointer checks, the panic guard and the mapping of errors, and nothing else.
//!
//! Exports are written by hand because cbindgen does not see what macros generate. Doc comments of public items become
//! the header's, so they are written for readers of C. Enumerations that C passes are `MaybeUninit`, since C can pass any
//! number; cbindgen prints the enumeration itself.
//!
//! # Safety
//! Every `unsafe` export has the same contract, which the header states at its beginning (`cbindgen.toml`): a pointer is
//! NULL, or valid for what the comment says for as long as it says; handles are live ones of this library, and no call on a
//! handle begins once its destruction has.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)]

// The header has this order.
mod status;
mod types;

mod last_error;

mod device;

mod store;

mod store_callbacks;

mod statistics;

mod store_redis;

mod launch;

mod context;

mod pair;

mod buffer;

mod unbound_buffer;

mod collective;
#[cfg(any(test, fuzzing))]
pub(crate) use collective::fuzz;

mod enumeration;
mod guard;
mod handle;
mod options;
mod pointer;

#[cfg(test)]
mod tests;

pub use buffer::*;
pub use collective::*;
pub use context::*;
pub use device::*;
pub use last_error::*;
pub use launch::*;
pub use pair::*;
pub use statistics::*;
pub use status::*;
pub use store::*;
pub use store_callbacks::*;
pub use store_redis::*;
pub use types::*;
pub use unbound_buffer::*;

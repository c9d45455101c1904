//! The C ABI: one file per handle. This module only checks pointers, catches panics and maps errors.
//!
//! Exports are written by hand because cbindgen does not see items that macros generate. Doc comments of public items
//! become comments of the header, so they are written for readers of C. Enumerations that C passes are `MaybeUninit`,
//! since C can pass any number; cbindgen prints the enumeration itself.
//!
//! # Safety
//! The header states the contract of every `unsafe` export, in its rules (`cbindgen.toml`) and in the comment of the
//! function. `SAFETY` comments use these terms for it:
//! - A handle is live from the return of its create function until its destroy function is called.
//! - A string ends with a NUL byte, and nobody changes it during the call.
//! - Memory is valid for reads if it is initialised and nobody writes to it, and valid for writes if nobody else
//!   accesses it: during the call, or longer where the comment says so.
//!
//! An export may receive NULL and misaligned pointers, which the functions of `pointer`, `handle` and `options`
//! refuse.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)]

// The header has this order.
mod status;

mod library;

mod types;

mod error;

mod last_error;

mod tls;

mod ibverbs;

mod device;

mod store;

mod store_callbacks;

mod statistics;

mod store_redis;

mod launch;

mod context;
mod counters;

mod membership;

mod recorder;

mod alloc;

mod pair;

mod buffer;

mod unbound_buffer;

mod collective;
#[cfg(any(test, fuzzing))]
pub(crate) use collective::fuzz;

mod request;
mod requests;

mod queue;

mod callback;

mod group;

mod progress;

mod context_handle;
mod enumeration;
mod guard;
mod handle;
mod options;
mod pointer;

#[cfg(test)]
mod tests;

pub use alloc::*;
pub use buffer::*;
pub use callback::*;
pub use collective::*;
pub use context::*;
pub use counters::*;
pub use device::*;
pub use error::*;
pub use group::*;
pub use ibverbs::{
    GLOO_RS_IBVERBS_DEFAULT, gloo_rs_ibverbs_devices, gloo_rs_ibverbs_gid_init, gloo_rs_ibverbs_gid_t,
    gloo_rs_ibverbs_gid_type_t, gloo_rs_ibverbs_gids, gloo_rs_ibverbs_gpu_t, gloo_rs_ibverbs_link_layer_t,
    gloo_rs_ibverbs_options_init, gloo_rs_ibverbs_options_t, gloo_rs_ibverbs_port_init, gloo_rs_ibverbs_port_t,
    gloo_rs_ibverbs_state_t,
};
pub use last_error::*;
pub use launch::*;
pub use library::*;
pub use membership::*;
pub use pair::*;
pub use progress::*;
pub use queue::*;
pub use recorder::*;
pub use request::*;
pub use requests::*;
pub use statistics::*;
pub use status::*;
pub use store::*;
pub use store_callbacks::*;
pub use store_redis::*;
pub use tls::{gloo_rs_tls_options_init, gloo_rs_tls_options_t};
pub use types::*;
pub use unbound_buffer::*;

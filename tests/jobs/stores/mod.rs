//! Errors of a job when its store fails: ended, full, without descriptors, or with foreign files. Also how much load a
//! job puts on a store.

mod claims;
mod file;
mod gone;
mod job;
#[cfg(feature = "redis")]
#[path = "../../support/redis_server.rs"]
mod redis_server;
mod spy;
mod traffic;

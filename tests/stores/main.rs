//! What a job sees when its store fails: gone, full, without descriptors, or with strangers' files in it. And how much of it a
//! job uses.

mod claims;
mod file;
mod gone;
mod job;
#[cfg(feature = "redis")]
#[path = "../support/redis_server.rs"]
mod redis_server;
mod spy;
mod traffic;

//! What a GPU and its driver would do, without them.

#[cfg(all(target_os = "linux", not(any(miri, loom))))]
pub(crate) mod driver;
pub(crate) mod ptx;

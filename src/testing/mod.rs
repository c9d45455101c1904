//! What only this crate's own tests and its fuzz targets link: simulation of whole jobs, links in memory, a provider of
//! verbs in memory, an interpreter of kernels for GPUs, the suite that every transport must pass, bodies of fuzz
//! targets, and what several modules' tests share. The tests of a module that look inside it stand beside it.

#[cfg(test)]
mod conformance;
// Shared memory, of which Miri and loom know nothing, is one of their abilities.
#[cfg(all(test, not(any(miri, loom))))]
pub(crate) mod connectors;
#[cfg(test)]
pub(crate) mod cuda;
#[cfg(all(test, feature = "ibverbs", target_os = "linux"))]
pub(crate) mod fake_ibverbs;
pub mod fuzz;
pub(crate) mod links;
pub mod loopback;
#[cfg(test)]
pub(crate) mod reductions;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod seccomp;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tier;
pub(crate) mod user_function;

//! Jobs of several ranks, as threads, as processes, and on several hosts (network namespaces).

mod averages;
mod collectives;
mod failures;
mod hosts;
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
mod ibverbs;
mod links;
#[path = "../support/netns.rs"]
mod netns;
mod scale;
mod starts;
mod stores;
mod stress;
#[path = "../support/mod.rs"]
mod support;

//! The tool as a process, on one host and on several (network namespaces).

mod bench;
mod diagnose;
mod hosts;
mod info;
mod launcher;
mod links;
mod names;
#[path = "../../../tests/support/netns.rs"]
mod netns;
mod plot;
mod readers;
mod run;
mod simulate;
mod status;
#[path = "../../../src/testing/tier.rs"]
mod tier;
mod top;
mod tune;

//! How processes find each other on a network and prove that they belong to one job: addresses and their choice, admission of
//! connections, handshakes. Shared by contexts and the TCP store.

pub mod address;
pub mod admission;
pub mod choice;
pub mod greeting;
pub mod handshake;
pub mod interface;
pub mod pattern;

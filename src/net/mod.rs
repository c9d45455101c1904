//! How processes connect on a network and prove that they belong to one job: addresses and their selection, the gate for
//! incoming connections, admission, handshakes. Shared by contexts and the TCP store.

pub mod address;
pub mod admission;
pub mod choice;
pub mod gate;
pub mod handshake;
pub mod interface;
pub mod pattern;
pub mod stream;
#[cfg(feature = "tls")]
pub mod tls;

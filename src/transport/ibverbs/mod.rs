//! InfiniBand and RoCE, by verbs.
//!
//! A [`connector`] makes links to the peers out of the connections of another connector, TCP's: over such a connection two ranks exchange
//! what their queue pairs need ([`endpoint`]), and it stays as the sign of life and for the last words. The bytes of a [`link`] travel by
//! reliable-connected queue pairs, one for each pair of [`rail`]s: small ones by sends into receive buffers that the peer has posted, large ones
//! by RDMA writes.

#[cfg(test)]
mod fake;
pub mod handles;
pub mod library;
pub mod rail;

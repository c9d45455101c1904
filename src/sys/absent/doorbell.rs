//! Waking other processes of this host, on a system where ranks share no memory: there is no doorbell.

use std::io;

use super::RawSocket;

/// The name of a doorbell, and its key.
pub type Bell = [u8; 32];

/// A doorbell. There is none.
#[derive(Debug)]
pub enum Doorbell {}

/// Another process's doorbell. There is none.
#[derive(Debug)]
pub enum Remote {}

impl Doorbell {
    /// Fails.
    pub fn new() -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "ranks share memory on Linux only"))
    }

    /// By which others find it.
    pub fn bell(&self) -> &Bell {
        match *self {}
    }

    /// The doorbell's descriptor.
    pub fn raw(&self) -> RawSocket {
        match *self {}
    }

    /// Rings another one.
    pub fn ring(&self, _other: &Remote) {
        match *self {}
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        match *self {}
    }
}

impl Remote {
    /// Fails.
    pub fn find(_bell: Bell) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "ranks share memory on Linux only"))
    }
}

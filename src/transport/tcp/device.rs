//! The place where connections arrive: an address of this host, and the thread that serves what nobody waits on.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::Result;
use crate::transport::LogCallback;

/// Which address of this host to use. With nothing set, the address that the host's name resolves to, else loopback.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// Name of a network interface: `eth0`.
    pub interface: Option<String>,
    /// A host name of this host, or an IPv4 or IPv6 address of it.
    pub hostname: Option<String>,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Told what happens on the side; `None` for nobody.
    pub log: Option<LogCallback>,
}

/// A listening socket and its thread. Contexts keep their device alive.
pub struct Device {
    address: SocketAddr,
    interface: Option<String>,
}

impl Device {
    /// Binds, listens, and starts the thread.
    pub fn create(options: &DeviceOptions) -> Result<Arc<Device>> {
        let _ = options;
        todo!()
    }

    /// Where peers connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The interface that has the address, if one does.
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }
}

//! What a program may choose of its device.

#[cfg(all(feature = "ibverbs", target_os = "linux"))]
use super::ibverbs;
use crate::log::LogCallback;
use crate::net::stream::Transport;
use crate::wait_mode::WaitMode;

/// Selects the addresses of this host. If neither an option nor the variable [`crate::net::choice::INTERFACES`] is set,
/// the selection is made when a context connects: loopback if all ranks are on this host, else addresses from which the
/// store or the other ranks are reachable.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// A list of network interfaces in the syntax of [`crate::net::pattern::Patterns`]: `eth0`, `ib*,10.0.0.0/8`, or
    /// `^docker*`.
    pub interface: Option<String>,
    /// A host name or an IPv4 or IPv6 address of this host.
    pub hostname: Option<String>,
    /// The port to listen on; 0: the kernel chooses one.
    pub port: u16,
    /// The ports of which the device takes a free one if `port` is 0, as `20000-20100`. `None`: as
    /// [`PORT_RANGE`](crate::net::ports::PORT_RANGE) says.
    pub port_range: Option<String>,
    /// Callback for log messages that no call returns.
    pub log: Option<LogCallback>,
    /// Whether contexts share memory with ranks of this host. `None`: as
    /// [`SHARED_MEMORY`](crate::environment::SHARED_MEMORY) says, else yes. If a rank does not, no rank of its host
    /// does.
    pub shared_memory: Option<bool>,
    /// Whom this process lets trace it, and so read its memory, where Yama forbids that: the number of a process from
    /// which it descends, with all that descend from that one; `any`, all of the user's; or `0`. `None`: as
    /// [`VARIABLE`](super::shm::ptracer::VARIABLE) says, else nobody.
    pub ptracer: Option<String>,
    /// What carries the bytes of connections. `None`: as [`crate::net::stream::TRANSPORT`] says, else TCP.
    pub transport: Option<Transport>,
    /// Connections of each link, 1 to [`MAX_STREAMS`](crate::net::handshake::MAX_STREAMS), if the peer wants as many;
    /// one with the transport `ibverbs`. `None`: as [`STREAMS`](super::tcp::device::STREAMS) says, else as the tuner
    /// says.
    pub streams: Option<u32>,
    /// How threads wait on contexts whose options do not say. `None`: as the environment says when a context is
    /// created.
    pub wait: Option<WaitMode>,
    /// Whether processes of the same user may ask what contexts are doing; see [`crate::net::monitor`]. `None`: as
    /// [`TOP`](crate::environment::TOP) says, else they may not.
    pub monitor: Option<bool>,
    /// The ports that are used with the transport `ibverbs`. If it is `None`, the environment says which.
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    pub ibverbs: Option<ibverbs::Options>,
}

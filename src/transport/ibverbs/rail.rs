//! A port of a device by which a process reaches its peers.

use std::sync::Arc;

use ibverbs_sys as ffi;

use super::handles::ProtectionDomain;
use super::port::{GidType, LinkLayer};

/// A port that is used, of an open device. All contexts of a process share it.
pub struct Rail {
    /// Device and port, as `mlx5_0:1`.
    pub name: String,
    /// To which all that uses the port belongs.
    pub domain: Arc<ProtectionDomain>,
    /// The port's number, from 1 on.
    pub port: u8,
    /// InfiniBand or RoCE.
    pub link_layer: LinkLayer,
    /// The port's local identifier; 0 with RoCE.
    pub lid: u16,
    /// The GID by which peers reach the port.
    pub gid: [u8; 16],
    /// What it is: both ends must have the same.
    pub gid_type: GidType,
    /// The GID's index in the port's table.
    pub gid_index: u8,
    /// The longest packet, as verbs number it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// Bytes of the longest message.
    pub max_message: usize,
    /// Mbit/s.
    pub speed: u32,
    /// The maximum number of work requests in a queue.
    pub max_requests: usize,
    /// The maximum number of completions in a completion queue.
    pub max_completions: usize,
    /// Most RDMA reads of a queue pair at one time, as target and as initiator.
    pub max_reads: [u8; 2],
}

/// Attributes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// The traffic class of packets (for RoCE, the DSCP in its upper six bits).
    pub traffic_class: u8,
    /// How long a packet waits for its acknowledgement: 4.096 µs × 2^timeout; 0 is for ever.
    pub timeout: u8,
    /// How often a packet is sent again before the connection breaks, 0 to 7.
    pub retry_count: u8,
}

impl Rail {
    /// The rail's name, and its port's state unless the port is active.
    pub fn describe(&self) -> String {
        let state = match self.domain.context().query_port(self.port) {
            Ok(port) => match port.state {
                ffi::ibv_port_state::IBV_PORT_ACTIVE | ffi::ibv_port_state::IBV_PORT_ACTIVE_DEFER => {
                    return self.name.clone();
                }
                ffi::ibv_port_state::IBV_PORT_DOWN => "its port is down".to_owned(),
                state => format!("its port is in state {state}"),
            },
            Err(error) => format!("its port cannot be queried: {error}"),
        };
        format!("{}, {state}", self.name)
    }
}

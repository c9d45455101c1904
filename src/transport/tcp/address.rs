//! What a rank tells the others, so that they can connect to it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::error::{Error, Result};
use crate::transport::frame::VERSION;
use crate::transport::tcp::handshake::Identity;
use crate::types::Rank;

/// Where a rank's context listens, who it is, and on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which context of that process. Who knows it, and the job's token, may connect.
    pub identity: Identity,
    /// Where it listens.
    pub socket: SocketAddr,
    /// Digest of the host's boot and network namespace.
    pub host: u64,
}

const ADDRESS_BYTES: usize = 1 + 16 + 8 + 16 + 4 + 2;

impl Address {
    /// For the way to another rank.
    pub fn serialize(&self) -> Vec<u8> {
        let (ip, scope) = match self.socket {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let mut out = Vec::with_capacity(ADDRESS_BYTES);
        out.push(VERSION);
        out.extend_from_slice(&self.identity);
        out.extend_from_slice(&self.host.to_le_bytes());
        out.extend_from_slice(&ip.octets());
        out.extend_from_slice(&scope.to_le_bytes());
        out.extend_from_slice(&self.socket.port().to_le_bytes());
        out
    }

    /// What `serialize` wrote.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != ADDRESS_BYTES || bytes[0] != VERSION {
            return Err(Error::invalid(format!(
                "not an address of a TCP context of version {VERSION}: {} bytes that begin with {:?}",
                bytes.len(),
                bytes.first()
            )));
        }
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[25..41]).expect("16 bytes"));
        let scope = u32::from_le_bytes(bytes[41..45].try_into().expect("4 bytes"));
        let port = u16::from_le_bytes(bytes[45..47].try_into().expect("2 bytes"));
        let socket = match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
        };
        Ok(Self {
            identity: bytes[1..17].try_into().expect("16 bytes"),
            socket,
            host: u64::from_le_bytes(bytes[17..25].try_into().expect("8 bytes")),
        })
    }
}

/// Tells apart hosts: processes that booted together and share a network namespace give the same number.
pub fn host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    // FNV-1a: only equality matters.
    let bytes = boot.iter().chain(namespace.as_os_str().as_encoded_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// `rank 3 at 10.0.0.1:4455`, as all messages name a peer.
pub fn peer_name(rank: Rank, address: Option<&Address>) -> String {
    match address {
        Some(address) => format!("rank {rank} at {}", address.socket),
        None => format!("rank {rank}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_survive_the_way(identity: [u8; 16], v4: bool, ip: u128, port: u16, host: u64) {
            let ip = if v4 { IpAddr::V4((ip as u32).into()) } else { IpAddr::V6((ip | 1 << 127).into()) };
            let address = Address { identity, socket: SocketAddr::new(ip, port), host };
            prop_assert_eq!(Address::deserialize(&address.serialize()).unwrap(), address);
        }

        #[test]
        fn any_bytes_are_an_address_or_an_error(bytes: Vec<u8>) {
            let _ = Address::deserialize(&bytes);
        }
    }
}

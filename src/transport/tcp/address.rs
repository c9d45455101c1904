//! What a rank tells the others, so that they can connect to it; and the first bytes on a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::error::{Error, ErrorKind, Result};
use crate::transport::frame::VERSION;
use crate::types::Rank;

/// A secret number that a context draws. Who knows it may connect.
pub type Identity = [u8; 16];

/// Where a rank's context listens, who it is, and on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which context of that process.
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

/// The first bytes from the side that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The context that is sought.
    pub to: Identity,
    /// The context that seeks.
    pub from: Identity,
    /// Its rank.
    pub rank: u32,
}

/// The answer to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The connection stands.
    Accepted = 1,
    /// The answering side is connecting itself, and its connection is the one to keep.
    Yield = 2,
    /// Not wanted.
    Refused = 3,
}

const MAGIC: [u8; 7] = *b"gloo_rs";

impl Hello {
    /// Length on the wire.
    pub const BYTES: usize = 8 + 16 + 16 + 4;

    /// For the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..7].copy_from_slice(&MAGIC);
        out[7] = VERSION;
        out[8..24].copy_from_slice(&self.to);
        out[24..40].copy_from_slice(&self.from);
        out[40..44].copy_from_slice(&self.rank.to_le_bytes());
        out
    }

    /// From the wire.
    pub fn decode(wire: &[u8; Self::BYTES]) -> Result<Self> {
        Self::check_prefix(wire)?;
        Ok(Self {
            to: wire[8..24].try_into().expect("16 bytes"),
            from: wire[24..40].try_into().expect("16 bytes"),
            rank: u32::from_le_bytes(wire[40..44].try_into().expect("4 bytes")),
        })
    }

    /// Refuses a beginning that no hello has, as soon as it shows.
    pub fn check_prefix(wire: &[u8]) -> Result<()> {
        let n = wire.len().min(MAGIC.len());
        if wire[..n] != MAGIC[..n] {
            return Err(Error::new(ErrorKind::Mismatch, "it does not speak this protocol"));
        }
        match wire.get(7) {
            Some(version) if *version != VERSION => Err(Error::new(
                ErrorKind::Mismatch,
                format!("it speaks version {version} of the protocol, this library version {VERSION}"),
            )),
            _ => Ok(()),
        }
    }
}

impl Reply {
    /// Length on the wire.
    pub const BYTES: usize = 8 + 1;

    /// For the wire.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..7].copy_from_slice(&MAGIC);
        out[7] = VERSION;
        out[8] = self as u8;
        out
    }

    /// From the wire.
    pub fn decode(wire: &[u8; Self::BYTES]) -> Result<Self> {
        Hello::check_prefix(wire)?;
        match wire[8] {
            1 => Ok(Self::Accepted),
            2 => Ok(Self::Yield),
            3 => Ok(Self::Refused),
            other => Err(Error::new(ErrorKind::Mismatch, format!("it answered a hello with {other}"))),
        }
    }
}

/// The number that frames of a connection between two contexts carry: the same on both sides.
pub fn frame_identity(a: &Identity, b: &Identity) -> u32 {
    a.chunks_exact(4)
        .zip(b.chunks_exact(4))
        .map(|(a, b)| u32::from_le_bytes(a.try_into().expect("4")) ^ u32::from_le_bytes(b.try_into().expect("4")))
        .fold(0, |h, word| h.rotate_left(7) ^ word)
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

        #[test]
        fn hellos_survive_the_wire(to: [u8; 16], from: [u8; 16], rank: u32) {
            let hello = Hello { to, from, rank };
            prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
            prop_assert_eq!(frame_identity(&to, &from), frame_identity(&from, &to));
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let mut wire = Hello { to: [1; 16], from: [2; 16], rank: 3 }.encode();
        wire[7] = VERSION + 1;
        assert!(Hello::decode(&wire).unwrap_err().message().contains("version 2"));
        assert!(Hello::check_prefix(b"GET / HT").is_err());
        assert!(Hello::check_prefix(b"gloo").is_ok());
        let reply = Reply::Yield.encode();
        assert_eq!(Reply::decode(&reply).unwrap(), Reply::Yield);
    }
}

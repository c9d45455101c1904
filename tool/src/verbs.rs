//! The InfiniBand and RoCE devices of this host, for `gloo-rs info`.

use serde::Serialize;

/// What the transport `ibverbs` finds on this host.
pub struct Verbs {
    /// Why it cannot be used; `None` if it can.
    pub absent: Option<String>,
    /// All ports, whether they can be used or not.
    pub ports: Vec<Port>,
    /// The ports that a rank would take which is started as this process is, or why it would take none; `None` without
    /// devices.
    pub choice: Option<String>,
}

/// A port of a device.
#[derive(Serialize)]
pub struct Port {
    device: String,
    port: u8,
    state: &'static str,
    link_layer: &'static str,
    /// Why it cannot be used.
    fault: Option<String>,
    speed_mbps: u32,
    lid: u16,
    mtu: u32,
    max_message_bytes: usize,
    max_requests: usize,
    max_completions: usize,
    max_reads_as_target: u8,
    max_reads_as_initiator: u8,
    pci: Option<String>,
    numa_node: Option<u32>,
    gpu_memory: &'static str,
    gpu_memory_why: String,
    /// The index of the GID that is used unless another is asked for.
    gid_index: Option<u8>,
    gids: Vec<Gid>,
}

#[derive(Serialize)]
struct Gid {
    index: u8,
    address: String,
    kind: &'static str,
    interface: Option<String>,
}

#[cfg(not(all(feature = "ibverbs", target_os = "linux")))]
impl Verbs {
    /// A build without the transport has no ports.
    pub fn here() -> Self {
        Self { absent: Some(gloo_rs::net::stream::WITHOUT_IBVERBS.to_owned()), ports: Vec::new(), choice: None }
    }
}

#[cfg(all(feature = "ibverbs", target_os = "linux"))]
mod linux {
    use gloo_rs::error::Error;
    use gloo_rs::sys::numa::Nearness;
    use gloo_rs::transport::ibverbs::choice::select;
    use gloo_rs::transport::ibverbs::library::Library;
    use gloo_rs::transport::ibverbs::options::Options;
    use gloo_rs::transport::ibverbs::port::{self, Listing};
    use gloo_rs::transport::ibverbs::sysfs::GpuAccess;

    use super::{Gid, Port, Verbs};

    impl Verbs {
        /// Asks libibverbs and the system.
        pub fn here() -> Self {
            match Library::load().and_then(|library| port::list(&library)) {
                Ok(listing) => Self::of(&listing),
                Err(error) => Self { absent: Some(error.message().to_owned()), ports: Vec::new(), choice: None },
            }
        }

        fn of(listing: &Listing) -> Self {
            // A process that cannot ask lacks descriptors for a device as well, which says so.
            let near = Nearness::here().unwrap_or_default();
            let without_names = select(listing, &Options::default(), &near);
            let chosen = Options::default().or_environment();
            let chosen = chosen.and_then(|options| select(listing, &options, &near));
            let names = |chosen: Vec<usize>| chosen.into_iter().map(|at| listing.ports[at].name()).collect::<Vec<_>>();
            let says = |error: Error| error.message().to_owned();
            Self {
                absent: without_names.err().map(says),
                ports: listing.ports.iter().map(Port::from).collect(),
                choice: Some(chosen.map_or_else(says, |chosen| names(chosen).join(", "))),
            }
        }
    }

    impl From<&port::Port> for Port {
        fn from(port: &port::Port) -> Self {
            Self {
                device: port.device.clone(),
                port: port.number,
                state: port.state.name(),
                link_layer: port.link_layer.name(),
                fault: port.fault(),
                speed_mbps: port.speed,
                lid: port.lid,
                mtu: port.mtu_bytes(),
                max_message_bytes: port.max_message,
                max_requests: port.limits.requests,
                max_completions: port.limits.completions,
                max_reads_as_target: port.limits.reads[0],
                max_reads_as_initiator: port.limits.reads[1],
                pci: port.pci.clone(),
                numa_node: port.numa_node,
                gpu_memory: match port.gpu_direct.by {
                    GpuAccess::Nothing => "no",
                    GpuAccess::PeerMemory => "peer memory",
                    GpuAccess::DmaBuf => "dma-buf",
                },
                gpu_memory_why: port.gpu_direct.why.clone(),
                gid_index: port.gid(None).ok().map(|gid| gid.index),
                gids: port.gids.iter().map(Gid::from).collect(),
            }
        }
    }

    impl From<&port::Gid> for Gid {
        fn from(gid: &port::Gid) -> Self {
            let port::Gid { index, address, kind, interface } = gid;
            Self { index: *index, address: address.to_string(), kind: kind.name(), interface: interface.clone() }
        }
    }
}

/// The lines of a table.
pub fn lines(ports: &[Port], choice: Option<&str>) -> Vec<String> {
    let names: Vec<_> = ports.iter().map(|port| format!("{}:{}", port.device, port.port)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (index, (name, port)) in names.iter().zip(ports).enumerate() {
        let label = if index == 0 { "ibverbs" } else { "" };
        lines.push(format!("{label:10}  {name:width$}  {}", port.facts()));
        lines.extend(port.details().into_iter().map(|line| format!("{:12}{:width$}  {line}", "", "")));
    }
    lines.extend(choice.map(|choice| format!("rails       {choice}")));
    lines
}

impl Port {
    fn facts(&self) -> String {
        let fault = self.fault.as_ref().map(|why| format!(" (not usable: {why})")).unwrap_or_default();
        let lid = if self.lid > 0 { format!(", LID {}", self.lid) } else { String::new() };
        let message = gloo_rs::size::text(self.max_message_bytes);
        format!(
            "{}, {}{fault}, {} Mbit/s{lid}, MTU {}, messages up to {message}",
            self.link_layer, self.state, self.speed_mbps, self.mtu
        )
    }

    fn details(&self) -> Vec<String> {
        let pci = self.pci.as_ref().map_or_else(|| "no PCI device".to_owned(), |pci| format!("PCI {pci}"));
        let node = self.numa_node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
        let mut lines = vec![
            format!(
                "{pci}, NUMA node {node}; up to {} requests, {} completions, {} and {} reads",
                self.max_requests, self.max_completions, self.max_reads_as_target, self.max_reads_as_initiator
            ),
            format!("memory of GPUs: {} ({})", self.gpu_memory, self.gpu_memory_why),
        ];
        lines.extend(self.gids.iter().map(|gid| {
            let Gid { index, address, kind, interface } = gid;
            let on = interface.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
            let taken = if self.gid_index == Some(*index) { ", taken" } else { "" };
            format!("GID {index}: {address}{on}, {kind}{taken}")
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, kind: &'static str) -> Gid {
        Gid { index, address: "::ffff:10.0.0.1".into(), kind, interface: Some("eth2".into()) }
    }

    fn port() -> Port {
        Port {
            device: "mlx5_0".into(),
            port: 1,
            state: "active",
            link_layer: "RoCE",
            fault: None,
            speed_mbps: 100_000,
            lid: 0,
            mtu: 4096,
            max_message_bytes: 1 << 30,
            max_requests: 32768,
            max_completions: 4_194_303,
            max_reads_as_target: 16,
            max_reads_as_initiator: 16,
            pci: Some("0000:3b:00.0".into()),
            numa_node: Some(0),
            gpu_memory: "no",
            gpu_memory_why: "no driver of a GPU is loaded".into(),
            gid_index: Some(3),
            gids: vec![gid(2, "RoCE v1"), gid(3, "RoCE v2")],
        }
    }

    #[test]
    fn ports_as_lines() {
        let fault = Some("its state is down".to_owned());
        let (device, pci, gids) = ("mlx5_10".to_owned(), None, Vec::new());
        let down = Port { device, state: "down", link_layer: "InfiniBand", fault, lid: 7, pci, gids, ..port() };
        let expected = [
            "ibverbs     mlx5_0:1   RoCE, active, 100000 Mbit/s, MTU 4096, messages up to 1Gi",
            "                       PCI 0000:3b:00.0, NUMA node 0; up to 32768 requests, 4194303 completions, 16 and 16 reads",
            "                       memory of GPUs: no (no driver of a GPU is loaded)",
            "                       GID 2: ::ffff:10.0.0.1 on eth2, RoCE v1",
            "                       GID 3: ::ffff:10.0.0.1 on eth2, RoCE v2, taken",
            "            mlx5_10:1  InfiniBand, down (not usable: its state is down), 100000 Mbit/s, LID 7, MTU 4096, messages up to 1Gi",
        ];
        let lines = lines(&[port(), down], Some("mlx5_0:1"));
        assert_eq!(lines[..6], expected);
        assert_eq!(lines.last().unwrap(), "rails       mlx5_0:1");
    }
}

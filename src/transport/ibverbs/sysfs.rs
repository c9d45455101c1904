//! What the system says of InfiniBand and RoCE devices outside of verbs: `/sys`, and modules of the kernel.

use std::fs;
use std::path::{Path, PathBuf};

use ibverbs_sys as ffi;

use crate::error::{Error, ErrorKind, first_few};
use crate::sys::socket::told;

/// How a device may access the memory of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDirect {
    /// By what.
    pub by: GpuAccess,
    /// How that is known.
    pub why: String,
}

/// By what a device accesses the memory of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuAccess {
    /// The device cannot access GPU memory, as far as is known.
    Nothing,
    /// Registration of the GPU's addresses, by a module of the kernel that maps them.
    PeerMemory,
    /// Registration of a dma-buf, which the GPU's driver exports.
    DmaBuf,
}

/// What the system says of devices outside of verbs.
pub(super) struct System {
    /// `/sys` or a folder like it.
    pub sys: PathBuf,
    /// The kernel's release, as `6.1.0`.
    pub release: String,
}

impl Default for System {
    fn default() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self { sys: PathBuf::from("/sys"), release: release.trim().to_owned() }
    }
}

/// Modules by which devices access the memory of GPUs whose addresses they are given.
const PEER_MEMORY: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];
/// Modules of GPUs whose drivers export dma-bufs.
const GPUS: [&str; 2] = ["nvidia", "amdgpu"];
/// Drivers that register dma-bufs, since Linux 5.12 or later.
const DMA_BUF_DRIVERS: [&str; 4] = ["mlx5_core", "bnxt_en", "ice", "mana"];

impl System {
    fn device(&self, name: &str) -> PathBuf {
        self.sys.join("class/infiniband").join(name)
    }

    fn text(path: &Path) -> std::io::Result<Option<String>> {
        let text = told(fs::read_to_string(path))?.map(|text| text.trim().to_owned());
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// The last part of the path to which a link leads.
    fn target(path: &Path) -> std::io::Result<Option<String>> {
        let path = told(fs::canonicalize(path))?;
        Ok(path.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())))
    }

    fn has_module(&self, name: &str) -> bool {
        self.sys.join("module").join(name).exists()
    }

    /// The device's address on the PCI bus, if it has one.
    pub fn pci(&self, name: &str) -> std::io::Result<Option<String>> {
        // Devices in software have none, or a parent that is no PCI device.
        let target = Self::target(&self.device(name).join("device"))?;
        Ok(target.filter(|target| target.matches(':').count() == 2))
    }

    /// The NUMA node of the device, if the system knows it.
    pub fn numa_node(&self, name: &str) -> std::io::Result<Option<u32>> {
        let text = Self::text(&self.device(name).join("device/numa_node"))?;
        Ok(text.and_then(|text| text.parse().ok()))
    }

    /// Mbit/s, as the kernel writes it: `400 Gb/sec (4X NDR)`. Newer speeds than verbs' field can hold are here only.
    pub fn rate(&self, name: &str, port: u8) -> std::io::Result<u32> {
        let text = Self::text(&self.device(name).join(format!("ports/{port}/rate")))?;
        let gigabits = text.and_then(|text| text.split_once(' ')?.0.parse::<f64>().ok());
        Ok(gigabits.map_or(0, |gigabits| (gigabits * 1000.0) as u32))
    }

    /// The network interface that has a GID, if it is known.
    pub fn gid_interface(&self, name: &str, port: u8, index: u32) -> std::io::Result<Option<String>> {
        Self::text(&self.device(name).join(format!("ports/{port}/gid_attrs/ndevs/{index}")))
    }

    /// Why this library cannot use the device, if so.
    pub fn unusable(&self, name: &str) -> std::io::Result<Option<String>> {
        let kind = Self::text(&self.device(name).join("node_type"))?.unwrap_or_default();
        let number = kind.split(':').next().unwrap_or_default();
        Ok(match number.trim().parse() {
            Ok(ffi::IBV_NODE_RNIC) => Some("it is an iWARP device, whose connections need RDMA CM".into()),
            Ok(ffi::IBV_NODE_USNIC | ffi::IBV_NODE_USNIC_UDP) => Some("a usNIC has no reliable connections".into()),
            Ok(ffi::IBV_NODE_UNSPECIFIED) => Some("it has no reliable connections, as Amazon's EFA".into()),
            _ => None,
        })
    }

    /// Whether the device can access the memory of GPUs.
    pub fn gpu_direct(&self, name: &str) -> std::io::Result<GpuDirect> {
        if let Some(module) = PEER_MEMORY.iter().find(|module| self.has_module(module)) {
            return Ok(GpuDirect { by: GpuAccess::PeerMemory, why: format!("the module {module} is loaded") });
        }
        let nothing = |why| Ok(GpuDirect { by: GpuAccess::Nothing, why });
        let Some(gpu) = GPUS.iter().find(|module| self.has_module(module)) else {
            return nothing("no driver of a GPU is loaded".into());
        };
        let driver = Self::target(&self.device(name).join("device/driver"))?;
        let Some(driver) = driver.filter(|driver| DMA_BUF_DRIVERS.contains(&driver.as_str())) else {
            return nothing(format!("neither {} nor {} is loaded", PEER_MEMORY[0], PEER_MEMORY[1]));
        };
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>());
        let (major, minor) = (numbers.next(), numbers.next());
        if matches!((major, minor), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 12)) {
            let why =
                format!("Linux {} with {driver} registers dma-bufs, which {gpu} exports; not tried", self.release);
            return Ok(GpuDirect { by: GpuAccess::DmaBuf, why });
        }
        nothing(format!("Linux {} is older than 5.12, which has dma-bufs", self.release))
    }

    /// The devices that the kernel has.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sys.join("class/infiniband")).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by_key(|name| natural(name));
        names
    }

    /// Why verbs list no device.
    pub fn no_device(&self) -> Error {
        let names = self.names();
        let text = if names.is_empty() {
            "this host has no InfiniBand or RoCE device: /sys/class/infiniband has none".to_owned()
        } else {
            format!(
                "this host has {}, but libibverbs finds no driver for it, or no /dev/infiniband/uverbs* (Debian: ibverbs-providers; in a \
                 container: --device /dev/infiniband)",
                first_few(names.iter(), 8, ", ")
            )
        };
        Error::new(ErrorKind::Unsupported, text)
    }

    /// Why verbs cannot list devices.
    pub fn no_list(&self, error: &std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENOSYS | libc::ENOENT) => {
                self.no_device().and("; the kernel offers no verbs: load ib_uverbs and the card's driver by modprobe")
            }
            _ => Error::io("cannot list InfiniBand and RoCE devices", error),
        }
    }
}

/// A key by which `mlx5_2` comes before `mlx5_10`.
pub(super) fn natural(name: &str) -> (String, u64, String) {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (start, number) = name.split_at(name.len() - digits);
    (start.to_owned(), number.parse().unwrap_or(0), name.to_owned())
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;

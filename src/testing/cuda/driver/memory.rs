//! Memory of the machine: which addresses there are, who can access them, and where their bytes are.

use std::collections::BTreeMap;

use crate::testing::cuda::ptx::AddressMap;

/// What kind of memory an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory of the GPU with this number.
    Device(usize),
    /// Memory of the GPU with this number that belongs to no context, as that of pools and of `cuMemCreate`.
    Pool(usize),
    /// Memory of the GPU with this number that belongs to another context than the primary one.
    Other(usize),
    /// Memory that GPUs and the host access.
    Managed(usize),
    /// Memory of the host, which GPUs access at the same address.
    Pinned,
    /// Memory of the host that was allocated otherwise, and pinned then.
    Registered,
}

impl Kind {
    /// The GPU whose memory it is.
    pub fn device(self) -> Option<usize> {
        match self {
            Self::Device(gpu) | Self::Pool(gpu) | Self::Other(gpu) => Some(gpu),
            Self::Managed(_) | Self::Pinned | Self::Registered => None,
        }
    }

    /// Whether the GPU with this number accesses it.
    fn serves(self, gpu: usize) -> bool {
        self.device().is_none_or(|own| own == gpu)
    }

    /// Whether the driver has mapped it, so that it can take it away from the host.
    fn is_mapped(self) -> bool {
        self != Self::Registered
    }
}

/// What the host may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// A stream has work that writes it, or it is a GPU's.
    None,
    /// A stream has work that reads it.
    Read,
    /// No stream has work with it.
    Write,
}

/// Memory that was allocated.
pub struct Allocation {
    pub kind: Kind,
    pub bytes: usize,
    /// Whether the library has allocated it.
    pub is_library: bool,
    /// The bytes of memory of a GPU, which are not at its address.
    contents: Vec<u8>,
    access: Access,
}

/// The byte that fresh memory is full of.
const FRESH: u8 = 0xD7;

/// All memory that was allocated, by its address.
#[derive(Default)]
pub struct Memory {
    pub allocations: BTreeMap<u64, Allocation>,
}

fn pages(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(4096)
}

impl Memory {
    /// Allocates memory; never moves it.
    pub fn allocate(&mut self, kind: Kind, bytes: usize, is_library: bool) -> u64 {
        let (access, contents) = match kind.device() {
            Some(_) => (Access::None, vec![FRESH; bytes]),
            None => (Access::Write, Vec::new()),
        };
        let protection = if access == Access::None { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a mapping at an address chosen by the kernel does not affect existing memory.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), pages(bytes), protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        if access == Access::Write {
            // SAFETY: the mapping has these bytes.
            unsafe { address.cast::<u8>().write_bytes(FRESH, bytes) };
        }
        let address = address.expose_provenance() as u64;
        self.allocations.insert(address, Allocation { kind, bytes, is_library, contents, access });
        address
    }

    /// Takes in memory of the host that is pinned.
    pub fn register(&mut self, memory: &mut [u8]) -> u64 {
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let (kind, bytes) = (Kind::Registered, memory.len());
        let own = Allocation { kind, bytes, is_library: false, contents: Vec::new(), access: Access::Write };
        self.allocations.insert(address, own);
        address
    }

    /// Whether memory was allocated at this address; it is free now.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(freed) = self.allocations.remove(&address) else { return false };
        if freed.kind.is_mapped() {
            let start = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the mapping was made by `allocate` with this length.
            assert_eq!(unsafe { libc::munmap(start, pages(freed.bytes)) }, 0);
        }
        true
    }

    /// The allocation that an address is in, with the allocation's own address.
    pub fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, found) = self.allocations.range(..=address).next_back()?;
        (address - start < found.bytes as u64).then_some((start, found))
    }

    /// Where the bytes at an address are, all of one allocation. `None` if they are outside, or the memory is not
    /// known, as pageable memory of the host is not.
    pub fn bytes(&mut self, address: u64, bytes: usize) -> Option<*mut u8> {
        let (&start, found) = self.allocations.range_mut(..=address).next_back()?;
        let offset = (address - start) as usize;
        (offset + bytes <= found.bytes && offset < found.bytes.max(1)).then(|| match found.kind.device() {
            Some(_) => found.contents[offset..].as_mut_ptr(),
            None => std::ptr::with_exposed_provenance_mut(address as usize),
        })
    }

    /// What the kernels of a GPU access.
    pub fn map(&mut self, gpu: usize) -> AddressMap {
        let mut map = AddressMap::default();
        for (&address, allocation) in self.allocations.iter_mut().filter(|(_, found)| found.kind.serves(gpu)) {
            let host = match allocation.kind.device() {
                Some(_) => allocation.contents.as_mut_ptr(),
                None => std::ptr::with_exposed_provenance_mut(address as usize),
            };
            // SAFETY: the memory is there while the map is, which is during one launch; only that accesses it then.
            unsafe { map.insert(address, host, allocation.bytes as u64) }.expect("allocations do not overlap");
        }
        map
    }

    /// Lets the host do so much with the memory that begins at `address`.
    pub fn allow(&mut self, address: u64, access: Access) {
        let Some(found) = self.allocations.get_mut(&address) else { return };
        if found.kind.device().is_some() || !found.kind.is_mapped() || found.access == access {
            return;
        }
        found.access = access;
        let protection = match access {
            Access::None => libc::PROT_NONE,
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the mapping was made by `allocate` with this length. Who accesses it against this has an error that
        // the test is to find.
        assert_eq!(unsafe { libc::mprotect(start, pages(found.bytes), protection) }, 0);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let all: Vec<u64> = self.allocations.keys().copied().collect();
        for address in all {
            self.free(address);
        }
    }
}

//! Which addresses kernels may access, and where their memory is.

/// The memory that kernels may access: at addresses of a device, which need not be those of this process.
#[derive(Debug, Default)]
pub struct AddressMap {
    /// In the order of addresses.
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    address: u64,
    bytes: u64,
    host: *mut u8,
}

// SAFETY: only launches access the memory, and `insert` says what must hold while one runs.
unsafe impl Send for AddressMap {}
// SAFETY: as above.
unsafe impl Sync for AddressMap {}

impl AddressMap {
    /// Makes `bytes` bytes at `host` those at `address` of the device, until they are removed. Fails if some are there
    /// already.
    ///
    /// # Safety
    /// Until they are removed, the bytes at `host` are valid for reads and writes, and nobody accesses them in a
    /// conflicting way while a kernel runs that is launched with this map and accesses them.
    pub unsafe fn insert(&mut self, address: u64, host: *mut u8, bytes: u64) -> Result<(), String> {
        let end = address.checked_add(bytes).ok_or("the addresses would wrap")?;
        let at = self.regions.partition_point(|region| region.address < address);
        let before = at.checked_sub(1).map(|before| &self.regions[before]);
        if before.is_some_and(|before| before.address + before.bytes > address)
            || self.regions.get(at).is_some_and(|next| next.address < end || next.address == address)
        {
            return Err(format!("{bytes} bytes at {address:#x} overlap others"));
        }
        self.regions.insert(at, Region { address, bytes, host });
        Ok(())
    }

    /// Removes what was inserted at `address`; whether there was something.
    pub fn remove(&mut self, address: u64) -> bool {
        let found = self.regions.binary_search_by_key(&address, |region| region.address);
        found.map(|at| self.regions.remove(at)).is_ok()
    }

    /// Where the `bytes` bytes at `address` are, which must be a multiple of them.
    pub(super) fn find(&self, address: u64, bytes: u32) -> Result<*mut u8, String> {
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(format!("{bytes} bytes at {address:#x}, which is not a multiple of {bytes}"));
        }
        let at = self.regions.partition_point(|region| region.address <= address);
        let region = at.checked_sub(1).map(|at| &self.regions[at]);
        match region {
            Some(region) if address - region.address + u64::from(bytes) <= region.bytes => {
                // SAFETY: the bytes are within those that `insert` was promised.
                Ok(unsafe { region.host.add((address - region.address) as usize) })
            }
            _ => {
                let near = region.map_or(String::new(), |region| {
                    format!("; the next below are {} bytes at {:#x}", region.bytes, region.address)
                });
                Err(format!("{bytes} bytes at {address:#x}, outside of the device's memory{near}"))
            }
        }
    }
}

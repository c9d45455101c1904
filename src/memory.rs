//! Kinds of memory: the library reads and writes host memory only.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::sys;

/// CUDA maps device memory in units of this many bytes, so host memory and device memory never share one.
const GRANULE_BITS: u32 = 21;

/// Granules that were found to be host memory, each at its number modulo the table's length. A memo of facts about this
/// process's address space, which spares small collectives a query of the driver. If the program unmaps a granule and
/// CUDA maps it afterwards, the memo is out of date, and device memory there is not recognised.
static HOST_GRANULES: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Refuses a pointer to memory of a CUDA device, which the CPU cannot read, if the driver is loaded in this process.
/// Managed and pinned memory are accepted. `what` names the pointer in the error.
#[inline(always)] // On the path of small collectives.
pub fn check_host(pointer: *const u8, what: impl FnOnce() -> String) -> Result<()> {
    let granule = pointer.addr() >> GRANULE_BITS;
    let known = &HOST_GRANULES[granule % HOST_GRANULES.len()];
    // An empty entry equals granule 0, the first 2 MiB, where nothing is mapped.
    if known.load(Ordering::Relaxed) == granule {
        return Ok(());
    }
    query(pointer, what)
}

/// [`check_host`] for memory that is not known.
#[cold]
fn query(pointer: *const u8, what: impl FnOnce() -> String) -> Result<()> {
    let granule = pointer.addr() >> GRANULE_BITS;
    if is_cuda_device(pointer) {
        let text = format!("{} ({pointer:p}) is memory of a CUDA device; copy it to host memory first", what());
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    HOST_GRANULES[granule % HOST_GRANULES.len()].store(granule, Ordering::Relaxed);
    Ok(())
}

/// `cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)`.
type GetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

const CUDA_SUCCESS: c_int = 0;
const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
const CU_MEMORYTYPE_DEVICE: c_uint = 2;

#[cold]
fn is_cuda_device(pointer: *const u8) -> bool {
    sys::with_loaded_symbol(c"libcuda.so.1", c"cuPointerGetAttribute", |symbol| {
        // SAFETY: the driver's function of this name has this signature.
        let get = unsafe { std::mem::transmute::<*mut c_void, GetAttribute>(symbol) };
        let attribute = |attribute| {
            let mut value: c_uint = 0;
            // SAFETY: both attributes are at most as long as `value`. The driver accepts any address, and fails for
            // those that it does not know.
            let status = unsafe { get((&raw mut value).cast(), attribute, pointer.addr() as u64) };
            (status == CUDA_SUCCESS).then_some(value)
        };
        attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == Some(CU_MEMORYTYPE_DEVICE)
            && attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED).unwrap_or(0) == 0
    })
    .unwrap_or(false)
}

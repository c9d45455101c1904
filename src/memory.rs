//! Kinds of memory: the memory of a CUDA device cannot be accessed by the host.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::shared_library::SharedLibrary;

/// Where the buffers of a call are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// The driver is asked for each buffer, once it is loaded in this process.
    #[default]
    Auto,
    /// The host can access all of them, and nobody is asked.
    Host,
    /// All of them are in the memory of devices.
    Device,
}

/// CUDA maps device memory in units of this many bytes, so host memory and device memory never share one.
const GRANULE_BITS: u32 = 21;

/// Granules that were found to be host memory, each at its number modulo the table's length. A memo of facts about this
/// process's address space, which spares small collectives the search for the driver. It is empty once the driver was
/// found: from then on the driver is asked for every pointer, as memory that was the host's may come back as a
/// device's. Until then, the memo is wrong for a granule that the program has unmapped and in which the driver, loaded
/// meanwhile, has mapped the first device memory that calls ever get.
static HOST_GRANULES: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// The driver's function, from the time on when it was found to be loaded in this process. A fact of the process, like
/// the memo.
static ATTRIBUTE_OF_POINTER: OnceLock<GetAttribute> = OnceLock::new();

/// `cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)`.
pub type GetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

/// What the driver's functions return without an error.
pub const CUDA_SUCCESS: c_int = 0;
/// An argument is wrong. The driver returns this for a pointer that it does not know.
pub const CUDA_ERROR_INVALID_VALUE: c_int = 1;
/// The program has not initialised the driver yet, so there is no device memory.
const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;
/// The driver has shut down, since the process is about to end.
const CUDA_ERROR_DEINITIALIZED: c_int = 4;
const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
const CU_MEMORYTYPE_DEVICE: c_uint = 2;

/// Whether a pointer is to memory of a CUDA device that the host cannot access. Managed and pinned memory can be
/// accessed. Fails if the driver does.
#[inline(always)] // On the path of small collectives.
pub fn is_device(pointer: *const u8) -> Result<bool> {
    let granule = pointer.addr() >> GRANULE_BITS;
    let known = &HOST_GRANULES[granule % HOST_GRANULES.len()];
    // An empty entry equals granule 0, the first 2 MiB, where nothing is mapped.
    if known.load(Ordering::Relaxed) == granule {
        return Ok(false);
    }
    query(pointer)
}

/// Refuses a pointer to memory of a CUDA device, where the library accesses it itself. `what` names the pointer in the
/// error.
pub fn check_host(pointer: *const u8, what: impl FnOnce() -> String) -> Result<()> {
    if !is_device(pointer)? {
        return Ok(());
    }
    let text = format!("{} ({pointer:p}) is memory of a CUDA device; copy it to host memory first", what());
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// [`is_device`] for memory that is not known.
#[cold]
fn query(pointer: *const u8) -> Result<bool> {
    let Some(get) = ATTRIBUTE_OF_POINTER.get().copied().or_else(find) else {
        remember(pointer.addr() >> GRANULE_BITS);
        return Ok(false);
    };
    let attribute = |attribute| {
        let mut value: c_uint = 0;
        // SAFETY: both attributes are at most as long as `value`. The driver accepts any address.
        let status = unsafe { get((&raw mut value).cast(), attribute, pointer.addr() as u64) };
        match status {
            CUDA_SUCCESS => Ok(Some(value)),
            CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_INITIALIZED | CUDA_ERROR_DEINITIALIZED => Ok(None),
            status => Err(Error::new(
                ErrorKind::Io,
                format!("cuPointerGetAttribute, asked for {pointer:p}, returns CUDA's error {status}"),
            )),
        }
    };
    Ok(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? == Some(CU_MEMORYTYPE_DEVICE)
        && attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED)?.unwrap_or(0) == 0)
}

/// Adds a granule to the memo, unless the driver was found meanwhile.
fn remember(granule: usize) {
    let entry = &HOST_GRANULES[granule % HOST_GRANULES.len()];
    entry.store(granule, Ordering::Relaxed);
    // Either this thread finds the driver here, or `ask`, which comes later, empties this entry.
    fence(Ordering::SeqCst);
    if ATTRIBUTE_OF_POINTER.get().is_some() {
        entry.store(0, Ordering::Relaxed);
    }
}

/// From now on `get` is asked for every pointer, unless another function is already.
pub fn ask(get: GetAttribute) {
    let _ = ATTRIBUTE_OF_POINTER.set(get);
    fence(Ordering::SeqCst);
    HOST_GRANULES.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
}

/// The driver's function, if the driver is loaded in this process; it stays loaded then.
fn find() -> Option<GetAttribute> {
    let driver = SharedLibrary::loaded(DRIVER)?;
    let address = driver.symbol(c"cuPointerGetAttribute")?;
    // SAFETY: the driver's function of this name has this signature.
    ask(unsafe { std::mem::transmute::<*mut c_void, GetAttribute>(address.as_ptr()) });
    ATTRIBUTE_OF_POINTER.get().copied()
}

/// The name by which the loader knows the driver.
pub const DRIVER: &CStr = c"libcuda.so.1";

//! The structures of verbs that the fake allocates.

use std::ffi::c_int;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::super::Shared;
use super::{Id, State};

/// An object of verbs, which programs see as a pointer to `raw`, its first field.
#[repr(C)]
pub struct Object<T> {
    pub raw: T,
    pub fabric: Arc<Shared>,
    /// Under which the state knows it.
    pub id: Id,
}

/// A device in a list, or of an open context.
#[repr(C)]
pub struct ListedDevice {
    pub raw: ffi::ibv_device,
    pub fabric: Arc<Shared>,
    pub node: usize,
    /// Index among the node's devices.
    pub index: usize,
}

/// A completion, with the layout of `ibv_wc`, whose fields are private.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: ffi::ibv_wc_status::Type,
    pub opcode: ffi::ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// A pointer that the state keeps only to give it back.
pub struct Pointer<T>(pub *mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: the state never accesses what the pointer points to.
unsafe impl<T> Send for Pointer<T> {}

/// A new object.
pub fn create<T>(fabric: &Arc<Shared>, id: Id, raw: T) -> *mut T {
    // The pointer is that to the whole object, so that it converts back.
    Box::into_raw(Box::new(Object { raw, fabric: fabric.clone(), id })).cast()
}

/// Fabric and number of an object.
///
/// # Safety
/// [`create`] has returned the pointer, and the object exists.
pub unsafe fn of<T>(object: *mut T) -> (Arc<Shared>, Id) {
    // SAFETY: the caller guarantees that this is the first field of an object.
    let object = unsafe { &*object.cast::<Object<T>>() };
    (object.fabric.clone(), object.id)
}

/// Calls `action` with the fabric's state, after everything that is due has happened, and the object's number.
///
/// # Safety
/// As for [`of`].
pub unsafe fn with<T, R>(object: *mut T, action: impl FnOnce(&mut State, Id) -> R) -> R {
    // SAFETY: the caller guarantees it.
    let (fabric, id) = unsafe { of(object) };
    fabric.call(|state| action(state, id))
}

/// Calls `action`, and frees the object if it succeeds. Returns 0 or `errno`.
///
/// # Safety
/// As for [`of`]; the object is not used afterwards if 0 is returned.
pub unsafe fn destroy<T>(object: *mut T, action: impl FnOnce(&mut State, Id) -> Result<(), c_int>) -> c_int {
    // SAFETY: the caller guarantees it.
    if let Err(errno) = unsafe { with(object, action) } {
        return errno;
    }
    // SAFETY: `create` has made it by `Box::into_raw`, and it is freed once.
    drop(unsafe { Box::from_raw(object.cast::<Object<T>>()) });
    0
}

/// A descriptor that is readable while its count is not 0; each read takes 1.
pub struct EventCount(c_int);

impl EventCount {
    pub fn new() -> Self {
        // SAFETY: the call has no requirements.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        assert!(descriptor >= 0, "a descriptor");
        Self(descriptor)
    }

    pub fn descriptor(&self) -> c_int {
        self.0
    }

    /// Adds 1.
    pub fn add(&self) {
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::eventfd_write(self.0, 1) }, 0);
    }
}

impl Drop for EventCount {
    fn drop(&mut self) {
        // SAFETY: the descriptor is closed once.
        unsafe { libc::close(self.0) };
    }
}

/// Takes 1 from a count; waits while it is 0 if the descriptor blocks. Returns whether it has, else sets `errno`.
pub fn take(descriptor: c_int) -> bool {
    let mut count = 0;
    // SAFETY: `count` is valid for writes; a closed descriptor is an error.
    unsafe { libc::eventfd_read(descriptor, &mut count) == 0 }
}

//! The functions of CUDA's driver, which are found at run time: in the library that the program has loaded, since
//! without it there is no memory of a GPU. So this library loads where there is no driver.
//!
//! The types are written out here. Those of the crate `cudarc` do not fit: its `CUresult` is an enumeration of the
//! version that it was made for, so a newer driver's error would be undefined behaviour, and its functions panic where
//! the driver lacks one.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::sys::shared_library::SharedLibrary;

/// `CUresult`.
pub type Status = c_int;
/// `CUdevice`.
pub type Device = c_int;
/// `CUcontext`.
pub type Context = *mut c_void;
/// `CUstream`.
pub type Stream = *mut c_void;
/// `CUevent`.
pub type Event = *mut c_void;
/// `CUmodule`.
pub type Module = *mut c_void;
/// `CUfunction`.
pub type Function = *mut c_void;

/// The numbers of `cuda.h` that the library uses.
pub mod number {
    use std::ffi::{c_int, c_uint};

    pub use crate::memory::{CUDA_ERROR_INVALID_VALUE as ERROR_INVALID_VALUE, CUDA_SUCCESS as SUCCESS};

    /// There is not enough memory, of the GPU or of the host.
    pub const ERROR_OUT_OF_MEMORY: c_int = 2;
    /// Without order towards the default stream.
    pub const STREAM_NON_BLOCKING: c_uint = 1;
    /// An event that takes no time.
    pub const EVENT_DISABLE_TIMING: c_uint = 2;
    /// Pinned memory for all contexts.
    pub const HOST_ALLOC_PORTABLE: c_uint = 1;
    /// A thread that may make any call while another one captures a stream.
    pub const STREAM_CAPTURE_MODE_RELAXED: c_int = 2;
    /// The number of multiprocessors.
    pub const DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
    /// The major number of the compute capability.
    pub const DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// The context of memory; NULL for memory of none.
    pub const POINTER_ATTRIBUTE_CONTEXT: c_int = 1;
    /// The number of the device of memory.
    pub const POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
}

/// The oldest version that has all functions, as `cuDriverGetVersion` returns it.
const OLDEST: c_int = 11040;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($name:ident: $argument:ty),*);)*) => {
        /// The driver's functions that the library uses. All are in CUDA 11.4.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        /// The names of these functions.
        #[cfg(test)]
        pub const NAMES: &[&CStr] = &[$($symbol),*];

        impl Functions {
            /// Takes the functions from where `find` finds them; the error is the name of one that is missing.
            fn find(find: impl Fn(&CStr) -> Option<std::ptr::NonNull<c_void>>) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        let address = find($symbol).ok_or($symbol)?;
                        // SAFETY: the driver's function with this name has this type; NVIDIA gives functions that
                        // change another name.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>(
                                address.as_ptr(),
                            )
                        }
                    },)*
                })
            }
        }

        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The arguments are as NVIDIA's manual of the driver demands.
                #[allow(clippy::too_many_arguments, reason = "the driver's")]
                pub unsafe fn $field(&self, $($name: $argument),*) -> Result<()> {
                    // SAFETY: by the contract.
                    let status = unsafe { (self.functions.$field)($($name),*) };
                    if status == number::SUCCESS { Ok(()) } else { Err(self.error($symbol, status)) }
                }
            )*
        }
    };
}

functions! {
    /// The version of CUDA that the driver has: 1000 times the major number and 10 times the minor one.
    driver_get_version = c"cuDriverGetVersion": fn(version: *mut c_int);
    /// The name of an error.
    get_error_name = c"cuGetErrorName": fn(error: Status, name: *mut *const c_char);
    /// The words for an error.
    get_error_string = c"cuGetErrorString": fn(error: Status, text: *mut *const c_char);
    /// What the driver knows of an address.
    pointer_get_attribute = c"cuPointerGetAttribute": fn(data: *mut c_void, attribute: c_int, pointer: u64);
    /// The device with this number.
    device_get = c"cuDeviceGet": fn(device: *mut Device, ordinal: c_int);
    /// A number that describes a device.
    device_get_attribute = c"cuDeviceGetAttribute": fn(value: *mut c_int, attribute: c_int, device: Device);
    /// Retains a device's primary context, and makes it if there is none.
    device_primary_ctx_retain = c"cuDevicePrimaryCtxRetain": fn(context: *mut Context, device: Device);
    /// Releases it.
    device_primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2": fn(device: Device);
    /// Makes a context the thread's current one.
    ctx_push_current = c"cuCtxPushCurrent_v2": fn(context: Context);
    /// Makes the one before it current again.
    ctx_pop_current = c"cuCtxPopCurrent_v2": fn(context: *mut Context);
    /// The lowest and the highest priority of streams; a lower number is a higher priority.
    ctx_get_stream_priority_range = c"cuCtxGetStreamPriorityRange": fn(lowest: *mut c_int, highest: *mut c_int);
    /// Exchanges the thread's capture mode: which calls it may make while a stream is captured.
    thread_exchange_stream_capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(mode: *mut c_int);
    /// Creates a stream in the current context.
    stream_create_with_priority = c"cuStreamCreateWithPriority": fn(stream: *mut Stream, flags: c_uint, priority: c_int);
    /// Destroys it when it has done its work.
    stream_destroy = c"cuStreamDestroy_v2": fn(stream: Stream);
    /// Waits until a stream has done all its work.
    stream_synchronize = c"cuStreamSynchronize": fn(stream: Stream);
    /// Creates an event in the current context.
    event_create = c"cuEventCreate": fn(event: *mut Event, flags: c_uint);
    /// Destroys it.
    event_destroy = c"cuEventDestroy_v2": fn(event: Event);
    /// Has a stream reach the event after its work so far.
    event_record = c"cuEventRecord": fn(event: Event, stream: Stream);
    /// Waits until a stream has reached the event where that was recorded last.
    event_synchronize = c"cuEventSynchronize": fn(event: Event);
    /// Allocates pinned memory of the host.
    mem_host_alloc = c"cuMemHostAlloc": fn(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Frees it.
    mem_free_host = c"cuMemFreeHost": fn(pointer: *mut c_void);
    /// Copies bytes between any kinds of memory, in the order of a stream.
    memcpy_async = c"cuMemcpyAsync": fn(into: u64, from: u64, bytes: usize, stream: Stream);
    /// Loads kernels into the current context.
    module_load_data = c"cuModuleLoadData": fn(module: *mut Module, image: *const c_void);
    /// Unloads them.
    module_unload = c"cuModuleUnload": fn(module: Module);
    /// The kernel with this name.
    module_get_function = c"cuModuleGetFunction": fn(function: *mut Function, module: Module, name: *const c_char);
    /// Launches a kernel in the order of a stream: blocks and their threads in three directions, bytes of shared
    /// memory, a pointer to each parameter.
    launch_kernel = c"cuLaunchKernel": fn(function: Function, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared_bytes: c_uint, stream: Stream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
}

/// The driver. All its functions may be called from any thread.
pub struct Driver {
    functions: Functions,
    /// What `cuDriverGetVersion` returns.
    version: c_int,
}

impl Driver {
    /// The driver that this process has loaded.
    pub fn loaded() -> Result<Arc<Self>> {
        let unsupported = |text| Err(Error::new(ErrorKind::Unsupported, text));
        if !cfg!(feature = "cuda") {
            return unsupported("this build cannot access it: it has no feature cuda".to_owned());
        }
        if let Some(library) = SharedLibrary::loaded(memory::DRIVER) {
            return Self::find(|name| library.symbol(name));
        }
        let name = memory::DRIVER.to_string_lossy();
        unsupported(format!("this process has not loaded CUDA's driver, {name}"))
    }

    /// The driver whose functions `find` finds.
    fn find(find: impl Fn(&CStr) -> Option<std::ptr::NonNull<c_void>>) -> Result<Arc<Self>> {
        match Functions::find(&find) {
            Ok(functions) => Self::of(functions),
            Err(missing) => {
                let (missing, version) = (missing.to_string_lossy(), version_of(&find));
                let text = format!(
                    "CUDA's driver{version} has no function {missing}, which that of CUDA {} has",
                    words(OLDEST)
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// A driver with these functions.
    pub fn of(functions: Functions) -> Result<Arc<Self>> {
        let mut driver = Self { functions, version: 0 };
        let mut version = 0;
        // SAFETY: the driver writes one number.
        unsafe { driver.driver_get_version(&mut version) }?;
        driver.version = version;
        Ok(Arc::new(driver))
    }

    /// Sets `into` to an attribute of a pointer; returns whether the driver knows the pointer, and the attribute of it.
    ///
    /// # Safety
    /// `T` is the type of this attribute in NVIDIA's manual.
    pub unsafe fn attribute<T>(&self, pointer: u64, attribute: c_int, into: &mut T) -> Result<bool> {
        // SAFETY: the driver accepts any address, and by the contract, it writes a `T`.
        let status =
            unsafe { (self.functions.pointer_get_attribute)(std::ptr::from_mut(into).cast(), attribute, pointer) };
        match status {
            number::SUCCESS => Ok(true),
            number::ERROR_INVALID_VALUE => Ok(false),
            status => Err(self.error(c"cuPointerGetAttribute", status)),
        }
    }

    /// The version of CUDA that the driver has, as `cuDriverGetVersion` returns it.
    pub fn version(&self) -> c_int {
        self.version
    }

    /// The error of a function that has returned `status`.
    #[cold]
    fn error(&self, function: &CStr, status: Status) -> Error {
        let word = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = std::ptr::null();
            // SAFETY: the driver writes a pointer to a constant string, or NULL if it does not know the error.
            let known = unsafe { get(status, &mut text) } == number::SUCCESS && !text.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = word(self.functions.get_error_name).unwrap_or_else(|| "an unknown error".to_owned());
        let text = word(self.functions.get_error_string).map_or(String::new(), |text| format!(": {text}"));
        let kind = match status {
            number::ERROR_OUT_OF_MEMORY => ErrorKind::ResourceExhausted,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{} returns {name} ({status}){text}", function.to_string_lossy()))
    }
}

/// ` (CUDA 10.2)`, if the driver says its version.
fn version_of(find: impl Fn(&CStr) -> Option<std::ptr::NonNull<c_void>>) -> String {
    let Some(address) = find(c"cuDriverGetVersion") else { return String::new() };
    // SAFETY: the driver's function with this name has this type.
    let get =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> Status>(address.as_ptr()) };
    let mut version = 0;
    // SAFETY: the driver writes one number.
    match unsafe { get(&mut version) } {
        number::SUCCESS => format!(" (CUDA {})", words(version)),
        _ => String::new(),
    }
}

/// `12.1` for 12010.
pub fn words(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    unsafe extern "C" fn version(version: *mut c_int) -> Status {
        // SAFETY: the caller passes a number to write to.
        unsafe { *version = 10020 };
        number::SUCCESS
    }

    /// The others are not called.
    fn address(_: &CStr) -> Option<NonNull<c_void>> {
        NonNull::new(version as *mut c_void)
    }

    #[test]
    fn a_missing_function_is_named_with_the_version_of_the_driver() {
        for missing in NAMES.iter().filter(|name| **name != c"cuDriverGetVersion") {
            let error = Driver::find(|name| address(name).filter(|_| name != *missing)).err().expect("it is refused");
            let name = missing.to_string_lossy();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(
                error.message(),
                format!("CUDA's driver (CUDA 10.2) has no function {name}, which that of CUDA 11.4 has")
            );
        }
        let error = Driver::find(|_| None).err().expect("it is refused");
        assert!(error.message().starts_with("CUDA's driver has no function cuDriverGetVersion"), "{error}");
        assert_eq!(Driver::find(address).expect("it has all functions").version(), 10020);
    }

    #[test]
    fn a_process_without_the_driver_says_so() {
        let error = Driver::loaded().err().expect("these tests load no driver");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let wanted =
            if cfg!(feature = "cuda") { "has not loaded CUDA's driver, libcuda.so.1" } else { "no feature cuda" };
        assert!(error.message().contains(wanted), "{error}");
    }
}

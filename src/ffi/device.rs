//! Devices.

use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, OnceLock};

use super::guard::guard;
use super::handle::{self, Handle};
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::log::{Level, LogCallback};
use crate::transport::tcp::{Device, DeviceOptions};

/// Addresses of this host where connections arrive, and the thread that serves what nobody waits on. Contexts keep their
/// device alive, so it may be destroyed before them. Any number of contexts may share one; safe to use from any thread.
pub struct gloo_rs_device_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_device_t {
    type Inner = Arc<Device>;
    const TAG: u64 = u64::from_ne_bytes(*b"gloo dev");
    const NAME: &'static str = "gloo_rs_device_t";
}

/// How important a log message is.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_log_level_t {
    /// Something that needs an operator's attention, such as a connection that belongs to no job. Calls return their
    /// errors; these are not logged.
    GLOO_RS_LOG_WARNING = 1,
    /// An event, such as the address that a device chose.
    GLOO_RS_LOG_NOTICE = 2,
    /// A detail that helps to find a fault.
    GLOO_RS_LOG_DETAIL = 3,
}

pub use gloo_rs_log_level_t::*;

/// Callback for log messages that no call returns. `message` is text without the line's end, valid during the call. Called from
/// the device's own thread and from threads in calls, also from several at once, while the library holds its locks: it must
/// not call this library, and no exception may leave it.
pub type gloo_rs_log_fn_t =
    Option<unsafe extern "C" fn(level: gloo_rs_log_level_t, message: *const c_char, user: *mut c_void)>;

/// Which addresses of this host a device uses: one of IPv4 and one of IPv6, where there are both. With neither
/// `interface_name` nor `hostname`, the environment variable GLOO_RS_SOCKET_IFNAME stands for `interface_name`. Without that
/// too, or if it only excludes, the device listens once its first context connects: on loopback if all ranks of that context
/// are on this host, else on the addresses from which this host reaches the store or the other ranks. Loopback is never
/// used by ranks on several hosts. Set up by gloo_rs_device_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_device_options_t {
    /// sizeof(gloo_rs_device_options_t).
    pub struct_size: usize,
    /// The network interfaces that may be used, separated by commas, the preferred first; NULL for any. An item is a name,
    /// such as `eth0`, where `*` stands for any characters, an IP address, or a network, such as `10.0.0.0/8` or `fd00::/8`.
    /// With `^` in front of the list all others may be used: `^docker*,virbr0`.
    pub interface_name: *const c_char,
    /// A host name of this host, or an IPv4 or IPv6 address of it; NULL for none in particular.
    pub hostname: *const c_char,
    /// TCP port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Callback for log messages that no call returns. NULL for none, or, if the environment variable GLOO_RS_LOG is
    /// `warning`, `notice` or `detail`, for messages of this level and of more important ones on stderr.
    pub log: gloo_rs_log_fn_t,
    /// Passed to `log` and to `log_destroy`.
    pub log_user: *mut c_void,
    /// Called once, on any thread, when `log` will not be called any more: the device and everything made of it are destroyed.
    /// Not called if creating the device fails. It must not call this library. May be NULL.
    pub log_destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_device_options_t {
    const NAME: &'static str = "gloo_rs_device_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// The caller's log callback.
pub(super) struct Log {
    function: unsafe extern "C" fn(gloo_rs_log_level_t, *const c_char, *mut c_void),
    user: *mut c_void,
    destroy: OnceLock<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header demands of the caller that the functions may be called from any thread, with this pointer.
unsafe impl Send for Log {}
// SAFETY: as above, also from several at once.
unsafe impl Sync for Log {}

impl Log {
    pub(super) fn new(function: gloo_rs_log_fn_t, user: *mut c_void) -> Option<Arc<Self>> {
        Some(Arc::new(Self { function: function?, user, destroy: OnceLock::new() }))
    }

    pub(super) fn callback(self: &Arc<Self>) -> LogCallback {
        let log = self.clone();
        Arc::new(move |level, message| {
            let level = match level {
                Level::Warning => GLOO_RS_LOG_WARNING,
                Level::Notice => GLOO_RS_LOG_NOTICE,
                Level::Detail => GLOO_RS_LOG_DETAIL,
            };
            let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
            // SAFETY: the caller gave a function of this type, and keeps `user` valid until `destroy` is called.
            unsafe { (log.function)(level, message.as_ptr(), log.user) }
        })
    }

    /// From now on, once what uses the callback exists, its end is told to `destroy`.
    pub(super) fn set_destroy(&self, destroy: Option<unsafe extern "C" fn(*mut c_void)>) {
        destroy.map(|destroy| self.destroy.set(destroy));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy.get() {
            // SAFETY: the caller gave a function of this type; nobody has the callback any more.
            unsafe { destroy(self.user) }
        }
    }
}

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_device_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_options_init(options: *mut gloo_rs_device_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Starts the device's thread, and binds and listens if the options name where. `options` may be NULL for defaults. The caller
/// owns the result and ends it with gloo_rs_device_destroy; on failure `*device` is NULL. Fails with
/// GLOO_RS_ERROR_INVALID_ARGUMENT if there is no such interface or address, with GLOO_RS_ERROR_IO if the port is taken. The
/// environment must not change meanwhile.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_create(
    options: *const gloo_rs_device_options_t,
    device: *mut *mut gloo_rs_device_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_create", || {
        // SAFETY: the header's rules for pointers.
        let (out, options) = unsafe { (Out::handle(device, "device")?, options::read_or_default(options)?) };
        // SAFETY: as above, for the strings in the options.
        let (interface, hostname) = unsafe {
            let interface = pointer::optional_text(options.interface_name, "interface_name")?;
            (interface, pointer::optional_text(options.hostname, "hostname")?)
        };
        let log = Log::new(options.log, options.log_user);
        let created = Device::create(&DeviceOptions {
            interface: interface.map(str::to_owned),
            hostname: hostname.map(str::to_owned),
            port: options.port,
            log: log.as_ref().map(Log::callback),
        })?;
        log.inspect(|log| log.set_destroy(options.log_destroy));
        handle::create(created, out);
        Ok(())
    })
}

/// Ends the caller's hold on the device; its thread ends with the last context made of it. No other
/// thread may be beginning a call on the handle. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_destroy(device: *mut gloo_rs_device_t) {
    guard("gloo_rs_device_destroy", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::take(device, "device") }.map(drop)
    });
}

/// Where peers connect to, such as `10.0.0.1:41234` or `[fd00::1]:41234`, the preferred address if there are several; an
/// empty string as long as the device, for which nothing was named, does not listen because no context has connected. Copied with its NUL byte into `buffer` of
/// `capacity` bytes. `*needed` is set to its bytes; `buffer` may be NULL to ask for that only, `needed` may be NULL
/// otherwise.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_address(
    device: *const gloo_rs_device_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_address", || {
        // SAFETY: the header's rules for pointers.
        unsafe {
            let device = handle::get(device, "device")?;
            let address = device.addresses().first().map(|address| address.to_string()).unwrap_or_default();
            pointer::copy_out_text(&address, buffer, capacity, needed)
        }
    })
}

/// The network interface that has the address of gloo_rs_device_address, such as `eth0`, or an empty string if none has;
/// copied as that does.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_interface(
    device: *const gloo_rs_device_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_interface", || {
        // SAFETY: the header's rules for pointers.
        unsafe {
            let device = handle::get(device, "device")?;
            pointer::copy_out_text(&device.interface().unwrap_or_default(), buffer, capacity, needed)
        }
    })
}

//! Devices.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

use super::enumeration::known;
use super::guard::guard;
use super::handle::{self, Handle};
use super::ibverbs::{self, gloo_rs_ibverbs_options_t};
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use super::tls::{self, gloo_rs_tls_options_t};
use super::types;
use crate::log::{Level, LogCallback};
use crate::transport::device::{Device, DeviceOptions};

/// A device: the addresses of this host on which this process accepts connections, and a thread that progresses
/// operations for which no thread waits. Any number of contexts may share a device. They keep it alive, so it may be
/// destroyed before them. Thread-safe.
pub struct gloo_rs_device_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_device_t {
    type Inner = Arc<Device>;
    const TAG: u32 = u32::from_ne_bytes(*b" dev");
    const NAME: &'static str = "gloo_rs_device_t";
}

/// Severity of a log message.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_log_level_t {
    /// A problem that needs an operator's attention, such as a connection that belongs to no job. Errors that calls
    /// return are not logged.
    GLOO_RS_LOG_WARNING = 1,
    /// An event, such as the address that a device selected.
    GLOO_RS_LOG_NOTICE = 2,
    /// A detail for finding faults.
    GLOO_RS_LOG_DETAIL = 3,
}

pub use gloo_rs_log_level_t::*;

/// Callback for log messages that no call returns. `message` has no newline at its end and is valid during the
/// callback. The device's thread and threads inside calls of the library invoke it, possibly several at once, while the
/// library holds its locks: it must not call this library, and must not throw or longjmp.
pub type gloo_rs_log_fn_t =
    Option<unsafe extern "C" fn(level: gloo_rs_log_level_t, message: *const c_char, user: *mut c_void)>;

/// Whether the contexts of a device share memory with ranks of the same host. Ranks that are connected pair by pair
/// never do, and if one rank of a host cannot, or must not, none of that host does; they then use TCP.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_shared_memory_t {
    /// The environment variable GLOO_RS_SHM decides (1 or 0); on if it is not set.
    GLOO_RS_SHARED_MEMORY_DEFAULT = 0,
    /// Ranks of one host share memory if they can.
    GLOO_RS_SHARED_MEMORY_ON = 1,
    /// Ranks of one host use TCP.
    GLOO_RS_SHARED_MEMORY_OFF = 2,
}

pub use gloo_rs_shared_memory_t::*;

/// Options of a device: the addresses of this host that it uses, one IPv4 and one IPv6 address where the host has both.
/// If `interface_name` and `hostname` are NULL, the environment variable GLOO_RS_SOCKET_IFNAME replaces
/// `interface_name`. If that is not set either, or if it only excludes interfaces, the device starts to listen when its
/// first context connects: on loopback if all ranks of that context are on this host, else on the addresses from which
/// this host reaches the store or the other ranks. Ranks on several hosts never use loopback. Initialise with
/// gloo_rs_device_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_device_options_t {
    /// sizeof(gloo_rs_device_options_t).
    pub struct_size: usize,
    /// The network interfaces that may be used, separated by commas, in order of preference; NULL for any. An item is a
    /// name such as `eth0`, in which `*` stands for any characters, an IP address, or a network such as `10.0.0.0/8` or
    /// `fd00::/8`. A list that begins with `^` excludes its items and allows all other interfaces: `^docker*,virbr0`.
    pub interface_name: *const c_char,
    /// A host name, IPv4 address or IPv6 address of this host; NULL for none.
    pub hostname: *const c_char,
    /// TCP port to listen on; 0 for one of `port_range`.
    pub port: u16,
    /// Callback for log messages that no call returns. If it is NULL and the environment variable GLOO_RS_LOG is
    /// `warning`, `notice` or `detail`, messages of that severity or higher are written to stderr, each
    /// as a line that begins with the time (UTC), the host and the process.
    pub log: gloo_rs_log_fn_t,
    /// Passed to `log` and to `log_destroy`.
    pub log_user: *mut c_void,
    /// Called once, on any thread, after the last call of `log`, when the device and everything created from it are
    /// destroyed. Not called if `log` is NULL, or if creating the device fails. Must not call this library. May be
    /// NULL.
    pub log_destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// GLOO_RS_SHARED_MEMORY_DEFAULT, _ON or _OFF.
    pub shared_memory: MaybeUninit<gloo_rs_shared_memory_t>,
    /// The number of TCP connections between two ranks of different hosts, or of one host without shared memory, 1 to
    /// 16: ranks that want different numbers take the lower one. 0 for what the environment variable GLOO_RS_STREAMS
    /// says; if that is not set, what rank 0's tuning file says, else 1.
    pub streams: u32,
    /// What carries the bytes of connections: `tcp`; `uv`, which is TCP with libuv waiting for the sockets; `tls`; or
    /// `ibverbs`, which is InfiniBand or RoCE, set up over TCP. It must be the same on all ranks, but that `tcp` and
    /// `uv` fit together. All but `tcp` only if this build has them (see gloo_rs_built_features). NULL for what the
    /// environment variable GLOO_RS_TRANSPORT says; `tcp` if it is not set.
    pub transport: *const c_char,
    /// The files that TLS needs; implies the transport `tls`. NULL for those of the environment. Copied.
    pub tls: *const gloo_rs_tls_options_t,
    /// The ports to use with the transport `ibverbs`, which this implies. NULL for what the environment says. Copied.
    pub ibverbs: *const gloo_rs_ibverbs_options_t,
    /// The TCP ports of which the device takes the first free one at each address, both ends included: `20000-20100`.
    /// Not together with `port`. NULL for what the environment variable GLOO_RS_PORT_RANGE says; the system chooses if
    /// it is not set. Copied.
    pub port_range: *const c_char,
    /// How threads wait on contexts of this device whose options do not say: see `wait` of gloo_rs_context_options_t.
    /// Copied.
    pub wait: *const c_char,
    /// The processes that this one lets trace it, and so read its memory, where Yama lets only its ancestors do that
    /// (kernel.yama.ptrace_scope 1): the number of a process from which this one descends, such as the ranks' launcher,
    /// with all that descend from that one; `any`, all of the same user; or `0`, no more than the program itself has
    /// asked for. It is the process's prctl(PR_SET_PTRACER), of which the last call counts, whoever makes it; it is
    /// made when the device is created, and never taken back. NULL for what the environment variable GLOO_RS_PTRACER
    /// says, which `gloo-rs run` sets; `0` if it is not set. Copied.
    pub ptracer: *const c_char,
}

// SAFETY: repr(C), a usize first, then integers, pointers, and an enumeration that may have any number.
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

// SAFETY: the header says that any thread may call the functions, with this pointer.
unsafe impl Send for Log {}
// SAFETY: the header says that several threads may call `log` at once.
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
            // SAFETY: the function has this type; the header demands that `user` is valid until `log_destroy` is
            // called, which follows the drop of this callback. `message` ends with a NUL byte and outlives the call.
            unsafe { (log.function)(level, message.as_ptr(), log.user) }
        })
    }

    /// Sets the function that is called when the callback is dropped. Call it after the user of the callback has been
    /// created.
    pub(super) fn set_destroy(&self, destroy: Option<unsafe extern "C" fn(*mut c_void)>) {
        destroy.map(|destroy| self.destroy.set(destroy));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy.get() {
            // SAFETY: the function has this type; this is its only call, and no callback that uses `user` is left.
            unsafe { destroy(self.user) }
        }
    }
}

/// Sets `*options` to defaults. `struct_size` is sizeof(gloo_rs_device_options_t); at most that many bytes are written.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_options_init(options: *mut gloo_rs_device_options_t, struct_size: usize) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// Creates a device and starts its thread. The device listens at once if the options select an address or an interface.
/// `options` may be NULL for defaults. The caller destroys `*device` with gloo_rs_device_destroy; it is NULL on
/// failure. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if there is no such interface or address, and with
/// GLOO_RS_ERROR_IO if the port is in use, with GLOO_RS_ERROR_RESOURCE_EXHAUSTED if no port of a range is free. With
/// TLS, fails if a file cannot be read (GLOO_RS_ERROR_IO) or used (GLOO_RS_ERROR_INVALID_ARGUMENT); the message names
/// the file, and the line.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_create(
    options: *const gloo_rs_device_options_t,
    device: *mut *mut gloo_rs_device_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_create", || {
        // SAFETY: the header demands that `device` is NULL or valid for a write, and `options` is NULL or valid for
        // reads of its `struct_size` bytes.
        let (out, options) = unsafe { (Out::handle(device, "device")?, options::read_or_default(options)?) };
        // SAFETY: the header demands that these are NULL or strings.
        let (interface, hostname, port_range, ptracer) = unsafe {
            let interface = pointer::optional_text(options.interface_name, "interface_name")?;
            let hostname = pointer::optional_text(options.hostname, "hostname")?;
            let port_range = pointer::optional_text(options.port_range, "port_range")?;
            (interface, hostname, port_range, pointer::optional_text(options.ptracer, "ptracer")?)
        };
        // SAFETY: C initialised `shared_memory`, or it has its default.
        let shared_memory = unsafe {
            let values = [
                (GLOO_RS_SHARED_MEMORY_DEFAULT, None),
                (GLOO_RS_SHARED_MEMORY_ON, Some(true)),
                (GLOO_RS_SHARED_MEMORY_OFF, Some(false)),
            ];
            known(options.shared_memory, "shared_memory", &values)
        }?;
        // SAFETY: the header demands strings, and a struct with its size.
        let transport = unsafe { tls::transport(options.transport, options.tls) }?;
        let transport = ibverbs::transport(transport, options.ibverbs)?;
        let log = Log::new(options.log, options.log_user);
        let created = Device::create(&DeviceOptions {
            interface: interface.map(str::to_owned),
            hostname: hostname.map(str::to_owned),
            port: options.port,
            port_range: port_range.map(str::to_owned),
            log: log.as_ref().map(Log::callback),
            shared_memory,
            monitor: None,
            ptracer: ptracer.map(str::to_owned),
            transport,
            streams: (options.streams > 0).then_some(options.streams),
            // SAFETY: the header demands that `wait` is NULL or a string.
            wait: unsafe { types::wait_mode(options.wait) }?,
            // SAFETY: the header demands NULL, or a struct with its size and a string.
            #[cfg(all(feature = "ibverbs", target_os = "linux"))]
            ibverbs: unsafe { ibverbs::options(options.ibverbs) }?,
        })?;
        log.inspect(|log| log.set_destroy(options.log_destroy));
        handle::create(created, out);
        Ok(())
    })
}

/// Releases the caller's reference to the device. Its thread ends with the last context created on it. No other thread
/// may begin a call on the handle meanwhile. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_destroy(device: *mut gloo_rs_device_t) {
    guard("gloo_rs_device_destroy", || {
        // SAFETY: the header demands that `device` is NULL or a live handle on which no other call begins.
        unsafe { handle::take(device, "device") }.map(drop)
    });
}

/// Copies the address that peers connect to, such as `10.0.0.1:41234` or `[fd00::1]:41234`, into `buffer` of `capacity`
/// bytes: the preferred one if there are several. The text is empty while the device does not listen, because its
/// options select no address and no context has connected. `*needed` is set to the length in bytes with the final NUL,
/// also if `capacity` is too small, which fails with GLOO_RS_ERROR_INVALID_ARGUMENT. `buffer` or `needed`, but not
/// both, may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_address(
    device: *const gloo_rs_device_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_address", || {
        // SAFETY: the header demands that `device` is NULL or a live handle, and `buffer` is NULL or valid for writes
        // of `capacity` bytes, `needed` NULL or valid for a write.
        unsafe {
            let device = handle::get(device, "device")?;
            let address = device.addresses().first().map(|address| address.to_string()).unwrap_or_default();
            pointer::copy_out_text(&address, buffer, capacity, needed)
        }
    })
}

/// Copies the name of the network interface that has the address of gloo_rs_device_address, such as `eth0`, or an empty
/// string if none has it. `buffer`, `capacity` and `needed` as in gloo_rs_device_address.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_interface(
    device: *const gloo_rs_device_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_interface", || {
        // SAFETY: the header demands that `device` is NULL or a live handle, and `buffer` is NULL or valid for writes
        // of `capacity` bytes, `needed` NULL or valid for a write.
        unsafe {
            let device = handle::get(device, "device")?;
            pointer::copy_out_text(&device.interface().unwrap_or_default(), buffer, capacity, needed)
        }
    })
}

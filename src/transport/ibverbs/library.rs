//! The functions of libibverbs, found at run time. The library is loaded when a device with this transport is created,
//! so that programs that use another one need not have it.
//!
//! Some functions of verbs are in tables that a device's context holds, since providers implement them; the methods
//! here call them there.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::shared_library::SharedLibrary;

/// The name by which the loader finds the library.
pub const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that this library uses.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        /// The names of these functions in the library.
        #[cfg(test)]
        const NAMES: &[&CStr] = &[$($symbol),*];

        impl Functions {
            /// Finds all functions; the error is the name of one that is missing.
            fn find(library: &SharedLibrary) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        let address = library.symbol($symbol).ok_or($symbol)?;
                        // SAFETY: the function with this name has this type; its interface is fixed by the library's
                        // version 1.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                address.as_ptr(),
                            )
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// All devices, in an array that [`Functions::free_device_list`] frees.
    get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut ffi::ibv_device;
    /// Frees the array, and the devices in it that are not open.
    free_device_list = c"ibv_free_device_list": fn(*mut *mut ffi::ibv_device);
    /// The name of a device.
    get_device_name = c"ibv_get_device_name": fn(*mut ffi::ibv_device) -> *const std::ffi::c_char;
    /// Opens a device.
    open_device = c"ibv_open_device": fn(*mut ffi::ibv_device) -> *mut ffi::ibv_context;
    /// Closes it.
    close_device = c"ibv_close_device": fn(*mut ffi::ibv_context) -> c_int;
    /// A device's limits.
    query_device = c"ibv_query_device": fn(*mut ffi::ibv_context, *mut ffi::ibv_device_attr) -> c_int;
    /// A port's attributes: the first fields of `ibv_port_attr`, as old libraries have them. Set it to zero before.
    query_port = c"ibv_query_port": fn(*mut ffi::ibv_context, u8, *mut ffi::_compat_ibv_port_attr) -> c_int;
    /// An entry of a port's table of GIDs, with its type: `ENODATA` if it is empty. Since version 32 of rdma-core.
    query_gid_ex = c"_ibv_query_gid_ex": fn(*mut ffi::ibv_context, u32, u32, *mut ffi::ibv_gid_entry, u32, usize) -> c_int;
    /// Creates a protection domain.
    alloc_pd = c"ibv_alloc_pd": fn(*mut ffi::ibv_context) -> *mut ffi::ibv_pd;
    /// Destroys it.
    dealloc_pd = c"ibv_dealloc_pd": fn(*mut ffi::ibv_pd) -> c_int;
    /// Registers memory.
    reg_mr = c"ibv_reg_mr": fn(*mut ffi::ibv_pd, *mut c_void, usize, c_int) -> *mut ffi::ibv_mr;
    /// Ends the registration. No device accesses the memory by it any more when this returns.
    dereg_mr = c"ibv_dereg_mr": fn(*mut ffi::ibv_mr) -> c_int;
    /// Creates a completion channel.
    create_comp_channel = c"ibv_create_comp_channel": fn(*mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel;
    /// Destroys it.
    destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut ffi::ibv_comp_channel) -> c_int;
    /// Creates a completion queue.
    create_cq = c"ibv_create_cq": fn(*mut ffi::ibv_context, c_int, *mut c_void, *mut ffi::ibv_comp_channel, c_int) -> *mut ffi::ibv_cq;
    /// Destroys it.
    destroy_cq = c"ibv_destroy_cq": fn(*mut ffi::ibv_cq) -> c_int;
    /// Takes an event of a channel; waits for one unless its descriptor does not block.
    get_cq_event = c"ibv_get_cq_event": fn(*mut ffi::ibv_comp_channel, *mut *mut ffi::ibv_cq, *mut *mut c_void) -> c_int;
    /// Acknowledges events, which must be done before the queue is destroyed.
    ack_cq_events = c"ibv_ack_cq_events": fn(*mut ffi::ibv_cq, std::ffi::c_uint);
    /// Creates a queue pair.
    create_qp = c"ibv_create_qp": fn(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;
    /// Changes its state and attributes.
    modify_qp = c"ibv_modify_qp": fn(*mut ffi::ibv_qp, *mut ffi::ibv_qp_attr, c_int) -> c_int;
    /// Destroys it. Neither side accesses memory by it any more when this returns.
    destroy_qp = c"ibv_destroy_qp": fn(*mut ffi::ibv_qp) -> c_int;
    /// Takes an asynchronous event of a device; waits for one unless its descriptor does not block.
    get_async_event = c"ibv_get_async_event": fn(*mut ffi::ibv_context, *mut ffi::ibv_async_event) -> c_int;
    /// Acknowledges it.
    ack_async_event = c"ibv_ack_async_event": fn(*mut ffi::ibv_async_event);
    /// Keeps memory that is registered from then on out of children by fork. It may be repeated; fails with EINVAL if
    /// memory was registered before.
    fork_init = c"ibv_fork_init": fn() -> c_int;
}

/// The error of a function that returns `errno`, or a negative number and sets `errno`.
pub fn checked(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Tells what the library knows of forks. Since version 35 of rdma-core.
const IS_FORK_INITIALIZED: &CStr = c"ibv_is_fork_initialized";

/// A loaded libibverbs.
pub struct Library {
    functions: Functions,
    /// Why registered memory is not safe if this process forks.
    fork_error: Option<io::Error>,
    _library: Option<SharedLibrary>,
}

impl std::ops::Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Library {
    /// Loads the library of the system.
    pub fn load() -> Result<Arc<Self>> {
        Self::open(NAME)
    }

    /// Loads the library with this name or path.
    pub fn open(name: &str) -> Result<Arc<Self>> {
        let unsupported = |text| Error::new(ErrorKind::Unsupported, text);
        let library = SharedLibrary::open(name).map_err(|why| {
            unsupported(format!(
                "the transport ibverbs needs {name}, which cannot be loaded: {why} (Debian: libibverbs1 and ibverbs-providers)"
            ))
        })?;
        let functions = Functions::find(&library).map_err(|missing| {
            unsupported(format!(
                "the transport ibverbs cannot use {name}: it has no function {}; rdma-core 32 or later has it",
                missing.to_string_lossy()
            ))
        })?;
        let fork_error = prepare_for_forks(&library, &functions).err();
        Ok(Arc::new(Self { functions, fork_error, _library: Some(library) }))
    }

    /// Why a fork may move registered memory to the child, so that this process does not see any more what adapters
    /// write: another part of the program had registered memory before, and this kernel does not copy such memory for a
    /// child.
    pub fn fork_error(&self) -> Option<&io::Error> {
        self.fork_error.as_ref()
    }

    /// A table of other functions in place of the library's.
    #[cfg(test)]
    pub fn of(functions: Functions) -> Arc<Self> {
        Arc::new(Self { functions, fork_error: None, _library: None })
    }
}

/// Keeps registered memory out of children by fork, unless the kernel copies it for them, or the program has asked for
/// it already.
fn prepare_for_forks(library: &SharedLibrary, functions: &Functions) -> io::Result<()> {
    let status = library.symbol(IS_FORK_INITIALIZED).map(|address| {
        // SAFETY: the function with this name has this type, and no preconditions.
        unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> ffi::ibv_fork_status>(address.as_ptr())()
        }
    });
    match status {
        Some(ffi::IBV_FORK_UNNEEDED | ffi::IBV_FORK_ENABLED) => Ok(()),
        // SAFETY: no memory is being registered here, and others may do so meanwhile.
        _ => checked(unsafe { (functions.fork_init)() }),
    }
}

/// Posts a list of work requests to the send queue of `qp`; fails with `errno`, and then `bad` is the first that was
/// not posted.
///
/// # Safety
/// `qp` exists and was created by the library, and the list obeys the rules of `ibv_post_send`.
pub unsafe fn post_send(qp: *mut ffi::ibv_qp, list: *mut ffi::ibv_send_wr, bad: *mut *mut ffi::ibv_send_wr) -> c_int {
    // SAFETY: a queue pair has a context, whose table has this function.
    unsafe { (*(*qp).context).ops.post_send.map_or(libc::ENOSYS, |post| post(qp, list, bad)) }
}

/// Posts a list of work requests to the receive queue of `qp`, as [`post_send`].
///
/// # Safety
/// `qp` exists and was created by the library, and the list obeys the rules of `ibv_post_recv`.
pub unsafe fn post_recv(qp: *mut ffi::ibv_qp, list: *mut ffi::ibv_recv_wr, bad: *mut *mut ffi::ibv_recv_wr) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*qp).context).ops.post_recv.map_or(libc::ENOSYS, |post| post(qp, list, bad)) }
}

/// Takes up to `into.len()` completions of `cq`; returns their number, or a negative one if the queue is broken.
///
/// # Safety
/// `cq` exists and was created by the library.
pub unsafe fn poll_cq(cq: *mut ffi::ibv_cq, into: &mut [ffi::ibv_wc]) -> c_int {
    // SAFETY: as above; `into` has room for so many.
    unsafe {
        (*(*cq).context).ops.poll_cq.map_or(-libc::ENOSYS, |poll| poll(cq, into.len() as c_int, into.as_mut_ptr()))
    }
}

/// Asks for an event on the queue's channel when the next completion is added. Returns 0 or `errno`.
///
/// # Safety
/// `cq` exists and was created by the library.
pub unsafe fn req_notify_cq(cq: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(libc::ENOSYS, |notify| notify(cq, 0)) }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn refused(name: &str) -> String {
        let error = Library::open(name).err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.message().to_owned()
    }

    #[test]
    fn the_error_for_a_library_that_is_missing_says_what_to_install() {
        let text = refused("libibverbs_of_nobody.so.1");
        assert!(
            text.starts_with("the transport ibverbs needs libibverbs_of_nobody.so.1, which cannot be loaded: "),
            "{text}"
        );
        assert!(text.ends_with("(Debian: libibverbs1 and ibverbs-providers)"), "{text}");
    }

    /// Makes a library with these functions, and nothing in them.
    fn compile(path: &std::path::Path, functions: &[&str]) {
        compile_with(path, functions, "");
    }

    /// Makes a library with these functions and more `source`.
    fn compile_with(path: &std::path::Path, functions: &[&str], source: &str) {
        let empty = functions.iter().map(|name| format!("void {name}(void) {{}}\n"));
        let source: String = empty.chain([source.to_owned()]).collect();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(path).stdin(Stdio::piped());
        let mut compiler = compiler.spawn().expect("a C compiler");
        std::io::Write::write_all(&mut compiler.stdin.take().expect("it is piped"), source.as_bytes()).unwrap();
        assert!(compiler.wait().unwrap().success());
    }

    #[test]
    fn the_error_for_a_library_that_is_too_old_names_the_function() {
        let folder = tempfile::tempdir().unwrap();
        // The library has the first function that is looked up, and lacks the second.
        let path = folder.path().join("libibverbs.so.1");
        compile(&path, &["ibv_get_device_list"]);
        let path = path.to_str().unwrap();
        let text = refused(path);
        assert!(text.starts_with(&format!("the transport ibverbs cannot use {path}: ")), "{text}");
        assert!(text.ends_with("it has no function ibv_free_device_list; rdma-core 32 or later has it"), "{text}");
    }

    #[test]
    fn registered_memory_is_kept_out_of_children_unless_the_kernel_copies_it() {
        let folder = tempfile::tempdir().unwrap();
        let others: Vec<_> =
            NAMES.iter().map(|name| name.to_str().unwrap()).filter(|name| *name != "ibv_fork_init").collect();
        // What the library says if it can, and whether it must then be asked.
        let (disabled, enabled, unneeded) = (ffi::IBV_FORK_DISABLED, ffi::IBV_FORK_ENABLED, ffi::IBV_FORK_UNNEEDED);
        let cases = [(None, true), (Some(disabled), true), (Some(enabled), false), (Some(unneeded), false)];
        for (index, (status, is_called)) in cases.into_iter().enumerate() {
            let says = status.map(|status| format!("int ibv_is_fork_initialized(void) {{ return {status}; }}\n"));
            let path = folder.path().join(format!("lib{index}.so"));
            let source =
                format!("int ibv_fork_init(void) {{ return {}; }}\n", libc::EINVAL) + &says.unwrap_or_default();
            compile_with(&path, &others, &source);
            let library = Library::open(path.to_str().unwrap()).unwrap();
            let error = library.fork_error().and_then(io::Error::raw_os_error);
            assert_eq!(error, is_called.then_some(libc::EINVAL), "{status:?}");
        }
    }

    /// What a library of rdma-core 31 lacks.
    #[test]
    fn the_function_that_tells_a_gids_type_is_required() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libibverbs.so.1");
        let all: Vec<_> = NAMES.iter().map(|name| name.to_str().unwrap()).collect();
        compile(&path, &all);
        assert!(Library::open(path.to_str().unwrap()).is_ok());
        let (older, without) =
            (folder.path().join("older.so"), all.iter().filter(|name| **name != "_ibv_query_gid_ex"));
        compile(&older, &without.copied().collect::<Vec<_>>());
        let text = refused(older.to_str().unwrap());
        assert!(text.ends_with("it has no function _ibv_query_gid_ex; rdma-core 32 or later has it"), "{text}");
    }
}

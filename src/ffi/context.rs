//! Contexts.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Arc;

use super::context_handle::ContextHandle;
use super::device::gloo_rs_device_t;
use super::enumeration::{known, number};
use super::error::{self, gloo_rs_error_t};
use super::guard::guard;
use super::handle::{self, Handle};
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::{GLOO_RS_OK, GLOO_RS_TIMEOUT_DEFAULT, gloo_rs_status_t};
use super::store::gloo_rs_store_t;
use super::types;
use crate::context::{Connect, Context, ContextOptions, Member};
use crate::environment;
use crate::error::{Error, ErrorKind, Result};
use crate::secret::JobToken;
use crate::transport;

/// A context: this process's membership, as one rank, in a group of ranks that communicate. Thread-safe. Collectives
/// that run at the same time need different tags, unless they are different collectives.
pub struct gloo_rs_context_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_context_t {
    type Inner = ContextHandle;
    const TAG: u32 = u32::from_ne_bytes(*b" ctx");
    const NAME: &'static str = "gloo_rs_context_t";
}

/// When a context connects to its peers.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_connect_t {
    /// To each peer on first use.
    GLOO_RS_CONNECT_LAZY = 0,
    /// To all peers, before gloo_rs_context_connect returns.
    GLOO_RS_CONNECT_FULL = 1,
}

pub use gloo_rs_connect_t::*;

/// Whether ranks compare their calls before each collective.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_check_calls_t {
    /// The environment variable GLOO_RS_CHECK_CALLS decides (1 or 0); off if it is not set.
    GLOO_RS_CHECK_CALLS_DEFAULT = 0,
    /// Ranks compare their calls.
    GLOO_RS_CHECK_CALLS_ON = 1,
    /// Ranks do not compare their calls.
    GLOO_RS_CHECK_CALLS_OFF = 2,
}

pub use gloo_rs_check_calls_t::*;

/// Options of a context. Initialise with gloo_rs_context_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_context_options_t {
    /// sizeof(gloo_rs_context_options_t).
    pub struct_size: usize,
    /// Timeout in milliseconds of operations whose call does not set one; GLOO_RS_TIMEOUT_DEFAULT for the value of the
    /// environment variable GLOO_RS_TIMEOUT, in seconds, or 30 s. Errors of operations that end by the default name the
    /// variable.
    pub timeout_ms: i64,
    /// GLOO_RS_CONNECT_LAZY (the default) or GLOO_RS_CONNECT_FULL.
    pub connect: MaybeUninit<gloo_rs_connect_t>,
    /// GLOO_RS_CHECK_CALLS_DEFAULT, _ON or _OFF; the same on all ranks. If on, ranks compare their calls before each
    /// collective. Calls that differ fail on every rank with GLOO_RS_ERROR_MISMATCH and a message that says which ranks
    /// call what; none of their data has been sent, and the context stays usable. Costs an allgather per call.
    pub check_calls: MaybeUninit<gloo_rs_check_calls_t>,
    /// Maximum size in bytes of a message of a collective; 0 for the default, 1 MiB. The same on all ranks.
    pub max_segment_bytes: usize,
    /// The job's token: ranks connect only to ranks with the same token. NULL for the value of the environment variable
    /// GLOO_RS_TOKEN; empty for none. Copied.
    pub token: *const c_char,
    /// Source of the constants by which `auto` selects algorithms: the path of a tuning file (from `gloo-rs tune`);
    /// `measure`, to measure them in gloo_rs_context_connect, which takes a few milliseconds; or `default`, for the
    /// built-in ones. NULL for the value of the environment variable GLOO_RS_TUNING, or `measure` if it is not set.
    /// Only the value on rank 0 counts. If the file cannot be read, gloo_rs_context_connect fails on every rank.
    /// Copied.
    pub tuning: *const c_char,
    /// If it is not 0, gloo_rs_alloc takes all pages of its memory at once. With 0, the default, a page is taken when
    /// it is first written, as with malloc. Taking them costs as much time as writing all of the memory, all of it
    /// counts as used from then on, and it lies on the NUMA node of the thread that allocates. In return no later write
    /// waits for a page.
    pub commit_memory: u64,
    /// How threads wait for other ranks: `poll`, until the wait ends; `sleep`, in the system, after 200 us; or `auto`:
    /// as `sleep`, but as long as a thread has its core to itself, it polls for up to 100 ms. A thread that polls takes
    /// processor time, gives way to other threads that want its core, and goes on some 10 us earlier. NULL for the
    /// `wait` of the device's options, or if that is NULL, too, the value of the environment variable GLOO_RS_WAIT;
    /// `auto` if it is not set. Each rank may have another value. Copied.
    pub wait: *const c_char,
    /// The beginning of the name of a file; the rank follows it. If a collective fails, the context writes its last
    /// collectives there, as gloo_rs_recorder_dump does: once, before the first call returns the failure. NULL for the
    /// value of the environment variable GLOO_RS_RECORDER; empty, or NULL if that is not set: nothing is written.
    /// Copied. Contexts of one rank that should not overwrite each other's file need different values.
    pub recorder: *const c_char,
    /// "ranks", "reproducible": allreduces, reduces and reduce_scatters whose options have no `order` have this. NULL:
    /// those whose own options say so. The same on all ranks. Copied.
    pub order: *const c_char,
}

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_context_options_t {
    const NAME: &'static str = "gloo_rs_context_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {
        self.timeout_ms = GLOO_RS_TIMEOUT_DEFAULT;
    }
}

/// # Safety
/// `token`, `tuning`, `wait`, `recorder` and `order` are NULL or strings.
unsafe fn to_rust(options: &gloo_rs_context_options_t) -> Result<ContextOptions> {
    let defaults = ContextOptions::default();
    // SAFETY: by the contract, `token` is NULL or a string.
    let token = unsafe { pointer::optional_secret(options.token) };
    // SAFETY: by the contract, `tuning` is NULL or a string.
    let tuning = unsafe { pointer::optional_text(options.tuning, "tuning") }?;
    // SAFETY: by the contract, `wait` is NULL or a string.
    let wait = unsafe { types::wait_mode(options.wait) }?;
    // SAFETY: by the contract, `recorder` is NULL or a string.
    let recorder = unsafe { pointer::optional_text(options.recorder, "recorder") }?;
    let timeout = pointer::timeout(options.timeout_ms)?;
    Ok(ContextOptions {
        timeout: timeout.map_or_else(environment::default_timeout, Ok)?,
        timeout_by_default: timeout.is_none(),
        // SAFETY: C initialised `connect`, or it has its default.
        connect: unsafe {
            let values = [(GLOO_RS_CONNECT_LAZY, Connect::Lazy), (GLOO_RS_CONNECT_FULL, Connect::Full)];
            known(options.connect, "connect", &values)
        }?,
        max_segment_bytes: match options.max_segment_bytes {
            0 => defaults.max_segment_bytes,
            bytes => bytes,
        },
        token: token.map(JobToken::new),
        // SAFETY: C initialised `check_calls`, or it has its default.
        check_calls: unsafe {
            let values = [
                (GLOO_RS_CHECK_CALLS_DEFAULT, None),
                (GLOO_RS_CHECK_CALLS_ON, Some(true)),
                (GLOO_RS_CHECK_CALLS_OFF, Some(false)),
            ];
            known(options.check_calls, "check_calls", &values)
        }?,
        tuning: tuning.map(str::to_owned),
        commit_memory: options.commit_memory != 0,
        wait,
        recorder: recorder.map(PathBuf::from),
        // SAFETY: by the contract, `order` is NULL or a string.
        order: unsafe { types::order(options.order) }?,
        agrees: defaults.agrees,
        version: defaults.version,
    })
}

/// Sets `*options` to defaults. `struct_size` is sizeof(gloo_rs_context_options_t); at most that many bytes are
/// written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_options_init(options: *mut gloo_rs_context_options_t, struct_size: usize) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// Creates the context of `rank` (0 to `size` - 1) in a group of `size` ranks, not yet connected; or, if both are -1, a
/// context without members, which gets them by gloo_rs_context_reconfigure. Until then its rank and size are -1, and
/// calls fail with GLOO_RS_ERROR_INVALID_OPERATION. `options` may be NULL for defaults. The context keeps the device
/// alive. The caller destroys `*context` with gloo_rs_context_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_create(
    device: *mut gloo_rs_device_t,
    rank: i32,
    size: i32,
    options: *const gloo_rs_context_options_t,
    context: *mut *mut gloo_rs_context_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_create", || {
        // SAFETY: the header demands that `device` is NULL or a live handle, `context` is NULL or valid for a write,
        // and `options` is NULL or valid for reads of its `struct_size` bytes.
        let (out, device, options) = unsafe {
            (Out::handle(context, "context")?, handle::get(device, "device")?, options::read_or_default(options)?)
        };
        if (rank, size) == (-1, -1) {
            // SAFETY: the header demands that `token`, `tuning`, `wait` and `recorder` are NULL or strings.
            let options = unsafe { to_rust(&options) }?;
            handle::create(ContextHandle::new(Member::without_context((**device).clone(), &options)?), out);
            return Ok(());
        }
        let ranks = usize::try_from(size).ok().filter(|size| *size > 0);
        let ranks = ranks.ok_or_else(|| Error::invalid(format!("size is {size}; a context has at least 1 rank")))?;
        let rank = pointer::rank(rank, ranks, "rank")?;
        // SAFETY: the header demands that `token`, `tuning`, `wait`, `recorder` and `order` are NULL or strings.
        let options = unsafe { to_rust(&options) }?;
        let created = Context::new((**device).clone(), rank, ranks, &options)?;
        handle::create(ContextHandle::new(created), out);
        Ok(())
    })
}

/// Connects the context: finds the other ranks through `store`, until the context's timeout expires. Every rank calls
/// it, with a store, or a prefix of one, that no other context has used. The store is used only during the call. Fails
/// with GLOO_RS_ERROR_TIMEOUT and a message that names the missing ranks; with GLOO_RS_ERROR_CLOSED if the context was
/// closed before, or within a second after another thread closes it, unless the store's server does not answer: then at
/// the timeout; and with GLOO_RS_ERROR_INVALID_OPERATION if the context was broken before, or if it has met other ranks
/// in an attempt that failed. If one rank fails, all ranks that have called it do, as soon as all have. After a timeout
/// it may be called again, also with the same store.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_connect(
    context: *mut gloo_rs_context_t,
    store: *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_connect", || {
        // SAFETY: the header demands that `context` and `store` are NULL or live handles.
        let (handle, store) = unsafe { (handle::get(context, "context")?, handle::get(store, "store")?) };
        handle.context()?.connect(store.store())
    })
}

/// An allgather of the caller: every rank passes `bytes` bytes at `input`, and `output` gets those of all ranks,
/// `bytes` bytes each, in the order of ranks. Returns GLOO_RS_OK or the number of an error. Must not throw or longjmp.
pub type gloo_rs_allgather_fn_t = Option<
    unsafe extern "C" fn(
        input: *const c_void,
        output: *mut c_void,
        bytes: usize,
        user: *mut c_void,
    ) -> MaybeUninit<gloo_rs_status_t>,
>;

/// Like gloo_rs_context_connect, without a store: the ranks exchange their addresses through `allgather`, which gets
/// `user` and must exchange between the same ranks, as MPI_Allgather or a function of a framework does. Every rank
/// calls `allgather` three times, on the calling thread, with the same `bytes` on all ranks and without holding a lock
/// of the library; a rank that cannot continue reports it through `allgather`, and the call then fails on all ranks. If
/// `allgather` fails, it is not called again, and this call fails with the status that it returned, or with
/// GLOO_RS_ERROR_CALLBACK if that is not the number of an error. Fails with GLOO_RS_ERROR_MISMATCH if the output does
/// not come from this job's ranks in their order. The library cannot interrupt `allgather`: it checks the context's
/// timeout, and whether the context was closed, after each call of it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_connect_oob(
    context: *mut gloo_rs_context_t,
    allgather: gloo_rs_allgather_fn_t,
    user: *mut c_void,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_connect_oob", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        let allgather = allgather.ok_or_else(|| Error::invalid("allgather is NULL"))?;
        handle.context()?.connect_oob(&mut |input, output| {
            // SAFETY: the function has this type. `input` is valid for reads of its length, `output` for writes of that
            // length for each rank, until the function returns; nobody else accesses `output`.
            let status = unsafe { allgather(input.as_ptr().cast(), output.as_mut_ptr().cast(), input.len(), user) };
            // SAFETY: the function returned it, so it is initialised; any number is accepted.
            let status = unsafe { number(status) };
            if status == GLOO_RS_OK as u32 {
                return Ok(());
            }
            let kind = ErrorKind::of_number(status).unwrap_or(ErrorKind::Callback);
            Err(Error::new(kind, format!("allgather returned status {status} ({kind:?})")))
        })
    })
}

/// Connects the context through `parent`, a connected context with the same rank and size, until the context's timeout
/// expires. Every rank calls it with the same `tag`, which distinguishes calls of this function on `parent` at the same
/// time; UINT64_MAX is refused. It may run at the same time as any collective on `parent`; fails with
/// GLOO_RS_ERROR_INVALID_OPERATION while another thread of this rank calls it with `parent` and `tag`. `parent` is used
/// only during the call.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_connect_from(
    context: *mut gloo_rs_context_t,
    parent: *mut gloo_rs_context_t,
    tag: u64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_connect_from", || {
        // SAFETY: the header demands that `context` and `parent` are NULL or live handles.
        let (handle, parent) = unsafe { (handle::get(context, "context")?, handle::get(parent, "parent")?) };
        handle.context()?.connect_from(parent.context()?, tag)
    })
}

/// The color of a rank that gets no new context.
pub const GLOO_RS_COLOR_UNDEFINED: i32 = -1;

/// Splits the connected `context` into new contexts, as MPI_Comm_split does: the ranks that pass the same `color` (0 or
/// more) form one, in the order of their `key`, and of their rank in `context` if keys are equal. A rank that passes
/// GLOO_RS_COLOR_UNDEFINED takes part and gets NULL. Collective over `context`: every rank makes its splits of
/// `context` in the same order. It may run at the same time as any collective; fails with
/// GLOO_RS_ERROR_INVALID_OPERATION while another split runs on `context` in this process.
///
/// The new context is connected. It has the device, timeout, options and tuning constants of `context`, and does not
/// need `context` afterwards. The caller destroys `*split` with gloo_rs_context_destroy; it is NULL on failure. If the
/// call fails on one rank before the exchange, it fails on all ranks, and `context` stays usable; a failure of the
/// exchange breaks `context`, as in every collective.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_split(
    context: *mut gloo_rs_context_t,
    color: i32,
    key: i32,
    split: *mut *mut gloo_rs_context_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_split", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `split` is NULL or valid for a write.
        let (out, handle) = unsafe { (Out::handle(split, "split")?, handle::get(context, "context")?) };
        let color = match color {
            GLOO_RS_COLOR_UNDEFINED => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                Error::invalid(format!("color is {color}; it must be GLOO_RS_COLOR_UNDEFINED, 0 or more"))
            })?),
        };
        if let Some(context) = handle.context()?.split(color, key)? {
            handle::create(ContextHandle::new(context), out);
        }
        Ok(())
    })
}

/// Sets `*rank` to this process's rank; -1 if the context has no members.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_rank(context: *const gloo_rs_context_t, rank: *mut i32) -> gloo_rs_status_t {
    guard("gloo_rs_context_rank", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `rank` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(rank, "rank")?) };
        out.set(handle.context().map_or(Ok(-1), |context| pointer::rank_to_c(context.rank()))?);
        Ok(())
    })
}

/// Sets `*size` to the number of ranks; -1 if the context has no members.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_size(context: *const gloo_rs_context_t, size: *mut i32) -> gloo_rs_status_t {
    guard("gloo_rs_context_size", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `size` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(size, "size")?) };
        out.set(handle.context().map_or(Ok(-1), |context| pointer::rank_to_c(context.size()))?);
        Ok(())
    })
}

/// Sets `*timeout_ms` to the timeout, in milliseconds, of operations whose call does not set one.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_timeout(
    context: *const gloo_rs_context_t,
    timeout_ms: *mut i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_timeout", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `timeout_ms` is NULL or valid for a
        // write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(timeout_ms, "timeout_ms")?) };
        out.set(pointer::timeout_to_c(handle.context()?.timeout()));
        Ok(())
    })
}

/// Sets the timeout, in milliseconds, of operations that start later and whose call does not set one;
/// GLOO_RS_TIMEOUT_DEFAULT for the value of the environment variable GLOO_RS_TIMEOUT, in seconds, or 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_set_timeout(
    context: *mut gloo_rs_context_t,
    timeout_ms: i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_set_timeout", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        match pointer::timeout(timeout_ms)? {
            Some(timeout) => handle.context()?.set_timeout(timeout),
            None => handle.context()?.set_default_timeout()?,
        }
        Ok(())
    })
}

/// Sets `*timeout_ms` to the timeout, in milliseconds, of starts and calls that name none: the value of the environment
/// variable GLOO_RS_TIMEOUT, or 30 s. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if the variable is not a number of
/// seconds.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_timeout_from_env(timeout_ms: *mut i64) -> gloo_rs_status_t {
    guard("gloo_rs_timeout_from_env", || {
        // SAFETY: the header demands that `timeout_ms` is NULL or valid for a write.
        let out = unsafe { Out::new(timeout_ms, "timeout_ms") }?;
        out.set(pointer::timeout_to_c(environment::default_timeout()?));
        Ok(())
    })
}

/// Reserves `n` slots for the caller's messages and sets `*slot` to the first. All ranks get the same slots if they
/// reserve the same numbers in the same order. Numbers start at 0, and slots that the program chose itself are not
/// skipped: a program that uses both kinds should take its own from another range, such as from 1 << 63 on. The slots
/// of collectives are separate from both.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_next_slot(
    context: *mut gloo_rs_context_t,
    n: u32,
    slot: *mut u64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_next_slot", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `slot` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(slot, "slot")?) };
        out.set(handle.context()?.next_slot(n));
        Ok(())
    })
}

/// Sets `*shares` to whether `rank` runs on this host. The context must be connected.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_shares_host(
    context: *const gloo_rs_context_t,
    rank: i32,
    shares: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_shares_host", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `shares` is NULL or valid for a
        // write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(shares, "shares")?) };
        let context = handle.context()?;
        let rank = pointer::rank(rank, context.size(), "rank")?;
        out.set(context.shares_host(rank)?);
        Ok(())
    })
}

/// Sets `*broken` to whether the context can no longer run collectives, because one failed, a peer's context failed, or
/// the context was closed. If so, the reason becomes the calling thread's last error, as if a call had failed with it.
/// If `error` is not NULL, `*error` is filled as by gloo_rs_last_error: with the reason, or with "no failure". Destroy
/// a broken context; a new one can connect over the same store, under a prefix that was not used before.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_broken(
    context: *const gloo_rs_context_t,
    broken: *mut bool,
    error: *mut gloo_rs_error_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_broken", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `broken` is NULL or valid for a
        // write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(broken, "broken")?) };
        transport::check_process(handle.member.device().as_ref())?;
        let why = handle.member.broken();
        let told = why.as_ref().map_or(error::NONE, |why| {
            error::remember("gloo_rs_context_broken", why);
            error::last()
        });
        if !error.is_null() {
            // SAFETY: the header demands that `error` is NULL or valid for reads and writes of its `struct_size` bytes.
            unsafe { options::fill(error, "error", told) }?;
        }
        out.set(why.is_some());
        Ok(())
    })
}

/// Closes every connection. Calls that wait for a peer, in any thread, and later operations fail with
/// GLOO_RS_ERROR_CLOSED. Closing again has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_close(context: *mut gloo_rs_context_t) -> gloo_rs_status_t {
    guard("gloo_rs_context_close", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        unsafe { handle::get(context, "context") }?.member.close();
        Ok(())
    })
}

/// Releases the caller's reference to the context. If other threads wait in it (in a collective, in connecting, or in
/// one of its pairs, buffers or requests), it is closed as by gloo_rs_context_close, and their calls return. Otherwise
/// its pairs, buffers and requests stay usable until they are destroyed, and the connections close with the last of
/// them. No other thread may begin a call on the handle meanwhile. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_destroy(context: *mut gloo_rs_context_t) {
    guard("gloo_rs_context_destroy", || {
        // SAFETY: the header demands that `context` is NULL or a live handle on which no other call begins.
        if let Some(handle) = unsafe { handle::take(context, "context") }? {
            let calls_run = Arc::strong_count(&handle) > 1;
            if calls_run || handle.waits.count() > 0 {
                handle.member.close();
            }
        }
        Ok(())
    });
}

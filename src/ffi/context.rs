//! Contexts.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::device::gloo_rs_device_t;
use super::enumeration::{known, number};
use super::guard::guard;
use super::handle::{self, Handle};
use super::last_error::{self, gloo_rs_error_t};
use super::options::{self, Options};
use super::pointer::{self, Out};
use super::status::{GLOO_RS_OK, GLOO_RS_TIMEOUT_DEFAULT, gloo_rs_status_t};
use super::store::gloo_rs_store_t;
use crate::context::{Connect, Context, ContextOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::secret::JobToken;
use crate::transport;

/// One process's membership in a group of ranks. Safe to use from several threads; collectives that run at the same time
/// need different tags, unless they are different collectives.
pub struct gloo_rs_context_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_context_t {
    type Inner = ContextHandle;
    const TAG: u64 = u64::from_ne_bytes(*b"gloo ctx");
    const NAME: &'static str = "gloo_rs_context_t";
}

/// What a context's handle stands for. Calls on the handle hold it through an `Arc` while they run.
pub struct ContextHandle {
    pub(super) context: Arc<Context>,
    pub(super) waits: Waits,
}

/// Counts the calls that wait in the pairs and buffers of one context.
#[derive(Clone, Default)]
pub struct Waits(Arc<AtomicUsize>);

impl Waits {
    /// Runs `wait` as one of them.
    pub(super) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        struct Entered<'a>(&'a AtomicUsize);
        impl Drop for Entered<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Release);
            }
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        let _entered = Entered(&self.0);
        wait()
    }
}

/// When connections are made.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_connect_t {
    /// On first use.
    GLOO_RS_CONNECT_LAZY = 0,
    /// To all ranks, before gloo_rs_context_connect returns.
    GLOO_RS_CONNECT_FULL = 1,
}

pub use gloo_rs_connect_t::*;

/// Whether ranks compare their calls before each collective.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_check_calls_t {
    /// As the environment variable GLOO_RS_CHECK_CALLS says (1 or 0), else off.
    GLOO_RS_CHECK_CALLS_DEFAULT = 0,
    /// They do.
    GLOO_RS_CHECK_CALLS_ON = 1,
    /// They do not.
    GLOO_RS_CHECK_CALLS_OFF = 2,
}

pub use gloo_rs_check_calls_t::*;

/// How a context behaves. Set up by gloo_rs_context_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_context_options_t {
    /// sizeof(gloo_rs_context_options_t).
    pub struct_size: usize,
    /// Milliseconds that any one operation may take, if the call does not say otherwise; GLOO_RS_TIMEOUT_DEFAULT for 30 s.
    pub timeout_ms: i64,
    /// GLOO_RS_CONNECT_LAZY (the default) or GLOO_RS_CONNECT_FULL.
    pub connect: MaybeUninit<gloo_rs_connect_t>,
    /// GLOO_RS_CHECK_CALLS_DEFAULT, _ON or _OFF; the same on all ranks. On, ranks compare their calls before each
    /// collective: calls that differ fail on every rank with GLOO_RS_ERROR_MISMATCH and a message that says which ranks call
    /// what, nothing has been sent or received of them, and the context stays usable. It costs an allgather per call.
    pub check_calls: MaybeUninit<gloo_rs_check_calls_t>,
    /// Largest piece, in bytes, that a collective sends as one message; 0 for the default, 1 MiB. The same on all ranks.
    pub max_segment_bytes: usize,
    /// The job's token: every rank must have the same to be let in. NULL for what GLOO_RS_TOKEN holds in the environment;
    /// empty for none. Copied.
    pub token: *const c_char,
    /// Where the constants come from by which `auto` chooses algorithms: the path of a tuning file (from `gloo-rs tune`);
    /// `measure`, to measure them in gloo_rs_context_connect, in a few milliseconds; or `default`, for built-in ones. NULL for
    /// what GLOO_RS_TUNING holds in the environment, else `measure`. Only rank 0's counts. A file that cannot be read fails
    /// gloo_rs_context_connect on every rank. Copied.
    pub tuning: *const c_char,
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
/// `token` and `tuning` are NULL or strings.
unsafe fn to_rust(options: &gloo_rs_context_options_t) -> Result<ContextOptions> {
    let defaults = ContextOptions::default();
    // SAFETY: the same contract.
    let token = unsafe { pointer::optional_secret(options.token) };
    // SAFETY: likewise.
    let tuning = unsafe { pointer::optional_text(options.tuning, "tuning") }?;
    Ok(ContextOptions {
        timeout: pointer::timeout(options.timeout_ms)?.unwrap_or(defaults.timeout),
        // SAFETY: the caller's number, or the default.
        connect: unsafe {
            let values = [(GLOO_RS_CONNECT_LAZY, Connect::Lazy), (GLOO_RS_CONNECT_FULL, Connect::Full)];
            known(options.connect, "connect", &values)
        }?,
        max_segment_bytes: match options.max_segment_bytes {
            0 => defaults.max_segment_bytes,
            bytes => bytes,
        },
        token: token.map(JobToken::new),
        // SAFETY: as above.
        check_calls: unsafe {
            let values = [
                (GLOO_RS_CHECK_CALLS_DEFAULT, None),
                (GLOO_RS_CHECK_CALLS_ON, Some(true)),
                (GLOO_RS_CHECK_CALLS_OFF, Some(false)),
            ];
            known(options.check_calls, "check_calls", &values)
        }?,
        tuning: tuning.map(str::to_owned),
    })
}

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_context_options_t), with defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_options_init(options: *mut gloo_rs_context_options_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(options, struct_size) }
}

/// Makes the context of `rank` (0 to `size` - 1) in a group of `size`, not yet connected. `options` may be NULL for
/// defaults. The context keeps `device` alive. The caller owns the result and ends it with gloo_rs_context_destroy; on
/// failure `*context` is NULL.
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
        // SAFETY: the header's rules for pointers.
        let (out, device, options) = unsafe {
            (Out::handle(context, "context")?, handle::get(device, "device")?, options::read_or_default(options)?)
        };
        let ranks = usize::try_from(size).ok().filter(|size| *size > 0);
        let ranks = ranks.ok_or_else(|| Error::invalid(format!("size is {size}; a context has at least 1 rank")))?;
        let rank = pointer::rank(rank, ranks, "rank")?;
        // SAFETY: as above, for the string in the options.
        let options = unsafe { to_rust(&options) }?;
        let created = Context::new((**device).clone(), rank, ranks, &options)?;
        handle::create(ContextHandle { context: created, waits: Waits::default() }, out);
        Ok(())
    })
}

/// Finds the other ranks over `store`, until the context's timeout. Every rank calls it, with a store, or a prefix in one,
/// that no other context ever used. The store is needed during this call only. Fails with GLOO_RS_ERROR_TIMEOUT, naming
/// the ranks that did not come; with GLOO_RS_ERROR_CLOSED if the context was closed before, or within a second after it is
/// closed in another thread; and with GLOO_RS_ERROR_INVALID_OPERATION if it was broken before.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_connect(
    context: *mut gloo_rs_context_t,
    store: *mut gloo_rs_store_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_connect", || {
        // SAFETY: the header's rules for pointers.
        let (handle, store) = unsafe { (handle::get(context, "context")?, handle::get(store, "store")?) };
        handle.context.connect(store.store())
    })
}

/// An allgather of the caller's: every rank gives the `bytes` at `input`; `output` gets those of all ranks, `bytes` each, in the
/// order of ranks. Returns GLOO_RS_OK, or an error's number. It must not let exceptions out.
pub type gloo_rs_allgather_fn_t = Option<
    unsafe extern "C" fn(
        input: *const c_void,
        output: *mut c_void,
        bytes: usize,
        user: *mut c_void,
    ) -> MaybeUninit<gloo_rs_status_t>,
>;

/// As gloo_rs_context_connect, without a store: the ranks find each other by `allgather`, which exchanges between the same ranks
/// (MPI_Allgather, or a framework's own) and gets `user`. It is called on the calling thread, with no lock of the library held, and
/// twice on every rank: a rank that cannot go on says so by it, and all fail. `bytes` is the same on all ranks. If it fails it is
/// not called again, and this call fails with the status that it returned, or GLOO_RS_ERROR_CALLBACK where that is no error's
/// number. What it gives is checked; that which is not from this job's ranks in their order fails with GLOO_RS_ERROR_MISMATCH.
/// The library cannot end it: the context's timeout, and whether the context was closed, are looked at after each call of it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_connect_oob(
    context: *mut gloo_rs_context_t,
    allgather: gloo_rs_allgather_fn_t,
    user: *mut c_void,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_connect_oob", || {
        // SAFETY: the header's rules for pointers.
        let handle = unsafe { handle::get(context, "context") }?;
        let allgather = allgather.ok_or_else(|| Error::invalid("allgather is NULL"))?;
        handle.context.connect_oob(&mut |input, output| {
            // SAFETY: both are valid for the bytes that the comment of the type says, `input` once and `output` for every rank,
            // while the function runs, and nothing else writes to them.
            let status = unsafe { allgather(input.as_ptr().cast(), output.as_mut_ptr().cast(), input.len(), user) };
            // SAFETY: whatever number the function has returned.
            let status = unsafe { number(status) };
            if status == GLOO_RS_OK as u32 {
                return Ok(());
            }
            let kind = ErrorKind::of_number(status).unwrap_or(ErrorKind::Callback);
            Err(Error::new(kind, format!("the function returned status {status} ({kind:?})")))
        })
    })
}

/// Finds the other ranks over `parent`, a connected context with the same rank and size, until the context's timeout.
/// Every rank calls it, with the same `tag`, which no other call on `parent` may be using meanwhile. `parent` is needed
/// during this call only.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_connect_from(
    context: *mut gloo_rs_context_t,
    parent: *mut gloo_rs_context_t,
    tag: u64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_connect_from", || {
        // SAFETY: the header's rules for pointers.
        let (handle, parent) = unsafe { (handle::get(context, "context")?, handle::get(parent, "parent")?) };
        handle.context.connect_from(&parent.context, tag)
    })
}

/// As a color: this rank is to be in none of the new contexts.
pub const GLOO_RS_COLOR_UNDEFINED: i32 = -1;

/// Makes new contexts out of `context`, which is connected, as MPI_Comm_split does: the ranks that pass the same `color` (0 or more)
/// form one, in the order of their `key`s, and of their ranks in `context` where these are equal. A rank that passes
/// GLOO_RS_COLOR_UNDEFINED takes part, too, and gets NULL. Collective over `context`: every rank calls it, in the same order as its
/// other collectives; it may run beside any collective, and is refused with
/// GLOO_RS_ERROR_INVALID_OPERATION while another split runs on `context` in this process. The new context is connected. It has the
/// device, timeout and options of `context`, goes by the same measurements, and needs `context` no more. The caller owns it and
/// ends it with gloo_rs_context_destroy; on failure `*split` is NULL. A failure that one rank finds in itself all ranks report,
/// and `context` stays usable; one in the exchange breaks it, as with every collective.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_split(
    context: *mut gloo_rs_context_t,
    color: i32,
    key: i32,
    split: *mut *mut gloo_rs_context_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_split", || {
        // SAFETY: the header's rules for pointers.
        let (out, handle) = unsafe { (Out::handle(split, "split")?, handle::get(context, "context")?) };
        let color = match color {
            GLOO_RS_COLOR_UNDEFINED => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                Error::invalid(format!("color is {color}; it must be GLOO_RS_COLOR_UNDEFINED or not negative"))
            })?),
        };
        if let Some(context) = handle.context.split(color, key)? {
            handle::create(ContextHandle { context, waits: Waits::default() }, out);
        }
        Ok(())
    })
}

/// This process's rank.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_rank(context: *const gloo_rs_context_t, rank: *mut i32) -> gloo_rs_status_t {
    guard("gloo_rs_context_rank", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(rank, "rank")?) };
        out.set(pointer::rank_to_c(handle.context.rank())?);
        Ok(())
    })
}

/// How many ranks the group has.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_size(context: *const gloo_rs_context_t, size: *mut i32) -> gloo_rs_status_t {
    guard("gloo_rs_context_size", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(size, "size")?) };
        out.set(pointer::rank_to_c(handle.context.size())?);
        Ok(())
    })
}

/// Milliseconds that an operation may take, if the call does not say otherwise.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_timeout(
    context: *const gloo_rs_context_t,
    timeout_ms: *mut i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_timeout", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(timeout_ms, "timeout_ms")?) };
        out.set(pointer::timeout_to_c(handle.context.timeout()));
        Ok(())
    })
}

/// Sets that time for operations that begin later; GLOO_RS_TIMEOUT_DEFAULT for 30 s.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_set_timeout(
    context: *mut gloo_rs_context_t,
    timeout_ms: i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_set_timeout", || {
        // SAFETY: the header's rules for pointers.
        let handle = unsafe { handle::get(context, "context") }?;
        let timeout: Option<Duration> = pointer::timeout(timeout_ms)?;
        handle.context.set_timeout(timeout.unwrap_or(ContextOptions::default().timeout));
        Ok(())
    })
}

/// Reserves `n` slots for messages of the caller's own and sets `*slot` to the first. The same on all ranks, as long as all
/// reserve the same in the same order. It counts on from 0 and knows nothing of numbers that the program chose itself: who
/// uses both keeps its own apart, for example from 1 << 63 on. Collectives have slots of their own, which neither can meet.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_next_slot(
    context: *mut gloo_rs_context_t,
    n: u32,
    slot: *mut u64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_next_slot", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(slot, "slot")?) };
        out.set(handle.context.next_slot(n));
        Ok(())
    })
}

/// Whether `rank` runs on this host. Known once the context is connected.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_shares_host(
    context: *const gloo_rs_context_t,
    rank: i32,
    shares: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_shares_host", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(shares, "shares")?) };
        let rank = pointer::rank(rank, handle.context.size(), "rank")?;
        out.set(handle.context.shares_host(rank)?);
        Ok(())
    })
}

/// Sets `*broken` to whether collectives cannot run on the context any more, because one failed, a peer gave up, or it was
/// closed. Then why becomes the calling thread's last error, as if a call had just failed with it, and `*error`, if `error` is
/// not NULL, is filled as by gloo_rs_last_error; else `*error` says that nothing failed. A broken context is to be destroyed; a
/// new one may be connected over the same store, under a prefix not used before.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_broken(
    context: *const gloo_rs_context_t,
    broken: *mut bool,
    error: *mut gloo_rs_error_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_broken", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(broken, "broken")?) };
        transport::check_process(handle.context.device().as_ref())?;
        let why = handle.context.broken();
        let told = why.as_ref().map_or(last_error::NONE, |why| {
            last_error::remember("gloo_rs_context_broken", why);
            last_error::last()
        });
        if !error.is_null() {
            // SAFETY: not NULL here, and the header's rules for pointers.
            unsafe { options::fill(error, "error", told) }?;
        }
        out.set(why.is_some());
        Ok(())
    })
}

/// Ends every connection: what waits for a peer in any thread fails with GLOO_RS_ERROR_CLOSED, and so do later
/// operations. Closing twice is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_close(context: *mut gloo_rs_context_t) -> gloo_rs_status_t {
    guard("gloo_rs_context_close", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::get(context, "context") }?.context.close();
        Ok(())
    })
}

/// Ends the caller's hold on the context. If other threads wait in it, in a collective, in connecting, or in one of its
/// pairs or buffers, it is closed as by gloo_rs_context_close, and their calls return. Otherwise its pairs and buffers go on
/// working until they are destroyed, and the connections end with the last of them. No other thread
/// may be beginning a call on the handle. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_destroy(context: *mut gloo_rs_context_t) {
    guard("gloo_rs_context_destroy", || {
        // SAFETY: the header's rules for pointers.
        if let Some(handle) = unsafe { handle::take(context, "context") }? {
            let calls_run = Arc::strong_count(&handle) > 1;
            if calls_run || handle.waits.0.load(Ordering::Acquire) > 0 {
                handle.context.close();
            }
        }
        Ok(())
    });
}

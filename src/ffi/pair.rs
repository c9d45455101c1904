//! Pairs: the connection to one peer.

use std::ffi::c_void;

use super::context::gloo_rs_context_t;
use super::context_handle::Waits;
use super::guard::guard;
use super::handle::{self, Handle};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::context::Pair;

/// A pair: the connection to one peer, for contexts that the program connects itself and for bound buffers. It keeps
/// its context's connections alive. Thread-safe.
pub struct gloo_rs_pair_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_pair_t {
    type Inner = PairHandle;
    const TAG: u32 = u32::from_ne_bytes(*b"pair");
    const NAME: &'static str = "gloo_rs_pair_t";
}

/// The object behind a pair's handle.
pub struct PairHandle {
    pub(super) pair: Pair,
    pub(super) waits: Waits,
}

/// Creates the pair of `context` with `rank`, whether they are connected or not. The caller destroys `*pair` with
/// gloo_rs_pair_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_pair(
    context: *mut gloo_rs_context_t,
    rank: i32,
    pair: *mut *mut gloo_rs_pair_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_pair", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `pair` is NULL or valid for a write.
        let (out, handle) = unsafe { (Out::handle(pair, "pair")?, handle::get(context, "context")?) };
        let context = handle.shared()?;
        let rank = pointer::rank(rank, context.size(), "rank")?;
        handle::create(PairHandle { pair: context.pair(rank)?, waits: handle.waits.clone() }, out);
        Ok(())
    })
}

/// Sets `*rank` to the peer's rank.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_rank(pair: *const gloo_rs_pair_t, rank: *mut i32) -> gloo_rs_status_t {
    guard("gloo_rs_pair_rank", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle, and `rank` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(pair, "pair")?, Out::new(rank, "rank")?) };
        out.set(pointer::rank_to_c(handle.pair.rank())?);
        Ok(())
    })
}

/// Copies this side's address, which the peer must pass to gloo_rs_pair_connect, into `buffer` of `capacity` bytes. The
/// bytes are opaque; the program transfers them to the peer. `*needed` is set to their number, also if `capacity` is
/// too small, which fails with GLOO_RS_ERROR_INVALID_ARGUMENT. `buffer` or `needed`, but not both, may be NULL. If the
/// options of the device select no address and no context of it has connected over a store, it starts to listen, on an
/// address that other hosts can reach if there is one.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_address(
    pair: *const gloo_rs_pair_t,
    buffer: *mut c_void,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_address", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle, and `buffer` is NULL or valid for writes of
        // `capacity` bytes, `needed` NULL or valid for a write.
        unsafe {
            let handle = handle::get(pair, "pair")?;
            pointer::copy_out(&handle.pair.address()?, buffer, capacity, needed)
        }
    })
}

/// Connects to the peer, whose gloo_rs_pair_address gave the `bytes` bytes at `address`, until the context's timeout
/// expires. Both sides must call it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_connect(
    pair: *mut gloo_rs_pair_t,
    address: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_connect", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle, and `address` is NULL or valid for reads of
        // `bytes` bytes.
        let (handle, address) =
            unsafe { (handle::get(pair, "pair")?, pointer::slice(address.cast::<u8>(), bytes, "address")?) };
        handle.waits.during(|| handle.pair.connect(address))
    })
}

/// Closes this connection. Operations that wait on it fail. Closing again has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_close(pair: *mut gloo_rs_pair_t) -> gloo_rs_status_t {
    guard("gloo_rs_pair_close", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle.
        unsafe { handle::get(pair, "pair") }?.pair.close();
        Ok(())
    })
}

/// Sets `*connected` to whether the pair is connected.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_is_connected(
    pair: *const gloo_rs_pair_t,
    connected: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_is_connected", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle, and `connected` is NULL or valid for a
        // write.
        let (handle, out) = unsafe { (handle::get(pair, "pair")?, Out::new(connected, "connected")?) };
        out.set(handle.pair.is_connected());
        Ok(())
    })
}

/// Sets how threads wait if they wait for this pair only, from now on. `sync`: they sleep at once and do not poll
/// first. `busy_poll`: they poll and never sleep, whatever `sync` is. Neither, the default: as all other waits of the
/// context, which poll for a short time and then sleep. This applies to gloo_rs_pair_connect, to waits on the pair's
/// buffers, and to waits on an unbound buffer if all its receives (or all its sends, puts and gets) since it last had
/// none pending are with this peer. Other waits, and collectives, are not affected. If several threads wait on one
/// context, one of them polls for all, as long as any of them would.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_set_sync(
    pair: *mut gloo_rs_pair_t,
    sync: bool,
    busy_poll: bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_set_sync", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle.
        unsafe { handle::get(pair, "pair") }?.pair.set_sync(sync, busy_poll)
    })
}

/// Releases the caller's reference to the pair. The connection stays open as long as the context or a buffer uses it.
/// No other thread may begin a call on the handle meanwhile. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_destroy(pair: *mut gloo_rs_pair_t) {
    guard("gloo_rs_pair_destroy", || {
        // SAFETY: the header demands that `pair` is NULL or a live handle on which no other call begins.
        unsafe { handle::take(pair, "pair") }.map(drop)
    });
}

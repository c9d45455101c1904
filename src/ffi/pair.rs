//! Pairs: the connection to one peer.

use std::ffi::c_void;

use super::context::{Waits, gloo_rs_context_t};
use super::guard::guard;
use super::handle::{self, Handle};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::context::Pair;

/// The connection to one peer, for contexts that are connected by hand, and for bound buffers. Keeps its context's
/// connections alive. Safe to use from several threads.
pub struct gloo_rs_pair_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_pair_t {
    type Inner = PairHandle;
    const TAG: u64 = u64::from_ne_bytes(*b"gloopair");
    const NAME: &'static str = "gloo_rs_pair_t";
}

/// What a pair's handle stands for.
pub struct PairHandle {
    pub(super) pair: Pair,
    pub(super) waits: Waits,
}

/// The pair of `context` with `rank`, connected or not. The caller owns the result and ends it with gloo_rs_pair_destroy;
/// on failure `*pair` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_pair(
    context: *mut gloo_rs_context_t,
    rank: i32,
    pair: *mut *mut gloo_rs_pair_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_pair", || {
        // SAFETY: the header's rules for pointers.
        let (out, context) = unsafe { (Out::handle(pair, "pair")?, handle::get(context, "context")?) };
        let rank = pointer::rank(rank, context.context.size(), "rank")?;
        let pair = context.context.pair(rank)?;
        handle::create(PairHandle { pair, waits: context.waits.clone() }, out);
        Ok(())
    })
}

/// The peer's rank.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_rank(pair: *const gloo_rs_pair_t, rank: *mut i32) -> gloo_rs_status_t {
    guard("gloo_rs_pair_rank", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(pair, "pair")?, Out::new(rank, "rank")?) };
        out.set(pointer::rank_to_c(handle.pair.rank())?);
        Ok(())
    })
}

/// What the peer must pass to gloo_rs_pair_connect, to be brought there by the caller's own means: bytes without meaning to
/// the caller, copied into `buffer` of `capacity` bytes. `*needed` is set to their number; `buffer` may be NULL to ask for
/// that only, `needed` may be NULL otherwise. A device for which nothing was named listens, if no context of it has connected
/// over a store, at an address that other hosts can reach, if there is one.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_address(
    pair: *const gloo_rs_pair_t,
    buffer: *mut c_void,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_address", || {
        // SAFETY: the header's rules for pointers.
        unsafe {
            let handle = handle::get(pair, "pair")?;
            pointer::copy_out(&handle.pair.address()?, buffer, capacity, needed)
        }
    })
}

/// Connects, given the `bytes` that gloo_rs_pair_address returned on the peer, until the context's timeout. Both sides must
/// call it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_connect(
    pair: *mut gloo_rs_pair_t,
    address: *const c_void,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_connect", || {
        // SAFETY: the header's rules for pointers.
        let (handle, address) =
            unsafe { (handle::get(pair, "pair")?, pointer::slice(address.cast::<u8>(), bytes, "address")?) };
        handle.waits.during(|| handle.pair.connect(address))
    })
}

/// Ends this connection: what waits on it fails. Closing twice is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_close(pair: *mut gloo_rs_pair_t) -> gloo_rs_status_t {
    guard("gloo_rs_pair_close", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::get(pair, "pair") }?.pair.close();
        Ok(())
    })
}

/// Whether the connection stands.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_is_connected(
    pair: *const gloo_rs_pair_t,
    connected: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_is_connected", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(pair, "pair")?, Out::new(connected, "connected")?) };
        out.set(handle.pair.is_connected());
        Ok(())
    })
}

/// How threads wait that wait for this pair only, as of now. `sync`: they sleep in the system at once instead of polling
/// first. `busy_poll`: they poll and never sleep, whatever `sync` is. Neither, the default: as other waits of the context,
/// which poll for a moment and then sleep. That concerns gloo_rs_pair_connect, waits on the pair's buffers, and waits on an
/// unbound buffer whose receives (or sends, puts and gets) are all with this peer, counted from when it last had none under
/// way. Other waits, and collectives, go on as before. Where several threads wait on one context, one of them polls for all,
/// for as long as any of them would.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_set_sync(
    pair: *mut gloo_rs_pair_t,
    sync: bool,
    busy_poll: bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_set_sync", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::get(pair, "pair") }?.pair.set_sync(sync, busy_poll)
    })
}

/// Ends the caller's hold on the pair; the connection stays as long as the context or a buffer does. No other thread
/// may be beginning a call on the handle. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_destroy(pair: *mut gloo_rs_pair_t) {
    guard("gloo_rs_pair_destroy", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::take(pair, "pair") }.map(drop)
    });
}

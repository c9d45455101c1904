//! What has become of the connections that arrived at a device or at a store's server.

use super::device::gloo_rs_device_t;
use super::guard::guard;
use super::handle;
use super::options::{self, Options};
use super::status::gloo_rs_status_t;
use super::store::gloo_rs_store_t;
use crate::net::admission::ConnectionStatistics;

/// How many connections have arrived since the listener was created, by what became of them. Set up by
/// gloo_rs_connection_statistics_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_connection_statistics_t {
    /// sizeof(gloo_rs_connection_statistics_t).
    pub struct_size: usize,
    /// Proved that they belong to the job.
    pub accepted: u64,
    /// Spoke another protocol, or this one wrongly.
    pub foreign: u64,
    /// Spoke another version of the protocol.
    pub other_version: u64,
    /// Sought a context that is not here, or no longer.
    pub unknown_context: u64,
    /// Proved nothing: another token, a token on one side only, or a replayed or forged proof.
    pub unproven: u64,
    /// Ended in the middle of the handshake, or before it.
    pub incomplete: u64,
    /// Did not finish the handshake in time.
    pub timed_out: u64,
    /// Made room for newer ones while too many were in the handshake.
    pub crowded_out: u64,
}

// SAFETY: repr(C), a usize first, and integers only.
unsafe impl Options for gloo_rs_connection_statistics_t {
    const NAME: &'static str = "gloo_rs_connection_statistics_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

fn to_c(statistics: ConnectionStatistics) -> gloo_rs_connection_statistics_t {
    let ConnectionStatistics {
        accepted,
        foreign,
        other_version,
        unknown_context,
        unproven,
        incomplete,
        timed_out,
        crowded_out,
    } = statistics;
    gloo_rs_connection_statistics_t {
        struct_size: 0,
        accepted,
        foreign,
        other_version,
        unknown_context,
        unproven,
        incomplete,
        timed_out,
        crowded_out,
    }
}

/// Sets `struct_size`, which is to be sizeof(gloo_rs_connection_statistics_t), and all counts to 0. NULL is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_connection_statistics_init(
    statistics: *mut gloo_rs_connection_statistics_t,
    struct_size: usize,
) {
    // SAFETY: the caller vouches for `struct_size` bytes at `statistics`.
    unsafe { options::init(statistics, struct_size) }
}

/// What has become of the connections that arrived at `device`. At most `statistics->struct_size` bytes are written.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_connection_statistics(
    device: *const gloo_rs_device_t,
    statistics: *mut gloo_rs_connection_statistics_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_connection_statistics", || {
        // SAFETY: the header's rules for pointers.
        unsafe {
            let device = handle::get(device, "device")?;
            options::fill(statistics, "statistics", to_c(device.statistics()))
        }
    })
}

/// The same for the server of a store that this process serves over TCP, made by gloo_rs_store_create_tcp or
/// gloo_rs_store_create_tcp_with; others fail with GLOO_RS_ERROR_INVALID_OPERATION.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_connection_statistics(
    store: *const gloo_rs_store_t,
    statistics: *mut gloo_rs_connection_statistics_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_connection_statistics", || {
        // SAFETY: the header's rules for pointers.
        unsafe {
            let store = handle::get(store, "store")?;
            options::fill(statistics, "statistics", to_c(store.connection_statistics()?))
        }
    })
}

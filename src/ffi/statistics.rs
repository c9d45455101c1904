//! Statistics of incoming connections of devices and of stores' servers.

use super::device::gloo_rs_device_t;
use super::guard::guard;
use super::handle;
use super::options::{self, Options};
use super::status::gloo_rs_status_t;
use super::store::gloo_rs_store_t;
use crate::net::admission::ConnectionStatistics;

/// Numbers of incoming connections since the listener was created, by outcome. Initialise with
/// gloo_rs_connection_statistics_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_connection_statistics_t {
    /// sizeof(gloo_rs_connection_statistics_t).
    pub struct_size: usize,
    /// Connections that authenticated as part of the job.
    pub accepted: u64,
    /// Connections that used another protocol, or violated this one.
    pub foreign: u64,
    /// Connections that used another version of the protocol.
    pub other_version: u64,
    /// Connections for a context that does not exist here, or no longer.
    pub unknown_context: u64,
    /// Connections that failed authentication: another token, a token on one side only, or a replayed or forged proof.
    pub unproven: u64,
    /// Connections that ended before the handshake was complete, or that this process could not serve for lack of
    /// memory or descriptors.
    pub incomplete: u64,
    /// Connections that did not complete the handshake in time.
    pub timed_out: u64,
    /// Connections that were closed in favour of newer ones, because too many were in the handshake.
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

/// Sets `statistics->struct_size`, and all numbers to 0. `struct_size` is sizeof(gloo_rs_connection_statistics_t); at
/// most that many bytes are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_connection_statistics_init(
    statistics: *mut gloo_rs_connection_statistics_t,
    struct_size: usize,
) {
    // SAFETY: the header demands that `statistics` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(statistics, struct_size) }
}

/// Fills `*statistics` with the numbers of connections that arrived at `device`. At most `statistics->struct_size`
/// bytes are written.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_device_connection_statistics(
    device: *const gloo_rs_device_t,
    statistics: *mut gloo_rs_connection_statistics_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_device_connection_statistics", || {
        // SAFETY: the header demands that `device` is NULL or a live handle, and `statistics` is NULL or valid for
        // reads and writes of its `struct_size` bytes.
        unsafe {
            let device = handle::get(device, "device")?;
            options::fill(statistics, "statistics", to_c(device.statistics()))
        }
    })
}

/// Fills `*statistics` with the numbers of connections that arrived at the server of `store`. Fails with
/// GLOO_RS_ERROR_INVALID_OPERATION unless this process serves the store over TCP, from gloo_rs_store_create_tcp or
/// gloo_rs_store_create_tcp_with.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_store_connection_statistics(
    store: *const gloo_rs_store_t,
    statistics: *mut gloo_rs_connection_statistics_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_store_connection_statistics", || {
        // SAFETY: the header demands that `store` is NULL or a live handle, and `statistics` is NULL or valid for reads
        // and writes of its `struct_size` bytes.
        unsafe {
            let store = handle::get(store, "store")?;
            options::fill(statistics, "statistics", to_c(store.connection_statistics()?))
        }
    })
}

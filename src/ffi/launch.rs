//! A process's place in a launched job.

use super::guard::guard;
use super::pointer::{Out, rank_to_c};
use super::status::gloo_rs_status_t;
use super::store::{self, gloo_rs_store_t};
use crate::rendezvous::Launch;

/// Opens the store of a launched job and tells this process's rank and the number of ranks, from the environment as
/// `gloo-rs run` and other launchers set it: RANK and WORLD_SIZE, and GLOO_RS_STORE (a URL as for gloo_rs_store_create_url)
/// or MASTER_ADDR and MASTER_PORT, where rank 0 serves a TCP store. The others look for it until `timeout_ms`,
/// GLOO_RS_TIMEOUT_DEFAULT for 30 s. The caller owns the store and ends it with gloo_rs_store_destroy; on failure `*store`
/// is NULL. The environment must not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_launch_from_env(
    timeout_ms: i64,
    store: *mut *mut gloo_rs_store_t,
    rank: *mut i32,
    size: *mut i32,
) -> gloo_rs_status_t {
    guard("gloo_rs_launch_from_env", || {
        // SAFETY: the header's rules for pointers.
        let (out, rank, size) =
            unsafe { (Out::handle(store, "store")?, Out::new(rank, "rank")?, Out::new(size, "size")?) };
        let launch = Launch::from_environment(store::timeout(timeout_ms)?)?;
        rank.set(rank_to_c(launch.rank)?);
        size.set(rank_to_c(launch.size)?);
        store::create(launch.store, None, out);
        Ok(())
    })
}

//! The store, rank and size of a process in a launched job.

use super::guard::guard;
use super::pointer::{Out, rank_to_c};
use super::status::gloo_rs_status_t;
use super::store::{self, gloo_rs_store_t};
use crate::rendezvous::Launch;

/// Opens the store of a launched job, and sets `*rank` to this process's rank and `*size` to the number of ranks. Reads
/// the environment that the launcher sets: `gloo-rs run`, torchrun, mpirun of Open MPI, MPICH or Intel MPI, or Slurm's
/// srun. docs/launchers.md lists the variables and the store that each launcher gives. With every launcher,
/// GLOO_RS_STORE (a URL as for gloo_rs_store_create_url), or MASTER_ADDR and MASTER_PORT, where rank 0 serves a TCP
/// store, select the store.
///
/// Collective: every process of the job calls it once. The processes try to reach rank 0's store until `timeout_ms`
/// expires; GLOO_RS_TIMEOUT_DEFAULT is GLOO_RS_TIMEOUT or 30 s. The caller destroys `*store` with
/// gloo_rs_store_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_launch_from_env(
    timeout_ms: i64,
    store: *mut *mut gloo_rs_store_t,
    rank: *mut i32,
    size: *mut i32,
) -> gloo_rs_status_t {
    guard("gloo_rs_launch_from_env", || {
        // SAFETY: the header demands that `store`, `rank` and `size` are NULL or valid for a write.
        let (out, rank, size) =
            unsafe { (Out::handle(store, "store")?, Out::new(rank, "rank")?, Out::new(size, "size")?) };
        let launch = store::within(timeout_ms, Launch::from_environment)?;
        rank.set(rank_to_c(launch.rank)?);
        size.set(rank_to_c(launch.size)?);
        store::create(launch.store, None, out);
        Ok(())
    })
}

/// Sets `*local_rank` to this process's rank among the job's processes on this host, for example to select a GPU, and
/// `*local_size` to the number of these processes. Reads the same environment as gloo_rs_launch_from_env; a number that
/// the launcher does not set is -1. Opens no store, and may be called at any time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_launch_local_rank_from_env(
    local_rank: *mut i32,
    local_size: *mut i32,
) -> gloo_rs_status_t {
    guard("gloo_rs_launch_local_rank_from_env", || {
        // SAFETY: the header demands that `local_rank` and `local_size` are NULL or valid for a write.
        let (rank, size) = unsafe { (Out::new(local_rank, "local_rank")?, Out::new(local_size, "local_size")?) };
        let (found_rank, found_size) = Launch::local_from_environment()?;
        rank.set(found_rank.map_or(Ok(-1), rank_to_c)?);
        size.set(found_size.map_or(Ok(-1), rank_to_c)?);
        Ok(())
    })
}

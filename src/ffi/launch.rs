//! A process's place in a launched job.

use super::guard::guard;
use super::pointer::{Out, rank_to_c};
use super::status::gloo_rs_status_t;
use super::store::{self, gloo_rs_store_t};
use crate::rendezvous::Launch;

/// Opens the store of a launched job and tells this process's rank and the number of ranks, from the environment that
/// launchers set: `gloo-rs run`, torchrun, Open MPI's, MPICH's and Intel MPI's mpirun, Slurm's srun. docs/launchers.md says
/// which variables are read, and which store that gives. GLOO_RS_STORE (a URL as for gloo_rs_store_create_url), or
/// MASTER_ADDR and MASTER_PORT, where rank 0 serves a TCP store, name the store whatever the launcher.
///
/// Collective: every process of the job calls it, once. They look for rank 0's store until `timeout_ms`,
/// GLOO_RS_TIMEOUT_DEFAULT for 30 s. The caller owns the store and ends it with gloo_rs_store_destroy; on failure `*store`
/// is NULL. The environment must not change meanwhile.
#[must_use]
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

/// Tells this process's rank among those of its host, and how many of the job's processes run there: to choose a GPU, for
/// example. From the same environment as gloo_rs_launch_from_env; -1 where the launcher does not say. Opens nothing, and may
/// be called at any time. The environment must not change meanwhile.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_launch_local_rank_from_env(
    local_rank: *mut i32,
    local_size: *mut i32,
) -> gloo_rs_status_t {
    guard("gloo_rs_launch_local_rank_from_env", || {
        // SAFETY: the header's rules for pointers.
        let (rank, size) = unsafe { (Out::new(local_rank, "local_rank")?, Out::new(local_size, "local_size")?) };
        let (found_rank, found_size) = Launch::local_from_environment()?;
        rank.set(found_rank.map_or(Ok(-1), rank_to_c)?);
        size.set(found_size.map_or(Ok(-1), rank_to_c)?);
        Ok(())
    })
}

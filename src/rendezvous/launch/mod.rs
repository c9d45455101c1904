//! This process's place in a launched job, from the environment that launchers set.

mod nodes;
mod place;
mod pmi;
mod published;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::place::{Launcher, Place, Variables};
use super::support::{Backoff, Deadline, seconds};
use super::{InProcessStore, PrefixStore, Store, TcpStore, url};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickHasher;
use crate::types::Rank;

/// Ports for jobs whose launcher names none: below those that systems hand out by themselves.
const PORTS: std::ops::Range<u16> = 10_000..30_000;
/// What to do where a launcher's own means do not serve.
const NAME_A_STORE: &str = "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, or GLOO_RS_STORE to a \
                            store's URL, for all processes";

/// Which process of how many this is, and the store that all of them reach.
pub struct Launch {
    /// This process: `0..size`.
    pub rank: Rank,
    /// Processes of the job.
    pub size: usize,
    /// This process among those of its host, if the launcher says so.
    pub local_rank: Option<Rank>,
    /// Processes of the job on this host, if the launcher says so.
    pub local_size: Option<usize>,
    /// Reached by all of them.
    pub store: Arc<dyn Store>,
}

impl Launch {
    /// Reads the environment of this process. Rank and size are those of the first of these launchers that has set its
    /// variables; an empty variable counts as not set:
    ///
    /// | launcher | rank, size |
    /// |---|---|
    /// | `gloo-rs run`, torchrun, by hand | `RANK`, `WORLD_SIZE` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE`, where `MPI_LOCALNRANKS` is set too |
    /// | Slurm's srun | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`, where `SLURM_STEP_ID` is set too |
    /// | others with PMI | `PMI_RANK`, `PMI_SIZE` |
    ///
    /// The store is the first of these:
    ///
    /// | variables | store |
    /// |---|---|
    /// | `GLOO_RS_STORE` | that of the URL ([`url::open`]) |
    /// | `MASTER_ADDR`, `MASTER_PORT` | rank 0 serves a TCP store there; on another port if torchrun's agent has taken it |
    /// | none, one process | one of its own |
    /// | Open MPI's, one host | rank 0 serves a TCP store and writes its address to a file in `PMIX_SERVER_TMPDIR` |
    /// | `PMI_FD`, one host | rank 0 serves a TCP store on a port made of the launcher's process id |
    /// | Slurm's | rank 0 serves a TCP store on the first host of `SLURM_STEP_NODELIST`, on a port made of job and step |
    ///
    /// `timeout` is how long to look for rank 0's server. To be called once in a process, by all of the job's, since rank 0
    /// cannot serve twice at one address. Errors name variables and their values.
    pub fn from_environment(timeout: Duration) -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name), timeout)
    }

    /// The same with variables from elsewhere.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>, timeout: Duration) -> Result<Self> {
        let variables = Variables(&variable);
        let place = Place::find(&variables)?;
        let store = open_store(&place, &variables, timeout)?;
        let Place { rank, size, local_rank, local_size, .. } = place;
        Ok(Self { rank, size, local_rank, local_size, store })
    }

    /// Whether a launcher started this process: whether it has set one of the variables that tell its rank.
    pub fn is_launched() -> bool {
        Place::is_known(&Variables(&|name| std::env::var_os(name)))
    }

    /// This process's rank among those of its host, and how many they are; each if the launcher says so. Opens nothing.
    pub fn local_from_environment() -> Result<(Option<Rank>, Option<usize>)> {
        let place = Place::find(&Variables(&|name| std::env::var_os(name)))?;
        Ok((place.local_rank, place.local_size))
    }
}

fn open_store(place: &Place, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    if let Some(store) = variables.text("GLOO_RS_STORE")? {
        let open = |timeout| url::open(&store, place.rank, timeout);
        let opened = if store.starts_with("tcp://") { fresh(place.rank, timeout, open) } else { open(timeout) };
        return opened.map_err(|error| error.context("the environment variable GLOO_RS_STORE"));
    }
    if let Some(host) = variables.text("MASTER_ADDR")? {
        return at_master(&host, place, variables, timeout)
            .map_err(|error| error.context("the store of MASTER_ADDR and MASTER_PORT"));
    }
    if place.size == 1 {
        return Ok(InProcessStore::new());
    }
    let deadline = Deadline::after(timeout);
    match place.launcher {
        Launcher::Variables => Err(Error::invalid(format!(
            "neither of the environment variables GLOO_RS_STORE (tcp://host:port, file:///path) and MASTER_ADDR (with \
             MASTER_PORT) is set: where the {} processes of the job find each other",
            place.size
        ))),
        Launcher::OpenMpi => over_open_mpi(place, variables, &deadline),
        Launcher::Pmi => over_pmi(place, variables, timeout),
        Launcher::Slurm => over_slurm(place, variables, timeout),
    }
}

fn at_master(host: &str, place: &Place, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    let text = variables.needed("MASTER_PORT", "the port of rank 0's store at MASTER_ADDR")?;
    let port = text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        Error::invalid(format!("the environment variable MASTER_PORT={text:?} is not a port from 1 to 65535"))
    })?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // There, torchrun's agent serves a store of another kind.
    let taken = variables.text("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|value| value == "True");
    if !taken || place.launcher != Launcher::Variables {
        return open_tcp(host, port, place.rank, timeout);
    }
    let mut job = format!("torchrun-{port}");
    for name in ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"] {
        job += &format!("-{}", variables.text(name)?.unwrap_or_default());
    }
    at_job_port(&job, host, place.rank, timeout)
}

fn open_tcp(host: &str, port: u16, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    fresh(rank, timeout, |timeout| url::open_tcp(host, port, rank, timeout))
}

/// Rank 0's TCP store that `open` opens, in which nobody has been `rank` before: a process that has ended one program and
/// begun the next may still find the store that rank 0 serves in the first.
fn fresh(rank: Rank, timeout: Duration, open: impl Fn(Duration) -> Result<Arc<dyn Store>>) -> Result<Arc<dyn Store>> {
    let deadline = Deadline::after(timeout);
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
    loop {
        let store = open(deadline.remaining())?;
        if rank == 0 {
            return Ok(store);
        }
        let error = match store.add(&format!("gloo_rs/rank/{rank}"), 1) {
            Ok(1) => return Ok(store),
            Ok(_) => Error::new(
                ErrorKind::Timeout,
                format!(
                    "{}: another process has been rank {rank} there: two processes have the same rank, or rank 0 has not ended \
                     an earlier program",
                    store.describe()
                ),
            ),
            Err(error) if error.kind() == ErrorKind::ConnectionLost => error,
            Err(error) => return Err(error),
        };
        drop(store);
        if deadline.passed() {
            return Err(error.context(format_args!("after {}", seconds(deadline.elapsed()))));
        }
        backoff.sleep(&deadline);
    }
}

/// Rank 0's TCP store at a port that follows from the job's name. Another job's ranks that came to the same port would find
/// none of their keys there.
fn at_job_port(job: &str, host: &str, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    let mut hasher = QuickHasher::default();
    hasher.write(job.as_bytes());
    let port = PORTS.start + (hasher.finish() % PORTS.len() as u64) as u16;
    let store = open_tcp(host, port, rank, timeout)
        .map_err(|error| error.context(format_args!("the store of {job} ({NAME_A_STORE}, to choose another)")))?;
    Ok(Arc::new(PrefixStore::new(job, store)))
}

fn over_slurm(place: &Place, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    let job = variables.needed("SLURM_JOB_ID", "the number of Slurm's job")?;
    let step = variables.needed("SLURM_STEP_ID", "the number of the step that srun has made")?;
    let name = match variables.text("SLURM_STEP_NODELIST")? {
        Some(_) => "SLURM_STEP_NODELIST",
        None => "SLURM_JOB_NODELIST",
    };
    let hosts = variables.needed(name, &format!("the job's hosts; without it, {NAME_A_STORE}"))?;
    let host =
        nodes::first_host(&hosts).map_err(|error| error.context(format_args!("the environment variable {name}")))?;
    at_job_port(&format!("slurm-{job}.{step}"), &host, place.rank, timeout)
}

/// Refuses a job on several hosts under a launcher that tells the numbers of processes in these variables, but
/// nobody where rank 0 is.
fn on_one_host(place: &Place, size: &str, local_size: &str, tell: &str) -> Result<()> {
    if place.local_size == Some(place.size) {
        return Ok(());
    }
    let local = place.local_size.map_or("is not set".into(), |local| format!("is {local}"));
    Err(Error::invalid(format!(
        "{size} is {}, but {local_size} {local}: the job is on several hosts, and its launcher tells none where rank 0 is: \
         {NAME_A_STORE} ({tell})",
        place.size
    )))
}

fn over_pmi(place: &Place, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    on_one_host(place, "PMI_SIZE", "MPI_LOCALNRANKS", "mpiexec -genv MASTER_ADDR host -genv MASTER_PORT 29500 ...")?;
    let fd = variables.needed("PMI_FD", &format!("the launcher's socket; without it, {NAME_A_STORE}"))?;
    let launcher = pmi::launcher(&fd)?;
    at_job_port(&format!("pmi-{launcher}"), "127.0.0.1", place.rank, timeout)
}

fn over_open_mpi(place: &Place, variables: &Variables<'_>, deadline: &Deadline) -> Result<Arc<dyn Store>> {
    on_one_host(
        place,
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500 ...",
    )?;
    let session = variables
        .needed("PMIX_SERVER_TMPDIR", &format!("the folder of mpirun's session; without it, {NAME_A_STORE}"))?;
    let job = variables.needed("PMIX_NAMESPACE", &format!("the name of mpirun's job; without it, {NAME_A_STORE}"))?;
    // Slashes and the like are not in names that this makes.
    let name: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = Path::new(&session).join(format!("gloo_rs-{name}"));
    let turn = published::turn(&path, place.rank)?;
    let path = published::with_end(&path, &turn.to_string());
    if place.rank == 0 {
        let store = TcpStore::serve("127.0.0.1", 0)?;
        published::publish(&path, &store.describe())?;
        return Ok(Arc::new(store));
    }
    url::open(&published::look_up(&path, deadline)?, place.rank, deadline.remaining())
}

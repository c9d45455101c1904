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
use super::support::Deadline;
use super::{InProcessStore, PrefixStore, Store, TcpStore, url};
use crate::error::{Error, Result};
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
    /// | `PMI_FD` | rank 0 serves a TCP store and tells its address over PMI |
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
        return url::open(&store, place.rank, timeout)
            .map_err(|error| error.context("the environment variable GLOO_RS_STORE"));
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
        Launcher::Pmi => over_pmi(place, variables, &deadline),
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
        return url::open_tcp(host, port, place.rank, timeout);
    }
    let mut job = format!("torchrun-{port}");
    for name in ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"] {
        job += &format!("-{}", variables.text(name)?.unwrap_or_default());
    }
    at_job_port(&job, host, place.rank, timeout)
}

/// Rank 0's TCP store at a port that follows from the job's name. Another job's ranks that came to the same port would find
/// none of their keys there.
fn at_job_port(job: &str, host: &str, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    let mut hasher = QuickHasher::default();
    hasher.write(job.as_bytes());
    let port = PORTS.start + (hasher.finish() % PORTS.len() as u64) as u16;
    let store = url::open_tcp(host, port, rank, timeout)
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

fn over_pmi(place: &Place, variables: &Variables<'_>, deadline: &Deadline) -> Result<Arc<dyn Store>> {
    let fd = variables.needed("PMI_FD", &format!("the launcher's socket; without it, {NAME_A_STORE}"))?;
    let pmi = pmi::Pmi::new(&fd, deadline)?;
    if place.rank != 0 {
        let address = pmi.share("gloo_rs", None)?;
        return url::open(&address, place.rank, deadline.remaining());
    }
    let host = if place.local_size == Some(place.size) {
        "127.0.0.1".to_owned()
    } else {
        // As Hydra's list of hosts has it, or as the host calls itself.
        match variables.text("MPIR_CVAR_CH3_INTERFACE_HOSTNAME")? {
            Some(name) => name,
            None => host_name()?,
        }
    };
    let store = TcpStore::serve(&host, 0)?;
    pmi.share("gloo_rs", Some(&store.describe()))?;
    Ok(Arc::new(store))
}

fn over_open_mpi(place: &Place, variables: &Variables<'_>, deadline: &Deadline) -> Result<Arc<dyn Store>> {
    if place.local_size != Some(place.size) {
        let local = place.local_size.map_or("is not set".into(), |local| format!("is {local}"));
        return Err(Error::invalid(format!(
            "OMPI_COMM_WORLD_SIZE is {}, but OMPI_COMM_WORLD_LOCAL_SIZE {local}: the job is on several hosts, and Open MPI tells \
             none where rank 0 is: {NAME_A_STORE} (mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500 ...)",
            place.size
        )));
    }
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

fn host_name() -> Result<String> {
    let mut name = [0u8; 256];
    // SAFETY: the pointer and the length are those of `name`; its last byte stays zero.
    if unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0 {
        return Err(Error::io("cannot tell this host's name", &std::io::Error::last_os_error()));
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8(name[..end].to_vec())
        .map_err(|_| Error::invalid(format!("this host's name is not UTF-8; {NAME_A_STORE}")))
}

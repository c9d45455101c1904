//! Reads rank, size and store from the environment variables that launchers set.

mod nodes;
mod pmi;
mod position;
mod published;
#[cfg(test)]
mod tests;
mod variables;

use std::ffi::OsString;
use std::hash::Hasher;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::position::{JobPosition, Launcher};
use self::variables::Variables;
use super::support::{Backoff, Deadline, seconds};
use super::{InProcessStore, PrefixStore, Store, TcpStore, url};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickHasher;
use crate::net::host;
use crate::net::ports::{self, PORT_RANGE, PortRange};
use crate::sys;
use crate::types::Rank;

/// Ports for jobs whose launcher names none, unless [`PORT_RANGE`] does: below the range that systems assign to
/// outgoing connections.
const PORTS: std::ops::Range<u16> = 10_000..30_000;
/// How many of them a job tries.
const JOB_PORTS: usize = 3;
/// How many ports of a given range a job tries: other jobs' ranks listen there, too. If each takes the whole of
/// [`PORT_PATIENCE`], the last one's turn comes within the default timeout.
const RANGE_PORTS: usize = 12;
/// How long a server at one of these ports may take to answer before the next one is tried.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// What the user can do if the launcher does not provide a store.
const STORE_ADVICE: &str = "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, or GLOO_RS_STORE to a \
                            store's URL, for all processes";

/// The rank of this process, the number of ranks, and the store of the job.
pub struct Launch {
    /// Rank of this process: `0..size`.
    pub rank: Rank,
    /// Number of ranks of the job.
    pub size: usize,
    /// Rank of this process among those of its host, if the launcher sets it.
    pub local_rank: Option<Rank>,
    /// Number of ranks on this host, if the launcher sets it.
    pub local_size: Option<usize>,
    /// The store through which the ranks find each other.
    pub store: Arc<dyn Store>,
}

impl Launch {
    /// Reads the environment of this process. Rank and size are those of the first of these launchers whose variables
    /// are set; an empty variable counts as not set:
    ///
    /// | launcher | rank, size |
    /// |---|---|
    /// | `gloo-rs run`, torchrun, by hand | `RANK`, `WORLD_SIZE` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE`, where `MPI_LOCALNRANKS` is set too |
    /// | Slurm's srun | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`, where `SLURM_STEP_ID` is set too |
    /// | others with PMI | `PMI_RANK`, `PMI_SIZE` |
    ///
    /// The store is the first of these that applies:
    ///
    /// | variables | store |
    /// |---|---|
    /// | `GLOO_RS_STORE` | the store of the URL ([`url::open`]) |
    /// | `MASTER_ADDR`, `MASTER_PORT` | rank 0 serves a TCP store there; on another port if torchrun's agent uses that one |
    /// | none, one process | an in-process store |
    /// | Open MPI's, one host | rank 0 serves a TCP store and writes its address to a file in `PMIX_SERVER_TMPDIR` |
    /// | `PMI_FD`, one host | rank 0 serves a TCP store on a port computed from the launcher's process id, or on another if it is taken |
    /// | Slurm's | the same on the first host of `SLURM_STEP_NODELIST`, with a port computed from job and step |
    ///
    /// Other ranks try to connect to rank 0's server until `timeout`. Call this once in every process of the job: rank
    /// 0 cannot serve twice at one address. Errors name variables and their values.
    pub fn from_environment(timeout: Duration) -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name), timeout)
    }

    /// Like [`Launch::from_environment`], with variables from `variable`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>, timeout: Duration) -> Result<Self> {
        let variables = Variables(&variable);
        let position = JobPosition::find(&variables)?;
        let store = open_store(&position, &variables, timeout)?;
        let JobPosition { rank, size, local_rank, local_size, .. } = position;
        Ok(Self { rank, size, local_rank, local_size, store })
    }

    /// Whether a launcher started this process: whether a variable with its rank is set.
    pub fn is_launched() -> bool {
        JobPosition::is_known(&Variables(&|name| std::env::var_os(name)))
    }

    /// The rank of this process among those of its host, and their number; each if the launcher sets it. Opens no
    /// store.
    pub fn local_from_environment() -> Result<(Option<Rank>, Option<usize>)> {
        let position = JobPosition::find(&Variables(&|name| std::env::var_os(name)))?;
        Ok((position.local_rank, position.local_size))
    }
}

fn open_store(position: &JobPosition, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    if let Some(store) = variables.text("GLOO_RS_STORE")? {
        let open = |timeout| url::open(&store, position.rank, timeout);
        let opened =
            if store.starts_with("tcp://") { open_unused(position.rank, timeout, open) } else { open(timeout) };
        return opened.map_err(|error| error.context("the environment variable GLOO_RS_STORE"));
    }
    if let Some(host) = variables.text("MASTER_ADDR")? {
        return master_store(&host, position, variables, timeout)
            .map_err(|error| error.context("the store of MASTER_ADDR and MASTER_PORT"));
    }
    if position.size == 1 {
        return Ok(InProcessStore::new());
    }
    let deadline = Deadline::after(timeout);
    match position.launcher {
        Launcher::Variables => Err(Error::invalid(format!(
            "neither of the environment variables GLOO_RS_STORE (tcp://host:port, file:///path) and MASTER_ADDR (with \
             MASTER_PORT) is set: where the {} processes of the job find each other",
            position.size
        ))),
        Launcher::OpenMpi => open_mpi_store(position, variables, &deadline),
        Launcher::Pmi => pmi_store(position, variables, timeout),
        Launcher::Slurm => slurm_store(position, variables, timeout),
    }
}

fn master_store(
    host: &str,
    position: &JobPosition,
    variables: &Variables<'_>,
    timeout: Duration,
) -> Result<Arc<dyn Store>> {
    let (named, host) = (host, host::without_brackets(host));
    host::check(host).map_err(|why| {
        Error::invalid(format!("the environment variable MASTER_ADDR={named:?} is not a host's name or address: {why}"))
    })?;
    let text = variables.needed("MASTER_PORT", "the port of rank 0's store at MASTER_ADDR")?;
    let port = text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        Error::invalid(format!("the environment variable MASTER_PORT={text:?} is not a port from 1 to 65535"))
    })?;
    // Torchrun's agent serves its own kind of store on that port.
    let taken = variables.text("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|value| value == "True");
    if !taken || position.launcher != Launcher::Variables {
        return open_tcp(host, port, position.rank, timeout);
    }
    let mut job = format!("torchrun-{port}");
    for name in ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"] {
        job += &format!("-{}", variables.text(name)?.unwrap_or_default());
    }
    store_at_job_port(&job, host, position.rank, variables, timeout)
}

fn open_tcp(host: &str, port: u16, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    open_unused(rank, timeout, |timeout| url::open_tcp(host, port, rank, timeout))
}

/// Opens rank 0's TCP store by `open`, and checks that no process is `rank` in it. A process that runs a second program
/// after the first might otherwise connect to the store that rank 0 still serves in the first program. A process that
/// has died while others gather is replaced, once the server has seen its connection break.
fn open_unused(
    rank: Rank,
    timeout: Duration,
    open: impl Fn(Duration) -> Result<Arc<dyn Store>>,
) -> Result<Arc<dyn Store>> {
    let deadline = Deadline::after(timeout);
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
    loop {
        let store = open(deadline.remaining())?;
        if rank == 0 {
            return Ok(store);
        }
        let claimed = claim_rank(&*store, rank, &deadline);
        if claimed.is_err() {
            // The claim must not stand in the way of the next process.
            store.disclaim();
        }
        match claimed {
            Ok(()) => return Ok(store),
            Err(error) if error.kind() == ErrorKind::ConnectionLost && !deadline.passed() => backoff.sleep(&deadline),
            Err(error) => return Err(error.context(format_args!("after {}", seconds(deadline.elapsed())))),
        }
    }
}

/// Claims `rank` in the store, and waits until no other process that has claimed it before is left.
fn claim_rank(store: &dyn Store, rank: Rank, deadline: &Deadline) -> Result<()> {
    let own: [u8; 16] = sys::random().map_err(|error| Error::io("cannot get random bytes", &error))?;
    let key = format!("gloo_rs/rank/{rank}");
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
    store.claim_within(&key, &own, deadline.remaining())?;
    loop {
        if store.get(&key, deadline.remaining())?.starts_with(&own) {
            return Ok(());
        }
        if deadline.passed() {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!(
                    "{}: another process is rank {rank} there: two processes have the same rank, or rank 0 has not ended an \
                     earlier program",
                    store.describe()
                ),
            ));
        }
        backoff.sleep(deadline);
    }
}

/// Rank 0's TCP store on a port computed from the job's name, or on another one if that is taken. Keys have the name as
/// a prefix, and one key says that the server is the job's, so ranks of another job that gets the same port do not take
/// this store for theirs.
fn store_at_job_port(
    job: &str,
    host: &str,
    rank: Rank,
    variables: &Variables<'_>,
    timeout: Duration,
) -> Result<Arc<dyn Store>> {
    let range = PortRange::of_variable((variables.0)(PORT_RANGE))?;
    let (ports, mark) = (job_ports(job, range.as_ref()), format!("gloo_rs/job/{job}"));
    let store = if rank == 0 {
        serve_at_one_of(&ports, host, &mark)
    } else {
        open_unused(rank, timeout, |timeout| connect_at_one_of(&ports, host, &mark, timeout))
    };
    let of = range.map(|range| format!(", at ports of {range}")).unwrap_or_default();
    let store = store
        .map_err(|error| error.context(format_args!("the store of {job}{of} ({STORE_ADVICE}, to choose another)")))?;
    Ok(Arc::new(PrefixStore::new(job, store)))
}

/// The ports that a job tries, in this order. Different jobs rarely have one in common.
fn job_ports(job: &str, range: Option<&PortRange>) -> Vec<u16> {
    let number = |attempt: usize| {
        let mut hasher = QuickHasher::default();
        hasher.write(job.as_bytes());
        hasher.write_usize(attempt);
        hasher.finish()
    };
    match range {
        Some(range) => range.ports_from(number(0) as usize).take(RANGE_PORTS).collect(),
        None => (0..JOB_PORTS).map(|attempt| PORTS.start + (number(attempt) % PORTS.len() as u64) as u16).collect(),
    }
}

fn list_of(ports: &[u16]) -> String {
    ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

/// Serves at the first of `ports` that is free, and says by the key `mark` that this is the job's store.
fn serve_at_one_of(ports: &[u16], host: &str, mark: &str) -> Result<Arc<dyn Store>> {
    let mut taken = None;
    for port in ports {
        match TcpStore::serve(host, *port) {
            Ok(store) => {
                store.set(mark, b"")?;
                return Ok(Arc::new(store));
            }
            Err(error) if is_taken(&error) => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    let error = taken.unwrap_or_else(|| Error::invalid("a job without ports"));
    Err(error.context(format_args!("the ports {} of {host} are taken", list_of(ports))))
}

/// [`ports::is_taken`] of the system's error behind this one.
fn is_taken(error: &Error) -> bool {
    error.details().errno.is_some_and(|number| ports::is_taken(&io::Error::from_raw_os_error(number)))
}

/// Connects to the store with the key `mark` at one of `ports`, which are tried in turn until `timeout`.
fn connect_at_one_of(ports: &[u16], host: &str, mark: &str, timeout: Duration) -> Result<Arc<dyn Store>> {
    let deadline = Deadline::after(timeout);
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
    loop {
        let mut failures = Vec::new();
        for port in ports {
            match connect_if_marked(host, *port, mark, deadline.remaining().min(PORT_PATIENCE)) {
                Ok(store) => return Ok(Arc::new(store)),
                Err(error) if error.kind() == ErrorKind::InvalidArgument => return Err(error),
                Err(error) => failures.push(error),
            }
        }
        if deadline.passed() {
            // What another server has said tells more than a port without one.
            let said = failures.iter().position(|error| error.kind() == ErrorKind::Mismatch).unwrap_or(0);
            let waited = seconds(deadline.elapsed());
            let text = format!(
                "no store of this job at the ports {} of {host} after {waited}: {}",
                list_of(ports),
                failures[said]
            );
            return Err(Error::new(ErrorKind::Timeout, text).with_errno(failures[said].details().errno));
        }
        backoff.sleep(&deadline);
    }
}

fn connect_if_marked(host: &str, port: u16, mark: &str, patience: Duration) -> Result<TcpStore> {
    let store = TcpStore::connect_once(host, port, patience)?;
    match store.wait(&[mark], Duration::ZERO) {
        Ok(()) => Ok(store),
        Err(error) if error.kind() == ErrorKind::Timeout => {
            Err(Error::new(ErrorKind::Mismatch, format!("{}: it is the store of another job", store.describe())))
        }
        Err(error) => Err(error),
    }
}

fn slurm_store(position: &JobPosition, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    let job = variables.needed("SLURM_JOB_ID", "the number of Slurm's job")?;
    let step = variables.needed("SLURM_STEP_ID", "the number of the step that srun has made")?;
    let name = match variables.text("SLURM_STEP_NODELIST")? {
        Some(_) => "SLURM_STEP_NODELIST",
        None => "SLURM_JOB_NODELIST",
    };
    let hosts = variables.needed(name, &format!("the job's hosts; without it, {STORE_ADVICE}"))?;
    let first = nodes::first_host(&hosts).and_then(|host| match host::check(&host) {
        Ok(()) => Ok(host),
        Err(why) => Err(Error::invalid(format!("the first host of {hosts:?} cannot be one: {why}"))),
    });
    let host = first.map_err(|error| error.context(format_args!("the environment variable {name}")))?;
    nodes::check_rank_0_is_on(&host, name, position.rank, variables)?;
    store_at_job_port(&format!("slurm-{job}.{step}"), &host, position.rank, variables, timeout)
}

/// Fails if the job is on several hosts: the launcher sets the numbers of processes in the variables `size` and
/// `local_size`, but does not say on which host rank 0 is.
fn check_one_host(position: &JobPosition, size: &str, local_size: &str, example: &str) -> Result<()> {
    if position.local_size == Some(position.size) {
        return Ok(());
    }
    let local = position.local_size.map_or("is not set".into(), |local| format!("is {local}"));
    Err(Error::invalid(format!(
        "{size} is {}, but {local_size} {local}: the job is on several hosts, and its launcher does not say where rank 0 is: \
         {STORE_ADVICE} ({example})",
        position.size
    )))
}

fn pmi_store(position: &JobPosition, variables: &Variables<'_>, timeout: Duration) -> Result<Arc<dyn Store>> {
    check_one_host(
        position,
        "PMI_SIZE",
        "MPI_LOCALNRANKS",
        "mpiexec -genv MASTER_ADDR host -genv MASTER_PORT 29500 ...",
    )?;
    let fd = variables.needed("PMI_FD", &format!("the launcher's socket; without it, {STORE_ADVICE}"))?;
    let launcher = pmi::launcher(&fd)?;
    store_at_job_port(&format!("pmi-{launcher}"), "127.0.0.1", position.rank, variables, timeout)
}

fn open_mpi_store(position: &JobPosition, variables: &Variables<'_>, deadline: &Deadline) -> Result<Arc<dyn Store>> {
    check_one_host(
        position,
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500 ...",
    )?;
    let session = variables
        .needed("PMIX_SERVER_TMPDIR", &format!("the folder of mpirun's session; without it, {STORE_ADVICE}"))?;
    let job = variables.needed("PMIX_NAMESPACE", &format!("the name of mpirun's job; without it, {STORE_ADVICE}"))?;
    // Characters such as slashes do not occur in names made by this code.
    let name: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = Path::new(&session).join(format!("gloo_rs-{name}"));
    let program = published::program_number(&path, position.rank)?;
    let path = published::with_end(&path, &program.to_string());
    if position.rank == 0 {
        let store = TcpStore::serve("127.0.0.1", 0)?;
        published::publish(&path, &store.describe())?;
        return Ok(Arc::new(store));
    }
    url::open(&published::look_up(&path, deadline)?, position.rank, deadline.remaining())
}

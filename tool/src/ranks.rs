//! The ranks of a command that runs in several processes, which this program or a launcher has started.

use std::sync::Arc;
use std::time::Duration;

use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::environment::{self, RESTART_COUNT};
use gloo_rs::error::{Error, Result};
use gloo_rs::rendezvous::launch::Launch;
use gloo_rs::rendezvous::{PrefixStore, Store};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::transport::tcp::Transport;

use crate::Failure;
#[cfg(target_os = "linux")]
use crate::launcher::{self, job::Job};

/// Starts this program again for each rank, with the same arguments, and returns the exit status. `tls`: with
/// certificates for TLS.
#[cfg(target_os = "linux")]
pub fn start(ranks: usize, tls: bool) -> u8 {
    environment::unread().iter().for_each(|said| crate::say(said));
    let program = match std::env::current_exe() {
        Ok(program) => program.into_os_string(),
        Err(error) => return crate::fail(&format!("cannot find this program's file: {error}"), crate::FAILED),
    };
    let args = std::env::args_os().skip(1).collect();
    let job = Job::new(program, args, ranks).and_then(|mut job| {
        job.prefix = false;
        if tls { job.use_tls() } else { Ok(()) }.map(|()| job)
    });
    let launched = job.and_then(|job| launcher::launch(&job));
    launched.map_or_else(|error| crate::fail(&error.message, error.code), |ended| ended.code)
}

/// Prints that this system has no launcher.
#[cfg(not(target_os = "linux"))]
pub fn start(ranks: usize, _tls: bool) -> u8 {
    let message = format!(
        "ranks are started on Linux only: start this command {ranks} times, with RANK=0 and so on, WORLD_SIZE={ranks}, and \
         GLOO_RS_STORE=tcp://HOST:PORT in the environment"
    );
    crate::fail(&message, crate::FAILED)
}

/// A rank of the command: its connected context.
pub struct Member {
    pub context: Arc<Context>,
    pub store: Arc<dyn Store>,
}

/// The time limit for connecting and for calls: that of `--timeout`, else of GLOO_RS_TIMEOUT, else `default`.
pub fn timeout(option: Option<Duration>, default: Duration) -> Result<Duration, Failure> {
    let given = || environment::timeout_or(default).map_err(|error| error.to_string().into());
    option.map_or_else(given, Ok)
}

/// Returns this process's rank in the job that it was started for, which must have `ranks` ranks if the command line
/// gives a number.
pub fn launch(ranks: Option<u32>, timeout: Duration) -> Result<Launch, Failure> {
    let launch = Launch::from_environment(timeout).map_err(|error| error.to_string())?;
    // The variables that nothing reads were named by the launcher, if that is this tool's own.
    if launch.rank == 0 && std::env::var_os(RESTART_COUNT).is_none() {
        environment::unread().iter().for_each(|said| crate::say(said));
    }
    match ranks.filter(|&ranks| ranks as usize != launch.size) {
        Some(ranks) => {
            Err(Failure::usage(format!("--ranks is {ranks}, but the job that this is part of has {}", launch.size)))
        }
        None => Ok(launch),
    }
}

/// The exit status of a rank that failed; prints why. If the reader of the job's output has ended, that is why rank 0
/// and then the others failed, and they end silently as other programs do.
pub fn failed(failure: &Failure) -> u8 {
    if crate::unread() { crate::UNREAD } else { crate::fail(&failure.message, failure.code) }
}

/// The message for an error on this rank; the error may already name the rank.
pub fn says(rank: usize, error: &Error) -> String {
    let (own, text) = (format!("rank {rank}: "), error.to_string());
    if text.starts_with(&own) { text } else { own + &text }
}

/// The kinds of this rank's links.
pub fn transport(context: &Context) -> Result<&'static str, String> {
    let others = (0..context.size()).filter(|rank| *rank != context.rank());
    let shares = others.map(|rank| context.shares_memory(rank)).collect::<Result<Vec<_>, _>>();
    let shares = shares.map_err(|error| error.to_string())?;
    let other = context.device().transport();
    Ok(match (shares.contains(&true), shares.contains(&false)) {
        (true, false) => "shm",
        (true, true) => match other {
            "tls" => "shm,tls",
            "uv" => "shm,uv",
            "ibverbs" => "shm,ibverbs",
            _ => "shm,tcp",
        },
        (false, _) => other,
    })
}

/// [`transport`] for a reader, who also learns what makes shared memory slow.
pub fn transport_in_words(context: &Context) -> Result<String, String> {
    let reads = context.reads_memory().map_err(|error| error.to_string())?;
    let how = if reads == Some(false) { NO_SINGLE_COPY } else { "" };
    Ok(format!("{}{how}", transport(context)?))
}

/// What follows the name of a transport where processes cannot read each other's memory.
pub const NO_SINGLE_COPY: &str = " without reads of the peer's process";

impl Member {
    /// Connects to the other ranks.
    ///
    /// `shared_memory` and `transport` as in [`DeviceOptions`].
    pub fn join(
        launch: Launch,
        timeout: Duration,
        interface: Option<&str>,
        (shared_memory, transport): (Option<bool>, Option<Transport>),
    ) -> Result<Self, String> {
        let says = |error: Error| says(launch.rank, &error);
        let interface = interface.map(str::to_owned);
        let options = DeviceOptions { interface, shared_memory, transport, ..Default::default() };
        let device = Device::create(&options).map_err(says)?;
        let options = ContextOptions { timeout, ..Default::default() };
        let context = Context::new(device.clone(), launch.rank, launch.size, &options).map_err(says)?;
        context.connect(&*launch.store).map_err(says)?;
        Ok(Self { context, store: launch.store })
    }

    /// Returns this rank once more, with a device and a context whose links have `streams` connections. `name` differs
    /// between calls with one number.
    pub fn with_streams(&self, streams: u32, name: &str, interface: Option<&str>, timeout: Duration) -> Result<Self> {
        let interface = interface.map(str::to_owned);
        let device = Device::create(&DeviceOptions { interface, streams: Some(streams), ..Default::default() })?;
        let options = ContextOptions { timeout, ..Default::default() };
        let context = Context::new(device, self.context.rank(), self.context.size(), &options)?;
        let prefix = format!("gloo-rs-streams/{name}/{streams}");
        context.connect(&PrefixStore::new(prefix, self.store.clone()))?;
        Ok(Self { context, store: self.store.clone() })
    }
}

//! The device of a process: TCP, and the table of the transports beside it.

use std::sync::Arc;

#[cfg(all(feature = "ibverbs", target_os = "linux"))]
use super::ibverbs;
use super::{Provider, shm};
use crate::environment::{self, SHARED_MEMORY, TOP};
use crate::error::Result;
use crate::log::{self, Level, LogCallback};
use crate::net::stream::Transport;

pub use super::options::DeviceOptions;
pub use super::tcp::Device;

/// What makes a transport, if the device uses it.
type Make = fn(&DeviceOptions) -> Result<Option<Box<dyn Provider>>>;

/// The transports beside TCP. If several reach a peer, an earlier one makes the link.
const TRANSPORTS: &[Make] = &[
    shared_memory,
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    queue_pairs,
];

impl Device {
    /// Creates a device and starts its thread. Listens at once if the options name an address or an interface.
    pub fn create(options: &DeviceOptions) -> Result<Arc<Self>> {
        let log = log::or_environment(options.log.clone())?;
        environment::unread().iter().for_each(|said| say(log.as_ref(), Level::Warning, said));
        let transport = Some(Transport::choose(options.transport.as_ref())?);
        let shared_memory =
            options.shared_memory.map_or_else(|| environment::switch(SHARED_MEMORY), |on| Ok(Some(on)))?;
        let shared_memory = Some(shared_memory != Some(false));
        let monitor = options.monitor.map_or_else(|| environment::switch(TOP), |on| Ok(Some(on)))?;
        let options = DeviceOptions { log, transport, shared_memory, monitor, ..options.clone() };
        let tracers = shm::ptracer::choose(options.ptracer.as_deref())?;
        let made = TRANSPORTS.iter().filter_map(|make| make(&options).transpose());
        let device = Self::over(&options, made.collect::<Result<_>>()?)?;
        // Before any peer knows of this process, and so tries to read its memory.
        if let Some(said) = tracers.filter(|_| shared_memory == Some(true)).and_then(shm::ptracer::permit) {
            say(options.log.as_ref(), Level::Notice, &said);
        }
        Ok(device)
    }
}

fn shared_memory(options: &DeviceOptions) -> Result<Option<Box<dyn Provider>>> {
    Ok(if options.shared_memory == Some(true) { Some(Box::new(shm::Provider::default())) } else { None })
}

/// The ports of InfiniBand and RoCE, opened.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
fn queue_pairs(options: &DeviceOptions) -> Result<Option<Box<dyn Provider>>> {
    if options.transport != Some(Transport::Ibverbs) {
        return Ok(None);
    }
    let chosen = options.ibverbs.clone().unwrap_or_default().or_environment()?;
    let library = ibverbs::library::Library::load()?;
    let rails = ibverbs::choose(&library, &chosen)?;
    if let Some(error) = library.fork_error() {
        let text = format!(
            "this process must not fork: ibv_fork_init: {error}, since memory was registered before; set RDMAV_FORK_SAFE=1"
        );
        say(options.log.as_ref(), Level::Warning, &text);
    }
    for rail in &rails {
        say(options.log.as_ref(), Level::Notice, &format!("using {}", ibverbs::choice::summary(rail)));
    }
    Ok(Some(Box::new(ibverbs::Provider { rails, path: chosen.path() })))
}

fn say(log: Option<&LogCallback>, level: Level, text: &str) {
    if let Some(log) = log {
        log(level, text);
    }
}

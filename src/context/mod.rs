//! A context: one process's membership in a group of ranks.

mod agreements;
mod alloc;
mod bootstrap;
mod bound_buffer;
mod call;
mod callbacks;
mod check_calls;
mod claim;
mod counters;
mod digest;
mod exchange;
mod fused;
mod group;
mod handle;
mod lent;
mod measure;
mod member;
mod operation;
mod options;
mod outcome;
mod pair;
mod plain;
mod prepared;
mod queue;
mod queued;
mod reconfigure;
mod recorder;
mod remote_key;
mod request;
mod rounds;
mod run;
mod setup;
mod several;
mod share_counts;
mod shared;
mod shrink;
mod split;
mod staging;
#[cfg(test)]
mod tests;
mod timeout;
mod tuners;
pub(crate) mod tuning;
mod unbound_buffer;
mod versions;

pub use crate::engine::UserFunction;
pub use agreements::Agreed;
pub use bootstrap::AllgatherFunction;
pub use bound_buffer::BoundBuffer;
pub use call::{Call, Reduction};
#[cfg(test)]
pub(crate) use callbacks::pool_without_threads;
pub use callbacks::{call_back_buffer, call_back_request};
pub use counters::{ContextTotals, to_prometheus};
pub use group::Group;
pub use member::Member;
pub use options::{Connect, ContextOptions};
pub use pair::Pair;
pub use queue::Completions;
pub use queued::{Callback, Completion, CompletionKind};
pub use remote_key::RemoteKey;
pub use request::{HasRequest, Progressed, Request, not_yet};
pub use several::wait_for_several;
pub use unbound_buffer::{HasBuffer, UnboundBuffer};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::collective::Constants;
use crate::context::agreements::Agreements;
use crate::context::recorder::Dumps;
use crate::context::rounds::Rounds;
use crate::context::timeout::Timeout;
use crate::context::tuners::Tuners;
use crate::context::versions::Versions;
use crate::cuda::gpus::Gpus;
use crate::engine::cache::CallCache;
use crate::engine::plan::PlanCache;
use crate::engine::shared::Shared as SharedMemory;
use crate::engine::{Cores, Engine, Guard, Idle, Spin};
use crate::environment;
use crate::error::{self, Error, ErrorKind, Result};
use crate::messaging::Messenger;
use crate::net::monitor::Question;
use crate::reserve::check_room;
use crate::secret::JobToken;
use crate::transport::{self, Allocations, BackgroundProgress, Connections, Counters, Device};
use crate::tuner::overrides::Overrides;
use crate::types::{Rank, Slot};

/// The part of a context that the device's thread uses.
struct Shared {
    engine: Engine,
    device: Arc<dyn Device>,
    dumps: Dumps,
}

impl Shared {
    /// With `engine`, which `device` progresses while no thread waits.
    fn new(engine: Engine, device: &Arc<dyn Device>, dumps: Dumps) -> Result<Arc<Self>> {
        let shared = Arc::new(Self { engine, device: device.clone(), dumps });
        let driven: Arc<dyn BackgroundProgress> = shared.clone();
        let watch = {
            let guard = shared.engine.lock();
            device.clone().watch(guard.messenger.connections(), Arc::downgrade(&driven))?
        };
        shared.engine.set_watch(watch);
        // Peers may have connected before the watch was set.
        shared.arrived();
        Ok(shared)
    }
}

impl BackgroundProgress for Shared {
    fn drive(&self) {
        self.engine.serve();
    }

    fn visits(&self) -> usize {
        self.engine.take_visits()
    }

    fn tick(&self) {
        self.engine.tick();
    }

    fn reminded(&self) {
        self.engine.reminded();
        self.dump_if_requested();
    }

    fn arrived(&self) {
        let mut guard = self.engine.lock();
        let now = guard.now;
        guard.messenger.arrived(now);
        self.engine.leave(guard);
        // Threads that wait for a connection get no event for it.
        self.engine.wake();
    }

    fn report(&self, question: Question) -> Option<String> {
        Some(self.report_on(question))
    }

    #[cfg(any(test, fuzzing))]
    fn is_polled(&self) -> bool {
        self.engine.is_polled()
    }
}

/// Upper bound of the memory that a context takes, whatever its size.
const CONTEXT_BYTES: usize = 512 << 10;

/// Creates the connections of a new context. `options` must be complete: nothing is taken from the environment.
fn connections(device: &Arc<dyn Device>, options: &ContextOptions) -> Result<Connections> {
    transport::check_process(device.as_ref())?;
    check_room(CONTEXT_BYTES, "a context")?;
    device.clone().connections(options.token.as_ref().unwrap_or(&JobToken::none()))
}

/// By how much a store may round its timeout down, and so return before it.
const ROUNDED_BY: Duration = Duration::from_millis(1);

/// One process's membership in a group. Thread-safe.
pub struct Context {
    rank: Rank,
    size: usize,
    options: ContextOptions,
    check_calls: bool,
    tuners: Tuners,
    timeout: Timeout,
    slots: AtomicU64,
    /// The host number of each rank; empty until all hosts are known.
    hosts: OnceLock<Box<[u32]>>,
    /// Whose the cores are on which this rank runs. To find that out takes many reads of files.
    cores: OnceLock<Cores>,
    /// The shared memory of all ranks, if they are on one host. Collectives on nothing else run in line.
    shared_memory: OnceLock<Arc<SharedMemory>>,
    /// Memory for data of the caller.
    allocations: Allocations,
    /// The prepared calls, unless all ranks share memory: `shared_memory` has them then.
    cache: Mutex<CallCache>,
    plans: PlanCache,
    /// The GPUs in whose memory buffers of calls are, from the first such call on.
    gpus: OnceLock<Arc<Gpus>>,
    rounds: Rounds,
    versions: Versions,
    /// By what the ranks agree on who is left, if there are several.
    agreements: Option<Arc<Agreements>>,
    shared: Arc<Shared>,
}

impl Context {
    /// A context without connections.
    pub fn new(device: Arc<dyn Device>, rank: Rank, size: usize, options: &ContextOptions) -> Result<Arc<Context>> {
        if size == 0 || rank >= size || size > i32::MAX as usize {
            return Err(Error::invalid(format!("there is no rank {rank} of {size}")));
        }
        let options = options.with_environment(device.as_ref())?;
        let overrides = Overrides::from_environment()?;
        let connections = connections(&device, &options)?;
        Self::over(connections, device, rank, size, options, overrides)
    }

    /// A context with these `connections`, created by `device`. `options` must be complete: nothing is taken from the
    /// environment.
    fn over(
        mut connections: Connections,
        device: Arc<dyn Device>,
        rank: Rank,
        size: usize,
        options: ContextOptions,
        overrides: Overrides,
    ) -> Result<Arc<Context>> {
        let allocations = connections.allocations();
        let messenger = Messenger::new(rank, size, connections, device.log());
        let spin = Spin::new(options.wait.unwrap_or_default(), Cores::Unknown, &Constants::BUILT_IN);
        let address = messenger.connections().address().clone();
        let engine = Engine::new(messenger, device.clock(), digest::explain, spin)?;
        let dumps = Dumps::new(rank, size, device.transport(), options.recorder.as_deref());
        let shared = Shared::new(engine, &device, dumps)?;
        let agreements = (options.agrees && size > 1)
            .then(|| Agreements::new(&device, (rank, size), &address, &options))
            .transpose()?;
        Ok(Arc::new(Context {
            rank,
            size,
            check_calls: options.check_calls == Some(true),
            timeout: Timeout::new(options.timeout, options.timeout_by_default),
            tuners: Tuners::new(size, options.max_segment_bytes, overrides),
            versions: Versions::new(rank, options.version),
            options,
            slots: AtomicU64::new(0),
            hosts: OnceLock::new(),
            cores: OnceLock::new(),
            shared_memory: OnceLock::new(),
            allocations,
            cache: Mutex::default(),
            plans: PlanCache::default(),
            gpus: OnceLock::new(),
            rounds: Rounds::default(),
            agreements,
            shared,
        }))
    }

    /// The rank of this process.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The device on which the context was created.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// Default timeout of an operation.
    pub fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    /// Sets the default timeout of operations that start later.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout, false);
    }

    /// Sets it to the one that counts if nobody chooses. Fails if the environment's is not valid.
    pub fn set_default_timeout(&self) -> Result<()> {
        self.timeout.set(environment::default_timeout()?, true);
        Ok(())
    }

    /// `error` of a call that was to end by `deadline`, with what the user may have to know besides: the versions of
    /// ranks that disagree, and, if it has not ended by then, named no timeout (`None`), and the context's is the
    /// default, the variable. Before, `error` is of something else, such as an earlier call that has broken the
    /// context.
    fn amended(&self, timeout: Option<Duration>, deadline: Instant, error: Error) -> Error {
        let error = self.versions.added_to(error);
        let by_default = timeout.is_none() && self.timeout.is_default();
        if by_default && self.engine().now() + ROUNDED_BY >= deadline { environment::by_default(error) } else { error }
    }

    /// Reserves `n` slot numbers for the caller and returns the first. Equal on all ranks as long as all make the same
    /// calls.
    pub fn next_slot(&self, n: u32) -> Slot {
        self.slots.fetch_add(u64::from(n), Ordering::Relaxed)
    }

    /// Whether `rank` runs on this host. Known once connected.
    pub fn shares_host(&self, rank: Rank) -> Result<bool> {
        self.check_rank(rank)?;
        self.lock()?.messenger.shares_host(rank).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("the context is not connected: nothing is known of rank {rank}"),
            )
        })
    }

    /// Whether this rank and `rank`, another one, share memory. Known once connected.
    pub fn shares_memory(&self, rank: Rank) -> Result<bool> {
        self.check_rank(rank)?;
        let guard = self.lock()?;
        Ok(rank != self.rank
            && guard.messenger.connections().local_ranks().is_some_and(|group| group.index_of(rank).is_some()))
    }

    /// Whether the ranks of this host read the memory of each other's processes, so that long messages are copied once.
    /// `None` if they share no memory, or the context is not connected yet.
    pub fn reads_memory(&self) -> Result<Option<bool>> {
        Ok(self.lock()?.messenger.connections().local_ranks().map(|group| group.reads_memory()))
    }

    /// The host number of each rank, equal on all ranks; empty until the ranks are known by [`Context::connect`] or its
    /// variants.
    pub fn hosts(&self) -> &[u32] {
        self.hosts.get().map_or(&[], |hosts| hosts)
    }

    /// Closes all connections; operations that wait fail with `Closed`, and later calls fail. Idempotent.
    pub fn close(&self) {
        let closed = Error::new(ErrorKind::Closed, format!("rank {} has closed this context", self.rank));
        let Ok(mut guard) = self.lock() else { return };
        // If a peer has failed while no call was running here, ranks that wait for this one are sent that reason.
        let reason = guard.broken.clone();
        guard.break_with(&closed, reason.as_ref());
        self.finish_closing(guard);
        self.agreements.iter().for_each(|agreements| agreements.close(&closed));
    }

    /// Aborts the context on all ranks: operations in progress and later ones fail with `Aborted`, with this rank and
    /// `reason`. Waits for nobody, and may be called from any thread. A peer that is connected or shares memory is told
    /// at once, and passes it on; one that connects later is told then. The first abort counts, and one of a closed
    /// context has no effect. Buffers of operations are the library's until these have ended.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let text = format!("rank {} has aborted this context: {reason}", self.rank);
        let mut guard = self.lock()?;
        guard.abort(&Error::new(ErrorKind::Aborted, text).with_rank(self.rank));
        self.finish_closing(guard);
        Ok(())
    }

    /// Whether the context was aborted, by this rank or another.
    pub fn is_aborted(&self) -> Result<bool> {
        Ok(self.lock()?.is_aborted())
    }

    /// Whether this process inherited the context by fork. Such a context can only be dropped, which leaves the
    /// parent's connections open.
    pub fn is_inherited(&self) -> bool {
        self.device().is_inherited()
    }

    /// Why no collective can run on this context any more, if so.
    pub fn broken(&self) -> Option<Error> {
        self.lock().map_or_else(Some, |guard| guard.broken.clone())
    }

    /// Fails all current and later waits on the buffer `owner`.
    fn close_buffer(&self, owner: u32) {
        if let Ok(mut guard) = self.lock() {
            guard.requests.close(owner);
            drop(guard);
            self.engine().wake();
        }
    }

    fn finish_closing(&self, guard: Guard<'_>) {
        self.engine().hand_over(guard);
        self.engine().wake();
    }

    fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// What the queue pairs of InfiniBand or RoCE have done for this context since it was created; `None` with other
    /// transports.
    pub fn counters(&self) -> Result<Option<Counters>> {
        Ok(self.lock()?.messenger.connections().counters())
    }

    pub(crate) fn lock(&self) -> Result<Guard<'_>> {
        self.check_process()?;
        Ok(self.engine().lock())
    }

    /// Fails in a child by fork.
    fn check_process(&self) -> Result<()> {
        transport::check_process(self.shared.device.as_ref())
    }

    fn deadline(&self, timeout: Option<Duration>) -> (Instant, Duration) {
        self.timeout.deadline(self.engine().now(), timeout)
    }

    fn check_rank(&self, rank: Rank) -> Result<()> {
        if rank < self.size {
            return Ok(());
        }
        Err(Error::invalid(format!("there is no rank {rank} in a context of {} ranks", self.size)))
    }

    /// Waits until `rank` is connected. It may be done with this context, and have closed it, before this thread sees
    /// that.
    fn await_connection(&self, rank: Rank, deadline: Instant, timeout: Duration) -> Result<()> {
        let mut guard = self.lock()?;
        guard.messenger.connect(rank);
        guard.connecting += 1;
        let (mut guard, connected) =
            self.engine().wait_for(guard, Some(rank), &mut Idle::default(), deadline, |core| {
                match core.messenger.has_been_connected(rank) {
                    Ok(false) => None,
                    Ok(true) => Some(Ok(())),
                    Err(error) => Some(Err(error)),
                }
            });
        guard.connecting -= 1;
        let error = || {
            let (peer, link) =
                (guard.messenger.peer_name(rank), guard.messenger.diagnosis().link_state(rank, guard.now));
            let text = format!("no connection to {peer} {}: {link}{}", error::after(timeout), self.accept_error());
            Error::new(ErrorKind::Timeout, text).with_rank(rank)
        };
        let connected = connected.unwrap_or_else(|| Err(error()));
        self.engine().hand_over(guard);
        connected
    }

    /// Describes why this rank cannot accept connections, if so, for the end of a message.
    fn accept_error(&self) -> String {
        let words = |e| format!("; this process cannot accept connections: {}", error::in_words(&e));
        self.device().accept_error().map_or(String::new(), words)
    }

    fn own(&self) -> String {
        format!("rank {}", self.rank)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.close();
        // A child by fork leaves the parent's memory alone.
        if !self.is_inherited() {
            // SAFETY: `alloc` demands that the memory is not accessed any more. Operations have ended with the context.
            unsafe { self.allocations.free_all() };
        }
    }
}

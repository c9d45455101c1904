//! A simulated job: contexts on a network, their work, and the checks afterwards.

use std::cell::RefCell;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Buffers, CollectiveCall};
use super::messages::{Messages, Sealed};
use super::{Body, idle, run, sleep};
use crate::collective::Constants;
use crate::context::tuning::topology;
use crate::context::{Context, ContextOptions};
use crate::engine::Spin;
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::testing::loopback::{LinkModel, Network, Node, NodeStatus};
use crate::transport::Device;
use crate::transport::Sharing;
use crate::tuner::Tuner;

/// Timeout of a call.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Additional time for diagnostic queries to peers, and for messages in transit.
const GRACE: Duration = Duration::from_secs(1);

/// Why a rank aborts its context.
const REASON: &str = "the loss is not a number";

/// What a rank with a request does between start and wait; longer than some messages take, shorter than others.
const BETWEEN: Duration = Duration::from_micros(200);

/// A piece of work for all ranks.
pub enum Work {
    /// A collective call.
    Call(CollectiveCall),
    /// A collective call in which this rank makes another one. With `check_calls` all ranks get an error and can
    /// continue.
    Mismatch(CollectiveCall, usize, CollectiveCall),
    /// Point-to-point messages.
    Messages(Messages),
    /// This rank aborts the context after this time. The others go on.
    Abort(usize, Duration),
}

/// Memory that the library must not use any more.
enum ReturnedMemory {
    Call(Buffers),
    Messages(Sealed),
}

/// The result of a rank's program.
#[derive(Default)]
struct RankResult {
    /// Number of successful pieces of work.
    done: usize,
    /// The error of the next one, and when it started and ended.
    failed: Option<(Error, Instant, Instant)>,
    /// When it has aborted the context.
    aborted: Option<Instant>,
    /// The failure does not break the context, so peers do not learn the reason when it is closed.
    without_reason: bool,
    finished: bool,
}

/// A finished job.
pub struct Job {
    pub network: Network,
    contexts: Vec<Arc<Context>>,
    ended: Vec<RankResult>,
    returned: Vec<ReturnedMemory>,
    works: usize,
}

impl Job {
    /// Runs `works` in sequence on `size` ranks over a network with `seed`. `script` may schedule failures first.
    pub fn run(
        seed: u64,
        link_model: LinkModel,
        size: usize,
        check_calls: bool,
        works: &[Work],
        script: impl FnOnce(&Network),
    ) -> Self {
        let network = Network::new(seed, link_model);
        let contexts = contexts(&network, size, &Self::options(check_calls));
        script(&network);
        Self::over(network, contexts, works)
    }

    /// The options of a job's contexts.
    pub fn options(check_calls: bool) -> ContextOptions {
        ContextOptions { timeout: TIMEOUT, check_calls: Some(check_calls), agrees: false, ..Default::default() }
    }

    /// Runs `works` in sequence on these contexts, one for each rank.
    pub fn over(network: Network, contexts: Vec<Arc<Context>>, works: &[Work]) -> Self {
        let ended: Vec<RefCell<RankResult>> = contexts.iter().map(|_| RefCell::default()).collect();
        let returned = RefCell::new(Vec::new());
        let bodies = contexts.iter().zip(&ended).map(|(context, ended)| -> Body<'_> {
            let (network, returned) = (&network, &returned);
            Box::new(move || {
                for (number, work) in works.iter().enumerate() {
                    let began = network.now();
                    let result = match work {
                        Work::Call(call) => {
                            let (result, mut buffers) = call.run(network, context, number as u64 % 2, BETWEEN);
                            buffers.seal();
                            returned.borrow_mut().push(ReturnedMemory::Call(buffers));
                            result
                        }
                        Work::Mismatch(call, odd, other) => {
                            let call = if context.rank() == *odd { other } else { call };
                            let (result, mut buffers) = call.run(network, context, number as u64 % 2, BETWEEN);
                            buffers.seal();
                            returned.borrow_mut().push(ReturnedMemory::Call(buffers));
                            assert!(result.is_err(), "rank {} has not noticed that rank {odd} differs", context.rank());
                            result.or_else(|error| {
                                let told = error.message().contains("ranks disagree about this call");
                                if told && context.broken().is_none() { Ok(()) } else { Err(error) }
                            })
                        }
                        Work::Messages(messages) => {
                            let (result, sealed) = messages.run(context, number as u64 * 8);
                            returned.borrow_mut().push(ReturnedMemory::Messages(sealed));
                            result
                        }
                        Work::Abort(who, after) if context.rank() == *who => {
                            idle(network, *after);
                            ended.borrow_mut().aborted = Some(network.now());
                            context.abort(REASON)
                        }
                        Work::Abort(..) => Ok(()),
                    };
                    if let Err(error) = result {
                        ended.borrow_mut().failed = Some((error, began, network.now()));
                        ended.borrow_mut().without_reason = matches!(work, Work::Messages(_));
                        // What a program that cannot continue would do; failures of buffers do not break the context.
                        context.close();
                        break;
                    }
                    ended.borrow_mut().done += 1;
                }
                ended.borrow_mut().finished = true;
            })
        });
        run(&network, bodies.collect(), |rank| contexts[rank].close());
        let ended = ended.into_iter().map(RefCell::into_inner).collect();
        Self { network, contexts, ended, returned: returned.into_inner(), works: works.len() }
    }

    /// Checks all requirements. `culprit` is the rank that may have failed.
    pub fn check(self, culprit: Option<usize>) -> Result<(), String> {
        let mut wrong = String::new();
        let status = culprit.map_or(NodeStatus::Running, |rank| self.network.status(rank));
        for (rank, ended) in self.ended.iter().enumerate() {
            if Some(rank) == culprit && status != NodeStatus::Running {
                continue;
            }
            if !ended.finished {
                let _ = writeln!(wrong, "rank {rank} never ended");
            }
            match (&ended.failed, culprit) {
                (None, _) if ended.done == self.works => {}
                (Some((error, ..)), Some(culprit)) if status != NodeStatus::Running => {
                    // Peers of a rank that closes its context without a reason can only name that rank; and a rank that
                    // waits for a message does not query its peers.
                    let seen = |(other, result): &(usize, &RankResult)| {
                        *other != rank && (result.without_reason || ended.without_reason && result.done <= ended.done)
                    };
                    let seen = self.ended.iter().enumerate().filter(seen).map(|(other, _)| other);
                    let blamed: Vec<usize> = seen.chain([culprit]).collect();
                    // Nobody knows who should have sent what any could have.
                    let anyone = error.message().contains("any of ranks");
                    if error.details().rank.map_or(!anyone, |rank| !blamed.contains(&rank)) {
                        let _ =
                            writeln!(wrong, "rank {rank} blames {:?}, not {culprit}: {error}", error.details().rank);
                    }
                    if !blamed.iter().any(|rank| names(error.message(), *rank)) {
                        let _ = writeln!(wrong, "rank {rank} does not name rank {culprit}, {status:?}: {error}");
                    }
                }
                (Some((error, ..)), _) => {
                    let _ = writeln!(wrong, "rank {rank} failed without a reason: {error}");
                }
                (None, _) => {}
            }
            if let Some((error, began, at)) = &ended.failed
                && at.duration_since(*began) > TIMEOUT + GRACE
            {
                let _ = writeln!(wrong, "rank {rank} took {:?}: {error}", at.duration_since(*began));
            }
        }
        self.check_remains(wrong, status == NodeStatus::Running)
    }

    /// Checks a job that this rank has aborted: every rank ends at most `within` after the abort, with success or with
    /// the error of the abort. Returns the number of errors.
    pub fn check_aborted(self, by: usize, within: Duration) -> Result<usize, String> {
        let mut wrong = String::new();
        let mut errors = 0;
        let aborted = self.ended[by].aborted;
        for (rank, ended) in self.ended.iter().enumerate() {
            match (&ended.failed, aborted) {
                (None, _) if ended.finished && ended.done == self.works => {}
                (Some((error, _, at)), Some(aborted)) => {
                    errors += 1;
                    let is_known = self.contexts[rank].is_aborted().is_ok_and(|is_aborted| is_aborted);
                    let says = error.kind() == ErrorKind::Aborted && error.details().rank == Some(by);
                    let text = format!("rank {by} has aborted this context: {REASON}");
                    if !is_known || !says || !error.message().contains(&text) {
                        let _ = writeln!(wrong, "rank {rank}: {:?}: {error}", error.kind());
                    }
                    if at.saturating_duration_since(aborted) > within {
                        let took = at.duration_since(aborted);
                        let _ = writeln!(wrong, "rank {rank} has ended {took:?} after the abort: {error}");
                    }
                }
                (Some((error, ..)), None) => drop(writeln!(wrong, "rank {rank} failed before the abort: {error}")),
                (None, _) => drop(writeln!(wrong, "rank {rank} never ended")),
            }
        }
        self.check_remains(wrong, false).map(|()| errors)
    }

    /// Checks a job in which work requests, ports or devices may have failed, but no rank: each rank ends within the
    /// timeout, with success or with an error that names a rank. Returns the errors.
    #[cfg(feature = "ibverbs")]
    pub fn check_ends(self) -> Result<Vec<Error>, String> {
        let mut wrong = String::new();
        let mut errors = Vec::new();
        for (rank, ended) in self.ended.iter().enumerate() {
            match &ended.failed {
                None if ended.finished && ended.done == self.works => {}
                None => drop(writeln!(wrong, "rank {rank} never ended")),
                Some((error, began, at)) => {
                    let took = at.duration_since(*began);
                    let names = matches!(error.kind(), ErrorKind::ConnectionLost | ErrorKind::Timeout)
                        && error.details().rank.is_some();
                    if !names || took > TIMEOUT + GRACE {
                        let _ = writeln!(wrong, "rank {rank} after {took:?}: {:?}: {error}", error.kind());
                    }
                    errors.push(error.clone());
                }
            }
        }
        let all_succeed = errors.is_empty();
        self.check_remains(wrong, all_succeed).map(|()| errors)
    }

    /// Adds to `wrong` what the job has left behind; its contexts are checked, too, if none has failed.
    fn check_remains(self, mut wrong: String, checks_contexts: bool) -> Result<(), String> {
        let touched = |returned: &ReturnedMemory| match returned {
            ReturnedMemory::Call(buffers) => !buffers.are_sealed(),
            ReturnedMemory::Messages(sealed) => !sealed.is_sealed(),
        };
        if checks_contexts {
            for context in &self.contexts {
                if let Some(left) = context.lock().expect("the lock").messenger.remaining_state() {
                    let _ = writeln!(wrong, "rank {}: {left}", context.rank());
                }
            }
        }
        let watched: Vec<_> = self.contexts.iter().map(Arc::downgrade).collect();
        drop(self.contexts);
        // Deliver what is still in transit.
        run(&self.network, watched.iter().map(|_| -> Body<'_> { Box::new(|| {}) }).collect(), |_| {});
        if self.returned.iter().any(touched) {
            wrong.push_str("memory was touched after its call had returned\n");
        }
        if watched.iter().any(|context| context.strong_count() > 0) {
            wrong.push_str("a context is left\n");
        }
        let (_, links) = self.network.unfinished();
        if links > 0 {
            let _ = writeln!(wrong, "{links} directions of links are left");
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

/// Links that neither break nor reorder, with little delay.
pub fn reliable() -> LinkModel {
    LinkModel {
        delay: Duration::from_micros(1)..Duration::from_micros(20),
        capacity: 100_000,
        piece: 50_000,
        reads_above: None,
        places_above: None,
    }
}

/// Creates a context for each rank, and gives all of them the addresses.
pub fn contexts(network: &Network, size: usize, options: &ContextOptions) -> Vec<Arc<Context>> {
    contexts_on((0..size).map(|_| -> Arc<dyn Device> { Node::new(network, sleep) }).collect(), options)
}

/// Like [`contexts`], each on its device.
pub fn contexts_on(devices: Vec<Arc<dyn Device>>, options: &ContextOptions) -> Vec<Arc<Context>> {
    let size = devices.len();
    let context = |(rank, device)| -> Result<Arc<Context>> {
        let context = Context::new(device, rank, size, options)?;
        // Virtual time passes only while a rank sleeps, so polling would not end.
        context.lock()?.waiters.set_spin(Spin::of(Duration::ZERO));
        Ok(context)
    };
    let contexts: Vec<_> = devices.into_iter().enumerate().map(|of| context(of).expect("a context")).collect();
    let addresses: Vec<_> = contexts.iter().map(|c| c.lock().expect("the lock").messenger.address()).collect();
    for context in &contexts {
        for (rank, address) in addresses.iter().enumerate() {
            context.lock().expect("the lock").messenger.set_peer(rank, address).expect("an address");
        }
    }
    contexts
}

/// Creates connected contexts, one for each of `hosts`, the number of its host. Those of a host share memory. `found`
/// says whether each reads the memory of the others' processes.
pub fn contexts_of_hosts(
    network: &Network,
    hosts: &[u64],
    options: &ContextOptions,
    found: Sharing,
) -> Vec<Arc<Context>> {
    let node = |host: &u64| -> Arc<dyn Device> { Node::sharing(network, *host, sleep) };
    contexts_sharing(hosts.iter().map(node).collect(), options, found)
}

/// Like [`contexts_of_hosts`], each on its device.
pub fn contexts_sharing(devices: Vec<Arc<dyn Device>>, options: &ContextOptions, found: Sharing) -> Vec<Arc<Context>> {
    let size = devices.len();
    let contexts = contexts_on(devices, options);
    let mut addresses: Vec<Address> =
        contexts.iter().map(|c| c.lock().expect("the lock").messenger.connections().address().clone()).collect();
    // Ranks of several hosts have sockets, which these do not use.
    let socket = SocketAddr::from(([192, 0, 2, 1], 1));
    addresses.iter_mut().for_each(|address| address.sockets = vec![socket]);
    for context in &contexts {
        context.use_addresses(&addresses, &|rank| rank, &Constants::BUILT_IN).expect("memory to share");
    }
    let (found, ranks): (_, Vec<_>) = (vec![found; size], (0..size).collect());
    let tuner = Tuner::built_in(size, options.max_segment_bytes).of_ranks(&ranks, topology(&addresses));
    for context in &contexts {
        context.lock().expect("the lock").messenger.connections_mut().share_memory(&found).expect("shared memory");
        context.adopt(tuner.inherit(options.max_segment_bytes), &addresses, &found).expect("a tuner");
        context.lock().expect("the lock").waiters.set_spin(Spin::of(Duration::ZERO));
    }
    contexts
}

/// Runs `program` on each rank of a job with `size` ranks, and returns the results.
pub fn play<T>(
    link_model: LinkModel,
    size: usize,
    options: &ContextOptions,
    program: impl Fn(&Network, &Arc<Context>) -> T,
) -> Vec<T> {
    let network = Network::new(1, link_model);
    let ended = play_on(&network, size, options, program).into_iter().enumerate();
    ended.map(|(rank, result)| result.unwrap_or_else(|| panic!("rank {rank} never ended"))).collect()
}

/// Like `play`, on this network; the result of a rank that has not ended is `None`.
pub fn play_on<T>(
    network: &Network,
    size: usize,
    options: &ContextOptions,
    program: impl Fn(&Network, &Arc<Context>) -> T,
) -> Vec<Option<T>> {
    play_over(network, &contexts(network, size, options), program)
}

/// Like `play_on`, on these contexts, one for each rank.
pub fn play_over<T>(
    network: &Network,
    contexts: &[Arc<Context>],
    program: impl Fn(&Network, &Arc<Context>) -> T,
) -> Vec<Option<T>> {
    let results: Vec<RefCell<Option<T>>> = contexts.iter().map(|_| RefCell::new(None)).collect();
    let bodies = contexts.iter().zip(&results).map(|(context, result)| -> Body<'_> {
        let program = &program;
        Box::new(move || {
            let own = program(network, context);
            *result.borrow_mut() = Some(own);
        })
    });
    run(network, bodies.collect(), |rank| contexts[rank].close());
    results.into_iter().map(RefCell::into_inner).collect()
}

/// Whether `text` names this rank, either alone or in a list of ranks that could have sent a message.
fn names(text: &str, rank: usize) -> bool {
    let name = format!("rank {rank}");
    let alone =
        text.match_indices(&name).any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()));
    let lists = text.split("any of ranks [").skip(1).filter_map(|rest| rest.split(']').next());
    alone || lists.flat_map(|list| list.split(", ")).any(|listed| listed.parse() == Ok(rank))
}

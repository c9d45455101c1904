//! `gloo-rs bench`: measures a collective.

pub mod buffer;
pub mod measure;
mod overlap;
mod pattern;
mod report;
#[cfg(test)]
mod tests;
pub mod workload;

use std::time::Duration;

use gloo_rs::collective::{Collective, Shape, Uses};
use gloo_rs::environment::DEFAULT_TIMEOUT;
use gloo_rs::error::Error;
use gloo_rs::rendezvous::launch::Launch;
use gloo_rs::schedule::Schedule;
use gloo_rs::transport::tcp;
use gloo_rs::types::{DataType, ReduceOp};

use crate::Failure;
use crate::parse::Several;
use crate::progress::Progress;
use crate::ranks::{self, Member};
use measure::{Measured, Repetition, largest_of_all_ranks, measure};
use report::{Bandwidth, NONE, Overlap, Row, Times};
use workload::{Request, Subject, Workload};

const EXAMPLES: &str = "\
Examples:
  gloo-rs bench allreduce                              two ranks on this host
  gloo-rs bench alltoall -n 8 --sizes 4..64Mi:4        eight ranks, sizes from 4 to 64 Mi times four
  gloo-rs bench allreduce --transport tcp --requests 1 how much of an allreduce a computation hides
  gloo-rs run -H node0:4,node1:4 -- gloo-rs bench allreduce --json
                                                       over two hosts, a JSON object for each size";

/// Measure a collective
///
/// Starts ranks on this host, or runs as a rank of a job that a launcher started (if its variables are set; see
/// docs/launchers.md). Every rank verifies the result before and after the measurement. The time of an iteration is
/// that of the slowest rank.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// allreduce, reduce, reduce_scatter, broadcast, allgather, allgatherv, gather, gatherv, scatter, scatterv,
    /// alltoall, alltoallv, barrier, pairwise_exchange, scan, exscan, or sendrecv: a message to the next rank
    #[arg(value_name = "COLLECTIVE", value_parser = subject)]
    subject: Subject,

    /// Number of ranks; default: 2, or that of the job
    #[arg(short = 'n', long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// An algorithm that `gloo-rs list` prints, or auto
    #[arg(long, default_value = "auto", value_name = "A")]
    algorithm: String,

    /// The transport
    #[arg(long, default_value = "auto", value_name = "T")]
    transport: Transport,

    /// Sizes of a rank's buffer in bytes, as defined by nccl-tests: a list, 4,64Ki,1Mi, or a range, doubled each time:
    /// 4..64Mi, or times four: 4..64Mi:4
    #[arg(long, value_name = "SIZES", value_parser = crate::parse::sizes)]
    #[arg(default_value = "4,1Ki,8Ki,64Ki,512Ki,4Mi")]
    sizes: Several,

    /// Number of measured calls for each size
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: u32,

    /// Time for those calls: fewer for sizes where they would take longer, but at least 5
    #[arg(long, value_name = "SECONDS", value_parser = crate::parse::seconds, conflicts_with = "threads")]
    seconds: Option<Duration>,

    /// Measure loops of back-to-back calls too, without a barrier between calls
    #[arg(long = "loop")]
    loops: bool,

    /// Start N persistent requests at once, wait for all, and measure how much of that time a computation hides, as
    /// osu_iallreduce does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    #[arg(conflicts_with_all = ["threads", "loops", "seconds", "in_place"])]
    requests: Option<u32>,

    /// Number of calls before those
    #[arg(long, default_value_t = 10, value_name = "W")]
    warmup: u32,

    /// Number of buffers on each rank, for collectives that can take several
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    inputs: u32,

    /// Type of the elements
    #[arg(long, default_value = "float32", value_name = "D")]
    dtype: DataType,

    /// The reduction operation
    #[arg(long, default_value = "sum", value_name = "O")]
    op: ReduceOp,

    /// Threads of each rank that call at the same time, each with buffers and a tag of its own
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// Use the input as the output
    #[arg(long)]
    in_place: bool,

    /// Allocate the buffers by the context (gloo_rs_alloc), so that ranks that share memory read them in place
    #[arg(long)]
    alloc: bool,

    /// The root, for collectives with a root
    #[arg(long, default_value_t = 0, value_name = "R")]
    root: u32,

    /// The group of each rank, for algorithms on groups, such as 0,0,1,1; default: its host
    #[arg(long, value_name = "G,..", value_delimiter = ',')]
    groups: Vec<u32>,

    /// Grid of the ranks, for algorithms on grids, such as 4x2; default: the algorithm's choice
    #[arg(long, value_name = "GRID", value_delimiter = 'x')]
    dims: Vec<usize>,

    /// Time limit for connecting, and for every call; default: that of GLOO_RS_TIMEOUT, or 30
    #[arg(long, value_name = "SECONDS", value_parser = crate::parse::seconds)]
    timeout: Option<Duration>,

    /// Network interfaces to use: eth0,ib*,10.0.0.0/8 in order of preference, or ^docker* for all but those
    #[arg(long, value_name = "LIST", value_parser = crate::parse::interfaces)]
    interface: Option<String>,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// Shared memory between ranks of a host that can, else TCP
    Auto,
    /// Shared memory; fails if any two ranks have none
    Shm,
    /// TCP sockets
    Tcp,
    /// TCP sockets that libuv watches
    Uv,
    /// TLS over TCP; where this command starts the ranks, with certificates made for this run unless the environment
    /// names some
    Tls,
    /// InfiniBand or RoCE
    Ibverbs,
}

fn subject(text: &str) -> Result<Subject, String> {
    if text == Subject::SendRecv.name() {
        return Ok(Subject::SendRecv);
    }
    let known = Collective::ALL.iter().find(|collective| collective.name() == text);
    known.map(|collective| Subject::Collective(*collective)).ok_or_else(|| {
        let collectives = Collective::ALL.iter().map(|collective| collective.name());
        crate::parse::among(text, collectives.chain([Subject::SendRecv.name()]))
    })
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    if !Launch::is_launched() {
        return start(&args);
    }
    // Print the error before the other ranks notice the failure: a launcher ends this rank then.
    let mut member = None;
    match take_part(&args, &mut member) {
        Ok(true) => 0,
        Ok(false) => crate::FAILED,
        Err(failure) => ranks::failed(&failure),
    }
}

/// Starts the ranks if the arguments are valid.
fn start(args: &Args) -> u8 {
    let ranks = args.ranks.unwrap_or(2) as usize;
    match args.request(ranks).map_err(Failure::usage).and_then(|_| args.timeout()) {
        Ok(_) => ranks::start(ranks, args.transport == Transport::Tls && !has_certificate()),
        Err(failure) => crate::fail(&failure.message, failure.code),
    }
}

/// Whether the environment names a certificate, which ranks inherit.
#[cfg(feature = "tls")]
fn has_certificate() -> bool {
    gloo_rs::net::tls::Options::default().or_environment().cert.is_some()
}

/// No rank can use one.
#[cfg(not(feature = "tls"))]
fn has_certificate() -> bool {
    true
}

impl Args {
    fn timeout(&self) -> Result<Duration, Failure> {
        ranks::timeout(self.timeout, DEFAULT_TIMEOUT)
    }

    /// The request for `ranks` ranks, if it is valid.
    fn request(&self, ranks: usize) -> Result<Request, String> {
        if self.sizes.0.contains(&0) {
            return Err("--sizes: 0 bytes are no message; barrier has no size at all".into());
        }
        if self.subject == Subject::SendRecv && self.algorithm != "auto" {
            return Err("--algorithm: sendrecv has none to choose".into());
        }
        if self.subject == Subject::SendRecv && self.requests.is_some() {
            return Err("--requests: sendrecv has no persistent requests".into());
        }
        if self.loops && self.in_place && self.subject != Subject::Collective(Collective::Broadcast) {
            return Err("--loop: in place, only a broadcast can be called again with the data that it leaves".into());
        }
        let request = Request {
            subject: self.subject,
            dtype: self.dtype,
            op: self.op,
            ranks,
            root: self.root as usize,
            buffers: self.inputs as usize,
            in_place: self.in_place,
        };
        request.check()?;
        let work = self.workload(&request, 0, 1, 0)?;
        let Some(shape) = work.shape() else { return Ok(request) };
        // Whether the ranks really share memory is known when they have connected.
        let shape = Shape { shared: matches!(self.transport, Transport::Auto | Transport::Shm), ..shape };
        shape.check().map_err(|error| error.to_string())?;
        if self.algorithm != "auto" {
            let algorithm = shape.collective.algorithm(&self.algorithm);
            // Some algorithms do not support every number of ranks. Counts of other ranks are exchanged when the call
            // runs.
            let schedule = algorithm.and_then(|algorithm| match algorithm.uses {
                Uses::Counts => Ok(Schedule::default()),
                _ => (algorithm.generate)(&shape),
            });
            schedule.map_err(|error| format!("--algorithm: {error}"))?;
        }
        Ok(request)
    }

    /// [`Request::workload`] with the given hosts of the ranks.
    fn workload(&self, request: &Request, rank: usize, bytes: usize, seed: u64) -> Result<Workload, String> {
        let mut work = request.workload(rank, bytes, seed)?;
        (work.groups, work.dims) = (self.groups.clone(), self.dims.clone());
        Ok(work)
    }
}

/// Runs this rank's part; `member` is set once it has connected. Returns whether all results were right, on all ranks.
fn take_part(args: &Args, member: &mut Option<Member>) -> Result<bool, Failure> {
    let timeout = args.timeout()?;
    let launch = ranks::launch(args.ranks, timeout)?;
    let request = args.request(launch.size).map_err(Failure::usage)?;
    let member = member.insert(Member::join(launch, timeout, args.interface.as_deref(), args.transport.options()?)?);
    let (context, rank) = (&member.context, member.context.rank());
    let transport = ranks::transport(context)?;
    if args.transport == Transport::Shm && transport != "shm" {
        return Err(format!(
            "rank {rank}: --transport is shm, but not all ranks share memory; GLOO_RS_LOG=detail says why"
        )
        .into());
    }
    let barrier = args.subject.is_barrier();
    let sizes = if barrier { &[0][..] } else { &args.sizes.0 };
    let progress = Progress::of(sizes.len() as u64 * u64::from(args.iterations), rank == 0);
    let (mut all_right, mut bandwidths) = (true, Vec::new());
    for (index, &bytes) in sizes.iter().enumerate() {
        progress.say(format!("{} {}", args.subject.name(), crate::parse::size_text(bytes)));
        let row = measure_size(args, &request, member, index, bytes, &progress)?;
        all_right &= row.verified;
        bandwidths.push(row.bandwidth.busbw_gbs);
        if rank == 0 {
            let line = match (args.json, index) {
                (true, _) => serde_json::to_string(&row).map_err(|error| error.to_string())?,
                (false, 0) => {
                    let special = [(args.in_place, ", in place"), (args.alloc, ", of gloo_rs_alloc")];
                    let mut special: String = special.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
                    let requests = args.requests.map(|requests| crate::parse::counted(requests as usize, "request"));
                    special.extend(requests.map(|requests| format!(", {requests} at a time")));
                    let head = report::head(&row, args.threads as usize, &special);
                    format!("{head}\n{}", report::line(&row))
                }
                (false, _) => report::line(&row),
            };
            progress.suspend(|| crate::print(&line))?;
        }
    }
    drop(progress);
    if rank == 0 && !args.json && !barrier {
        crate::print(&report::average(&bandwidths))?;
    }
    // No rank leaves before the report is written: a launcher may end the others as soon as one has failed.
    largest_of_all_ranks(context, &mut [0.0]).map_err(|error| format!("rank {rank}: {error}"))?;
    Ok(all_right)
}

impl Transport {
    /// The options of the device: whether it shares memory, and what carries the bytes of connections.
    fn options(self) -> Result<(Option<bool>, Option<tcp::Transport>), String> {
        let named = |name| tcp::Transport::named(name, "--transport").map_err(|error| error.to_string());
        Ok(match self {
            Self::Auto => (None, None),
            Self::Shm => (Some(true), None),
            Self::Tcp => (Some(false), Some(named("tcp")?)),
            Self::Uv => (Some(false), Some(named("uv")?)),
            Self::Tls => (Some(false), Some(named("tls")?)),
            Self::Ibverbs => (Some(false), Some(named("ibverbs")?)),
        })
    }
}

/// Measures one size on all threads, and combines the results of all ranks.
fn measure_size(
    args: &Args,
    request: &Request,
    member: &Member,
    index: usize,
    bytes: usize,
    progress: &Progress,
) -> Result<Row, String> {
    let Member { context, store } = member;
    let (rank, ranks) = (context.rank(), context.size());
    let says = |error: Error| format!("rank {rank}: {error}");
    let slots = context.next_slot(args.threads);
    let at_once = args.requests.unwrap_or(args.threads);
    let works = (0..at_once).map(|thread| args.workload(request, rank, bytes, thread.into()));
    let works = works.collect::<Result<Vec<_>, _>>()?;
    let first = &works[0];
    let name = index.to_string();
    let run = |thread: usize, work: &Workload| {
        let repetition = Repetition {
            algorithm: &args.algorithm,
            op: args.op,
            warmup: args.warmup as usize,
            iterations: args.iterations as usize,
            limit: args.seconds,
            alloc: args.alloc,
            loops: args.loops,
            thread,
            slot: slots + thread as u64,
            name: &name,
        };
        let step = || {
            if thread == 0 {
                progress.step()
            }
        };
        match args.requests {
            None => measure(context, &**store, work, repetition, &step),
            Some(_) => overlap::measure(context, &works, repetition, &step),
        }
    };
    let measured: Vec<_> = std::thread::scope(|scope| {
        let run = &run;
        let others = works[..args.threads as usize]
            .iter()
            .enumerate()
            .skip(1)
            .map(|(thread, work)| scope.spawn(move || run(thread, work)));
        let others: Vec<_> = others.collect();
        let own = run(0, first);
        let joined =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(joined).collect()
    });

    // The slowest of this rank's threads, then the slowest rank: whether anything was wrong, the loops' times, the
    // others.
    let (mut slowest, mut loops, mut requests, mut compute_us) = (vec![0.0], 0, None, None);
    for (thread, measured) in measured.into_iter().enumerate() {
        let Measured { times, loops: looped, compute, requests: counted, wrong } = measured.map_err(says)?;
        (requests, compute_us) = (requests.or(counted), compute_us.or(compute));
        loops = looped.len();
        slowest.resize(1 + loops + times.len(), 0.0);
        let times = looped.into_iter().chain(times);
        slowest[1..].iter_mut().zip(times).for_each(|(slowest, time)| *slowest = time.max(*slowest));
        if let Some(wrong) = wrong {
            slowest[0] = 1.0;
            let size = crate::parse::size_text(first.bytes);
            let message = format!("rank {rank}, thread {thread}: {} of {size}: {wrong}", args.subject.name());
            progress.suspend(|| crate::fail(&message, crate::FAILED));
        }
    }
    largest_of_all_ranks(context, &mut slowest).map_err(says)?;
    let times = slowest.split_off(1 + loops);
    let iterations = times.len();
    let times = Times::of(times);
    let loop_us = (loops > 0).then(|| Times::of(slowest.split_off(1)).p50_us);
    // The loop of requests runs with the computation, so these are the times of both.
    let overlap = compute_us
        .zip(loop_us)
        .map(|(compute_us, total_us)| Overlap::of(at_once as usize, times.p50_us, compute_us, total_us));
    let algorithm = match first.shape() {
        Some(shape) if args.algorithm == "auto" => context.choose(&shape, args.dtype).to_owned(),
        Some(_) => args.algorithm.clone(),
        None => "direct".to_owned(),
    };
    Ok(Row {
        collective: args.subject.name(),
        algorithm,
        transport: ranks::transport(context)?,
        single_copy: context.reads_memory().map_err(says)?,
        ranks,
        bytes: first.bytes,
        count: first.bytes / args.dtype.size(),
        dtype: if args.subject.is_barrier() { NONE } else { args.dtype.name() },
        op: request.reduction().map_or(NONE, ReduceOp::name),
        inputs: args.inputs as usize,
        iterations,
        times,
        loop_us: loop_us.filter(|_| overlap.is_none()),
        overlap,
        bandwidth: Bandwidth::of(args.subject, ranks, first.bytes * at_once as usize, times.p50_us),
        verified: slowest[0] == 0.0,
        requests,
    })
}

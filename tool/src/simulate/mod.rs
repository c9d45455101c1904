//! `gloo-rs simulate`: simulates a collective on a model of a network.

mod compare;
pub mod network;
mod report;

use std::path::PathBuf;

use gloo_rs::collective::{Algorithm, Calls, Case, Collective, Constants};
use gloo_rs::schedule::cost::{Link, Network};
use gloo_rs::schedule::simulate::{Activity, Options, Simulation, Trace, simulate};
use gloo_rs::tuner;
use gloo_rs::types::{DataType, Rank};

use crate::parse::Several;
use crate::progress::Progress;
use crate::trace::{self, Span};
use crate::{Failure, origin, parse, plot};
use network::{Caches, Hosts, Surroundings};
use report::Row;

const EXAMPLES: &str = "\
Examples:
  gloo-rs simulate allreduce -n 64 --bytes 1Mi         the algorithm that `auto` would select
  gloo-rs simulate allreduce -n 64 --hosts 8x8 --compare --bytes 1Ki..64Mi --plot times.svg
                                                       all algorithms over many sizes, as a table and a chart";

/// Simulate a collective's schedules on a model of a network
///
/// Nothing is sent: the schedules of all ranks are executed, message by message, on links of the given latency and
/// bandwidth. See docs/tool.md for the model.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A collective that `gloo-rs list` prints
    #[arg(value_name = "COLLECTIVE", value_parser = parse::collective)]
    collective: Collective,

    /// An algorithm that `gloo-rs list` prints, or auto: the one with the lowest cost. With --compare several, or all
    #[arg(long, value_name = "A", value_delimiter = ',')]
    algorithm: Vec<String>,

    /// Number of ranks. With --compare several: 2,3,8 or 4..4096
    #[arg(short = 'n', long, value_name = "P", value_parser = ranks)]
    ranks: Several,

    /// Size of the larger of a rank's two buffers in bytes: 4, 64Ki, 256Mi. With --compare several: 1Ki,1Mi or
    /// 1Ki..64Mi
    #[arg(long, default_value = "1Mi", value_name = "S", value_parser = parse::sizes)]
    bytes: Several,

    /// α: latency, the time from sending to arrival of an empty message
    #[arg(long, default_value = "10us", value_name = "TIME", value_parser = parse::duration)]
    alpha: f64,

    /// B: bandwidth of each link, or each host's network card, per direction
    #[arg(long, default_value = "12.5GB/s", value_name = "RATE", value_parser = parse::bandwidth)]
    bandwidth: f64,

    /// o: time for which a rank is busy with each message that it sends to another host, or receives from there; a part
    /// of α. Default: 2us, or half of α if that is less
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    overhead: Option<f64>,

    /// g: least time between two messages that a rank sends to other hosts, or receives from there. Default: 100ns
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    gap: Option<f64>,

    /// γ: time to reduce a byte, such as 0.05ns, or bytes reduced per second, such as 20GB/s
    #[arg(long, default_value = "20GB/s", value_name = "TIME", value_parser = parse::seconds_per_byte)]
    gamma: f64,

    /// Segment size; default: the one that the library would choose, at most 1Mi
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    segment: Option<usize>,

    /// The root, for collectives with a root
    #[arg(long, default_value_t = 0, value_name = "R")]
    root: usize,

    /// Type of the elements
    #[arg(long, default_value = "float32", value_name = "D")]
    element: DataType,

    /// Ranks with consecutive numbers on each host: 128x8 for 128 hosts of 8, or 8,8,4; default: each rank on its own
    /// host
    #[arg(long, value_name = "HOSTS", value_parser = network::hosts)]
    hosts: Option<Hosts>,

    /// All ranks on one host, with consecutive numbers in each last-level cache: 4x8 for 4 caches of 8 ranks, 2x4x8 for
    /// 2 sockets of 4 such caches
    #[arg(long, value_name = "CACHES", value_parser = network::caches, conflicts_with_all = ["hosts", "links"])]
    caches: Option<Caches>,

    /// α and B inside a host, such as 1us,100GB/s
    #[arg(long, value_name = "TIME,RATE", value_parser = network::link, conflicts_with_all = ["intra_alpha", "intra_bandwidth"])]
    intra: Option<Link>,

    /// α inside a host
    #[arg(long, default_value = "1us", value_name = "TIME", value_parser = parse::duration)]
    intra_alpha: f64,

    /// B of the link of each pair of ranks inside a host, per direction
    #[arg(long, default_value = "100GB/s", value_name = "RATE", value_parser = parse::bandwidth)]
    intra_bandwidth: f64,

    /// Grid of the ranks, for algorithms on grids, such as 4x8x8; default: the algorithm's choice
    #[arg(long, value_name = "GRID", value_parser = grid)]
    dims: Option<Several>,

    /// Group size of bcube
    #[arg(long, default_value_t = 2, value_name = "B", value_parser = clap::value_parser!(u32).range(2..))]
    base: u32,

    /// File with the bandwidth from each rank to each: comma-separated values, a row for each sender, or a tuning file
    /// (.toml)
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    links: Option<PathBuf>,

    /// Memory limit for the compiled schedules
    #[arg(long, default_value = "4Gi", value_name = "SIZE", value_parser = parse::size)]
    memory: usize,

    /// Compare algorithms over several --bytes or --ranks
    #[arg(long)]
    compare: bool,

    /// Draw an SVG: ranks against time, or with --compare time against bytes or ranks
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Write a Chrome trace, which Perfetto shows: what ranks do against time
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    trace: Option<PathBuf>,

    /// Print a JSON object; with --compare one per line
    #[arg(long)]
    json: bool,
}

fn ranks(text: &str) -> Result<Several, String> {
    parse::several(text, &parse::ranks).map(Several)
}

fn grid(text: &str) -> Result<Several, String> {
    network::dims(text).map(Several)
}

/// The maximum number of ranks in a chart or trace of ranks against time.
const MAX_SHOWN_RANKS: usize = 32;

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    crate::end(args.check().map_err(Failure::usage).and_then(|()| {
        let done = if args.compare { compare::run(&args) } else { single(&args) };
        Ok(done?)
    }))
}

fn single(args: &Args) -> Result<(), String> {
    let (ranks, bytes) = (args.ranks.0[0], args.bytes.0[0]);
    let point = Point::new(args, ranks, bytes)?;
    let name = args.algorithm.first().map_or("auto", String::as_str);
    let algorithm = if name == "auto" { point.cheapest()? } else { point.named(name)? };
    // Ranks at equal distances, including the first and the last.
    let shown = ranks.min(MAX_SHOWN_RANKS);
    let shown: Vec<Rank> = (0..shown).map(|i| i * (ranks - 1) / shown.saturating_sub(1).max(1)).collect();
    let recorded = if args.plot.is_some() || args.trace.is_some() { &shown[..] } else { &[] };
    let progress = Progress::unknown(format!("simulating {} of {}", algorithm.name, parse::counted(ranks, "rank")));
    let (row, simulation) = point.run(algorithm, recorded)?;
    drop(progress);
    if let Some(path) = &args.plot {
        let title = format!(
            "{} {}, {}, {} bytes: {}",
            row.collective,
            row.algorithm,
            parse::counted(ranks, "rank"),
            parse::size_text(row.bytes),
            parse::duration_text(simulation.seconds)
        );
        let note = origin::note(&point.surroundings.text);
        plot::gantt(path, (&title, &note), &shown, &simulation.trace)?;
    }
    if let Some(path) = &args.trace {
        let about = serde_json::json!({"simulated": point.surroundings.text});
        trace::write(path, spans(&row, &shown, &simulation), &about)?;
    }
    let text = match args.json {
        true => serde_json::to_string(&row).map_err(|error| error.to_string())?,
        false => row.text(&point.surroundings.text),
    };
    crate::print(&text)
}

/// What the ranks `shown` do: the call, named as the flight recorder's calls are in a trace, and its steps.
fn spans(row: &Row, shown: &[Rank], simulation: &Simulation) -> Vec<Span> {
    let call = |rank: &Rank| Span {
        rank: *rank,
        kind: trace::CALL,
        name: format!("{} {}", row.collective, row.algorithm),
        begin: 0,
        end: (simulation.finished[*rank] * 1e12) as u64,
        details: serde_json::json!({"bytes": row.bytes}),
    };
    let step = |step: &Trace| {
        let (kind, direction) = match step.activity {
            Activity::Send => ("send", " to"),
            Activity::Receive => ("receive", " from"),
            Activity::Reduce => ("reduce", " from"),
        };
        let name = step.peer.map_or(kind.to_owned(), |peer| format!("{kind}{direction} {peer}"));
        let details = serde_json::json!({"bytes": step.bytes});
        Span { rank: step.rank, kind, name, begin: step.begin, end: step.end, details }
    };
    shown.iter().map(call).chain(simulation.trace.iter().map(step)).collect()
}

/// One number of ranks and one size.
struct Point<'a> {
    args: &'a Args,
    surroundings: Surroundings,
    calls: Calls,
}

impl Args {
    /// Checks the arguments before anything is computed.
    fn check(&self) -> Result<(), String> {
        if let Some(&ranks) = self.ranks.0.iter().find(|&&ranks| self.root >= ranks) {
            return Err(format!("--root is {}, but the number of ranks is {ranks}", self.root));
        }
        let several = self.ranks.0.len() > 1 || self.bytes.0.len() > 1;
        if !self.compare && (several || self.algorithm.len() > 1) {
            return Err("several algorithms, numbers of ranks or sizes are for --compare".into());
        }
        if self.ranks.0.len() > 1 && self.bytes.0.len() > 1 {
            return Err("--compare: either --ranks or --bytes can be several, not both".into());
        }
        if self.segment == Some(0) {
            return Err("--segment is 0".into());
        }
        let special = |name: &String| (name == "auto" && !self.compare) || (name == "all" && self.compare);
        for name in self.algorithm.iter().filter(|name| !special(name)) {
            if name == "auto" {
                return Err("--compare plays the algorithms named, or all; auto is none of them".into());
            }
            self.collective.algorithm(name).map_err(|error| format!("--algorithm: {error}"))?;
        }
        if let Some(path) = &self.plot {
            parse::writable_chart(path).map_err(|why| format!("--plot: cannot write {}: {why}", path.display()))?;
        }
        if let Some(path) = &self.trace {
            parse::writable(path).map_err(|why| format!("--trace: cannot write {}: {why}", path.display()))?;
        }
        for &ranks in &self.ranks.0 {
            if let Some(product) = self.dims.as_ref().map(|dims| dims.0.iter().product::<usize>())
                && product != ranks
            {
                return Err(format!(
                    "--dims is a grid of {}, but --ranks says {ranks}",
                    parse::counted(product, "rank")
                ));
            }
            self.surroundings(ranks)?;
            self.domains(ranks)?;
        }
        if !self.compare {
            self.fits()?;
        }
        Ok(())
    }

    /// Whether the collective and the algorithm support this number of ranks.
    fn fits(&self) -> Result<(), String> {
        let point = Point::new(self, self.ranks.0[0], self.bytes.0[0])?;
        let shape = point.calls.shape(self.root);
        shape.check().map_err(|error| error.to_string())?;
        match self.algorithm.first().filter(|name| *name != "auto") {
            None => Ok(()),
            Some(name) => (point.named(name)?.generate)(&shape).map(drop).map_err(|error| error.to_string()),
        }
    }

    fn surroundings(&self, ranks: usize) -> Result<Surroundings, String> {
        let remote = Link { latency: self.alpha, bandwidth: self.bandwidth };
        let local = self.intra.unwrap_or(Link { latency: self.intra_alpha, bandwidth: self.intra_bandwidth });
        let built_in = Constants::BUILT_IN;
        let overhead = self.overhead.unwrap_or((built_in.overhead_us * 1e-6).min(self.alpha / 2.0));
        if 2.0 * overhead > self.alpha {
            let [overhead, alpha] = [overhead, self.alpha].map(parse::duration_text);
            return Err(format!(
                "--overhead is {overhead}, at both ends; that is more than --alpha, {alpha}, of which it is a part"
            ));
        }
        let gap = self.gap.unwrap_or(built_in.gap_us * 1e-6);
        let memory = built_in.shared_memory(false, ranks, self.hosts.as_ref().is_none_or(Hosts::is_one));
        let far = Network { overhead, gap, memory, ..Network::flat(remote, self.gamma) };
        let one = Hosts::Alike { hosts: 1, each: ranks };
        let hosts = if self.caches.is_some() { Some(&one) } else { self.hosts.as_ref() };
        let mut surroundings = Surroundings::new(ranks, far, local, hosts, self.links.as_deref())?;
        surroundings.text.extend(self.caches.as_ref().map(|caches| format!("; {caches}")));
        Ok(surroundings)
    }

    /// The cache of each of `ranks` ranks, as [`Calls::domains`].
    fn domains(&self, ranks: usize) -> Result<Vec<u32>, String> {
        self.caches.as_ref().map_or(Ok(Vec::new()), |caches| caches.of_ranks(ranks))
    }
}

impl<'a> Point<'a> {
    fn new(args: &'a Args, ranks: usize, bytes: usize) -> Result<Self, String> {
        let surroundings = args.surroundings(ranks)?;
        let mut calls = Calls::new(args.collective, ranks, bytes / args.element.size(), args.root);
        calls.base = args.base as usize;
        calls.dims = args.dims.as_ref().map_or_else(Vec::new, |dims| dims.0.clone());
        calls.links = surroundings.links_in_megabytes();
        if args.hosts.is_some() {
            calls.groups = surroundings.hosts.clone();
        }
        calls.domains = args.domains(ranks)?;
        calls.shared = surroundings.hosts.iter().all(|host| *host == 0) && surroundings.links.is_empty();
        Ok(Self { args, surroundings, calls })
    }

    fn named(&self, name: &str) -> Result<&'static Algorithm, String> {
        self.args.collective.algorithm(name).map_err(|error| error.to_string())
    }

    fn segment(&self) -> usize {
        let element = self.args.element.size();
        self.args.segment.unwrap_or_else(|| tuner::segment_bytes(&self.calls.shape(self.args.root), element, 1 << 20))
    }

    /// Seconds by the algorithm's cost formula, if it has one.
    fn formula(&self, algorithm: &Algorithm) -> Option<f64> {
        let shape = self.calls.shape(self.args.root);
        let case = Case {
            shape: &shape,
            element_bytes: self.args.element.size(),
            segment_bytes: self.segment(),
            network: &self.surroundings.network,
            constants: &Constants::BUILT_IN,
        };
        Some((algorithm.cost)(&case).path).filter(|seconds| seconds.is_finite())
    }

    /// The algorithm with the lowest cost among those that support the call.
    fn cheapest(&self) -> Result<&'static Algorithm, String> {
        let priced = self.args.collective.algorithms().iter().filter_map(|algorithm| {
            let can = (algorithm.generate)(&self.calls.shape(self.args.root)).is_ok();
            self.formula(algorithm).filter(|_| can).map(|seconds| (seconds, algorithm))
        });
        let cheapest = priced.min_by(|a, b| a.0.total_cmp(&b.0));
        cheapest.map(|(_, algorithm)| algorithm).ok_or_else(|| {
            format!("--algorithm auto: no algorithm of {} has a price here", self.args.collective.name())
        })
    }

    /// Simulates `algorithm`, and records the activity of the ranks in `trace`.
    fn run(&self, algorithm: &'static Algorithm, trace: &[Rank]) -> Result<(Row, Simulation), String> {
        let Self { args, surroundings, calls } = self;
        let options = Options {
            hosts: &surroundings.hosts,
            domains: &calls.domains,
            links: &surroundings.links,
            element_bytes: args.element.size(),
            segment_bytes: self.segment(),
            memory: args.memory,
            trace,
            ..Options::new(surroundings.network)
        };
        let generate = |rank| {
            let shape = calls.shape(rank);
            shape.check()?;
            (algorithm.generate)(&shape)
        };
        let ranks = surroundings.hosts.len();
        let simulation = simulate(ranks, &generate, &options).map_err(|error| error.to_string())?;
        let row = Row::new(
            args.collective,
            algorithm,
            args.element,
            calls.elements(),
            &options,
            self.formula(algorithm),
            &simulation,
        );
        Ok((row, simulation))
    }
}

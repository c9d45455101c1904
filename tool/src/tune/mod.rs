//! `gloo-rs tune`: measures the links and every algorithm, and writes the best ones to a file.

mod chart;
mod constants;
mod crossover;
mod grid;
mod report;
mod streams;
mod topology;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gloo_rs::collective::Collective;
use gloo_rs::error::Error;
use gloo_rs::rendezvous::launch::Launch;
use gloo_rs::tuner::file::Tuning;
use gloo_rs::tuner::model::Topology;

use crate::Failure;
use crate::bench::measure::largest_of_all_ranks;
use crate::parse::{self, Several};
use crate::progress::Progress;
use crate::ranks::{self, Member};
use grid::Grid;
use report::Summary;

/// Ranks wait for each other longer than elsewhere: some of the algorithms that are measured are slow.
const TIMEOUT: Duration = Duration::from_secs(120);

const EXAMPLES: &str = "\
Examples:
  gloo-rs tune -n 8 --output tuning.toml               all collectives on this host; then set GLOO_RS_TUNING=tuning.toml
  gloo-rs tune --collective allreduce --plot times.svg see the times of all algorithms
  gloo-rs run --hosts hosts.txt -- gloo-rs tune --budget 300 --output tuning.toml";

/// Measure which algorithm is the fastest for which size, and write the result to a file for GLOO_RS_TUNING
///
/// Starts ranks on this host, or runs as a rank of a job that a launcher started (if its variables are set; see
/// docs/launchers.md): `gloo-rs run --hosts FILE -- gloo-rs tune ...`. Every algorithm's result is verified. `auto` is
/// measured alternately with the algorithms, and compared with the best of them.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of ranks; default: 2, or that of the job
    #[arg(short = 'n', long, value_name = "P", value_parser = clap::value_parser!(u32).range(2..))]
    ranks: Option<u32>,

    /// Collectives to measure; default: all that have more than one algorithm
    #[arg(long, value_name = "C,..", value_delimiter = ',', value_parser = parse::collective)]
    collective: Vec<Collective>,

    /// Sizes of a rank's buffer in bytes: a list, 4,64Ki,1Mi, or a range, doubled each time: 4..256Mi, or times four:
    /// 4..256Mi:4
    #[arg(long, default_value = "4..256Mi:4", value_name = "SIZES", value_parser = sizes)]
    sizes: Several,

    /// Time for all measurements; large sizes that do not fit are left out
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = parse::seconds)]
    budget: Duration,

    /// The tuning file to write. If it exists, its entries for other collectives, numbers of ranks and of hosts are
    /// kept
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Draw time against bytes as an SVG; with several collectives one for each, named FILE-allreduce.svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Also measure the bandwidth from each rank to each, for spanning_trees
    #[arg(long)]
    topology: bool,

    /// Time limit for connecting, and for every call; default: that of GLOO_RS_TIMEOUT, or 120
    #[arg(long, value_name = "SECONDS", value_parser = parse::seconds)]
    timeout: Option<Duration>,

    /// Network interfaces to use: eth0,ib*,10.0.0.0/8 in order of preference, or ^docker* for all but those
    #[arg(long, value_name = "LIST", value_parser = crate::parse::interfaces)]
    interface: Option<String>,

    /// Print JSON objects, one per line: one for each size, and one at the end
    #[arg(long)]
    json: bool,
}

/// In ascending order.
fn sizes(text: &str) -> Result<Several, String> {
    let Several(mut sizes) = parse::sizes(text)?;
    if sizes.contains(&0) {
        return Err("0 bytes are no message".into());
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(Several(sizes))
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    if Launch::is_launched() {
        // Print the error before the other ranks notice the failure: a launcher ends this rank then.
        let mut member = None;
        return match take_part(&args, &mut member) {
            Ok(true) => 0,
            Ok(false) => crate::FAILED,
            Err(failure) => ranks::failed(&failure),
        };
    }
    let ranks = args.ranks.unwrap_or(2) as usize;
    let valid = args.collectives(&Topology::one_host(ranks, 1)).and_then(|_| args.old()).map_err(Failure::usage);
    match valid.and_then(|_| args.timeout()) {
        Ok(_) => ranks::start(ranks, false),
        Err(failure) => crate::fail(&failure.message, failure.code),
    }
}

impl Args {
    fn timeout(&self) -> Result<Duration, Failure> {
        ranks::timeout(self.timeout, TIMEOUT)
    }

    /// The collectives to measure. Fails if `--collective` names one that this number of ranks does not have.
    fn collectives(&self, topology: &Topology) -> Result<Vec<Collective>, String> {
        let ranks = topology.hosts.len();
        if ranks < 2 {
            return Err("one rank alone has nothing to tune; say --ranks 2 or more".into());
        }
        if self.collective.is_empty() {
            let several = |collective: &Collective| grid::choice(*collective, topology) > 1;
            return Ok(Collective::ALL.iter().copied().filter(several).collect());
        }
        let mut chosen = self.collective.clone();
        chosen.sort_unstable();
        chosen.dedup();
        chosen.iter().try_for_each(|collective| grid::check(*collective, ranks))?;
        Ok(chosen)
    }

    /// The file of each collective's chart, of all that may be measured.
    fn charts(&self) -> BTreeMap<Collective, PathBuf> {
        let collectives = if self.collective.is_empty() { Collective::ALL } else { &self.collective };
        self.plot.as_deref().map(|path| chart::files(path, collectives)).unwrap_or_default()
    }

    /// The existing contents of the output file. Fails if the output could not be written at the end.
    fn old(&self) -> Result<Tuning, String> {
        let refused = |path: &Path, why| format!("--plot: cannot write {}: {why}", path.display());
        // Before the names of several collectives are made of it.
        self.plot.iter().try_for_each(|path| parse::chart_name(path).map_err(|why| refused(path, why)))?;
        for path in self.charts().values() {
            parse::writable(path).map_err(|why| refused(path, why))?;
        }
        self.output.as_deref().map_or(Ok(Tuning::default()), report::read)
    }
}

/// Runs this rank's part; `member` is set once it has connected. Returns whether all results were right, on all ranks.
fn take_part(args: &Args, member: &mut Option<Member>) -> Result<bool, Failure> {
    let timeout = args.timeout()?;
    let launch = ranks::launch(args.ranks, timeout)?;
    let (rank, ranks) = (launch.rank, launch.size);
    // Before it connects: whether the arguments are right. What can be selected is known later.
    args.collectives(&Topology::one_host(ranks, 1)).map_err(Failure::usage)?;
    // Before other ranks wait for a measurement whose output could not be written.
    let old = if rank == 0 { args.old().map_err(Failure::usage)? } else { Tuning::default() };
    let member = member.insert(Member::join(launch, timeout, args.interface.as_deref(), (None, None))?);
    let says = |error: Error| ranks::says(rank, &error);
    let streams = streams::choose(member, args.interface.as_deref(), timeout).map_err(says)?;
    let streams = streams.map(|(better, streams)| {
        *member = better;
        streams
    });
    let collectives = args.collectives(member.context.topology())?;

    let first = rank == 0;
    let transport = ranks::transport_in_words(&member.context)?;
    if first && !args.json {
        crate::print(&report::head(ranks, &transport))?;
    }
    let plan = plan(&collectives, &args.sizes.0);
    let mut grid = Grid::new(member, args.budget, plan.len());
    let progress = Progress::of(plan.len() as u64, first);
    let (mut points, mut unmeasured) = (Vec::new(), BTreeMap::new());
    for (done, (collective, bytes)) in plan.into_iter().enumerate() {
        progress.reach(done as u64, format!("{} {}", collective.name(), parse::size_text(bytes)));
        if unmeasured.contains_key(collective.name()) {
            grid.give_up();
            continue;
        }
        let Some(work) = grid.workload(collective, bytes)? else { continue };
        let Some(point) = grid.measure(collective, &work)? else {
            unmeasured.insert(collective.name(), bytes);
            continue;
        };
        if let Some(wrong) = &point.wrong {
            progress.suspend(|| crate::say(&format!("rank {rank}: {} bytes of {wrong}", point.bytes)));
        }
        if first {
            let line = report::line(&point, ranks, args.json)?;
            progress.suspend(|| crate::print(&line))?;
        }
        points.push(point);
    }

    drop(progress);
    let choices = report::choices(&points, ranks, member.context.topology().host_count());
    let mut tuning = Tuning { choices, ..constants::measure(member, timeout).map_err(says)? };
    if let Some(streams) = streams {
        tuning.constants.insert("streams", streams.into());
    }
    if args.topology {
        tuning.links = topology::measure(member).map_err(says)?;
    }
    if first {
        crate::print(&Summary::new(&points, &tuning, unmeasured).text(args.json)?)?;
        chart::plot(&args.charts(), &points, ranks, &transport)?;
        if let Some(path) = &args.output {
            report::write(path, &report::merged(old, tuning))?;
        }
    }
    // No rank leaves before everything is written: a launcher may end the others as soon as one has failed.
    largest_of_all_ranks(&member.context, &mut [0.0]).map_err(says)?;
    Ok(points.iter().all(|point| point.verified))
}

/// All points; small sizes of all collectives come first, so that the budget runs out at large sizes of all.
fn plan(collectives: &[Collective], sizes: &[usize]) -> Vec<(Collective, usize)> {
    let (barriers, others): (Vec<_>, Vec<_>) =
        collectives.iter().partition(|&&collective| collective == Collective::Barrier);
    let barriers = barriers.into_iter().map(|barrier| (barrier, 0));
    let of_size = |&bytes: &usize| others.iter().map(move |collective| (*collective, bytes));
    barriers.chain(sizes.iter().flat_map(of_size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_a_range_and_as_a_list() {
        assert_eq!(sizes("4..256Mi:4").unwrap().0.len(), 14);
        assert_eq!(sizes("64Ki,4,64Ki"), Ok(Several(vec![4, 65536])));
        for (text, part) in [("8..4", "not a range"), ("0", "0 bytes"), ("4..", "not a size"), ("4Qi", "not a size")] {
            assert!(sizes(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn small_sizes_come_first_and_a_barrier_has_one() {
        use Collective::*;
        let plan = plan(&[Allreduce, Broadcast, Barrier], &[4, 16]);
        assert_eq!(plan, [(Barrier, 0), (Allreduce, 4), (Broadcast, 4), (Allreduce, 16), (Broadcast, 16)]);
    }
}

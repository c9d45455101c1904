//! `gloo-rs info --explain`: the algorithm that `auto` selects for a call, and the reason.

use std::collections::BTreeMap;

use gloo_rs::collective::Collective;
use gloo_rs::collective::constants::{self, Constant, TABLE};
use gloo_rs::context::ContextOptions;
use gloo_rs::environment::{self, SHARED_MEMORY};
use gloo_rs::error::Error;
use gloo_rs::publications::MAX_MEMBERS;
use gloo_rs::schedule::cost::Link;
use gloo_rs::tuner::model::{PricedAlgorithm, Topology};
use gloo_rs::tuner::overrides::{self, Overrides};
use gloo_rs::tuner::source::{self, Source};
use gloo_rs::tuner::{Explanation, Tuner, Why};
use serde::Serialize;

use crate::Failure;
use crate::parse::{self, counted, size_text};
use crate::simulate::network::{self, Caches, Hosts};

#[derive(clap::Args)]
pub struct Explain {
    /// Show instead the cost of every algorithm for a call of this many bytes, the one that auto selects, and the
    /// reason. A barrier has 0 bytes
    #[arg(long, num_args = 2, value_names = ["COLLECTIVE", "BYTES"])]
    explain: Option<Vec<String>>,

    /// Ranks of the call; default: those of --hosts, or 2
    #[arg(short = 'n', long, value_name = "P", value_parser = parse::ranks, requires = "explain")]
    ranks: Option<usize>,

    /// A tuning file, or default for built-in constants; overrides GLOO_RS_TUNING
    #[arg(long, value_name = "FILE", requires = "explain")]
    tuning: Option<String>,

    /// Ranks with consecutive numbers on each host: 4x8 for 4 hosts of 8, or 8,8,4; default: all ranks on one host
    #[arg(long, value_name = "HOSTS", value_parser = network::hosts, requires = "explain")]
    hosts: Option<Hosts>,

    /// All ranks on one host, with consecutive numbers in each last-level cache: 4x8 for 4 caches of 8 ranks, 2x4x8 for
    /// 2 sockets of 4 such caches
    #[arg(long, value_name = "CACHES", value_parser = network::caches, conflicts_with = "hosts", requires = "explain")]
    caches: Option<Caches>,

    /// Cores that the ranks of a host share; default: those of this host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "explain")]
    cores: Option<u32>,
}

#[derive(Serialize)]
struct Report {
    collective: &'static str,
    bytes: usize,
    ranks: usize,
    hosts: usize,
    cores: usize,
    /// The tuning file.
    tuning: Option<String>,
    /// Whether a job measures the constants that are built in here.
    measures: bool,
    /// Constants of the model.
    local: Constants,
    remote: Constants,
    reduction_bytes_per_s: f64,
    reduction_built_in: bool,
    /// The other constants of the model, by their names in a tuning file.
    constants: BTreeMap<&'static str, Value>,
    chosen: Candidate,
    why: String,
    /// Ordered by cost, the lowest first.
    candidates: Vec<Candidate>,
}

#[derive(Serialize)]
struct Constants {
    latency_us: f64,
    bandwidth: f64,
    built_in: bool,
}

#[derive(Serialize)]
struct Value {
    value: f64,
    built_in: bool,
    /// The source of the built-in value.
    source: &'static str,
}

#[derive(Serialize)]
struct Candidate {
    algorithm: &'static str,
    /// Group size, of `bcube`.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<usize>,
    segment_bytes: usize,
    /// None if the algorithm has no cost formula for this call.
    total_us: Option<f64>,
    path_us: Option<f64>,
    work_us: Option<f64>,
    /// On the rank that needs most, in place or not.
    scratch_bytes: usize,
}

impl Explain {
    /// The explanation as text, if it was requested.
    pub fn text(&self, json: bool) -> Option<Result<String, Failure>> {
        let [collective, bytes] = self.explain.as_deref()? else { return None };
        Some(self.report(collective, bytes).and_then(|report| {
            let text = || serde_json::to_string(&report).map_err(|error| error.to_string());
            Ok(if json { text()? } else { table(&report) })
        }))
    }

    fn report(&self, collective: &str, bytes: &str) -> Result<Report, Failure> {
        let collective =
            parse::collective(collective).map_err(|what| Failure::usage(format!("--explain {collective}: {what}")))?;
        let bytes = parse::size(bytes).map_err(|what| Failure::usage(format!("--explain: {what}")))?;
        let given = self.hosts.as_ref().map(Hosts::ranks).or(self.caches.as_ref().map(Caches::ranks));
        let ranks = self.ranks.or(given).unwrap_or(2);
        if collective == Collective::PairwiseExchange && (ranks < 2 || !ranks.is_power_of_two()) {
            let what = format!("{} needs a power of two of ranks, at least 2, not {ranks}", collective.name());
            return Err(Failure::usage(what));
        }
        let here = || std::thread::available_parallelism().map_or(1, usize::from);
        let cores = self.cores.map_or_else(here, |cores| cores as usize);
        let places = match &self.hosts {
            None => Topology::one_host(ranks, cores),
            Some(hosts) => Topology::without_shared_memory(hosts.of_ranks(ranks).map_err(Failure::usage)?, cores),
        };
        let domains = self.caches.as_ref().map(|caches| caches.of_ranks(ranks).map_err(Failure::usage)).transpose()?;
        let allowed = environment::switch(SHARED_MEMORY).map_err(|error| error.to_string())? != Some(false);
        let shared = allowed && (2..=MAX_MEMBERS).contains(&places.max_on_a_host());
        let places = Topology { shared, domains: domains.unwrap_or_default(), ..places };
        let hosts = places.host_count();
        let says = |error: Error| error.to_string();
        let (source, named) = match &self.tuning {
            Some(text) => {
                let source = Source::read(text).map_err(|error| error.context("--tuning"));
                (source.map_err(|error| Failure::usage(says(error))), "--tuning")
            }
            None => (Source::from_environment().map_err(|error| says(error).into()), source::VARIABLE),
        };
        let Source { tuning, file, measures } = source?;
        let overrides = Overrides::from_environment().map_err(says)?;
        let known = (tuning.local.is_some(), tuning.remote.is_some());
        let (of_file, reduction_built_in) = (tuning.constants.clone(), tuning.gamma.is_none());
        let tuning = if measures { tuning.on_this_processor() } else { tuning };
        let tuner = Tuner::new(tuning, overrides, places, ContextOptions::default().max_segment_bytes);
        let Explanation { chosen, why, candidates } = tuner.explain(collective, bytes);
        let constants::Constants { local, remote, gamma, .. } = *tuner.constants();
        let link = |link: Link, known: bool| Constants {
            latency_us: (link.latency * 1e9).round() / 1e3,
            bandwidth: link.bandwidth,
            built_in: !known,
        };
        let value = |constant: &Constant| {
            let built_in = !of_file.contains_key(constant.name);
            let of_processor = built_in && tuner.tuning().constants.contains_key(constant.name);
            let source = if of_processor { "measured on a processor of this kind" } else { constant.source };
            (constant.name, Value { value: constant.of(tuner.constants()), built_in, source })
        };
        let measured = [(true, known.0), (hosts > 1, known.1)].iter().any(|(used, known)| *used && !known);
        Ok(Report {
            tuning: file.map(|file| format!("{}, as {named} says", file.display())),
            measures: measures && measured,
            collective: collective.name(),
            bytes,
            ranks,
            hosts,
            cores,
            local: link(local, known.0),
            remote: link(remote, known.1),
            reduction_bytes_per_s: 1.0 / gamma.max(1e-18),
            reduction_built_in,
            constants: TABLE.iter().map(value).collect(),
            chosen: chosen.into(),
            why: match why {
                Why::Model => "it has the lowest price".to_owned(),
                Why::File { ranks } => format!("the tuning file says so of {}", counted(ranks, "rank")),
                Why::Override => format!("the environment variable {} says so", overrides::VARIABLE),
            },
            candidates: candidates.into_iter().map(Candidate::from).collect(),
        })
    }
}

impl From<PricedAlgorithm> for Candidate {
    fn from(priced: PricedAlgorithm) -> Self {
        let us = |seconds: f64| seconds.is_finite().then_some(seconds * 1e6);
        Self {
            algorithm: priced.algorithm.name,
            base: priced.base,
            segment_bytes: priced.segment_bytes,
            total_us: us(priced.total),
            path_us: us(priced.path),
            work_us: us(priced.work),
            scratch_bytes: priced.scratch,
        }
    }
}

impl Candidate {
    fn name(&self) -> String {
        let base = self.base.map(|base| format!(", groups of {base}")).unwrap_or_default();
        format!("{}{base}", self.algorithm)
    }
}

fn table(report: &Report) -> String {
    let Report { collective, bytes, ranks, hosts, cores, chosen, why, candidates, .. } = report;
    let constants = |name: &str, of: &Constants| {
        let built_in = match (of.built_in, report.measures) {
            (false, _) => "",
            (true, false) => " (built in)",
            (true, true) => " (built in; jobs measure their own)",
        };
        format!("{name:11} {:.2} µs, {:.3} GB/s{built_in}", of.latency_us, of.bandwidth / 1e9)
    };
    let mut lines = vec![format!(
        "{collective} of {}, {} on {} with {}",
        size_text(*bytes),
        counted(*ranks, "rank"),
        counted(*hosts, "host"),
        counted(*cores, "core")
    )];
    lines.extend(report.tuning.as_ref().map(|file| format!("tuning      {file}")));
    lines.push(constants("local", &report.local));
    if *hosts > 1 {
        lines.push(constants("remote", &report.remote));
    }
    let built_in = |built_in: bool| if built_in { " (built in)" } else { "" };
    if *hosts > 1 {
        let constant = |name: &str| (report.constants[name].value, report.constants[name].built_in);
        let ((o, o_built_in), (g, g_built_in)) = (constant("overhead_us"), constant("gap_us"));
        let measured =
            if o_built_in && report.remote.built_in && report.measures { "; jobs measure their own" } else { "" };
        let o_built_in = if o_built_in { format!(" (built in{measured})") } else { String::new() };
        lines.push(format!(
            "a message   {o:.2} µs of either rank's time{o_built_in}, {g:.2} µs apart{}",
            built_in(g_built_in)
        ));
    }
    let reduction = built_in(report.reduction_built_in);
    lines.push(format!("reduction   {:.3} GB/s{reduction}", report.reduction_bytes_per_s / 1e9));
    let others =
        report.constants.iter().filter(|(name, of)| !of.built_in && !["overhead_us", "gap_us"].contains(*name));
    let others: Vec<_> = others.map(|(name, of)| format!("{name} = {}", of.value)).collect();
    if !others.is_empty() {
        lines.push(format!("constants   {}; the others are built in", others.join(", ")));
    }
    let segments = size_text(chosen.segment_bytes);
    lines.push(format!("chosen      {}, segments of up to {segments}: {why}", chosen.name()));
    lines.push(String::new());
    let titles = ["segment", "price µs", "path µs", "work µs", "scratch"];
    lines.push(format!(
        "{:<26}{:>10}{:>14}{:>14}{:>14}{:>10}",
        "algorithm", titles[0], titles[1], titles[2], titles[3], titles[4]
    ));
    for candidate in candidates {
        let us = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.2}"));
        let Candidate { segment_bytes, total_us, path_us, work_us, scratch_bytes, .. } = candidate;
        let (name, segment, scratch) = (candidate.name(), size_text(*segment_bytes), size_text(*scratch_bytes));
        let numbers = [total_us, path_us, work_us].map(|number| format!(" {:>13}", us(*number))).concat();
        lines.push(format!("{name:<26}{segment:>10}{numbers}{scratch:>10}"));
    }
    lines.join("\n")
}

//! Jobs of four processes, and their reports.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gloo_rs::collective::Collective;
use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::Error;
use gloo_rs::rendezvous::tcp::TcpStoreOptions;
use gloo_rs::rendezvous::{PrefixStore, Store, TcpStore};
use gloo_rs::transport::device::{Device, DeviceOptions};

use super::calls::{Case, count_ranks};

pub const SIZE: usize = 4;
/// The rank that fails.
pub const VICTIM: usize = 2;
/// Timeout of operations that must succeed; never reached by a test that passes.
pub const LONG: Duration = Duration::from_secs(60);
/// Time that a loaded machine may need beyond the documented second.
pub const SLACK: Duration = Duration::from_secs(5);
/// Elements of a block: its messages exceed the eager limit, so no rank completes the call without the others.
pub const COUNT: usize = 150_000;

const VARIABLE: &str = "GLOO_RS_TEST_RANK";
/// Begins the line of a report; fields follow, separated by this.
const REPORT: &str = "@report";
const BETWEEN: char = '\t';

/// The result of one call on one rank.
#[derive(Clone, Debug)]
pub struct Report {
    pub rank: usize,
    pub cell: String,
    pub elapsed: Duration,
    /// The kind and the text of its error; `Ok` and nothing after a success.
    pub kind: String,
    pub text: String,
}

/// A running job, in the test's process.
pub struct Job {
    pub store: TcpStore,
    pub children: Vec<Child>,
    /// More variables of the ranks' environment.
    variables: Vec<(&'static str, String)>,
    readers: Vec<JoinHandle<Vec<String>>>,
}

impl Job {
    /// Starts all ranks. `what` is an argument for the scenario.
    pub fn start(scenario: &str, what: &str) -> Self {
        Self::start_with(scenario, what, &TcpStoreOptions::default(), Vec::new())
    }

    /// Like [`Job::start`], with a store with these options and ranks with these variables.
    pub fn start_with(
        scenario: &str,
        what: &str,
        options: &TcpStoreOptions,
        variables: Vec<(&'static str, String)>,
    ) -> Self {
        let store = TcpStore::serve_with("127.0.0.1", 0, options).unwrap();
        let mut job = Self { store, children: Vec::new(), variables, readers: Vec::new() };
        (0..SIZE).for_each(|rank| job.spawn(scenario, what, rank));
        job
    }

    /// Starts one more rank.
    pub fn spawn(&mut self, scenario: &str, what: &str, rank: usize) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failures::one_rank", "--ignored", "--nocapture"])
            .env(VARIABLE, format!("{rank} {} {scenario} {what}", self.store.port()))
            // These scenarios are about connections.
            .env("GLOO_RS_SHM", if scenario == "descriptors" || what == "reset" { "0" } else { "1" })
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The output is read continuously: a full pipe would block the rank.
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        self.readers.push(std::thread::spawn(move || lines.map_while(Result::ok).collect()));
        if rank < self.children.len() {
            self.children[rank] = child;
        } else {
            self.children.push(child);
        }
    }

    /// Waits until all ranks have set `{prefix}{rank}`.
    pub fn wait_all(&self, prefix: &str) {
        wait_all(&self.store, prefix);
    }

    pub fn signal(&self, rank: usize, signal: libc::c_int) {
        // SAFETY: the call accesses no memory; the process is a child that has not been waited for, so its id is valid.
        assert_eq!(unsafe { libc::kill(self.children[rank].id() as i32, signal) }, 0);
    }

    /// Waits for all ranks, of which those in `killed` were killed. Returns the reports.
    pub fn finish(self, killed: &[usize]) -> Vec<Report> {
        self.finish_lines(killed).iter().filter_map(|line| parse(line)).collect()
    }

    /// Like [`Job::finish`], but returns the whole output.
    pub fn finish_lines(mut self, killed: &[usize]) -> Vec<String> {
        let mut failed = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
            let status = wait_for(child);
            if !killed.contains(&rank) && status.is_none_or(|s| !s.success()) {
                failed.push(format!("rank {rank} ended with {status:?}"));
            }
        }
        let lines: Vec<String> = self.readers.drain(..).flat_map(|r| r.join().unwrap()).collect();
        assert!(failed.is_empty(), "{failed:?}\n{}", lines.join("\n"));
        lines
    }
}

fn wait_for(child: &mut Child) -> Option<std::process::ExitStatus> {
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn parse(line: &str) -> Option<Report> {
    // The test harness may have written before it on the same line.
    let (_, line) = line.split_once(REPORT)?;
    let mut fields = line.splitn(6, BETWEEN).skip(1).map(str::to_owned);
    let mut next = || fields.next().unwrap();
    Some(Report {
        rank: next().parse().unwrap(),
        cell: next(),
        elapsed: Duration::from_millis(next().parse().unwrap()),
        kind: next(),
        text: next(),
    })
}

/// By cell, the reports in the order of ranks.
pub fn by_cell(reports: &[Report]) -> HashMap<String, Vec<Report>> {
    let mut cells: HashMap<String, Vec<Report>> = HashMap::new();
    reports.iter().for_each(|r| cells.entry(r.cell.clone()).or_default().push(r.clone()));
    cells.values_mut().for_each(|reports| reports.sort_by_key(|r| r.rank));
    cells
}

/// The reports of `ranks` on every collective; each rank has one.
pub fn by_collective(reports: &[Report], ranks: &[usize]) -> Vec<(Collective, Vec<Report>)> {
    let cells = by_cell(reports);
    let each = Collective::ALL.iter().map(|collective| {
        let reports = cells.get(collective.name()).cloned().unwrap_or_default();
        assert_eq!(reports.iter().map(|r| r.rank).collect::<Vec<_>>(), ranks, "{}: {reports:#?}", collective.name());
        (*collective, reports)
    });
    each.collect()
}

/// Checks that an error's text has the rank, the operation, the bytes, and the elapsed time.
pub fn assert_complete(collective: Collective, report: &Report) {
    let Report { rank, text, .. } = report;
    let name = collective.name();
    assert!(text.starts_with(&format!("rank {rank}: {name} ")), "{text}");
    assert!(collective == Collective::Barrier || text.contains(" of "), "{text}");
    assert!(
        collective == Collective::Barrier || text.contains(" float32 (") && text.contains(" bytes), tag 3"),
        "{text}"
    );
    assert!(text.contains(": after 0.") || text.contains(": after 1.") || text.contains(": after 2."), "{text}");
    assert!(text.contains(" at 127.0.0.1:"), "{text}");
}

pub fn wait_all(store: &dyn Store, prefix: &str) {
    let keys: Vec<String> = (0..SIZE).map(|rank| format!("{prefix}{rank}")).collect();
    store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), LONG).unwrap();
}

/// One process of a job.
pub struct Rank {
    pub rank: usize,
    pub port: u16,
    pub scenario: String,
    /// Argument for the scenario.
    pub what: String,
    pub store: Arc<TcpStore>,
    pub device: Arc<Device>,
}

impl Rank {
    pub fn from_environment() -> Self {
        let text = std::env::var(VARIABLE).unwrap();
        let mut fields = text.splitn(4, ' ');
        let mut next = || fields.next().unwrap().to_owned();
        let (rank, port) = (next().parse().unwrap(), next().parse().unwrap());
        // Ends a rank whose test has ended without it.
        std::thread::spawn(|| {
            std::thread::sleep(LONG * 10);
            std::process::exit(3);
        });
        Self {
            rank,
            port,
            scenario: next(),
            what: next(),
            store: Arc::new(TcpStore::connect("127.0.0.1", port, LONG).unwrap()),
            device: device(),
        }
    }

    /// The context of `ranks`, which are numbered from 0 in it.
    pub fn connect(&self, prefix: &str, ranks: &[usize], options: &ContextOptions) -> Result<Arc<Context>, Error> {
        let rank = ranks.iter().position(|r| *r == self.rank).unwrap();
        let context = Context::new(self.device.clone(), rank, ranks.len(), options)?;
        context.connect(&PrefixStore::new(prefix, self.store.clone()))?;
        let shares = std::env::var("GLOO_RS_SHM").as_deref() == Ok("1");
        (0..ranks.len()).filter(|other| *other != rank).for_each(|other| {
            assert_eq!(context.shares_memory(other).unwrap(), shares, "rank {rank}, with rank {other}");
        });
        Ok(context)
    }

    /// Sets a key that contains this rank.
    pub fn mark(&self, prefix: &str) {
        self.store.set(&format!("{prefix}{}", self.rank), b"").unwrap();
    }

    pub fn report(&self, cell: &str, started: Instant, result: &Result<(), Error>) {
        let (kind, text) = match result {
            Ok(()) => ("Ok".to_owned(), String::new()),
            Err(error) => (format!("{:?}", error.kind()), error.message().replace(['\n', BETWEEN], " ")),
        };
        let (rank, ms) = (self.rank, started.elapsed().as_millis());
        // In one write, so that it is not mixed with another thread's line.
        println!("{REPORT}{BETWEEN}{rank}{BETWEEN}{cell}{BETWEEN}{ms}{BETWEEN}{kind}{BETWEEN}{text}");
    }

    /// Connects a context for each collective.
    pub fn contexts(&self, timeout: Duration) -> Vec<(Collective, Arc<Context>)> {
        let options = ContextOptions { timeout: LONG, ..Default::default() };
        let connect = |collective: &Collective| {
            let context = self.connect(collective.name(), &[0, 1, 2, 3], &options).unwrap();
            context.set_timeout(timeout);
            (*collective, context)
        };
        Collective::ALL.iter().map(connect).collect()
    }

    /// Calls `collective` until it fails, and reports the error.
    pub fn call_until_it_fails(&self, collective: Collective, context: &Context) {
        let case = Case::new(collective, COUNT);
        let mut started = Instant::now();
        let error = loop {
            if let Err(error) = case.run(context) {
                break error;
            }
            started = Instant::now();
        };
        self.report(collective.name(), started, &Err(error.clone()));
        // The context has the same error, and no operation runs on it any more.
        let broken = context.broken().expect("the context is broken");
        let again = case.run(context).unwrap_err();
        assert!(again.message().contains("the context is broken: "), "{again}");
        assert!(again.message().contains(broken.message()), "{again}");
    }

    /// All collectives at the same time, each in a thread with a context of its own, until they have failed; then the
    /// ranks `left` continue with new contexts over the same store. Every rank sets `running/`, and `ran` is called
    /// once a first call of each collective has succeeded here.
    pub fn run_all(&self, timeout: Duration, left: &[usize], ran: impl FnOnce(&[(Collective, Arc<Context>)])) {
        let contexts = self.contexts(LONG);
        std::thread::scope(|scope| {
            let started: Vec<_> = contexts
                .iter()
                .map(|(collective, context)| scope.spawn(move || Case::new(*collective, COUNT).run(context).unwrap()))
                .collect();
            started.into_iter().for_each(|t| t.join().unwrap());
            contexts.iter().for_each(|(_, context)| context.set_timeout(timeout));
            self.mark("running/");
            wait_all(&*self.store, "running/");
            for (collective, context) in &contexts {
                scope.spawn(move || self.call_until_it_fails(*collective, context));
            }
            ran(&contexts);
        });
        drop(contexts);
        self.progress(left);
    }

    /// The ranks `left` connect again, and sum over themselves.
    pub fn progress(&self, left: &[usize]) {
        let options = ContextOptions { timeout: LONG, ..Default::default() };
        let context = self.connect(&format!("again {left:?}"), left, &options).unwrap();
        assert_eq!(count_ranks(&context).unwrap(), left.len() as f32);
    }
}

pub fn device() -> Arc<Device> {
    Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap()
}

//! `gloo-rs top`, of jobs of processes that run.

use std::fs;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::error::Result;
use gloo_rs::rendezvous::launch::Launch;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;
use serde_json::Value;

use crate::launcher::{Job, PATIENCE, gloo_rs, text};

/// Names the file for which the rank that is behind waits to the ranks of a job.
const RELEASE: &str = "GLOO_RS_TEST_RELEASE";
/// What that rank says before it waits.
const WAITS: &str = "waits for its release";
/// Calls that all ranks make before.
const CALLS: usize = 5;

fn sum(context: &Context) -> Result<()> {
    let mut numbers = [1f32; 1000];
    let outputs = [numbers.as_mut_ptr().cast()];
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), numbers.len());
    let call = Call { outputs: &outputs, ..Call::new(Shape { inputs: 0, ..shape }, DataType::Float32) };
    // SAFETY: the array is as long as the shape says, and lives until the call returns.
    unsafe { context.run(&call) }
}

/// One rank of the job below. Rank 2 makes its last call when it is told to.
#[test]
#[ignore = "a process of another test"]
fn one_rank() {
    let launch = Launch::from_environment(PATIENCE).unwrap();
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let options = ContextOptions { timeout: PATIENCE, ..Default::default() };
    let context = Context::new(device, launch.rank, launch.size, &options).unwrap();
    context.connect(&*launch.store).unwrap();
    (0..CALLS).for_each(|_| sum(&context).unwrap());
    let release = std::env::var(RELEASE).unwrap();
    if launch.rank == 2 {
        println!("\n{WAITS}");
    }
    let start = Instant::now();
    while launch.rank == 2 && !Path::new(&release).exists() {
        assert!(start.elapsed() < PATIENCE, "nobody releases the rank");
        std::thread::sleep(Duration::from_millis(10));
    }
    sum(&context).unwrap();
}

/// Starts the job; returns it with the launcher's process.
fn start(release: &Path, variables: &[(&str, &str)]) -> (Job, String) {
    let program = std::env::current_exe().unwrap();
    let rank = ["--exact", "top::one_rank", "--ignored", "--nocapture"];
    let mut job = gloo_rs(&[&["run", "-n", "4", "--", program.to_str().unwrap()][..], &rank].concat());
    job.env(RELEASE, release).envs(variables.iter().copied());
    let job = Job::spawn(job);
    let process = job.launcher.id().to_string();
    (job, process)
}

/// Looks until rank 2 is seen to be behind, and returns what was seen then.
fn behind(process: &str) -> Value {
    let start = Instant::now();
    loop {
        let output = gloo_rs(&["top", "--once", "--json", "--late", "0.1", process]).output().unwrap();
        // The ranks have no devices at first.
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if seen["contexts"][0]["findings"]["behind"][0]["inside"] == serde_json::json!([0, 1, 3]) {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "{output:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn end(job: Job, release: &Path) {
    fs::write(release, "").unwrap();
    let output = job.end();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_rank_that_is_late_is_named_while_the_others_wait() {
    for shared_memory in ["1", "0"] {
        let folder = tempfile::tempdir().unwrap();
        let release = folder.path().join("release");
        let (job, launcher) = start(&release, &[("GLOO_RS_TOP", "1"), ("GLOO_RS_SHM", shared_memory)]);
        let seen = behind(&launcher);
        let context = &seen["contexts"][0];
        assert_eq!(
            (&context["size"], &context["findings"]["behind"][0]["behind"]),
            (&4.into(), &serde_json::json!([2]))
        );
        let ranks = context["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 4, "{seen}");
        for rank in ranks {
            let is_late = rank["rank"] == 2;
            let calls: u64 =
                rank["counters"].as_array().unwrap().iter().map(|kind| kind["calls"].as_u64().unwrap()).sum();
            assert_eq!(calls, CALLS as u64 + u64::from(!is_late), "{rank}");
            let call = &rank["in_progress"][0];
            assert_eq!(call["number"], if is_late { Value::Null } else { (CALLS + 1).into() }, "{rank}");
            assert!(is_late || call["seconds"].as_f64().is_some(), "{rank}");
            let sent: u64 =
                rank["links"].as_array().unwrap().iter().map(|link| link["sent_bytes"].as_u64().unwrap()).sum();
            assert!(shared_memory == "1" || sent > 4000 * CALLS as u64, "{rank}");
        }
        // The process of a rank stands for its contexts, with all ranks.
        let rank = ranks[1]["process"].to_string();
        let output = gloo_rs(&["top", "--once", "--late", "0.1", &rank]).output().unwrap();
        let said = text(&output.stdout);
        for line in [
            "4 ranks over tcp, of which 4 answer here",
            "\nrank 2 is behind: not in allreduce number 6 on tag 0, in which ranks 0, 1 and 3 are\n",
            "\n  rank 2: in no collective; its last was allreduce number 5 on tag 0, ended ",
        ] {
            assert!(said.contains(line), "{line}\n{said}");
        }
        // With much patience, nobody is late.
        let output = gloo_rs(&["top", "--once", "--late", "1000", &rank]).output().unwrap();
        assert!(!text(&output.stdout).contains("is behind"), "{output:?}");
        assert_dumps(&launcher, &folder.path().join("job_"));
        end(job, &release);
    }
}

/// The records that `--dump` writes say the same.
fn assert_dumps(process: &str, prefix: &Path) {
    let output = gloo_rs(&["top", "--dump", prefix.to_str().unwrap(), process]).output().unwrap();
    let files: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    let expected: Vec<String> = (0..4).map(|rank| format!("{}{rank}", prefix.display())).collect();
    assert_eq!((output.status.success(), &files), (true, &expected), "{output:?}");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let output = gloo_rs(&[&["diagnose"], &files[..]].concat()).output().unwrap();
    assert!(text(&output.stdout).contains("rank 2 is behind: not in allreduce number 6 on tag 0"), "{output:?}");
}

/// Clients that hold connections and say nothing delay neither the job nor who asks.
#[test]
fn silent_clients_disturb_nobody_and_all_ends_with_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let release = folder.path().join("release");
    let (job, launcher) = start(&release, &[("GLOO_RS_TOP", "1")]);
    let seen = behind(&launcher);
    let processes: Vec<u64> =
        seen["contexts"][0]["ranks"].as_array().unwrap().iter().map(|rank| rank["process"].as_u64().unwrap()).collect();
    let names = |process: u64| {
        let text = fs::read_to_string("/proc/net/unix").unwrap();
        let prefix = format!("@gloo_rs-top/{process}/");
        let names = text.lines().filter_map(|line| line.rsplit(' ').next()).filter(|name| name.starts_with(&prefix));
        names.map(|name| name[1..].to_owned()).collect::<Vec<_>>()
    };
    let name = names(processes[0]).pop().expect("a socket of rank 0");
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let mut silent: Vec<UnixStream> = (0..12).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
    behind(&launcher);
    end(job, &release);
    silent.iter_mut().for_each(|stream| assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_))));
    assert!(processes.iter().all(|process| names(*process).is_empty()), "a socket is left");
}

#[test]
fn a_process_answers_only_if_it_was_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let release = folder.path().join("release");
    let (job, launcher) = start(&release, &[("GLOO_RS_TOP", "0")]);
    while !job.line().ends_with(WAITS) {}
    let output = gloo_rs(&["top", "--once", &launcher]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("were started without GLOO_RS_TOP=1"), "{output:?}");
    end(job, &release);
    for (process, why) in [(u32::MAX.to_string(), "there is no process"), ("0".into(), "invalid value '0'")] {
        let output = gloo_rs(&["top", "--once", &process]).output().unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains(why), "{output:?}");
    }
}

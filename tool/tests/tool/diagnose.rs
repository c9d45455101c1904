//! `gloo-rs diagnose`, of records that a job of processes has written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::error::Result;
use gloo_rs::rendezvous::launch::Launch;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;

use crate::launcher::{PATIENCE, gloo_rs, text};

/// Names the beginning of the records' names to the ranks of a job.
const PREFIX: &str = "GLOO_RS_RECORDER";
/// Calls that all ranks make.
const CALLS: usize = 5;

fn sum(context: &Context) -> Result<()> {
    let mut numbers = [1f32; 1000];
    let outputs = [numbers.as_mut_ptr().cast()];
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), numbers.len());
    let call = Call { outputs: &outputs, ..Call::new(Shape { inputs: 0, ..shape }, DataType::Float32) };
    // SAFETY: the array is as long as the shape says, and lives until the call returns.
    unsafe { context.run(&call) }
}

fn file(prefix: &str, rank: usize) -> PathBuf {
    PathBuf::from(format!("{prefix}{rank}"))
}

/// One rank of the job of four below. Rank 2 makes one call less, and writes its record when others have.
#[test]
#[ignore = "a process of another test"]
fn one_rank() {
    let prefix = std::env::var(PREFIX).unwrap();
    let launch = Launch::from_environment(PATIENCE).unwrap();
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let context = Context::new(device, launch.rank, launch.size, &ContextOptions::default()).unwrap();
    context.connect(&*launch.store).unwrap();
    (0..CALLS).for_each(|_| sum(&context).unwrap());
    if launch.rank != 2 {
        context.set_timeout(Duration::from_secs(1));
        let error = sum(&context).unwrap_err();
        assert!(error.message().contains("rank 2"), "{error}");
        return;
    }
    let start = Instant::now();
    while !(0..launch.size).filter(|rank| *rank != 2).all(|rank| file(&prefix, rank).exists()) {
        assert!(start.elapsed() < PATIENCE, "the others have not failed");
        std::thread::sleep(Duration::from_millis(10));
    }
    context.dump_recorder(&file(&prefix, 2)).unwrap();
}

/// Runs the job, whose records have names with this beginning.
fn run_job(prefix: &str, shared_memory: &str) {
    let program = std::env::current_exe().unwrap();
    let rank = ["--exact", "diagnose::one_rank", "--ignored", "--nocapture"];
    let mut job = gloo_rs(&[&["run", "-n", "4", "--", program.to_str().unwrap()][..], &rank].concat());
    let output = job.env(PREFIX, prefix).env("GLOO_RS_SHM", shared_memory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn diagnose(options: &[&str], prefix: &str, ranks: &[usize]) -> String {
    let files: Vec<String> = ranks.iter().map(|rank| file(prefix, *rank).to_str().unwrap().to_owned()).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let output = gloo_rs(&[&["diagnose"], options, &files].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn the_rank_that_is_behind_is_named() {
    for shared_memory in ["1", "0"] {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("job_").to_str().unwrap().to_owned();
        run_job(&prefix, shared_memory);
        let said = diagnose(&[], &prefix, &[3, 1, 0, 2]);
        let first = "4 ranks, of which 4 have a record here\n\
                     rank 2 is behind: not in allreduce number 6 on tag 0, in which ranks 0, 1 and 3 are\n";
        assert!(said.starts_with(first), "{said}");
        let last = "\n  rank 2: in no collective; its last was allreduce number 5 on tag 0, ended ";
        assert!(said.contains(last), "{said}");
        let failed = |rank: &usize| said.contains(&format!("\n  rank {rank}: allreduce ")) && said.contains("failed (");
        assert!([0, 1, 3].iter().all(failed), "{said}");
        // Without the record of the rank that is behind, it is missing.
        let said = diagnose(&[], &prefix, &[0, 1, 3]);
        assert!(said.contains("\nrank 2 has no record here"), "{said}");
        assert_pickles(&prefix, folder.path());
        assert_trace(&prefix, &folder.path().join("trace.json"));
    }
}

/// The last call of each of the other ranks lasts until its timeout.
fn assert_trace(prefix: &str, file: &Path) {
    diagnose(&["--trace", file.to_str().unwrap()], prefix, &[0, 1, 2, 3]);
    let trace: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    for rank in 0..4 {
        let own = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == rank);
        let calls: Vec<_> = own.filter(|event| event["cat"] == "call").collect();
        let failed = calls.iter().filter(|call| call["args"]["state"] == "failed" && call["dur"].as_f64() > Some(1e5));
        assert_eq!(failed.count(), usize::from(rank != 2), "{calls:?}");
        assert_eq!(calls.len(), if rank == 2 { CALLS } else { CALLS + 1 });
    }
}

fn assert_pickles(prefix: &str, folder: &Path) {
    let torch = folder.join("torch_").to_str().unwrap().to_owned();
    diagnose(&["--pickle", &torch], prefix, &[0, 1, 2, 3]);
    for rank in 0..4 {
        let pickle = fs::read(file(&torch, rank)).unwrap();
        assert!(pickle.starts_with(b"\x80\x02}(") && pickle.ends_with(b"u."), "{pickle:?}");
        let calls = pickle.windows(15).filter(|text| *text == b"gloo:all_reduce").count();
        assert_eq!(calls, if rank == 2 { CALLS } else { CALLS + 1 });
    }
}

#[test]
fn files_that_are_not_of_one_context_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let record = |name: &str, rank: usize, size: usize| {
        let path = folder.path().join(name);
        let text = format!(
            "{{\"version\": \"1\", \"rank\": {rank}, \"size\": {size}, \"time_ns\": 0, \"broken\": null, \"entries\": []}}"
        );
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b, c) = (record("a", 0, 2), record("b", 0, 2), record("c", 1, 3));
    for (files, why) in [
        ([&a, &b], "are both of rank 0"),
        ([&a, &c], "these are not of one context"),
        ([&a, &"/nowhere".to_owned()], "cannot read /nowhere"),
    ] {
        let output = gloo_rs(&["diagnose", files[0], files[1]]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
}

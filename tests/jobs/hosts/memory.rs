//! Hosts of several ranks that share memory, and that are connected by a network: calls that use both.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions, Reduction};
use gloo_rs::error::Error;
use gloo_rs::rendezvous::{self, Store};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;

use super::{RANK, SIZE, STORE, folder, wait_all};
use crate::netns::{Namespace, Network, Rank, Report, ran_as_root_elsewhere};
use crate::support::user_function::add;

/// What the ranks do.
const TASK: &str = "GLOO_RS_TEST_TASK";
/// Set for ranks that may not read another process.
const FORBIDDEN: &str = "GLOO_RS_TEST_FORBIDDEN";
/// Long enough for a busy machine; a test that waits for it has failed.
const TIMEOUT: Duration = Duration::from_secs(25);
const ALGORITHMS: [&str; 4] = ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd"];

/// An allreduce of `count` numbers, in place or not, with each rank's own at each place.
fn allreduce(context: &Context, algorithm: Option<&str>, count: usize, tag: u64, in_place: bool) -> Result<(), Error> {
    let (rank, size) = (context.rank(), context.size());
    let own: Vec<i64> = (0..count).map(|i| (i * (rank + 1)) as i64).collect();
    let mut output = if in_place { own.clone() } else { vec![0; count] };
    let shape = Shape { inputs: usize::from(!in_place), ..Shape::new(Collective::Allreduce, rank, size, count) };
    let inputs = [own.as_ptr().cast()];
    let call = Call {
        inputs: &inputs[..shape.inputs],
        outputs: &[output.as_mut_ptr().cast()],
        algorithm,
        tag,
        ..Call::new(shape, DataType::Int64)
    };
    // SAFETY: the vectors are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }?;
    let wrong = (0..count).find(|i| output[*i] != (i * size * (size + 1) / 2) as i64);
    assert_eq!(wrong, None, "{algorithm:?}, {count} numbers, in place {in_place}");
    Ok(())
}

/// Calls of all sizes, and at the same time on several tags.
fn works(context: &Arc<Context>) {
    for algorithm in ALGORITHMS.map(Some).into_iter().chain([None]) {
        for count in [0, 1, 3, 7, 100, 5000, 300_000] {
            for in_place in [false, true] {
                allreduce(context, algorithm, count, 0, in_place).unwrap();
            }
        }
        for call in 0..100 {
            allreduce(context, algorithm, call % 20, 0, call % 2 == 0).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for (tag, algorithm) in (0..).zip(ALGORITHMS) {
            scope.spawn(move || {
                (0..50).for_each(|call| allreduce(context, Some(algorithm), call * 100, tag, false).unwrap());
            });
        }
    });
    starts(context);
    combines_by_a_function(context);
    println!("\nworks: {}", context.topology().shared);
    println!("reads: {:?}", context.reads_memory().unwrap());
}

/// Lets this thread, and those that it starts, read no other process's memory.
fn forbid_reads() {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        // The call's number comes first in what a filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_process_vm_readv as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the calls have returned.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// A persistent request, and a call at the same time.
fn starts(context: &Arc<Context>) {
    let (input, mut output) = (vec![1i64; 1000], vec![0i64; 1000]);
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), 1000);
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        algorithm: Some("torus_2d"),
        tag: 5,
        ..Call::new(shape, DataType::Int64)
    };
    // SAFETY: the vectors are as long as the shape says, and nothing else uses them as long as the request exists.
    let request = unsafe { context.request(&call) }.unwrap();
    for round in 0..20 {
        request.start().unwrap();
        allreduce(context, Some("hierarchical"), round, 6, false).unwrap();
        request.wait().unwrap();
    }
    drop(request);
    assert_eq!(output, vec![context.size() as i64; 1000]);
}

fn combines_by_a_function(context: &Context) {
    let (input, mut output) = (vec![2i64; 3000], vec![0i64; 3000]);
    for algorithm in ALGORITHMS {
        let call = Call {
            inputs: &[input.as_ptr().cast()],
            outputs: &[output.as_mut_ptr().cast()],
            algorithm: Some(algorithm),
            reduction: Reduction::User { function: add::<i64>, user: std::ptr::null_mut() },
            ..Call::new(Shape::new(Collective::Allreduce, context.rank(), context.size(), 3000), DataType::Int64)
        };
        // SAFETY: the vectors are as long as the shape says and live until the call returns.
        unsafe { context.run(&call) }.unwrap();
        assert_eq!(output, vec![2 * context.size() as i64; 3000], "{algorithm}");
    }
}

/// Not a test by itself: one rank of a job. Prints its result to standard output.
#[test]
#[ignore = "run by the tests"]
fn one_rank() {
    let variable = |name: &str| std::env::var(name).unwrap();
    if std::env::var_os(FORBIDDEN).is_some() {
        forbid_reads();
    }
    let (rank, size) = (variable(RANK).parse().unwrap(), variable(SIZE).parse().unwrap());
    let store: Arc<dyn Store> = rendezvous::url::open(&variable(STORE), rank, TIMEOUT).unwrap();
    let device = Device::create(&DeviceOptions { shared_memory: Some(true), ..Default::default() }).unwrap();
    // Some compare their calls before.
    let check_calls = Some(variable(TASK) == "works" && size == 3);
    let options = ContextOptions { timeout: TIMEOUT, check_calls, ..Default::default() };
    let context = Context::new(device, rank, size, &options).unwrap();
    context.connect(&*store).unwrap();
    match &*variable(TASK) {
        "works" => works(&context),
        "dies" => {
            let mut calls = 0;
            let error = loop {
                if (rank, calls) == (1, 100) {
                    // Nothing is closed in order.
                    std::process::exit(0);
                }
                calls += 1;
                if let Err(error) = allreduce(&context, Some("hierarchical"), 1 << (calls % 20), 0, false) {
                    break error;
                }
            };
            println!("\nfailed: {:?} {:?} {error}", error.kind(), error.details().rank);
            return;
        }
        "leaves" => {
            for call in 0..20 {
                let algorithm = ALGORITHMS[call % ALGORITHMS.len()];
                allreduce(&context, Some(algorithm), 300_000 * (call % 2) + 1, 0, false).unwrap();
            }
            println!("\nleaves: true");
            // At once, though others may be in the last call.
            std::process::exit(0);
        }
        "differs" => {
            let count = if rank == 1 { 99 } else { 100 };
            let first = allreduce(&context, Some("hierarchical"), 100, 0, false);
            // The other host's ranks may hear of the mismatch before they have finished the first call.
            assert!(first.is_ok() || rank >= 2, "{first:?}");
            let error = allreduce(&context, Some("hierarchical"), count, 0, false).unwrap_err();
            println!("\nfailed: {:?} {:?} {error}", error.kind(), error.details().rank);
        }
        task => panic!("no task {task:?}"),
    }
    wait_all(&*store, "done", size, || store.set(&format!("done/{rank}"), b"").unwrap());
}

/// Ranks on `hosts`, which all do `task`.
fn run(hosts: &[&Namespace], task: &str) -> Vec<Report> {
    run_without_reads(hosts, task, &[])
}

/// Like [`run`], where the ranks `forbidden` may read no other process.
fn run_without_reads(hosts: &[&Namespace], task: &str, forbidden: &[usize]) -> Vec<Report> {
    let (_folder, store) = folder();
    let start = |(rank, host): (usize, &&Namespace)| {
        let mut command = host.command(std::env::current_exe().unwrap());
        command.args(["--exact", "hosts::memory::one_rank", "--ignored", "--nocapture"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.env(RANK, rank.to_string()).env(SIZE, hosts.len().to_string()).env(STORE, &store).env(TASK, task);
        if forbidden.contains(&rank) {
            command.env(FORBIDDEN, "1");
        }
        Rank(command.spawn().unwrap())
    };
    let ranks: Vec<Rank> = hosts.iter().enumerate().map(start).collect();
    ranks.into_iter().map(Rank::finish).collect()
}

fn two_hosts(network: &mut Network) -> [Namespace; 2] {
    [1, 2].map(|i| network.host(&[("eth0", &[&*format!("10.77.0.{i}/24")])]))
}

#[test]
fn ranks_combine_in_their_host_s_memory_and_over_the_network() {
    if ran_as_root_elsewhere("hosts::memory::ranks_combine_in_their_host_s_memory_and_over_the_network") {
        return;
    }
    let mut network = Network::new();
    let [a, b] = two_hosts(&mut network);
    // In the order of hosts, in turns, and with a rank that is alone on its host.
    for hosts in [&[&a, &a, &b, &b, &b][..], &[&a, &b, &a, &b], &[&a, &a, &b]] {
        for report in run(hosts, "works") {
            assert_eq!(report.get("works"), "true");
        }
    }
}

#[test]
fn ranks_that_may_not_read_each_other_s_processes_combine_in_memory_too() {
    if ran_as_root_elsewhere("hosts::memory::ranks_that_may_not_read_each_other_s_processes_combine_in_memory_too") {
        return;
    }
    let mut network = Network::new();
    let [a, b] = two_hosts(&mut network);
    // None may, or one may not and nobody of its host does.
    for forbidden in [&[0, 1, 2, 3, 4][..], &[3]] {
        let reports = run_without_reads(&[&a, &a, &b, &b, &b], "works", forbidden);
        for (rank, report) in reports.into_iter().enumerate() {
            let reads = rank < 2 && !forbidden.contains(&rank);
            assert_eq!([report.get("works"), report.get("reads")], ["true", &format!("Some({reads})")], "rank {rank}");
        }
    }
}

#[test]
fn the_end_of_a_rank_fails_the_call_of_those_that_wait_for_it_in_memory() {
    if ran_as_root_elsewhere("hosts::memory::the_end_of_a_rank_fails_the_call_of_those_that_wait_for_it_in_memory") {
        return;
    }
    let mut network = Network::new();
    let [a, b] = two_hosts(&mut network);
    let ranks = [&a, &a, &b, &b];
    let reports = run(&ranks, "dies");
    for rank in [0, 2, 3] {
        let failed = reports[rank].get("failed");
        assert!(failed.starts_with("ConnectionLost Some(1) "), "rank {rank}: {failed}");
    }
}

#[test]
fn a_rank_may_end_once_its_part_of_a_call_is_done() {
    if ran_as_root_elsewhere("hosts::memory::a_rank_may_end_once_its_part_of_a_call_is_done") {
        return;
    }
    let mut network = Network::new();
    let [a, b] = two_hosts(&mut network);
    for report in run(&[&a, &a, &a, &b, &b], "leaves") {
        assert_eq!(report.get("leaves"), "true");
    }
}

#[test]
fn a_rank_that_publishes_for_another_call_is_a_mismatch() {
    if ran_as_root_elsewhere("hosts::memory::a_rank_that_publishes_for_another_call_is_a_mismatch") {
        return;
    }
    let mut network = Network::new();
    let [a, b] = two_hosts(&mut network);
    let reports = run(&[&a, &a, &b, &b], "differs");
    for rank in [0, 1] {
        let failed = reports[rank].get("failed");
        assert!(failed.starts_with("Mismatch "), "rank {rank}: {failed}");
        assert!(failed.contains("is in another collective"), "rank {rank}: {failed}");
    }
}

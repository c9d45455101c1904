//! Many ranks on one machine: they find each other, connect only to the ranks that they communicate with, and name the
//! limit that they have reached.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::error::{Error, ErrorKind, Result};
use gloo_rs::rendezvous::{InProcessStore, PrefixStore, Store, TcpStore};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;
use socket2::SockRef;

/// A timeout that is never reached by a test that passes.
const PATIENCE: Duration = Duration::from_secs(120);
/// The ranks that each of 256 ranks exchanges messages with.
const PEERS: usize = 15;
/// Environment variable that makes this binary run as a part of a test.
const ROLE: &str = "GLOO_RS_TEST_SCALE";

/// A device without shared memory: these tests count connections, and descriptors of connections.
fn device() -> Result<Arc<Device>> {
    let hostname = Some("127.0.0.1".into());
    Device::create(&DeviceOptions { hostname, shared_memory: Some(false), ..Default::default() })
}

/// A context that measures nothing, so that only calls make connections.
fn context(device: &Arc<Device>, rank: usize, size: usize, timeout: Duration) -> Result<Arc<Context>> {
    Context::new(
        device.clone(),
        rank,
        size,
        &ContextOptions { timeout, tuning: Some("default".into()), ..Default::default() },
    )
}

fn barrier(context: &Context) -> Result<()> {
    let shape = Shape::new(Collective::Barrier, context.rank(), context.size(), 0);
    let shape = Shape { inputs: 0, outputs: 0, ..shape };
    run(context, shape, "dissemination", &[], &[])
}

fn run(context: &Context, shape: Shape<'_>, algorithm: &str, inputs: &[*const u8], outputs: &[*mut u8]) -> Result<()> {
    let call = Call { inputs, outputs, algorithm: Some(algorithm), ..Call::new(shape, DataType::Int64) };
    // SAFETY: the callers' buffers are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }
}

/// Sums the ranks' numbers, and their squares, over all ranks.
fn assert_allreduce(context: &Context) {
    let (rank, size) = (context.rank() as i64, context.size() as i64);
    let (input, mut output) = ([rank, rank * rank, 1], [0i64; 3]);
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), 3);
    run(context, shape, "recursive_doubling", &[input.as_ptr().cast()], &[output.as_mut_ptr().cast()]).unwrap();
    assert_eq!(output, [size * (size - 1) / 2, (size - 1) * size * (2 * size - 1) / 6, size]);
}

/// The ranks that a rank exchanges messages with in a dissemination barrier: those at distances 1, 2, 4, ... before and
/// after it. One connection serves both directions.
fn barrier_peers(size: usize) -> usize {
    let distances = (0..).map(|i| 1 << i).take_while(|distance| *distance < size);
    distances.flat_map(|distance| [distance, size - distance]).collect::<BTreeSet<_>>().len()
}

/// Number of connections of this process, without those to the store at `store`.
fn connections(store: u16) -> usize {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let peer = |number| {
        // SAFETY: the descriptor is not owned here; if it was closed meanwhile, the call below fails.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        SockRef::from(&fd).peer_addr().ok()?.as_socket()
    };
    numbers.filter_map(peer).filter(|peer| peer.port() != store).count()
}

/// If two ranks connect to each other at the same time, one of the connections is closed soon.
fn settled_connections(store: u16) -> usize {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let now = connections(store);
        if now <= PEERS || Instant::now() > end {
            return now;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn limit_descriptors(limit: u64) {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills `now`.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) }, 0);
    assert!(
        limit <= now.rlim_max,
        "this needs {limit} descriptors in a process, and the hard limit is {}",
        now.rlim_max
    );
    now.rlim_cur = limit;
    // SAFETY: the call only reads `now`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &now) }, 0);
}

/// Starts this binary again to run only `test`, in the given role. The process is killed with the test.
fn spawn_self(test: &str, role: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&*format!("scale::{test}"), "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let end_if_stuck = || {
        // SAFETY: alarm is async-signal-safe, and outlives exec.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        Ok(())
    };
    // SAFETY: the closure only calls alarm.
    unsafe { command.pre_exec(end_if_stuck) };
    command.spawn().unwrap()
}

/// Returns what follows `found:` in the output; the process must succeed.
fn finish(mut child: Child) -> String {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::result::Result::ok);
    let found: Vec<String> = lines.filter_map(|line| line.split_once("found:").map(|(_, text)| text.into())).collect();
    let status = child.wait().unwrap();
    assert!(status.success(), "a process of this test failed: {status}");
    found.into_iter().next().expect("what the process found")
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

#[test]
fn processes_connect_only_to_ranks_that_they_communicate_with() {
    const SIZE: usize = 256;
    if let Some(role) = role() {
        let (rank, port) = role.split_once(' ').unwrap();
        let store = TcpStore::connect("127.0.0.1", port.parse().unwrap(), PATIENCE).unwrap();
        let context = context(&device().unwrap(), rank.parse().unwrap(), SIZE, PATIENCE).unwrap();
        context.connect(&store).unwrap();
        barrier(&context).unwrap();
        let after_barrier = settled_connections(store.port());
        assert_allreduce(&context);
        barrier(&context).unwrap();
        println!("found:{after_barrier} {}", settled_connections(store.port()));
        // Until all ranks have counted.
        store.add("counted", 1).unwrap();
        let end = Instant::now() + PATIENCE;
        while store.add("counted", 0).unwrap() < SIZE as i64 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        return;
    }
    let store = TcpStore::serve("127.0.0.1", 0).unwrap();
    let test = "processes_connect_only_to_ranks_that_they_communicate_with";
    let ranks: Vec<Child> = (0..SIZE).map(|rank| spawn_self(test, &format!("{rank} {}", store.port()))).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let found = finish(child);
        let (barrier, both) = found.split_once(' ').unwrap();
        let (barrier, both): (usize, usize) = (barrier.parse().unwrap(), both.parse().unwrap());
        // In recursive doubling a rank's partners are 1, 2, 4, ... from it, before or after.
        assert_eq!(barrier_peers(SIZE), PEERS);
        assert!(barrier <= PEERS, "rank {rank} has {barrier} connections after a barrier");
        assert_eq!(both, PEERS, "rank {rank} after a barrier and an allreduce");
    }
}

/// Four processes with 250 ranks each, so that no process needs more descriptors than the usual limit.
#[test]
fn a_thousand_ranks_as_threads_find_each_other() {
    const SIZE: usize = 1000;
    const THREADS: usize = 250;
    if let Some(role) = role() {
        let (process, port) = role.split_once(' ').unwrap();
        let first = process.parse::<usize>().unwrap() * THREADS;
        limit_descriptors((THREADS * (barrier_peers(SIZE) + 4) + 200) as u64);
        let store = TcpStore::connect("127.0.0.1", port.parse().unwrap(), PATIENCE).unwrap();
        let device = device().unwrap();
        let slowest = Mutex::new([Duration::ZERO; 2]);
        let ready = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for rank in first..first + THREADS {
                let (store, device, slowest, ready) = (&store, &device, &slowest, &ready);
                let work = move || {
                    let context = context(device, rank, SIZE, PATIENCE).unwrap();
                    let begun = Instant::now();
                    context.connect(store).unwrap();
                    let connected = begun.elapsed();
                    barrier(&context).unwrap();
                    let times = [connected, begun.elapsed() - connected];
                    let mut slowest = slowest.lock().unwrap();
                    *slowest = std::array::from_fn(|i| slowest[i].max(times[i]));
                    drop(slowest);
                    // No rank leaves while others of this process may still connect to it.
                    ready.wait();
                    barrier(&context).unwrap();
                };
                std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).unwrap();
            }
        });
        let [rendezvous, barrier] = slowest.into_inner().unwrap();
        println!("found:{:.2} {:.2} {}", rendezvous.as_secs_f64(), barrier.as_secs_f64(), peak_memory() / THREADS);
        return;
    }
    let store = TcpStore::serve("127.0.0.1", 0).unwrap();
    let test = "a_thousand_ranks_as_threads_find_each_other";
    let processes: Vec<_> =
        (0..SIZE / THREADS).map(|process| spawn_self(test, &format!("{process} {}", store.port()))).collect();
    for process in processes {
        let found = finish(process);
        println!("rendezvous s, barrier s, KiB per rank: {found}");
        // The documented limit; two cores need a tenth of it.
        let rendezvous: f64 = found.split(' ').next().unwrap().parse().unwrap();
        assert!(rendezvous < 20.0, "the rendezvous took {rendezvous} s");
        let memory: usize = found.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(memory < 4096, "{memory} KiB per rank");
    }
}

/// The peak memory of this process in KiB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn says_the_limit(error: &Error, limit: u64) {
    let text = error.message();
    assert!(text.contains("Too many open files") && text.contains(&format!("may have {limit} descriptors")), "{error}");
    assert!(text.contains("ulimit -n"), "{error}");
}

/// Limits this process to its open descriptors and `more` further ones.
fn allow(more: usize) -> (u64, Vec<File>) {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest = numbers.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<usize>().unwrap()).max();
    let limit = highest.unwrap() + 1 + more;
    limit_descriptors(limit as u64);
    let mut fill: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    fill.truncate(fill.len() - more);
    (limit as u64, fill)
}

#[test]
fn the_error_names_the_limit_if_descriptors_run_out() {
    const TEST: &str = "the_error_names_the_limit_if_descriptors_run_out";
    const TIMEOUT: Duration = Duration::from_secs(2);
    let Some(role) = role() else {
        for part in ["device", "context", "connect", "accept"] {
            finish(spawn_self(TEST, part));
        }
        return;
    };
    let begun;
    match &*role {
        "device" => {
            begun = Instant::now();
            let (limit, _fill) = allow(1);
            let error = device().and_then(|d| context(&d, 0, 1, TIMEOUT)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
            says_the_limit(&error, limit);
        }
        "context" => {
            let device = device().unwrap();
            let first = context(&device, 0, 1, TIMEOUT).unwrap();
            first.connect(&*InProcessStore::new()).unwrap();
            begun = Instant::now();
            let (limit, _fill) = allow(0);
            let error = context(&device, 0, 1, TIMEOUT).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
            says_the_limit(&error, limit);
        }
        // Two ranks in this process, whose connection needs two descriptors: either the first or the second is missing.
        side => {
            let store = InProcessStore::new();
            let contexts: Vec<_> = (0..2).map(|rank| context(&device().unwrap(), rank, 2, TIMEOUT).unwrap()).collect();
            std::thread::scope(|scope| {
                contexts.iter().for_each(|context| {
                    scope.spawn(|| context.connect(&*store).unwrap());
                });
            });
            begun = Instant::now();
            let (limit, fill) = allow(usize::from(side == "accept"));
            let errors: Vec<Error> = std::thread::scope(|scope| {
                let ranks: Vec<_> =
                    contexts.iter().map(|context| scope.spawn(|| barrier(context).unwrap_err())).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert!(errors.iter().all(|error| error.kind() == ErrorKind::Timeout), "{errors:?}");
            let named = errors
                .iter()
                .filter(|error| error.message().contains("ulimit -n"))
                .inspect(|e| says_the_limit(e, limit));
            assert!(named.count() > 0, "{errors:?}");
            let accepts = errors.iter().any(|error| error.message().contains("cannot accept connections"));
            assert_eq!(accepts, side == "accept", "{errors:?}");
            // Once there are enough descriptors, new contexts work.
            drop((contexts, fill));
            limit_descriptors(limit + 20);
            let device = device().unwrap();
            let contexts: Vec<_> = (0..2).map(|rank| context(&device, rank, 2, TIMEOUT).unwrap()).collect();
            let store = InProcessStore::new();
            std::thread::scope(|scope| {
                contexts.iter().for_each(|context| {
                    scope.spawn(|| context.connect(&*store).and_then(|()| barrier(context)).unwrap());
                });
            });
        }
    }
    let took = begun.elapsed();
    assert!(took < TIMEOUT + Duration::from_secs(20), "{took:?}");
    println!("found:nothing wrong");
}

/// Processes of one host make groups as long as there is room. All of them learn at once that one has no room, which
/// has some descriptors left, and later that one has ended.
#[test]
fn many_groups_of_a_host_have_room_among_few_descriptors() {
    const TEST: &str = "many_groups_of_a_host_have_room_among_few_descriptors";
    const SIZE: usize = 8;
    const FULL: usize = 3;
    const LAST: usize = SIZE - 1;
    const LEFT: usize = 64;
    let Some(role) = role() else {
        let store = TcpStore::serve("127.0.0.1", 0).unwrap();
        let ranks: Vec<Child> = (0..SIZE).map(|rank| spawn_self(TEST, &format!("{rank} {}", store.port()))).collect();
        let found: Vec<String> = ranks.into_iter().map(finish).collect();
        let (groups, error) = found[0].split_once(' ').unwrap();
        assert!(groups.parse::<usize>().unwrap() >= 128, "{found:?}");
        assert!(error.contains(&format!("rank {FULL}")) && error.contains("ulimit -n"), "{error}");
        let same = |text: &String| text.split_once("cannot split").map(|(_, text)| text.to_owned());
        assert!(found.iter().all(|text| same(text).is_some() && same(text) == same(&found[0])), "{found:#?}");
        return;
    };
    let (rank, port) = role.split_once(' ').unwrap();
    let rank: usize = rank.parse().unwrap();
    limit_descriptors(if rank == FULL { 1024 } else { 4096 });
    let store = TcpStore::connect("127.0.0.1", port.parse().unwrap(), PATIENCE).unwrap();
    let hostname = Some("127.0.0.1".into());
    let device = Device::create(&DeviceOptions { hostname, shared_memory: Some(true), ..Default::default() }).unwrap();
    let first = context(&device, rank, SIZE, PATIENCE).unwrap();
    first.connect(&store).unwrap();
    let split = || first.split(Some(0), 0).map(Option::unwrap);
    let shared_barrier = |context: &Context| {
        let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, rank, SIZE, 0) };
        run(context, shape, "auto", &[], &[])
    };
    let mut groups = Vec::new();
    let error = loop {
        match split() {
            Ok(group) => groups.push(group),
            Err(error) => break error,
        }
        let group = groups.last().unwrap();
        assert!(group.shares_memory((rank + 1) % SIZE).unwrap());
        barrier(group).and_then(|()| shared_barrier(group)).unwrap();
    };
    assert_eq!((error.kind(), error.details().rank), (ErrorKind::ResourceExhausted, Some(FULL)), "{error}");
    // A context that is not made of another one fails in the same way.
    let unconnected = context(&device, rank, SIZE, PATIENCE).unwrap();
    let refused = unconnected.connect(&PrefixStore::new("more", Arc::new(store))).unwrap_err();
    assert_eq!((refused.kind(), refused.details().rank), (ErrorKind::ResourceExhausted, Some(FULL)), "{refused}");
    drop(unconnected);
    drop((0..LEFT).map(|_| File::open("/dev/null").unwrap()).collect::<Vec<_>>());
    println!("found:{} {}", groups.len(), error.message());
    groups.truncate(groups.len() - 4);
    groups.push(split().unwrap());
    for group in &groups {
        barrier(group).and_then(|()| shared_barrier(group)).unwrap();
    }
    barrier(&first).unwrap();
    if rank == LAST {
        // SAFETY: ends the process without destructors.
        unsafe { libc::_exit(0) };
    }
    for group in &groups {
        let error = barrier(group).unwrap_err();
        assert!(error.message().contains(&format!("rank {LAST}")), "{error}");
        assert!(error.message().contains("has ended"), "{error}");
    }
}

#[test]
fn peers_of_a_barrier() {
    let found: Vec<_> = [1, 2, 3, 4, 6, 8, 256, 1000].map(barrier_peers).into();
    assert_eq!(found, [0, 1, 2, 3, 4, 5, 15, 20]);
}

//! A running job under attack: twelve thousand connections of every kind to a rank's device and to the store's server.
//!
//! `speed_under_attack` measures instead of asserting: `cargo test --release --test hostile -- --ignored --nocapture`.
mod attack;
mod job;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use attack::{
    KINDS, attack, connect, connect_as_rank_0, connect_from, hold_open, identities, overhear_a_rank,
    overhear_the_store, use_the_store,
};
use gloo_rs::net::admission::ConnectionStatistics;
use gloo_rs::net::handshake::{HELLO_BYTES, Identity};
use gloo_rs::rendezvous::Store;
use job::{Job, LONG};

/// Serializes the tests of this file: they count descriptors and memory of the whole process, and need many
/// descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    set_descriptors(8192);
    guard
}

/// Raises the descriptor limit to the maximum, and returns it.
fn set_descriptors(max: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is written by the first call and read by the second.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max.min(max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_bytes() -> usize {
    let pages: usize = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// The counts since `before`, once there are `n` more connections.
fn arrived(now: impl Fn() -> ConnectionStatistics, before: &ConnectionStatistics, n: u64) -> ConnectionStatistics {
    let until = Instant::now() + LONG;
    loop {
        let now = now();
        let since = ConnectionStatistics {
            accepted: now.accepted - before.accepted,
            foreign: now.foreign - before.foreign,
            other_version: now.other_version - before.other_version,
            unknown_context: now.unknown_context - before.unknown_context,
            unproven: now.unproven - before.unproven,
            incomplete: now.incomplete - before.incomplete,
            timed_out: now.timed_out - before.timed_out,
            crowded_out: now.crowded_out - before.crowded_out,
        };
        if since.accepted + since.refused() >= n || Instant::now() > until {
            return since;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn twelve_thousand_attacks_do_no_harm() {
    let _alone = alone();
    const EACH: usize = 500;
    let job = Job::start();
    let of_the_device = || job.devices[1].statistics();
    let of_the_store = || job.server.statistics().unwrap();
    let overheard = [overhear_a_rank(&job), overhear_the_store(&job)];
    job.server.set("overheard", b"twice").unwrap();
    let before = [of_the_device(), of_the_store()];
    let rounds = job.work(|| {
        let descriptors_before = descriptors();
        let mut resident = 0;
        for part in 0..2 {
            thread::scope(|scope| {
                for (to, overheard) in [job.device(), job.store()].into_iter().zip(&overheard) {
                    scope.spawn(move || {
                        for seed in 0..EACH / 2 {
                            for kind in 0..KINDS {
                                assert!(attack(to, kind, seed, overheard), "kind {kind} was put up with");
                            }
                        }
                    });
                }
            });
            match part {
                0 => resident = resident_bytes(),
                _ => {
                    let now = resident_bytes();
                    assert!(now < resident + (8 << 20), "{now} bytes of memory, {resident} half way");
                }
            }
        }
        let kinds = EACH as u64; // per kind
        let expected = ConnectionStatistics { foreign: 3 * kinds, other_version: 2 * kinds, ..Default::default() };
        let expected = ConnectionStatistics { unproven: 3 * kinds, incomplete: 3 * kinds, ..expected };
        let device = ConnectionStatistics { unknown_context: kinds, ..expected };
        assert_eq!(arrived(of_the_device, &before[0], KINDS as u64 * kinds), device);
        // The store takes hellos of ranks, and the ranks' protocol in another version, for other protocols.
        let store = ConnectionStatistics { foreign: 5 * kinds, other_version: kinds, ..expected };
        assert_eq!(arrived(of_the_store, &before[1], KINDS as u64 * kinds), store);
        // The server may close its end a little later.
        let until = Instant::now() + LONG;
        while descriptors() > descriptors_before && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(descriptors() <= descriptors_before, "{} descriptors, {descriptors_before} before", descriptors());
    });
    assert!(rounds > 10, "{rounds}");
    // The replay of recorded bytes has changed nothing.
    assert_eq!(job.server.get("overheard", LONG).unwrap(), b"twice");
    let lines = job.log.0.lock().unwrap();
    assert!(lines.iter().any(|line| line.starts_with("device: dropped a connection from 127.0.0.1:")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("store: dropped a connection from 127.0.0.1:")), "{lines:#?}");
    assert!(lines.len() < 500, "{} lines", lines.len());
    assert!(!lines.iter().any(|line| line.contains("the job's token")), "{lines:#?}");
}

#[test]
fn slow_connections_are_dropped_in_time() {
    let _alone = alone();
    let job = Job::start();
    let overheard = [overhear_a_rank(&job), overhear_the_store(&job)];
    job.work(|| {
        thread::scope(|scope| {
            // A rank allows 5 s for the handshake, the store 10 s.
            let device = scope.spawn(|| hold_open(job.device(), &overheard[0], HELLO_BYTES));
            let store = scope.spawn(|| hold_open(job.store(), &overheard[1], 45));
            let took = [device.join().unwrap(), store.join().unwrap()];
            assert!(took[0] < Duration::from_secs(15) && took[1] < Duration::from_secs(20), "{took:?}");
        });
        assert_eq!(job.devices[1].statistics().timed_out, 300);
        assert_eq!(job.server.statistics().unwrap().timed_out, 300);
    });
}

#[test]
fn idle_connections_are_dropped_in_favour_of_ranks() {
    let _alone = alone();
    let job = Job::start();
    // More than may be in the handshake at the same time.
    let crowd = |to| -> Vec<TcpStream> { (0..1100).map(|_| connect(to)).collect() };
    let silent = crowd(job.device());
    overhear_a_rank(&job);
    assert!(job.devices[1].statistics().crowded_out >= 1100 - 1024);
    drop(silent);
    let silent = crowd(job.store());
    overhear_the_store(&job);
    assert!(job.server.statistics().unwrap().crowded_out >= 1100 - 1024);
    drop(silent);
    assert!(job.work(|| thread::sleep(Duration::from_millis(100))) > 0);
}

/// Environment variable with the addresses to attack, for a helper process of this test.
const OUTSIDE: &str = "GLOO_RS_TEST_OUTSIDE";

/// Starts this test again in another process, which gets the addresses of `job` in `OUTSIDE`.
fn outside(test: &str, job: &Job) -> Child {
    let mut outside = Command::new(std::env::current_exe().unwrap());
    outside.args(["--exact", test]).env(OUTSIDE, to_text([job.device(), job.store()], identities(job)));
    outside.stdin(Stdio::piped()).spawn().unwrap()
}

fn await_line() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Connections of another process stay idle at the device and the store of a process whose descriptor limit is as
/// small.
#[test]
fn idle_connections_leave_descriptors_for_the_program() {
    const TEST: &str = "idle_connections_leave_descriptors_for_the_program";
    const STRANGERS: usize = 1100;
    const FEW: usize = 3;
    const LIMIT: u64 = 1024;
    if let Ok(text) = std::env::var(OUTSIDE) {
        let ([device, store], identities) = from_text(&text);
        await_line();
        let come = |host, n, to| -> Vec<TcpStream> { (0..n).map(|_| connect_from(host, to)).collect() };
        let _few = [device, store].map(|to| come(3, FEW, to));
        let _crowd = [device, store].map(|to| come(2, STRANGERS, to));
        await_line();
        connect_as_rank_0(device, identities);
        return use_the_store(store.port());
    }
    let _alone = alone();
    let job = Job::start();
    let of_the_device = || job.devices[1].statistics();
    let of_the_store = || job.server.statistics().unwrap();
    let before = [of_the_device(), of_the_store()];
    let mut outside = outside(TEST, &job);
    set_descriptors(LIMIT);
    job.work(|| {
        let mut stdin = outside.stdin.take().unwrap();
        stdin.write_all(b"come\n").unwrap();
        // At most an eighth of the descriptors are used for them.
        let dropped = (STRANGERS + FEW) as u64 - LIMIT / 8;
        for since in [arrived(of_the_device, &before[0], dropped), arrived(of_the_store, &before[1], dropped)] {
            assert!(since.refused() >= dropped, "{since:?}");
        }
        let files: Vec<_> = (0..LIMIT / 2).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        stdin.write_all(b"prove yourself\n").unwrap();
        assert!(outside.wait().unwrap().success());
        drop(files);
    });
    // The dropped ones are of the address with most connections, though those of the other address are older.
    let lines = job.log.0.lock().unwrap();
    for listener in ["device", "store"] {
        let from = |host: &str| {
            let begin = format!("{listener}: dropped a connection from {host}:");
            lines.iter().filter(|line| line.starts_with(&begin) && line.contains("made room")).count()
        };
        assert!(from("127.0.0.2") > 0 && from("127.0.0.3") == 0, "{lines:#?}");
    }
}

/// Connections of another process arrive before those of a rank and a client, at a process that has few descriptors
/// left.
#[test]
fn idle_connections_leave_descriptors_for_ranks() {
    const TEST: &str = "idle_connections_leave_descriptors_for_ranks";
    const STRANGERS: usize = 20;
    const LEFT: u64 = 4;
    // An eighth of the limit may be in the handshake at the same time: more than are left.
    const MAX_DESCRIPTORS: u64 = 16 * LEFT;
    if let Ok(text) = std::env::var(OUTSIDE) {
        let ([device, store], identities) = from_text(&text);
        await_line();
        let crowd = |to| -> Vec<TcpStream> { (0..STRANGERS).map(|_| connect(to)).collect() };
        let strangers = crowd(device);
        connect_as_rank_0(device, identities);
        drop(strangers);
        let _strangers = crowd(store);
        return use_the_store(store.port());
    }
    let _alone = alone();
    let job = Job::start();
    let mut outside = outside(TEST, &job);
    let mut files = vec![std::fs::File::open("/dev/null").unwrap()];
    // The kernel assigns the lowest free number: all lower ones are in use.
    while (files.last().unwrap().as_raw_fd() as u64) < MAX_DESCRIPTORS - LEFT - 1 {
        files.push(std::fs::File::open("/dev/null").unwrap());
    }
    set_descriptors(files.last().unwrap().as_raw_fd() as u64 + 1 + LEFT);
    job.work(|| {
        outside.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert!(outside.wait().unwrap().success());
    });
    let crowded_out = [job.devices[1].statistics().crowded_out, job.server.statistics().unwrap().crowded_out];
    assert!(crowded_out.iter().all(|n| *n > 0), "{crowded_out:?}");
}

/// Addresses and identities for another process.
fn to_text(addresses: [SocketAddr; 2], identities: [Identity; 2]) -> String {
    let hex = |identity: Identity| format!("{:032x}", u128::from_be_bytes(identity));
    let [[a, b], [c, d]] = [addresses.map(|a| a.to_string()), identities.map(hex)];
    [a, b, c, d].join(" ")
}

fn from_text(text: &str) -> ([SocketAddr; 2], [Identity; 2]) {
    let fields: Vec<&str> = text.split(' ').collect();
    let identity = |i: usize| u128::from_str_radix(fields[i], 16).unwrap().to_be_bytes();
    ([0, 1].map(|i| fields[i].parse().unwrap()), [2, 3].map(identity))
}

/// Allreduces per second with and without an attack of some hundred connections per second, alternately.
#[test]
#[ignore = "measures"]
fn speed_under_attack() {
    let _alone = alone();
    const PER_SECOND: u64 = 500;
    let job = Job::start();
    let overheard = [overhear_a_rank(&job), overhear_the_store(&job)];
    let window = Duration::from_secs(2);
    let mut ratios = Vec::new();
    for _ in 0..8 {
        let rate = |hostile: bool| {
            let mut attacks = 0;
            let rounds = job.work(|| {
                let began = Instant::now();
                while began.elapsed() < window {
                    if hostile {
                        let (which, kind) = (attacks % 2, attacks / 2 % KINDS);
                        attack([job.device(), job.store()][which], kind, attacks, &overheard[which]);
                        attacks += 1;
                        let due = Duration::from_secs(attacks as u64) / PER_SECOND as u32;
                        thread::sleep(due.saturating_sub(began.elapsed()));
                    } else {
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            });
            (rounds as f64 / window.as_secs_f64(), attacks as f64 / window.as_secs_f64())
        };
        let ((quiet, _), (hostile, attacks)) = (rate(false), rate(true));
        println!("{quiet:.0} allreduces/s; {hostile:.0} with {attacks:.0} hostile connections/s");
        ratios.push(hostile / quiet);
    }
    ratios.sort_by(f64::total_cmp);
    println!("with the attack {:.3} of the speed (median of {})", ratios[ratios.len() / 2], ratios.len());
}

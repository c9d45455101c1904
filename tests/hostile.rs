//! A running job among attackers: twelve thousand connections of every kind at the device of a rank and at the store's server.
//!
//! `speed_under_attack` measures instead of asserting: `cargo test --release --test hostile -- --ignored --nocapture`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Connect, Context, ContextOptions, Reduction};
use gloo_rs::rendezvous::Store;
use gloo_rs::rendezvous::tcp::{TcpStore, TcpStoreOptions};
use gloo_rs::secret::JobToken;
use gloo_rs::transport::LogCallback;
use gloo_rs::transport::admission::ConnectionStatistics;
use gloo_rs::transport::tcp::address::Address;
use gloo_rs::transport::tcp::handshake::{self, Answer, Connecting, Connector, Hello, Reason};
use gloo_rs::transport::tcp::{Device, DeviceOptions};
use gloo_rs::types::{DataType, ReduceOp};

const SIZE: usize = 4;
const COUNT: usize = 2000;
const LONG: Duration = Duration::from_secs(60);

fn token() -> Option<JobToken> {
    Some(JobToken::new("the job's token"))
}

/// Tests of this file count descriptors and memory, which belong to the whole process, and need many of the former.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is written by the first call and read by the second.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max.min(8192);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    guard
}

/// The log's lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn callback(&self) -> LogCallback {
        let lines = self.0.clone();
        Arc::new(move |_, text| lines.lock().unwrap().push(text.to_owned()))
    }
}

/// A job of threads that does allreduces until told to stop.
struct Job {
    server: Arc<TcpStore>,
    contexts: Vec<Arc<Context>>,
    log: Log,
}

impl Job {
    fn start() -> Self {
        let log = Log::default();
        let options = TcpStoreOptions { token: token(), log: Some(log.callback()) };
        let server = Arc::new(TcpStore::serve_with("127.0.0.1", 0, &options).unwrap());
        let contexts = thread::scope(|scope| {
            let ranks: Vec<_> = (0..SIZE)
                .map(|rank| {
                    let (server, log) = (server.clone(), log.clone());
                    scope.spawn(move || {
                        let hostname = Some("127.0.0.1".into());
                        let device = Device::create(&DeviceOptions {
                            hostname,
                            log: Some(log.callback()),
                            ..Default::default()
                        });
                        let options = ContextOptions {
                            timeout: LONG,
                            connect: Connect::Full,
                            token: token(),
                            ..Default::default()
                        };
                        let context = Context::new(&device.unwrap(), rank, SIZE, &options).unwrap();
                        context.connect(&*server).unwrap();
                        context
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        Self { server, contexts, log }
    }

    /// Runs allreduces with checked results on all ranks while `meanwhile` runs; how many.
    fn work(&self, meanwhile: impl FnOnce()) -> usize {
        let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for context in &self.contexts {
                let (stop, rounds) = (&stop, &rounds);
                scope.spawn(move || {
                    for round in 0.. {
                        // Rank 0 decides, with its contribution, when all stop.
                        let last = context.rank() == 0 && stop.load(Ordering::SeqCst);
                        let sums = allreduce(context, round, last);
                        let expected = |i: usize| (0..SIZE).map(|rank| value(rank, round, i)).sum::<f32>();
                        (1..COUNT).for_each(|i| assert_eq!(sums[i], expected(i), "round {round}, element {i}"));
                        if sums[0] > 0.0 {
                            return;
                        }
                        if context.rank() == 0 {
                            rounds.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            // Also if it panics, the ranks end.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            stop.store(true, Ordering::SeqCst);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        rounds.into_inner()
    }

    fn device(&self) -> SocketAddr {
        self.contexts[1].device().addresses()[0]
    }

    fn store(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.server.port()))
    }
}

fn value(rank: usize, round: usize, i: usize) -> f32 {
    ((rank * 31 + round * 7 + i) % 1000) as f32
}

fn allreduce(context: &Context, round: usize, last: bool) -> Vec<f32> {
    let mut data: Vec<f32> = (0..COUNT).map(|i| value(context.rank(), round, i)).collect();
    data[0] = f32::from(u8::from(last));
    let bytes: *mut u8 = data.as_mut_ptr().cast();
    let call = Call {
        shape: Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), SIZE, COUNT) },
        algorithm: None,
        dtype: DataType::Float32,
        reduction: Reduction::Op(ReduceOp::Sum),
        inputs: &[],
        outputs: &[bytes],
        tag: 0,
        timeout: None,
        max_segment_bytes: None,
    };
    // SAFETY: the vector is as long as the shape says and lives until the call returns.
    unsafe { context.run(&call) }.unwrap();
    data
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Whether the other side closes it; what it says before is passed over.
fn is_dropped(mut stream: TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A hello to a context that is not here.
fn hello(seed: u8) -> Vec<u8> {
    Hello { has_token: true, rank: 0, to: [seed; 16], from: [seed; 16], nonce: [seed; 32] }.encode().to_vec()
}

fn random_bytes(seed: usize, n: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// What a client of `to` says, among which `talk` is heard; written down on the way.
fn overhear(to: SocketAddr, talk: impl FnOnce(u16)) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        let ear = scope.spawn(move || {
            let (mut client, mut server) = (listener.accept().unwrap().0, connect(to));
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let back = thread::spawn(move || {
                let _ = std::io::copy(&mut back_from, &mut back_to);
                let _ = back_to.shutdown(Shutdown::Both);
            });
            let mut heard = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = client.read(&mut buffer) {
                heard.extend_from_slice(&buffer[..n]);
                server.write_all(&buffer[..n]).unwrap();
            }
            let _ = server.shutdown(Shutdown::Both);
            back.join().unwrap();
            heard
        });
        talk(port);
        ear.join().unwrap()
    })
}

/// All that a client of the store says.
fn overhear_the_store(job: &Job) -> Vec<u8> {
    overhear(job.store(), |port| {
        let options = TcpStoreOptions { token: token(), log: None };
        let client = TcpStore::connect_with("127.0.0.1", port, LONG, &options).unwrap();
        client.set("overheard", b"once").unwrap();
    })
}

/// All that a rank says which connects to rank 1, up to the answer.
fn overhear_a_rank(job: &Job) -> Vec<u8> {
    let address = |rank: usize| {
        let own = job.contexts[rank].pair((rank + 1) % SIZE).unwrap().address().unwrap();
        Address::deserialize(&own).unwrap().identity
    };
    let (ours, theirs) = (address(0), address(1));
    let key = handshake::key(&token().unwrap(), &theirs);
    let (to, from) = (handshake::handle(&theirs), handshake::handle(&ours));
    let mut connector = Connector::new(key, &Hello { has_token: true, rank: 0, to, from, nonce: [2; 32] });
    overhear(job.device(), |port| {
        let mut stream = connect(SocketAddr::from(([127, 0, 0, 1], port)));
        stream.write_all(connector.hello()).unwrap();
        loop {
            let mut bytes = vec![0; connector.wanted()];
            stream.read_exact(&mut bytes).unwrap();
            match connector.take(&bytes).unwrap() {
                Connecting::Waiting => {}
                Connecting::Send(proof) => stream.write_all(&proof).unwrap(),
                Connecting::Done(answer, _) => {
                    // It is proven, and there is a connection to rank 0 already.
                    assert_eq!(answer, Answer::Refused(Reason::Connected));
                    return;
                }
            }
        }
    })
}

const KINDS: usize = 12;

/// What attackers do, each on a connection of its own. Whether it was dropped.
fn attack(to: SocketAddr, kind: usize, seed: usize, overheard: &[u8]) -> bool {
    let mut stream = connect(to);
    // The store's hello begins alike but for its last letter; its handshake is shorter by the handles.
    let (hello_bytes, has_token) = if overheard[7] == b'S' { (45, 12) } else { (77, 8) };
    let bytes = match kind {
        // A port scan.
        0 => return true,
        // The same, with a reset.
        1 => return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).is_ok(),
        2 => b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
        3 => [&[0xff][..], &random_bytes(seed, seed % 200)].concat(),
        // Other versions.
        4 => [&b"gloo_rs\x63"[..], &[0; 100]].concat(),
        5 => [&b"gloo_rsS"[..], &[9, 0, 0, 0], &[0; 100]].concat(),
        // A context that is not here.
        6 => hello(seed as u8),
        // What was overheard, cut short.
        7 => {
            let _ = stream.write_all(&overheard[..seed % (hello_bytes + 32)]);
            let _ = stream.shutdown(Shutdown::Write);
            return is_dropped(stream);
        }
        // What was overheard, whole, and frames of huge lengths behind it.
        8 => [overheard, &[0xff; 400]].concat(),
        // The greatest length there is, with nothing before it.
        9 => vec![0xff; 64],
        // Who seeks what is here, with another token; or without one.
        10 => [&overheard[..hello_bytes], &random_bytes(seed, 32)].concat(),
        _ => {
            let mut hello = overheard[..hello_bytes].to_vec();
            assert_eq!(std::mem::take(&mut hello[has_token]), 1);
            hello
        }
    };
    // It may be dropped before all is out.
    let _ = stream.write_all(&bytes);
    is_dropped(stream)
}

/// Connections that are held open: silent ones, ones that have said all but the proof, and ones that say a byte now and
/// then. How long until the last was dropped.
fn hold_open(to: SocketAddr, overheard: &[u8], first_words: usize) -> Duration {
    let began = Instant::now();
    let mut streams: Vec<TcpStream> = (0..100).map(|_| connect(to)).collect();
    let half: Vec<TcpStream> = (0..100).map(|_| connect(to)).collect();
    half.iter().for_each(|mut stream| stream.write_all(&overheard[..first_words]).unwrap());
    streams.extend(half);
    let mut dribbling: Vec<TcpStream> = (0..100).map(|_| connect(to)).collect();
    for byte in overheard.iter().cycle() {
        dribbling.retain_mut(|stream| stream.write_all(&[*byte]).is_ok());
        if dribbling.is_empty() || began.elapsed() > LONG {
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    assert!(streams.into_iter().all(is_dropped));
    began.elapsed()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_bytes() -> usize {
    let pages: usize = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// The counts since `before`, once there are `n` connections more.
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
fn twelve_thousand_strangers_harm_nobody() {
    let _alone = alone();
    const EACH: usize = 500;
    let job = Job::start();
    let of_the_device = || job.contexts[1].device().statistics();
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
        let kinds = EACH as u64; // of each kind
        let expected = ConnectionStatistics { foreign: 3 * kinds, other_version: 2 * kinds, ..Default::default() };
        let expected = ConnectionStatistics { unproven: 3 * kinds, incomplete: 3 * kinds, ..expected };
        let device = ConnectionStatistics { unknown_context: kinds, ..expected };
        assert_eq!(arrived(of_the_device, &before[0], KINDS as u64 * kinds), device);
        // Hellos of ranks, and the ranks' protocol in another version, are foreign to the store.
        let store = ConnectionStatistics { foreign: 5 * kinds, other_version: kinds, ..expected };
        assert_eq!(arrived(of_the_store, &before[1], KINDS as u64 * kinds), store);
        // The servers close their ends first or second, but soon.
        let until = Instant::now() + LONG;
        while descriptors() > descriptors_before && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(descriptors() <= descriptors_before, "{} descriptors, {descriptors_before} before", descriptors());
    });
    assert!(rounds > 10, "{rounds}");
    // What was overheard and said again has changed nothing.
    assert_eq!(job.server.get("overheard", LONG).unwrap(), b"twice");
    let lines = job.log.0.lock().unwrap();
    assert!(lines.iter().any(|line| line.starts_with("device: dropped a connection from 127.0.0.1:")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("store: dropped a connection from 127.0.0.1:")), "{lines:#?}");
    assert!(lines.len() < 500, "{} lines", lines.len());
    assert!(!lines.iter().any(|line| line.contains("the job's token")), "{lines:#?}");
}

#[test]
fn who_says_little_is_dropped_in_time_however_it_dribbles() {
    let _alone = alone();
    let job = Job::start();
    let overheard = [overhear_a_rank(&job), overhear_the_store(&job)];
    job.work(|| {
        thread::scope(|scope| {
            // A rank has 5 s for its handshake, a client of the store 10 s.
            let device = scope.spawn(|| hold_open(job.device(), &overheard[0], 77));
            let store = scope.spawn(|| hold_open(job.store(), &overheard[1], 45));
            let took = [device.join().unwrap(), store.join().unwrap()];
            assert!(took[0] < Duration::from_secs(15) && took[1] < Duration::from_secs(20), "{took:?}");
        });
        assert_eq!(job.contexts[1].device().statistics().timed_out, 300);
        assert_eq!(job.server.statistics().unwrap().timed_out, 300);
    });
}

#[test]
fn strangers_make_room_for_ranks() {
    let _alone = alone();
    let job = Job::start();
    // More than may be in the handshake at once.
    let crowd = |to| -> Vec<TcpStream> { (0..1100).map(|_| connect(to)).collect() };
    let silent = crowd(job.device());
    overhear_a_rank(&job);
    assert!(job.contexts[1].device().statistics().crowded_out >= 1100 - 1024);
    drop(silent);
    let silent = crowd(job.store());
    overhear_the_store(&job);
    assert!(job.server.statistics().unwrap().crowded_out >= 1100 - 1024);
    drop(silent);
    assert!(job.work(|| thread::sleep(Duration::from_millis(100))) > 0);
}

/// Allreduces a second with and without an attack of some hundred connections a second, in turn.
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

//! A process that has no descriptors, or no memory, left.

use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions, Reduction};
use gloo_rs::error::Error;
use gloo_rs::rendezvous::in_process::InProcessStore;
use gloo_rs::types::DataType;

use super::calls::Case;
use super::job::{COUNT, Job, LONG, Rank, SLACK, VICTIM, assert_complete, by_cell, by_collective, device, wait_all};

const TIMEOUT: Duration = Duration::from_millis(1500);

/// Allows no descriptors beyond those that are open; returns the previous limit.
fn exhaust_descriptors() -> libc::rlimit {
    let open = std::fs::File::open("/dev/null").unwrap();
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&open) as libc::rlim_t;
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both structs live until the calls return. Descriptors above the limit stay open; new ones get the lowest
    // free number.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
        let limit = libc::rlimit { rlim_cur: lowest, ..before };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    before
}

fn allow(limit: &libc::rlimit) {
    // SAFETY: the struct lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

/// Rank 2 has no descriptors left when the collectives begin: it can neither connect nor accept.
pub fn one_rank(rank: &Rank) {
    let contexts = rank.contexts(TIMEOUT);
    // Before the others begin: a connection that exists needs no further descriptor.
    let before = (rank.rank == VICTIM).then(exhaust_descriptors);
    rank.mark("ready/");
    wait_all(&*rank.store, "ready/");
    std::thread::scope(|scope| {
        for (collective, context) in &contexts {
            scope.spawn(move || {
                let started = Instant::now();
                let result = Case::new(*collective, COUNT).run(context);
                rank.report(collective.name(), started, &result);
            });
        }
    });
    if let Some(before) = before {
        allow(&before);
    }
    rank.progress(&[0, 1, 2, 3]);
}

#[test]
fn descriptors_run_out_in_every_collective() {
    let reports = Job::start("descriptors", "-").finish(&[]);
    // Others have tried to connect to it.
    let cannot_accept =
        "; this process cannot accept connections: Too many open files (os error 24): this process may have ";
    assert!(reports.iter().any(|r| r.rank == VICTIM && r.text.contains(cannot_accept)), "{reports:#?}");
    for (collective, reports) in by_collective(&reports, &[0, 1, 2, 3]) {
        let mut seen = false;
        for report in &reports {
            let text = &report.text;
            if report.rank != VICTIM && report.kind == "Ok" {
                // The rank's part of the call did not need rank 2.
                continue;
            }
            assert!(report.elapsed < TIMEOUT + Duration::from_secs(1) + SLACK, "{:?}: {text}", report.elapsed);
            assert!(matches!(report.kind.as_str(), "Timeout" | "ConnectionLost"), "{}: {text}", report.kind);
            assert_complete(collective, report);
            if report.rank == VICTIM {
                assert!(text.contains("Too many open files (os error 24)"), "{text}");
            } else {
                let told = ["its process has not answered", "Too many open files (os error 24)"];
                seen |= text.contains("rank 2 at 127.0.0.1:") && told.iter().any(|t| text.contains(t));
            }
        }
        assert!(seen, "{reports:#?}");
    }
}

/// Operations that need descriptors at the beginning fail with that reason.
pub fn one_rank_without_descriptors(rank: &Rank) {
    if rank.rank != VICTIM {
        return;
    }
    let started = Instant::now();
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let (own, kept) = (device(), rank.store.clone());
    let before = exhaust_descriptors();
    let made = Context::new(own.clone(), 0, 2, &options).map(drop);
    let device = gloo_rs::transport::device::Device::create(&Default::default()).map(drop);
    let store = gloo_rs::rendezvous::TcpStore::connect("127.0.0.1", rank.port, Duration::from_millis(300)).map(drop);
    // What other ranks learn of this host must not be guessed.
    let host = gloo_rs::net::this_host::host().map(drop);
    let network = gloo_rs::net::this_host::network().map(drop);
    let place = gloo_rs::sys::topology::place().map(drop).map_err(|error| Error::io("place", &error));
    let to = ([127, 0, 0, 1], rank.port).into();
    let route = gloo_rs::sys::connect::source(to).map(drop).map_err(|error| Error::io("route", &error));
    allow(&before);
    drop(kept);
    rank.report("context", started, &made);
    rank.report("device", started, &device);
    rank.report("store", started, &store);
    rank.report("host", started, &host);
    rank.report("network", started, &network);
    rank.report("place", started, &place);
    rank.report("route", started, &route);
    // With descriptors everything works again.
    drop(Context::new(own.clone(), 0, 2, &options).unwrap());
}

#[test]
fn without_descriptors_operations_fail_at_the_beginning() {
    let cells = by_cell(&Job::start("rendezvous", "-").finish(&[]));
    for cell in ["context", "device", "store", "host", "network", "place", "route"] {
        let report = &cells[cell][0];
        assert!(report.text.contains("Too many open files (os error 24)"), "{cell}: {report:?}");
        assert_eq!(report.kind, "ResourceExhausted", "{cell}: {report:?}");
    }
}

/// The bytes that this process has mapped, and those that are resident.
fn memory() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let mut pages = text.split(' ').map(|field| field.parse::<u64>().unwrap());
    [pages.next().unwrap() << 12, pages.next().unwrap() << 12]
}

/// A number of bytes of address space that cannot be read or written.
struct Addresses(*mut u8, usize);

impl Addresses {
    fn new(bytes: usize) -> Self {
        let (flags, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, std::ptr::null_mut());
        // SAFETY: creates a mapping at an unused address.
        let at = unsafe { libc::mmap(none, bytes, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self(at.cast(), bytes)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: unmaps the mapping, which nothing uses any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Runs `work` with `more` bytes of address space beyond the mapped ones.
fn with_little_memory<T>(more: u64, work: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let limit = |limit: &libc::rlimit| {
        // SAFETY: the struct lives until the call returns.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) }, 0);
    };
    // SAFETY: the struct lives until the call returns.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut before) }, 0);
    limit(&libc::rlimit { rlim_cur: memory()[0] + more, ..before });
    let result = work();
    limit(&before);
    result
}

unsafe extern "C" fn does_nothing(
    _: *mut std::ffi::c_void,
    _: *const std::ffi::c_void,
    _: *const std::ffi::c_void,
    _: usize,
    _: *mut std::ffi::c_void,
) -> i32 {
    0
}

/// A call in place with `count` bytes (per rank, for collectives with blocks) at `addresses`.
fn in_place(context: &Context, collective: Collective, count: usize, addresses: &Addresses) -> Result<(), Error> {
    let outputs = &[addresses.0][..usize::from(collective != Collective::Barrier)];
    let shape = Shape::new(collective, context.rank(), context.size(), count);
    let shape = Shape { inputs: 0, outputs: outputs.len(), ..shape };
    let call = Call {
        outputs,
        reduction: Reduction::User { function: does_nothing, user: std::ptr::null_mut() },
        ..Call::new(shape, DataType::Uint8)
    };
    assert!(shape.output_len(0) <= addresses.1);
    // SAFETY: the addresses stay mapped until the call returns; an access to them would end this process.
    unsafe { context.run(&call) }
}

/// Lets two ranks make the call with 256 MiB of memory left; returns rank 0's result.
fn huge(collective: Collective, count: usize, bytes: usize) -> Result<(), Error> {
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: LONG, tuning: Some("default".into()), ..Default::default() };
    let addresses = [Addresses::new(bytes), Addresses::new(bytes)];
    let connect = |rank| {
        let context = Context::new(device(), rank, 2, &options).unwrap();
        context.connect(&*store).unwrap();
        context
    };
    let [zero, one] = std::thread::scope(|scope| {
        [0, 1].map(|rank| scope.spawn(move || connect(rank))).map(|thread| thread.join().unwrap())
    });
    let result = with_little_memory(256 << 20, || {
        let result = in_place(&zero, collective, count, &addresses[0]);
        in_place(&one, collective, count, &addresses[1]).unwrap_err();
        result
    });
    assert!(result.is_ok() || zero.broken().is_some());
    result
}

/// An operation that needs more memory than available fails with that reason, and the process continues.
pub fn one_rank_without_memory(rank: &Rank) {
    if rank.rank != VICTIM {
        return;
    }
    let started = Instant::now();
    rank.report("alltoall", started, &huge(Collective::Alltoall, 32 << 30, 64 << 30));
    rank.report("allreduce", started, &huge(Collective::Allreduce, 1 << 44, 1 << 44));

    // A huge group of which only few ranks exist, and only these need memory.
    const HUGE: usize = i32::MAX as usize;
    let options = ContextOptions { timeout: TIMEOUT, ..Default::default() };
    let (device, before) = (device(), memory());
    with_little_memory(256 << 20, || {
        for rank_here in [0, HUGE - 1] {
            let context = Context::new(device.clone(), rank_here, HUGE, &options).unwrap();
            let page = Addresses::new(4096);
            rank.report("barrier", started, &in_place(&context, Collective::Barrier, 0, &page));
            rank.report("connect", started, &context.connect(&*InProcessStore::new()));
            // A valid but huge group, for which there is not enough memory.
            let context = Context::new(device.clone(), 0, 1 << 18, &options).unwrap();
            rank.report("schedule", started, &in_place(&context, Collective::Allgather, 0, &page));
        }
    });
    let grown = memory()[1].saturating_sub(before[1]);
    assert!(grown < 64 << 20, "{grown} bytes");
}

#[test]
fn operations_without_enough_memory_are_refused() {
    let cells = by_cell(&Job::start("memory", "-").finish(&[]));
    let expected = [
        ("alltoall", "ResourceExhausted", "elements of 1 bytes that the algorithm keeps aside"),
        ("allreduce", "ResourceExhausted", "elements of 1 bytes that the algorithm keeps aside"),
        ("barrier", "ResourceExhausted", "barrier among 2147483647 ranks: schedules are made for at most 1048576"),
        ("connect", "ResourceExhausted", "a context of 2147483647 ranks"),
        ("schedule", "ResourceExhausted", "bytes: a schedule of allgather among 262144 ranks"),
    ];
    for (cell, kind, text) in expected {
        for report in &cells[cell] {
            assert_eq!(report.kind, kind, "{cell}: {report:?}");
            assert!(report.text.contains(text), "{cell}: {report:?}");
        }
    }
}

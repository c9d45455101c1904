//! What the library leaves in the process: descriptors and threads; also addresses of both families.

#[path = "support/ipv6.rs"]
mod ipv6;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gloo_rs::context::{Connect, Context, ContextOptions};
use gloo_rs::net::address::Address;
use gloo_rs::rendezvous::{Store, in_process::InProcessStore, tcp::TcpStore};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::version::Version;
use ipv6::needs_ipv6;

/// Serializes the tests of this file: they count descriptors, which belong to the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn descriptors() -> BTreeSet<i32> {
    let own = std::fs::read_dir("/proc/self/fd").unwrap();
    let all: Vec<i32> = own.map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    // The descriptor of the listing itself is closed by now.
    all.into_iter().filter(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()).collect()
}

fn pair(hostname: &str, store: &Arc<impl Store + 'static>) -> Vec<Arc<Context>> {
    let ranks = (0..2).map(|rank| {
        let (store, hostname) = (store.clone(), hostname.to_owned());
        std::thread::spawn(move || {
            let device = Device::create(&DeviceOptions { hostname: Some(hostname), ..Default::default() }).unwrap();
            let options =
                ContextOptions { timeout: Duration::from_secs(20), connect: Connect::Full, ..Default::default() };
            let context = Context::new(device.clone(), rank, 2, &options).unwrap();
            context.connect(&*store).unwrap();
            context
        })
    });
    ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn exchange(contexts: &[Arc<Context>]) {
    let mut bytes = [7u8, 0];
    let [from, into] = &mut bytes;
    // SAFETY: the bytes outlive the buffers.
    let (from, into) =
        unsafe { (contexts[0].unbound_buffer(from, 1).unwrap(), contexts[1].unbound_buffer(into, 1).unwrap()) };
    from.send(1, 3, 0, 1).unwrap();
    into.recv(&[0], 3, 0, 1).unwrap();
    into.wait_recv(None).unwrap();
    from.wait_send(None).unwrap();
    drop((from, into));
    assert_eq!(bytes, [7, 7]);
}

#[test]
fn both_families_of_addresses() {
    needs_ipv6();
    let _alone = ALONE.lock().unwrap();
    for hostname in ["127.0.0.1", "::1"] {
        let contexts = pair(hostname, &InProcessStore::new());
        let sockets =
            Address::deserialize(Version::decode(&contexts[0].pair(1).unwrap().address().unwrap()).unwrap().1)
                .unwrap()
                .sockets;
        assert_eq!(sockets[0].ip().to_string(), hostname);
        exchange(&contexts);
    }
}

#[test]
fn both_families_in_one_job() {
    needs_ipv6();
    let _alone = ALONE.lock().unwrap();
    let store = InProcessStore::new();
    // IPv4 and IPv6 reach loopback: the rank that connects uses the family of the other.
    let contexts: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = ["127.0.0.1", "::1"]
            .into_iter()
            .enumerate()
            .map(|(rank, hostname)| {
                let store = store.clone();
                scope.spawn(move || {
                    let options = DeviceOptions { hostname: Some(hostname.into()), ..Default::default() };
                    let device = Device::create(&options).unwrap();
                    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
                    let context = Context::new(device.clone(), rank, 2, &options).unwrap();
                    context.connect(&*store).unwrap();
                    context
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    exchange(&contexts);
}

/// How many descriptors of each kind this process has.
fn kinds() -> BTreeMap<String, i64> {
    let mut kinds = BTreeMap::new();
    for fd in descriptors() {
        let Ok(target) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { continue };
        // `socket:[1234]`, `anon_inode:[eventpoll]`, `/memfd:gloo_rs (deleted)`.
        let target = target.to_string_lossy().into_owned();
        let kind = match target.split_once(":[") {
            Some(("anon_inode", kind)) => kind.trim_end_matches(']').to_owned(),
            Some((kind, _)) => kind.to_owned(),
            None => target.trim_end_matches(" (deleted)").to_owned(),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

#[test]
fn contexts_whose_ranks_share_memory_take_few_descriptors() {
    const RANKS: usize = 4;
    const CONTEXTS: i64 = 3;
    let _alone = ALONE.lock().unwrap();
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let store = InProcessStore::new();
    let first = on_all(0..RANKS, |rank| {
        let hostname = Some("127.0.0.1".into());
        let device =
            Device::create(&DeviceOptions { hostname, shared_memory: Some(true), ..Default::default() }).unwrap();
        let context = Context::new(device, rank, RANKS, &options).unwrap();
        context.connect(&*store).unwrap();
        context
    });
    assert!(first.iter().all(|context| context.shares_memory((context.rank() + 1) % RANKS).unwrap()));
    let before = kinds();
    let mut more = Vec::new();
    for _ in 0..CONTEXTS {
        more.extend(on_all(first.iter(), |context| context.split(Some(0), 0).unwrap().unwrap()));
        exchange(&more[more.len() - RANKS..]);
    }
    let mut after = kinds();
    for (kind, count) in before {
        *after.entry(kind).or_default() -= count;
    }
    after.retain(|_, count| *count != 0);
    let of_each = |kinds: &[(&str, i64)]| -> BTreeMap<String, i64> {
        kinds.iter().map(|(kind, count)| ((*kind).to_owned(), count * CONTEXTS * RANKS as i64)).collect()
    };
    assert_eq!(after, of_each(&[("eventpoll", 2), ("eventfd", 1), ("socket", 1)]));
    let memory = more[0].alloc(1 << 20).unwrap();
    assert_eq!(kinds()["/memfd:gloo_rs"], 1, "of data in a context");
    // SAFETY: nothing uses it.
    unsafe { more[0].dealloc(memory.as_ptr()) }.unwrap();
}

/// The results of what is done with each of `all` at the same time.
fn on_all<T: Send, R: Send>(all: impl Iterator<Item = T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn children_inherit_no_descriptor() {
    let _alone = ALONE.lock().unwrap();
    let before = descriptors();
    let store = TcpStore::serve("127.0.0.1", 0).unwrap();
    let contexts = pair("127.0.0.1", &Arc::new(store));
    exchange(&contexts);
    let ours: BTreeSet<i32> = descriptors().difference(&before).copied().collect();
    assert!(ours.len() >= 10, "two devices, two contexts, their connection and a store have descriptors: {ours:?}");
    let child = Command::new("ls").arg("/proc/self/fd").stdout(Stdio::piped()).output().unwrap();
    let inherited: BTreeSet<i32> =
        String::from_utf8(child.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    // `ls` itself opens the lowest free numbers.
    let both: Vec<_> = ours.intersection(&inherited).filter(|fd| **fd > 4).collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn nothing_is_left_behind() {
    let _alone = ALONE.lock().unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let (descriptors_before, threads_before) = (descriptors().len(), threads());
    for _ in 0..20 {
        exchange(&pair("127.0.0.1", &InProcessStore::new()));
    }
    // The devices' threads end on their own once the last context is gone.
    let until = Instant::now() + Duration::from_secs(10);
    while (descriptors().len() > descriptors_before || threads() > threads_before + 1) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(
        descriptors().len() <= descriptors_before,
        "{} descriptors, {descriptors_before} before",
        descriptors().len()
    );
    assert!(threads() <= threads_before + 1, "{} threads, {threads_before} before", threads());
}

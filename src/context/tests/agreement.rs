//! All ranks use rank 0's tuning, whatever they measure or are given themselves.

use std::time::Instant;

use super::*;
use crate::collective::{Collective, Constants, Shape};
use crate::context::measure::{self, Measured};
use crate::rendezvous::InProcessStore;
use crate::transport::Sharing;
use crate::types::DataType;
use crate::version::Version;

/// A quarter of the timeout may be spent on measuring; long enough for a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Connects one context for each tuning option, over one store.
pub fn connected(tunings: &[Option<&str>]) -> Vec<Result<Arc<Context>>> {
    let options = |tuning: &Option<&str>| ContextOptions {
        timeout: LONG,
        tuning: tuning.map(str::to_owned),
        ..Default::default()
    };
    connected_with(&tunings.iter().map(options).collect::<Vec<_>>())
}

/// Connects one context for each of `options`, over one store.
pub fn connected_with(options: &[ContextOptions]) -> Vec<Result<Arc<Context>>> {
    connected_on(&|| device(), options)
}

/// Connected contexts of ranks on this host that share memory, or that use sockets.
pub fn on_this_host(size: usize, shared: bool, options: ContextOptions) -> Vec<Arc<Context>> {
    let device = || {
        let hostname = Some("127.0.0.1".into());
        Device::create(&DeviceOptions { hostname, shared_memory: Some(shared), ..Default::default() }).unwrap()
    };
    connected_on(&device, &vec![options; size]).into_iter().map(Result::unwrap).collect()
}

/// Contexts as by [`connected_with`], on a device of its own for each rank. A rank that fails keeps its context and
/// device until all have ended, so that the others find the same cause as it did, however late they are.
pub fn connected_on(
    device: &(impl Fn() -> Arc<Device> + Sync),
    options: &[ContextOptions],
) -> Vec<Result<Arc<Context>>> {
    let store = InProcessStore::new();
    let connect = |rank: usize, own: &ContextOptions| {
        let context = Context::new(device(), rank, options.len(), own);
        let connected = context.as_ref().map_err(Clone::clone).and_then(|context| context.connect(&*store));
        (context, connected)
    };
    let connect = &connect;
    std::thread::scope(|scope| {
        let ranks = options.iter().enumerate().map(|(rank, own)| scope.spawn(move || connect(rank, own)));
        let ranks: Vec<_> = ranks.collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        ended.into_iter().map(|(context, connected)| connected.and(context)).collect()
    })
}

/// The algorithms and segment sizes that a context selects for calls of many kinds and sizes.
pub fn choices(context: &Context) -> Vec<(&'static str, usize, Option<usize>)> {
    let mut choices = Vec::new();
    for &collective in Collective::ALL {
        for count in (0..28).flat_map(|power| [1 << power, 3 << power]) {
            let counts = vec![count; context.size()];
            let shape = Shape {
                send_counts: &counts,
                recv_counts: &counts,
                ..Shape::new(collective, context.rank(), context.size(), count)
            };
            let decision = context.tuners.current().decide(&shape, DataType::Float32.size(), None).unwrap();
            choices.push((decision.algorithm.name, decision.segment_bytes, decision.base));
        }
    }
    choices
}

/// A tuning file in its own directory.
pub fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

const SLOW: &str = "version = 1
local = { latency_us = 5000.0, bandwidth = 1e12 }
gamma = 1e-15
choices = [{ collective = \"allreduce\", ranks = 3, up_to = 100, algorithm = \"ring_chunked\" }]
";
pub const NARROW: &str = "version = 1
local = { latency_us = 0.001, bandwidth = 1e5 }
gamma = 1e-6
choices = [{ collective = \"allreduce\", ranks = 3, up_to = 5000, algorithm = \"bcube\" }]
";

#[test]
fn all_ranks_choose_as_rank_0_says() {
    let ((_slow, slow), (_narrow, narrow)) = (file(SLOW), file(NARROW));
    let mut seen = Vec::new();
    for tunings in [
        [Some(slow.as_str()), Some(narrow.as_str()), None],
        [Some(narrow.as_str()), Some("default"), Some(slow.as_str())],
        [Some("default"), None, Some("/no/such/file")],
        [Some("measure"), Some("default"), Some(slow.as_str())],
        [None, Some(slow.as_str()), Some(narrow.as_str())],
    ] {
        let contexts: Vec<_> = connected(&tunings).into_iter().map(Result::unwrap).collect();
        assert_eq!(contexts[0].tuners.current().tuning().local.is_some(), tunings[0] != Some("default"));
        let all: Vec<_> = contexts.iter().map(|context| choices(context)).collect();
        assert!(all[0] == all[1] && all[0] == all[2], "{tunings:?}");
        let networks: Vec<_> = contexts.iter().map(|context| *context.tuners.current().network()).collect();
        assert!(networks[0] == networks[1] && networks[0] == networks[2], "{networks:?}");
        seen.push((all[0].clone(), networks[0]));
    }
    assert_ne!(seen[0].0, seen[1].0, "the files say different things");
    assert_eq!((seen[0].1.local.latency, seen[1].1.gamma), (5e-3, 1e-6));
    for (_, network) in &seen[3..] {
        let built_in = seen[2].1;
        assert!(network.local != built_in.local && network.gamma != built_in.gamma, "it was measured: {network:?}");
        assert!(network.local.latency < 0.1 && network.local.bandwidth > 1e6, "{network:?}");
        assert_eq!(network.remote, built_in.remote, "there is no other host to measure with");
    }
}

#[test]
fn a_context_out_of_a_context_goes_by_what_that_one_goes_by() {
    let (_file, slow) = file(SLOW);
    let parents: Vec<_> = connected(&[Some(&slow), None, None]).into_iter().map(Result::unwrap).collect();
    let options = ContextOptions { timeout: Duration::from_secs(20), max_segment_bytes: 4 << 20, ..Default::default() };
    run(&parents, |parent| {
        let child = Context::new(device(), parent.rank(), parent.size(), &options).unwrap();
        child.connect_from(parent, 3).unwrap();
        let names = |context: &Context| choices(context).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
        assert_eq!(child.tuners.current().network(), parent.tuners.current().network());
        assert_eq!(names(&child)[0], "ring_chunked");
    });
}

#[test]
fn constants_of_rank_0_s_file_are_everyone_s() {
    let (_file, text) = file("version = 1\nconstants = { overhead_us = 7.5, message_cpu_us = 3, spin_us = 1 }\n");
    for context in connected(&[Some(text.as_str()), None, Some("default")]).into_iter().map(Result::unwrap) {
        let tuner = context.tuners.current();
        let expected = Constants { overhead_us: 7.5, message_cpu_us: 3.0, spin_us: 1.0, ..tuner.tuning().constants() };
        assert_eq!((*tuner.constants(), tuner.network().overhead), (expected, 7.5 * 1e-6), "rank {}", context.rank());
    }
}

/// The send overhead is measured with the same messages as the latency, and is a part of the round trip.
#[test]
fn a_rank_measures_how_long_it_takes_to_send() {
    let contexts: Vec<_> = connected(&[Some("default"), None]).into_iter().map(Result::unwrap).collect();
    let until = Instant::now() + Duration::from_secs(20);
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| measure::answer(&contexts[1], 0, until));
        measure::link(&contexts[0], 1, until, 1e9).expect("the other rank answers")
    });
    let Measured { link, overhead } = measured;
    assert!(overhead > 0.0 && overhead <= 2.0 * link.latency, "{measured:?}");
}

#[test]
fn what_is_wrong_with_rank_0_s_file_all_ranks_hear_at_once() {
    let (_file, wrong) = file("version = 1\nlocal = { latency_us = 5.0 }\n");
    for (tuning, parts) in [
        (wrong.as_str(), &["tuning.toml", "line 2", "bandwidth"][..]),
        ("/no/such/file", &["/no/such/file", "No such file"]),
    ] {
        let began = Instant::now();
        let errors: Vec<_> = connected(&[Some(tuning), None, None]).into_iter().map(|c| c.err().unwrap()).collect();
        assert!(began.elapsed() < Duration::from_secs(10), "not by timeout");
        for (rank, error) in errors.iter().enumerate() {
            assert!(parts.iter().all(|part| error.message().contains(part)), "rank {rank}: {error}");
            assert!(error.message().contains("the context's options"), "{error}");
            assert_eq!(error.message().contains("rank 0: the context's options"), rank != 0, "{error}");
        }
    }
}

/// What happens if the first attempt has failed after rank 0 had published its tuning.
#[test]
fn what_rank_0_has_published_before_it_publishes_again() {
    // 17 digits, of which a file has 15.
    let slow = SLOW.replace("latency_us = 5000.0", "latency_us = 5000.1234567890123");
    let (_file, path) = file(&slow);
    let own = |tuning: &str| ContextOptions { timeout: LONG, tuning: Some(tuning.into()), ..Default::default() };
    let device = || {
        let hostname = Some("127.0.0.1".into());
        Device::create(&DeviceOptions { hostname, shared_memory: Some(false), ..Default::default() }).unwrap()
    };
    let make = |rank| Context::new(device(), rank, 3, &own(&path)).unwrap();
    let connect = |contexts: &[Arc<Context>]| {
        let store = InProcessStore::new();
        run(contexts, |context| context.connect(&*store).unwrap());
    };
    let first: Vec<_> = (0..3).map(make).collect();
    connect(&first);
    std::fs::write(&path, NARROW).unwrap();
    // Rank 2 is another process.
    let second = [first[0].clone(), first[1].clone(), make(2)];
    connect(&second);
    let known = second[0].tuners.current();
    assert_eq!(choices(&second[0])[0].0, "ring_chunked", "it is the first file");
    for context in &second {
        assert_eq!(context.tuners.current().tuning(), known.tuning());
        assert_eq!(choices(context), choices(&second[0]));
    }
    // Rank 0 is another process: what it publishes is not what the others have agreed on.
    let third = [make(0), second[1].clone(), second[2].clone()];
    let store = InProcessStore::new();
    run(&third, |context| match (context.rank(), context.connect(&*store)) {
        (0, connected) => connected.unwrap(),
        (_, connected) => {
            let error = connected.unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidOperation && error.message().contains("make a new context"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_partner_that_does_not_take_part_is_no_error() {
    let store = InProcessStore::new();
    // A quarter of this is the limit for the measurement.
    let options = ContextOptions { timeout: Duration::from_secs(6), ..Default::default() };
    let contexts: Vec<_> = (0..2).map(|rank| Context::new(device(), rank, 2, &options).unwrap()).collect();
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| contexts[0].connect(&*store));
        // Rank 1 publishes its address, says that it shares no memory, and then does nothing.
        use crate::rendezvous::Store;
        let address = || contexts[1].content(0).unwrap();
        store.set("host/1", &claim::make(Version::OWN, contexts.len(), &address()).unwrap()).unwrap();
        contexts[1].listen_anywhere().unwrap();
        store.set("address/1", &address()).unwrap();
        store.set("memory/1", &[Sharing::Nothing.number()]).unwrap();
        zero.join().unwrap().unwrap();
    });
    assert_eq!(contexts[0].tuners.current().network().local, Constants::BUILT_IN.local);
}

#[test]
fn a_context_that_is_closed_while_it_measures_ends_at_once() {
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: Duration::from_secs(60), ..Default::default() };
    let contexts: Vec<_> = (0..3).map(|rank| Context::new(device(), rank, 3, &options).unwrap()).collect();
    std::thread::scope(|scope| {
        use crate::rendezvous::Store;
        // Rank 1 is silent, and rank 2 waits for rank 0's tuning.
        let address = || contexts[1].content(0).unwrap();
        store.set("host/1", &claim::make(Version::OWN, contexts.len(), &address()).unwrap()).unwrap();
        contexts[1].listen_anywhere().unwrap();
        store.set("address/1", &address()).unwrap();
        let others = [0, 2].map(|rank| {
            scope.spawn({
                let (c, s) = (&contexts[rank], &*store);
                move || c.connect(s)
            })
        });
        while contexts[0].lock().unwrap().messenger.is_isolated() {
            std::thread::sleep(Duration::from_millis(1));
        }
        contexts[2].close();
        let began = Instant::now();
        let [zero, two] = others;
        assert_eq!(two.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert!(began.elapsed() < Duration::from_secs(10));
        contexts[0].close();
        let _ = zero.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

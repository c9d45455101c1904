//! Splits of a context, over TCP.

use super::agreement::{NARROW, choices, connected, connected_with, file};
use super::*;
use std::net::SocketAddr;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;

use crate::collective::{Collective, Shape};
use crate::context::setup::TAG;
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::rendezvous::InProcessStore;
use crate::transport::{Sharing, Watch};
use crate::types::DataType;

/// The sum of `own` over all ranks, with `tag`.
pub fn sum(context: &Context, own: u64, tag: u64) -> u64 {
    let mut sum = 0;
    let call = Call {
        inputs: &[(&raw const own).cast()],
        outputs: &[(&raw mut sum).cast()],
        tag,
        ..Call::new(Shape::new(Collective::Allreduce, context.rank(), context.size(), 1), DataType::Uint64)
    };
    // SAFETY: the numbers are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.unwrap();
    sum
}

#[test]
fn a_part_has_what_its_parent_has_and_outlives_it() {
    let (_file, narrow) = file(NARROW);
    let parents: Vec<_> = connected(&[Some(&narrow), None, None]).into_iter().map(Result::unwrap).collect();
    let parts: Vec<_> = std::thread::scope(|scope| {
        let ranks = parents.iter().map(|parent| {
            scope.spawn(|| {
                parent.set_timeout(Duration::from_secs(77));
                // The last rank becomes the first.
                let whole = parent.split(Some(4), -(parent.rank() as i32)).unwrap().unwrap();
                let part = parent.split(Some(u32::from(parent.rank() > 0)), 0).unwrap().unwrap();
                (whole, part)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for ((rank, (whole, part)), parent) in parts.iter().enumerate().zip(&parents) {
        assert_eq!((whole.rank(), part.rank(), part.size()), (2 - rank, rank.saturating_sub(1), [1, 2, 2][rank]));
        assert_eq!((whole.timeout(), part.timeout()), (Duration::from_secs(77), Duration::from_secs(77)));
        assert_eq!(choices(whole), choices(&parents[0]));
        assert_eq!(part.tuners.current().constants().local, parent.tuners.current().constants().local);
        assert_eq!((part.hosts(), part.tuners.current().network().per_host), (&vec![0; part.size()][..], part.size()));
        assert!(Arc::ptr_eq(part.device(), parent.device()));
        assert!(part.shares_host(part.size() - 1).unwrap());
        assert_eq!(part.size() > 1, part.shares_memory(usize::from(part.rank() == 0 && part.size() > 1)).unwrap());
    }
    drop(parents);
    let (wholes, parts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    run(&wholes, |whole| assert_eq!(sum(whole, 1, 0), 3));
    run(&parts, |part| assert_eq!(sum(part, 1, 0), part.size() as u64));
}

/// Rank 2 says that it is where nobody listens; it would be rank 1 of the new context.
#[test]
fn errors_name_the_ranks_of_the_parent() {
    let options = ContextOptions { timeout: Duration::from_secs(60), connect: Connect::Full, ..Default::default() };
    let parents: Vec<_> = connected_with(&vec![options; 3]).into_iter().map(Result::unwrap).collect();
    run(&parents, |parent| match parent.rank() {
        0 => assert!(parent.split(None, 0).unwrap().is_none()),
        1 => {
            let error = parent.split(Some(0), 0).err().unwrap();
            assert_eq!(error.details().rank, Some(2), "{error}");
            assert!(
                error.message().contains("rank 2 at 127.0.0.1:1") && !error.message().contains("rank 1 at"),
                "{error}"
            );
        }
        _ => {
            let own = parent.lock().unwrap().messenger.connections().address().clone();
            let address = Address { sockets: vec![([127, 0, 0, 1], 1).into()], segment: None, ..own };
            let content = [&0i64.to_le_bytes()[..], &0i32.to_le_bytes(), &address.serialize()].concat();
            parent.gather_setup(Ok(content), TAG, parent.limit()).unwrap();
            parent.gather_setup(Ok(vec![Sharing::Nothing.number()]), TAG, parent.limit()).unwrap();
        }
    });
}

/// A split that fails excludes nobody afterwards, nor does one that succeeds.
#[test]
fn a_context_is_split_again_and_again() {
    let contexts = group(2);
    for time in 0..2 {
        run(&contexts, |context| assert_eq!(context.split(Some(0), 0).unwrap().unwrap().size(), 2, "{time}"));
    }
}

#[test]
fn a_context_that_was_connected_by_its_pairs_is_split_too() {
    let contexts = group(3);
    run(&contexts, |context| {
        let part = context.split((context.rank() != 1).then_some(0), 0).unwrap();
        assert_eq!(part.is_none(), context.rank() == 1);
        if let Some(part) = part {
            assert_eq!(sum(&part, 1, 0), 2);
        }
        assert_eq!(sum(context, 1, 0), 3);
    });
}

#[test]
fn splits_run_beside_collectives_of_any_tag() {
    let contexts = group(3);
    run(&contexts, |context| {
        std::thread::scope(|scope| {
            for tag in [0, 1, u64::MAX] {
                scope.spawn(move || (0..50).for_each(|_| assert_eq!(sum(context, 2, tag), 6)));
            }
            for round in 0..10 {
                let part = context.split(Some(0), round * context.rank() as i32).unwrap().unwrap();
                assert_eq!(sum(&part, 1, 0), 3);
            }
        });
    });
}

#[test]
fn a_second_split_at_once_is_refused_and_does_no_harm() {
    let contexts = group(2);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| contexts[0].split(Some(1), 0));
        await_wait(&contexts[0]);
        let error = contexts[0].split(Some(2), 0).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidOperation);
        assert!(error.message().contains("rank 0: cannot split a context: "), "{error}");
        assert!(error.message().contains("another thread is splitting this context"), "{error}");
        let other = contexts[1].split(Some(1), 0).unwrap().unwrap();
        let first = first.join().unwrap().unwrap().unwrap();
        run(&[first, other], |part| assert_eq!(sum(part, 1, 0), 2));
    });
}

/// A device whose contexts cannot be watched while it `fails`.
struct Unwatched {
    device: Arc<dyn transport::Device>,
    fails: AtomicBool,
}

impl transport::Device for Unwatched {
    fn connections(self: Arc<Self>, token: &JobToken) -> Result<Connections> {
        self.device.clone().connections(token)
    }
    fn expect(
        self: Arc<Self>,
        token: &JobToken,
        address: &Address,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Send>> {
        self.device.clone().expect(token, address, context)
    }
    fn expected_connections(self: Arc<Self>, token: &JobToken, address: &Address) -> Result<Connections> {
        self.device.clone().expected_connections(token, address)
    }
    fn watch(self: Arc<Self>, of: &Connections, context: Weak<dyn BackgroundProgress>) -> Result<Box<dyn Watch>> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::ResourceExhausted, "no descriptor is left")),
            false => self.device.clone().watch(of, context),
        }
    }
    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>> {
        self.device.provisional_sockets(store)
    }
    fn listen(&self, store: Option<SocketAddr>, all: &[Address], rank: Rank) -> Result<Vec<SocketAddr>> {
        self.device.listen(store, all, rank)
    }
    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>> {
        self.device.listen_anywhere()
    }
    fn log(&self) -> Option<LogCallback> {
        self.device.log()
    }
    fn clock(&self) -> Arc<dyn transport::Clock> {
        self.device.clock()
    }
    fn transport(&self) -> &'static str {
        self.device.transport()
    }
    fn is_inherited(&self) -> bool {
        self.device.is_inherited()
    }
    fn accept_error(&self) -> Option<std::io::Error> {
        self.device.accept_error()
    }
}

/// Without shared memory, nothing but that would be exchanged after the addresses.
#[test]
fn a_rank_that_fails_after_the_exchange_says_so_to_all() {
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: Duration::from_secs(60), ..Default::default() };
    let devices: Vec<_> = (0..3)
        .map(|_| {
            let own =
                DeviceOptions { hostname: Some("127.0.0.1".into()), shared_memory: Some(false), ..Default::default() };
            let device: Arc<dyn transport::Device> = Device::create(&own).unwrap();
            Arc::new(Unwatched { device, fails: AtomicBool::new(false) })
        })
        .collect();
    let contexts: Vec<_> = (0..3).map(|rank| Context::new(devices[rank].clone(), rank, 3, &options).unwrap()).collect();
    run(&contexts, |context| context.connect(&*store).unwrap());
    devices[1].fails.store(true, Ordering::Relaxed);
    // Rank 2 gets no part.
    run(&contexts, |context| {
        let error = context.split((context.rank() < 2).then_some(0), 0).err().expect("a rank has failed");
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
        assert!(error.message().ends_with("no descriptor is left"), "{error}");
        assert_eq!(sum(context, 1, 0), 3, "the parent stays usable");
    });
}

#[test]
fn a_rank_that_cannot_make_its_part_says_so_to_all_and_the_parent_stays() {
    let contexts = group(2);
    let lonely = Context::new(device(), 0, 2, &ContextOptions::default()).unwrap();
    let error = lonely.split(Some(0), 0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidOperation);
    assert!(error.message().contains("not connected"), "{error}");
    run(&contexts, |context| {
        let own = match context.rank() {
            0 => context.gather_setup(Ok(vec![1]), TAG, context.limit()),
            _ => {
                let error = Error::new(ErrorKind::Io, "no such interface");
                context.gather_setup(Err(error), TAG, context.limit())
            }
        };
        let error = own.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.message(), ["rank 1: no such interface", "no such interface"][context.rank()]);
        assert_eq!(sum(context, 1, 0), 2);
    });
}

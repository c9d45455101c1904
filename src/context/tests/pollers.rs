//! Contexts whose ranks wait for their sockets in different ways.

use super::*;
use crate::collective::{Collective, Shape};
use crate::context::Connect;
#[cfg(target_os = "linux")]
use crate::sys::Pollable;
use crate::sys::PollerKind;
use crate::transport::tcp::Transport;
use crate::types::DataType;

fn device_with(transport: Transport, shared_memory: bool) -> Arc<Device> {
    let (shared_memory, transport) = (Some(shared_memory), Some(transport));
    let hostname = Some("127.0.0.1".into());
    Device::create(&DeviceOptions { hostname, shared_memory, transport, ..Default::default() }).unwrap()
}

/// Connects a rank for each of `transports`.
fn connect(transports: &[Transport], shared_memory: bool) -> Vec<Arc<Context>> {
    let next = std::sync::Mutex::new(transports.to_vec());
    let device = || device_with(next.lock().unwrap().pop().unwrap(), shared_memory);
    let options = || ContextOptions { timeout: Duration::from_secs(30), connect: Connect::Full, ..Default::default() };
    let options: Vec<_> = transports.iter().map(|_| options()).collect();
    let contexts = agreement::connected_on(&device, &options);
    contexts.into_iter().map(Result::unwrap).collect()
}

/// Each in turn, and the system's.
fn transports() -> Vec<Transport> {
    vec![
        Transport::Tcp,
        Transport::By(PollerKind::Poll),
        #[cfg(feature = "uv")]
        Transport::Uv,
        Transport::By(PollerKind::Poll),
        #[cfg(feature = "uv")]
        Transport::Uv,
    ]
}

#[test]
fn ranks_that_wait_in_different_ways_are_in_one_context() {
    for shared_memory in [false, true] {
        let contexts = connect(&transports(), shared_memory);
        run(&contexts, |context| {
            let (size, rank) = (context.size(), context.rank());
            let shares = |other| other != rank && context.shares_memory(other).unwrap();
            assert_eq!((0..size).filter(|other| shares(*other)).count(), if shared_memory { size - 1 } else { 0 });
            for count in [1, 1000, 20_000, 300_000] {
                let shape =
                    Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), count) };
                let mut cells: Vec<i64> = (0..count as i64).map(|i| i + context.rank() as i64).collect();
                let call = Call::new(shape, DataType::Int64);
                // SAFETY: the vector is as long as the shape says, and lives until the call returns.
                unsafe { context.run(&Call { outputs: &[cells.as_mut_ptr().cast()], ..call }) }.unwrap();
                let (size, all) = (context.size() as i64, (0..context.size() as i64).sum::<i64>());
                assert!(cells.iter().enumerate().all(|(i, sum)| *sum == size * i as i64 + all), "{count} elements");
            }
        });
    }
}

/// A poller fails if the program closes its descriptor, which it does not own, and the system gives the number to
/// another file.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_whose_poller_fails_says_so_at_once() {
    // With at most four connections, a rank reads each of them, and asks the poller only before it sleeps.
    for (size, shared_memory) in [(2, false), (5, false), (6, false), (6, true)] {
        let contexts = connect(&vec![Transport::Tcp; size], shared_memory);
        let mut sources = Vec::new();
        contexts[0].lock().unwrap().messenger.connections().descriptors(&mut sources);
        let pollers = sources.iter().filter_map(|source| match source {
            Pollable::Poller(poller) => Some(poller),
            Pollable::Socket(_) => None,
        });
        pollers.for_each(|poller| poller.break_down());
        // The others make no call.
        let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, 0, size, 0) };
        // SAFETY: there are no buffers.
        let error = unsafe { contexts[0].run(&Call::new(shape, DataType::Uint8)) }.unwrap_err();
        let why = if shared_memory { "of the ranks of this host" } else { "of this rank's connections" };
        let why = format!("cannot look for events {why}: Invalid argument (os error 22)");
        assert!(error.message().contains(&why), "{error}");
        assert!(contexts[0].broken().is_some());
    }
}

#[test]
fn a_message_that_no_thread_waits_for_is_sent_by_the_devices_thread() {
    for transport in transports() {
        let contexts = connect(&[transport.clone(), transport], false);
        let mut sent: Vec<u8> = (0..4u32 << 20).map(|i| (i * 7) as u8).collect();
        let mut got = vec![0u8; sent.len()];
        // SAFETY: both vectors outlive the buffers.
        let [from, into] = unsafe {
            [
                contexts[0].unbound_buffer(sent.as_mut_ptr(), sent.len()).unwrap(),
                contexts[1].unbound_buffer(got.as_mut_ptr(), got.len()).unwrap(),
            ]
        };
        from.send(1, 5, 0, sent.len()).unwrap();
        into.recv(&[0], 5, 0, got.len()).unwrap();
        // Nobody waits on rank 0 meanwhile.
        assert_eq!(into.wait_recv(None).unwrap().unwrap().1, got.len());
        from.wait_send(None).unwrap().unwrap();
        drop((from, into));
        assert!(got == sent);
    }
}

//! Contexts whose connections are TLS.

use std::io::{ErrorKind as IoErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::*;
use crate::collective::{Collective, Shape};
use crate::context::Connect;
use crate::net::address::Address;
use crate::net::stream::{Security, Stream};
use crate::net::tls::{self, Credentials, tests::Authority};
use crate::transport::tcp::Transport;
use crate::types::DataType;

fn device_with(transport: Transport) -> Arc<Device> {
    let options = DeviceOptions {
        hostname: Some("127.0.0.1".into()),
        shared_memory: Some(false),
        transport: Some(transport),
        ..Default::default()
    };
    Device::create(&options).unwrap()
}

fn options(timeout: u64) -> ContextOptions {
    ContextOptions { timeout: Duration::from_secs(timeout), connect: Connect::Full, ..Default::default() }
}

/// Connects a context for each of `transports`, over one store.
fn connect(transports: &[Transport]) -> Vec<Result<Arc<Context>>> {
    let next = std::sync::Mutex::new(transports.to_vec());
    agreement::connected_on(&|| device_with(next.lock().unwrap().pop().unwrap()), &vec![options(20); transports.len()])
}

/// The sum of all ranks' numbers, of which element `i` of rank `r` is `i + r`.
fn sums(context: &Context, count: usize, tag: u64) -> Result<()> {
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), count) };
    let mut cells: Vec<i64> = (0..count as i64).map(|i| i + context.rank() as i64).collect();
    let call = Call { tag, ..Call::new(shape, DataType::Int64) };
    // SAFETY: the vector is as long as the shape says, and lives until the call returns.
    unsafe { context.run(&Call { outputs: &[cells.as_mut_ptr().cast()], ..call }) }?;
    let (size, all) = (context.size() as i64, (0..context.size() as i64).sum::<i64>());
    let wrong = cells.iter().enumerate().find(|(i, sum)| **sum != size * *i as i64 + all);
    assert_eq!(wrong, None, "{count} elements");
    Ok(())
}

#[test]
fn collectives_of_any_size_work_over_tls() {
    let authority = Authority::new();
    let contexts = connect(&vec![Transport::Tls(authority.member()); 4]);
    let contexts: Vec<_> = contexts.into_iter().map(Result::unwrap).collect();
    run(&contexts, |context| {
        for round in 0..20 {
            for count in [1, 7, 1000, 8192, 20_000] {
                sums(context, count + round, 0).unwrap();
            }
        }
        sums(context, 1_000_003, 0).unwrap();
    });
    // Several calls at the same time on one connection, and one that begins while nobody waits.
    run(&contexts, |context| {
        std::thread::scope(|scope| {
            for tag in 1..5 {
                scope.spawn(move || (0..10).for_each(|round| sums(context, 3000 * (round + 1), tag).unwrap()));
            }
        });
    });
}

#[test]
fn a_rank_without_tls_and_one_with_it_both_say_so() {
    let authority = Authority::new();
    let began = Instant::now();
    let tls = Transport::Tls(authority.member());
    for transports in [[tls.clone(), Transport::Tcp], [Transport::Tcp, tls]] {
        let errors = connect(&transports).into_iter().map(|result| result.err().expect("they cannot connect"));
        let texts: Vec<_> = errors
            .map(|error| {
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                error.message().to_owned()
            })
            .collect();
        assert!(texts.iter().all(|text| text.contains("TLS")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("GLOO_RS_TRANSPORT")), "{texts:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn ranks_of_two_authorities_refuse_each_other_and_say_why() {
    let (one, other) = (Authority::new(), Authority::new());
    let began = Instant::now();
    let results = connect(&[Transport::Tls(one.member()), Transport::Tls(other.member())]);
    for error in results.into_iter().map(|result| result.err().expect("they do not trust each other")) {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains("authority"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Passes on what two streams receive until one ends.
fn pass_on(mut ends: [Stream; 2]) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        for from in 0..2 {
            let mut bytes = [0; 4096];
            let received = ends[from].receive(&mut [IoSliceMut::new(&mut bytes)]);
            let mut rest = match received {
                Ok(0) => return,
                Ok(n) => &bytes[..n],
                Err(error) if error.kind() == IoErrorKind::WouldBlock => &[],
                Err(_) => return,
            };
            while !rest.is_empty() {
                match ends[1 - from].send(&[IoSlice::new(rest)]) {
                    Ok(n) => rest = &rest[n..],
                    Err(error) if error.kind() == IoErrorKind::WouldBlock => std::thread::yield_now(),
                    Err(_) => return,
                }
            }
            let _ = ends[1 - from].flush();
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Rank 0 finds a relay in place of rank 1. With a certificate of the authority, it terminates TLS on both sides.
fn through_a_relay(certificate: Option<tls::Options>, work: impl Fn(&[Arc<Context>])) {
    let authority = Authority::new();
    let security = match &certificate {
        None => Security::Plain,
        Some(_) => Security::Tls(Credentials::new(authority.member(), None).unwrap()),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap();
    let device = || device_with(Transport::Tls(authority.member()));
    let contexts: Vec<_> = (0..2).map(|rank| Context::new(device(), rank, 2, &options(10)).unwrap()).collect();
    let addresses: Vec<_> = contexts.iter().map(|c| c.lock().unwrap().messenger.address()).collect();
    let mut theirs = Address::deserialize(&addresses[1]).unwrap();
    let target = std::mem::replace(&mut theirs.sockets, vec![relay])[0];
    contexts[0].lock().unwrap().messenger.set_peer(1, &theirs.serialize()).unwrap();
    contexts[1].lock().unwrap().messenger.set_peer(0, &addresses[0]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Ended by the connection below.
            while let Ok((socket, from)) = listener.accept() {
                let Ok(onward) = TcpStream::connect::<SocketAddr>(target) else { return };
                if from.ip().is_loopback() && socket.peek(&mut [0]).is_ok_and(|n| n == 0) {
                    return;
                }
                let sockets = [socket, onward].map(|socket| {
                    socket.set_nonblocking(true).unwrap();
                    OwnedFd::from(socket)
                });
                let [near, far] = sockets;
                let ends = [security.accept(near.into()).unwrap(), security.connect(far.into()).unwrap()];
                scope.spawn(|| pass_on(ends));
            }
        });
        work(&contexts);
        contexts.iter().for_each(|context| context.close());
        drop(TcpStream::connect(relay).unwrap());
    });
}

#[test]
fn a_relay_that_terminates_tls_cannot_pass_proofs_on() {
    // One that passes bytes on is part of the network.
    through_a_relay(None, |contexts| run(contexts, |context| sums(context, 100_000, 0).unwrap()));
    through_a_relay(Some(tls::Options::default()), |contexts| {
        let error = sums(&contexts[0], 1, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains("it did not prove that it belongs to this job"), "{error}");
    });
}

/// Connections that fail disturb nobody, and are counted.
#[test]
fn strangers_are_counted_and_disturb_nobody() {
    let authority = Authority::new();
    let device = device_with(Transport::Tls(authority.member()));
    let other = device_with(Transport::Tls(authority.member()));
    let devices = std::sync::Mutex::new(vec![other, device.clone()]);
    let next = || devices.lock().unwrap().pop().unwrap();
    let contexts = agreement::connected_on(&next, &vec![options(20); 2]);
    let contexts: Vec<_> = contexts.into_iter().map(Result::unwrap).collect();
    let at = device.addresses()[0];
    let before = device.statistics();
    // Not TLS; nothing at all; a certificate of another authority; the right one, and then not this protocol.
    let knock = |security: Security, bytes: &[u8]| {
        let socket = TcpStream::connect(at).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut stream = security.connect(socket.into()).unwrap();
        let _ = stream.send(&[IoSlice::new(bytes)]);
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(10), "it is not dropped");
            match stream.receive(&mut [IoSliceMut::new(&mut [0; 100])]) {
                Err(error) if error.kind() == IoErrorKind::WouldBlock => std::thread::yield_now(),
                Ok(n) if n > 0 => {}
                _ => return,
            }
        }
    };
    let mut plain = TcpStream::connect(at).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = plain.read_to_end(&mut Vec::new());
    drop(TcpStream::connect(at).unwrap());
    let stranger = Authority::new();
    let mut trusting = stranger.member();
    trusting.ca_file = authority.member().ca_file;
    assert!(Credentials::new(trusting, None).is_err(), "its own certificate is not of that authority");
    knock(Security::Tls(Credentials::new(stranger.member(), None).unwrap()), b"hello");
    knock(Security::Tls(Credentials::new(authority.member(), None).unwrap()), b"GET / HTTP/1.1\r\n\r\n");
    let counted = || {
        let now = device.statistics();
        (now.foreign - before.foreign, now.unproven - before.unproven, now.incomplete - before.incomplete)
    };
    let began = Instant::now();
    while counted() != (2, 1, 1) {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", counted());
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&contexts, |context| sums(context, 5000, 0).unwrap());
}

//! Attackers, and members of the job that they listen to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gloo_rs::net::address::Address;
use gloo_rs::net::handshake::{self, Answer, Connecting, Connector, Hello, Identity, Reason};
use gloo_rs::rendezvous::Store;
use gloo_rs::rendezvous::tcp::{TcpStore, TcpStoreOptions};

use socket2::{Domain, Socket, Type};

use crate::job::{Job, LONG, SIZE, token};

pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The same from 127.0.0.`host`.
pub fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
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
pub fn overhear_the_store(job: &Job) -> Vec<u8> {
    overhear(job.store(), use_the_store)
}

pub fn use_the_store(port: u16) {
    let options = TcpStoreOptions { token: token(), log: None };
    let client = TcpStore::connect_with("127.0.0.1", port, LONG, &options).unwrap();
    client.set("overheard", b"once").unwrap();
}

/// All that a rank says which connects to rank 1, up to the answer.
pub fn overhear_a_rank(job: &Job) -> Vec<u8> {
    let identities = identities(job);
    overhear(job.device(), |port| connect_as_rank_0(SocketAddr::from(([127, 0, 0, 1], port)), identities))
}

/// Those of ranks 0 and 1.
pub fn identities(job: &Job) -> [Identity; 2] {
    [0, 1].map(|rank| {
        let own = job.contexts[rank].pair((rank + 1) % SIZE).unwrap().address().unwrap();
        Address::deserialize(&own).unwrap().identity
    })
}

/// Shows rank 1, which listens at `to`, that this is rank 0.
pub fn connect_as_rank_0(to: SocketAddr, [ours, theirs]: [Identity; 2]) {
    let key = handshake::key(&token().unwrap(), &theirs);
    let (sought, from) = (handshake::handle(&theirs), handshake::handle(&ours));
    let mut connector = Connector::new(key, &Hello { has_token: true, rank: 0, to: sought, from, nonce: [2; 32] });
    let mut stream = connect(to);
    stream.write_all(connector.hello()).unwrap();
    loop {
        let mut bytes = vec![0; connector.wanted()];
        stream.read_exact(&mut bytes).unwrap();
        match connector.take(&bytes).unwrap() {
            Connecting::Waiting => {}
            Connecting::Send(proof) => stream.write_all(&proof).unwrap(),
            // It is proven, and there is a connection to rank 0 already.
            Connecting::Done(answer, _) => return assert_eq!(answer, Answer::Refused(Reason::Connected)),
        }
    }
}

pub const KINDS: usize = 12;

/// What attackers do, each on a connection of its own. Whether it was dropped.
pub fn attack(to: SocketAddr, kind: usize, seed: usize, overheard: &[u8]) -> bool {
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
pub fn hold_open(to: SocketAddr, overheard: &[u8], first_words: usize) -> Duration {
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

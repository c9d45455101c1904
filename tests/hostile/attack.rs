//! Attacks, and the members of the job whose messages attackers record.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gloo_rs::net::address::Address;
use gloo_rs::net::handshake::{self, Answer, Connecting, Connector, HELLO_BYTES, Hello, Identity, Part, Reason};
use gloo_rs::rendezvous::Store;
use gloo_rs::rendezvous::tcp::{TcpStore, TcpStoreOptions};
use gloo_rs::version::Version;

use socket2::{Domain, Socket, Type};

use crate::job::{Job, LONG, SIZE, token};

pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Connects from 127.0.0.`host`.
pub fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Whether the other side closes the connection; bytes that it sends before are ignored.
fn is_dropped(mut stream: TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A hello to a context that does not exist here.
fn hello(seed: u8) -> Vec<u8> {
    Hello { has_token: true, rank: 0, to: [seed; 16], from: [seed; 16], nonce: [seed; 32], part: Part::first(1) }
        .encode()
        .to_vec()
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

/// Runs `talk` with a client of `to` through a proxy, and returns the bytes that the client sends.
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

/// All bytes that a client sends to the store.
pub fn overhear_the_store(job: &Job) -> Vec<u8> {
    overhear(job.store(), use_the_store)
}

pub fn use_the_store(port: u16) {
    let options = TcpStoreOptions { token: token(), ..Default::default() };
    let client = TcpStore::connect_with("127.0.0.1", port, LONG, &options).unwrap();
    client.set("overheard", b"once").unwrap();
}

/// All bytes that a rank sends to rank 1 while it connects, up to the last message of the handshake.
pub fn overhear_a_rank(job: &Job) -> Vec<u8> {
    let identities = identities(job);
    overhear(job.device(), |port| connect_as_rank_0(SocketAddr::from(([127, 0, 0, 1], port)), identities))
}

/// The identities of ranks 0 and 1.
pub fn identities(job: &Job) -> [Identity; 2] {
    [0, 1].map(|rank| {
        let own = job.contexts[rank].pair((rank + 1) % SIZE).unwrap().address().unwrap();
        Address::deserialize(Version::decode(&own).unwrap().1).unwrap().identity
    })
}

/// Proves to rank 1, which listens at `to`, that this is rank 0.
pub fn connect_as_rank_0(to: SocketAddr, [ours, theirs]: [Identity; 2]) {
    let key = handshake::key(&token().unwrap(), &theirs);
    let (sought, from) = (handshake::handle(&theirs), handshake::handle(&ours));
    let mut connector = Connector::new(
        key,
        &Hello { has_token: true, rank: 0, to: sought, from, nonce: [2; 32], part: Part::first(1) },
    );
    let mut stream = connect(to);
    stream.write_all(connector.hello()).unwrap();
    loop {
        let mut bytes = vec![0; connector.wanted()];
        stream.read_exact(&mut bytes).unwrap();
        match connector.take(&bytes).unwrap() {
            Connecting::Waiting => {}
            Connecting::Send(proof) => stream.write_all(&proof).unwrap(),
            // The attacker is authenticated, and there is already a connection to rank 0.
            Connecting::Done(answer, _) => return assert_eq!(answer, Answer::Refused(Reason::Connected)),
        }
    }
}

pub const KINDS: usize = 12;

/// Attacks, each on a connection of its own. Returns whether it was dropped.
pub fn attack(to: SocketAddr, kind: usize, seed: usize, overheard: &[u8]) -> bool {
    let mut stream = connect(to);
    // The store's hello has the same first bytes except for the last letter; its handshake is shorter, because it has
    // no handles.
    let (hello_bytes, has_token) = if overheard[7] == b'S' { (45, 12) } else { (HELLO_BYTES, 8) };
    let bytes = match kind {
        // A port scan.
        0 => return true,
        // A port scan that ends with a reset.
        1 => return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).is_ok(),
        2 => b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
        3 => [&[0xff][..], &random_bytes(seed, seed % 200)].concat(),
        // Other versions.
        4 => [&b"gloo_rs\x63"[..], &[0; 100]].concat(),
        5 => [&b"gloo_rsS"[..], &[9, 0, 0, 0], &[0; 100]].concat(),
        // A context that does not exist here.
        6 => hello(seed as u8),
        // The recorded bytes, cut short.
        7 => {
            let _ = stream.write_all(&overheard[..seed % (hello_bytes + 32)]);
            let _ = stream.shutdown(Shutdown::Write);
            return is_dropped(stream);
        }
        // The recorded bytes, complete, followed by frames of huge lengths.
        8 => [overheard, &[0xff; 400]].concat(),
        // The largest length, with nothing before it.
        9 => vec![0xff; 64],
        // The right context, with another token or without one.
        10 => [&overheard[..hello_bytes], &random_bytes(seed, 32)].concat(),
        _ => {
            let mut hello = overheard[..hello_bytes].to_vec();
            assert_eq!(std::mem::take(&mut hello[has_token]), 1);
            hello
        }
    };
    // The connection may be dropped before all bytes are sent.
    let _ = stream.write_all(&bytes);
    is_dropped(stream)
}

/// Connections that are held open: silent ones, ones that have sent everything but the proof, and ones that send a byte
/// now and then. Returns the time until the last was dropped.
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

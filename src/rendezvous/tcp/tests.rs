//! Behaviour that is specific to the store over TCP: malicious clients, servers that end, peers that are not stores.

#[path = "../../../tests/support/ipv6.rs"]
mod ipv6;
mod outages;
#[cfg(feature = "tls")]
mod tls;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::tests::{LONG, finish, role, spawn_self};
use super::frame::{MAX_FRAME_BYTES, MAX_FRAME_KEYS, batches};
use super::protocol::{self, Request};
use super::server::Limits;
use super::*;
use ipv6::needs_ipv6;

const SHORT: Duration = Duration::from_millis(100);

fn serve() -> TcpStore {
    TcpStore::serve("127.0.0.1", 0).unwrap()
}

/// A server with short time limits.
fn serve_impatiently() -> TcpStore {
    let limits = Limits { hello: SHORT, stall: SHORT, linger: SHORT };
    TcpStore::start("127.0.0.1", 0, &TcpStoreOptions::default(), limits).unwrap()
}

/// A connection on which the test sends its own bytes; reads have a timeout.
fn raw(store: &TcpStore) -> TcpStream {
    let stream = TcpStream::connect(store.address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

fn no_key() -> SecretKey {
    handshake::key(&JobToken::none())
}

/// A connection like that of [`raw`], after the handshake.
fn after_handshake(store: &TcpStore) -> TcpStream {
    let mut stream = raw(store);
    let client = handshake::client(&no_key(), &[1; 32]);
    stream.write_all(&client).unwrap();
    let mut server = [0; handshake::SERVER_BYTES];
    stream.read_exact(&mut server).unwrap();
    stream.write_all(&handshake::proof(&no_key(), &client, &server).unwrap()).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

/// Whether the server closes the connection; bytes that it sends before are ignored.
fn is_dropped(mut stream: TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

fn works(store: &TcpStore) {
    let other = TcpStore::connect("127.0.0.1", store.port(), LONG).unwrap();
    let value = format!("{:?}", Instant::now());
    other.set("does it work", value.as_bytes()).unwrap();
    assert_eq!(store.get("does it work", LONG).unwrap(), value.as_bytes());
}

#[test]
fn clients_that_violate_the_protocol_are_dropped() {
    let store = serve();
    let mut version_2 = protocol::client_hello();
    version_2[8] = 2;
    let too_long = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes();
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
    let mut odd_flags = handshake::client(&no_key(), &[1; 32]);
    odd_flags[protocol::CLIENT_HELLO_BYTES] = 2;
    let no_proof = [&handshake::client(&no_key(), &[1; 32])[..], &[0; 32]].concat();
    for (what, bytes) in [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("a first byte that is wrong", b"x".to_vec()),
        ("another version", version_2.to_vec()),
        ("flags that nobody has", odd_flags.to_vec()),
        ("no proof", no_proof),
    ] {
        let mut stream = raw(&store);
        stream.write_all(&bytes).unwrap();
        assert!(is_dropped(stream), "{what} was not dropped");
        works(&store);
    }
    for (what, bytes) in [
        ("a length over the limit", too_long.to_vec()),
        ("the greatest length", vec![255; 4]),
        ("an empty request", vec![0; 4]),
        ("an unknown request", frame(&[99])),
        ("a request that is cut short", frame(&[1, 1, 0, 0, 0, 3, 0, b'a'])),
        ("a count of 2^32 - 1", frame(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255])),
        ("a value longer than the request", frame(&[5, 1, 0, b'k', 255, 255, 255, 255])),
        ("a key that is not UTF-8", frame(&[6, 1, 0, 0xff])),
        ("an empty key", frame(&[6, 0, 0])),
    ] {
        let mut stream = after_handshake(&store);
        stream.write_all(&bytes).unwrap();
        assert!(is_dropped(stream), "{what} was not dropped");
        works(&store);
    }
}

#[test]
fn clients_that_stop_half_way_are_dropped() {
    let store = serve_impatiently();
    let request = Request::Set(vec![("k", &[7; 1000])]).encode().unwrap();
    for (what, mut stream, bytes) in [
        ("no hello", raw(&store), &b""[..]),
        ("half a hello", raw(&store), &protocol::client_hello()[..5]),
        ("a hello and nothing else", raw(&store), &protocol::client_hello()),
        ("no proof", raw(&store), &handshake::client(&no_key(), &[1; 32])),
        ("half a length", after_handshake(&store), &request[..2]),
        ("half a request", after_handshake(&store), &request[..500]),
        ("the start of a request of 64 MiB", after_handshake(&store), &(MAX_FRAME_BYTES as u32).to_le_bytes()),
    ] {
        stream.write_all(bytes).unwrap();
        assert!(is_dropped(stream), "{what} was not dropped");
    }
    // An idle client, and one that waits, are not in the middle of a message.
    let idle = TcpStore::connect("127.0.0.1", store.port(), LONG).unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| store.get("k", LONG).unwrap());
        thread::sleep(4 * SHORT);
        idle.set("k", b"v").unwrap();
        assert_eq!(wait.join().unwrap(), b"v");
    });
}

#[test]
fn a_client_that_does_not_read_its_replies_is_dropped_and_blocks_no_other() {
    let store = serve_impatiently();
    let value = vec![7; 32 << 20];
    store.set("large", &value).unwrap();
    let get = Request::Get { timeout: Duration::ZERO, keys: vec!["large"] }.encode().unwrap();
    let mut stream = after_handshake(&store);
    // Several requests: only the first is processed until its reply has been sent.
    stream.write_all(&get.repeat(100)).unwrap();
    works(&store);
    // The client's socket buffers are smaller than the reply, so the server keeps the rest.
    thread::sleep(4 * SHORT);
    let mut taken = Vec::new();
    let _ = stream.read_to_end(&mut taken);
    assert!(taken.len() < value.len(), "the whole answer came after all");
    works(&store);
}

#[test]
fn requests_in_one_packet_and_in_single_bytes_get_replies_in_order() {
    let store = serve();
    let requests = [
        Request::Add { key: "n", amount: 1 },
        Request::Get { timeout: Duration::from_millis(10), keys: vec!["absent"] },
        Request::Add { key: "n", amount: 2 },
        Request::Delete { key: "n" },
    ];
    let bytes: Vec<u8> = requests.iter().flat_map(|request| request.encode().unwrap()).collect();
    let answers = [
        protocol::reply_sum(1),
        protocol::reply_missing([0].into_iter()),
        protocol::reply_sum(3),
        protocol::reply_deleted(true),
    ]
    .concat();
    for pieces in [bytes.len(), 1] {
        let mut stream = after_handshake(&store);
        stream.set_nodelay(true).unwrap();
        for piece in bytes.chunks(pieces) {
            stream.write_all(piece).unwrap();
        }
        let mut got = vec![0; answers.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, answers);
    }
}

#[test]
fn two_hundred_idle_clients_block_no_other() {
    let store = serve();
    let idle: Vec<_> = (0..200).map(|i| if i % 2 == 0 { raw(&store) } else { after_handshake(&store) }).collect();
    works(&store);
    drop(idle);
    works(&store);
}

#[test]
fn the_wait_of_a_client_that_disconnects_is_removed() {
    let store = serve();
    for i in 0..50 {
        let mut stream = after_handshake(&store);
        stream.write_all(&Request::Get { timeout: LONG, keys: vec!["k"] }.encode().unwrap()).unwrap();
        // Half of the clients close at once, the others let the server close first.
        if i % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(is_dropped(stream));
        }
    }
    works(&store);
    store.set("k", b"v").unwrap();
    works(&store);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn garbage_after_the_hello_does_no_harm(garbage in proptest::collection::vec(any::<u8>(), 1..100), framed: bool) {
        thread_local! { static STORE: TcpStore = serve(); }
        STORE.with(|store| {
            let mut stream = after_handshake(store);
            let length = if framed { (garbage.len() as u32).to_le_bytes().to_vec() } else { Vec::new() };
            stream.write_all(&[length, garbage].concat()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(is_dropped(stream));
            works(store);
        });
    }
}

#[test]
fn a_lost_server_fails_waits_and_later_calls() {
    let server = serve();
    let address = server.address.to_string();
    let client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| client.get("never", LONG).unwrap_err());
        thread::sleep(SHORT);
        drop(server);
        let error = wait.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        assert!(error.message().contains(&address) && error.message().contains("\"never\""), "{error}");
    });
    for _ in 0..3 {
        let error = client.set("k", b"v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        assert!(error.message().contains(&address) && error.message().contains("\"k\""), "{error}");
    }
}

#[test]
fn a_server_lets_the_others_finish_first() {
    let server = serve();
    server.multi_set(&[("a", b"1"), ("b", b"2")]).unwrap();
    let client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    thread::scope(|scope| {
        let end = scope.spawn(move || drop(server));
        thread::sleep(SHORT);
        assert!(!end.is_finished(), "the server did not wait for its client");
        assert_eq!(client.get("a", LONG).unwrap(), b"1");
        assert_eq!(client.get("b", LONG).unwrap(), b"2");
        drop(client);
        end.join().unwrap();
    });
}

#[test]
fn a_new_server_is_not_taken_for_the_old_one() {
    let old = serve_impatiently();
    let client = TcpStore::connect("127.0.0.1", old.port(), LONG).unwrap();
    client.set("k", b"old").unwrap();
    let port = old.port();
    drop(old);
    let new = TcpStore::serve("127.0.0.1", port).unwrap();
    for _ in 0..2 {
        let error = client.get("k", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
    }
    works(&new);
}

#[test]
fn a_port_in_use_is_named() {
    let store = serve();
    let error = TcpStore::serve("127.0.0.1", store.port()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains(&store.describe()) && error.message().contains("in use"), "{error}");
    for host in ["", "a\0b"] {
        assert!(TcpStore::serve(host, 0).is_err() && TcpStore::connect(host, 1, LONG).is_err());
    }
}

#[test]
fn connecting_without_a_server_ends_with_the_timeout() {
    // Bound but not listening: no other process gets this port, and connections are refused.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    let began = Instant::now();
    let error = TcpStore::connect("127.0.0.1", port, 3 * SHORT).err().unwrap();
    assert!(began.elapsed() >= 3 * SHORT && began.elapsed() < LONG);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    for part in [&format!("tcp://127.0.0.1:{port}"), "tries", "refused"] {
        assert!(error.message().contains(part), "{part:?} is not in {error}");
    }
    let error = TcpStore::connect("no.such.host.invalid", 1, SHORT).err().unwrap();
    assert!(error.message().contains("tcp://no.such.host.invalid:1"), "{error}");
}

/// A server that performs the handshake, sends `words`, and replies to nothing.
fn mute_store(words: &[u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let words = words.to_vec();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().take(100) {
            let mut stream = stream.unwrap();
            let mut client = [0; handshake::CLIENT_BYTES];
            stream.read_exact(&mut client).unwrap();
            stream.write_all(&handshake::server(&no_key(), &client, 1, &[2; 32]).0).unwrap();
            stream.read_exact(&mut [0; handshake::PROOF_BYTES]).unwrap();
            stream.write_all(&[&[handshake::WELCOME], &words[..]].concat()).unwrap();
            kept.push(stream);
        }
    });
    port
}

/// A listener that sends `hello` on each of its connections, keeps the most recent ones open, and replies to nothing.
fn mute_server(hello: &[u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hello = hello.to_vec();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().take(100) {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&hello);
            kept.push(stream);
        }
    });
    port
}

#[test]
fn a_peer_that_is_not_a_store_is_reported_at_once() {
    let mut version_7 = protocol::server_hello(1);
    version_7[8] = 7;
    for (hello, part) in [(&b"HTTP/1.1 400 Bad Request\r\n"[..], "not a gloo_rs store"), (&version_7, "version 7")] {
        let port = mute_server(hello);
        let error = TcpStore::connect("127.0.0.1", port, LONG).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains(part) && error.message().contains(&port.to_string()), "{error}");
    }
}

#[test]
fn a_silent_server_is_a_timeout() {
    let error = TcpStore::connect("127.0.0.1", mute_server(b""), 2 * SHORT).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("did not answer"), "{error}");

    let store = TcpStore::connect("127.0.0.1", mute_store(b""), LONG).unwrap();
    for set in [false, true] {
        let began = Instant::now();
        let error = if set { store.set_within("k", b"", SHORT).err() } else { store.get("k", SHORT).err() }.unwrap();
        // What forgets the timeout of the call uses that of the store.
        assert!(began.elapsed() >= SHORT && began.elapsed() < store.timeout, "{:?}", began.elapsed());
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("does not answer") && error.message().contains("\"k\""), "{error}");
    }
}

#[test]
fn invalid_replies_are_reported() {
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    let huge = vec![255; 4];
    for answer in [frame(&[]), frame(&[9]), frame(&[0, 0, 0, 0, 0]), frame(&[0, 2, 0, 0, 0, 0, 0, 0, 0]), huge] {
        let store = TcpStore::connect("127.0.0.1", mute_store(&answer), LONG).unwrap();
        let error = store.get("k", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains("\"k\""), "{error}");
    }
}

#[test]
fn both_families_are_served() {
    needs_ipv6();
    for host in ["127.0.0.1", "::1", "localhost"] {
        let server = TcpStore::serve(host, 0).unwrap();
        let client = TcpStore::connect(host, server.port(), LONG).unwrap();
        client.set("k", host.as_bytes()).unwrap();
        assert_eq!(server.get("k", LONG).unwrap(), host.as_bytes());
        let shown = if host.contains(':') { "[::1]" } else { host };
        assert_eq!(client.describe(), format!("tcp://{shown}:{}", server.port()));
    }
}

#[test]
fn batches_contain_all_keys_and_fit() {
    let sizes = [1, MAX_FRAME_BYTES - 64, 5, 5, MAX_FRAME_BYTES / 2, MAX_FRAME_BYTES / 2, 1];
    let split: Vec<_> = batches(&sizes, |size| *size).collect();
    assert_eq!(split, [&sizes[..1], &sizes[1..2], &sizes[2..5], &sizes[5..]]);
    let many = vec![(); MAX_FRAME_KEYS * 2 + 1];
    assert_eq!(batches(&many, |_| 2).map(|b| b.len()).collect::<Vec<_>>(), [MAX_FRAME_KEYS, MAX_FRAME_KEYS, 1]);
}

fn with_token(token: &str) -> TcpStoreOptions {
    TcpStoreOptions { token: Some(JobToken::new(token)), ..Default::default() }
}

#[test]
fn a_client_needs_the_servers_token() {
    let server = TcpStore::serve_with("127.0.0.1", 0, &with_token("swordfish")).unwrap();
    let connect = |token| TcpStore::connect_with("127.0.0.1", server.port(), LONG, &with_token(token));
    connect("swordfish").unwrap().set("k", b"v").unwrap();
    let open = serve();
    let to_open = TcpStore::connect_with("127.0.0.1", open.port(), LONG, &with_token("swordfish"));
    for (result, part) in [
        (connect("herring"), "its job token (GLOO_RS_TOKEN) another one"),
        (connect(""), "it has a job token and this process has none: GLOO_RS_TOKEN"),
        (to_open, "it has no job token and this process has one: GLOO_RS_TOKEN"),
    ] {
        let error = result.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains(part) && error.message().contains("tcp://127.0.0.1:"), "{error}");
        assert!(!error.message().contains("herring") && !error.message().contains("swordfish"), "{error}");
    }
    // No request of an unauthenticated client is processed, even if it follows all bytes of a handshake.
    let mut stream = raw(&server);
    let hello = handshake::client(&handshake::key(&JobToken::new("herring")), &[1; 32]);
    let forged = [&hello[..], &[7; 32], &Request::Set(vec![("k", b"w")]).encode().unwrap()].concat();
    stream.write_all(&forged).unwrap();
    assert!(is_dropped(stream));
    assert_eq!(server.get("k", LONG).unwrap(), b"v");
    let statistics = server.statistics().unwrap();
    assert_eq!((statistics.accepted, statistics.unproven, statistics.refused()), (2, 3, 3), "{statistics:?}");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// In a process of its own, where no other test opens or closes descriptors.
#[test]
fn descriptors_and_threads_end_with_the_store() {
    if role().is_none() {
        return finish(spawn_self("rendezvous::tcp::tests::descriptors_and_threads_end_with_the_store", "counts"));
    }
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = (open_descriptors(), threads());
    for _ in 0..20 {
        let server = serve();
        let clients: Vec<_> = (0..5).map(|_| TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap()).collect();
        clients.iter().for_each(|client| client.set("k", b"v").unwrap());
        drop(clients);
        drop(server);
    }
    assert_eq!((open_descriptors(), threads()), before);
}

/// A C program with the default action for SIGPIPE must not end because of a broken connection.
#[test]
fn no_write_raises_a_signal() {
    if role().is_none() {
        return finish(spawn_self("rendezvous::tcp::tests::no_write_raises_a_signal", "sigpipe"));
    }
    // SAFETY: changes the action of the process, in which no other test runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let server = serve_impatiently();
    let client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    drop(server);
    // The first write may still fit into buffers; then the connection is reset, and all connections of the pool are
    // used up.
    let value = vec![1; 8 << 20];
    for _ in 0..3 {
        assert_eq!(client.set("k", &value).unwrap_err().kind(), ErrorKind::ConnectionLost);
    }

    let server = serve();
    server.set("large", &value).unwrap();
    for _ in 0..20 {
        let mut stream = after_handshake(&server);
        let get = Request::Get { timeout: Duration::ZERO, keys: vec!["large"] }.encode().unwrap();
        stream.write_all(&get).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
    }
    works(&server);
}

/// Uses up all descriptors, in a process of its own, and recovers.
#[test]
fn a_server_without_descriptors_goes_on_when_there_are_some() {
    if role().is_none() {
        return finish(spawn_self(
            "rendezvous::tcp::tests::a_server_without_descriptors_goes_on_when_there_are_some",
            "descriptors",
        ));
    }
    let lines = Arc::new(Mutex::new(Vec::new()));
    let told = lines.clone();
    let log: LogCallback = Arc::new(move |_, text| told.lock().unwrap().push(text.to_owned()));
    let options = TcpStoreOptions { log: Some(log), ..Default::default() };
    let server = TcpStore::serve_with("127.0.0.1", 0, &options).unwrap();
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the struct lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let waiting: Vec<_> = (0..10).map(|_| socket()).collect();
    let silent = raw(&server);
    works(&server);
    let mut files = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    // The silent connection is dropped after its minimum time, and at most one of these replaces it.
    waiting.iter().for_each(|socket| socket.connect(&server.address.into()).unwrap());
    assert!(is_dropped(silent));
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    server.set("k", b"v").unwrap();
    // Fails at once and names the limit: waiting does not free descriptors.
    let began = Instant::now();
    let error = TcpStore::connect("127.0.0.1", server.port(), LONG).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    let limit = "Too many open files (os error 24): this process may have 64 descriptors; raise that with ulimit -n";
    assert!(error.message().contains(limit), "{error}");
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    drop((files, waiting));
    works(&server);
    // One log line for each time: the server's own connection, 10 that wait, the silent one, and those of `works` come
    // in between.
    let lines = lines.lock().unwrap();
    let told = lines.iter().filter(|line| line.starts_with("store: cannot accept connections for a while: Too many"));
    assert!((1..=15).contains(&told.count()), "{lines:#?}");
}

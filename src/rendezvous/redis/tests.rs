//! Behaviour that is specific to the store in a Redis server, tested with a real one.

#[path = "../../../tests/support/redis_server.rs"]
mod redis_server;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::{PrefixStore, Store, url};
use crate::error::{Error, ErrorKind};
pub(in super::super) use redis_server::RedisServer;

/// A timeout that is never reached by a test that passes.
const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(2);

fn open(url: &str) -> Arc<dyn Store> {
    url::open(url, 0, LONG).unwrap()
}

/// The error of opening the store. No message contains a password; all passwords used here contain this word.
fn refused(url: &str, timeout: Duration) -> Error {
    let error = url::open(url, 0, timeout).err().unwrap_or_else(|| panic!("{url} opened"));
    assert!(!error.message().contains("secret"), "{error}");
    error
}

fn is(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "{part:?} is not in: {error}");
    }
}

/// The error of `f`, which ends after `timeout`: what forgets it waits for ever, or for [`LONG`].
fn in_time<T>(timeout: Duration, f: impl FnOnce() -> Result<T, Error>) -> Error {
    let began = Instant::now();
    let error = f().err().expect("it worked");
    assert!(began.elapsed() >= timeout && began.elapsed() < LONG, "{:?} of {timeout:?}", began.elapsed());
    error
}

fn works(store: &dyn Store) {
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k", LONG).unwrap(), b"v");
}

#[test]
fn passwords_and_users() {
    let server = RedisServer::start(&["--requirepass", "secret@1"]);
    let store = open(&server.url(":secret%401", "", ""));
    works(&*store);
    let address = server.address().parse().unwrap();
    assert_eq!(store.server(), Some(address), "it is what interfaces are chosen by");
    assert_eq!(PrefixStore::new("job", store).server(), Some(address));
    works(&*open(&server.url("default:secret@1", "", "")));
    let error = in_time(Duration::ZERO, || Err::<(), _>(refused(&server.url(":secret2", "", ""), LONG)));
    is(&error, ErrorKind::InvalidArgument, &["does not take this user and password", "WRONGPASS", &server.address()]);
    is(&refused(&server.url("", "", ""), LONG), ErrorKind::InvalidArgument, &["wants a password", "NOAUTH"]);
    is(&refused(&server.url("nobody:secret", "", ""), LONG), ErrorKind::InvalidArgument, &["does not take this user"]);

    // A user of the access control list with the minimal rights that docs/stores.md lists.
    let min = "~gloo_rs/* +auth +select +ping +get +set +expire +exists +incrby +del +eval +strlen +append";
    let users = format!("--user job on >secret {min} --user reader on >secret ~* +auth +ping +get +expire");
    let server = RedisServer::start(&users.split(' ').collect::<Vec<_>>());
    let store = open(&server.url("job:secret", "", ""));
    works(&*store);
    assert_eq!(store.add("n", 2).unwrap(), 2);
    store.append("k", b"w").unwrap();
    assert!(store.delete("k").unwrap());
    assert_eq!(store.describe(), format!("redis://{}/0", server.address()));
    let error = refused(&server.url("job:secret", "", "prefix=other/"), LONG);
    is(&error, ErrorKind::Io, &["connect", "NOPERM"]);
    is(&refused(&server.url("reader:secret", "", ""), LONG), ErrorKind::Io, &["connect", "NOPERM", "set"]);
    // A server without a password reports a password that is given.
    let server = RedisServer::start(&[]);
    is(&refused(&server.url(":secret", "", ""), LONG), ErrorKind::InvalidArgument, &["without any password"]);
}

#[test]
fn databases_and_prefixes_keep_jobs_apart() {
    let server = RedisServer::start(&["--databases", "4"]);
    let one = open(&server.url("", "3", ""));
    one.set("k", b"3").unwrap();
    for (database, options) in [("", ""), ("2", ""), ("3", "prefix=job-1/")] {
        let other = open(&server.url("", database, options));
        is(&other.get("k", Duration::ZERO).unwrap_err(), ErrorKind::Timeout, &["\"k\"", &server.address()]);
    }
    assert_eq!(open(&server.url("", "3", "prefix=")).get("gloo_rs/k", LONG).unwrap(), b"3");
    let error = refused(&server.url("", "4", ""), LONG);
    is(&error, ErrorKind::InvalidArgument, &["database 4", "out of range"]);
}

#[test]
fn all_written_keys_expire() {
    let server = RedisServer::start(&[]);
    let ttl = |key: &str| server.ask(&format!("TTL {key}"))[1..].parse::<i64>().unwrap();
    let write = |store: &dyn Store| {
        store.set("set", b"").unwrap();
        store.multi_set(&[("a", b""), ("b", b"")]).unwrap();
        store.add("n", 1).unwrap();
        store.append("log", b"x").unwrap();
    };
    let keys = ["set", "a", "b", "n", "log", r#"\x00sign"#];
    for (options, prefix, expected) in
        [("", "gloo_rs/", 86_400), ("ttl=100&prefix=x", "x", 100), ("ttl=0&prefix=y", "y", -1)]
    {
        let store = open(&server.url("", "", options));
        // The mark would expire soon if writing did not renew it.
        if expected > 0 {
            server.ask(&format!("EXPIRE \"{prefix}\\x00sign\" 10"));
        }
        write(&*store);
        for key in keys {
            let left = ttl(&format!("\"{prefix}{key}\""));
            assert!((expected - 60..=expected).contains(&left), "{prefix}{key} has {left} s left");
        }
    }
    assert_eq!(server.ask("DBSIZE"), ":18", "keys beside those that were looked at");

    let store = open(&server.url("", "", "ttl=1&prefix=short"));
    write(&*store);
    store.wait(&["set", "a", "b", "n", "log"], Duration::ZERO).unwrap();
    thread::sleep(Duration::from_millis(1500));
    let error = store.wait(&["set", "a", "b", "n", "log"], Duration::ZERO).unwrap_err();
    is(&error, ErrorKind::Timeout, &["5 of 5"]);
    store.set("set", b"again").unwrap();
}

#[test]
fn certificates_are_checked() {
    let server = RedisServer::start_with_tls(&["--tls-auth-clients", "yes"]);
    let (cert, key) = (server.certificate(), server.key());
    let own = format!("cert={}&key={}", cert.display(), key.display());
    works(&*open(&server.url("", "", &own)));
    // The server requests a certificate. Its refusal may arrive when the connection already breaks.
    let error = refused(&server.url("", "", ""), Duration::ZERO);
    assert!(matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::Timeout), "{error}");
    is(&refused(&server.url("", "", &format!("cert={}", cert.display())), LONG), ErrorKind::InvalidArgument, &["key"]);

    let other = RedisServer::start_with_tls(&["--tls-auth-clients", "no", "--requirepass", "secret"]);
    let address = other.address();
    let store = open(&other.url(":secret", "", ""));
    works(&*store);
    assert_eq!(store.server(), Some(address.parse().unwrap()));
    works(&*open(&format!("rediss://:secret@{address}?insecure=true")));
    let foreign = format!("rediss://:secret@{address}?ca={}", cert.display());
    is(&refused(&foreign, LONG), ErrorKind::Mismatch, &["TLS", "certificate", &address]);
    // The address in the certificate is checked, not only its issuer.
    let borrowed = [cert.to_str().unwrap(), key.to_str().unwrap()];
    let arguments = ["--tls-auth-clients", "no", "--tls-cert-file", borrowed[0], "--tls-key-file", borrowed[1]];
    let impostor = RedisServer::start_with_tls(&arguments);
    let trusting = format!("rediss://:secret@{}?ca={}", impostor.address(), cert.display());
    is(&refused(&trusting, LONG), ErrorKind::Mismatch, &["TLS", "not valid for name"]);
    let nothing = cert.with_file_name("nothing.pem");
    let missing = format!("rediss://:secret@{address}?ca={}", nothing.display());
    is(&refused(&missing, LONG), ErrorKind::InvalidArgument, &["nothing.pem", "No such file"]);
    let no_key = format!("rediss://:secret@{address}?ca={}", key.display());
    is(&refused(&no_key, LONG), ErrorKind::InvalidArgument, &["key.pem"]);

    // One end uses TLS, and the other does not.
    let plain = RedisServer::start(&[]);
    let error = refused(&format!("redis://:secret@{address}"), Duration::ZERO);
    assert!(matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::Timeout), "{error}");
    let error = refused(&format!("rediss://:secret@{}?insecure=true", plain.address()), Duration::ZERO);
    assert!(matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::Timeout), "{error}");
    assert!(rustls::crypto::CryptoProvider::get_default().is_none(), "the library installed a provider for everybody");
}

#[test]
fn the_times_of_a_certificate_are_dates() {
    for (years, why) in [
        ([2020, 2021], "TLS: its certificate has expired: it was valid until 2021-02-03T00:00:00Z"),
        ([2220, 2221], "TLS: its certificate is not valid before 2220-02-03T00:00:00Z: are the clocks right?"),
    ] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        [params.not_before, params.not_after] = years.map(|year| rcgen::date_time_ymd(year, 2, 3));
        let folder = tempfile::tempdir().unwrap();
        let [cert, key_file] =
            ["cert.pem", "key.pem"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
        std::fs::write(&cert, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let arguments = ["--tls-auth-clients", "no", "--tls-cert-file", &cert, "--tls-key-file", &key_file];
        let server = RedisServer::start_with_tls(&arguments);
        let error = refused(&format!("rediss://{}?ca={cert}", server.address()), LONG);
        is(&error, ErrorKind::Mismatch, &[why]);
    }
}

#[test]
fn a_server_that_is_not_redis_is_detected() {
    /// Replies to every connection with `words`, or echoes its input, and waits for its end.
    fn stranger(words: Option<&'static [u8]>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming().take(3) {
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(LONG)).unwrap();
                let mut heard = [0; 1000];
                let count = stream.read(&mut heard).unwrap();
                let _ = stream.write_all(words.unwrap_or(&heard[..count]));
                let _ = stream.read(&mut heard);
            }
        });
        address
    }
    let http = stranger(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    is(&refused(&format!("redis://:secret@{http}"), LONG), ErrorKind::Mismatch, &["not a Redis server", &http]);
    // The other end echoes the password, which must not be shown.
    let echo = stranger(None);
    is(&refused(&format!("redis://:secret@{echo}"), LONG), ErrorKind::Mismatch, &["as a Redis server does"]);
    let parrot = stranger(Some(
        b"-ERR unknown command 'AUTH', with args beginning with: 'secret'\r\n+PONG\r\n+OK\r\n:1\r\n$-1\r\n",
    ));
    is(&refused(&format!("redis://:secret@{parrot}"), LONG), ErrorKind::InvalidArgument, &["with: '***'"]);
    let silent = stranger(Some(b""));
    let error = in_time(Duration::from_millis(500), || {
        Err::<(), _>(refused(&format!("redis://:secret@{silent}"), Duration::from_millis(500)))
    });
    is(&error, ErrorKind::Timeout, &["does not answer", "connect"]);
}

#[test]
fn connecting_waits_for_a_server_that_comes_up() {
    let mut server = RedisServer::start(&[]);
    let url = server.url("", "", "");
    server.kill();
    let error = in_time(Duration::from_millis(300), || Err::<(), _>(refused(&url, Duration::from_millis(300))));
    is(&error, ErrorKind::Timeout, &["Connection refused", "tries", &server.address(), " s ("]);
    thread::scope(|scope| {
        let late = scope.spawn(|| works(&*open(&url)));
        thread::sleep(Duration::from_millis(100));
        server.start_again();
        late.join().unwrap();
    });
}

#[test]
fn a_server_that_restarts_with_its_data_is_reconnected_to() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (one, two) = (open(&server.url("", "", "")), open(&server.url("", "", "")));
    one.set("address/0", b"zero").unwrap();
    assert_eq!(one.add("n", 1).unwrap(), 1);
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| two.multi_get(&["address/0", "address/1"], LONG))).collect();
        thread::sleep(Duration::from_millis(100));
        server.kill();
        // Writes during the outage wait for the server, too.
        let set = scope.spawn(|| one.set("address/1", b"one"));
        thread::sleep(Duration::from_millis(300));
        server.start_again();
        set.join().unwrap().unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap(), [&b"zero"[..], b"one"]);
        }
    });
    // A connection that broke meanwhile does not affect operations that must not be repeated.
    assert_eq!(one.add("n", 1).unwrap(), 2);
    server.kill();
    server.start_again();
    assert_eq!(one.add("n", 1).unwrap(), 3);
    assert_eq!(two.get("n", Duration::ZERO).unwrap(), b"3");
}

#[test]
fn a_server_that_restarts_without_its_data_is_reported_at_once() {
    let mut server = RedisServer::start(&[]);
    let store = open(&server.url("", "", ""));
    store.set("address/0", b"zero").unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| store.get("address/1", LONG));
        thread::sleep(Duration::from_millis(100));
        server.kill();
        server.start_again();
        let error = wait.join().unwrap().unwrap_err();
        is(
            &error,
            ErrorKind::ConnectionLost,
            &["address/1", "lost the keys of this job", "86400 s", &server.address()],
        );
    });
    // Clients that connect later, and clients that only write, get the error too.
    open(&server.url("", "", "")).set("address/1", b"one").unwrap();
    for error in [store.set("k", b"").unwrap_err(), store.add("n", 1).unwrap_err()] {
        is(&error, ErrorKind::ConnectionLost, &["lost the keys of this job"]);
    }
}

#[test]
fn calls_end_in_time_if_the_server_dies_or_hangs() {
    let mut server = RedisServer::start(&[]);
    let store = open(&server.url("", "", ""));
    store.set("k", b"v").unwrap();
    let timeout = Duration::from_millis(600);
    server.pause();
    let error = in_time(timeout, || store.get("k", timeout));
    let parts = ["wait for \"k\"", "no answer from the server after", "does not answer", &server.address()];
    is(&error, ErrorKind::Timeout, &parts);
    let error = in_time(timeout, || store.set_within("k", b"w", timeout));
    is(&error, ErrorKind::Timeout, &["set \"k\"", "no answer from the server"]);
    let error = in_time(Duration::ZERO, || store.wait(&["k"], Duration::ZERO));
    is(&error, ErrorKind::Timeout, &["\"k\""]);
    server.progress();
    works(&*store);

    thread::scope(|scope| {
        let get = scope.spawn(|| in_time(SOON, || store.get("absent", SOON)));
        thread::sleep(Duration::from_millis(100));
        server.kill();
        let error = get.join().unwrap();
        is(&error, ErrorKind::Timeout, &["\"absent\"", "no answer", "Connection refused", &server.address()]);
    });
}

#[test]
fn a_child_by_fork_keeps_no_connection() {
    let server = RedisServer::start(&[]);
    let store = open(&server.url("", "", ""));
    works(&*store);
    let (release, mut held) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the child makes system calls that may be made there.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            drop(release);
            let _ = held.read(&mut [0]);
            libc::_exit(0);
        }
        child
    };
    drop(store);
    let began = Instant::now();
    // The one that asks is a client, too.
    while server.ask("CLIENT LIST").lines().count() > 1 {
        assert!(began.elapsed() < LONG, "the child keeps a connection");
        thread::sleep(Duration::from_millis(10));
    }
    drop(release);
    // SAFETY: the child is this process's, and a null pointer for its status is permitted.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

#[test]
fn operations_that_may_have_been_executed_are_not_repeated() {
    let server = RedisServer::start(&[]);
    let store = open(&server.url("", "", ""));
    assert_eq!(store.add("n", 1).unwrap(), 1);
    // The server closes idle connections: this is detected before a request is sent.
    server.ask("CLIENT KILL TYPE normal SKIPME yes");
    assert_eq!(store.add("n", 1).unwrap(), 2);
    // The relay closes the connection in the middle of an addition, which the server has executed.
    let address = server.address();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap();
    let relay = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut behind = std::net::TcpStream::connect(address).unwrap();
        let mut bytes = [0; 4096];
        loop {
            let count = client.read(&mut bytes).unwrap();
            behind.write_all(&bytes[..count]).unwrap();
            let request = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let count = behind.read(&mut bytes).unwrap();
            if request.contains("INCRBY") {
                return;
            }
            client.write_all(&bytes[..count]).unwrap();
        }
    });
    let through = open(&format!("redis://{between}"));
    let error = through.add("n", 1).unwrap_err();
    relay.join().unwrap();
    is(&error, ErrorKind::ConnectionLost, &["add 1 to \"n\"", "may have done it or not"]);
    assert_eq!(store.add("n", 0).unwrap(), 3, "it happened not once");
}

#[test]
fn refusals_of_the_server_are_passed_on() {
    let server = RedisServer::start(&["--maxmemory", "20mb", "--maxmemory-policy", "noeviction"]);
    let store = open(&server.url("", "", ""));
    let error = (0..64).find_map(|i| store.set(&format!("k{i}"), &vec![7; 1 << 20]).err()).expect("no limit");
    is(&error, ErrorKind::ResourceExhausted, &["set \"k", "refuses", "maxmemory"]);
    server.ask("LPUSH gloo_rs/list x");
    is(&store.get("list", LONG).unwrap_err(), ErrorKind::InvalidOperation, &["get \"list\"", "WRONGTYPE"]);

    let server = RedisServer::start(&["--maxclients", "1"]);
    let first = open(&server.url("", "", ""));
    let error = refused(&server.url("", "", ""), Duration::from_millis(200));
    is(&error, ErrorKind::Timeout, &["max number of clients"]);
    works(&*first);
}

//! Stores whose connections are TLS.

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use super::*;
use crate::net::stream::Transport;
use crate::net::tls::{self, tests::Authority};

fn over(transport: Transport) -> TcpStoreOptions {
    TcpStoreOptions { token: Some(JobToken::new("swordfish")), transport: Some(transport), ..Default::default() }
}

#[test]
fn a_store_serves_over_tls() {
    let authority = Authority::new();
    let options = over(Transport::Tls(authority.member()));
    let server = TcpStore::serve_with("127.0.0.1", 0, &options).unwrap();
    let clients: Vec<_> =
        (0..3).map(|_| TcpStore::connect_with("127.0.0.1", server.port(), LONG, &options).unwrap()).collect();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| clients[0].get("late", LONG).unwrap());
        let large: Vec<u8> = (0..20_000_000u32).map(|i| (i % 251) as u8).collect();
        clients[1].set("large", &large).unwrap();
        assert!(clients[2].get("large", LONG).unwrap() == large);
        (0..100).for_each(|i| assert_eq!(clients[2].add("count", 1).unwrap(), i + 1));
        server.set("late", b"value").unwrap();
        assert_eq!(waits.join().unwrap(), b"value");
    });
    let missing = clients[1].get("never", Duration::from_millis(10)).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Timeout);
    let statistics = server.statistics().unwrap();
    assert_eq!((statistics.accepted, statistics.refused()), (4, 0), "{statistics:?}");
}

/// A process between a client and a server that keeps what it passes on: what the client has sent, then what the server
/// has.
fn relay(port: u16) -> (u16, std::thread::JoinHandle<[Vec<u8>; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let relaying = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            std::thread::spawn(move || {
                let (mut kept, mut some) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = from.read(&mut some) {
                    kept.extend(&some[..count]);
                    let _ = to.write_all(&some[..count]);
                }
                let _ = to.shutdown(Shutdown::Write);
                kept
            })
        };
        let copy = |stream: &TcpStream| stream.try_clone().unwrap();
        [pass(copy(&client), copy(&server)), pass(server, client)].map(|passing| passing.join().unwrap())
    });
    (own, relaying)
}

/// Returns the last of the TLS records in `bytes`.
fn last_record(mut bytes: &[u8]) -> &[u8] {
    loop {
        let (record, rest) = bytes.split_at(5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]])));
        if rest.is_empty() {
            return record;
        }
        bytes = rest;
    }
}

#[test]
fn a_store_that_is_dropped_ends_its_sessions() {
    let authority = Authority::new();
    let options = over(Transport::Tls(authority.member()));
    // An alert of two bytes, its type and an authentication tag, in a record of application data. No request or reply
    // has two bytes.
    let close_notify = [0x17, 3, 3, 0, 19];
    for server_ends_first in [false, true] {
        let mut server = Some(TcpStore::serve_with("127.0.0.1", 0, &options).unwrap());
        let (port, relaying) = relay(server.as_ref().unwrap().port());
        let client = TcpStore::connect_with("127.0.0.1", port, LONG, &options).unwrap();
        client.set("k", b"v").unwrap();
        if server_ends_first {
            // After the time that it waits for its clients.
            drop(server.take());
        }
        drop(client);
        let [from_client, from_server] = relaying.join().unwrap();
        assert_eq!(last_record(&from_client)[..5], close_notify, "server first: {server_ends_first}");
        assert_eq!(last_record(&from_server)[..5], close_notify, "server first: {server_ends_first}");
        drop(server);
    }
}

/// The child has the session's keys and numbers of records, as its parent has: what it sent would break the parent's
/// session.
#[cfg(target_os = "linux")]
#[test]
fn a_child_by_fork_does_not_end_its_parents_session() {
    let authority = Authority::new();
    let options = over(Transport::Tls(authority.member()));
    let server = TcpStore::serve_with("127.0.0.1", 0, &options).unwrap();
    let client = TcpStore::connect_with("127.0.0.1", server.port(), LONG, &options).unwrap();
    client.set("k", b"v").unwrap();
    // SAFETY: after fork, the child drops the store, which frees memory and closes a descriptor, and ends without
    // anything else; its copy of the store is not used again.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            drop(std::ptr::read(&client));
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
    }
    assert_eq!(client.get("k", LONG).unwrap(), b"v");
    assert_eq!(server.statistics().unwrap().accepted, 2, "the same connection");
}

#[test]
fn one_side_with_tls_or_with_another_authority_is_told_at_once() {
    let (authority, other) = (Authority::new(), Authority::new());
    let transports = [Transport::Tcp, Transport::Tls(authority.member()), Transport::Tls(other.member())];
    for (serves, connects, part) in [
        (0, 1, "it does not speak TLS 1.3"),
        (1, 0, "it uses TLS, and this process does not: GLOO_RS_TRANSPORT"),
        (1, 2, "its certificate is not signed by the authority that this rank trusts"),
    ] {
        let server = TcpStore::serve_with("127.0.0.1", 0, &over(transports[serves].clone())).unwrap();
        let client = TcpStore::connect_with("127.0.0.1", server.port(), LONG, &over(transports[connects].clone()));
        let error = client.err().expect("they cannot connect");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains(part), "{error}");
        server.set("k", b"v").unwrap();
        let statistics = server.statistics().unwrap();
        assert_eq!((statistics.foreign + statistics.unproven, statistics.refused()), (1, 1), "{statistics:?}");
    }
}

/// OpenSSL's command with the files of `options`.
fn openssl(command: &str, options: &tls::Options) -> Command {
    let mut openssl = Command::new("openssl");
    openssl.arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, file) in [("-cert", &options.cert), ("-key", &options.key), ("-CAfile", &options.ca_file)] {
        openssl.arg(name).arg(file.as_ref().unwrap());
    }
    openssl
}

/// A server does not wait for the clients of other programs, whatever they send.
#[test]
fn openssl_as_a_client_gets_as_far_as_its_certificate() {
    let authority = Authority::new();
    let member = authority.member();
    let server = TcpStore::serve_with("127.0.0.1", 0, &over(Transport::Tls(member.clone()))).unwrap();
    let at = format!("127.0.0.1:{}", server.port());
    let client = |options: &[&str], certificate: bool| {
        let mut client = match certificate {
            true => openssl("s_client", &member),
            false => {
                let mut client = Command::new("openssl");
                client.args(["s_client", "-CAfile"]).arg(member.ca_file.as_ref().unwrap());
                client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                client
            }
        };
        let mut child = client.args(["-connect", &at, "-quiet"]).args(options).spawn().expect("openssl");
        let mut input = child.stdin.take().unwrap();
        let writing = std::thread::spawn(move || {
            // Until the server has dropped the connection, and the client ends.
            while input.write_all(b"GET / HTTP/1.1\r\n\r\n").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let trusted = client(&["-tls1_3"], true);
    assert!(trusted.contains("verify return:1") && !trusted.contains("alert"), "{trusted}");
    let anonymous = client(&["-tls1_3"], false);
    assert!(anonymous.contains("certificate required"), "{anonymous}");
    let old = client(&["-tls1_2"], true);
    assert!(old.contains("protocol version"), "{old}");
    let statistics = server.statistics().unwrap();
    // Foreign are the connection without this protocol and the one with TLS 1.2; unproven is the one without a
    // certificate.
    assert_eq!((statistics.foreign, statistics.unproven, statistics.refused()), (2, 1, 3), "{statistics:?}");
    server.set("k", b"v").unwrap();
}

#[test]
fn openssl_as_a_server_is_not_taken_for_a_store() {
    let (authority, other) = (Authority::new(), Authority::new());
    let member = authority.member();
    for (options, certificate, part) in [
        (&["-tls1_3"][..], &member, "connected, but the server did not answer"),
        (&["-tls1_3"], &other.member(), "its certificate is not signed by the authority that this rank trusts"),
        (&["-tls1_3"], &authority.expired(), "its certificate has expired: it was valid until 2"),
        (&["-tls1_2"], &member, "it does not speak TLS 1.3"),
    ] {
        let mut server = openssl("s_server", certificate);
        let mut server =
            server.args(["-accept", "127.0.0.1:0", "-naccept", "1", "-Verify", "1"]).args(options).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("ACCEPT ")).expect("openssl says where it listens");
        let port = line.rsplit(':').next().unwrap().parse().unwrap();
        let patience = Duration::from_secs(2);
        let client = TcpStore::connect_with("127.0.0.1", port, patience, &over(Transport::Tls(member.clone())));
        let error = client.err().expect("this is no store");
        assert!(error.message().contains(part), "{error}");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

//! Servers that cannot be reached, or have no room, for some time.

use super::*;

/// A listener whose queue is full: attempts to connect get no reply, as with a broken network.
fn unanswered() -> (socket2::Socket, SocketAddr, Vec<socket2::Socket>) {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut queue = Vec::new();
    loop {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let connected = socket.connect_timeout(&address.into(), 2 * SHORT).is_ok();
        queue.push(socket);
        if !connected {
            return (listener, address, queue);
        }
    }
}

#[test]
fn a_server_that_cannot_be_reached_for_a_while_is_not_lost() {
    let server = serve();
    let mut client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    let (_listener, unanswered, _queue) = unanswered();
    client.idle.lock().unwrap().clear();
    client.address = unanswered;
    for set in [false, true] {
        let error = if set { client.set_within("k", b"", SHORT).err() } else { client.get("k", SHORT).err() }.unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let part = format!("the server at {unanswered} does not answer: connection timed out; gave up after ");
        assert!(error.message().contains(&part), "{error}");
    }
    client.address = server.address;
    client.set("k", b"v").unwrap();
    assert_eq!(client.get("k", LONG).unwrap(), b"v");
}

#[test]
fn calls_without_a_timeout_have_the_default_one_and_say_so() {
    let server = serve();
    let mut client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    assert_eq!(client.timeout, environment::default_timeout().unwrap());
    let (_listener, unanswered, _queue) = unanswered();
    client.idle.lock().unwrap().clear();
    (client.address, client.timeout) = (unanswered, SHORT);
    for error in [
        client.set("k", b"").unwrap_err(),
        client.add("k", 1).unwrap_err(),
        client.append("k", b"").unwrap_err(),
        client.multi_set(&[("k", b"")]).unwrap_err(),
        client.delete("k").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.message().contains("the default, which GLOO_RS_TIMEOUT"), "{error}");
    }
    client.address = server.address;
}

#[test]
fn a_refused_client_tries_again() {
    let server = serve();
    let mut client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    client.idle.lock().unwrap().clear();
    client.address = busy.local_addr().unwrap();
    let store = server.address;
    // Closes the first two connections, as a server without room does; lets the third through to the store.
    thread::spawn(move || {
        (0..2).for_each(|_| drop(busy.accept().unwrap()));
        let (mut from, mut to) = (busy.accept().unwrap().0, TcpStream::connect(store).unwrap());
        let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut back_from, &mut back_to));
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    client.set("k", b"v").unwrap();
    assert_eq!(server.get("k", LONG).unwrap(), b"v");
}

/// The kernel rounds long socket timeouts up: 17 s become as much as 19 s.
#[test]
fn deadlines_do_not_depend_on_the_sockets_timers() {
    let server = serve();
    let client = TcpStore::connect("127.0.0.1", server.port(), LONG).unwrap();
    client.set_within("k", b"v", Duration::from_secs(17)).unwrap();
    client.get("k", Duration::from_secs(17)).unwrap();
    let idle = client.idle.lock().unwrap();
    let timers = |c: &Connection| {
        let socket = socket2::SockRef::from(c.stream.socket());
        (socket.read_timeout().unwrap(), socket.write_timeout().unwrap())
    };
    assert_eq!(idle.iter().map(timers).collect::<Vec<_>>(), [(None, None)]);
}

//! Fuzz body: the protocol, and a server whose clients send anything.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::rendezvous::tcp::handshake;
use crate::rendezvous::tcp::protocol::Reply;
use crate::secret::JobToken;
use crate::testing::fuzz::Input;

const CLIENTS: usize = 3;
const KEYS: [&str; 4] = ["a", "b", "n", "ключ"];
const HOUR: Duration = Duration::from_secs(3600);

struct Client {
    token: u64,
    stream: UnixStream,
    /// Bytes from the server that have not been checked yet.
    heard: Vec<u8>,
    /// The pending request; always valid.
    pending: Option<ModelRequest>,
    /// Whether the client has followed the protocol.
    honest: bool,
}

enum ModelRequest {
    Set(&'static str, Vec<u8>),
    Append(&'static str, Vec<u8>),
    Add(&'static str, i64),
    Delete(&'static str),
    Wait { keys: Vec<&'static str>, values: bool },
}

struct World {
    server: Loop,
    key: SecretKey,
    clients: [Option<Client>; CLIENTS],
    /// The expected contents of the table; `None` after a client has violated the protocol.
    model: Option<BTreeMap<&'static str, Vec<u8>>>,
}

/// Decoding returns what was encoded. The server replies to each request of a client that follows the protocol, with
/// the same result as a table in memory; a client that violates the protocol is dropped, and leaves nothing behind.
pub fn store_protocol(data: &[u8]) {
    if let Ok(request) = Request::decode(data) {
        assert_eq!(&request.encode().expect("memory")[4..], data);
    }
    for read in 0..4 {
        if let Ok(Reply::Done(mut rest)) = Reply::decode(data) {
            match read {
                0 => drop(rest.values()),
                1 => drop(rest.value()),
                2 => drop(rest.u64()),
                _ => drop(rest.u8()),
            }
        }
    }

    let (poller, stop) = (Poller::new(PollerKind::SYSTEM).expect("a poller"), Arc::new(Waker::new().expect("a waker")));
    let stopped = poller.add(&*stop, sys::READ, STOP).expect("a registration");
    let listeners = Listeners::new(&poller);
    let key = handshake::key(&JobToken::new("token"));
    let mut server =
        Loop::new((poller, stopped), &listeners, stop, Limits::default(), (key.clone(), Security::Plain), None);
    server.scratch.truncate(4 << 10);
    let mut world = World { server, key, clients: [const { None }; CLIENTS], model: Some(BTreeMap::new()) };
    let mut input = Input(data);
    for _ in 0..200 {
        if world.step(&mut input).is_none() {
            break;
        }
    }
    for index in 0..CLIENTS {
        world.leave(index);
    }
    assert!(world.server.clients.is_empty() && world.server.deadlines.is_empty() && world.server.gate.is_empty());
    assert!(world.server.state.waiters.is_empty() && world.server.state.woken.is_empty());
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let shape = input.byte()?;
        let index = usize::from(shape >> 4 & 3) % CLIENTS;
        if self.clients[index].is_none() {
            self.enter(index, shape & 1 != 0);
        }
        match shape & 15 {
            0..=6 => self.ask(index, input)?,
            7 | 8 => {
                let n = input.below(64)?;
                let bytes = input.take(n)?;
                let client = self.clients[index].as_mut()?;
                client.honest = false;
                let _ = client.stream.write(bytes);
                self.model = None;
            }
            9 => self.leave(index),
            10 => {
                self.server.expire(Instant::now() + HOUR);
                self.server.gate.tick(Instant::now() + HOUR);
                for index in 0..CLIENTS {
                    self.hear(index, true);
                }
            }
            _ => self.turn(index),
        }
        Some(())
    }

    fn enter(&mut self, index: usize, greets: bool) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("non-blocking sockets");
        let token = self.server.gate.enter(ours.into(), None).expect("watched");
        self.clients[index] = Some(Client { token, stream: theirs, heard: Vec::new(), pending: None, honest: greets });
        if greets {
            let hello = handshake::client(&self.key, &[9; 32]);
            let answer = self.exchange(index, &hello);
            let answer = answer.try_into().expect("the server's first words");
            let proof = handshake::proof(&self.key, &hello, &answer).expect("the server has the token");
            assert_eq!(self.exchange(index, &proof), [WELCOME]);
        }
    }

    /// The server's reply to a part of the handshake.
    fn exchange(&mut self, index: usize, words: &[u8]) -> Vec<u8> {
        let client = self.clients[index].as_mut().expect("present");
        client.stream.write_all(words).expect("room for the handshake");
        self.turn(index);
        std::mem::take(&mut self.clients[index].as_mut().expect("present").heard)
    }

    /// Sends a valid request, if no request is pending.
    fn ask(&mut self, index: usize, input: &mut Input<'_>) -> Option<()> {
        let (which, key) = (input.below(6)?, input.pick(&KEYS)?);
        let n = input.below(20)?;
        let value = if which < 2 { input.take(n)?.to_vec() } else { Vec::new() };
        let keys: Vec<&'static str> = KEYS.iter().copied().filter(|k| *k <= key).collect();
        let client = self.clients[index].as_mut()?;
        if client.pending.is_some() || !client.honest {
            return Some(());
        }
        let timeout = [Duration::ZERO, Duration::from_secs(60), Duration::MAX][n % 3];
        let (request, pending) = match which {
            0 => (Request::Set(vec![(key, &value)]), ModelRequest::Set(key, value.clone())),
            1 => (Request::Append { key, value: &value }, ModelRequest::Append(key, value.clone())),
            2 => (Request::Add { key: "n", amount: n as i64 }, ModelRequest::Add("n", n as i64)),
            3 => (Request::Delete { key }, ModelRequest::Delete(key)),
            4 => (Request::Get { timeout, keys: keys.clone() }, ModelRequest::Wait { keys, values: true }),
            _ => (Request::Wait { timeout, keys: keys.clone() }, ModelRequest::Wait { keys, values: false }),
        };
        client.stream.write_all(&request.encode().expect("memory")).expect("room for one request");
        client.pending = Some(pending);
        if n % 2 == 0 {
            self.turn(index);
        }
        Some(())
    }

    /// Lets the server process a client.
    fn turn(&mut self, index: usize) {
        let Some(client) = &mut self.clients[index] else { return };
        let next = self.server.next_token;
        self.server.ready(client.token, sys::READ);
        if self.server.next_token > next {
            // The client has passed the handshake.
            client.token = next;
        }
        // First the client itself, then the clients that it has woken.
        self.hear(index, false);
        self.server.resume_woken();
        (0..CLIENTS).for_each(|index| self.hear(index, false));
    }

    fn leave(&mut self, index: usize) {
        let Some(client) = self.clients[index].take() else { return };
        let waits = self.server.clients.get(&client.token).is_some_and(|peer| !peer.may_ask());
        drop(client.stream);
        let ready = GONE | if waits { 0 } else { sys::READ };
        // Bytes that it sent before are processed first.
        for _ in 0..100 {
            self.server.ready(client.token, ready);
            self.server.resume_woken();
            if !self.server.clients.contains_key(&client.token) {
                break;
            }
            if self.server.clients[&client.token].waiting.is_some() {
                self.server.with_client(client.token, |_, _| Err(Gone));
            }
        }
        self.model = self.model.take().filter(|_| client.pending.is_none());
        (0..CLIENTS).for_each(|index| self.hear(index, false));
    }

    /// Reads the server's replies and compares them.
    fn hear(&mut self, index: usize, time_is_up: bool) {
        let Some(client) = &mut self.clients[index] else { return };
        let mut part = [0; 4096];
        while let Ok(n @ 1..) = client.stream.read(&mut part) {
            client.heard.extend_from_slice(&part[..n]);
        }
        if !client.honest {
            return client.heard.clear();
        }
        let known = gate::owns(client.token) || self.server.clients.contains_key(&client.token);
        assert!(known || time_is_up, "an honest client was dropped");
        let Some((length, frame)) = client.heard.split_at_checked(4) else { return };
        if client.pending.is_none() {
            // The server replies to its hello.
            return;
        }
        assert_eq!(u32::from_le_bytes(length.try_into().expect("4 bytes")) as usize, frame.len(), "one answer");
        let (pending, answer) = (client.pending.take().expect("a request"), Reply::decode(frame).expect("an answer"));
        if let Some(table) = &mut self.model {
            compare(table, pending, answer, time_is_up);
        }
        client.heard.clear();
    }
}

/// Applies the request to the model and compares the reply.
fn compare(table: &mut BTreeMap<&'static str, Vec<u8>>, pending: ModelRequest, answer: Reply<'_>, time_is_up: bool) {
    match (pending, answer) {
        (ModelRequest::Set(key, value), Reply::Done(_)) => drop(table.insert(key, value)),
        (ModelRequest::Append(key, value), Reply::Done(_)) => table.entry(key).or_default().extend(value),
        (ModelRequest::Add(key, amount), Reply::Done(mut rest)) => {
            let old = table.get(key).map_or(0, |old| std::str::from_utf8(old).unwrap().parse::<i64>().unwrap());
            assert_eq!(rest.u64().unwrap() as i64, old + amount);
            table.insert(key, (old + amount).to_string().into_bytes());
        }
        (ModelRequest::Add(key, _), Reply::Refused { .. }) => {
            let old = std::str::from_utf8(&table[key]).ok().and_then(|old| old.parse::<i64>().ok());
            assert!(old.is_none_or(|old| old > i64::MAX - 20), "{old:?}");
        }
        (ModelRequest::Delete(key), Reply::Done(mut rest)) => {
            assert_eq!(rest.u8().unwrap() != 0, table.remove(key).is_some());
        }
        (ModelRequest::Wait { keys, values }, Reply::Done(mut rest)) => {
            let all: Vec<&[u8]> = keys.iter().map(|key| &table[key][..]).collect();
            if values {
                assert_eq!(rest.values().unwrap(), all);
            }
        }
        (ModelRequest::Wait { keys, .. }, Reply::Missing { count, positions }) => {
            let missing: Vec<usize> = (0..keys.len()).filter(|i| !table.contains_key(keys[*i])).collect();
            assert!(count > 0 && count == missing.len() && positions == missing, "{time_is_up}");
        }
        (_, answer) => panic!("{answer:?}"),
    }
}

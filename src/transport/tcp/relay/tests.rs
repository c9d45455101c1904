use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::super::streams::Connection;
use super::queues::CHUNK_BYTES;
use super::*;
use crate::net::tls::tests::{Authority, pair, settle};
use crate::sys::{self, AsRaw};

const PATIENCE: Duration = Duration::from_secs(60);
/// The rank of all links.
const RANK: Rank = 7;

/// Both ends of a connection after the handshake.
fn connected(authority: &Authority) -> [Connection; 2] {
    let mut ends = pair(authority.member(), authority.member());
    settle(&mut ends);
    ends.map(Connection::from)
}

/// Hands over a connection, whose link is told by what is returned with it.
fn hand_over(relays: &Relays, position: usize, connection: Connection) -> (Connection, Arc<BufferedLinks>) {
    let Connection::Own(stream) = connection else { panic!("handed over before") };
    let session = stream.into_session().unwrap_or_else(|_| panic!("it does not encrypt"));
    let buffered_links = Arc::new(BufferedLinks::new().unwrap());
    (Connection::Relayed(relays.hand_over(position, session, RANK, buffered_links.clone()).unwrap()), buffered_links)
}

fn data(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * seed + at / 251) as u8).collect()
}

/// Calls `step` until it returns something; it never waits.
fn eventually<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(Instant::now() < until, "not in {PATIENCE:?}: {what}");
        thread::yield_now();
    }
}

fn send(connection: &mut Connection, bytes: &[u8]) -> io::Result<usize> {
    let (one, other) = bytes.split_at(bytes.len() / 3);
    connection.send(&[IoSlice::new(one), IoSlice::new(other)])
}

/// Sends what is left of `bytes` after `sent`.
fn progress(connection: &mut Connection, bytes: &[u8], sent: &mut usize) {
    if *sent < bytes.len() {
        match send(connection, &bytes[*sent..]) {
            Ok(n) => *sent += n,
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}"),
        }
    }
    connection.flush().unwrap();
}

/// Receives once: bytes, or how the stream has ended.
fn receive(connection: &mut Connection, into: &mut Vec<u8>) -> Option<io::Result<()>> {
    let (mut one, mut other) = (vec![0; 10], vec![0; 90_000]);
    match connection.receive(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)]) {
        Ok(0) => Some(Ok(())),
        Ok(n) => {
            into.extend(one.iter().chain(&other).take(n));
            None
        }
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => Some(Err(e)),
    }
}

/// How the stream ends, and all that comes before.
fn rest(connection: &mut Connection) -> (Vec<u8>, io::Result<()>) {
    let mut bytes = Vec::new();
    let end = eventually("the end of a stream", || receive(connection, &mut bytes));
    (bytes, end)
}

/// Ends what one side sends.
fn close(connection: &mut Connection) {
    connection.close();
    eventually("all is sent", || connection.flush().unwrap().then_some(()));
    if let Some(stream) = connection.own() {
        SockRef::from(stream.socket()).shutdown(Shutdown::Write).unwrap();
    }
}

#[test]
fn all_bytes_arrive_in_order_in_both_directions_and_then_the_end() {
    let authority = Authority::new();
    // Both sides have threads, or one has.
    for handed_over in [[true, true], [true, false], [false, true]] {
        let relays = [Relays::default(), Relays::default()];
        let mut all: Vec<[Connection; 2]> = (1..4)
            .map(|position| {
                let [mut left, right] = connected(&authority);
                assert_eq!(left.send(&[IoSlice::new(b"before")]).unwrap(), 6);
                left.flush().unwrap();
                let left = if handed_over[0] { hand_over(&relays[0], position, left).0 } else { left };
                [left, if handed_over[1] { hand_over(&relays[1], position, right).0 } else { right }]
            })
            .collect();
        let sent = [data(3_000_000, 7), data(2_000_001, 5)];
        let expected = [sent[1].clone(), [b"before", &sent[0][..]].concat()];
        let mut states: Vec<_> = all.iter().map(|_| ([0; 2], [Vec::new(), Vec::new()])).collect();
        eventually("all bytes", || {
            for (ends, (done, got)) in all.iter_mut().zip(&mut states) {
                for from in 0..2 {
                    progress(&mut ends[from], &sent[from], &mut done[from]);
                    assert!(receive(&mut ends[1 - from], &mut got[1 - from]).is_none(), "an end too early");
                }
            }
            let is_there = |to: usize| states.iter().all(|(_, got)| got[to].len() == expected[to].len());
            (is_there(0) && is_there(1)).then_some(())
        });
        for (ends, (_, got)) in all.iter_mut().zip(&states) {
            assert!(*got == expected);
            let [one, other] = ends;
            close(one);
            let (after, end) = rest(other);
            assert!(after.is_empty() && end.is_ok(), "{end:?} after {} bytes", after.len());
        }
        let threads = relays.each_ref().map(|relays| relays.threads().len());
        assert_eq!(threads, handed_over.map(|over| if over { 3 } else { 0 }));
        drop(all);
        relays.iter().for_each(Relays::end);
    }
}

/// Waits until the link is told that it can go on.
fn wait(buffered_links: &BufferedLinks) {
    assert!(sys::poll(&[buffered_links.into()], PATIENCE), "told nothing in {PATIENCE:?}");
    assert_eq!(buffered_links.ready(), [RANK]);
}

#[test]
fn links_that_sleep_until_they_are_told_miss_nothing() {
    let authority = Authority::new();
    let relays = [Relays::default(), Relays::default()];
    let [left, right] = connected(&authority);
    let (mut left, told_left) = hand_over(&relays[0], 1, left);
    let (mut right, told_right) = hand_over(&relays[1], 2, right);
    let bytes = data(20_000_000, 3);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut sent, mut turn) = (0, 0usize);
            while sent < bytes.len() {
                turn += 1;
                // Pauses let queues run empty.
                if turn.is_multiple_of(97) {
                    thread::sleep(Duration::from_millis(1));
                }
                let some = [10, 70_000, 3000, 1 << 20][turn % 4].min(bytes.len() - sent);
                match send(&mut left, &bytes[sent..sent + some]) {
                    Ok(n) => sent += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => wait(&told_left),
                    Err(e) => panic!("{e}"),
                }
            }
            left.close();
        });
        let (mut got, mut turn) = (Vec::new(), 0usize);
        let end = loop {
            turn += 1;
            if turn.is_multiple_of(89) {
                thread::sleep(Duration::from_millis(1));
            }
            let before = got.len();
            match receive(&mut right, &mut got) {
                Some(end) => break end,
                None if got.len() > before => {}
                None => wait(&told_right),
            }
        };
        assert!(end.is_ok() && got == bytes, "{end:?} after {} bytes", got.len());
    });
    drop(right);
    relays.iter().for_each(Relays::end);
}

#[test]
fn a_link_finds_why_its_connection_has_failed() {
    let authority = Authority::new();
    let relays = Relays::default();
    // What comes with bytes that cannot be decrypted is lost.
    let failure = |received_before: bool, break_it: &dyn Fn(&mut Connection)| {
        let [left, mut right] = connected(&authority);
        let (mut left, told) = hand_over(&relays, 1, left);
        assert_eq!(send(&mut right, b"last words").unwrap(), 10);
        let mut bytes = Vec::new();
        if received_before {
            wait(&told);
            assert!(receive(&mut left, &mut bytes).is_none());
        }
        break_it(&mut right);
        drop(right);
        wait(&told);
        let (after, end) = rest(&mut left);
        bytes.extend(after);
        assert_eq!(bytes, b"last words");
        let error = end.unwrap_err();
        assert_eq!(rest(&mut left).1.unwrap_err().to_string(), error.to_string(), "as often as it is asked");
        assert_eq!(send(&mut left, b"too late").unwrap_err().to_string(), error.to_string());
        error
    };
    let cut = failure(false, &|_| ());
    assert_eq!(cut.kind(), ErrorKind::UnexpectedEof, "{cut}");
    assert!(cut.to_string().contains("the TLS session has not"), "{cut}");
    let changed = failure(true, &|right| {
        // A record of application data that nobody has encrypted.
        let record = [&[23, 3, 3, 0, 40][..], &[9; 40]].concat();
        let socket = right.own().unwrap().socket().raw();
        assert_eq!(sys::send(socket, &[IoSlice::new(&record)]).unwrap(), record.len());
    });
    assert_eq!(changed.kind(), ErrorKind::InvalidData, "{changed}");
    assert!(changed.to_string().contains("decrypt"), "{changed}");
    relays.end();
}

#[test]
fn what_a_link_has_sent_before_its_end_arrives_though_the_device_ends() {
    let authority = Authority::new();
    let relays = Relays::default();
    let [left, mut right] = connected(&authority);
    let (mut left, _) = hand_over(&relays, 2, left);
    let bytes = data(400_000, 3);
    let (mut sent, mut got) = (0, Vec::new());
    eventually("the queue takes all bytes", || {
        progress(&mut left, &bytes, &mut sent);
        assert!(sent == bytes.len() || receive(&mut right, &mut got).is_none());
        (sent == bytes.len()).then_some(())
    });
    drop(left);
    let ending = thread::spawn(move || relays.end());
    let (after, end) = rest(&mut right);
    got.extend(after);
    assert!(end.is_ok() && got == bytes, "{end:?} after {} bytes", got.len());
    drop(right);
    ending.join().unwrap();
}

#[test]
fn a_peer_that_reads_nothing_takes_no_more_than_the_queues_hold_and_keeps_no_device_from_ending() {
    let authority = Authority::new();
    let relays = Relays::default();
    let [left, right] = connected(&authority);
    let (mut left, told) = hand_over(&relays, 1, left);
    let block = data(CHUNK_BYTES, 11);
    let mut chunks = 0;
    // Told of no room for so long, the thread has none.
    while !matches!(send(&mut left, &block), Err(e) if e.kind() == ErrorKind::WouldBlock)
        || sys::poll(&[(&*told).into()], Duration::from_millis(500))
    {
        told.ready();
        chunks += 1;
        assert!(chunks < 10_000, "there is always room");
    }
    drop(left);
    relays.end();
    drop(right);
}

//! Links between ranks that share memory, and what happens to them if a peer breaks the rules, or is gone.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::HostGroup;
use super::link::{Port, ShmLink};
use super::segment::{LAST_BYTES, Lane};
use crate::secret::JobToken;
use crate::sys::{self, Pollable, Poller, PollerKind};
use crate::testing::loopback::Random;
use crate::transport::device::{self, DeviceOptions};
use crate::transport::{Connections, ConnectorEvent, Device, Link, LocalRanks, RemoteMemory};

/// Two members and the links between them.
fn pair() -> ([Arc<HostGroup>; 2], [Box<ShmLink>; 2]) {
    let groups: [Arc<HostGroup>; 2] = HostGroup::in_process(2).try_into().map_err(|_| "two").unwrap();
    let link = |group: &Arc<HostGroup>| {
        let ports = [Port::new(), Port::new()].into_iter().collect();
        Box::new(
            ShmLink::new(group.clone(), 1 - group.index(), ports, Poller::new(PollerKind::SYSTEM).unwrap()).unwrap(),
        )
    };
    let links = groups.each_ref().map(link);
    (groups, links)
}

fn receive(link: &mut ShmLink, max: usize) -> io::Result<Vec<u8>> {
    let mut into = vec![0; max];
    let n = link.receive(&mut [IoSliceMut::new(&mut into)])?;
    into.truncate(n);
    Ok(into)
}

#[test]
fn small_messages_keep_to_the_same_few_lines() {
    let (groups, mut links) = pair();
    for round in 0..100_000u32 {
        assert_eq!(links[0].send(&[IoSlice::new(&round.to_ne_bytes())]).unwrap(), 4);
        assert_eq!(receive(&mut links[1], 100).unwrap(), round.to_ne_bytes());
    }
    let lines = &groups[0].own_lane(1).lines;
    // SAFETY: the lane has so many lines; these were never written, as their stamps are 0.
    let bytes = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast::<u64>(), lines.len() * 8) };
    assert!(bytes[8 * 256..].iter().all(|word| *word == 0), "the ring has been used as a whole");
}

/// Who sends into an empty ring does not wait: its reader may sleep until something comes.
#[test]
fn there_is_room_in_an_empty_ring_wherever_it_is() {
    let (_groups, mut links) = pair();
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let data = vec![7; 1 + random.below(300 * 64)];
        let sent = links[0].send(&[IoSlice::new(&data)]).unwrap();
        assert_eq!(receive(&mut links[1], data.len()).unwrap().len(), sent);
    }
}

#[test]
fn who_waits_for_room_is_woken_when_there_is_some() {
    let (groups, mut links) = pair();
    let data = vec![7; 1 << 20];
    let mut sent = 0;
    while let Ok(n) = links[0].send(&[IoSlice::new(&data)]) {
        sent += n;
    }
    groups[0].clear_doorbell();
    let rung = || sys::poll(&[Pollable::Socket(groups[0].doorbell())], std::time::Duration::ZERO);
    assert!(!rung());
    let mut got = 0;
    while !rung() {
        got += receive(&mut links[1], 1000).unwrap().len();
    }
    assert!(got < sent, "only when everything had been received");
    while let Ok(bytes) = receive(&mut links[1], 1 << 20) {
        got += bytes.len();
    }
    assert_eq!(got, sent);
    assert!(links[0].send(&[IoSlice::new(&data)]).is_ok());
}

#[test]
fn all_places_for_readable_memory_can_be_used_and_no_more() {
    let (groups, mut links) = pair();
    if !sys::process::may_read_memory() {
        return;
    }
    assert!(groups[0].reads_memory());
    let data: Vec<u8> = (0..=255).collect();
    let [a, b] = &mut links;
    // SAFETY: the vector lives longer than the links.
    let mut register = |key| unsafe { a.register(key, data.as_ptr(), data.len()) };
    let keys: Vec<u32> = (0..113).map(|i| i * 7 + 5).collect();
    assert!(keys.iter().all(|key| register(*key).is_ok()));
    assert!(register(5 + 113 * 7).is_err());
    let mut into = [0; 2];
    for key in keys {
        assert_eq!(b.read(key, 9, &mut into).unwrap(), 2);
        assert_eq!(into, [9, 10]);
        assert_eq!(b.read(key + 1, 0, &mut into).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(b.read(key, usize::MAX, &mut into).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

/// Words that a peer could have written.
fn scribble(random: &mut Random, lane: &Lane) {
    let words = std::ptr::from_ref(lane).cast::<std::sync::atomic::AtomicU64>();
    for _ in 0..random.below(200) {
        // The first words are the lane's positions and flags, then follow registrations and lines.
        let at = match random.below(3) {
            0 => random.below(8) * 4,
            1 => random.below(512),
            _ => 512 + 8 * random.below(300),
        };
        let word = match random.below(6) {
            0 => 0,
            1 => random.bits() & 0xff,
            2 => random.bits() & 0xffff_ffff,
            // A stamp of the first lap, with any length.
            3 => (1 << 16) | (random.bits() & 0xffff),
            4 => (1 << 16) | (1 + random.bits() % 7168),
            _ => random.bits(),
        };
        // SAFETY: within the first 24 KiB of the lane, which is all atomics and bytes that may change at any time.
        unsafe { (*words.add(at)).store(word, Ordering::Relaxed) };
    }
}

/// A rank can only write to its own segment. Whatever it writes there, the other end of the link gets bytes, or an
/// error.
#[test]
fn a_peer_that_scribbles_over_its_memory_harms_nobody_else() {
    let mut random = Random::new(5);
    let (mut malformed, mut received) = (0, 0);
    for _ in 0..300 {
        let (groups, [_scribbler, mut link]) = pair();
        for _ in 0..30 {
            scribble(&mut random, groups[0].own_lane(1));
            let mut into = vec![0; 1 + random.below(20_000)];
            match link.receive(&mut [IoSliceMut::new(&mut into)]) {
                Ok(n) => received += n,
                Err(e) => malformed += u32::from(e.kind() == ErrorKind::InvalidData),
            }
            match link.send(&[IoSlice::new(&into)]) {
                Ok(n) => assert!(n <= into.len()),
                Err(e) => malformed += u32::from(e.kind() == ErrorKind::InvalidData),
            }
            if let Some(memory) = link.remote_memory() {
                let _ = memory.read(random.below(200) as u32, random.below(1000), &mut into);
            }
        }
    }
    assert!(malformed > 0 && received > 0);
}

#[test]
fn what_a_peer_cannot_have_written_is_an_error() {
    type Harm = fn(&Lane);
    // SAFETY: the first word of a line is its stamp, an atomic.
    let stamp = |lane: &Lane, bytes: u64| unsafe {
        let stamp = lane.lines.as_ptr().cast::<std::sync::atomic::AtomicU64>();
        (*stamp).store((1 << 16) | bytes, Ordering::Relaxed);
    };
    let (groups, mut links) = pair();
    stamp(groups[0].own_lane(1), 128 * 56);
    assert_eq!(receive(&mut links[1], 128 * 56).unwrap().len(), 128 * 56, "the longest record");
    let (groups, mut links) = pair();
    stamp(groups[0].own_lane(1), 128 * 56 + 1);
    assert_eq!(receive(&mut links[1], 10).unwrap_err().kind(), ErrorKind::InvalidData);

    let (groups, mut links) = pair();
    groups[0].own_lane(1).ended.0.store(LAST_BYTES as u64 + 2, Ordering::Relaxed);
    assert_eq!(receive(&mut links[1], 10).unwrap_err().kind(), ErrorKind::InvalidData);

    let positions: [Harm; 2] = [
        |lane| lane.consumed.0.store(u64::MAX, Ordering::Relaxed),
        // Back to where it had been before.
        |lane| lane.consumed.0.store(0, Ordering::Relaxed),
    ];
    for harm in positions {
        let (groups, mut links) = pair();
        let send = |link: &mut ShmLink| link.send(&[IoSlice::new(&[7; 5000])]);
        // The ring has been used a few times.
        for _ in 0..200 {
            send(&mut links[1]).unwrap();
            receive(&mut links[0], 5000).unwrap();
        }
        harm(groups[0].own_lane(1));
        let error = (0..1000).find_map(|_| send(&mut links[1]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}

/// A rank whose connecting has timed out asks again, with what is left of the others' answers.
#[test]
fn memory_that_is_shared_is_not_shared_again() {
    let connector = |rank| {
        let options =
            DeviceOptions { hostname: Some("127.0.0.1".into()), shared_memory: Some(true), ..Default::default() };
        let mut connector = device::Device::create(&options).unwrap().connections(&JobToken::none()).unwrap();
        connector.set_rank(rank, 2);
        connector
    };
    let mut connectors = [connector(0), connector(1)];
    let addresses = connectors.each_ref().map(|connector| connector.address().clone());
    let agree = |connectors: &mut [Connections; 2]| {
        let found = connectors.each_mut().map(|connector| connector.open_memory(&addresses));
        connectors.iter_mut().for_each(|connector| connector.share_memory(&found).unwrap());
    };
    let mut events = Vec::new();
    for established in [2, 0, 0] {
        agree(&mut connectors);
        let before = events.len();
        connectors.iter_mut().for_each(|connector| connector.progress(Instant::now(), &mut events));
        assert_eq!(events.len() - before, established);
    }
    // The links are those that were established first.
    let mut links = events.into_iter().filter_map(|event| match event {
        ConnectorEvent::Established { link, .. } => Some(link),
        _ => None,
    });
    let [mut here, mut there] = [links.next().unwrap(), links.next().unwrap()];
    assert_eq!(here.send(&[IoSlice::new(b"hello")]).unwrap(), 5);
    let mut into = [0; 5];
    assert_eq!(there.receive(&mut [IoSliceMut::new(&mut into)]).unwrap(), 5);
    assert_eq!(&into, b"hello");
}

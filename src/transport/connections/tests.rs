//! What [`Connections`] makes of connectors of several transports: whom it asks, when, and what it does with what they
//! say.

use super::*;
use crate::error::ErrorKind;
use crate::sys::Waker;
use crate::testing::connectors::{Fake, Log};
use crate::testing::links;
use crate::transport::shm::HostGroup;

fn fallible(fakes: &[&Fake], sources: Vec<Pollable>) -> Result<Connections> {
    let (base, others) = fakes.split_last().unwrap();
    let providers: Vec<Box<dyn Provider>> = others.iter().map(|fake| Box::new((*fake).clone()) as _).collect();
    let (token, linger): (_, Linger) = (JobToken::none(), Arc::new(|_| ()));
    let (of, sources) = ((&token, &linger, None), (sources, PollerKind::SYSTEM));
    let mut connections = Connections::new(links::address(), (*base).clone(), sources, &providers, of)?;
    connections.set_rank(0, 3);
    Ok(connections)
}

/// The connections of rank 0 of 3 over these connectors, in order of preference.
fn connections(fakes: &[&Fake]) -> Connections {
    fallible(fakes, Vec::new()).unwrap()
}

/// The events of one turn, in words.
fn progress(connections: &mut Connections) -> Vec<String> {
    let mut events = Vec::new();
    connections.progress(Instant::now(), &mut events);
    let text = |event| match event {
        ConnectorEvent::Established { rank, link, connection } => {
            // A fake link logs its drop, and this one is only named.
            std::mem::forget(link);
            format!("link {connection} to {rank}")
        }
        ConnectorEvent::Unreachable { rank, error } => format!("no link to {rank}: {error}"),
        ConnectorEvent::Failed { error } => format!("failed: {error}"),
        ConnectorEvent::Ready { rank, .. } => format!("{rank} is ready"),
    };
    events.into_iter().map(text).collect()
}

/// The number of turns that `fake` has in `turns` of all.
fn turns_of(fake: &Fake, turns: u32, connections: &mut Connections) -> usize {
    let before = fake.state().turns;
    for _ in 0..turns {
        assert_eq!(progress(connections), NOTHING);
    }
    fake.state().turns - before
}

/// What was told since the last call.
fn told(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

fn error(text: &str) -> Error {
    Error::new(ErrorKind::ConnectionLost, text)
}

const NOTHING: [&str; 0] = [];

#[test]
fn the_first_connector_that_reaches_a_rank_makes_the_link() {
    let log = Log::default();
    let (a, b, c) = (Fake::new(&log, "a", &[1]), Fake::new(&log, "b", &[1, 2]), Fake::new(&log, "c", &[1, 2, 3]));
    let mut connections = connections(&[&a, &b, &c]);
    connections.connect(1);
    assert_eq!(told(&log), NOTHING, "its address is not known");
    for rank in 1..=3 {
        connections.set_peer(rank, links::address()).unwrap();
        connections.connect(rank);
    }
    assert_eq!(told(&log), ["a connects to 1", "b connects to 2", "c connects to 3"]);
    a.state().fails = Some("reach");
    connections.connect(1);
    assert_eq!(told(&log), ["b connects to 1"]);
    connections.give_up(2);
    assert_eq!(told(&log), ["a gives 2 up", "b gives 2 up", "c gives 2 up"]);
}

#[test]
fn a_rank_for_which_a_connector_defers_is_connected_when_it_has_decided() {
    for (decided, by) in [(Reach::No, "b"), (Reach::Yes, "a")] {
        let log = Log::default();
        let (a, b) = (Fake::new(&log, "a", &[]), Fake::new(&log, "b", &[1, 2]));
        a.state().shares = true;
        a.state().reach = [(1, Reach::Undecided), (2, Reach::Undecided)].into();
        let mut connections = connections(&[&a, &b]);
        for rank in [1, 2] {
            connections.set_peer(rank, links::address()).unwrap();
            connections.connect(rank);
        }
        connections.give_up(2);
        told(&log);
        progress(&mut connections);
        assert_eq!(told(&log), NOTHING);
        a.state().reach = [(1, decided), (2, decided)].into();
        connections.share_memory(&[]).unwrap();
        assert_eq!(told(&log), [format!("{by} connects to 1")]);
        connections.share_memory(&[]).unwrap();
        assert_eq!(told(&log), NOTHING);
    }
}

#[test]
fn a_link_is_held_while_an_earlier_connector_defers() {
    for decided in [Reach::No, Reach::Yes] {
        let log = Log::default();
        let (a, b) = (Fake::new(&log, "a", &[]), Fake::new(&log, "b", &[1]));
        a.state().shares = true;
        a.state().reach.insert(1, Reach::Undecided);
        let mut connections = connections(&[&a, &b]);
        connections.set_peer(1, links::address()).unwrap();
        b.establishes(7, 1);
        for _ in 0..3 {
            assert_eq!(progress(&mut connections), NOTHING);
            assert!(!connections.is_busy());
        }
        a.state().reach.insert(1, decided);
        connections.share_memory(&[]).unwrap();
        assert!(connections.is_busy());
        let (delivered, dropped): (&[&str], &[&str]) =
            if decided == Reach::No { (&["link 7 to 1"], &[]) } else { (&[], &["link 7 is dropped"]) };
        assert_eq!(progress(&mut connections), delivered);
        assert_eq!(told(&log), dropped);
        assert!(!connections.is_busy());
    }
}

#[test]
fn what_a_later_connector_says_of_a_rank_that_an_earlier_one_reaches_is_dropped() {
    let log = Log::default();
    let (a, b) = (Fake::new(&log, "a", &[1]), Fake::new(&log, "b", &[1, 2]));
    let mut connections = connections(&[&a, &b]);
    for rank in 1..=3 {
        connections.set_peer(rank, links::address()).unwrap();
    }
    b.establishes(7, 1);
    b.establishes(8, 2);
    let unreachable = |rank| ConnectorEvent::Unreachable { rank, error: error("gone") };
    b.state().events.extend([unreachable(1), unreachable(2)]);
    b.is_ready(1);
    assert_eq!(progress(&mut connections), ["link 8 to 2", "no link to 2: gone", "1 is ready"]);
    assert_eq!(told(&log), ["link 7 is dropped"]);
    a.establishes(9, 1);
    a.state().events.push(unreachable(1));
    assert_eq!(progress(&mut connections), ["link 9 to 1", "no link to 1: gone"]);
}

#[test]
fn a_link_that_comes_before_the_address_of_its_peer_waits_for_it() {
    let log = Log::default();
    let (a, b) = (Fake::over(&log, "a", &[1]), Fake::new(&log, "b", &[1, 2, 3, 4]));
    let mut connections = connections(&[&a, &b]);
    for rank in 1..=4 {
        b.establishes(rank as u32, rank);
    }
    connections.arrived();
    for _ in 0..3 {
        assert_eq!(progress(&mut connections), NOTHING);
        assert!(!connections.is_busy());
    }
    connections.set_peer(1, links::address()).unwrap();
    assert!(connections.is_busy());
    assert_eq!(progress(&mut connections), NOTHING);
    assert_eq!(told(&log), ["a takes 1 to rank 1", "link 1 is dropped"]);
    connections.set_peer(2, links::address()).unwrap();
    assert_eq!(progress(&mut connections), ["link 2 to 2"]);
    assert_eq!(told(&log), ["a leaves 2 to rank 2"]);

    connections.give_up(3);
    assert_eq!(told(&log), ["link 3 is dropped", "a gives 3 up", "b gives 3 up"]);
    connections.close(&(Arc::new(|number: u32| vec![number as u8]) as CloseNotice), true);
    let ends = ["link 4 ends with [] [4]", "link 4 is dropped", "a closes, failed: true", "b closes, failed: true"];
    assert_eq!(told(&log), ends);
    connections.set_peer(4, links::address()).unwrap();
    assert_eq!(progress(&mut connections), NOTHING);
}

#[test]
fn a_connector_makes_links_out_of_those_of_later_ones_alone() {
    let log = Log::default();
    let (a, b, c) = (Fake::new(&log, "a", &[2]), Fake::over(&log, "b", &[1]), Fake::new(&log, "c", &[1, 2]));
    let mut connections = connections(&[&a, &b, &c]);
    for rank in [1, 2] {
        connections.set_peer(rank, links::address()).unwrap();
    }
    c.establishes(7, 1);
    c.is_ready(1);
    connections.arrived();
    assert_eq!(progress(&mut connections), NOTHING);
    assert_eq!(told(&log), ["b takes 7 to rank 1", "link 7 is dropped", "b is asked about 1"]);
    a.establishes(8, 2);
    a.is_ready(2);
    b.establishes(9, 1);
    b.is_ready(1);
    assert_eq!(progress(&mut connections), ["link 9 to 1", "1 is ready", "link 8 to 2", "2 is ready"]);
    assert_eq!(told(&log), NOTHING);
}

#[test]
fn failures_are_reported() {
    let log = Log::default();
    let fakes = ["a", "b", "c"].map(|name| Fake::new(&log, name, &[1]));
    let all = fakes.each_ref();
    for over in [false, true] {
        fakes[1].state().is_over = over;
        let mut connections = connections(&all);
        connections.arrived();
        for fake in &fakes {
            let error = error(fake.state().name);
            fake.state().events.push(ConnectorEvent::Failed { error });
        }
        assert_eq!(progress(&mut connections), ["failed: c", "failed: b", "failed: a"]);
        fakes[2].state().fails = Some("reach");
        assert_eq!(connections.set_peer(1, links::address()).unwrap_err().message(), "cannot reach");
        fakes[2].state().fails = None;
    }
    fakes[1].state().fails = Some("create");
    assert_eq!(fallible(&all, Vec::new()).err().unwrap().message(), "cannot create");
    fakes[1].state().fails = None;
    (fakes[0].state().shares, fakes[0].state().fails) = (true, Some("share"));
    assert_eq!(connections(&all).share_memory(&[]).unwrap_err().message(), "cannot share");
}

#[test]
fn every_connector_is_asked_at_each_turn_if_none_makes_links_of_theirs() {
    let log = Log::default();
    let (a, b, c) = (Fake::new(&log, "a", &[]), Fake::new(&log, "b", &[]), Fake::new(&log, "c", &[]));
    let mut connections = connections(&[&a, &b, &c]);
    for fake in [&a, &b, &c] {
        assert_eq!(turns_of(fake, 10, &mut connections), 10);
    }
    assert!(!connections.sleep(true));
    assert_eq!(told(&log), ["a", "b", "c"].map(|name| format!("{name} sleeps, publications: true")));
    connections.wake(false);
    assert_eq!(told(&log), ["a", "b", "c"].map(|name| format!("{name} wakes, slept: false")));
}

/// The connectors of two transports, of which the first makes its links out of the other's, and what the other waits
/// for.
fn over() -> (Log, Fake, Fake, Waker, Connections) {
    let log = Log::default();
    let (a, b) = (Fake::over(&log, "a", &[]), Fake::new(&log, "b", &[]));
    let source = Waker::new().unwrap();
    let connections = fallible(&[&a, &b], vec![(&source).into()]).unwrap();
    (log, a, b, source, connections)
}

#[test]
fn a_connector_of_whose_links_another_makes_its_own_is_asked_when_it_has_work() {
    let (log, a, b, source, mut connections) = over();
    assert_eq!(turns_of(&a, 10, &mut connections), 10);
    // Peers connect, and nobody tells of it.
    for _ in 0..20 {
        assert!(turns_of(&b, TURNS_OVER_LINKS, &mut connections) == 1);
    }
    connections.arrived();
    assert!(connections.is_busy());
    assert_eq!(turns_of(&b, 2, &mut connections), 1);
    a.state().awaits = true;
    assert_eq!(turns_of(&b, 5, &mut connections), 5);
    a.state().awaits = false;
    b.state().is_busy = true;
    assert_eq!(turns_of(&b, 5, &mut connections), 5);
    b.state().is_busy = false;
    assert_eq!(turns_of(&b, 5, &mut connections), 0);

    source.wake();
    assert_eq!(turns_of(&b, 1, &mut connections), 0);
    connections.wake(true);
    assert_eq!(turns_of(&b, 2, &mut connections), 1);
    told(&log);
    assert!(connections.sleep(false));
    assert_eq!(told(&log), ["a sleeps, publications: false"]);
    assert_eq!(turns_of(&b, 2, &mut connections), 1);
    source.clear();
    assert!(connections.sleep(false));
    assert_eq!(turns_of(&b, 2, &mut connections), 0);
}

#[test]
fn what_becomes_due_in_the_turn_of_a_connector_is_found_at_the_next_turn() {
    let (_, a, b, _, mut connections) = over();
    let then = |fake: &Fake, act: fn(&Fake)| {
        let of = fake.clone();
        move || act(&of)
    };
    // The turn of `b` is before that of `a`.
    a.state().at_turn = Some(Box::new(then(&a, |a| a.state().awaits = true)));
    assert_eq!(turns_of(&b, 1, &mut connections), 0);
    assert_eq!(turns_of(&b, 1, &mut connections), 1);
    a.state().awaits = false;
    a.state().at_turn = Some(Box::new(then(&b, |b| b.state().is_busy = true)));
    assert_eq!(turns_of(&b, 1, &mut connections), 0);
    assert!(connections.is_busy());
    assert_eq!(turns_of(&b, 1, &mut connections), 1);
}

#[test]
fn where_all_ranks_share_memory_the_other_connectors_are_asked_rarely() {
    for is_over in [false, true] {
        let log = Log::default();
        let (a, b, c) = (Fake::new(&log, "a", &[]), Fake::new(&log, "b", &[]), Fake::new(&log, "c", &[]));
        let [exited, own, source] = [(); 3].map(|()| Arc::new(Waker::new().unwrap()));
        (a.state().shares, a.state().group) = (true, HostGroup::in_process(3).into_iter().next());
        a.state().watched.push((exited.clone(), Some(2)));
        b.state().is_over = is_over;
        b.state().watched.push((own.clone(), None));
        let mut connections = fallible(&[&a, &b, &c], vec![(&*source).into()]).unwrap();
        connections.share_memory(&[]).unwrap();
        assert!(connections.is_quiet());

        assert_eq!(turns_of(&a, 5, &mut connections), 5);
        assert_eq!(turns_of(&b, 2 * TURNS, &mut connections), 0);
        // Peers may connect, and nobody tells of it.
        assert_eq!(turns_of(&c, 2 * TURNS, &mut connections), 2);
        for fake in [&b, &c] {
            fake.state().is_busy = true;
            assert!(connections.is_busy());
            assert_eq!(turns_of(fake, 5, &mut connections), 5);
            fake.state().is_busy = false;
        }
        own.wake();
        assert_eq!(turns_of(&b, TURNS, &mut connections), 1);
        own.clear();

        assert!(told(&log).is_empty());
        exited.wake();
        assert_eq!(turns_of(&b, TURNS, &mut connections), 0);
        assert_eq!(told(&log), ["a is told that 2 has ended"]);
        exited.clear();

        source.wake();
        connections.wake(true);
        assert_eq!(turns_of(&c, 2, &mut connections), 1);
    }
}

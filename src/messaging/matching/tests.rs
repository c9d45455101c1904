use super::*;
use crate::messaging::Token;

fn recv(from: Source, slot: Slot, bytes: usize, owner: u32) -> Recv {
    Recv {
        from,
        space: Space::USER,
        slot,
        fingerprint: 0,
        into: std::ptr::null_mut(),
        bytes,
        exact: false,
        more: false,
        reduce: None,
        token: Token { owner, detail: 0 },
    }
}

fn envelope(slot: Slot, bytes: u64) -> Envelope {
    Envelope { space: Space::USER, slot, fingerprint: 0, bytes, more: false }
}

fn any(ranks: &[Rank]) -> Source {
    Source::AnyOf(ranks.into())
}

fn owner_of(r: &Receives, arrival: Arrival) -> u32 {
    match arrival {
        Arrival::Op(op) => r.op(op).recv.token.owner,
        other => panic!("{other:?}"),
    }
}

const LARGE: usize = EAGER_BYTES + 1;

#[test]
fn messages_meet_receives_in_order_by_rank_and_slot() {
    let mut r = Receives::default();
    for (owner, (rank, slot)) in [(1, 7), (1, 8), (2, 7), (1, 7)].into_iter().enumerate() {
        assert!(matches!(
            r.post(recv(Source::Rank(rank), slot, 4, owner as u32), EAGER_BYTES),
            Posting::Waits { grant: None, .. }
        ));
    }
    let got: Vec<u32> = [(2, 7), (1, 7), (1, 8), (1, 7)]
        .into_iter()
        .map(|(rank, slot)| {
            let arrival = r.arrive(rank, &envelope(slot, 4), false);
            owner_of(&r, arrival)
        })
        .collect();
    assert_eq!(got, [2, 0, 1, 3]);
    assert!(matches!(r.arrive(1, &envelope(7, 4), false), Arrival::Unexpected(_)));
}

#[test]
fn an_early_message_waits_for_its_receive_even_while_it_arrives() {
    let mut r = Receives::default();
    let Arrival::Unexpected(first) = r.arrive(3, &envelope(5, 4), false) else { panic!() };
    let Arrival::Unexpected(second) = r.arrive(3, &envelope(5, 2), false) else { panic!() };
    assert!(r.append(first, b"ab").is_none());
    assert!(matches!(r.post(recv(Source::Rank(3), 5, 4, 1), EAGER_BYTES), Posting::Waits { grant: None, .. }));
    let (op, from, _, bytes) = r.append(first, b"cd").unwrap();
    assert_eq!((op.recv.token.owner, from, &bytes[..]), (1, 3, &b"abcd"[..]));
    assert!(r.append(second, b"ef").is_none());
    match r.post(recv(any(&[9, 3]), 5, 4, 2), EAGER_BYTES) {
        Posting::Message { from: 3, data, .. } => assert_eq!(data, b"ef"),
        other => panic!("{other:?}"),
    }
    assert!(r.is_empty());
}

/// Queues an unexpected message of one byte from each of these ranks.
fn queue_from(r: &mut Receives, ranks: &[Rank]) {
    for rank in ranks {
        let Arrival::Unexpected(e) = r.arrive(*rank, &envelope(5, 1), false) else { panic!() };
        assert!(r.append(e, b"x").is_none());
    }
}

/// The rank whose message a receive from any of `ranks` takes.
fn serve(r: &mut Receives, ranks: &[Rank]) -> Rank {
    match r.post(recv(any(ranks), 5, 1, 0), EAGER_BYTES) {
        Posting::Message { from, .. } => from,
        other => panic!("{other:?}"),
    }
}

#[test]
fn receive_from_any_takes_turns() {
    let mut r = Receives::default();
    (0..3).for_each(|_| queue_from(&mut r, &[0, 1, 2]));
    let served: Vec<Rank> = (0..9).map(|_| serve(&mut r, &[2, 1, 0])).collect();
    assert_eq!(served, [0, 1, 2].repeat(3));
}

#[test]
fn ranks_that_are_silent_or_named_twice_get_no_turn_for_others() {
    let mut r = Receives::default();
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    (0..8).for_each(|_| queue_from(&mut r, &[3, 4]));
    let served: Vec<Rank> = (0..8).map(|_| serve(&mut r, &all)).collect();
    assert_eq!(served, [3, 4].repeat(4));
    let served: Vec<Rank> = (0..8).map(|_| serve(&mut r, &[3, 3, 3, 4])).collect();
    assert_eq!(served, [3, 4].repeat(4));
    assert!(r.turns.is_empty());
}

#[test]
fn a_flood_does_not_pass_over_who_has_one_message_at_a_time() {
    let mut r = Receives::default();
    queue_from(&mut r, &[0, 0, 0, 0, 1]);
    let mut served = Vec::new();
    for _ in 0..6 {
        served.push(serve(&mut r, &[0, 1, 2]));
        // Rank 1 sends its next message after the one before was taken.
        queue_from(&mut r, if served.last() == Some(&1) { &[1] } else { &[0] });
    }
    assert_eq!(served, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn turns_are_kept_between_receives_from_different_sets_and_slots() {
    let mut r = Receives::default();
    (0..4).for_each(|_| queue_from(&mut r, &[0, 1, 2, 3]));
    let Arrival::Unexpected(e) = r.arrive(0, &envelope(6, 1), false) else { panic!() };
    assert!(r.append(e, b"x").is_none());
    let served: Vec<Rank> = (0..8).map(|i| serve(&mut r, [&[0, 1], &[2, 3]][i % 2])).collect();
    assert_eq!(served, [0, 2, 1, 3, 0, 2, 1, 3]);
    // Receives from one rank, or on another slot, do not change its turn.
    assert!(matches!(r.post(recv(Source::Rank(0), 5, 1, 0), EAGER_BYTES), Posting::Message { from: 0, .. }));
    assert!(matches!(r.post(recv(any(&[0, 1]), 6, 1, 0), EAGER_BYTES), Posting::Message { from: 0, .. }));
    assert_eq!([serve(&mut r, &[0, 1]), serve(&mut r, &[0, 1])], [0, 1]);
}

#[test]
fn a_disconnected_rank_has_no_turn() {
    let mut r = Receives::default();
    let Arrival::Unexpected(_half) = r.arrive(0, &envelope(5, 2), false) else { panic!() };
    queue_from(&mut r, &[1]);
    assert!(r.disconnect(0, |rank| rank == 0).is_empty());
    assert_eq!(serve(&mut r, &[0, 1]), 1);
    assert!(r.turns.is_empty());
}

#[test]
fn the_receive_posted_first_is_served_first() {
    let mut r = Receives::default();
    r.post(recv(any(&[1, 2]), 5, 1, 10), EAGER_BYTES);
    r.post(recv(Source::Rank(1), 5, 1, 11), EAGER_BYTES);
    r.post(recv(any(&[2]), 5, 1, 12), EAGER_BYTES);
    let first = r.arrive(1, &envelope(5, 1), false);
    let second = r.arrive(1, &envelope(5, 1), false);
    let third = r.arrive(2, &envelope(5, 1), false);
    assert_eq!([owner_of(&r, first), owner_of(&r, second), owner_of(&r, third)], [10, 11, 12]);
}

#[test]
fn large_receives_grant_at_once_and_announcements_are_answered_once() {
    let mut r = Receives::default();
    assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 0), EAGER_BYTES), Posting::Waits { grant: Some(1), .. }));
    // The announcement crossed the grant: no second grant.
    assert!(r.announce(1, &envelope(5, LARGE as u64), 0).is_none());
    let arrival = r.arrive(1, &envelope(5, LARGE as u64), true);
    assert_eq!(owner_of(&r, arrival), 0);
    // Announced first, received later: one grant.
    assert!(r.announce(2, &envelope(5, LARGE as u64), 0).is_none());
    assert!(matches!(r.post(recv(any(&[1, 2]), 5, LARGE, 1), EAGER_BYTES), Posting::Granted { to: 2, .. }));
    let arrival = r.arrive(2, &envelope(5, LARGE as u64), true);
    assert_eq!(owner_of(&r, arrival), 1);
    // From any, posted first: granted when announced.
    assert!(matches!(r.post(recv(any(&[1, 2]), 5, LARGE, 2), EAGER_BYTES), Posting::Waits { grant: None, .. }));
    assert!(r.announce(1, &envelope(5, LARGE as u64), 0).is_some());
}

#[test]
fn an_announced_message_that_a_grant_set_free_keeps_its_place() {
    let mut r = Receives::default();
    assert!(r.announce(1, &envelope(5, LARGE as u64), 0).is_none());
    let Arrival::Unexpected(unexpected) = r.arrive(1, &envelope(5, LARGE as u64), true) else { panic!() };
    assert!(matches!(r.arrive(1, &envelope(5, 1), false), Arrival::Unexpected(_)));
    assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 0), EAGER_BYTES), Posting::Waits { grant: None, .. }));
    let (op, _, met, bytes) = r.append(unexpected, &[7; LARGE]).unwrap();
    assert_eq!((op.recv.token.owner, met.bytes, bytes.len()), (0, LARGE as u64, LARGE));
    // A message that is not announced arrives.
    assert_eq!(r.arrive(1, &envelope(6, LARGE as u64), true), Arrival::Discard(None));
}

#[test]
fn a_grant_is_used_up_once() {
    let mut r = Receives::default();
    assert!(matches!(r.post(recv(any(&[1, 2]), 5, LARGE, 0), EAGER_BYTES), Posting::Waits { grant: None, .. }));
    assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 1), EAGER_BYTES), Posting::Waits { grant: Some(1), .. }));
    // The sender used the grant of the second receive for the message that the first one matches.
    let arrival = r.arrive(1, &envelope(5, LARGE as u64), false);
    assert_eq!(owner_of(&r, arrival), 0);
    assert!(r.announce(1, &envelope(5, LARGE as u64), 0).is_some());
}

#[test]
fn a_small_message_does_not_overtake_an_announced_one() {
    let mut r = Receives::default();
    assert!(r.announce(1, &envelope(5, LARGE as u64), 0).is_none());
    assert!(matches!(r.arrive(1, &envelope(5, 1), false), Arrival::Unexpected(_)));
    assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 0), EAGER_BYTES), Posting::Granted { to: 1, .. }));
}

#[test]
fn cancelled_receives_take_nothing_and_what_was_granted_is_thrown_away() {
    let mut r = Receives::default();
    r.post(recv(Source::Rank(1), 5, 4, 7), EAGER_BYTES);
    r.post(recv(Source::Rank(1), 5, 4, 8), EAGER_BYTES);
    r.cancel(7, |_| panic!("nothing was arriving"));
    let arrival = r.arrive(1, &envelope(5, 4), false);
    assert_eq!(owner_of(&r, arrival), 8);
    let mut arriving = Vec::new();
    r.cancel(8, |op| arriving.push(op));
    assert_eq!(arriving.len(), 1);
    assert!(r.announce(2, &envelope(6, LARGE as u64), 0).is_some() || r.is_empty());
    r.post(recv(Source::Rank(2), 6, LARGE, 9), EAGER_BYTES);
    r.cancel(9, |_| panic!("nothing was arriving"));
    assert_eq!(r.arrive(2, &envelope(6, LARGE as u64), true), Arrival::Discard(None));
    assert!(r.is_empty());
}

#[test]
fn a_disconnected_rank_fails_what_only_it_could_serve() {
    let mut r = Receives::default();
    r.post(recv(Source::Rank(1), 5, 4, 0), EAGER_BYTES);
    r.post(recv(Source::Rank(2), 5, 4, 1), EAGER_BYTES);
    r.post(recv(any(&[1, 2]), 6, 4, 2), EAGER_BYTES);
    r.post(recv(any(&[1]), 7, 4, 3), EAGER_BYTES);
    let Arrival::Unexpected(whole) = r.arrive(1, &envelope(9, 1), false) else { panic!() };
    assert!(r.append(whole, b"x").is_none());
    let Arrival::Unexpected(_part) = r.arrive(1, &envelope(10, 2), false) else { panic!() };
    let mut owners: Vec<u32> = r.disconnect(1, |rank| rank == 1).iter().map(|(t, _)| t.owner).collect();
    owners.sort_unstable();
    assert_eq!(owners, [0, 3]);
    assert!(matches!(r.post(recv(Source::Rank(1), 9, 1, 4), EAGER_BYTES), Posting::Message { .. }));
    assert!(matches!(r.post(recv(Source::Rank(1), 10, 2, 5), EAGER_BYTES), Posting::Waits { .. }));
}

#[test]
fn refuses_messages_that_do_not_fit() {
    let mut want = recv(Source::Rank(1), 5, 4, 0);
    let name = || "rank 1".to_owned();
    assert!(refusal(&want, 1, &envelope(5, 3), name).is_none());
    assert!(
        matches!(refusal(&want, 1, &envelope(5, 5), name), Some(Outcome::Failed(e)) if e.message().contains("at most 4"))
    );
    want.exact = true;
    assert!(
        matches!(refusal(&want, 1, &envelope(5, 3), name), Some(Outcome::Failed(e)) if e.message().contains("rank 1"))
    );
    want.fingerprint = 9;
    assert!(matches!(refusal(&want, 1, &envelope(5, 4), name), Some(Outcome::Mismatch { rank: 1, theirs: 0 })));
}

#[test]
fn queues_keep_order_through_removals() {
    let mut q = Queues::default();
    let key = Key::new(1, Space::USER, 2);
    (0..5).for_each(|v| q.push(key, v));
    assert!(q.remove(key, 0) && q.remove(key, 2) && q.remove(key, 4) && !q.remove(key, 4));
    q.push(key, 5);
    assert_eq!(q.iter(key).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!((q.pop(key), q.pop(key), q.pop(key), q.pop(key)), (Some(1), Some(3), Some(5), None));
    assert!(q.is_empty());
}

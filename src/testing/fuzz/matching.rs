//! Fuzz target: compares matching with a model that uses plain lists.

use std::collections::BTreeSet;

use super::Input;
use crate::messaging::matching::{Arrival, EAGER_BYTES, Posting, Receives};
use crate::messaging::{Recv, Source, Token};
use crate::types::{Rank, Space};
use crate::wire::Envelope;

const RANKS: usize = 3;
const SLOTS: usize = 2;
const SOURCES: [&[Rank]; 6] = [&[0], &[1], &[2], &[0, 1], &[1, 2], &[2, 1, 0, 1]];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Message {
    Announced,
    /// Arriving: partly received; with the receive that it has matched, if any.
    Half {
        met: Option<u32>,
    },
    Whole,
}

/// The specification of matching. Messages and receives are numbered in the order in which they began.
#[derive(Default)]
struct Model {
    /// Receive, ranks, slot.
    posted: Vec<(u32, &'static [Rank], usize)>,
    /// Receives that have matched an announcement, and whether they were cancelled afterwards.
    granted: [[Vec<(u32, bool)>; SLOTS]; RANKS],
    /// Messages without a receive, or that were still arriving when they matched one.
    unexpected: [[Vec<(u32, Message)>; SLOTS]; RANKS],
    /// When the first unexpected message of each rank was queued, or when a receive from several ranks last took one,
    /// whichever is later. The rank with the earliest time is next.
    waits_since: [[Option<u32>; SLOTS]; RANKS],
    /// By rank: the receive into which its message is arriving, and its index in `Receives`.
    into: [Option<(u32, u32)>; RANKS],
    disconnected: BTreeSet<Rank>,
}

impl Model {
    /// The message that a new receive from `rank` matches.
    fn waiting(&self, rank: Rank, slot: usize) -> Option<usize> {
        self.unexpected[rank][slot].iter().position(|(_, m)| !matches!(m, Message::Half { met: Some(_) }))
    }

    /// Updates `waits_since` in step `now`.
    fn note_waiting(&mut self, now: u32) {
        for rank in 0..RANKS {
            for slot in 0..SLOTS {
                let waits = self.waiting(rank, slot).is_some();
                let since = &mut self.waits_since[rank][slot];
                *since = if waits { since.or(Some(now)) } else { None };
            }
        }
    }

    /// Removes and returns the receive that a new message from `rank` matches.
    fn match_posted(&mut self, rank: Rank, slot: usize) -> Option<u32> {
        if self.waiting(rank, slot).is_some() {
            return None;
        }
        let at = self.posted.iter().position(|(_, ranks, s)| *s == slot && ranks.contains(&rank))?;
        Some(self.posted.remove(at).0)
    }

    /// The position of the queued message that is arriving from `rank`.
    fn half(&self, rank: Rank) -> Option<(usize, usize)> {
        (0..SLOTS).find_map(|slot| {
            let at = self.unexpected[rank][slot].iter().position(|(_, m)| matches!(m, Message::Half { .. }))?;
            Some((slot, at))
        })
    }
}

fn envelope(slot: usize, bytes: usize) -> Envelope {
    Envelope { space: Space::USER, slot: slot as u64, fingerprint: 0, bytes: bytes as u64, more: false }
}

/// Matching behaves like the model, for any order of posts, messages, announcements, cancellations and disconnects.
pub fn matching(data: &[u8]) {
    let (mut real, mut model, mut next) = (Receives::default(), Model::default(), 0);
    // The indices of queued messages in `Receives`.
    let mut queued: Vec<(u32, u32)> = Vec::new();
    let mut input = Input(data);
    while let Some(shape) = input.byte() {
        model.note_waiting(next);
        next += 1;
        let (rank, slot) = (usize::from(shape >> 3) % RANKS, usize::from(shape >> 7));
        // A rank sends one message after another.
        let busy = model.half(rank).is_some() || model.into[rank].is_some() || model.disconnected.contains(&rank);
        match shape & 7 {
            0 | 1 => {
                let ranks = SOURCES[usize::from(shape >> 3 & 15) % SOURCES.len()];
                let large = shape & 1 == 1;
                post(&mut real, &mut model, &mut queued, (next, ranks, slot, large));
            }
            2 if !busy => {
                let met = model.match_posted(rank, slot);
                match (real.arrive(rank, &envelope(slot, 4), false), met) {
                    (Arrival::Op(op), Some(owner)) => {
                        assert_eq!(real.op(op).recv.token.owner, owner);
                        model.into[rank] = Some((owner, op));
                    }
                    (Arrival::Unexpected(index), None) => {
                        assert!(real.append(index, &next.to_le_bytes()[..1]).is_none());
                        model.unexpected[rank][slot].push((next, Message::Half { met: None }));
                        queued.push((next, index));
                    }
                    other => panic!("{other:?}"),
                }
            }
            3 if !busy => {
                let met = model.match_posted(rank, slot);
                let grant = real.announce(rank, &envelope(slot, EAGER_BYTES + 1), next);
                match met {
                    Some(owner) => model.granted[rank][slot].push((owner, false)),
                    None => {
                        assert!(grant.is_none(), "nobody is there to grant");
                        model.unexpected[rank][slot].push((next, Message::Announced));
                    }
                }
            }
            4 if !busy => announced(&mut real, &mut model, &mut queued, rank, slot),
            5 => {
                if let Some((_, op)) = model.into[rank].take() {
                    assert!(real.finish(op).is_some());
                } else if let Some((slot, at)) = model.half(rank) {
                    let (number, Message::Half { met }) = model.unexpected[rank][slot][at] else { unreachable!() };
                    let at_real = queued.iter().position(|(n, _)| *n == number).expect("queued");
                    let delivered = real.append(queued.swap_remove(at_real).1, &number.to_le_bytes()[1..]);
                    let delivered = delivered.map(|(op, from, _, bytes)| {
                        assert_eq!((from, &bytes[..]), (rank, &number.to_le_bytes()[..]));
                        op.recv.token.owner
                    });
                    match met {
                        None => model.unexpected[rank][slot][at].1 = Message::Whole,
                        Some(owner) => {
                            model.unexpected[rank][slot].remove(at);
                            assert_eq!(delivered, (owner != CANCELLED).then_some(owner));
                        }
                    }
                }
            }
            6 => {
                let Some(owner) = input.byte().map(u32::from) else { break };
                let mut arriving = Vec::new();
                real.cancel(owner, |op| arriving.push(op));
                model.posted.retain(|(o, ..)| *o != owner);
                model.granted.iter_mut().flatten().flatten().filter(|(o, _)| *o == owner).for_each(|g| g.1 = true);
                for (_, message) in model.unexpected.iter_mut().flatten().flatten() {
                    if let Message::Half { met: Some(met) } = message
                        && *met == owner
                    {
                        *met = CANCELLED;
                    }
                }
                let into = model.into.iter_mut().find(|i| i.is_some_and(|(o, _)| o == owner));
                let expected = into.and_then(Option::take).map(|(_, op)| op);
                assert_eq!(arriving, Vec::from_iter(expected));
            }
            7 if shape >> 3 & 3 == 3 && !model.disconnected.contains(&rank) => {
                lose(&mut real, &mut model, &mut queued, rank)
            }
            _ => {}
        }
    }
}

/// Stands for a receive that was cancelled while its message arrived.
const CANCELLED: u32 = u32::MAX - 1;

fn post(
    real: &mut Receives,
    model: &mut Model,
    queued: &mut Vec<(u32, u32)>,
    (owner, ranks, slot, large): (u32, &'static [Rank], usize, bool),
) {
    let from = if let [rank] = ranks { Source::Rank(*rank) } else { Source::AnyOf(ranks.into()) };
    let granted_early = matches!(from, Source::Rank(_)) && large;
    let posting = real.post(
        Recv {
            from,
            space: Space::USER,
            slot: slot as u64,
            fingerprint: 0,
            into: std::ptr::null_mut(),
            bytes: if large { EAGER_BYTES + 1 } else { 4 },
            exact: false,
            more: false,
            reduce: None,
            token: Token { owner, detail: 0 },
        },
        EAGER_BYTES,
    );
    let waiting = |rank: &Rank| model.waiting(*rank, slot).map(|at| (*rank, at));
    let met = ranks.iter().filter_map(waiting).min_by_key(|(rank, _)| model.waits_since[*rank][slot]);
    if let Some((rank, _)) = met
        && ranks.len() > 1
    {
        model.waits_since[rank][slot] = Some(owner);
    }
    match (posting, met) {
        (Posting::Waits { grant, .. }, None) => {
            assert_eq!(grant, granted_early.then_some(ranks[0]));
            model.posted.push((owner, ranks, slot));
        }
        (Posting::Waits { grant, .. }, Some((rank, at))) => {
            // The receive has matched a message that is arriving.
            assert_eq!(grant, None);
            let matched = real.ops().find(|(_, op)| op.recv.token.owner == owner).and_then(|(_, op)| op.matched);
            let place = &mut model.unexpected[rank][slot][at].1;
            let before = std::mem::replace(place, Message::Half { met: Some(owner) });
            assert_eq!((matched, before), (Some(rank), Message::Half { met: None }));
        }
        (Posting::Granted { op, to, announcement, .. }, Some((rank, at))) => {
            let (number, message) = model.unexpected[rank][slot].remove(at);
            assert_eq!((to, announcement, message), (rank, number, Message::Announced));
            assert_eq!(real.op(op).recv.token.owner, owner);
            model.granted[to][slot].push((owner, false));
        }
        (Posting::Message { op, from, data, .. }, Some((rank, at))) => {
            assert_eq!(from, rank);
            let (number, message) = model.unexpected[from][slot].remove(at);
            assert_eq!((op.recv.token.owner, message, &data[..]), (owner, Message::Whole, &number.to_le_bytes()[..]));
            queued.retain(|(n, _)| *n != number);
            real.recycle(data);
        }
        (posting @ Posting::Offered { .. }, _) => panic!("nothing was offered, but: {posting:?}"),
        (posting, None) => panic!("no message waits, but: {posting:?}"),
    }
}

/// An announced message arrives.
fn announced(real: &mut Receives, model: &mut Model, queued: &mut Vec<(u32, u32)>, rank: Rank, slot: usize) {
    let arrival = real.arrive(rank, &envelope(slot, 4), true);
    if !model.granted[rank][slot].is_empty() {
        match (arrival, model.granted[rank][slot].remove(0)) {
            (Arrival::Op(op), (owner, false)) => {
                assert_eq!(real.op(op).recv.token.owner, owner);
                model.into[rank] = Some((owner, op));
            }
            (Arrival::Discard(None), (_, true)) => {}
            other => panic!("{other:?}"),
        }
        return;
    }
    match (arrival, model.unexpected[rank][slot].iter_mut().find(|(_, m)| *m == Message::Announced)) {
        (Arrival::Unexpected(index), Some((number, message))) => {
            assert!(real.append(index, &number.to_le_bytes()[..1]).is_none());
            *message = Message::Half { met: None };
            queued.push((*number, index));
        }
        (Arrival::Discard(None), None) => {}
        other => panic!("{other:?}"),
    }
}

fn lose(real: &mut Receives, model: &mut Model, queued: &mut Vec<(u32, u32)>, rank: Rank) {
    model.disconnected.insert(rank);
    let mut expected = BTreeSet::new();
    let is_disconnected =
        |ranks: &[Rank]| ranks.contains(&rank) && ranks.iter().all(|r| model.disconnected.contains(r));
    expected.extend(model.posted.iter().filter(|(_, ranks, _)| is_disconnected(ranks)).map(|(owner, ..)| *owner));
    model.posted.retain(|(owner, ..)| !expected.contains(owner));
    for slot in 0..SLOTS {
        let granted = std::mem::take(&mut model.granted[rank][slot]);
        expected.extend(granted.into_iter().filter(|(_, back)| !back).map(|(owner, _)| owner));
        model.unexpected[rank][slot].retain(|(number, message)| {
            if let Message::Half { met: Some(owner) } = message
                && *owner != CANCELLED
            {
                expected.insert(*owner);
            }
            let whole = *message == Message::Whole;
            queued.retain(|(n, _)| whole || n != number);
            whole
        });
    }
    expected.extend(model.into[rank].take().map(|(owner, _)| owner));
    let tokens = real.disconnect(rank, |r| model.disconnected.contains(&r));
    let owners: BTreeSet<u32> = tokens.iter().map(|(token, _)| token.owner).collect();
    assert_eq!(owners.len(), tokens.len(), "twice");
    assert_eq!(owners, expected);
}

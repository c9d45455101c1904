//! The ranks of each group, such as a host, reduce to a leader; the leaders do a ring allreduce; each leader broadcasts
//! the result in its group (Jia et al., "Highly scalable deep learning training system with mixed-precision: training
//! ImageNet in four minutes", arXiv 1807.11205, 2018). Best for few large hosts on a slow network with buffers too
//! small for `torus_2d`: a ring over `m` leaders has fewer steps than one over `P` ranks, and only leaders use the
//! network.
//!
//! Groups are the hosts, or the caller's groups. They may differ in size and their ranks may be in any order. The
//! lowest rank is the leader.
//!
//! Six ranks in groups of `0 1 2` and `3 4 5`: 1 and 2 send everything to 0, as do 4 and 5 to 3. Rank 0 sends half of
//! its group's sum to 3 and receives the other half of 3's; each adds its own, and they exchange these complete halves.
//! Then 0 sends everything to 1 and 2, and 3 to 4 and 5.
//!
//! If the ranks of each group share memory, a member publishes its elements there, part by part in the order in which
//! the ring needs them. Its leader fetches and reduces each part when the ring needs it, in rank order, and publishes
//! each part of the result when the ring has completed it. Only leaders send messages then.
//!
//! Steps: `2 (m - 1) + 2`, counting the concurrent receives of a leader from its `n - 1` members as one. A leader sends
//! `2 S (m - 1) / m` bytes to other groups and `S` to each of its members; a member sends `S`.

use super::super::grid::{SharedLink, find_group, groups};
use super::super::phases::{contribution, fan_out, sources};
use super::super::ring::Ring;
use super::super::{Algorithm, Case, Shape, Uses};
use super::reduce_broadcast;
use crate::error::Result;
use crate::publications::MAX_PUBLICATIONS;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Readers, Schedule, Side, Span};
use crate::types::Rank;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "hierarchical", generate, cost, uses: Uses::Groups };

/// The maximum number of parts that are published one by one. With more groups, all are one publication.
const MAX_PARTS: usize = MAX_PUBLICATIONS;

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let groups = groups(shape);
    let (home, leader, members) = find_group(&groups, shape.rank);
    let output = shape.output(0);
    let in_memory = uses_memory(shape, &groups) && !members.is_empty() && shape.count > 0;
    let mut current = contribution(&mut b, &sources(shape), 0, output.len, output);
    if shape.rank != leader {
        if in_memory {
            for part in parts(output, groups.len(), home + groups.len() - 1) {
                b.publish(Readers::One(leader as u32), current.slice(part.offset, part.len));
            }
            for (number, part) in (0..).zip(parts(output, groups.len(), home)) {
                b.fetch(leader, number, 0, part);
            }
            b.await_readers();
        } else {
            b.send(leader, current);
            b.recv(leader, output);
        }
        fan_out(&mut b, shape, output);
        return Ok(b.build());
    }
    let in_parts = in_memory && groups.len() <= MAX_PARTS;
    for &member in members.iter().filter(|_| !in_parts) {
        match in_memory {
            true => b.fetch_reduce(member, 0, 0, output, current, Side::Right),
            false => b.recv_reduce(member, output, current, Side::Right),
        }
        current = output;
    }
    let ring = Ring::new(groups.iter().map(|group| group[0]).collect(), leader);
    let chunk = |position| output.part(ring.len(), position);
    let own = chunk(ring.position());
    let mut fetched = 0;
    let complete = ring.reduce_scatter(&mut b, |b, position| {
        let into = chunk(position);
        let mut current = current.slice(into.offset, into.len);
        if in_parts && into.len > 0 {
            for &member in members {
                b.fetch_reduce(member, fetched, 0, into, current, Side::Right);
                current = into;
            }
            fetched += 1;
        }
        (current, into)
    });
    b.copy(complete, own);
    b.divide(own, shape.divisor());
    let publish = |b: &mut Builder, part: Span| {
        if in_parts && part.len > 0 {
            b.publish(Readers::All, part);
        }
    };
    publish(&mut b, own);
    ring.allgather(&mut b, own, chunk, publish);
    if in_memory {
        if !in_parts {
            b.publish(Readers::All, output);
        }
        b.await_readers();
    } else {
        members.iter().for_each(|&member| b.send(member, output));
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}

/// Whether ranks of a group share memory. If there is only one group, algorithms on nothing but shared memory are
/// better.
pub(super) fn uses_memory(shape: &Shape<'_>, groups: &[Vec<Rank>]) -> bool {
    shape.shared && groups.len() > 1
}

/// The parts in which `output` is published: that of each of `groups`, in the order in which their ring comes to it,
/// from the part of the group `first` on, modulo the number of groups.
fn parts(output: Span, groups: usize, first: usize) -> Vec<Span> {
    if groups > MAX_PARTS {
        return vec![output];
    }
    let parts = (0..groups).map(|distance| output.part(groups, (first + groups - distance) % groups));
    parts.filter(|part| part.len > 0).collect()
}

/// In the group `α + S/B + (n-1)γS`, between leaders `2(m-1)(α + S/(mB)) + (m-1)γS/m`, in the group `α + S/B`. With one
/// group it is the cost of `reduce_broadcast`.
fn cost(case: &Case<'_>) -> Cost {
    let groups = groups(case.shape);
    if groups.len() == 1 {
        return reduce_broadcast::cost(case);
    }
    let (ranks, leaders, bytes, gamma) = (case.ranks(), groups.len() as f64, case.bytes(), case.network.gamma);
    let longest = groups.iter().map(Vec::len).max().unwrap_or(1);
    let members = longest as f64 - 1.0;
    let segment = bytes.min(case.segment_bytes as f64);
    // Only leaders use the network.
    let shared = SharedLink { sharing: 1.0, ..SharedLink::near(case, longest, groups.len()) };
    let chunk = bytes / leaders;
    let rings = shared.rings(case, groups.len(), chunk);
    let between = 2.0 * leaders * (leaders - 1.0) * case.pieces(chunk);
    let reduced = (ranks - 1.0) * bytes;
    if uses_memory(case.shape, &groups) {
        let path = in_memory(case, members, leaders, rings);
        return Cost { path, messages: between, sent: 2.0 * reduced, reduced };
    }
    let mut path = rings;
    if members > 0.0 && bytes > 0.0 {
        let link = SharedLink::in_groups(case, longest).link;
        // On one host each member has its own link to the leader; otherwise they share the leader's network card.
        let (at_once, in_turn) = if longest <= case.network.per_host { (members, 1.0) } else { (1.0, members) };
        let arrive = |bytes: f64| in_turn * bytes / link.bandwidth;
        path += link.latency
            + (arrive(bytes) + at_once * gamma * segment).max(segment / link.bandwidth + members * gamma * bytes);
        path += link.latency + arrive(bytes);
    }
    let messages = 2.0 * (ranks - leaders) * case.pieces(bytes) + between;
    Cost { path, messages, sent: 2.0 * reduced, reduced }
}

/// Seconds if each group of a leader and `members` shares memory, and the ring of `leaders` alone takes `rings`. A
/// leader receives the first part when it has reduced that part and the one that it sends; it goes on to reduce the
/// others before it combines what it has received. With too many parts it reduces all of them first. At the end the
/// members fetch the last part.
fn in_memory(case: &Case<'_>, members: f64, leaders: f64, rings: f64) -> f64 {
    let (bytes, memory) = (case.bytes(), &case.network.memory);
    if members == 0.0 || bytes <= 0.0 {
        return rings;
    }
    let part = bytes / leaders;
    let in_parts = leaders <= MAX_PARTS as f64;
    let published = if in_parts { part } else { bytes };
    // How parts are published for one rank depends on whether there is room for all of them.
    let combine = members * (memory.fetch(bytes, published, false) + case.network.gamma * published);
    let step = rings / (2.0 * (leaders - 1.0));
    let combined = if in_parts { (2.0 * combine).max(leaders * combine - step) } else { combine };
    let first = memory.publish(bytes, false) * published / bytes + memory.near.signal + combined;
    let last = memory.publish(published, false) + memory.near.signal + memory.fetch(published, published, false);
    first + rings + last + memory.readers(bytes, false, false)
}

//! The ranks of each group, such as a host, reduce to a leader; every leader sends its group's sum to all other leaders
//! at once, and reduces all sums in the order of the groups; each leader passes the result to its group. Best for a few
//! large hosts and buffers for which the latency between hosts counts more than the bytes: one message between hosts is
//! on the path, where the ring of `m` leaders of `hierarchical` has `2 (m - 1)`.
//!
//! Groups are the hosts, or the caller's groups. They may differ in size and their ranks may be in any order. The
//! lowest rank is the leader.
//!
//! Six ranks in groups of `0 1 2` and `3 4 5`: 1 and 2 send everything to 0, as do 4 and 5 to 3. Ranks 0 and 3 send
//! each other their groups' sums, and both add that of 3 to that of 0. Then 0 sends everything to 1 and 2, and 3 to 4
//! and 5.
//!
//! If the ranks of each group share memory, a member publishes its elements there, part by part. Its leader fetches and
//! reduces each part in rank order, so that it can send the first parts meanwhile, and publishes the parts of the
//! result. Only leaders send messages then.
//!
//! Steps: 3, counting the concurrent receives of a leader from its `n - 1` members as one. A leader sends `S (m - 1)`
//! bytes to other groups and `S` to each of its members, and has `m` buffers of scratch memory; a member sends `S`.
//! Between the leaders this is the allgather `direct`, and every leader does all reductions instead of a share of them,
//! as in `recursive_doubling` (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", 2005), in one step instead of `lg m`.

use super::super::grid::{SharedLink, find_group, groups};
use super::super::phases::{contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use super::{hierarchical, reduce_broadcast};
use crate::error::Result;
use crate::schedule::cost::{Cost, Network};
use crate::schedule::{Builder, Readers, Schedule, Side, Span, split};
use crate::types::Rank;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "hierarchical_direct", generate, cost, uses: Uses::Groups };

/// The minimum number of elements of a part that is fetched or published at once, so that signals take a small part of
/// the time.
const MIN_PART_ELEMENTS: usize = 8192;

/// The maximum number of publications of a rank.
const MAX_PARTS: usize = 32;

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let groups = groups(shape);
    let (home, leader, members) = find_group(&groups, shape.rank);
    let (sources, output) = (sources(shape), shape.output(0));
    let in_memory = hierarchical::uses_memory(shape, &groups) && !members.is_empty() && shape.count > 0;
    if shape.rank != leader {
        let own = contribution(&mut b, &sources, 0, output.len, output);
        if in_memory {
            let parts = parts(output.len);
            for &(offset, len) in &parts {
                b.publish(Readers::One(leader as u32), own.slice(offset, len));
            }
            for (number, (offset, len)) in (0..).zip(parts) {
                b.fetch(leader, number, 0, output.slice(offset, len));
            }
            b.await_readers();
        } else {
            b.send(leader, own);
            b.recv(leader, output);
        }
        fan_out(&mut b, shape, output);
        return Ok(b.build());
    }
    // The group's sum is not in the output, where the reductions would have to wait until it is sent.
    let is_sum = sources.len() > 1 || !members.is_empty();
    let target = if is_sum && groups.len() > 1 { b.scratch(output.len) } else { output };
    let mut own = contribution(&mut b, &sources, 0, output.len, target);
    let parts = if in_memory { parts(output.len) } else { vec![(0, output.len)] };
    for (number, &(offset, len)) in (0..).zip(&parts) {
        let (mut with, into) = (own.slice(offset, len), target.slice(offset, len));
        for &member in members {
            if in_memory {
                b.fetch_reduce(member, number, 0, into, with, Side::Right);
            } else {
                b.recv_reduce(member, into, with, Side::Right);
            }
            with = into;
        }
    }
    if !members.is_empty() {
        own = target;
    }
    let sums = exchange(&mut b, &groups, home, own);
    let mut sum = sums[0];
    for (group, &other) in sums.iter().enumerate().take(sums.len() - 1).skip(1) {
        // The own group's sum may be in the output until it is reduced.
        let into = if group < home { sum } else { output };
        b.reduce(sum, other, into);
        sum = into;
    }
    for &(offset, len) in &parts {
        let [sum, into] = [sum, output].map(|all| all.slice(offset, len));
        match &sums[..] {
            [_, .., last] => b.reduce(sum, last.slice(offset, len), into),
            _ => b.copy(sum, into),
        }
        b.divide(into, shape.divisor());
        if in_memory {
            b.publish(Readers::All, into);
        }
    }
    if in_memory {
        b.await_readers();
    } else {
        members.iter().for_each(|&member| b.send(member, output));
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}

/// Offsets and lengths of the parts in which `len` elements are fetched and published: such a step is not cut into
/// segments.
fn parts(len: usize) -> Vec<(usize, usize)> {
    let number = (len / MIN_PART_ELEMENTS).clamp(1, MAX_PARTS);
    (0..number).map(|index| split(len, number, index)).collect()
}

/// Sends `own`, the sum of group `home`, to the leaders of all other groups. Returns the sums of all groups.
fn exchange(b: &mut Builder, groups: &[Vec<Rank>], home: usize, own: Span) -> Vec<Span> {
    let number = groups.len();
    // At any time all leaders receive the same amount.
    for distance in 1..number {
        b.send(groups[(home + distance) % number][0], own);
    }
    // All messages may arrive at the same time, in any order.
    let sums: Vec<Span> = (0..number).map(|group| if group == home { own } else { b.scratch(own.len) }).collect();
    for from in (1..number).map(|distance| (home + number - distance) % number) {
        b.recv(groups[from][0], sums[from]);
    }
    sums
}

/// In the group `α + S/B + (n-1)γS`, between leaders `α + (m-1)(S/B + γS)`, in the group `α + S/B`; the segments of a
/// message are pipelined through all three. With one group it is the cost of `reduce_broadcast`.
fn cost(case: &Case<'_>) -> Cost {
    let groups = groups(case.shape);
    if groups.len() == 1 {
        return reduce_broadcast::cost(case);
    }
    let (ranks, leaders, bytes) = (case.ranks(), groups.len() as f64, case.bytes());
    let longest = groups.iter().map(Vec::len).max().unwrap_or(1);
    let exchanged = leaders * (leaders - 1.0);
    let (sent, reduced) =
        (2.0 * (ranks - leaders) * bytes + exchanged * bytes, (ranks - leaders) * bytes + exchanged * bytes);
    // Only leaders use the network.
    let network = Network { per_host: (case.network.per_host / longest).max(1), ..*case.network };
    let between = Case { shape: &Shape { size: groups.len(), ..*case.shape }, network: &network, ..*case };
    if hierarchical::uses_memory(case.shape, &groups) {
        let path = in_memory(case, longest as f64 - 1.0, &between);
        return Cost { path, messages: exchanged * case.pieces(bytes), sent, reduced };
    }
    let messages = (2.0 * (ranks - leaders) + exchanged) * case.pieces(bytes);
    Cost { path: by_messages(case, longest, &between), messages, sent, reduced }
}

/// Seconds for the messages of `bytes` between leaders.
fn transfer(between: &Case<'_>, bytes: f64) -> f64 {
    let others = between.ranks() - 1.0;
    between.at_once(others * bytes, bytes, others * between.pieces(bytes), true)
}

/// Seconds if each group of a leader and `members` shares memory. What is fetched, sent, reduced and published at once
/// is a part, or a segment if that is longer. Whatever takes longest delays the following ones: the network, the
/// leader, or its members.
fn in_memory(case: &Case<'_>, members: f64, between: &Case<'_>) -> f64 {
    let (bytes, memory, gamma) = (case.bytes(), &case.network.memory, case.network.gamma);
    if members == 0.0 || bytes <= 0.0 {
        return by_messages(case, 1, between);
    }
    let others = between.ranks() - 1.0;
    let part = bytes / (case.shape.count / MIN_PART_ELEMENTS).clamp(1, MAX_PARTS) as f64;
    let unit = part.max(case.segment(bytes));
    // These are the times for `of` of the bytes: the leader's time to combine those of a member, those of the other
    // groups and to publish the result, and a member's to fetch it.
    let inside = |of: f64| of * (memory.fetch(bytes, part, false) / part + gamma);
    let outside = |of: f64| of * (others * gamma + memory.publish(part, false) / part);
    let fetch = |of: f64| of * memory.fetch(part, part, false) / part;
    // How parts are published for one rank depends on whether there is room for all of them.
    let publish = memory.publish(bytes, false) * part / bytes;
    let signals = publish + 2.0 * memory.near.signal + memory.readers(bytes, false, false);
    // All fetches from the first members may come before any from the last.
    let first = (members - 1.0) * inside(bytes) + inside(unit) + transfer(between, unit) + outside(unit) + fetch(unit);
    let rest = bytes - unit;
    let wire = transfer(between, bytes) - transfer(between, unit);
    signals + first + wire.max(inside(rest) + outside(rest)).max(fetch(rest))
}

/// Seconds if messages are sent within groups of at most `longest` ranks.
fn by_messages(case: &Case<'_>, longest: usize, between: &Case<'_>) -> f64 {
    let (bytes, gamma) = (case.bytes(), case.network.gamma);
    if bytes <= 0.0 {
        return 0.0;
    }
    let (segment, members, others) = (case.segment(bytes), longest as f64 - 1.0, between.ranks() - 1.0);
    let link = SharedLink::in_groups(case, longest).link;
    // On one host each member has its own link to the leader; otherwise they share the leader's network card.
    let in_turn = if longest <= case.network.per_host { members.min(1.0) } else { members };
    let reductions = (members + others) * gamma;
    let inside = if members > 0.0 { 2.0 * (link.latency + in_turn * segment / link.bandwidth) } else { 0.0 };
    let first = inside + transfer(between, segment) + reductions * segment;
    let rest = bytes - segment;
    first
        + (in_turn * rest / link.bandwidth)
            .max(reductions * rest)
            .max(transfer(between, bytes) - transfer(between, segment))
}

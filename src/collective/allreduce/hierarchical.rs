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
//! Steps: `2 (m - 1) + 2`, counting the concurrent receives of a leader from its `n - 1` members as one. A leader sends
//! `2 S (m - 1) / m` bytes to other groups and `S` to each of its members; a member sends `S`.

use super::super::grid::{SharedLink, groups};
use super::super::phases::{contribution, fan_out, sources};
use super::super::ring::Ring;
use super::super::{Algorithm, Case, Shape, Uses};
use super::reduce_broadcast;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "hierarchical", generate, cost, uses: Uses::Groups };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let groups = groups(shape);
    let group = groups.iter().find(|group| group.contains(&shape.rank)).expect("every rank is in a group");
    let (leader, members) = (group[0], &group[1..]);
    let output = shape.output(0);
    let mut current = contribution(&mut b, &sources(shape), 0, output.len, output);
    if shape.rank != leader {
        b.send(leader, current);
        b.recv(leader, output);
        fan_out(&mut b, shape, output);
        return Ok(b.build());
    }
    for &member in members {
        b.recv_reduce(member, output, current, Side::Right);
        current = output;
    }
    let ring = Ring::new(groups.iter().map(|group| group[0]).collect(), leader);
    let chunk = |position| output.part(ring.len(), position);
    let own = chunk(ring.position());
    let complete = ring.reduce_scatter(&mut b, |_, position| {
        let into = chunk(position);
        (current.slice(into.offset, into.len), into)
    });
    b.copy(complete, own);
    b.divide(own, shape.divisor());
    ring.allgather(&mut b, own, chunk, |_, _| ());
    for &member in members {
        b.send(member, output);
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
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
    let mut path = 0.0;
    if members > 0.0 && bytes > 0.0 {
        let link = SharedLink::in_groups(case, longest).link;
        // On one host each member has its own link to the leader; otherwise they share the leader's network card.
        let (at_once, in_turn) = if longest <= case.network.per_host { (members, 1.0) } else { (1.0, members) };
        let arrive = |bytes: f64| in_turn * bytes / link.bandwidth;
        path += link.latency
            + (arrive(bytes) + at_once * gamma * segment).max(segment / link.bandwidth + members * gamma * bytes);
        path += link.latency + arrive(bytes);
    }
    // Only leaders use the network.
    let shared = SharedLink { sharing: 1.0, ..SharedLink::near(case, longest, groups.len()) };
    let chunk = bytes / leaders;
    path += shared.rings(case, groups.len(), chunk);
    let messages = 2.0 * (ranks - leaders) * case.pieces(bytes) + 2.0 * leaders * (leaders - 1.0) * case.pieces(chunk);
    let reduced = (ranks - 1.0) * bytes;
    Cost { path, messages, sent: 2.0 * reduced, reduced }
}

//! Spanning trees packed into the graph of links; each carries a share of the buffer (Wang, Venkataraman, Phanishayee,
//! Thelin, Devanur and Stoica, "Blink: fast and generic collectives for distributed ML", MLSys 2020). Best where links
//! differ in bandwidth: a ring is as fast as its slowest link, while trees avoid it.
//!
//! In each tree a share is reduced to the root and broadcast, so each edge is used once in both directions. Shares are
//! proportional to the trees' rates, chosen such that no link is overloaded (`packing.rs`). The bandwidths come from
//! the caller or from a measurement. If all links are equal, the best packing is known: every rank is the root of a
//! star.
//!
//! Six ranks, equal links: the buffer has six shares; rank 0 receives the first share of every rank and returns the
//! sum, rank 1 the second, and so on. With links only between neighbours of a ring, six trees are packed: each is the
//! ring without one edge, with the root in the middle. Rank 0 reduces the share of the tree 3 - 2 - 1 - 0 - 5 - 4, and
//! so on; every link carries five sixths of the buffer in each direction.
//!
//! Steps: twice the height of the highest tree; 2 for stars, where the `P - 1` concurrent messages to a root count as
//! one. All ranks together send each tree's share `2 (P - 1)` times, so a rank sends `2 S (P - 1) / P` bytes on
//! average. The time for a large buffer is `S` divided by the total rate of the trees, which is at most that of the
//! minimum cut of the graph.

mod packing;

use super::super::{Algorithm, Case, Shape, Uses};
use super::branches::{self, Branch};
use crate::error::{Error, Result};
use crate::schedule::cost::{Cost, Network};
use crate::schedule::{Schedule, Span};
use packing::Packing;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "spanning_trees", generate, cost, uses: Uses::Links };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    if shape.links.is_empty() {
        return Ok(branches::allreduce(shape, &stars(shape)));
    }
    Ok(branches::allreduce(shape, &trees(shape, &pack(shape)?)))
}

fn pack(shape: &Shape<'_>) -> Result<Packing> {
    packing::pack(shape.size, shape.links).map_err(|(from, to)| {
        Error::invalid(format!(
            "allreduce spanning_trees: no path of links in both directions connects rank {from} and rank {to}"
        ))
    })
}

/// The schedules of all ranks with links given. Computes the packing once, because it is expensive.
pub(in crate::collective) fn generate_all(shapes: &[Shape<'_>]) -> Result<Vec<Schedule>> {
    let packing = pack(&shapes[0])?;
    Ok(shapes.iter().map(|shape| branches::allreduce(shape, &trees(shape, &packing))).collect())
}

/// Every rank is the root of a star for its share. The messages of this rank are ordered such that in each step every
/// rank sends to one rank and receives from one.
fn stars(shape: &Shape<'_>) -> Vec<Branch> {
    let share = |rank| shape.output(0).part(shape.size, rank);
    let leaf = |root| Branch { range: share(root), parent: Some(root), children: Vec::new() };
    let others = || 1..shape.size;
    let children = others().map(|distance| shape.before(distance)).collect();
    let own = Branch { range: share(shape.rank), parent: None, children };
    others().map(|distance| leaf(shape.after(distance))).chain([own]).collect()
}

/// Returns this rank's position in each tree of a packing.
fn trees(shape: &Shape<'_>, packing: &Packing) -> Vec<Branch> {
    let output = shape.output(0);
    // The product may exceed 64 bits.
    let cut = |weight: u64| (output.len as u128 * u128::from(weight) / u128::from(packing.weight())) as usize;
    let mut begin = 0;
    let branch = |tree: &packing::Tree| {
        let range: Span = output.slice(cut(begin), cut(begin + tree.weight) - cut(begin));
        begin += tree.weight;
        Branch { range, parent: tree.parents[shape.rank], children: tree.children(shape.rank) }
    };
    packing.trees.iter().map(branch).collect()
}

/// Stars take `2(α + (P-1)S/(PB)) + γS/P`, or the reductions from the first share to the last if they take longer.
/// Trees for given links take `2hα + S/R`, where `R` is the total rate of the trees, scaled such that the fastest link
/// has the bandwidth of the network's fastest link.
fn cost(case: &Case<'_>) -> Cost {
    let (ranks, bytes, network) = (case.ranks(), case.bytes(), case.network);
    let reduced = (ranks - 1.0) * bytes;
    let total = |path, messages| Cost { path, messages, sent: 2.0 * reduced, reduced };
    if case.shape.links.is_empty() {
        let share = bytes / ranks;
        let messages = 2.0 * ranks * (ranks - 1.0) * case.pieces(share);
        return total(stars_path(case, share), messages);
    }
    let Ok(packing) = packing::pack(case.shape.size, case.shape.links) else { return Case::unpriced(case) };
    let links = [network.local, network.remote];
    let latency = links.iter().map(|link| link.latency).fold(0.0, f64::max);
    let fastest = links.iter().map(|link| link.bandwidth).fold(0.0, f64::max);
    let rate = packing.rate() / packing.fastest as f64 * fastest;
    let height = packing.trees.iter().map(|tree| tree.height()).max().unwrap_or(0) as f64;
    let share = |weight: u64| bytes * weight as f64 / packing.weight() as f64;
    let pieces: f64 = packing.trees.iter().map(|tree| case.pieces(share(tree.weight))).sum();
    let longest = packing.trees.iter().map(|tree| share(tree.weight)).fold(0.0, f64::max);
    let segment = longest.min(case.segment_bytes as f64);
    let hop = latency + segment * (1.0 / fastest + network.gamma);
    total(2.0 * height * hop + bytes / rate, 2.0 * (ranks - 1.0) * pieces)
}

/// Seconds to send every rank's share to its root, reduce it there, and send it back.
fn stars_path(case: &Case<'_>, share: f64) -> f64 {
    let Network { gamma, per_host, .. } = *case.network;
    let (local, remote) = (case.network.near(), case.network.far());
    let others = case.ranks() - 1.0;
    if others <= 0.0 || share <= 0.0 {
        return 0.0;
    }
    let segment = share.min(case.segment_bytes as f64);
    let reduce = others * gamma * share;
    let here = case.ranks().min(per_host as f64);
    if here > others {
        // Each pair of ranks has its own link: all shares arrive at the same time.
        let up = (share / local.bandwidth + others * gamma * segment).max(segment / local.bandwidth + reduce);
        let down = if segment < share { segment } else { share } / local.bandwidth;
        return 2.0 * local.latency + (up + down).max(2.0 * share / local.bandwidth);
    }
    // All ranks of a host send to other hosts through its network card, one after the other.
    let card = ((others + 1.0 - here) * here * share / remote.bandwidth).max(share / local.bandwidth);
    let first = segment / remote.bandwidth;
    // In both directions a rank sends as many messages as it receives.
    let messages = case.leaving() * others * case.pieces(share);
    let busy = remote.both(messages);
    let one_way = case.outside(remote, card * remote.bandwidth, share, messages, true);
    (2.0 * one_way + (gamma * segment).max(first + reduce - card)).max(2.0 * busy + reduce)
}

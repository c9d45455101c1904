//! A grid of rows and columns: a reduce-scatter along the row, an allreduce of the resulting part along the column, an
//! allgather along the row, all in rings (Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a
//! flash", arXiv 1811.05233, 2018). Best for large buffers on hosts with several ranks. The hosts are then the rows:
//! all ranks of a host use its network card at the same time, and each sends only `S / n` bytes over it.
//!
//! Rows are the hosts, or the caller's groups, or given by the caller's `dims` (length of a row, number of rows). If
//! there is only one group, or one per rank, the grid is as nearly square as possible.
//!
//! Six ranks in rows of `0 1 2` and `3 4 5`: after two steps ranks 0 and 3 have the sum of their rows' first thirds, 1
//! and 4 of the second, 2 and 5 of the last. 0 and 3 exchange sixths, each completes one and returns it; so do 1 and 4,
//! and 2 and 5. In two more steps the complete thirds move around the rows.
//!
//! Rows may differ in length. Each cuts the buffer according to its own length. A column exists for every range that no
//! row's cut crosses; it consists of the rank in each row that owns the range. Rows of two and four ranks, 8 elements:
//! the first row has a cut at 4, the second at 2, 4 and 6, so there are four ranges and columns: rank 0 shares the
//! first with rank 2 and the second with rank 3.
//!
//! If rows are hosts whose ranks share memory, the reduce-scatter and the allgather along a row are those of
//! `shared_slices`: every rank publishes a chunk of its elements for each other rank of the row and reduces its own
//! chunk of those of all, in rank order, and later publishes the complete chunk and fetches the others. Messages are
//! sent only along columns.
//!
//! Steps: `2 (n - 1) + 2 (m - 1)` for `m` rows of at most `n`. With equal rows every rank sends `2 S (n - 1) / n + 2 (S
//! / n) (m - 1) / m` bytes, which is `2 S (P - 1) / P`.

use std::collections::BTreeSet;

use super::super::grid::Grid;
use super::super::phases::{contribution, fan_out, sources};
use super::super::ring::Ring;
use super::super::shared::{number, reduce_in_order};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Readers, Schedule, Span, split};
use crate::types::Rank;

const NAME: &str = "torus_2d";

pub(super) const ALGORITHM: Algorithm = Algorithm { name: NAME, generate, cost, uses: Uses::Groups };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(over(shape, &Grid::flat(shape, NAME)?))
}

fn cost(case: &Case<'_>) -> Cost {
    // Without a grid `generate` fails, too.
    Grid::flat(case.shape, NAME).map_or_else(|_| Case::unpriced(case), |grid| price(case, &grid))
}

/// Generates the schedule for a grid.
pub(super) fn over(shape: &Shape<'_>, grid: &Grid) -> Schedule {
    let mut b = Builder::new();
    let sources = sources(shape);
    let output = shape.output(0);
    let (row, position) = grid.find(shape.rank);
    let ring = Ring::new(grid.rows[row].clone(), shape.rank);
    let chunk = |position| output.part(ring.len(), position);
    let own = chunk(position);
    let in_memory = grid.shares_rows(shape) && ring.len() > 1 && shape.count > 0;
    let current = if in_memory {
        let all = contribution(&mut b, &sources, 0, output.len, output);
        // In the order of `number`.
        for reader in (1..ring.len()).map(|distance| (position + ring.len() - distance) % ring.len()) {
            let Span { offset, len, .. } = chunk(reader);
            b.publish(Readers::One(grid.rows[row][reader] as u32), all.slice(offset, len));
        }
        let mut current = all.slice(own.offset, own.len);
        // The first operand may be where the result is.
        if current == own && position > 0 {
            current = b.scratch(own.len);
            b.copy(own, current);
        }
        let place = |from| (number(ring.len(), grid.find(from).1, position), 0);
        reduce_in_order(&mut b, shape.rank, grid.rows[row].iter().copied(), place, current, own);
        own
    } else {
        ring.reduce_scatter(&mut b, |b, position| {
            let into = chunk(position);
            (contribution(b, &sources, into.offset, into.len, into), into)
        })
    };
    for (offset, len) in uncut(shape, grid, own) {
        let owners = grid.rows.iter().map(|row| row[part_at(output.len, row.len(), offset)]).collect();
        let column = Column { owners, row, extents: &grid.columns };
        column.allreduce(&mut b, shape, current.slice(offset - own.offset, len), output.slice(offset, len));
    }
    if in_memory {
        let number = b.publish(Readers::All, own);
        // All in one order: a chunk may be written piece by piece, as fast as all others read it.
        for other in (0..ring.len()).filter(|other| *other != position) {
            b.fetch(grid.rows[row][other], number, 0, chunk(other));
            fan_out(&mut b, shape, chunk(other));
        }
        b.await_readers();
    } else {
        ring.allgather(&mut b, own, chunk, |b, chunk| fan_out(b, shape, chunk));
    }
    b.build()
}

/// Cuts `own` wherever a row cuts the buffer: offset and length of each piece.
fn uncut(shape: &Shape<'_>, grid: &Grid, own: Span) -> Vec<(usize, usize)> {
    let mut lengths: Vec<usize> = grid.rows.iter().map(Vec::len).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let cuts = lengths.iter().flat_map(|&parts| (0..parts).map(move |index| split(shape.count, parts, index).0));
    let mut cuts: Vec<usize> = cuts.filter(|cut| (own.offset..own.end()).contains(cut)).chain([own.end()]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|ends| (ends[0], ends[1] - ends[0])).collect()
}

/// The index of the part that holds element `index` if `len` elements are cut by [`split`].
fn part_at(len: usize, parts: usize, index: usize) -> usize {
    let (each, longer) = (len / parts, len % parts);
    let boundary = longer * (each + 1);
    if index < boundary { index / (each + 1) } else { longer + (index - boundary) / each }
}

/// The ranks that own one range: one rank per row.
struct Column<'a> {
    owners: Vec<Rank>,
    /// The row of this rank.
    row: usize,
    extents: &'a [usize],
}

impl Column<'_> {
    /// A reduce-scatter in each dimension, of the part that the previous dimension left, then the allgathers in reverse
    /// order. `current` is this rank's contribution to `range`, which receives the result.
    fn allreduce(&self, b: &mut Builder, shape: &Shape<'_>, mut current: Span, mut range: Span) {
        let mut stride = 1;
        let mut levels = Vec::new();
        for &extent in self.extents {
            let first = self.row - self.row / stride % extent * stride;
            let ranks = (0..extent).map(|index| self.owners[first + index * stride]).collect();
            let ring = Ring::new(ranks, shape.rank);
            let whole = range;
            current = ring.reduce_scatter(b, |_, position| {
                let part = whole.part(extent, position);
                (current.slice(part.offset - whole.offset, part.len), part)
            });
            range = whole.part(extent, ring.position());
            levels.push((ring, whole));
            stride *= extent;
        }
        b.copy(current, range);
        b.divide(range, shape.divisor());
        fan_out(b, shape, range);
        for (ring, whole) in levels.into_iter().rev() {
            let part = |position| whole.part(ring.len(), position);
            ring.allgather(b, part(ring.position()), part, |b, part| fan_out(b, shape, part));
        }
    }
}

/// In each dimension `2(n-1)(α + s/(nB)) + (n-1)γs/n` for the `s` bytes of `S` that the previous dimensions have left;
/// the ranks of a host share its network card.
pub(super) fn price(case: &Case<'_>, grid: &Grid) -> Cost {
    let (ranks, rows, bytes) = (case.ranks(), grid.rows.len() as f64, case.bytes());
    let in_memory = grid.shares_rows(case.shape);
    let along = |row: &Vec<Rank>| match in_memory {
        true => in_shared_memory(case, row.len() as f64),
        false => grid.row_link(case).rings(case, row.len(), bytes / row.len() as f64),
    };
    let mut path = grid.rows.iter().map(along).fold(0.0, f64::max);
    let of_row = |row: &Vec<Rank>| row.len() as f64 * (row.len() as f64 - 1.0) * case.pieces(bytes / row.len() as f64);
    let mut messages = if in_memory { 0.0 } else { 2.0 * grid.rows.iter().map(of_row).sum::<f64>() };
    let ranges = ranges(grid);
    let mut part = bytes;
    let mut before = 1;
    for &extent in &grid.columns {
        part /= extent as f64;
        let shared = grid.column_link(case, before, extent);
        // A host's ranks together have all of the buffer; a rank that does not share its card has most if its row is
        // short.
        let length = if shared.sharing > 1.0 { grid.longest() } else { grid.shortest() };
        path += shared.rings(case, extent, part / length as f64);
        messages += 2.0 * ranges * rows * (extent as f64 - 1.0) * case.pieces(part / ranges);
        before *= extent;
    }
    let is_cut = bytes / grid.longest() as f64 > case.segment_bytes as f64;
    if is_cut && !grid.columns.is_empty() && case.network.per_host < case.shape.size {
        // On a network card, segments of different dimensions delay each other.
        path *= case.constants.torus_cut + case.constants.torus_cut_each * grid.columns.len() as f64;
    }
    let reduced = (ranks - 1.0) * bytes;
    Cost { path, messages, sent: 2.0 * reduced, reduced }
}

/// Seconds along a row of `length` ranks that share memory, as for `shared_slices`.
fn in_shared_memory(case: &Case<'_>, length: f64) -> f64 {
    let (bytes, others, slice) = (case.bytes(), length - 1.0, case.bytes() / length);
    if others == 0.0 {
        return 0.0;
    }
    // How slices are published for one rank each depends on whether there is room for all of them. The own slice is
    // not.
    let fetches = [(others, bytes, slice), (others, slice, slice)];
    case.shared_path(2.0, &[(others / length, bytes), (1.0, slice)], &fetches, others * slice)
}

/// The number of ranges between the rows' cuts: the number of different fractions `i / n`.
fn ranges(grid: &Grid) -> f64 {
    let mut lengths: Vec<usize> = grid.rows.iter().map(Vec::len).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let cuts = lengths.iter().flat_map(|&n| (0..n).map(move |i| (i / gcd(i, n), n / gcd(i, n))));
    cuts.collect::<BTreeSet<_>>().len() as f64
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

//! Groups of ranks, such as hosts, and grids of ranks.

use std::collections::BTreeMap;

use super::{Case, Shape};
use crate::error::{Error, Result};
use crate::schedule::cost::Hop;
use crate::types::Rank;

/// The groups of a call, ordered by lowest rank; the ranks of each are in ascending order.
pub(super) fn groups(shape: &Shape<'_>) -> Vec<Vec<Rank>> {
    if shape.groups.is_empty() {
        return vec![(0..shape.size).collect()];
    }
    let mut by_number = BTreeMap::<u32, Vec<Rank>>::new();
    for (rank, number) in shape.groups.iter().enumerate() {
        by_number.entry(*number).or_default().push(rank);
    }
    let mut groups: Vec<_> = by_number.into_values().collect();
    groups.sort_unstable_by_key(|group| group[0]);
    groups
}

/// The index of the group of `rank`, its leader, which is its lowest rank, and its other members.
pub(super) fn find_group(groups: &[Vec<Rank>], rank: Rank) -> (usize, Rank, &[Rank]) {
    let home = groups.iter().position(|group| group.contains(&rank)).expect("every rank is in a group");
    (home, groups[home][0], &groups[home][1..])
}

/// A grid of ranks: rows, which may differ in length, and further dimensions in which the rows are arranged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Every rank is in exactly one row.
    pub rows: Vec<Vec<Rank>>,
    /// The extents of the dimensions above the rows; adjacent rows are neighbours in the first. The product is the
    /// number of rows.
    pub columns: Vec<usize>,
    /// Whether the rows are the caller's groups or the hosts.
    grouped: bool,
}

impl Grid {
    /// The grid with the caller's `dims`, of any number of dimensions.
    fn of_dims(shape: &Shape<'_>, dims: &[usize]) -> Self {
        let length = dims.first().copied().unwrap_or(1);
        let rows = (0..shape.size).step_by(length).map(|first| (first..first + length).collect()).collect();
        Self { rows, columns: dims.get(1..).unwrap_or_default().to_vec(), grouped: false }
    }

    /// The groups as rows. `None` if there is only one group, or one per rank, since no grid follows from these.
    fn of_groups(shape: &Shape<'_>) -> Option<Self> {
        let rows = groups(shape);
        (1 < rows.len() && rows.len() < shape.size).then(|| Self { columns: vec![rows.len()], rows, grouped: true })
    }

    /// A grid in two dimensions: the caller's `dims`, else the groups, else as nearly square as possible.
    pub fn flat(shape: &Shape<'_>, algorithm: &str) -> Result<Self> {
        match shape.dims.len() {
            0 => Ok(Self::of_groups(shape).unwrap_or_else(|| Self::of_dims(shape, &square(shape.size)))),
            2 => Ok(Self::of_dims(shape, shape.dims)),
            n => Err(Error::invalid(format!(
                "{} {algorithm}: dims has {n} entries; it must have 2, or be empty for the library's choice",
                shape.collective.name()
            ))),
        }
    }

    /// Like [`Grid::flat`], but all rows have the same length; groups of different sizes are ignored.
    pub fn rectangular(shape: &Shape<'_>, algorithm: &str) -> Result<Self> {
        let grid = Self::flat(shape, algorithm)?;
        let equal = grid.rows.iter().all(|row| row.len() == grid.rows[0].len());
        Ok(if equal { grid } else { Self::of_dims(shape, &square(shape.size)) })
    }

    /// A grid in several dimensions: the caller's `dims`, else the groups and the prime factors of their number, else
    /// the prime factors of the number of ranks.
    pub fn deep(shape: &Shape<'_>) -> Self {
        if !shape.dims.is_empty() {
            return Self::of_dims(shape, shape.dims);
        }
        match Self::of_groups(shape) {
            Some(grid) => Self { columns: prime_factors(grid.rows.len()), ..grid },
            None => Self::of_dims(shape, &prime_factors(shape.size)),
        }
    }

    /// Whether the ranks of each row share memory.
    pub fn shares_rows(&self, shape: &Shape<'_>) -> bool {
        self.grouped && shape.shared
    }

    /// The row of `rank` and its position in that row.
    pub fn find(&self, rank: Rank) -> (usize, usize) {
        let position = |row: &Vec<Rank>| row.iter().position(|other| *other == rank);
        let mut rows = self.rows.iter().enumerate();
        rows.find_map(|(index, row)| Some((index, position(row)?))).expect("every rank is in the grid")
    }

    /// The length of the longest row.
    pub fn longest(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(1)
    }

    /// The length of the shortest row.
    pub fn shortest(&self) -> usize {
        self.rows.iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The link between neighbours in a row.
    pub fn row_link(&self, case: &Case<'_>) -> SharedLink {
        if self.grouped {
            SharedLink::in_groups(case, self.longest())
        } else {
            SharedLink::near(case, 1, self.longest())
        }
    }

    /// The link between neighbours in a column dimension of `extent`; `before` is the product of the extents of the
    /// dimensions between the rows and this one.
    pub fn column_link(&self, case: &Case<'_>, before: usize, extent: usize) -> SharedLink {
        SharedLink::near(case, self.longest() * before, extent)
    }
}

/// The link between neighbours in a dimension when all ranks send to theirs at the same time.
#[derive(Clone, Copy)]
pub(super) struct SharedLink {
    pub link: Hop,
    /// Number of ranks that share the link's bandwidth.
    pub sharing: f64,
}

impl SharedLink {
    /// Within groups of at most `longest` ranks: a group that fits on a host is assumed to be on one host.
    pub fn in_groups(case: &Case<'_>, longest: usize) -> Self {
        let network = case.network;
        match longest <= network.per_host && network.per_host > 1 {
            true => Self { link: network.near(), sharing: 1.0 },
            false => Self::near(case, 1, longest),
        }
    }

    /// Between neighbours `stride` ranks apart in a dimension of `extent`: local if the hosts consist of whole such
    /// dimensions.
    pub fn near(case: &Case<'_>, stride: usize, extent: usize) -> Self {
        let network = case.network;
        let on_hosts = network.consecutive && network.per_host.is_multiple_of((stride * extent).max(1));
        if network.per_host >= case.shape.size || (on_hosts && network.per_host > 1) {
            return Self { link: network.near(), sharing: 1.0 };
        }
        let crossing = if network.consecutive { network.per_host.min(stride) } else { network.per_host };
        Self { link: network.far(), sharing: crossing as f64 }
    }

    /// Seconds for a ring reduce-scatter and a ring allgather of chunks of `bytes` among `length` ranks: `2(n-1)(α +
    /// b/B) + (n-1)γb` without segments and without sharing.
    pub fn rings(self, case: &Case<'_>, length: usize, bytes: f64) -> f64 {
        if length < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let segment = bytes.min(case.segment_bytes as f64);
        let (pieces, later) = (case.pieces(bytes), case.later(bytes));
        let all =
            (self.sharing * bytes / self.link.bandwidth).max(segment / self.link.bandwidth + later * self.link.gap);
        let ring = |gamma: f64| {
            let busy = gamma * bytes + pieces * self.link.busy;
            let each = (self.link.time(segment) + gamma * segment).max(all).max(busy);
            let last =
                (all + gamma * segment).max(segment / self.link.bandwidth + gamma * segment + later * self.link.busy);
            (length as f64 - 2.0) * each + self.link.latency + last
        };
        ring(case.network.gamma) + ring(0.0)
    }
}

/// The two factors of `size` that are closest to each other, the larger first.
fn square(size: usize) -> [usize; 2] {
    let small = (1..=size.isqrt()).rev().find(|f| size.is_multiple_of(*f)).unwrap_or(1);
    [size / small, small]
}

/// The prime factors of `size` in descending order.
fn prime_factors(mut size: usize) -> Vec<usize> {
    let mut factors = Vec::new();
    let mut factor = 2;
    while size > 1 {
        if factor * factor > size {
            factor = size;
        }
        while size.is_multiple_of(factor) {
            factors.push(factor);
            size /= factor;
        }
        factor += 1;
    }
    factors.reverse();
    factors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;

    fn shape<'a>(size: usize, groups: &'a [u32], dims: &'a [usize]) -> Shape<'a> {
        Shape { groups, dims, ..Shape::new(Collective::Allreduce, 0, size, 1) }
    }

    #[test]
    fn factors() {
        assert_eq!(square(1), [1, 1]);
        assert_eq!(square(12), [4, 3]);
        assert_eq!(square(16), [4, 4]);
        assert_eq!(square(7), [7, 1]);
        assert!(prime_factors(1).is_empty());
        assert_eq!(prime_factors(12), [3, 2, 2]);
        assert_eq!(prime_factors(97), [97]);
        assert_eq!(prime_factors(98), [7, 7, 2]);
        for size in 1..300 {
            assert_eq!(prime_factors(size).iter().product::<usize>(), size);
            assert_eq!(square(size).iter().product::<usize>(), size);
        }
    }

    #[test]
    fn groups_in_any_order() {
        assert_eq!(groups(&shape(3, &[], &[])), [[0, 1, 2]]);
        assert_eq!(groups(&shape(5, &[9, 0, 9, 4, 0], &[])), [vec![0, 2], vec![1, 4], vec![3]]);
    }

    #[test]
    fn what_grids_are_made_of() {
        let flat = |groups: &'static [u32], dims: &'static [usize]| {
            let grid = Grid::flat(&shape(6, groups, dims), "torus_2d").unwrap();
            assert_eq!(grid.columns, [grid.rows.len()]);
            grid.rows
        };
        assert_eq!(flat(&[], &[]), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(flat(&[0, 0, 0, 0, 0, 0], &[]), [[0, 1, 2], [3, 4, 5]], "one group");
        assert_eq!(flat(&[5, 4, 3, 2, 1, 0], &[]), [[0, 1, 2], [3, 4, 5]], "a group for each rank");
        assert_eq!(flat(&[0, 1, 0, 1, 1, 1], &[]), [vec![0, 2], vec![1, 3, 4, 5]]);
        assert_eq!(flat(&[0, 1, 0, 1, 1, 1], &[2, 3]), [[0, 1], [2, 3], [4, 5]], "dims come first");
        assert_eq!(flat(&[], &[1, 6]).len(), 6);
        let error = Grid::flat(&shape(6, &[], &[6]), "torus_2d").unwrap_err();
        assert!(error.message().contains("allreduce torus_2d: dims has 1 entries; it must have 2"), "{error}");
        let rectangular = |groups| Grid::rectangular(&shape(6, groups, &[]), "mesh_2d").unwrap().rows;
        assert_eq!(rectangular(&[0, 1, 0, 1, 2, 2]), [[0, 2], [1, 3], [4, 5]]);
        assert_eq!(rectangular(&[0, 1, 0, 1, 1, 1]), [[0, 1, 2], [3, 4, 5]], "uneven groups do not count");
        let deep = |groups, dims| {
            let grid = Grid::deep(&shape(12, groups, dims));
            (grid.rows.len(), grid.longest(), grid.shortest(), grid.columns)
        };
        assert_eq!(deep(&[], &[]), (4, 3, 3, vec![2, 2]));
        assert_eq!(deep(&[], &[2, 3, 2]), (6, 2, 2, vec![3, 2]));
        assert_eq!(deep(&[], &[12]), (1, 12, 12, vec![]));
        assert_eq!(deep(&[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], &[]), (6, 2, 2, vec![3, 2]));
        assert_eq!(deep(&[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3], &[]), (4, 5, 2, vec![2, 2]), "uneven groups");
        assert_eq!(Grid::deep(&shape(1, &[], &[])).rows, [[0]]);
    }
}

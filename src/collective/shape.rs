//! Buffer lengths that follow from a [`Shape`], and the checks that a shape is valid.

use std::ops::RangeInclusive;

use super::{Collective, Order, Shape, Uses};
use crate::error::{Error, Result, first_few};
use crate::schedule::{Buffer, Span};
use crate::types::{Rank, ReduceOp};

const ANY: RangeInclusive<usize> = 0..=u32::MAX as usize;
const SOME: RangeInclusive<usize> = 1..=u32::MAX as usize;

/// [`Shape::base`] where the caller sets none.
pub const DEFAULT_BASE: usize = 2;

impl Shape<'static> {
    /// The shape of a call with `count` elements, one input, one output, root 0 and defaults for the rest; meant for
    /// `Shape { …, ..Shape::new(…) }`.
    pub const fn new(collective: Collective, rank: Rank, size: usize, count: usize) -> Self {
        Self {
            collective,
            rank,
            size,
            root: 0,
            count,
            send_counts: &[],
            recv_counts: &[],
            inputs: 1,
            outputs: 1,
            blocks: false,
            average: false,
            means: false,
            order: Order::Any,
            base: DEFAULT_BASE,
            destinations: 0,
            groups: &[],
            shared: false,
            domains: &[],
            dims: &[],
            links: &[],
            counts: &[],
        }
    }
}

impl Shape<'_> {
    /// Returns this call with only those of `groups`, `dims`, `shared`, `domains` and `links` that an algorithm with
    /// `uses` reads.
    pub(crate) fn only(self, uses: Uses) -> Self {
        let (groups, dims) = if uses == Uses::Groups { (self.groups, self.dims) } else { (&[][..], &[][..]) };
        let links = if uses == Uses::Links { self.links } else { &[] };
        let shared = self.shared && (uses.needs_shared_memory() || uses == Uses::Groups);
        let domains = if uses == Uses::Domains { self.domains } else { &[] };
        Self { groups, dims, shared, domains, links, ..self }
    }

    /// The ranks of this rank's group, in ascending order.
    pub(crate) fn sharing(&self) -> Vec<Rank> {
        let group = |rank: Rank| self.groups.get(rank);
        (0..self.size).filter(|rank| group(*rank) == group(self.rank)).collect()
    }

    /// Fails with `InvalidArgument` if the shape is invalid. The error names the field.
    pub fn check(&self) -> Result<()> {
        let Self { rank, size, root, .. } = *self;
        if size == 0 || size > u32::MAX as usize {
            return Err(self.refuse(format!("size is {size}; it must be 1 to {}", u32::MAX)));
        }
        if rank >= size {
            return Err(self.refuse(format!("rank is {rank}, but size is {size}")));
        }
        if root >= size {
            return Err(self.refuse(format!("root is {root}, but size is {size}")));
        }
        self.check_counts()?;
        self.check_topology()?;
        self.check_buffers()?;
        if self.average && !self.collective.reduces_by(ReduceOp::Average) {
            return Err(self.refuse("averages are not supported".into()));
        }
        let sources = self.contributions();
        if self.average && size.saturating_mul(sources) > u32::MAX as usize {
            return Err(self.refuse(format!(
                "cannot average {size} ranks times {sources} buffers: the divisor has more than 32 bits"
            )));
        }
        if self.collective == Collective::PairwiseExchange {
            if !size.is_power_of_two() {
                return Err(self.refuse(format!("size is {size}; it must be a power of two")));
            }
            if self.destinations > size.ilog2() as usize {
                return Err(self.refuse(format!(
                    "destinations is {}; {size} ranks have at most {}",
                    self.destinations,
                    size.ilog2()
                )));
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        use Collective::*;
        let is_root = self.rank == self.root;
        let send = matches!(self.collective, Alltoallv) || (self.collective == Scatterv && is_root);
        let recv = matches!(self.collective, ReduceScatter | Allgatherv | Alltoallv)
            || (self.collective == Gatherv && is_root);
        for (needed, name, counts) in [(send, "send_counts", self.send_counts), (recv, "recv_counts", self.recv_counts)]
        {
            if needed && counts.len() != self.size {
                return Err(self.refuse(format!("{name} has {} entries, but size is {}", counts.len(), self.size)));
            }
        }
        if self.collective == Alltoallv && self.send_counts[self.rank] != self.recv_counts[self.rank] {
            return Err(self.refuse(format!(
                "send_counts[{0}] is {1} but recv_counts[{0}] is {2}; they must be equal, because they are what rank {0} sends to itself",
                self.rank, self.send_counts[self.rank], self.recv_counts[self.rank]
            )));
        }
        let entries = match self.collective {
            Gatherv | Scatterv => self.size,
            Alltoallv => self.size.saturating_mul(self.size),
            _ => 0,
        };
        if self.counts.is_empty() || entries == 0 {
            return Ok(());
        }
        if self.counts.len() != entries {
            return Err(self.refuse(format!("counts has {} entries; it must have {entries}", self.counts.len())));
        }
        self.counts_differ().map_or(Ok(()), |why| Err(self.refuse(why)))
    }

    /// Describes a contradiction between `counts`, which must have all its entries, and the other fields of this rank's
    /// call.
    pub(crate) fn counts_differ(&self) -> Option<String> {
        use Collective::*;
        let Self { rank, size, root, count, counts, .. } = *self;
        if sum(counts) > isize::MAX as usize {
            return Some(format!("the sum of counts is more than {}", isize::MAX));
        }
        match self.collective {
            Gatherv if rank == root => (counts != self.recv_counts).then(|| "counts and recv_counts differ".into()),
            Scatterv if rank == root => (counts != self.send_counts).then(|| "counts and send_counts differ".into()),
            Gatherv | Scatterv if counts[rank] == count => None,
            Gatherv => Some(format!(
                "this rank sends {count} elements, but the root, rank {root}, expects {} from it",
                counts[rank]
            )),
            Scatterv => Some(format!(
                "this rank expects {count} elements, but the root, rank {root}, sends it {}",
                counts[rank]
            )),
            Alltoallv if counts[rank * size..][..size] != *self.send_counts => {
                Some("this rank's row of counts and send_counts differ".into())
            }
            Alltoallv => {
                let sent = |from: usize| counts[from * size + rank];
                let from = (0..size).find(|&from| sent(from) != self.recv_counts[from])?;
                let (expected, sent) = (self.recv_counts[from], sent(from));
                Some(format!("this rank expects {expected} elements from rank {from}, which sends {sent}"))
            }
            _ => None,
        }
    }

    /// Checks `groups`, `domains`, `dims` and `links`.
    fn check_topology(&self) -> Result<()> {
        let Self { size, groups, domains, dims, links, .. } = *self;
        for (name, numbers) in [("groups", groups), ("domains", domains)] {
            if !numbers.is_empty() && numbers.len() != size {
                return Err(self.refuse(format!("{name} has {} entries, but size is {size}", numbers.len())));
            }
        }
        if let Some(zero) = dims.iter().position(|extent| *extent == 0) {
            return Err(self.refuse(format!("dims[{zero}] is 0")));
        }
        let product = dims.iter().fold(1, |a: usize, b| a.saturating_mul(*b));
        if !dims.is_empty() && product != size {
            let shown = first_few(dims.iter(), 8, " x ");
            return Err(self.refuse(format!("dims is {shown}, that is {product} ranks, but size is {size}")));
        }
        if !links.is_empty() && size.checked_mul(size) != Some(links.len()) {
            return Err(self.refuse(format!("links has {} entries, not size x size, and size is {size}", links.len())));
        }
        Ok(())
    }

    fn check_buffers(&self) -> Result<()> {
        let (inputs, outputs) = self.allowed_buffers();
        let scattered = self.collective == Collective::Scatter && self.rank == self.root && self.inputs == self.size;
        if !inputs.contains(&self.inputs) && !scattered {
            let or = if self.collective == Collective::Scatter && self.rank == self.root { " or size" } else { "" };
            return Err(self.refuse(format!("inputs is {}; it must be {}{or}", self.inputs, describe(&inputs))));
        }
        if !outputs.contains(&self.outputs) {
            return Err(self.refuse(format!("outputs is {}; it must be {}", self.outputs, describe(&outputs))));
        }
        self.check_blocks()?;
        if self.order != Order::Any && !self.collective.has_order() {
            return Err(self.refuse("there is no order in which to combine".into()));
        }
        // All buffers of one kind have the same length.
        for (name, len) in [("input", self.input_len(0)), ("output", self.output_len(0))] {
            if len > isize::MAX as usize {
                return Err(self.refuse(format!(
                    "an {name} would have more than {} elements (count {}, size {})",
                    isize::MAX,
                    self.count,
                    self.size
                )));
            }
        }
        Ok(())
    }

    /// The permitted numbers of inputs and outputs of this rank. A scatter may also have `size` inputs at the root.
    fn allowed_buffers(&self) -> (RangeInclusive<usize>, RangeInclusive<usize>) {
        use Collective::*;
        let is_root = self.rank == self.root;
        match self.collective {
            Allreduce => (ANY, SOME),
            Reduce if is_root || self.inputs == 0 => (ANY, 1..=1),
            Reduce => (SOME, 0..=1),
            Broadcast if is_root && self.inputs > 0 => (0..=1, ANY),
            Broadcast if is_root => (0..=1, SOME),
            Broadcast => (0..=0, SOME),
            ReduceScatter | Allgather => (ANY, 1..=1),
            Allgatherv | Alltoall | Scan | Exscan => (0..=1, 1..=1),
            Gather | Gatherv if is_root => (0..=1, 1..=1),
            Gather | Gatherv => (1..=1, 0..=0),
            Scatter | Scatterv if is_root => (0..=1, 1..=1),
            Scatter | Scatterv => (0..=0, 1..=1),
            Alltoallv | PairwiseExchange => (1..=1, 1..=1),
            Barrier => (0..=0, 0..=0),
        }
    }

    pub(crate) fn refuse(&self, why: String) -> Error {
        Error::invalid(format!("{} on rank {}: {why}", self.collective.name(), self.rank))
    }

    /// Elements in input `index`; 0 if it does not exist. Saturates for a shape that [`Shape::check`] refuses.
    pub fn input_len(&self, index: usize) -> usize {
        use Collective::*;
        if index >= self.inputs {
            return 0;
        }
        match self.collective {
            Allreduce | Reduce | Broadcast | Allgather | Gather | Scan | Exscan => self.count,
            ReduceScatter => sum(self.recv_counts),
            Allgatherv => self.recv_count(self.rank),
            Gatherv if self.rank == self.root => self.recv_count(self.rank),
            Gatherv => self.count,
            Scatter if self.inputs > 1 => self.count,
            Scatter | Alltoall => self.count.saturating_mul(self.size),
            Scatterv | Alltoallv => sum(self.send_counts),
            Barrier => 0,
            PairwiseExchange => self.count.saturating_mul(self.destinations),
        }
    }

    /// Elements in output `index`; 0 if it does not exist. Saturates for a shape that [`Shape::check`] refuses.
    pub fn output_len(&self, index: usize) -> usize {
        use Collective::*;
        if index >= self.outputs {
            return 0;
        }
        let whole_at_root = self.rank == self.root && self.inputs == 0;
        match self.collective {
            Allreduce | Reduce | Broadcast | Scan | Exscan => self.count,
            ReduceScatter if self.inputs == 0 => sum(self.recv_counts),
            ReduceScatter => self.recv_count(self.rank),
            Allgather => self.count.saturating_mul(self.inputs.max(1)).saturating_mul(self.size),
            Allgatherv | Gatherv | Alltoallv => sum(self.recv_counts),
            Gather | Alltoall => self.count.saturating_mul(self.size),
            Scatter if whole_at_root => self.count.saturating_mul(self.size),
            Scatterv if whole_at_root => sum(self.send_counts),
            Scatterv if self.rank == self.root => self.send_counts.get(self.rank).copied().unwrap_or(0),
            Scatter | Scatterv => self.count,
            Barrier => 0,
            PairwiseExchange => self.count.saturating_mul(self.destinations),
        }
    }

    /// Number of buffers that this rank contributes to a reduction.
    pub(crate) fn contributions(&self) -> usize {
        if self.inputs > 0 { self.inputs } else { self.outputs }
    }

    /// Whether this rank's result is a single contribution, so that no reduction took place.
    pub(crate) fn has_lone_result(&self) -> bool {
        match self.collective {
            Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter => {
                self.size == 1 && self.contributions() == 1
            }
            Collective::Scan => self.rank == 0,
            Collective::Exscan => self.rank == 1,
            _ => false,
        }
    }

    /// The divisor of an average; 1 if nothing is to be divided.
    pub(super) fn divisor(&self) -> u32 {
        if self.average && !self.means { (self.size * self.contributions()) as u32 } else { 1 }
    }

    /// All of input `index`.
    pub(super) fn input(&self, index: usize) -> Span {
        Span::new(Buffer::Input(index as u32), 0, self.input_len(index))
    }

    /// All of output `index`.
    pub(super) fn output(&self, index: usize) -> Span {
        Span::new(Buffer::Output(index as u32), 0, self.output_len(index))
    }

    /// The rank `distance` after this one, modulo `size`.
    pub(super) fn after(&self, distance: usize) -> usize {
        (self.rank + distance) % self.size
    }

    /// The rank `distance` before this one, modulo `size`; `distance` is at most `size`.
    pub(super) fn before(&self, distance: usize) -> usize {
        (self.rank + self.size - distance) % self.size
    }

    fn recv_count(&self, rank: usize) -> usize {
        self.recv_counts.get(rank).copied().unwrap_or(0)
    }
}

/// Offset and length of block `index` among consecutive blocks with these lengths.
pub(super) fn block(counts: &[usize], index: usize) -> (usize, usize) {
    (sum(&counts[..index]), counts[index])
}

pub(super) fn sum(counts: &[usize]) -> usize {
    counts.iter().fold(0, |a, &b| a.saturating_add(b))
}

fn describe(range: &RangeInclusive<usize>) -> String {
    match (*range.start(), *range.end()) {
        (low, high) if low == high => low.to_string(),
        (low, high) if high == u32::MAX as usize => format!("at least {low}"),
        (low, high) => format!("{low} to {high}"),
    }
}

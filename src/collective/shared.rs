//! Building blocks of the algorithms on shared memory: every rank publishes what it has, and the others fetch it.
//!
//! The algorithms need all ranks on one host; algorithms for several hosts use some of them within each. A step that
//! waits for another rank takes a fraction of a microsecond if each rank has a core, and no step waits for more than
//! one rank.

use super::domains::Tree;
use super::phases::{contribution, relocate, sources};
use super::{Case, Collective, Shape};
use crate::environment::SHARED_MEMORY;
use crate::error::{Error, ErrorKind, Result};
use crate::publications::MAX_MEMBERS;
use crate::schedule::{Builder, Readers, Schedule, Side, Span};
use crate::types::Rank;

/// Elements of several blocks that are published at once: a publication of a few elements takes one cache line.
const MAX_ELEMENTS_AT_ONCE: usize = 16384;

/// A schedule on shared memory. Fails if the ranks do not share it.
pub(super) fn begin(shape: &Shape<'_>) -> Result<Builder> {
    let one_host = shape.groups.windows(2).all(|pair| pair[0] == pair[1]);
    if shape.shared && one_host && shape.size <= MAX_MEMBERS || shape.size == 1 {
        return Ok(Builder::new());
    }
    let text = format!(
        "{} on rank {}: this algorithm needs shared memory, which the {} ranks of this call do not have: either {SHARED_MEMORY}=0 or the option \
         shared_memory of a device forbids it, or they are not all on one host, or more than {MAX_MEMBERS}, or one of them may not map \
         another's memory, or read that of its process (gloo-rs info)",
        shape.collective.name(),
        shape.rank,
        shape.size
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// `len` elements at `offset` of what this rank contributes to a reduction, in memory that the reduction does not
/// write: a single input, or a copy.
pub(super) fn stable_contribution(b: &mut Builder, shape: &Shape<'_>, offset: usize, len: usize) -> Span {
    let sources = sources(shape);
    if shape.inputs == 1 {
        return Span::new(sources[0], offset, len);
    }
    let copy = b.scratch(len);
    let own = contribution(b, &sources, offset, len, copy);
    b.copy(own, copy);
    copy
}

/// Reduces what each of `ranks` has published at `place`, a publication and an element of it, into `into`, in rank
/// order. This rank's own part is `own`, which must not overlap `into` unless it is the first or the only one.
pub(super) fn reduce_in_order(
    b: &mut Builder,
    rank: usize,
    ranks: impl IntoIterator<Item = usize>,
    place: impl Fn(usize) -> (u32, usize),
    own: Span,
    into: Span,
) {
    let mut current = None;
    for from in ranks {
        current = Some(match current {
            None if from == rank => own,
            None => {
                let (number, at) = place(from);
                b.fetch(from, number, at, into);
                into
            }
            Some(current) => {
                if from == rank {
                    b.reduce(current, own, into);
                } else {
                    let (number, at) = place(from);
                    b.fetch_reduce(from, number, at, into, current, Side::Right);
                }
                into
            }
        });
    }
    if let Some(current) = current {
        b.copy(current, into);
    }
}

/// The path of a reduction in slices with at least as many elements as ranks; see `shared_slices` of allreduce.
pub(super) fn path_in_slices(case: &Case<'_>) -> f64 {
    let (others, slice) = (case.ranks() - 1.0, case.of(case.shape.count.div_ceil(case.shape.size)));
    // An input and an output of each rank.
    let fits = 2.0 * case.ranks() * case.bytes() <= case.constants.memory_cache_bytes;
    let again = if fits { 0.0 } else { 2.0 * slice * case.constants.memory_again_ns * 1e-9 };
    again + case.shared_path(2.0, &[(others, slice), (1.0, slice)], &[(2.0 * others, slice, slice)], others * slice)
}

/// The path of a call whose ranks publish parts by [`publish_parts`], of which each fetches those for it: `bytes` of
/// all, and of the longest part.
pub(super) fn path_of_parts(case: &Case<'_>, (all, longest): (f64, f64), elements: usize, reduced: f64) -> f64 {
    let others = case.ranks() - 1.0;
    if is_at_once(case.shape, elements) {
        return case.shared_path(1.0, &[(1.0, all)], &[(others, all, longest)], reduced);
    }
    case.shared_path(1.0, &[(others, longest)], &[(others, longest, longest)], reduced)
}

/// Whether the parts are published at once; see [`publish_parts`].
pub(super) fn is_at_once(shape: &Shape<'_>, elements: usize) -> bool {
    shape.size > 2 && elements <= MAX_ELEMENTS_AT_ONCE
}

/// The other ranks, beginning with the next: at any time, each rank is read by another one.
pub(super) fn others(shape: &Shape<'_>) -> impl Iterator<Item = usize> {
    let Shape { rank, size, .. } = *shape;
    (1..size).map(move |distance| (rank + distance) % size)
}

/// The other ranks, in rank order. All ranks fetch what is for several readers in this order: it may be written piece
/// by piece, as fast as all of them read, so none may wait for another one of them.
pub(super) fn all_others(shape: &Shape<'_>) -> impl Iterator<Item = usize> {
    let rank = shape.rank;
    (0..shape.size).filter(move |other| *other != rank)
}

/// The number of the publication for `reader` of a rank that publishes once for each other rank: in the order in which
/// these read from it, if each reads from [`others`]. If `publisher` is the reader, any number.
pub(super) fn number(size: usize, publisher: usize, reader: usize) -> u32 {
    ((publisher + size - reader) % size).saturating_sub(1) as u32
}

/// Publishes `block` of each other rank for that rank alone; see [`number`].
pub(super) fn publish_blocks(b: &mut Builder, shape: &Shape<'_>, block: impl Fn(usize) -> Span) {
    for reader in (1..shape.size).map(|distance| shape.before(distance)) {
        b.publish(Readers::One(reader as u32), block(reader));
    }
}

/// Publishes for each other rank its `block` of `all`, given by offset and length: one by one, so that each can be a
/// stream, or if they are short and several, all at once. The result says of a rank in which of its publications the
/// block for this rank is, and from which element on.
pub(super) fn publish_parts(
    b: &mut Builder,
    shape: &Shape<'_>,
    all: Span,
    block: &dyn Fn(usize) -> (usize, usize),
) -> impl Fn(usize) -> (u32, usize) + use<> {
    let Shape { rank, size, .. } = *shape;
    let own = block(rank).0;
    let at_once = is_at_once(shape, all.len);
    if at_once {
        b.publish(Readers::All, all);
    } else {
        publish_blocks(b, shape, |reader| {
            let (offset, len) = block(reader);
            all.slice(offset, len)
        });
    }
    move |from| if at_once { (0, own) } else { (number(size, from, rank), 0) }
}

/// The scans: reduces what the first `count` ranks published. Each rank publishes for those behind it.
pub(super) fn prefix(shape: &Shape<'_>, count: usize) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let output = shape.output(0);
    if shape.count == 0 {
        return Ok(b.build());
    }
    let is_last = shape.rank + 1 == shape.size;
    // In place, the first rank does not overwrite its elements. An exscan does not need those of the last.
    let own = match shape.rank == 0 || is_last && count < shape.size {
        true => Span::new(sources(shape)[0], 0, shape.count),
        false => stable_contribution(&mut b, shape, 0, shape.count),
    };
    if !is_last {
        b.publish(if shape.rank == 0 { Readers::All } else { Readers::set(shape.rank + 1..shape.size) }, own);
    }
    reduce_in_order(&mut b, shape.rank, 0..count, |_| (0, 0), own, output);
    if !is_last {
        b.await_readers();
    }
    Ok(b.build())
}

/// A gather: the root fetches `block` (offset and length) of each other rank.
pub(super) fn collect(shape: &Shape<'_>, block: impl Fn(usize) -> (usize, usize)) -> Result<Schedule> {
    let mut b = begin(shape)?;
    if shape.rank != shape.root {
        let own = shape.input(0);
        if own.len > 0 {
            b.publish(Readers::One(shape.root as u32), own);
            b.await_readers();
        }
        return Ok(b.build());
    }
    let target = |rank| {
        let (offset, len) = block(rank);
        shape.output(0).slice(offset, len)
    };
    for from in others(shape).filter(|&from| target(from).len > 0) {
        b.fetch(from, 0, 0, target(from));
    }
    if shape.inputs > 0 {
        b.copy(shape.input(0), target(shape.rank));
    }
    Ok(b.build())
}

/// An allgather by caches: each rank publishes its block for one rank of each other socket, then what it has for one of
/// each other cache of its socket, and at last for the ranks of its cache. `own` is this rank's block, `block` where
/// the block of a rank is in the output.
pub(super) fn gather_by_caches(b: &mut Builder, tree: &Tree, rank: Rank, own: Span, block: &dyn Fn(Rank) -> Span) {
    let exists = |of: &Rank| block(*of).len > 0;
    let blocks = || (0..tree.size()).filter(exists);
    let mut publishes_any = false;
    for level in (0..tree.levels()).rev() {
        let units = tree.units(rank, level);
        let above = units.concat();
        // All readers of a block fetch in the order of blocks, so none of them waits for another.
        for of in blocks().filter(|of| units.len() > 1 && tree.holds(rank, level + 1, *of)) {
            let holders = units.iter().map(|unit| tree.holder(unit, level, of));
            b.publish(Readers::set(holders.filter(|holder| *holder != rank)), if of == rank { own } else { block(of) });
            publishes_any = true;
        }
        for of in blocks().filter(|of| tree.holds(rank, level, *of) && !tree.holds(rank, level + 1, *of)) {
            let from = tree.holder(&above, level + 1, of);
            let published = |level: usize| {
                blocks().filter(move |of| tree.joined(from, level) > 1 && tree.holds(from, level + 1, *of))
            };
            let earlier: usize = (level + 1..tree.levels()).map(|level| published(level).count()).sum();
            let number = earlier + published(level).take_while(|other| *other < of).count();
            b.fetch(from, number as u32, 0, block(of));
        }
    }
    if publishes_any {
        b.await_readers();
    }
}

/// `Σ k p + σ + (k' - k) f` over the levels, and `w`, for [`gather_by_caches`] with blocks of at most `longest` bytes:
/// a rank has `k` blocks before a level, and `k'` after it; p is the time to publish one, σ that of a signal, f that of
/// a fetch, w that of the wait for readers. σ and f depend on the level.
pub(super) fn path_by_caches(case: &Case<'_>, tree: &Tree, longest: f64) -> f64 {
    if longest <= 0.0 {
        return 0.0;
    }
    let memory = &case.network.memory;
    let level = |level: usize| {
        let (before, after, far) = (tree.max_held(level + 1), tree.max_held(level), tree.is_far(level));
        let fetches = (after - before) as f64;
        before as f64 * memory.publish(longest, false)
            + memory.access(far).signal
            + fetches * memory.fetch(longest, longest, far)
    };
    let levels = tree.levels();
    let path = case.switches(levels as f64) + (0..levels).map(level).sum::<f64>();
    path + memory.readers(longest, tree.is_far(0), false)
}

/// A scatter: each rank fetches its block from the root. Only the root knows which blocks are empty, so these are
/// published, too.
pub(super) fn distribute(shape: &Shape<'_>, block: impl Fn(usize) -> Span) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let output = shape.output(0);
    if shape.rank != shape.root {
        b.fetch(shape.root, number(shape.size, shape.root, shape.rank), 0, output);
        return Ok(b.build());
    }
    publish_blocks(&mut b, shape, &block);
    if shape.size > 1 {
        b.await_readers();
    }
    let own = block(shape.rank);
    relocate(&mut b, own, output.slice(0, own.len));
    Ok(b.build())
}

impl Case<'_> {
    /// The fraction of the other ranks with which the root, if only the root fetches, or else a rank of the smallest
    /// domain, shares no cache.
    fn far(&self) -> f64 {
        use Collective::{Gather, Gatherv, Reduce};
        let Shape { collective, domains, root, .. } = *self.shape;
        let of = |own: &u32| domains.iter().filter(|domain| *domain == own).count();
        let min = match collective {
            Gather | Gatherv | Reduce => domains.get(root).map(of),
            _ => domains.iter().map(of).min(),
        };
        min.map_or(0.0, |min| (domains.len() - min) as f64 / (self.ranks() - 1.0))
    }

    /// σ: seconds until the last of all other ranks sees what a rank has published.
    pub(super) fn signal(&self) -> f64 {
        self.network.memory.access(self.far() > 0.0).signal
    }

    /// Seconds for changes of threads, where ranks share cores, in a call of a rank that waits for `signals` signals in
    /// turn: after the first, all ranks must run again each time.
    pub(super) fn switches(&self, signals: f64) -> f64 {
        let others = self.network.per_host as f64 / self.network.cores as f64 - 1.0;
        (signals - 1.0) * self.constants.memory_switch_us * 1e-6 * others.max(0.0)
    }

    /// Seconds for a rank that waits for `signals` signals in turn. `published`: numbers of publications and the bytes
    /// of each. `fetched`: numbers of fetches, the bytes of the publication, and the bytes that are fetched. `reduced`:
    /// bytes that the rank reduces. Finally it waits for its readers. In rooted collectives, a rank that fetches
    /// publishes nothing, unless there are several signals. The slowest rank counts: one that fetches from all others
    /// shares a cache with as few of them as any, and one that fetches from fewer shares it with none of these.
    pub(super) fn shared_path(
        &self,
        signals: f64,
        published: &[(f64, f64)],
        fetched: &[(f64, f64, f64)],
        reduced: f64,
    ) -> f64 {
        let memory = &self.network.memory;
        let reducing = self.network.gamma * reduced;
        let empty = self.shape.collective != Collective::Barrier && fetched.iter().all(|(.., bytes)| *bytes <= 0.0);
        if self.shape.size == 1 || empty {
            return reducing;
        }
        let far = self.far();
        let few = fetched.iter().map(|(number, ..)| number).sum::<f64>() < self.ranks() - 1.0;
        let part = if few { far.ceil() } else { far };
        let fetch = |number: f64, of, bytes| {
            number * (part * memory.fetch(of, bytes, true) + (1.0 - part) * memory.fetch(of, bytes, false))
        };
        use Collective::{Broadcast, Exscan, Gather, Gatherv, Reduce, Scan, Scatter, Scatterv};
        // A rank that waits alone is a root, or rank 0 of a scan, which fetches nothing either; when its elements are
        // fetched, the others have published theirs.
        let rooted =
            matches!(self.shape.collective, Broadcast | Exscan | Gather | Gatherv | Reduce | Scan | Scatter | Scatterv);
        let alone = rooted && signals == 1.0;
        let publishing: f64 = published.iter().map(|&(number, bytes)| number * memory.publish(bytes, alone)).sum();
        let fetching: f64 = fetched.iter().map(|&(number, of, bytes)| fetch(number, of, bytes)).sum();
        let largest = published.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
        // Where ranks share cores, the price of a path is that of all ranks on a core. Of these, the root alone does
        // this.
        let of_root = match self.shape.collective {
            Reduce | Gather | Gatherv if alone => fetching + reducing,
            Scatter | Scatterv if alone => publishing,
            _ => 0.0,
        };
        let others = 1.0 - (self.network.cores as f64 / self.network.per_host as f64).min(1.0);
        signals * self.signal()
            + self.switches(signals)
            + publishing
            + fetching
            + reducing
            + memory.readers(largest, far > 0.0, alone)
            - others * of_root
    }
}

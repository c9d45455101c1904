//! Compares the calls of all ranks before a collective, if the context's options ask for it.
//!
//! Every rank gathers the records of all ranks' calls, so all come to the same result. If the calls differ, no rank
//! starts, and the context stays usable.

use std::fmt::Write;
use std::sync::Arc;

use crate::collective::{Algorithm, Collective, Shape, Uses};
use crate::context::digest::{numbers, op_text};
use crate::context::run::Run;
use crate::engine::{Binding, Prepared};
use crate::environment;
use crate::error::{Details, Error, ErrorKind, Result, first_few};
use crate::reserve::{check_room, try_collect, try_with_capacity, try_zeros};
use crate::tuner;
use crate::types::{ElementType, Rank};
use crate::wire::fingerprint::Purpose;

/// The environment variable that enables the comparison.
const VARIABLE: &str = "GLOO_RS_CHECK_CALLS";

/// Numbers of a record before its lists, and the index of the count.
const FIELDS: usize = 10;
const COUNT: usize = 6;

/// Most entries of a list in an error, and most different calls.
const SHOWN: usize = 8;

/// Upper bound of the memory for the comparison of records, for each rank.
const BYTES_PER_RANK: usize = 256;

/// Whether the environment enables the comparison.
pub(super) fn from_environment() -> Result<bool> {
    environment::switch(VARIABLE).map(|on| on == Some(true))
}

/// Lists of a record, each with an entry per rank.
const LISTS: usize = 4;

/// The record of a call: `FIELDS` numbers, then the lists. These are the sent and the received counts, the groups of
/// the ranks, and dims; zeros if the collective has none, or its algorithm uses none.
fn record(run: &Run<'_>) -> Result<Vec<u64>> {
    let Prepared { dtype, algorithm, .. } = *run.call;
    let shape = run.call.shape.get();
    let Shape { collective, size, .. } = shape;
    let (inputs, base, destinations) = numbers(&shape, algorithm);
    let dtype = if collective == Collective::Barrier { 0 } else { dtype.code() as usize };
    let only = |holds: bool, value: usize| if holds { value } else { 0 };
    let fields: [usize; FIELDS] = [
        collective as usize,
        tuner::position(collective, algorithm),
        dtype,
        run.call.operation as usize,
        only(has_root(collective), shape.root),
        only(collective != Collective::Barrier, run.call.segment),
        shape.count,
        if collective == Collective::Allgather { inputs } else { only(shape.average, shape.contributions()) },
        base,
        destinations,
    ];
    let (groups, dims) = match algorithm.uses {
        // A grid has fewer dimensions with extents above 1 than ranks.
        Uses::Groups => (shape.groups, shape.dims),
        Uses::Domains => (shape.domains, &[][..]),
        Uses::Sizes | Uses::Links | Uses::Counts | Uses::SharedMemory => (&[][..], &[][..]),
    };
    let mut record = try_with_capacity(FIELDS + LISTS * size, "the record of this call")?;
    record.extend(fields.map(|n| n as u64));
    let number = |list: &[usize], rank: Rank| list.get(rank).map_or(0, |n| *n as u64);
    record.extend((0..size).map(|rank| number(shape.send_counts, rank)));
    record.extend((0..size).map(|rank| number(shape.recv_counts, rank)));
    record.extend((0..size).map(|rank| groups.get(rank).map_or(0, |group| u64::from(*group))));
    record.extend((0..size).map(|rank| number(dims, rank)));
    Ok(record)
}

/// Whether a record of a call by `algorithm` has groups.
fn uses_groups(algorithm: &Algorithm) -> bool {
    matches!(algorithm.uses, Uses::Groups | Uses::Domains)
}

fn has_root(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Reduce | Broadcast | Gather | Gatherv | Scatter | Scatterv)
}

/// The record of one rank's call.
#[derive(Clone, Copy)]
struct Record<'a>(&'a [u64]);

impl<'a> Record<'a> {
    fn collective(self) -> Option<Collective> {
        Collective::ALL.iter().copied().find(|c| *c as u64 == self.0[0])
    }

    fn algorithm(self) -> Option<&'static Algorithm> {
        self.collective()?.algorithms().get(self.0[1] as usize)
    }

    fn list(self, number: usize) -> &'a [u64] {
        let lists = &self.0[FIELDS..];
        let size = lists.len() / LISTS;
        &lists[number * size..][..size]
    }

    /// Sent and received counts.
    fn counts(self) -> (&'a [u64], &'a [u64]) {
        (self.list(0), self.list(1))
    }

    /// Groups and dims.
    fn topology(self) -> (&'a [u64], &'a [u64]) {
        (self.list(2), self.list(3))
    }

    /// The fields that must be equal on all ranks.
    fn common(self) -> impl Iterator<Item = u64> + 'a {
        use Collective::*;
        // The counts of these collectives differ between ranks, those of some are in lists that all have.
        let (count, counts) = match self.collective() {
            Some(Gatherv | Scatterv | Alltoallv) => (0, &[][..]),
            Some(ReduceScatter | Allgatherv) => (0, self.counts().1),
            _ => (self.0[COUNT], &[][..]),
        };
        let (groups, dims) = self.topology();
        let fields =
            self.0[..FIELDS].iter().enumerate().map(move |(at, field)| if at == COUNT { count } else { *field });
        fields.chain(counts.iter().chain(groups).chain(dims).copied())
    }

    /// `allreduce ring_segmented of 1000 float32 by sum`; with `fully` also what the library has selected.
    fn describe(self, fully: bool) -> String {
        use Collective::*;
        let Some(collective) = self.collective() else { return "one that this version does not know".into() };
        let algorithm = self.algorithm().map_or("?", |a| a.name);
        let mut text = format!("{} {algorithm}", collective.name());
        let dtype = ElementType::from_code(self.0[2]).map_or("?".into(), |dtype| dtype.to_string());
        let list = self.counts().1;
        let write = |text: &mut String| -> std::fmt::Result {
            match collective {
                Barrier => return Ok(()),
                Gatherv | Scatterv | Alltoallv => write!(text, " of {dtype}")?,
                ReduceScatter | Allgatherv => {
                    let shown = first_few(list.iter(), SHOWN, " + ");
                    let sum: u64 = list.iter().fold(0, |a, b| a.saturating_add(*b));
                    write!(text, " of {sum} {dtype} ({shown})")?;
                }
                _ => write!(text, " of {} {dtype}", self.0[6])?,
            }
            write!(text, "{}", op_text(self.0[3] as u32))?;
            if has_root(collective) {
                write!(text, ", root {}", self.0[4])?;
            }
            if fully && self.algorithm().is_some_and(uses_groups) {
                let (groups, dims) = self.topology();
                let dims: Vec<&u64> = dims.iter().filter(|extent| **extent > 0).collect();
                write!(text, ", groups {}", first_few(groups.iter(), SHOWN, ","))?;
                write!(
                    text,
                    ", dims {}",
                    if dims.is_empty() { "none".into() } else { first_few(dims.iter(), SHOWN, "x") }
                )?;
            }
            if fully {
                write!(
                    text,
                    ", segments of {}, {} inputs, base {}, {} destinations",
                    self.0[5], self.0[7], self.0[8], self.0[9]
                )?;
            }
            Ok(())
        };
        // Writing to a string does not fail.
        let _ = write(&mut text);
        text
    }
}

/// How the calls differ, if they do, and the rank that is most likely wrong: the first of the smallest group with equal
/// calls.
fn verdict(records: &[Record<'_>]) -> Option<(String, Option<Rank>)> {
    let mut groups: Vec<(Record<'_>, Vec<usize>)> = Vec::new();
    for (rank, record) in records.iter().enumerate() {
        match groups.iter_mut().find(|(first, _)| first.common().eq(record.common())) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((*record, vec![rank])),
        }
    }
    if groups.len() == 1 {
        return counts_between(records).map(|wrong| (wrong, None));
    }
    // The smallest group first, since it is most likely wrong.
    groups.sort_by_key(|(_, ranks)| (ranks.len(), ranks[0]));
    let shown = &groups[..groups.len().min(SHOWN)];
    let say = |fully| -> Vec<String> { shown.iter().map(|(record, _)| record.describe(fully)).collect() };
    let mut calls = say(false);
    if calls.iter().all(|c| *c == calls[0]) {
        calls = say(true);
    }
    let mut parts: Vec<String> = shown
        .iter()
        .zip(&calls)
        .map(|((_, ranks), call)| {
            let (s, verb) = if ranks.len() == 1 { ("", "calls") } else { ("s", "call") };
            format!("rank{s} {} {verb} {call}", first_few(ranks.iter(), SHOWN, ", "))
        })
        .collect();
    if groups.len() > shown.len() {
        parts.push(format!("and {} other calls", groups.len() - shown.len()));
    }
    let odd = (groups[0].1.len() < groups[1].1.len()).then_some(groups[0].1[0]);
    Some((parts.join("; "), odd))
}

/// Describes sends whose count differs from what the receiver expects, in calls that are equal otherwise.
fn counts_between(records: &[Record<'_>]) -> Option<String> {
    let root = records[0].0[4] as usize;
    let (mut wrong, mut count) = (Vec::new(), 0_usize);
    let mut compare = |from: usize, sends: u64, to: usize, expects: u64| {
        if sends != expects {
            if count < SHOWN {
                wrong.push(format!("rank {from} sends {sends} elements to rank {to}, which expects {expects}"));
            }
            count += 1;
        }
    };
    for (rank, record) in records.iter().enumerate() {
        match record.collective()? {
            Collective::Gatherv if rank != root => compare(rank, record.0[6], root, records[root].counts().1[rank]),
            Collective::Scatterv if rank != root => compare(root, records[root].counts().0[rank], rank, record.0[6]),
            Collective::Alltoallv => {
                for (to, receiver) in records.iter().enumerate() {
                    compare(rank, record.counts().0[to], to, receiver.counts().1[rank]);
                }
            }
            _ => {}
        }
    }
    let more = count - wrong.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (!wrong.is_empty()).then(|| wrong.join("; ") + &more)
}

impl Run<'_> {
    /// Compares the calls of all ranks; fails on all ranks if they differ. Collective.
    pub fn compare(&self) -> Result<()> {
        let (own, context) = (record(self)?, self.context);
        let mut all = try_zeros::<u64>(own.len().saturating_mul(context.size), "the records of all ranks' calls")?;
        let shape = Shape::new(Collective::Allgather, context.rank, context.size, own.len());
        let algorithm = context.tuners.current().decide(&shape, size_of::<u64>(), None)?.algorithm;
        let shape = context.complete_shape(&shape, size_of::<u64>(), None, algorithm.uses).only(algorithm.uses);
        let (plan, digest) = (context.plan(&shape, algorithm, false)?, Purpose::Comparison.alone());
        let exchange = Arc::new(Prepared::internal(plan, (&shape, algorithm), size_of::<u64>(), digest, true)?);
        let (inputs, outputs) = ([own.as_ptr().cast()], [all.as_mut_ptr().cast()]);
        let Binding { tag, in_order, .. } = self.binding;
        let binding = Binding { call: &exchange, inputs: &inputs, outputs: &outputs, function: None, tag, in_order };
        Run { binding, ..*self }.execute(&exchange)?;
        let records = all.chunks_exact(own.len()).map(|record| Ok(Record(record)));
        let records = try_collect(records, "the list of all ranks' calls")?;
        check_room(context.size.saturating_mul(BYTES_PER_RANK), "the comparison of all ranks' calls")?;
        let Some((wrong, odd)) = verdict(&records) else { return Ok(()) };
        let error = Error::new(ErrorKind::Mismatch, format!("ranks disagree about this call: {wrong}"));
        Err(self.described(&error.about(Details { rank: odd, ..Details::default() })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a call by the first algorithm of its collective, with this count, root and these received counts.
    fn record(collective: Collective, size: usize, count: u64, root: u64, received: u64) -> Vec<u64> {
        let mut record = vec![0; FIELDS + LISTS * size];
        (record[0], record[4], record[COUNT]) = (collective as u64, root, count);
        record[FIELDS + size..FIELDS + 2 * size].fill(received);
        record
    }

    #[test]
    fn however_many_ranks_differ_few_are_named() {
        const SIZE: usize = 100;
        let of =
            |records: &[Vec<u64>]| verdict(&records.iter().map(|record| Record(record)).collect::<Vec<_>>()).unwrap();
        let roots: Vec<_> = (0..SIZE).map(|rank| record(Collective::Reduce, SIZE, 1, rank as u64, 0)).collect();
        let (text, odd) = of(&roots);
        assert!(odd.is_none() && text.ends_with("root 7; and 92 other calls"), "{text}");
        let counts: Vec<_> = (0..SIZE).map(|_| record(Collective::Alltoallv, SIZE, 0, 0, 1)).collect();
        let (text, odd) = of(&counts);
        assert!(
            odd.is_none() && text.ends_with("rank 0 sends 0 elements to rank 7, which expects 1; and 9992 more"),
            "{text}"
        );
    }
}

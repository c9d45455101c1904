//! Brings counts that only some ranks know to all, for algorithms that need them.
//!
//! Gatherv and scatterv: the root broadcasts its list. Alltoallv: every rank gathers everyone's. Each rank then compares what
//! it was told with its own call. Where they differ it fails, and breaks the context, so that nobody waits for it.

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::context::call::Run;
use crate::engine::{Binding, Combine};
use crate::error::{Error, ErrorKind, Result, try_zeros};
use crate::wire::fingerprint::Purpose;

/// Elements of scratch memory that an algorithm may need for each that is counted: twice for each bit of a rank.
const SCRATCH: usize = 2 * usize::BITS as usize;

/// Bytes that memory can have at most.
const MOST: usize = isize::MAX as usize;

/// What is wrong with the counts that this rank was told.
fn objection(told: &Shape<'_>, element: usize) -> Option<String> {
    let elements = told.counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
    match elements.saturating_mul(SCRATCH).saturating_mul(element) {
        0..=MOST => told.counts_differ(),
        _ => Some(format!("the counts of all ranks together are {elements} elements, which no memory can hold")),
    }
}

impl Context {
    /// What [`Shape::counts`] must be for this call. Collective.
    pub(super) fn share_counts(&self, run: &Run<'_>) -> Result<Vec<usize>> {
        let shape = &run.call.shape;
        let own = if shape.collective == Collective::Gatherv { shape.recv_counts } else { shape.send_counts };
        let counts = if self.size == 1 { own.to_vec() } else { self.exchange_counts(run, own)? };
        let Some(why) = objection(&Shape { counts: &counts, ..*shape }, run.binding.element) else { return Ok(counts) };
        let text = format!("{}: {why}", run.call.describe(self.rank, run.algorithm.name));
        let error = Error::new(ErrorKind::Mismatch, text).during(shape.collective.name());
        let mut guard = self.lock()?;
        guard.break_with(&error, Some(&error));
        self.finish_closing(guard);
        Err(error)
    }

    fn exchange_counts(&self, run: &Run<'_>, own: &[usize]) -> Result<Vec<usize>> {
        let call = &run.call.shape;
        let gathers = call.collective == Collective::Alltoallv;
        let tells = gathers || self.rank == call.root;
        let (collective, name, entries) = match gathers {
            true => (Collective::Allgather, "bruck", self.size.saturating_mul(self.size)),
            false => (Collective::Broadcast, "binomial", self.size),
        };
        let own: Vec<u64> = own.iter().map(|&count| count as u64).collect();
        let mut all = try_zeros::<u64>(entries, "the counts of all ranks")?;
        let shape = Shape {
            root: call.root,
            inputs: usize::from(tells),
            ..Shape::new(collective, self.rank, self.size, self.size)
        };
        let input = [own.as_ptr().cast()];
        let binding = Binding {
            inputs: if tells { &input } else { &[] },
            outputs: &[all.as_mut_ptr().cast()],
            element: size_of::<u64>(),
            segment: entries,
            combine: Combine::Nothing,
            digest: Purpose::Counts.of(run.binding.digest),
            count: self.size,
            ..run.binding
        };
        let plan = self.plan(&shape, collective.algorithm(name)?, &binding)?;
        self.execute(&Run { binding, ..*run }, plan)?;
        Ok(all.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_no_memory_can_hold_are_refused_before_any_is_asked_for() {
        let told = |counts| Shape { counts, ..Shape::new(Collective::Gatherv, 1, 3, 2) };
        assert_eq!(objection(&told(&[1, 2, 3]), 8), None);
        assert_eq!(objection(&told(&[1 << 52, 2, 3]), 1), None);
        let huge = objection(&told(&[1 << 54, 2, 3]), 8).unwrap();
        assert_eq!(huge, "the counts of all ranks together are 18014398509481989 elements, which no memory can hold");
        assert!(objection(&told(&[usize::MAX, 2, usize::MAX]), 16).unwrap().contains("no memory"));
        assert!(objection(&told(&[1, 5, 3]), 8).unwrap().contains("expects 5 from it"));
    }
}

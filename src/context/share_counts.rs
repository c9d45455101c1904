//! Distributes counts that only some ranks know, for algorithms that need them on all ranks.
//!
//! Gatherv and scatterv: the root broadcasts its counts. Alltoallv: all ranks gather the counts of all. Each rank then
//! compares them with its own call. A rank whose call differs fails, and breaks the context, so that other ranks do not
//! wait for it.

use std::sync::Arc;

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::context::run::Run;
use crate::engine::{Binding, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::{try_collect, try_copy, try_zeros};
use crate::wire::fingerprint::Purpose;

/// Most elements of scratch memory that an algorithm needs per counted element: two for each bit of a rank.
const SCRATCH: usize = 2 * usize::BITS as usize;

/// Most bytes of an allocation.
const MAX_COUNT: usize = isize::MAX as usize;

/// Why the counts received are invalid, if they are.
fn invalid_counts(shape: &Shape<'_>, element: usize) -> Option<String> {
    let elements = shape.counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
    match elements.saturating_mul(SCRATCH).saturating_mul(element) {
        0..=MAX_COUNT => shape.counts_differ(),
        _ => Some(format!("the counts of all ranks together are {elements} elements, which no memory can hold")),
    }
}

impl Run<'_> {
    /// Returns [`Shape::counts`] for this call. Collective.
    pub fn share_counts(&self) -> Result<Vec<usize>> {
        let (shape, context) = (&self.call.shape.get(), self.context);
        let own = if shape.collective == Collective::Gatherv { shape.recv_counts } else { shape.send_counts };
        let counts =
            if context.size == 1 { try_copy(own, "the counts of this rank")? } else { self.exchange_counts(own)? };
        let Some(why) = invalid_counts(&Shape { counts: &counts, ..*shape }, self.call.element) else {
            return Ok(counts);
        };
        let error = self.described(&Error::new(ErrorKind::Mismatch, why));
        let mut guard = context.lock()?;
        guard.break_with(&error, Some(&error));
        context.finish_closing(guard);
        Err(error)
    }

    fn exchange_counts(&self, own: &[usize]) -> Result<Vec<usize>> {
        let call = &self.call.shape.get();
        let Context { rank, size, .. } = *self.context;
        let gathers = call.collective == Collective::Alltoallv;
        let tells = gathers || rank == call.root;
        let (collective, name, entries) = match gathers {
            true => (Collective::Allgather, "bruck", size.saturating_mul(size)),
            false => (Collective::Broadcast, "binomial", size),
        };
        let own = try_collect(own.iter().map(|&count| Ok(count as u64)), "the counts of this rank")?;
        let mut all = try_zeros::<u64>(entries, "the counts of all ranks")?;
        let shape = Shape { root: call.root, inputs: usize::from(tells), ..Shape::new(collective, rank, size, size) };
        let input = [own.as_ptr().cast()];
        let outputs = [all.as_mut_ptr().cast()];
        let inputs = if tells { &input[..] } else { &[] };
        let algorithm = collective.algorithm(name)?;
        let plan = self.context.plan(&shape, algorithm, false)?;
        let digest = Purpose::Counts.of(self.call.digest);
        let exchange = Prepared::internal(plan, (&shape, algorithm), size_of::<u64>(), digest, true)?;
        let exchange = Arc::new(Prepared { segment: entries, ..exchange });
        let Binding { tag, in_order, .. } = self.binding;
        let binding = Binding { call: &exchange, inputs, outputs: &outputs, function: None, tag, in_order };
        Run { binding, ..*self }.execute(&exchange)?;
        let counts = all.into_iter().map(|count| Ok(usize::try_from(count).unwrap_or(usize::MAX)));
        try_collect(counts, "the counts of all ranks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_no_memory_can_hold_are_refused_before_any_is_asked_for() {
        let shape = |counts| Shape { counts, ..Shape::new(Collective::Gatherv, 1, 3, 2) };
        assert_eq!(invalid_counts(&shape(&[1, 2, 3]), 8), None);
        assert_eq!(invalid_counts(&shape(&[1 << 52, 2, 3]), 1), None);
        let huge = invalid_counts(&shape(&[1 << 54, 2, 3]), 8).unwrap();
        assert_eq!(huge, "the counts of all ranks together are 18014398509481989 elements, which no memory can hold");
        assert!(invalid_counts(&shape(&[usize::MAX, 2, usize::MAX]), 16).unwrap().contains("no memory"));
        assert!(invalid_counts(&shape(&[1, 5, 3]), 8).unwrap().contains("expects 5 from it"));
    }
}

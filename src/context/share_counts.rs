//! Brings counts that only some ranks know to all, for algorithms that need them.
//!
//! Gatherv and scatterv: the root broadcasts its list. Alltoallv: every rank gathers everyone's. Each rank then compares what
//! it was told with its own call. Where they differ it fails, and breaks the context, so that nobody waits for it.

use std::hash::{Hash, Hasher};

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::context::call::{Run, SHARING};
use crate::engine::{Binding, Combine};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickHasher;

/// Elements of scratch memory that an algorithm may need for each that is counted: twice for each bit of a rank.
const SCRATCH: usize = 2 * usize::BITS as usize;

impl Context {
    /// What [`Shape::counts`] must be for this call. Collective.
    pub(super) fn share_counts(&self, run: &Run<'_>, binding: &Binding<'_>) -> Result<Vec<usize>> {
        let shape = &run.call.shape;
        let own = if shape.collective == Collective::Gatherv { shape.recv_counts } else { shape.send_counts };
        let counts = if self.size == 1 { own.to_vec() } else { self.exchange_counts(run, binding, own)? };
        let elements = counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
        let needs = elements.checked_mul(SCRATCH).and_then(|n| n.checked_mul(binding.element));
        let why = match needs {
            Some(bytes) if bytes <= isize::MAX as usize => Shape { counts: &counts, ..*shape }.counts_differ(),
            _ => Some(format!("all ranks' counts together are {elements} elements, which no memory can hold")),
        };
        let Some(why) = why else { return Ok(counts) };
        let text = format!("{}: {why}", run.call.describe(self.rank, run.algorithm.name));
        let error = Error::new(ErrorKind::Mismatch, text);
        let mut guard = self.lock()?;
        guard.break_with(&error, Some(&error));
        self.finish_closing(guard);
        Err(error)
    }

    fn exchange_counts(&self, run: &Run<'_>, binding: &Binding<'_>, own: &[usize]) -> Result<Vec<usize>> {
        let call = &run.call.shape;
        let gathers = call.collective == Collective::Alltoallv;
        let tells = gathers || self.rank == call.root;
        let (collective, name, entries) = match gathers {
            true => (Collective::Allgather, "bruck", self.size * self.size),
            false => (Collective::Broadcast, "binomial", self.size),
        };
        let own: Vec<u64> = own.iter().map(|&count| count as u64).collect();
        let mut all = vec![0u64; entries];
        let shape = Shape {
            root: call.root,
            inputs: usize::from(tells),
            ..Shape::new(collective, self.rank, self.size, self.size)
        };
        let input = [own.as_ptr().cast()];
        let mut hasher = QuickHasher::default();
        binding.check.hash(&mut hasher);
        let binding = Binding {
            inputs: if tells { &input } else { &[] },
            outputs: &[all.as_mut_ptr().cast()],
            element: size_of::<u64>(),
            segment: entries,
            combine: Combine::Nothing,
            check: SHARING | (binding.check >> 23 << 18) | (hasher.finish() as u32 & 0x3ffff),
            tag: binding.tag,
            count: self.size,
        };
        self.execute(run, &shape, collective.algorithm(name)?, &binding)?;
        Ok(all.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX)).collect())
    }
}

//! Prepares calls: algorithm, segment size, digest and plan; and a cache of prepared calls.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::collective::{Algorithm, Collective, Shape, Uses};
use crate::context::Context;
use crate::context::call::{Call, Run};
use crate::engine::Combine;
use crate::engine::plan::{Plan, Usage};
use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::tuner::file::AUTO;
use crate::tuner::{self, Decision, Tuner};
use crate::types::{ElementType, Rank};

/// The cache key: everything that preparing a call depends on, except the context's rank and size, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    count: usize,
    collective: Collective,
    dtype: ElementType,
    op: u32,
    root: Rank,
    inputs: usize,
    outputs: usize,
    average: bool,
    base: usize,
    destinations: usize,
    algorithm: Option<&'a str>,
    max_segment_bytes: Option<usize>,
    /// The addresses in memory of the tuner and of the hosts' list. Both are immutable; connecting replaces them.
    tuner: usize,
    hosts: usize,
}

impl<'a> Asked<'a> {
    /// `None` for a call with lists, whose comparison would take as long as preparing it. Equal blocks of a reduce_scatter are a
    /// number.
    pub(super) fn of(call: &Call<'a>, tuner: &Tuner, hosts: &[u32]) -> Option<Self> {
        // Lists all fields, so that a new one cannot be forgotten.
        let Call {
            shape,
            algorithm,
            dtype,
            reduction: _,
            inputs: _,
            outputs: _,
            tag: _,
            timeout: _,
            max_segment_bytes,
        } = *call;
        let Shape {
            collective,
            rank: _,
            size,
            root,
            count,
            send_counts,
            recv_counts,
            inputs,
            outputs,
            average,
            means: _,
            base,
            destinations,
            groups,
            shared: _,
            domains: _,
            dims,
            links,
            counts,
        } = shape;
        let equal = collective == Collective::ReduceScatter && count == 0 && recv_counts.len() == size;
        let (count, recv_counts) = match recv_counts {
            [block, others @ ..] if equal && others.iter().all(|other| other == block) => (*block, &[][..]),
            _ => (count, recv_counts),
        };
        let lists = send_counts.len() | recv_counts.len() | groups.len() | dims.len() | links.len() | counts.len();
        (lists == 0).then(|| Self {
            count,
            collective,
            dtype,
            op: call.op_code(),
            root,
            inputs,
            outputs,
            average,
            base,
            destinations,
            algorithm,
            max_segment_bytes,
            tuner: std::ptr::from_ref(tuner).addr(),
            hosts: hosts.as_ptr().addr(),
        })
    }
}

/// Only of the fields in which the calls of a program mostly differ.
impl Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.count, self.collective as u32, self.dtype.code(), self.op, self.root).hash(hasher);
    }
}

/// The result of preparing a call.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(super) algorithm: &'static Algorithm,
    /// Elements of a segment.
    pub(super) segment: usize,
    /// The digest in the call's messages.
    pub(super) check: u64,
    pub(super) plan: Arc<Plan>,
}

/// What is selected for a call, before any communication.
#[derive(Clone, Copy)]
pub(super) struct Selection {
    pub algorithm: &'static Algorithm,
    /// Elements of a segment.
    pub segment: usize,
    /// The digest in the call's messages.
    pub check: u64,
    pub combine: Combine,
}

impl Context {
    /// Selects the algorithm and the segment size. Returns the call with what that algorithm reads.
    pub(super) fn select<'a>(&'a self, call: &Call<'a>) -> Result<(Call<'a>, Selection)> {
        let (shape, element) = (&call.shape, call.element());
        if (shape.rank, shape.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "a call for rank {} of {} on a context of rank {} of {}",
                shape.rank, shape.size, self.rank, self.size
            )));
        }
        let combine = call.combine()?;
        let Decision { algorithm, segment_bytes, base } =
            self.tuner_of(element).decide(shape, element, call.algorithm)?;
        let shape = Shape {
            means: matches!(combine, Combine::Mean(_)),
            ..self.complete_shape(shape, element, base, algorithm.uses).only(algorithm.uses)
        };
        let call = Call { shape, ..*call };
        let max = call.max_segment_bytes.unwrap_or(usize::MAX);
        let segment = (tuner::segment_bytes(&call.shape, element, segment_bytes.min(max)) / element).max(1);
        let check = call.digest(algorithm, segment);
        Ok((call, Selection { algorithm, segment, check, combine }))
    }

    /// The plan of a run. Communicates if the algorithm needs counts that only other ranks have.
    pub(super) fn plan_of(&self, run: &Run<'_>) -> Result<Arc<Plan>> {
        if run.algorithm.uses == Uses::Counts {
            let counts = self.share_counts(run)?;
            return self.plan(&Shape { counts: &counts, ..run.call.shape }, run.algorithm, &run.binding);
        }
        self.plan(&run.call.shape, run.algorithm, &run.binding)
    }

    /// From now on, calls like this one execute the schedule that `generate` makes, in place of their algorithm's.
    #[cfg(test)]
    pub(crate) fn replace_schedule(
        &self,
        call: &Call<'_>,
        generate: fn(&Shape<'_>) -> Result<crate::schedule::Schedule>,
    ) -> Result<()> {
        let (call, selection) = self.select(call)?;
        // The cache of plans knows an algorithm by its name.
        let algorithm = Box::leak(Box::new(Algorithm { generate, ..*selection.algorithm }));
        self.plans.get(&call.shape, algorithm, matches!(selection.combine, Combine::User(..))).map(drop)
    }
}

/// Prepared calls.
#[derive(Default)]
pub(super) struct PreparedCalls(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    prepared: QuickMap<Asked<'static>, Prepared>,
    usage: Usage,
}

impl PreparedCalls {
    /// The result of preparing an equal call, if it is in the cache.
    pub(super) fn get(&self, asked: &Asked<'_>) -> Option<Prepared> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The keys live long enough to be compared with a shorter-lived one.
        let prepared: &QuickMap<Asked<'_>, Prepared> = &calls.prepared;
        prepared.get(asked).cloned()
    }

    /// Adds a prepared call, if there is memory for it.
    pub(super) fn set(&self, asked: Asked<'_>, prepared: Prepared) {
        // The caller's text may be freed before the next comparison.
        let algorithm = asked.algorithm.map(|name| if name == AUTO { AUTO } else { prepared.algorithm.name });
        let asked = Asked { algorithm, ..asked };
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.usage.add(&prepared.plan) {
            calls.prepared.clear();
        }
        if calls.prepared.try_reserve(1).is_ok() {
            calls.prepared.insert(asked, prepared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Reduction;
    use crate::types::DataType;
    use crate::types::ReduceOp;

    unsafe extern "C" fn function(
        _: *mut std::ffi::c_void,
        _: *const std::ffi::c_void,
        _: *const std::ffi::c_void,
        _: usize,
        _: *mut std::ffi::c_void,
    ) -> i32 {
        0
    }

    #[test]
    fn calls_that_differ_ask_for_something_else() {
        let shape = Shape::new(Collective::Allreduce, 1, 4, 100);
        let call = Call::new(shape, DataType::Float32);
        let calls = [
            call,
            Call { shape: Shape { collective: Collective::Reduce, ..shape }, ..call },
            Call { shape: Shape { root: 1, ..shape }, ..call },
            Call { shape: Shape { count: 101, ..shape }, ..call },
            Call { shape: Shape { inputs: 0, ..shape }, ..call },
            Call { shape: Shape { outputs: 2, ..shape }, ..call },
            Call { shape: Shape { average: true, ..shape }, ..call },
            Call { shape: Shape { base: 3, ..shape }, ..call },
            Call { shape: Shape { destinations: 1, ..shape }, ..call },
            Call { algorithm: Some("ring"), ..call },
            Call { algorithm: Some("bcube"), ..call },
            Call { dtype: DataType::Int32.into(), ..call },
            Call { reduction: Reduction::Op(ReduceOp::Max), ..call },
            Call { reduction: Reduction::User { function, user: std::ptr::null_mut() }, ..call },
            Call { max_segment_bytes: Some(1 << 20), ..call },
            Call { max_segment_bytes: Some(100), ..call },
        ];
        let (tuner, hosts) = ([1, 1].map(|size| Tuner::built_in(size, 1 << 20)), [0, 0]);
        let mut all = Vec::new();
        for (tuner, hosts) in [(&tuner[0], &hosts[..1]), (&tuner[1], &hosts[..1]), (&tuner[0], &hosts[1..])] {
            for call in &calls {
                let asked = Asked::of(call, tuner, hosts).unwrap();
                assert_eq!(Asked::of(&Call { tag: 7, ..*call }, tuner, hosts), Some(asked));
                assert!(!all.contains(&asked), "another one's: {asked:?}");
                all.push(asked);
            }
        }
        let lists = [
            Shape { send_counts: &[1], ..shape },
            Shape { recv_counts: &[1], ..shape },
            Shape { groups: &[1], ..shape },
            Shape { dims: &[1], ..shape },
            Shape { links: &[1], ..shape },
            Shape { counts: &[1], ..shape },
        ];
        for shape in lists {
            assert_eq!(Asked::of(&Call { shape, ..call }, &tuner[0], &hosts), None, "{shape:?}");
        }
        let blocks = |recv_counts| Call {
            shape: Shape { recv_counts, count: 0, collective: Collective::ReduceScatter, ..shape },
            ..call
        };
        let equal = [&[3; 4], &[5; 4]].map(|counts| Asked::of(&blocks(counts), &tuner[0], &hosts));
        assert!(equal.iter().all(Option::is_some) && equal[0] != equal[1], "{equal:?}");
        for counts in [&[3; 3][..], &[3, 3, 3, 4], &[3; 5]] {
            assert_eq!(Asked::of(&blocks(counts), &tuner[0], &hosts), None, "{counts:?}");
        }
    }
}

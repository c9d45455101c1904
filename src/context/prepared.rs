//! Prepares calls: selects algorithm and segment size, and gets the plan; and finds calls that were prepared before.

use std::sync::{Arc, PoisonError};

use crate::collective::{Algorithm, Collective, Shape, Uses};
use crate::context::Context;
use crate::context::call::{Call, Reduction};
use crate::context::rounds::may_share_counts;
use crate::context::run::Run;
use crate::engine::cache::CallKey;
use crate::engine::plan::{OwnedShape, Plan};
use crate::engine::prepared::{Arguments, BufferBounds, OwnedArguments};
use crate::engine::recorder::counters::Kind;
use crate::engine::recorder::{CallCounter, Link};
use crate::engine::shared::quick_start::QuickStart;
use crate::engine::{Combine, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::tuner::file::AUTO;
use crate::tuner::overrides::{self, Override};
use crate::tuner::{self, Decision, Tuner};
use crate::types::{ElementType, ReduceOp};

impl Context {
    /// By what `call` is looked up; `None` if it must be prepared each time.
    #[inline]
    pub(crate) fn key_of<'a>(&self, call: &Call<'a>) -> Option<CallKey<'a>> {
        let &Call { shape, algorithm, dtype, max_segment_bytes, .. } = call;
        if self.check_calls || (shape.rank, shape.size) != (self.rank, self.size) {
            return None;
        }
        let arguments = Arguments { shape, dtype, operation: call.op_code(), algorithm, max_segment_bytes };
        let is_average = shape.collective.reduces() && matches!(call.reduction, Reduction::Op(ReduceOp::Average));
        Some(CallKey::new(arguments, is_average))
    }

    /// An equal call that was prepared before.
    pub(crate) fn cached(&self, key: &CallKey<'_>) -> Option<Arc<Prepared>> {
        match self.shared_memory.get() {
            Some(shared) => shared.cached(key),
            None => self.cache.lock().unwrap_or_else(PoisonError::into_inner).get_any(key).cloned(),
        }
    }

    /// Adds a call, which `tuner` has decided, to the cache.
    fn remember(&self, key: &CallKey<'_>, call: &Arc<Prepared>, tuner: &Tuner) {
        // What was decided before the ranks have agreed on a tuning counts no more.
        let is_current = || std::ptr::eq(tuner, self.tuners.current());
        match self.shared_memory.get() {
            Some(shared) => shared.remember(key, call.clone(), is_current),
            None => {
                let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
                if is_current() {
                    cache.set(key, call.clone(), true);
                }
            }
        }
    }

    /// Forgets all calls, since ranks have agreed on another tuning.
    pub(super) fn forget_calls(&self) {
        if let Some(shared) = self.shared_memory.get() {
            shared.forget_calls();
        }
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clear(true);
    }

    /// Selects the algorithm and the segment size. The result has no plan.
    pub(super) fn select(&self, call: &Call<'_>) -> Result<Prepared> {
        let element = call.element();
        let shape = &Shape { order: call.order(self.options.order)?, ..call.shape };
        if (shape.rank, shape.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "a call for rank {} of {} on a context of rank {} of {}",
                shape.rank, shape.size, self.rank, self.size
            )));
        }
        let combine = Call { shape: *shape, ..*call }.combine()?;
        let Decision { algorithm, segment_bytes, base } =
            self.tuners.for_elements(element).decide(shape, element, call.algorithm)?;
        let shape = Shape {
            means: matches!(combine, Combine::Mean(_)),
            ..self.complete_shape(shape, element, base, algorithm.uses).only(algorithm.uses)
        };
        let call = Call { shape, ..*call };
        let max = call.max_segment_bytes.unwrap_or(usize::MAX);
        let segment = (tuner::segment_bytes(&call.shape, element, segment_bytes.min(max)) / element).max(1);
        let settles = match (call.reduction, call.dtype) {
            (Reduction::Op(op), ElementType::Known(dtype)) => shape.has_lone_result().then_some((dtype, op)),
            _ => None,
        };
        let bounds = match shape {
            Shape { inputs: 0..=1, outputs: 0..=1, blocks: false, .. } => {
                let of = |len: usize| BufferBounds::new(len * element, call.dtype.align());
                let (input, output) = (shape.inputs > 0, shape.outputs > 0);
                [input.then(|| of(shape.input_len(0))), output.then(|| of(shape.output_len(0)))]
            }
            _ => [Some(BufferBounds::NONE); 2],
        };
        Ok(Prepared {
            shape: OwnedShape::new(&shape)?,
            dtype: call.dtype,
            operation: call.op_code(),
            algorithm,
            element,
            segment,
            digest: call.digest(algorithm, segment),
            counted: true,
            count: call.count(self.rank),
            bytes: call.count(self.rank).saturating_mul(element),
            counter: self.engine().recorder().counters.uncounted(),
            plan: Arc::default(),
            combine,
            settles,
            arguments: None,
            bounds,
            quick_start: None,
        })
    }

    /// `shape`, for elements of `element` bytes and an algorithm with `uses`, with the context's defaults for fields
    /// that the caller has not set.
    pub(super) fn complete_shape<'a>(
        &'a self,
        shape: &Shape<'a>,
        element: usize,
        base: Option<usize>,
        uses: Uses,
    ) -> Shape<'a> {
        let tuner = self.tuners.for_elements(element);
        let or = |given: &'a [u32], known: &'a [u32]| if given.is_empty() { known } else { given };
        Shape {
            base: base.unwrap_or(shape.base),
            groups: or(shape.groups, self.hosts()),
            shared: match uses {
                Uses::Groups => tuner.topology().shared && (shape.groups.is_empty() || shape.groups == self.hosts()),
                _ => tuner.shares_memory(),
            },
            // On one host, the groups that a caller passes are the caches.
            domains: or(shape.groups, &tuner.topology().domains),
            links: or(shape.links, tuner.links()),
            ..*shape
        }
    }

    /// The plan of `algorithm` for `shape`; `by_function`: a function of the caller combines elements.
    pub(super) fn plan(
        &self,
        shape: &Shape<'_>,
        algorithm: &'static Algorithm,
        by_function: bool,
    ) -> Result<Arc<Plan>> {
        let plan = self.plans.get(shape, algorithm, by_function);
        plan.map_err(|error| self.unplanned(shape.collective, algorithm, error))
    }

    /// The error of an algorithm that these ranks cannot execute: with its name, and the variable that may have
    /// selected it.
    #[cold]
    fn unplanned(&self, collective: Collective, algorithm: &'static Algorithm, error: Error) -> Error {
        if error.kind() != ErrorKind::Unsupported {
            return error;
        }
        let is_this = |part: &Override| {
            part.collective == collective && part.algorithm().is_some_and(|other| std::ptr::eq(other, algorithm))
        };
        let by = if self.tuners.current().overrides().iter().any(is_this) {
            format!(", which {} of rank 0 names", overrides::VARIABLE)
        } else {
            String::new()
        };
        error.context(format_args!("the algorithm {}{by}", algorithm.name))
    }

    /// Prepares a call, without communicating: it has no plan if that depends on counts of other ranks.
    pub(super) fn prepare(&self, call: &Call<'_>, key: Option<&CallKey<'_>>) -> Result<Arc<Prepared>> {
        let tuner = self.tuners.current();
        let selected = self.select(call)?;
        let plan = match selected.algorithm.uses {
            Uses::Counts => return Ok(Arc::new(selected)),
            _ => self.plan_of(&selected, &selected.shape.get())?,
        };
        self.planned(selected, plan, key, tuner)
    }

    /// `selected` with its `plan`; it is in the cache from now on, if it has a `key`.
    pub(super) fn planned(
        &self,
        selected: Prepared,
        plan: Arc<Plan>,
        key: Option<&CallKey<'_>>,
        tuner: &Tuner,
    ) -> Result<Arc<Prepared>> {
        let name = |given: &str| if given == AUTO { AUTO } else { selected.algorithm.name };
        let own = |arguments: &Arguments<'_>| OwnedArguments::new(arguments, arguments.algorithm.map(name));
        let arguments = key.and_then(|key| key.arguments()).map(own).transpose()?.map(Box::new);
        let quick_start = self.quick_start(&selected, &plan);
        let is_local = selected.algorithm.uses != Uses::Counts;
        let counter = self.counter(&selected, &plan);
        let prepared = Arc::new(Prepared { plan, counter, arguments, quick_start, ..selected });
        if let Some(key) = key.filter(|_| is_local) {
            self.remember(key, &prepared, tuner);
        }
        Ok(prepared)
    }

    /// What counts the runs of `call` by `plan`.
    pub(super) fn counter(&self, call: &Prepared, plan: &Plan) -> Arc<CallCounter> {
        let link = match plan {
            Plan { program: Some(_), .. } if self.shared_memory.get().is_some() => Link::SharedMemory,
            Plan { shared_steps: Some(_), .. } => Link::Both,
            _ => Link::Messages,
        };
        let counters = &self.engine().recorder().counters;
        let kind = Kind::of(call.digest, link);
        kind.map_or_else(|| counters.uncounted(), |kind| counters.counter(kind, call.bytes))
    }

    /// What `selected` needs to start in few steps; `None` if it must be started as others are.
    fn quick_start(&self, selected: &Prepared, plan: &Plan) -> Option<QuickStart> {
        let (Some(shared), Some(program)) = (self.shared_memory.get(), &plan.program) else { return None };
        // A call that an operation of several rounds may exclude must be admitted first.
        let may_be_excluded = self.check_calls || may_share_counts(selected.collective());
        let Prepared { element, combine, digest, settles, .. } = *selected;
        let shape = selected.shape.get();
        if may_be_excluded || shape.inputs > 1 || shape.outputs > 1 || shape.blocks || settles.is_some() {
            return None;
        }
        Some(QuickStart::new(plan, program, element, combine.kernel(), digest, shared.reads()))
    }

    fn plan_of(&self, call: &Prepared, shape: &Shape<'_>) -> Result<Arc<Plan>> {
        self.plan(shape, call.algorithm, matches!(call.combine, Combine::User))
    }

    /// From now on, calls like this one execute the schedule that `generate` makes, in place of their algorithm's.
    #[cfg(test)]
    pub(crate) fn replace_schedule(
        &self,
        call: &Call<'_>,
        generate: fn(&Shape<'_>) -> Result<crate::schedule::Schedule>,
    ) -> Result<()> {
        let selected = self.select(call)?;
        // The cache of plans knows an algorithm by its name.
        let algorithm = Box::leak(Box::new(Algorithm { generate, ..*selected.algorithm }));
        self.plans.get(&selected.shape.get(), algorithm, matches!(selected.combine, Combine::User)).map(drop)
    }
}

impl Run<'_> {
    /// The plan of the call. Communicates if the algorithm needs counts that only other ranks have.
    pub fn plan(&self) -> Result<Arc<Plan>> {
        let (call, shape) = (self.call, self.call.shape.get());
        match call.algorithm.uses {
            Uses::Counts => self.context.plan_of(call, &Shape { counts: &self.share_counts()?, ..shape }),
            _ => self.context.plan_of(call, &shape),
        }
    }
}

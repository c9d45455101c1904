//! Compiles schedules to plans, and caches these by shape.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::collective::{Algorithm, Collective, Order, Shape, mean};
use crate::engine::shared::program::Program;
use crate::engine::shared::steps::SharedSteps;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::{QuickHasher, QuickMap};
use crate::reserve::{check_room, try_copy, try_reserve_entry};
use crate::schedule::fold::Folds;
use crate::schedule::weights::Weights;
use crate::schedule::{Action, Dependency, Schedule, Step};

/// Most ranks for which schedules are generated. Most schedules take memory for each rank, in all some kilobytes.
pub const MAX_RANKS: usize = 1 << 20;

/// Upper bound of the memory for generating and compiling a schedule, per rank: 4 steps of two pieces.
const BYTES_PER_RANK: usize = 4 << 10;

/// Upper bound of the memory for generating and compiling a schedule, per input and output, besides that for the ranks.
const BYTES_PER_BUFFER: usize = 1 << 10;

/// Refuses a call with more than [`MAX_RANKS`] ranks.
pub fn check_size(shape: &Shape<'_>) -> Result<()> {
    let Shape { collective, size, .. } = shape;
    if *size <= MAX_RANKS {
        return Ok(());
    }
    let text = format!("{} among {size} ranks: schedules are made for at most {MAX_RANKS}", collective.name());
    Err(Error::new(ErrorKind::ResourceExhausted, text))
}

/// Fails if there is not enough memory to generate a schedule for `shape`. Generators themselves abort if an allocation
/// fails.
fn check_schedule_room(shape: &Shape<'_>) -> Result<()> {
    check_size(shape)?;
    let (name, size) = (shape.collective.name(), shape.size);
    let bytes = size * BYTES_PER_RANK + (shape.inputs + shape.outputs) * BYTES_PER_BUFFER;
    check_room(bytes, format_args!("a schedule of {name} among {size} ranks, which may take so many"))
}

/// A step whose dependency lists are ranges of the plan's.
#[derive(Clone, Copy, Debug)]
pub struct PlanStep {
    /// What the step does.
    pub action: Action,
    /// Identifies the message between the two ranks; see [`Step::channel`].
    pub channel: u32,
    /// Elements; see [`Action::progress`].
    pub len: usize,
    after: (u32, u32),
    before: (u32, u32),
}

/// One rank's schedule, with the dependencies in both directions.
#[derive(Debug, Default)]
pub struct Plan {
    /// The steps.
    pub steps: Box<[PlanStep]>,
    dependencies: Box<[Dependency]>,
    dependents: Box<[u32]>,
    /// The weights of the operands of each step that reduces. Empty if the plan does not compute means.
    pub weights: Box<[Weights]>,
    /// What is combined at once, if all contributions must be. Empty otherwise, and where the program does so.
    pub folds: Folds,
    /// Elements of scratch memory.
    pub scratch: usize,
    /// The schedule for one thread, if all ranks are on one host and all steps use shared memory.
    pub program: Option<Program>,
    /// The steps on shared memory, if there are messages, too.
    pub shared_steps: Option<SharedSteps>,
}

impl Plan {
    /// Compiles a schedule.
    pub fn new(schedule: &Schedule) -> Self {
        let mut dependents = vec![Vec::new(); schedule.steps.len()];
        let mut dependencies = Vec::new();
        let mut steps: Vec<PlanStep> = Vec::with_capacity(schedule.steps.len());
        for (index, Step { action, channel, after }) in schedule.steps.iter().enumerate() {
            let begin = dependencies.len() as u32;
            for dependency in after {
                dependencies.push(*dependency);
                dependents[dependency.step as usize].push(index as u32);
            }
            let after = (begin, dependencies.len() as u32);
            steps.push(PlanStep { action: *action, channel: *channel, len: action.progress(), after, before: (0, 0) });
        }
        let mut flat = Vec::new();
        for (step, dependents) in steps.iter_mut().zip(&dependents) {
            let begin = flat.len() as u32;
            flat.extend_from_slice(dependents);
            step.before = (begin, flat.len() as u32);
        }
        Self {
            steps: steps.into(),
            dependencies: dependencies.into(),
            dependents: flat.into(),
            weights: Box::default(),
            folds: Folds::default(),
            scratch: schedule.scratch,
            program: None,
            shared_steps: None,
        }
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let lists = [
            size_of_val(&*self.steps),
            size_of_val(&*self.dependencies),
            size_of_val(&*self.dependents),
            size_of_val(&*self.weights),
            self.folds.bytes(),
        ];
        let programs = [self.program.as_ref(), self.shared_steps.as_ref().map(|steps| &steps.program)];
        size_of::<Self>()
            + lists.iter().sum::<usize>()
            + programs.into_iter().flatten().map(|p| p.bytes()).sum::<usize>()
    }

    /// The steps that `step` depends on.
    pub fn after(&self, step: &PlanStep) -> &[Dependency] {
        &self.dependencies[step.after.0 as usize..step.after.1 as usize]
    }

    /// The steps that depend on `step`.
    pub fn before(&self, step: &PlanStep) -> &[u32] {
        &self.dependents[step.before.0 as usize..step.before.1 as usize]
    }
}

/// Empty slices of readable memory. `memcmp` of zero bytes at an unmapped address, such as that of `&[]`, takes tens of
/// nanoseconds with glibc's AVX-512 version, because the processor suppresses a fault of its masked load.
static NOTHING: ([usize; 1], [u32; 1]) = ([0], [0]);

/// Does not compare empty slices, for the same reason.
fn same<T: PartialEq>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

/// A copy of a list of a call's.
pub fn boxed<T: Copy>(list: &[T]) -> Result<Box<[T]>> {
    try_copy(list, "the lists of a call").map(Vec::into_boxed_slice)
}

/// All that a plan depends on, in owned memory.
#[derive(Debug)]
pub struct OwnedShape {
    scalars: Shape<'static>,
    /// `send_counts`, `recv_counts`, `dims`, `counts`.
    counts: [Box<[usize]>; 4],
    /// `groups`, `domains`, `links`.
    numbers: [Box<[u32]>; 3],
}

impl OwnedShape {
    /// A copy of `shape`.
    pub fn new(shape: &Shape<'_>) -> Result<Self> {
        let (none, no_numbers) = (&NOTHING.0[..0], &NOTHING.1[..0]);
        Ok(Self {
            scalars: Shape {
                send_counts: none,
                recv_counts: none,
                groups: no_numbers,
                domains: no_numbers,
                dims: none,
                links: no_numbers,
                counts: none,
                ..*shape
            },
            counts: [boxed(shape.send_counts)?, boxed(shape.recv_counts)?, boxed(shape.dims)?, boxed(shape.counts)?],
            numbers: [boxed(shape.groups)?, boxed(shape.domains)?, boxed(shape.links)?],
        })
    }

    /// The shape.
    pub fn get(&self) -> Shape<'_> {
        let [send_counts, recv_counts, dims, counts] = &self.counts;
        let [groups, domains, links] = &self.numbers;
        Shape { send_counts, recv_counts, groups, domains, dims, links, counts, ..self.scalars }
    }

    /// The collective.
    #[inline]
    pub fn collective(&self) -> Collective {
        self.scalars.collective
    }

    /// Whether it is a copy of `shape`.
    pub fn is(&self, shape: &Shape<'_>) -> bool {
        let Shape { collective, rank, size, root, count, inputs, outputs, .. } = self.scalars;
        let Shape { average, means, order, base, destinations, shared, blocks, .. } = self.scalars;
        let Shape { send_counts, recv_counts, groups, domains, dims, links, counts, .. } = *shape;
        (count, rank, size, root) == (shape.count, shape.rank, shape.size, shape.root)
            && (inputs, outputs, base, destinations) == (shape.inputs, shape.outputs, shape.base, shape.destinations)
            && (collective, shared, blocks) == (shape.collective, shape.shared, shape.blocks)
            && (average, means, order) == (shape.average, shape.means, shape.order)
            && self.counts.iter().zip([send_counts, recv_counts, dims, counts]).all(|(own, other)| same(own, other))
            && self.numbers.iter().zip([groups, domains, links]).all(|(own, other)| same(own, other))
    }
}

#[derive(Debug)]
struct Cached {
    shape: OwnedShape,
    algorithm: &'static str,
    by_function: bool,
    plan: Arc<Plan>,
}

/// Plans by shape. A lookup does not allocate. A missing plan is generated without holding the lock.
#[derive(Debug, Default)]
pub struct PlanCache(Mutex<Plans>);

#[derive(Debug, Default)]
struct Plans {
    cached: QuickMap<u64, Vec<Cached>>,
    usage: Usage,
}

/// Most plans that a cache holds, and most of their bytes.
pub const MAX_CACHED: usize = 4096;
const MAX_CACHED_BYTES: usize = 32 << 20;

/// How many plans a cache holds. When it is full, all are removed: which of them a program will use again is not known.
#[derive(Debug, Default)]
pub struct Usage {
    plans: usize,
    bytes: usize,
}

#[cold]
fn no_fold(algorithm: &Algorithm) -> Error {
    let text = format!("{} is not reproducible: a rank combines some contributions before others", algorithm.name);
    Error::new(ErrorKind::Internal, text)
}

impl Usage {
    /// Counts one more. Returns whether the cache is full: then the caller removes all others first, and this one alone
    /// is counted. An empty cache takes a plan of any size.
    #[must_use]
    pub fn add(&mut self, plan: &Plan) -> bool {
        let bytes = plan.bytes();
        let is_full = self.plans > 0 && (self.plans == MAX_CACHED || self.bytes + bytes > MAX_CACHED_BYTES);
        if is_full {
            *self = Self::default();
        }
        (self.plans, self.bytes) = (self.plans + 1, self.bytes + bytes);
        is_full
    }

    /// Number of plans.
    pub fn plans(&self) -> usize {
        self.plans
    }
}

impl PlanCache {
    /// The plan of `algorithm` for `shape`; with `by_function`, without receive-and-reduce steps.
    pub fn get(&self, shape: &Shape<'_>, algorithm: &'static Algorithm, by_function: bool) -> Result<Arc<Plan>> {
        let mut hasher = QuickHasher::default();
        shape.hash(&mut hasher);
        (algorithm.name.as_ptr() as usize, by_function).hash(&mut hasher);
        let hash = hasher.finish();
        let same = |cached: &&Cached| {
            std::ptr::eq(cached.algorithm, algorithm.name)
                && cached.by_function == by_function
                && cached.shape.is(shape)
        };
        let find = |plans: &Plans| Some(plans.cached.get(&hash)?.iter().find(same)?.plan.clone());
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = find(&lock()) {
            return Ok(plan);
        }
        check_schedule_room(shape)?;
        let mut schedule = algorithm.schedule(shape)?;
        if by_function {
            schedule = schedule.without_receive_and_reduce();
        }
        // Of steps on shared memory a program is compiled, which combines at once what it can.
        let is_compiled = schedule.steps.iter().any(|step| step.action.is_shared());
        let apart = (shape.order == Order::Reproducible).then(|| shape.size * shape.contributions());
        let folds = apart.filter(|_| !is_compiled).map(|all| schedule.fold(all).ok_or_else(|| no_fold(algorithm)));
        let folds = folds.transpose()?.unwrap_or_default();
        let mut plan = Plan { folds, ..Plan::new(&schedule) };
        if shape.means {
            plan.weights = mean::weights(shape, algorithm, &schedule)?;
        }
        if shape.shared {
            let members = shape.sharing();
            match members.len() == shape.size {
                true => {
                    plan.program = Program::new(&schedule, &plan.weights, shape.size, !by_function);
                    plan.scratch = plan.program.as_ref().map_or(plan.scratch, |program| program.scratch);
                }
                false => plan.shared_steps = SharedSteps::new(&schedule, &plan.weights, &members),
            }
        }
        if let (Some(all), Some(program)) = (apart, &plan.program)
            && !program.combines_at_once(all)
        {
            return Err(no_fold(algorithm));
        }
        let plan = Arc::new(plan);
        let mut plans = lock();
        // Another thread may have added it meanwhile.
        if let Some(plan) = find(&plans) {
            return Ok(plan);
        }
        let cached =
            Cached { shape: OwnedShape::new(shape)?, algorithm: algorithm.name, by_function, plan: plan.clone() };
        if plans.usage.add(&plan) {
            plans.cached.clear();
        }
        try_reserve_entry(&mut plans.cached, "the cache of schedules")?;
        plans.cached.entry(hash).or_default().push(cached);
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_its_own_plan_and_keeps_it() {
        let algorithms = Collective::Allreduce.algorithms();
        let find = |name: &str| algorithms.iter().find(|algorithm| algorithm.name == name).unwrap();
        let (one, other) = (find("recursive_doubling"), find("halving_doubling"));
        let shape = Shape::new(Collective::Allreduce, 1, 4, 100);
        let shapes = [
            shape,
            Shape { rank: 2, ..shape },
            Shape { size: 8, ..shape },
            Shape { root: 1, ..shape },
            Shape { count: 101, ..shape },
            Shape { inputs: 2, ..shape },
            Shape { outputs: 2, ..shape },
            Shape { blocks: true, ..shape },
            Shape { order: Order::Ranks, ..shape },
            Shape { average: true, ..shape },
            Shape { average: true, means: true, ..shape },
            Shape { base: 3, ..shape },
            Shape { destinations: 1, ..shape },
            Shape { send_counts: &[1], ..shape },
            Shape { recv_counts: &[1], ..shape },
            Shape { recv_counts: &[2], ..shape },
            Shape { groups: &[1], ..shape },
            Shape { shared: true, ..shape },
            Shape { dims: &[1], ..shape },
            Shape { links: &[1], ..shape },
            Shape { counts: &[1], ..shape },
        ];
        let cache = PlanCache::default();
        let mut plans = Vec::new();
        for shape in &shapes {
            for (algorithm, by_function) in [(one, false), (one, true), (other, false)] {
                let plan = cache.get(shape, algorithm, by_function).unwrap();
                assert!(
                    Arc::ptr_eq(&plan, &cache.get(shape, algorithm, by_function).unwrap()),
                    "asked for again: {shape:?}"
                );
                assert!(plans.iter().all(|known| !Arc::ptr_eq(known, &plan)), "another one's: {shape:?}");
                plans.push(plan);
            }
        }
        let wanted = shapes.iter().flat_map(|shape| [(shape, one, false), (shape, one, true), (shape, other, false)]);
        for ((shape, algorithm, by_function), plan) in wanted.zip(&plans) {
            assert!(Arc::ptr_eq(plan, &cache.get(shape, algorithm, by_function).unwrap()), "cached: {shape:?}");
        }
    }
}

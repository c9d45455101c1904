//! Schedules made ready for execution, and kept for the next call of the same shape.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::collective::{Algorithm, Shape};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::{QuickHasher, QuickMap};
use crate::schedule::{Action, Buffer, Dependency, Schedule, Side, Span, Step};

/// Ranks that schedules are made for at most. Most take memory for each, kilobytes in all.
pub const MAX_RANKS: usize = 1 << 20;

/// About what generating a schedule and compiling it takes for each rank, at most: 4 steps of two pieces.
const BYTES_PER_RANK: usize = 4 << 10;

/// Refuses a call among more ranks than schedules are made for.
pub fn check_size(shape: &Shape<'_>) -> Result<()> {
    let Shape { collective, size, .. } = shape;
    if *size <= MAX_RANKS {
        return Ok(());
    }
    let text = format!("{} among {size} ranks: schedules are made for at most {MAX_RANKS}", collective.name());
    Err(Error::new(ErrorKind::ResourceExhausted, text))
}

/// Whether there is memory to make a schedule for `shape`; what generators allocate could not fail otherwise.
fn check_room(shape: &Shape<'_>) -> Result<()> {
    check_size(shape)?;
    let bytes = shape.size * BYTES_PER_RANK;
    // Not taken to be unused by the compiler.
    if std::hint::black_box(Vec::<u8>::new()).try_reserve_exact(bytes).is_ok() {
        return Ok(());
    }
    let (name, size) = (shape.collective.name(), shape.size);
    let text = format!("no memory for a schedule of {name} among {size} ranks, which may take {bytes} bytes");
    Err(Error::new(ErrorKind::ResourceExhausted, text))
}

/// A step whose lists are ranges of the plan's.
#[derive(Clone, Copy, Debug)]
pub struct PlanStep {
    /// What is done.
    pub action: Action,
    /// Which message between the two ranks; see [`Step::channel`].
    pub channel: u32,
    /// Elements.
    pub len: usize,
    after: (u32, u32),
    before: (u32, u32),
}

/// One rank's part, with the dependencies in both directions.
#[derive(Debug)]
pub struct Plan {
    /// The steps.
    pub steps: Box<[PlanStep]>,
    dependencies: Box<[Dependency]>,
    dependents: Box<[u32]>,
    /// Elements of scratch memory.
    pub scratch: usize,
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
            steps.push(PlanStep { action: *action, channel: *channel, len: action_len(action), after, before: (0, 0) });
        }
        let mut flat = Vec::new();
        for (step, its) in steps.iter_mut().zip(&dependents) {
            let begin = flat.len() as u32;
            flat.extend_from_slice(its);
            step.before = (begin, flat.len() as u32);
        }
        Self {
            steps: steps.into(),
            dependencies: dependencies.into(),
            dependents: flat.into(),
            scratch: schedule.scratch,
        }
    }

    /// What `step` waits for.
    pub fn after(&self, step: &PlanStep) -> &[Dependency] {
        &self.dependencies[step.after.0 as usize..step.after.1 as usize]
    }

    /// Which steps wait for `step`.
    pub fn before(&self, step: &PlanStep) -> &[u32] {
        &self.dependents[step.before.0 as usize..step.before.1 as usize]
    }
}

fn action_len(action: &Action) -> usize {
    match action {
        Action::Send { from, .. } => from.len,
        Action::Recv { into, .. } | Action::RecvReduce { into, .. } => into.len,
        Action::Copy { into, .. } | Action::Reduce { into, .. } => into.len,
        Action::Divide { span, .. } => span.len,
    }
}

/// The same schedule with every receive-and-reduce taken apart into a receive to scratch memory and a reduction: for the
/// caller's own functions, which only the caller's thread may run.
pub fn without_receive_and_reduce(schedule: &Schedule) -> Schedule {
    let mut out = Schedule { steps: Vec::with_capacity(schedule.steps.len()), scratch: schedule.scratch };
    // Where each step of the original ends up: the reduction, for one that was taken apart.
    let mut place = Vec::with_capacity(schedule.steps.len());
    for step in &schedule.steps {
        let mut after: Vec<Dependency> =
            step.after.iter().map(|d| Dependency { step: place[d.step as usize], shift: d.shift }).collect();
        match step.action {
            Action::RecvReduce { from, into, with, incoming } => {
                let arrived = Span { buffer: Buffer::Scratch, offset: out.scratch, len: into.len };
                out.scratch += into.len;
                let recv = Action::Recv { from, into: arrived };
                after.push(Dependency { step: out.steps.len() as u32, shift: 0 });
                out.steps.push(Step { action: recv, channel: step.channel, after: Vec::new() });
                let (left, right) = match incoming {
                    Side::Left => (arrived, with),
                    Side::Right => (with, arrived),
                };
                out.steps.push(Step { action: Action::Reduce { left, right, into }, channel: 0, after });
            }
            action => out.steps.push(Step { action, channel: step.channel, after }),
        }
        place.push(out.steps.len() as u32 - 1);
    }
    out
}

/// Nothing in memory: unlike the address of `&[]`, this one can be read. Comparing no bytes at an address without memory costs
/// tens of nanoseconds with glibc's AVX-512 `memcmp`, whose masked load has its fault suppressed by the processor.
static NOTHING: ([usize; 1], [u32; 1]) = ([0], [0]);

/// For the same reason: does not compare where there is nothing.
fn same<T: PartialEq>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

/// Everything that a plan depends on, without references.
#[derive(Debug)]
struct OwnedShape {
    scalars: Shape<'static>,
    /// `send_counts`, `recv_counts`, `dims`, `counts`.
    counts: [Box<[usize]>; 4],
    /// `groups`, `links`.
    numbers: [Box<[u32]>; 2],
}

impl OwnedShape {
    fn new(shape: &Shape<'_>) -> Self {
        let (none, no_numbers) = (&NOTHING.0[..0], &NOTHING.1[..0]);
        Self {
            scalars: Shape {
                send_counts: none,
                recv_counts: none,
                groups: no_numbers,
                dims: none,
                links: no_numbers,
                counts: none,
                ..*shape
            },
            counts: [shape.send_counts, shape.recv_counts, shape.dims, shape.counts].map(Box::from),
            numbers: [shape.groups, shape.links].map(Box::from),
        }
    }

    fn is(&self, shape: &Shape<'_>) -> bool {
        let Shape { collective, rank, size, root, count, inputs, outputs, average, base, destinations, .. } =
            self.scalars;
        let Shape { send_counts, recv_counts, groups, dims, links, counts, .. } = *shape;
        (count, rank, size, root) == (shape.count, shape.rank, shape.size, shape.root)
            && (inputs, outputs, base, destinations) == (shape.inputs, shape.outputs, shape.base, shape.destinations)
            && (collective, average) == (shape.collective, shape.average)
            && self.counts.iter().zip([send_counts, recv_counts, dims, counts]).all(|(own, its)| same(own, its))
            && self.numbers.iter().zip([groups, links]).all(|(own, its)| same(own, its))
    }
}

#[derive(Debug)]
struct Kept {
    shape: OwnedShape,
    algorithm: &'static str,
    apart: bool,
    plan: Arc<Plan>,
}

/// Plans by shape. Looking one up that is there allocates nothing; one that is not is generated without a lock.
#[derive(Debug, Default)]
pub struct PlanCache(Mutex<Plans>);

#[derive(Debug, Default)]
struct Plans {
    kept: QuickMap<u64, Vec<Kept>>,
    len: usize,
}

/// Plans that are kept; beyond that, all are forgotten and the useful ones come back.
const MAX_KEPT: usize = 1024;

impl PlanCache {
    /// The plan of `algorithm` for `shape`; with `apart`, without receive-and-reduce.
    pub fn get(&self, shape: &Shape<'_>, algorithm: &'static Algorithm, apart: bool) -> Result<Arc<Plan>> {
        let mut hasher = QuickHasher::default();
        shape.hash(&mut hasher);
        (algorithm.name.as_ptr() as usize, apart).hash(&mut hasher);
        let hash = hasher.finish();
        let same =
            |kept: &&Kept| std::ptr::eq(kept.algorithm, algorithm.name) && kept.apart == apart && kept.shape.is(shape);
        let find = |plans: &Plans| Some(plans.kept.get(&hash)?.iter().find(same)?.plan.clone());
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = find(&lock()) {
            return Ok(plan);
        }
        check_room(shape)?;
        let mut schedule = (algorithm.generate)(shape)?;
        if apart {
            schedule = without_receive_and_reduce(&schedule);
        }
        let plan = Arc::new(Plan::new(&schedule));
        let mut plans = lock();
        // Another thread may have been faster.
        if let Some(plan) = find(&plans) {
            return Ok(plan);
        }
        if plans.len >= MAX_KEPT {
            plans.kept.clear();
            plans.len = 0;
        }
        plans.len += 1;
        let kept = Kept { shape: OwnedShape::new(shape), algorithm: algorithm.name, apart, plan: plan.clone() };
        plans.kept.entry(hash).or_default().push(kept);
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;

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
            Shape { average: true, ..shape },
            Shape { base: 3, ..shape },
            Shape { destinations: 1, ..shape },
            Shape { send_counts: &[1], ..shape },
            Shape { recv_counts: &[1], ..shape },
            Shape { recv_counts: &[2], ..shape },
            Shape { groups: &[1], ..shape },
            Shape { dims: &[1], ..shape },
            Shape { links: &[1], ..shape },
            Shape { counts: &[1], ..shape },
        ];
        let cache = PlanCache::default();
        let mut plans = Vec::new();
        for shape in &shapes {
            for (algorithm, apart) in [(one, false), (one, true), (other, false)] {
                let plan = cache.get(shape, algorithm, apart).unwrap();
                assert!(Arc::ptr_eq(&plan, &cache.get(shape, algorithm, apart).unwrap()), "asked for again: {shape:?}");
                assert!(plans.iter().all(|known| !Arc::ptr_eq(known, &plan)), "another one's: {shape:?}");
                plans.push(plan);
            }
        }
        let asked = shapes.iter().flat_map(|shape| [(shape, one, false), (shape, one, true), (shape, other, false)]);
        for ((shape, algorithm, apart), plan) in asked.zip(&plans) {
            assert!(Arc::ptr_eq(plan, &cache.get(shape, algorithm, apart).unwrap()), "kept: {shape:?}");
        }
    }
}

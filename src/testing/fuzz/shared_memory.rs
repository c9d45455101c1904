//! A fuzz target: the calls of a rank while another rank of its group writes anything into the memory that it shares.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::{Call, Shared, Wait, Work};
use crate::collective::{Collective, Shape};
use crate::engine::plan::PlanCache;
use crate::engine::prepared::{Binding, Combine, Function, Prepared};
use crate::engine::recorder::{Recorder, Writer};
use crate::publications::{PLACES, PublicationTable, TABLE_BYTES};
use crate::reduce;
use crate::testing::fuzz::Input;
use crate::testing::user_function::add;
use crate::transport::SystemClock;
use crate::transport::local::{LocalRanks, PUBLICATIONS};
use crate::transport::shm::HostGroup;
use crate::types::{DataType, ReduceOp};

const MEMBERS: usize = 3;
/// The member that scribbles; it makes calls, too, so that the others do not wait for it in vain.
const SCRIBBLER: usize = 1;
/// Limits the time of one run.
const MAX_STEPS: usize = 200;
const ELEMENT: usize = size_of::<f32>();

/// The calls that the ranks make.
const CALLS: [(Collective, &str); 8] = [
    (Collective::Allreduce, "shared_flat"),
    (Collective::Allreduce, "shared_slices"),
    (Collective::Reduce, "shared_slices"),
    (Collective::Broadcast, "shared_flat"),
    (Collective::Allgather, "shared_flat"),
    (Collective::Gather, "shared_flat"),
    (Collective::Alltoall, "shared_flat"),
    (Collective::Scan, "shared_flat"),
];

/// Numbers of elements: published in line, in a cell, and as a stream; the last but one is reduced in several pieces if
/// it is read by reference.
const COUNTS: [usize; 5] = [1, 8, 100, 40_000, 300_000];

const LAYOUT: Layout = match Layout::from_size_align(TABLE_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a publications has a layout"),
};

/// A publications in memory of its own, so that a sanitizer detects an access beyond it.
struct Memory(NonNull<u8>);

impl Memory {
    fn new() -> Self {
        // SAFETY: the size is not zero.
        Self(NonNull::new(unsafe { alloc_zeroed(LAYOUT) }).expect("memory for a publications"))
    }

    /// Makes the memory what it was at first, except the cells.
    fn clear(&self) {
        // SAFETY: these are whole pages of this memory, of which the system makes zeros.
        let done = unsafe { libc::madvise(self.0.as_ptr().cast(), PLACES[4], libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }

    /// The word that contains the byte `at`.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < TABLE_BYTES);
        // SAFETY: within the publications, and aligned; what lies there may change at any time.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>().add(at / 8) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` has allocated it with this layout.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) };
    }
}

thread_local! {
    /// To make them takes longer than a run.
    static HOST: (Vec<Arc<HostGroup>>, Vec<Memory>) =
        (HostGroup::in_process(MEMBERS), (0..MEMBERS).map(|_| Memory::new()).collect());
}

/// A rank, and the call that it makes.
struct Rank {
    rank: usize,
    shared: Shared,
    plans: PlanCache,
    running: Option<Running>,
}

/// A call. Its buffers are as long as they must be, and freed when it ends, so that a sanitizer detects other accesses.
struct Running {
    call: Option<Call>,
    wait: Option<Wait>,
    prepared: Prepared,
    tag: u64,
    user: bool,
    input: Vec<f32>,
    output: Vec<f32>,
}

/// A reduction function of the caller's, which finds elements where the ABI says that they are.
impl Running {
    /// Calls `body` with what the call executes.
    fn with<R>(&mut self, shared: &Shared, body: impl FnOnce(&mut Option<Call>, &Work<'_>) -> R) -> R {
        let (inputs, outputs) = ([self.input.as_ptr().cast()], [self.output.as_mut_ptr().cast()]);
        let function: Option<Function> = self.user.then_some((add::<f32>, std::ptr::null_mut()));
        let binding = Binding {
            call: &self.prepared,
            inputs: &inputs,
            outputs: &outputs,
            function,
            tag: self.tag,
            in_order: false,
        };
        let program = self.prepared.plan.program.as_ref().expect("its steps use shared memory");
        body(&mut self.call, &Work { shared, program, binding: &binding })
    }
}

impl Rank {
    fn new(group: Arc<HostGroup>, boards: &[Memory]) -> Self {
        let bases: Vec<_> = boards.iter().map(|memory| memory.0.as_ptr()).collect();
        let rank = group.index();
        // SAFETY: the memory is as long and aligned as it must be, and outlives the ranks.
        let publications = unsafe { PublicationTable::new(&bases, rank) };
        // Results of the longest calls are stored past the caches.
        let cache_bytes = COUNTS[3] * ELEMENT;
        let usable = AtomicBool::new(true);
        let (state, started, awaits_memory, ended_registration) = Default::default();
        let (kept, reads) = (Arc::default(), true);
        let (mark, local) = (group.mark().clone(), group);
        let recorder = Recorder::new(Arc::new(SystemClock), Instant::now()).expect("memory");
        let recorder = Writer::new(Arc::new(recorder));
        let shared = Shared {
            local,
            mark,
            publications,
            reads,
            cache_bytes,
            usable,
            awaits_memory,
            ended_registration,
            state,
            started,
            kept,
            recorder,
        };
        Self { rank, shared, plans: PlanCache::default(), running: None }
    }

    fn start(&mut self, input: &mut Input<'_>) -> Option<()> {
        let ((collective, algorithm), count) = (input.pick(&CALLS)?, input.pick(&COUNTS)?);
        let shape_bits = input.byte()?;
        if self.running.is_some() {
            return Some(());
        }
        let (tag, user) = (u64::from(shape_bits & 1), shape_bits & 2 != 0);
        let shape = Shape { shared: true, ..Shape::new(collective, self.rank, MEMBERS, count) };
        let algorithm = collective.algorithm(algorithm).expect("an algorithm");
        let plan = self.plans.get(&shape, algorithm, user).expect("a plan");
        let input = vec![1f32; if shape.inputs > 0 { shape.input_len(0) } else { 0 }];
        let output = vec![0f32; if shape.outputs > 0 { shape.output_len(0) } else { 0 }];
        let prepared = Prepared::internal(plan, (&shape, algorithm), ELEMENT, 5, true).expect("a call");
        let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
        let combine = match user {
            true => Combine::User,
            false => Combine::Kernel(reduce::kernel(dtype, op).expect("a kernel"), None, (dtype, op)),
        };
        let prepared = Prepared { combine, segment: usize::MAX, ..prepared };
        let mut running = Running { call: None, wait: None, prepared, tag, user, input, output };
        running.with(&self.shared, |call, work| *call = Call::start(work).ok());
        self.running = Some(running);
        Some(())
    }

    /// Goes on with the call, if there is one.
    fn advance(&mut self) {
        let (rank, shared) = (self.rank, &self.shared);
        let Some(running) = &mut self.running else { return };
        let wait = running.wait;
        let ended = running.with(shared, |call, work| {
            let call = call.as_mut().expect("nothing else runs");
            if let Some(wait) = wait {
                call.look_around(work, wait);
                shared.other_call(work.binding.tag, call.fingerprint());
                if !call.is_ready(work, wait) {
                    return Ok(Some(wait));
                }
            }
            call.advance(work)
        });
        match ended {
            Ok(None) => self.running = None,
            Ok(wait) => running.wait = wait,
            Err(error) => {
                // The error blames the scribbler, except on the scribbler itself, and if a rank is in another call.
                let culprit = error.details().rank;
                assert!(culprit.is_some_and(|culprit| culprit < MEMBERS && culprit != rank), "{error}");
                self.withdraw();
            }
        }
    }

    fn withdraw(&mut self) {
        if let Some(mut call) = self.running.take().and_then(|running| running.call) {
            call.withdraw(&self.shared);
        }
    }
}

/// Whatever a rank writes into the memory that it shares, the calls of the others end, fail, or wait, access no memory
/// but their buffers and the boards, and an error names the rank that it is about.
pub fn shared_memory(data: &[u8]) {
    HOST.with(|(groups, boards)| {
        boards.iter().for_each(Memory::clear);
        groups.iter().for_each(|group| group.waiting().end(PUBLICATIONS));
        let mut ranks: Vec<Rank> = groups.iter().map(|group| Rank::new(group.clone(), boards)).collect();
        let mut input = Input(data);
        for _ in 0..MAX_STEPS {
            if step(&mut ranks, (&groups[SCRIBBLER], &boards[SCRIBBLER]), &mut input).is_none() {
                break;
            }
        }
        ranks.iter_mut().for_each(Rank::withdraw);
    });
}

fn step(ranks: &mut [Rank], (group, memory): (&HostGroup, &Memory), input: &mut Input<'_>) -> Option<()> {
    match input.below(8)? {
        // All start the same call, so that its steps are met.
        0 | 1 => {
            let same = input.take(3)?;
            ranks.iter_mut().try_for_each(|rank| rank.start(&mut Input(same)))?;
        }
        2 => ranks[input.below(MEMBERS)?].start(input)?,
        3 | 4 => ranks[input.below(MEMBERS)?].advance(),
        5 => ranks.iter_mut().for_each(Rank::advance),
        6 => {
            for _ in 0..=input.below(4)? {
                scribble(ranks, memory, input)?;
            }
        }
        _ => match input.below(4)? {
            // The peers of this rank ring a doorbell that it never answers.
            0 => group.waiting().begin(PUBLICATIONS),
            1 => {
                group.waiting().end(PUBLICATIONS);
                group.clear_doorbell();
            }
            _ => ranks[input.below(MEMBERS)?].withdraw(),
        },
    }
    Some(())
}

/// Writes a word.
fn scribble(ranks: &[Rank], memory: &Memory, input: &mut Input<'_>) -> Option<()> {
    let [acknowledgements, entries, entry_bytes, rings, cells] = PLACES;
    let at = match input.below(8)? {
        // What it acknowledges.
        0 => acknowledgements + input.below(MEMBERS)? * 64 * 8 + input.below(4)? * 8,
        // The first cache line of its first entries, and some of what follows.
        1..=4 => entries + input.below(3)? * entry_bytes + input.below(16)? * 8,
        // Rings of streams, with how far they are written.
        5 => rings + input.below(3)? * 64 + input.below(4)? * 8,
        // The number of entries.
        6 => 0,
        _ => u32::from_le_bytes(input.array()?) as usize % TABLE_BYTES,
    };
    let small = u64::from(input.byte()?);
    let own = memory.0.as_ptr().addr() as u64;
    let word = memory.word(at);
    let value = match input.below(10)? {
        0 => small,
        // A form and a length.
        1 => (small % 4) | (u64::from(input.byte()?) << 2),
        2 => (small % 4) | (((COUNTS[3] * ELEMENT) as u64) << 2),
        3 => (small % 4) | (u64::from_le_bytes(input.array()?) & !3),
        // A place: about the end of the publications, in the first cell, in this process, and in no process.
        4 => TABLE_BYTES as u64 - small * 4,
        5 => cells as u64 + small,
        6 => own + small * 8,
        7 => u64::MAX - small,
        // What was there, as a stamp or an acknowledgement of more or less; and what another rank has there.
        8 => word.load(Ordering::Relaxed) & !0xff | small,
        _ => match ranks[0].running.as_ref().and_then(|running| Some(running.call.as_ref()?.fingerprint())) {
            Some(fingerprint) if small & 1 == 0 => fingerprint,
            _ => u64::from_le_bytes(input.array()?),
        },
    };
    word.store(value, Ordering::Relaxed);
    Some(())
}

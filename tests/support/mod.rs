//! Random collective calls and their expected results: the same on every rank that knows the seed.
#![allow(dead_code)]

#[path = "../../src/testing/tier.rs"]
pub mod tier;
#[path = "../../src/testing/user_function.rs"]
pub mod user_function;

use std::time::Duration;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, Reduction};
use gloo_rs::types::{DataType, ReduceOp};

/// A small random generator, so that processes agree on cases without communication.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// A collective call, for all ranks.
#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    pub algorithm: &'static str,
    pub size: usize,
    pub root: usize,
    pub count: usize,
    /// `counts[from][to]`, for the collectives with counts.
    pub counts: Vec<Vec<usize>>,
    pub inputs: usize,
    pub outputs: usize,
    pub in_place: bool,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub user_function: bool,
    pub segment: usize,
    pub base: usize,
    pub destinations: usize,
    pub tag: u64,
    pub salt: u64,
}

const SEGMENTS: [usize; 5] = [16, 100, 4096, 65_536, 1 << 20];

impl Case {
    pub fn random(r: &mut Random, size: usize, tag: u64) -> Self {
        let mut collective = r.pick(Collective::ALL);
        if collective == Collective::PairwiseExchange && !size.is_power_of_two() {
            collective = Collective::Allreduce;
        }
        let names: Vec<&'static str> = collective
            .algorithms()
            .iter()
            .filter(|a| !a.uses.needs_shared_memory())
            .map(|a| a.name)
            .filter(|n| *n != "local" || size == 1)
            .chain(["auto"])
            .collect();
        let algorithm = r.pick(&names);
        Self::of(r, size, tag, collective, algorithm)
    }

    /// A call of this algorithm.
    pub fn of(r: &mut Random, size: usize, tag: u64, collective: Collective, algorithm: &'static str) -> Self {
        let largest = r.pick(&[1, 3, 10, 100, 1000, 5000, 40_000]);
        let count = if r.chance(12) { 0 } else { r.below(largest) + 1 };
        let counts =
            (0..size).map(|_| (0..size).map(|_| if r.chance(4) { 0 } else { r.below(largest) }).collect()).collect();
        let (dtype, op) = loop {
            let (dtype, op) = (r.pick(DataType::ALL), r.pick(ReduceOp::ALL));
            let real = !matches!(dtype, DataType::Complex64 | DataType::Complex128 | DataType::Bool);
            let exact = op != ReduceOp::Product || matches!(dtype, DataType::Int64 | DataType::Float64);
            if real && exact && op.supports(dtype) {
                break (dtype, op);
            }
        };
        let many = matches!(collective, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter);
        let inputs = if many { 1 + r.below(3) } else { 1 };
        let outputs =
            if matches!(collective, Collective::Allreduce | Collective::Broadcast) { 1 + r.below(3) } else { 1 };
        let in_place = r.chance(3) && !matches!(collective, Collective::Alltoallv | Collective::PairwiseExchange);
        Self {
            collective,
            algorithm,
            size,
            root: r.below(size),
            count,
            counts,
            inputs: if in_place { 0 } else { inputs },
            outputs,
            in_place,
            dtype,
            op,
            user_function: collective.reduces() && op == ReduceOp::Sum && dtype == DataType::Int64,
            segment: r.pick(&SEGMENTS),
            base: 2 + r.below(3),
            destinations: if size.is_power_of_two() { size.trailing_zeros() as usize } else { 0 },
            tag,
            salt: r.next(),
        }
    }

    /// Element `i` of the contribution of `rank` in its buffer `index`.
    fn value(&self, rank: usize, index: usize, i: usize) -> f64 {
        let mixed = (self.salt as usize).wrapping_add(rank * 31 + index * 7 + i * 13) % 3 + 1;
        mixed as f64
    }

    fn contributions(&self) -> usize {
        if self.in_place && self.collective == Collective::Allreduce { self.outputs } else { self.inputs.max(1) }
    }

    fn combine(&self, a: f64, b: f64) -> f64 {
        match self.op {
            ReduceOp::Sum | ReduceOp::Average => a + b,
            ReduceOp::Product => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::BitAnd => (a as i64 & b as i64) as f64,
            ReduceOp::BitOr => (a as i64 | b as i64) as f64,
            ReduceOp::BitXor => (a as i64 ^ b as i64) as f64,
        }
    }

    /// Element `i` combined over the ranks `from`.
    fn reduced(&self, from: std::ops::Range<usize>, i: usize) -> f64 {
        let each = from.flat_map(|rank| (0..self.contributions()).map(move |n| self.value(rank, n, i)));
        each.reduce(|a, b| self.combine(a, b)).unwrap_or(0.0)
    }

    fn averaged(&self, value: f64) -> f64 {
        if self.op != ReduceOp::Average {
            return value;
        }
        let by = (self.size * self.contributions()) as f64;
        match self.dtype {
            DataType::Float64 => value / by,
            DataType::Float32 => f64::from(value as f32 / by as f32),
            DataType::Float16 => value / by,
            DataType::Bfloat16 => half::bf16::from_f32(value as f32 / by as f32).to_f64(),
            _ => (value / by).trunc(),
        }
    }

    /// How far a result may be from the exact one: that of an average of float16 is rounded at each of `n`
    /// contributions, the `k`-th of which weighs `k / n`, by half of the distance of two numbers between 2 and 4.
    fn error(&self) -> f64 {
        let rounds = self.op == ReduceOp::Average && self.dtype == DataType::Float16 && self.collective.reduces();
        if rounds { 0.5 * 2f64.powi(-9) * (self.size * self.contributions() + 1) as f64 / 2.0 } else { 0.0 }
    }

    fn own_counts(&self, rank: usize) -> (Vec<usize>, Vec<usize>) {
        let column = |to: usize| self.counts.iter().map(|row| row[to]).collect::<Vec<_>>();
        let is_root = rank == self.root;
        match self.collective {
            Collective::ReduceScatter | Collective::Allgatherv => (vec![], self.counts[0].clone()),
            Collective::Gatherv => (vec![], if is_root { self.counts[0].clone() } else { vec![] }),
            Collective::Scatterv => (if is_root { self.counts[0].clone() } else { vec![] }, vec![]),
            Collective::Alltoallv => (self.counts[rank].clone(), column(rank)),
            _ => (vec![], vec![]),
        }
    }

    /// The whole contents of input `index` of `rank`; also the initial contents of in-place outputs that hold all of
    /// it.
    fn input(&self, rank: usize, index: usize, len: usize) -> Vec<f64> {
        (0..len).map(|i| self.value(rank, index, i)).collect()
    }

    /// Makes the call as `rank` of `context` and compares the result.
    pub fn run(&self, context: &Context) -> Result<(), String> {
        use Collective::*;
        let rank = context.rank();
        let is_root = rank == self.root;
        let (send_counts, recv_counts) = self.own_counts(rank);
        let rooted_in = matches!(self.collective, Broadcast | Scatter | Scatterv);
        let rooted_out = matches!(self.collective, Reduce | Gather | Gatherv);
        let mut inputs = if rooted_in && !is_root { 0 } else { self.inputs };
        let mut outputs = if rooted_out && !is_root { 0 } else { self.outputs };
        if self.in_place {
            match self.collective {
                // Only the root can be in place; the other ranks of a reduce keep their data in the output.
                Gather | Gatherv if !is_root => inputs = 1,
                Reduce => outputs = 1,
                Broadcast => outputs = outputs.max(1),
                _ => {}
            }
        }
        if self.collective == Barrier {
            (inputs, outputs) = (0, 0);
        }
        let count = match self.collective {
            Gatherv | Scatterv => self.counts[0][rank],
            _ => self.count,
        };
        let shape = Shape {
            root: self.root,
            send_counts: &send_counts,
            recv_counts: &recv_counts,
            inputs,
            outputs,
            average: self.op == ReduceOp::Average && self.collective.reduces(),
            base: self.base,
            destinations: self.destinations,
            ..Shape::new(self.collective, rank, self.size, count)
        };
        if matches!(self.collective, Scan | Exscan) && shape.average {
            return Ok(());
        }
        shape.check().map_err(|e| e.to_string())?;
        let blocks = |counts: &[usize]| -> Vec<usize> {
            counts.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect()
        };
        let own_inputs: Vec<Vec<f64>> = (0..inputs).map(|n| self.input(rank, n, shape.input_len(n))).collect();
        let mut own_outputs: Vec<Vec<f64>> = (0..outputs).map(|n| vec![0.0; shape.output_len(n)]).collect();
        if inputs == 0 && self.in_place {
            for (n, output) in own_outputs.iter_mut().enumerate() {
                let len = output.len();
                match self.collective {
                    Broadcast if !is_root => {}
                    Allgather | Gather => {
                        (0..self.count).for_each(|i| output[rank * self.count + i] = self.value(rank, 0, i));
                    }
                    Allgatherv | Gatherv => {
                        let at = blocks(&recv_counts)[rank];
                        (0..recv_counts[rank]).for_each(|i| output[at + i] = self.value(rank, 0, i));
                    }
                    _ => *output = self.input(rank, n, len),
                }
            }
        }
        let inputs_bytes: Vec<Vec<u8>> = own_inputs.iter().map(|v| encode(self.dtype, v)).collect();
        let mut outputs_bytes: Vec<Vec<u8>> = own_outputs.iter().map(|v| encode(self.dtype, v)).collect();
        let in_pointers: Vec<*const u8> = inputs_bytes.iter().map(|v| v.as_ptr()).collect();
        let out_pointers: Vec<*mut u8> = outputs_bytes.iter_mut().map(|v| v.as_mut_ptr()).collect();
        let reduction = if self.user_function {
            Reduction::User { function: add_i64, user: std::ptr::null_mut() }
        } else {
            Reduction::Op(self.op)
        };
        let call = Call {
            inputs: &in_pointers,
            outputs: &out_pointers,
            algorithm: Some(self.algorithm),
            reduction,
            tag: self.tag,
            timeout: Some(Duration::from_secs(60)),
            max_segment_bytes: Some(self.segment),
            ..Call::new(shape, self.dtype)
        };
        // SAFETY: the vectors are as long as the shape says and live until the call returns.
        unsafe { context.run(&call) }.map_err(|e| e.to_string())?;
        for (before, after) in own_inputs.iter().zip(&inputs_bytes) {
            if encode(self.dtype, before) != *after {
                return Err(format!("rank {rank}: an input was changed: {self:?}"));
            }
        }
        let all = 0..self.size;
        for (n, output) in outputs_bytes.iter().enumerate() {
            let got = decode(self.dtype, output);
            let expected: Vec<Option<f64>> = (0..got.len())
                .map(|i| match self.collective {
                    Allreduce => Some(self.averaged(self.reduced(all.clone(), i))),
                    Reduce if is_root => Some(self.averaged(self.reduced(all.clone(), i))),
                    // The output of a rank that is not the root is unchanged.
                    Reduce => Some(self.value(rank, n, i)),
                    ReduceScatter if i < recv_counts[rank] => {
                        Some(self.averaged(self.reduced(all.clone(), blocks(&recv_counts)[rank] + i)))
                    }
                    ReduceScatter => None,
                    Broadcast => Some(self.value(self.root, 0, i)),
                    Allgather | Gather => Some(self.value(i / self.count, 0, i % self.count)),
                    Allgatherv | Gatherv => {
                        let starts = blocks(&recv_counts);
                        let from = (0..self.size)
                            .rfind(|r| starts[*r] <= i && recv_counts[*r] > 0 && i < starts[*r] + recv_counts[*r])?;
                        Some(self.value(from, 0, i - starts[from]))
                    }
                    Scatter if i < self.count => Some(self.value(self.root, 0, rank * self.count + i)),
                    Scatterv if i < count => Some(self.value(self.root, 0, blocks(&self.counts[0])[rank] + i)),
                    Scatter | Scatterv => None,
                    Alltoall => Some(self.value(i / self.count, 0, rank * self.count + i % self.count)),
                    Alltoallv => {
                        let starts = blocks(&recv_counts);
                        let from = (0..self.size).find(|r| starts[*r] <= i && i < starts[*r] + recv_counts[*r])?;
                        Some(self.value(from, 0, blocks(&self.counts[from])[rank] + i - starts[from]))
                    }
                    PairwiseExchange => {
                        let peer = rank ^ (1 << (i / self.count));
                        Some(self.value(peer, 0, i))
                    }
                    Scan => Some(self.reduced(0..rank + 1, i)),
                    Exscan if rank > 0 => Some(self.reduced(0..rank, i)),
                    Exscan => Some(if self.in_place { self.value(0, 0, i) } else { 0.0 }),
                    Barrier => None,
                })
                .collect();
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                if expected.is_some_and(|e| (e - got).abs() > self.error()) {
                    return Err(format!("rank {rank}: output {n}[{i}] is {got}, not {expected:?}: {self:?}"));
                }
            }
        }
        Ok(())
    }
}

unsafe extern "C" fn add_i64(
    into: *mut std::ffi::c_void,
    left: *const std::ffi::c_void,
    right: *const std::ffi::c_void,
    count: usize,
    _user: *mut std::ffi::c_void,
) -> i32 {
    for i in 0..count {
        // SAFETY: the library passes pointers to `count` elements.
        unsafe {
            let sum = left.cast::<i64>().add(i).read_unaligned() + right.cast::<i64>().add(i).read_unaligned();
            into.cast::<i64>().add(i).write_unaligned(sum);
        }
    }
    0
}

pub fn encode(dtype: DataType, values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|v| match dtype {
            DataType::Int8 => (*v as i8).to_ne_bytes().to_vec(),
            DataType::Uint8 | DataType::Bool => vec![*v as u8],
            DataType::Int16 => (*v as i16).to_ne_bytes().to_vec(),
            DataType::Uint16 => (*v as u16).to_ne_bytes().to_vec(),
            DataType::Int32 => (*v as i32).to_ne_bytes().to_vec(),
            DataType::Uint32 => (*v as u32).to_ne_bytes().to_vec(),
            DataType::Int64 => (*v as i64).to_ne_bytes().to_vec(),
            DataType::Uint64 => (*v as u64).to_ne_bytes().to_vec(),
            DataType::Float16 => half::f16::from_f64(*v).to_ne_bytes().to_vec(),
            DataType::Bfloat16 => half::bf16::from_f64(*v).to_ne_bytes().to_vec(),
            DataType::Float32 => (*v as f32).to_ne_bytes().to_vec(),
            DataType::Float64 => v.to_ne_bytes().to_vec(),
            DataType::Complex64 | DataType::Complex128 => unreachable!("not drawn"),
        })
        .collect()
}

pub fn decode(dtype: DataType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(dtype.size())
        .map(|c| match dtype {
            DataType::Int8 => f64::from(c[0] as i8),
            DataType::Uint8 | DataType::Bool => f64::from(c[0]),
            DataType::Int16 => f64::from(i16::from_ne_bytes(c.try_into().unwrap())),
            DataType::Uint16 => f64::from(u16::from_ne_bytes(c.try_into().unwrap())),
            DataType::Int32 => f64::from(i32::from_ne_bytes(c.try_into().unwrap())),
            DataType::Uint32 => f64::from(u32::from_ne_bytes(c.try_into().unwrap())),
            DataType::Int64 => i64::from_ne_bytes(c.try_into().unwrap()) as f64,
            DataType::Uint64 => u64::from_ne_bytes(c.try_into().unwrap()) as f64,
            DataType::Float16 => half::f16::from_ne_bytes(c.try_into().unwrap()).to_f64(),
            DataType::Bfloat16 => half::bf16::from_ne_bytes(c.try_into().unwrap()).to_f64(),
            DataType::Float32 => f64::from(f32::from_ne_bytes(c.try_into().unwrap())),
            DataType::Float64 => f64::from_ne_bytes(c.try_into().unwrap()),
            DataType::Complex64 | DataType::Complex128 => unreachable!("not drawn"),
        })
        .collect()
}

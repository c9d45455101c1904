//! What one rank does in one measurement: the shape of its call, what its buffers hold before and what they must hold after.

use std::sync::Arc;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::types::{DataType, ReduceOp};

use super::pattern::{PERIOD, Pattern, decode};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Collective(Collective),
    /// Each rank sends a message to the next and receives one from the rank before, by unbound buffers.
    SendRecv,
}

impl Subject {
    pub fn name(self) -> &'static str {
        match self {
            Self::Collective(collective) => collective.name(),
            Self::SendRecv => "sendrecv",
        }
    }
}

/// What a benchmark is asked to do, but for the size.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub subject: Subject,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub ranks: usize,
    pub root: usize,
    /// Buffers on each rank: inputs, or outputs where the collective has one input (broadcast) or works in place.
    pub buffers: usize,
    pub in_place: bool,
}

/// A stretch of a buffer that holds one of the pattern's sequences.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First element.
    start: usize,
    /// Elements.
    len: usize,
    /// The sequence: [`PERIOD`] elements.
    sequence: Arc<[u8]>,
    /// Which element of the sequence comes first.
    phase: usize,
}

/// One rank's part in one measurement.
#[derive(Debug)]
pub struct Workload {
    pub dtype: DataType,
    /// The size as nccl-tests count it, in bytes: what [`Request`] was asked for, rounded to what the collective can do.
    pub bytes: usize,
    /// What the inputs hold, by input.
    pub inputs: Vec<Vec<Piece>>,
    /// What the outputs hold before the call, by output; what no piece covers holds no pattern.
    pub before: Vec<Vec<Piece>>,
    /// What the outputs must hold after the call; nothing is promised of what no piece covers.
    pub after: Vec<Vec<Piece>>,
    collective: Option<Collective>,
    rank: usize,
    ranks: usize,
    root: usize,
    count: usize,
    send_counts: Vec<usize>,
    recv_counts: Vec<usize>,
    average: bool,
    destinations: usize,
    /// What [`Shape::groups`] and [`Shape::dims`] say.
    pub groups: Vec<u32>,
    pub dims: Vec<usize>,
}

impl Request {
    /// Says what no rank could do.
    pub fn check(&self) -> Result<(), String> {
        use Collective::*;
        let name = self.subject.name();
        let Self { dtype, op, ranks, root, buffers, in_place, .. } = *self;
        if root >= ranks {
            return Err(format!("--root is {root}, but there are {ranks} ranks"));
        }
        let Subject::Collective(collective) = self.subject else {
            if ranks < 2 {
                return Err(format!("{name} needs at least 2 ranks"));
            }
            if buffers != 1 || in_place {
                return Err(format!("{name} has one buffer to send and one to receive: no --inputs, no --in-place"));
            }
            return Ok(());
        };
        if collective.reduces() && !op.supports(dtype) {
            return Err(format!("there is no {op} of {dtype}"));
        }
        if collective.reduces() && !collective.reduces_by(op) {
            return Err(format!("{name} has no {op}"));
        }
        let several = match collective {
            Allreduce | Broadcast => true,
            Reduce | ReduceScatter | Allgather => !in_place,
            _ => false,
        };
        if buffers == 0 || (buffers > 1 && !several) {
            let place = if in_place { " in place" } else { "" };
            return Err(format!(
                "--inputs is {buffers}; {name}{place} takes {}",
                if several { "1 or more" } else { "1" }
            ));
        }
        if in_place && matches!(collective, Alltoallv | Barrier | PairwiseExchange) {
            return Err(format!("{name} does not work in place"));
        }
        if collective == PairwiseExchange && (ranks < 2 || !ranks.is_power_of_two()) {
            return Err(format!("{name} needs a power of two of ranks, at least 2, not {ranks}"));
        }
        self.pattern(0).map(drop)
    }

    /// The operation, if there is one.
    pub fn reduction(&self) -> Option<ReduceOp> {
        matches!(self.subject, Subject::Collective(collective) if collective.reduces()).then_some(self.op)
    }

    fn pattern(&self, seed: u64) -> Result<Pattern, String> {
        Pattern::new(self.dtype, self.reduction(), self.ranks * self.buffers, seed)
    }

    /// The part of `rank` in a measurement with `bytes` bytes. `seed` is the same on all ranks.
    pub fn workload(&self, rank: usize, bytes: usize, seed: u64) -> Result<Workload, String> {
        let pattern = self.pattern(seed)?;
        let elements = (bytes / self.dtype.size()).max(1);
        Ok(Builder { request: self, rank, pattern, elements }.build())
    }
}

struct Builder<'a> {
    request: &'a Request,
    rank: usize,
    pattern: Pattern,
    /// The size in elements; not zero.
    elements: usize,
}

impl Builder<'_> {
    fn build(self) -> Workload {
        use Collective::*;
        let Request { subject, dtype, ranks, root, buffers, in_place, .. } = *self.request;
        let (rank, elements) = (self.rank, self.elements);
        let is_root = rank == root;
        let block = (elements / ranks).max(1);
        let split = split(elements, ranks);
        let mut work = Workload {
            dtype,
            bytes: elements * dtype.size(),
            inputs: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            collective: None,
            rank,
            ranks,
            root,
            count: elements,
            send_counts: Vec::new(),
            recv_counts: Vec::new(),
            average: self.request.reduction() == Some(ReduceOp::Average),
            destinations: 0,
            groups: Vec::new(),
            dims: Vec::new(),
        };
        let Subject::Collective(collective) = subject else {
            work.inputs = vec![vec![self.own(0, elements)]];
            work.output(vec![], vec![self.of((rank + ranks - 1) % ranks, 0, elements, 0)]);
            return work;
        };
        work.collective = Some(collective);
        match collective {
            Allreduce => {
                let result = self.reduced(0..ranks * buffers, 0, elements);
                for buffer in 0..buffers {
                    let own = vec![self.own(buffer, elements)];
                    let before = work.place(own, in_place);
                    work.output(before, vec![result.clone()]);
                }
            }
            Reduce => {
                let before = work.places((0..buffers).map(|buffer| vec![self.own(buffer, elements)]), in_place);
                if is_root {
                    work.output(before, vec![self.reduced(0..ranks * buffers, 0, elements)]);
                } else if in_place {
                    work.output(before.clone(), before);
                }
            }
            Broadcast => {
                let message = self.of(root * buffers, 0, elements, 0);
                for buffer in 0..buffers {
                    let own = if is_root && buffer == 0 { vec![message.clone()] } else { vec![] };
                    let before = if is_root && buffer == 0 { work.place(own, in_place) } else { own };
                    work.output(before, vec![message.clone()]);
                }
            }
            ReduceScatter => {
                let before = work.places((0..buffers).map(|buffer| vec![self.own(buffer, elements)]), in_place);
                let (start, len) = (split[..rank].iter().sum(), split[rank]);
                work.output(before, vec![self.reduced(0..ranks * buffers, start, len)]);
                work.recv_counts = split;
            }
            Allgather => {
                let block = (elements / (ranks * buffers)).max(1);
                let blocks = vec![block; ranks * buffers];
                let own = work.places((0..buffers).map(|buffer| vec![self.own(buffer, block)]), in_place);
                work.output(shifted(own, rank * block), self.gathered(&blocks));
                (work.count, work.bytes) = (block, block * blocks.len() * dtype.size());
            }
            Allgatherv => {
                let own = work.place(vec![self.own(0, split[rank])], in_place);
                work.output(shifted(own, split[..rank].iter().sum()), self.gathered(&split));
                work.recv_counts = split;
            }
            Gather | Gatherv => {
                let blocks = if collective == Gather { vec![block; ranks] } else { split };
                work.count = blocks[rank];
                let own = work.place(vec![self.own(0, blocks[rank])], in_place && is_root);
                if is_root {
                    work.output(shifted(own, blocks[..rank].iter().sum()), self.gathered(&blocks));
                }
                work.bytes = blocks.iter().sum::<usize>() * dtype.size();
                work.recv_counts = if collective == Gatherv { blocks } else { vec![] };
            }
            Scatter | Scatterv => {
                let blocks = if collective == Scatter { vec![block; ranks] } else { split };
                let total = blocks.iter().sum();
                let before = if is_root { work.place(vec![self.own(0, total)], in_place) } else { vec![] };
                work.output(before, vec![self.of(root, 0, blocks[rank], blocks[..rank].iter().sum())]);
                (work.count, work.bytes) = (blocks[rank], total * dtype.size());
                work.send_counts = if collective == Scatterv { blocks } else { vec![] };
            }
            Alltoall => {
                let before = work.place(vec![self.own(0, block * ranks)], in_place);
                let after = (0..ranks).map(|from| self.of(from, from * block, block, rank * block)).collect();
                work.output(before, after);
                (work.count, work.bytes) = (block, block * ranks * dtype.size());
            }
            Alltoallv => {
                // What rank i sends to rank j has the length of part (i + j) mod ranks, so that all send and receive as much.
                let len = |i: usize, j: usize| split[(i + j) % ranks];
                let counts: Vec<_> = (0..ranks).map(|other| len(rank, other)).collect();
                let mut start = 0;
                let mut after = Vec::new();
                for (from, count) in counts.iter().enumerate() {
                    let phase = (0..rank).map(|to| len(from, to)).sum();
                    after.push(self.of(from, start, *count, phase));
                    start += count;
                }
                work.place(vec![self.own(0, elements)], false);
                work.output(vec![], after);
                (work.send_counts, work.recv_counts) = (counts.clone(), counts);
            }
            Barrier => (work.count, work.bytes) = (0, 0),
            PairwiseExchange => {
                let destinations = ranks.ilog2() as usize;
                let block = (elements / destinations).max(1);
                work.place(vec![self.own(0, block * destinations)], false);
                let partner = |step: usize| rank ^ (1 << step);
                let blocks = 0..destinations;
                work.output(vec![], blocks.map(|i| self.of(partner(i), i * block, block, i * block)).collect());
                (work.count, work.bytes) = (block, block * destinations * dtype.size());
                work.destinations = destinations;
            }
            Scan | Exscan => {
                let own = vec![self.own(0, elements)];
                let before = work.place(own.clone(), in_place);
                let of = if collective == Scan { 0..rank + 1 } else { 0..rank };
                // Rank 0 has nothing before it; its output stays as it is.
                let after = if of.is_empty() { before.clone() } else { vec![self.reduced(of, 0, elements)] };
                work.output(before, after);
            }
        }
        work
    }

    /// The first `len` elements of this rank's `buffer`.
    fn own(&self, buffer: usize, len: usize) -> Piece {
        self.of(self.rank * self.request.buffers + buffer, 0, len, 0)
    }

    /// `len` elements of a contribution from `phase` on, at `start` of a buffer.
    fn of(&self, contribution: usize, start: usize, len: usize, phase: usize) -> Piece {
        Piece { start, len, sequence: self.pattern.contribution(contribution).into(), phase }
    }

    /// The reduction of some contributions: `len` elements from `phase` on.
    fn reduced(&self, contributions: std::ops::Range<usize>, phase: usize, len: usize) -> Piece {
        Piece { start: 0, len, sequence: self.pattern.reduced(contributions).into(), phase }
    }

    /// The contributions one after the other, each as long as `lens` says.
    fn gathered(&self, lens: &[usize]) -> Vec<Piece> {
        let starts = lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len)
        });
        starts.zip(lens).enumerate().map(|(from, (start, &len))| self.of(from, start, len, 0)).collect()
    }
}

impl Workload {
    /// The call's shape; `None` for what is no collective.
    pub fn shape(&self) -> Option<Shape<'_>> {
        Some(Shape {
            root: self.root,
            send_counts: &self.send_counts,
            recv_counts: &self.recv_counts,
            inputs: self.inputs.len(),
            outputs: self.before.len(),
            average: self.average,
            destinations: self.destinations,
            groups: &self.groups,
            dims: &self.dims,
            ..Shape::new(self.collective?, self.rank, self.ranks, self.count)
        })
    }

    /// Elements of input `index`.
    pub fn input_len(&self, index: usize) -> usize {
        end(&self.inputs[index])
    }

    /// Elements of output `index`: it holds what is there before and what must be there after.
    pub fn output_len(&self, index: usize) -> usize {
        match self.shape() {
            Some(shape) => shape.output_len(index),
            None => end(&self.after[index]),
        }
    }

    /// Makes `pieces` an input, or else returns them as what an output holds before the call.
    fn place(&mut self, pieces: Vec<Piece>, in_place: bool) -> Vec<Piece> {
        if in_place {
            return pieces;
        }
        self.inputs.push(pieces);
        Vec::new()
    }

    /// The same with several; in place there is one.
    fn places(&mut self, buffers: impl Iterator<Item = Vec<Piece>>, in_place: bool) -> Vec<Piece> {
        buffers.map(|pieces| self.place(pieces, in_place)).last().unwrap_or_default()
    }

    fn output(&mut self, before: Vec<Piece>, after: Vec<Piece>) {
        self.before.push(before);
        self.after.push(after);
    }
}

/// `elements` in as many parts as there are ranks, as equal as can be: the first ones may have one more.
fn split(elements: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| elements / ranks + usize::from(rank < elements % ranks)).collect()
}

fn shifted(mut pieces: Vec<Piece>, by: usize) -> Vec<Piece> {
    pieces.iter_mut().for_each(|piece| piece.start += by);
    pieces
}

fn end(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.start + piece.len).max().unwrap_or(0)
}

/// Writes `pieces` into `buffer`, whose elements are `size` bytes.
pub fn fill(buffer: &mut [u8], pieces: &[Piece], size: usize) {
    for piece in pieces {
        let target = &mut buffer[piece.start * size..][..piece.len * size];
        let (head, rest) = target.split_at_mut(target.len().min((PERIOD - piece.phase % PERIOD) * size));
        head.copy_from_slice(&piece.sequence[piece.phase % PERIOD * size..][..head.len()]);
        rest.chunks_mut(PERIOD * size).for_each(|chunk| chunk.copy_from_slice(&piece.sequence[..chunk.len()]));
    }
}

/// Compares `buffer` with `pieces`; the first element that is wrong, with what was expected and what is there.
pub fn verify(buffer: &[u8], pieces: &[Piece], dtype: DataType) -> Result<(), String> {
    let size = dtype.size();
    for piece in pieces {
        let found = &buffer[piece.start * size..][..piece.len * size];
        let mut done = 0;
        while done < piece.len {
            let phase = (piece.phase + done) % PERIOD;
            let run = (PERIOD - phase).min(piece.len - done);
            let (got, expected) = (&found[done * size..][..run * size], &piece.sequence[phase * size..][..run * size]);
            if got != expected {
                // Elements may be equal though their bytes are not: the sign of a zero in a complex product.
                let pairs = got.chunks_exact(size).zip(expected.chunks_exact(size)).enumerate();
                let mut values = pairs.map(|(i, (got, expected))| (i, decode(got, dtype), decode(expected, dtype)));
                if let Some((i, got, expected)) = values.find(|(_, got, expected)| got != expected) {
                    return Err(format!("element {}: expected {expected}, got {got}", piece.start + done + i));
                }
            }
            done += run;
        }
    }
    Ok(())
}

//! One rank's part in a measurement of each collective.

use std::ops::Range;

use gloo_rs::collective::Collective;
use gloo_rs::types::ReduceOp;

use super::piece::{Piece, shifted};
use super::{Request, Subject, Workload};
use crate::bench::pattern::Pattern;

pub(super) struct Builder<'a> {
    request: &'a Request,
    rank: usize,
    pattern: Pattern,
    /// The size in elements; not zero.
    elements: usize,
    /// The elements in one part for each rank, as equal as possible: the first ones may have one more.
    split: Vec<usize>,
    /// Length of the parts if all are equal; not zero.
    block: usize,
    is_root: bool,
    work: Workload,
}

impl<'a> Builder<'a> {
    pub(super) fn new(request: &'a Request, rank: usize, pattern: Pattern, elements: usize) -> Self {
        let Request { dtype, ranks, root, .. } = *request;
        let work = Workload {
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
            average: request.reduction() == Some(ReduceOp::Average),
            destinations: 0,
            groups: Vec::new(),
            dims: Vec::new(),
        };
        let split = (0..ranks).map(|rank| elements / ranks + usize::from(rank < elements % ranks)).collect();
        let block = (elements / ranks).max(1);
        Self { request, rank, pattern, elements, split, block, is_root: rank == root, work }
    }

    pub(super) fn build(mut self) -> Workload {
        use Collective::*;
        let Subject::Collective(collective) = self.request.subject else {
            self.sendrecv();
            return self.work;
        };
        self.work.collective = Some(collective);
        match collective {
            Allreduce => self.allreduce(),
            Reduce => self.reduce(),
            Broadcast => self.broadcast(),
            ReduceScatter => self.reduce_scatter(),
            Allgather => self.allgather(),
            Allgatherv => self.allgatherv(),
            Gather => self.gather(vec![self.block; self.request.ranks]),
            Gatherv => {
                self.gather(self.split.clone());
                self.work.recv_counts = self.split;
            }
            Scatter => self.scatter(vec![self.block; self.request.ranks]),
            Scatterv => {
                self.scatter(self.split.clone());
                self.work.send_counts = self.split;
            }
            Alltoall => self.alltoall(),
            Alltoallv => self.alltoallv(),
            Barrier => self.size(0, 0),
            PairwiseExchange => self.pairwise_exchange(),
            Scan => self.prefix(0..self.rank + 1),
            Exscan => self.prefix(0..self.rank),
        }
        self.work
    }

    fn sendrecv(&mut self) {
        let before = (self.rank + self.request.ranks - 1) % self.request.ranks;
        self.work.inputs = vec![vec![self.own(0, self.elements)]];
        self.output(vec![], vec![self.of(before, 0, self.elements, 0)]);
    }

    fn allreduce(&mut self) {
        let result = self.reduced(self.everyone(), 0, self.elements);
        for buffer in 0..self.request.buffers {
            let before = self.add_input(vec![self.own(buffer, self.elements)], self.request.in_place);
            self.output(before, vec![result.clone()]);
        }
    }

    fn reduce(&mut self) {
        let before = self.add_inputs(self.elements);
        if self.is_root {
            self.output(before, vec![self.reduced(self.everyone(), 0, self.elements)]);
        } else if self.request.in_place {
            self.output(before.clone(), before);
        }
    }

    fn broadcast(&mut self) {
        let message = self.of(self.request.root * self.request.buffers, 0, self.elements, 0);
        for buffer in 0..self.request.buffers {
            let sends = self.is_root && buffer == 0;
            let before = if sends { self.add_input(vec![message.clone()], self.request.in_place) } else { vec![] };
            self.output(before, vec![message.clone()]);
        }
    }

    fn reduce_scatter(&mut self) {
        let before = self.add_inputs(self.elements);
        let (start, len) = (self.split[..self.rank].iter().sum(), self.split[self.rank]);
        self.output(before, vec![self.reduced(self.everyone(), start, len)]);
        self.work.recv_counts = self.split.clone();
    }

    fn allgather(&mut self) {
        let blocks = self.everyone().len();
        let block = (self.elements / blocks).max(1);
        let own = self.add_inputs(block);
        self.output(shifted(own, self.rank * block), self.gathered(&vec![block; blocks]));
        self.size(block, block * blocks);
    }

    fn allgatherv(&mut self) {
        let own = self.add_input(vec![self.own(0, self.split[self.rank])], self.request.in_place);
        self.output(shifted(own, self.split[..self.rank].iter().sum()), self.gathered(&self.split));
        self.work.recv_counts = self.split.clone();
    }

    /// To the root; `blocks` gives the length from each rank.
    fn gather(&mut self, blocks: Vec<usize>) {
        let own = vec![self.own(0, blocks[self.rank])];
        let own = self.add_input(own, self.request.in_place && self.is_root);
        if self.is_root {
            self.output(shifted(own, blocks[..self.rank].iter().sum()), self.gathered(&blocks));
        }
        self.size(blocks[self.rank], blocks.iter().sum());
    }

    /// From the root; `blocks` gives the length for each rank.
    fn scatter(&mut self, blocks: Vec<usize>) {
        let (total, phase) = (blocks.iter().sum(), blocks[..self.rank].iter().sum());
        let own = vec![self.own(0, total)];
        let before = if self.is_root { self.add_input(own, self.request.in_place) } else { vec![] };
        self.output(before, vec![self.of(self.request.root, 0, blocks[self.rank], phase)]);
        self.size(blocks[self.rank], total);
    }

    fn alltoall(&mut self) {
        let (block, ranks) = (self.block, self.request.ranks);
        let before = self.add_input(vec![self.own(0, block * ranks)], self.request.in_place);
        let after = (0..ranks).map(|from| self.of(from, from * block, block, self.rank * block)).collect();
        self.output(before, after);
        self.size(block, block * ranks);
    }

    /// Rank i sends part (i + j) mod ranks to rank j, so that all ranks send and receive the same number of elements.
    fn alltoallv(&mut self) {
        let (rank, ranks) = (self.rank, self.request.ranks);
        let len = |i: usize, j: usize| self.split[(i + j) % ranks];
        let counts: Vec<_> = (0..ranks).map(|other| len(rank, other)).collect();
        let mut start = 0;
        let mut after = Vec::new();
        for (from, count) in counts.iter().enumerate() {
            let phase = (0..rank).map(|to| len(from, to)).sum();
            after.push(self.of(from, start, *count, phase));
            start += count;
        }
        self.add_input(vec![self.own(0, self.elements)], false);
        self.output(vec![], after);
        (self.work.send_counts, self.work.recv_counts) = (counts.clone(), counts);
    }

    fn pairwise_exchange(&mut self) {
        let destinations = self.request.ranks.ilog2() as usize;
        let block = (self.elements / destinations).max(1);
        self.add_input(vec![self.own(0, block * destinations)], false);
        let partner = |step: usize| self.rank ^ (1 << step);
        let after = (0..destinations).map(|i| self.of(partner(i), i * block, block, i * block)).collect();
        self.output(vec![], after);
        self.size(block, block * destinations);
        self.work.destinations = destinations;
    }

    /// Scan and exscan: the reduction of `contributions`.
    fn prefix(&mut self, contributions: Range<usize>) {
        let before = self.add_input(vec![self.own(0, self.elements)], self.request.in_place);
        // Rank 0 has no predecessor in an exscan; its output is unchanged.
        let is_first = contributions.is_empty();
        let after = if is_first { before.clone() } else { vec![self.reduced(contributions, 0, self.elements)] };
        self.output(before, after);
    }

    /// The contributions of all ranks.
    fn everyone(&self) -> Range<usize> {
        0..self.request.ranks * self.request.buffers
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
    fn reduced(&self, contributions: Range<usize>, phase: usize, len: usize) -> Piece {
        Piece { start: 0, len, sequence: self.pattern.reduced(contributions).into(), phase }
    }

    /// The contributions one after the other, with the lengths in `lens`.
    fn gathered(&self, lens: &[usize]) -> Vec<Piece> {
        let starts = lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len)
        });
        starts.zip(lens).enumerate().map(|(from, (start, &len))| self.of(from, start, len, 0)).collect()
    }

    /// Adds an input with `pieces`; in place, returns them instead as the contents of an output before the call.
    fn add_input(&mut self, pieces: Vec<Piece>, in_place: bool) -> Vec<Piece> {
        if in_place {
            return pieces;
        }
        self.work.inputs.push(pieces);
        Vec::new()
    }

    /// Adds each of this rank's buffers with `len` elements; in place there is one.
    fn add_inputs(&mut self, len: usize) -> Vec<Piece> {
        let all = 0..self.request.buffers;
        all.map(|buffer| self.add_input(vec![self.own(buffer, len)], self.request.in_place)).last().unwrap_or_default()
    }

    fn output(&mut self, before: Vec<Piece>, after: Vec<Piece>) {
        self.work.before.push(before);
        self.work.after.push(after);
    }

    /// Sets the number of elements for this rank, and for the whole call.
    fn size(&mut self, count: usize, total: usize) {
        (self.work.count, self.work.bytes) = (count, total * self.work.dtype.size());
    }
}

//! Executes the schedules of all ranks, segment by segment as the engine does, with symbolic values.

use std::collections::VecDeque;
use std::ops::Range;

use super::pieces::{Piece, Pieces};
use super::program::{Before, FlatStep, Kind, NONE, Program};
use super::symbol::{Id, Symbols, Value};
use super::{Contract, Expect, wrong};
use crate::error::Result;
use crate::hash::QuickMap;
use crate::schedule::{Buffer, Side};

pub(super) struct Machine<'a> {
    program: &'a Program,
    symbols: Symbols,
    initial: Pieces<Value>,
    memory: Pieces<Value>,
    /// The number of finished elements of each step.
    done: Vec<u32>,
    /// The steps that wait for each step: all lists concatenated, and where each list begins.
    waiters: Vec<u32>,
    first_waiter: Vec<u32>,
    /// The steps, in the order in which they finished in the last run.
    finished: Vec<u32>,
    tokens: bool,
    /// The values being computed, each with its first element.
    results: Vec<(u32, Value)>,
}

impl<'a> Machine<'a> {
    pub fn new(program: &'a Program, contract: &dyn Contract) -> Self {
        let (waiters, first_waiter) = waiters(program);
        let symbols = Symbols::new(contract);
        let initial = initial(program, contract, &symbols);
        let (memory, done, finished) = (initial.clone(), Vec::new(), Vec::new());
        let tokens = contract.synchronizes();
        Self { program, symbols, initial, memory, done, waiters, first_waiter, finished, tokens, results: Vec::new() }
    }

    /// Executes all steps. The error describes a deadlock. Of the steps that may be able to proceed, the newest or the
    /// oldest is tried next.
    pub fn run(&mut self, segment: u32, newest: bool) -> Result<()> {
        self.memory.clone_from(&self.initial);
        self.done = vec![0; self.program.steps.len()];
        self.finished.clear();
        let mut open: VecDeque<u32> = (0..self.program.steps.len() as u32).collect();
        while let Some(step) = if newest { open.pop_back() } else { open.pop_front() } {
            if self.advance(step as usize, segment)? {
                if self.done[step as usize] < self.program.steps[step as usize].len {
                    open.push_back(step);
                }
                open.extend(self.waiters_of(step));
                let peer = self.program.steps[step as usize].peer;
                if peer != NONE {
                    open.extend(self.waiters_of(peer));
                }
            }
        }
        match self.program.steps.iter().zip(&self.done).position(|(step, &done)| done < step.len) {
            Some(stuck) => Err(wrong(format!("deadlock: {}", self.explain(stuck)))),
            None => Ok(()),
        }
    }

    /// The value of every element.
    #[cfg(test)]
    pub fn contents(&self) -> Vec<Value> {
        self.memory.elements(0, self.program.memory).collect()
    }

    fn waiters_of(&self, step: u32) -> &[u32] {
        &self.waiters[self.first_waiter[step as usize] as usize..self.first_waiter[step as usize + 1] as usize]
    }

    /// Executes the next segment of a step and of its peer, if their dependencies permit.
    fn advance(&mut self, index: usize, segment: u32) -> Result<bool> {
        let step = &self.program.steps[index];
        let from = self.done[index];
        let segment = if step.kind.is_shared() { step.len } else { segment };
        let to = from.saturating_add(segment).min(step.len);
        if from == to || self.blocker(index, to).is_some() {
            return Ok(false);
        }
        if step.peer != NONE {
            let peer = step.peer as usize;
            if self.blocker(peer, to).is_some() {
                return Ok(false);
            }
            let (send, recv) = if step.kind == Kind::Send { (index, peer) } else { (peer, index) };
            self.compute(recv, from..to, self.program.steps[send].reads[0])?;
            self.finish(peer, to);
        } else {
            self.compute(index, from..to, step.fetched)?;
        }
        self.finish(index, to);
        Ok(true)
    }

    fn finish(&mut self, index: usize, to: u32) {
        self.done[index] = to;
        if to == self.program.steps[index].len {
            self.finished.push(index as u32);
        }
    }

    /// A step that must make progress before `index` may process its first `progress` elements.
    fn blocker(&self, index: usize, progress: u32) -> Option<usize> {
        let waits = |before: &&Before| self.done[before.step as usize] < self.program.required(before, progress);
        let local = self.program.after(index).iter().find(waits).map(|before| before.step);
        let across = || {
            let open = |&step: &u32| self.done[step as usize] < self.program.steps[step as usize].len;
            let tables = &self.program.tables;
            let mut earlier =
                tables.across(index).iter().copied().chain(tables.previous(index)).chain(tables.abreast(index));
            earlier.find(open)
        };
        local.or_else(across).map(|step| step as usize)
    }

    /// Computes the elements `range` of step `index`; `incoming` is the address from which the peer sends, or from
    /// which this step fetches.
    fn compute(&mut self, index: usize, range: Range<u32>, incoming: u32) -> Result<()> {
        let FlatStep { kind, reads: [first, second], write, .. } = self.program.steps[index];
        if write == NONE {
            return Ok(());
        }
        let mut results = std::mem::take(&mut self.results);
        results.clear();
        let mut i = range.start;
        while i < range.end {
            let (result, end) = match kind {
                Kind::Send | Kind::Recv | Kind::Fetch | Kind::Publish | Kind::AwaitReaders => {
                    self.read(incoming, i, range.end)
                }
                Kind::Copy => self.read(first, i, range.end),
                Kind::RecvReduce(Side::Left) | Kind::FetchReduce(Side::Left) => {
                    self.combine(incoming, first, i, range.end)
                }
                Kind::RecvReduce(Side::Right) | Kind::FetchReduce(Side::Right) => {
                    self.combine(first, incoming, i, range.end)
                }
                Kind::Reduce => self.combine(first, second, i, range.end),
                Kind::Divide(by) => {
                    let (value, end) = self.read(first, i, range.end);
                    (value.and_then(|value| self.symbols.divide(value, by)), end)
                }
            };
            match result {
                Ok(value) if value == Value::UNDEFINED && !self.tokens => {
                    let name = self.program.name(index);
                    return Err(wrong(format!("{name}: element {i} comes from undefined memory")));
                }
                Ok(value) if results.last().is_some_and(|&(start, last)| last.skip(i - start) == value) => {}
                Ok(value) => results.push((i, value)),
                Err(why) => return Err(wrong(format!("{}: element {i} {why}", self.program.name(index)))),
            }
            i = end;
        }
        let ends = results.iter().skip(1).map(|&(start, _)| start).chain([range.end]);
        for (&(start, value), end) in results.iter().zip(ends) {
            self.memory.set(write + start, write + end, value);
        }
        self.results = results;
        Ok(())
    }

    /// The value at `base + i`, and the `i` up to which the same piece extends; at most `end`.
    fn read(&self, base: u32, i: u32, end: u32) -> (Result<Value, String>, u32) {
        let (value, next) = self.memory.from(base + i, base + end);
        (Ok(value), next - base)
    }

    fn combine(&mut self, left: u32, right: u32, i: u32, end: u32) -> (Result<Value, String>, u32) {
        let (l, next) = self.memory.from(left + i, left + end);
        let (r, other) = self.memory.from(right + i, right + end);
        (self.symbols.combine(l, r), (next - left).min(other - right))
    }

    /// Compares the outputs with the contract. Returns whether all reductions are in rank order, and whether all are
    /// folds.
    pub fn check(&self, contract: &dyn Contract) -> Result<(bool, bool, Vec<u64>)> {
        let (mut in_order, mut folds, mut expressions) = (true, true, Vec::new());
        // The expression of each reduction, wherever it is required; checked where it first occurs.
        let mut agreed: QuickMap<(usize, usize, usize, u64), Id> = QuickMap::default();
        for region in &self.program.regions {
            let Buffer::Output(output) = region.buffer else { continue };
            for (index, value) in self.memory.elements(region.start, region.len).enumerate() {
                let fail = |what: String| {
                    let address = self.program.address_name(region.start + index);
                    Err(wrong(format!(
                        "{address}: {}[{}] {what}",
                        self.symbols.describe(value.expression),
                        value.element
                    )))
                };
                match contract.expected(region.rank, output, index) {
                    Expect::Anything | Expect::Untouched => {}
                    Expect::Copy(leaf) => {
                        if value != self.symbols.leaf(leaf) {
                            return fail(format!("should be {leaf:?}"));
                        }
                    }
                    Expect::Reduced { ranks, element, divisor, in_order: must_ascend } => {
                        let known = agreed.get(&(ranks.start, ranks.end, element, divisor));
                        if known == Some(&value.expression) && value.element as usize == element {
                            continue;
                        }
                        if value.element as usize != element
                            || !self.symbols.is_total(value.expression, &ranks, divisor)
                        {
                            return fail(format!("should be the ranks {ranks:?} at {element}, divided by {divisor}"));
                        }
                        let ascends = self.symbols.ascends(value.expression);
                        if must_ascend && !ascends {
                            return fail("reduces ranks out of order".into());
                        }
                        in_order &= ascends;
                        folds &= self.symbols.folds(value.expression);
                        expressions.push(self.symbols.hash(value.expression));
                        if known.is_some() {
                            return fail("was reduced in a different order for another element or rank".into());
                        }
                        agreed.insert((ranks.start, ranks.end, element, divisor), value.expression);
                    }
                }
            }
        }
        expressions.sort_unstable();
        expressions.dedup();
        Ok((in_order, folds, expressions))
    }

    /// The length of the longest chain of dependent messages and fetches.
    pub fn longest_chain(&self) -> usize {
        let mut chain = vec![0u32; self.program.steps.len()];
        for &index in &self.finished {
            let before = |index: u32| {
                let after = self.program.after(index as usize).iter().map(|before| before.step);
                let all = after.chain(self.program.tables.across(index as usize).iter().copied());
                all.map(|step| chain[step as usize]).max().unwrap_or(0)
            };
            let FlatStep { kind, peer, .. } = self.program.steps[index as usize];
            let fetches = matches!(kind, Kind::Fetch | Kind::FetchReduce(_));
            chain[index as usize] = match peer {
                NONE => u32::from(fetches) + before(index),
                peer => 1 + before(index).max(before(peer)),
            };
        }
        chain.into_iter().max().unwrap_or(0) as usize
    }

    /// Checks that no rank can finish before every rank has started.
    pub fn check_barrier(&self) -> Result<()> {
        let (program, words) = (self.program, self.program.ranks.div_ceil(64));
        // Each step and each rank has a bitmap of the ranks on which it depends.
        let mut known = vec![0u64; words * program.steps.len()];
        let mut known_by_rank = vec![vec![0u64; words]; program.ranks];
        let mut all = vec![0u64; words];
        for &index in &self.finished {
            let FlatStep { kind, peer, rank, .. } = program.steps[index as usize];
            all.fill(0);
            let sender = (peer != NONE && kind != Kind::Send).then_some(peer);
            for end in [Some(index), sender].into_iter().flatten() {
                let rank = program.steps[end as usize].rank;
                all[rank as usize / 64] |= 1 << (rank % 64);
                let across = program.tables.across(end as usize).iter().copied();
                for step in program.after(end as usize).iter().map(|before| before.step).chain(across) {
                    let cause = step as usize * words;
                    all.iter_mut().zip(&known[cause..cause + words]).for_each(|(a, b)| *a |= b);
                }
            }
            known_by_rank[rank as usize].iter_mut().zip(&all).for_each(|(a, b)| *a |= b);
            known[index as usize * words..][..words].copy_from_slice(&all);
        }
        for (rank, known) in known_by_rank.iter().enumerate() {
            let missing = (0..program.ranks).find(|&r| r != rank && known[r / 64] >> (r % 64) & 1 == 0);
            if let Some(missing) = missing {
                return Err(wrong(format!("rank {rank} may finish before rank {missing} has begun")));
            }
        }
        Ok(())
    }

    fn explain(&self, stuck: usize) -> String {
        let program = self.program;
        let one = |index: usize| {
            let next = (self.done[index] + 1).min(program.steps[index].len);
            let why = self.blocker(index, next).map_or(String::new(), |b| format!(", waits for {}", program.name(b)));
            format!("{} has finished {} elements{why}", program.name(index), self.done[index])
        };
        match program.steps[stuck].peer {
            NONE => one(stuck),
            peer => format!("{}; {}", one(stuck), one(peer as usize)),
        }
    }
}

/// The initial contents of the flat memory.
fn initial(program: &Program, contract: &dyn Contract, symbols: &Symbols) -> Pieces<Value> {
    let mut memory = Pieces::new(program.memory, program.begins(), Value::UNDEFINED);
    for region in program.regions.iter().filter(|region| region.buffer != Buffer::Scratch) {
        let holds = |index| {
            let leaf = if index < region.len { contract.initial(region.rank, region.buffer, index) } else { None };
            leaf.map_or(Value::UNDEFINED, |leaf| symbols.leaf(leaf))
        };
        let (mut start, mut value) = (0, holds(0));
        for index in 1..=region.len {
            let next = holds(index);
            if index == region.len || next != value.skip((index - start) as u32) {
                memory.set((region.start + start) as u32, (region.start + index) as u32, value);
                (start, value) = (index, next);
            }
        }
    }
    memory
}

/// The steps that wait for each step: the concatenated lists, and where each begins.
fn waiters(program: &Program) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0; program.steps.len() + 1];
    let before = |index| {
        let local = program.after(index).iter().map(|before| before.step);
        let tables = &program.tables;
        local.chain(tables.across(index).iter().copied()).chain(tables.previous(index)).chain(tables.abreast(index))
    };
    let all = || (0..program.steps.len()).flat_map(|index| before(index).map(move |step| (index, step)));
    all().for_each(|(_, before)| first[before as usize + 1] += 1);
    for index in 0..program.steps.len() {
        first[index + 1] += first[index];
    }
    let mut next = first.clone();
    let mut lists = vec![0; first[program.steps.len()] as usize];
    for (index, before) in all() {
        lists[next[before as usize] as usize] = index as u32;
        next[before as usize] += 1;
    }
    (lists, first)
}

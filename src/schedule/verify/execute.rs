//! Executes all ranks at once as the engine would, segment by segment, on expressions.

use std::collections::VecDeque;

use super::program::{Before, FlatStep, Kind, NONE, Program};
use super::symbol::{Id, Symbols, UNDEFINED, Value};
use super::{Contract, Expect, wrong};
use crate::error::Result;
use crate::hash::QuickMap;
use crate::schedule::{Buffer, Side};

/// Which of the steps that might go on is tried next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Newest,
    Oldest,
}

pub(super) struct Machine<'a> {
    program: &'a Program,
    symbols: Symbols,
    initial: Vec<Value>,
    memory: Vec<Value>,
    /// By step: elements finished.
    done: Vec<u32>,
    /// The steps that wait for each step, one list after the other, and where each list begins.
    waiters: Vec<u32>,
    first_waiter: Vec<u32>,
    /// The steps in the order in which they finished last time.
    finished: Vec<u32>,
    tokens: bool,
}

impl<'a> Machine<'a> {
    pub fn new(program: &'a Program, contract: &dyn Contract) -> Self {
        let (waiters, first_waiter) = waiters(program);
        let symbols = Symbols::new(contract);
        let mut initial = Vec::with_capacity(program.memory);
        for region in &program.regions {
            let leaf = |index| match region.buffer {
                Buffer::Scratch => None,
                buffer => contract.initial(region.rank, buffer, index),
            };
            initial.extend((0..region.len).map(|index| leaf(index).map_or(Value::UNDEFINED, |l| symbols.leaf(l))));
        }
        let (memory, done, finished) = (Vec::new(), Vec::new(), Vec::new());
        let tokens = contract.synchronizes();
        Self { program, symbols, initial, memory, done, waiters, first_waiter, finished, tokens }
    }

    /// Executes every step from the beginning, or says what got stuck. The result must be that of the run before, if any.
    pub fn run(&mut self, segment: u32, order: Order) -> Result<()> {
        let before = std::mem::replace(&mut self.memory, self.initial.clone());
        self.done = vec![0; self.program.steps.len()];
        self.finished.clear();
        let mut open: VecDeque<u32> = (0..self.program.steps.len() as u32).collect();
        while let Some(step) = if order == Order::Newest { open.pop_back() } else { open.pop_front() } {
            if self.advance(step as usize, segment)? {
                open.push_back(step);
                open.extend(self.waiters_of(step));
                let peer = self.program.steps[step as usize].peer;
                if peer != NONE {
                    open.extend(self.waiters_of(peer));
                }
            }
        }
        if let Some(stuck) = self.program.steps.iter().zip(&self.done).position(|(step, &done)| done < step.len) {
            return Err(wrong(format!("deadlock: {}", self.explain(stuck))));
        }
        match before.iter().zip(&self.memory).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(place) => Err(wrong(format!("{} depends on the order of execution", self.program.place(place)))),
        }
    }

    fn waiters_of(&self, step: u32) -> &[u32] {
        &self.waiters[self.first_waiter[step as usize] as usize..self.first_waiter[step as usize + 1] as usize]
    }

    /// Executes the next segment of a step, and of its peer's, if it may.
    fn advance(&mut self, index: usize, segment: u32) -> Result<bool> {
        let step = &self.program.steps[index];
        let from = self.done[index];
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
            self.compute(index, from..to, NONE)?;
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

    /// A step that must go on before `index` may work on its first `progress` elements.
    fn blocker(&self, index: usize, progress: u32) -> Option<usize> {
        let waits = |before: &&Before| self.done[before.step as usize] < self.program.required(before, progress);
        self.program.after(index).iter().find(waits).map(|before| before.step as usize)
    }

    /// Writes the elements `range` of step `index`; `incoming` is where a peer sends from.
    fn compute(&mut self, index: usize, range: std::ops::Range<u32>, incoming: u32) -> Result<()> {
        let program = self.program;
        let FlatStep { kind, reads: [first, second], write, .. } = program.steps[index];
        for i in range {
            let value = match kind {
                Kind::Send | Kind::Recv => Ok(self.memory[(incoming + i) as usize]),
                Kind::Copy => Ok(self.memory[(first + i) as usize]),
                Kind::RecvReduce(Side::Left) => self.combine(incoming + i, first + i),
                Kind::RecvReduce(Side::Right) => self.combine(first + i, incoming + i),
                Kind::Reduce => self.combine(first + i, second + i),
                Kind::Divide(by) => {
                    let Value { expression, element } = self.memory[(first + i) as usize];
                    self.symbols.divide(expression, by).map(|expression| Value { expression, element })
                }
            };
            match value {
                Ok(Value { expression: UNDEFINED, .. }) if !self.tokens => {
                    return Err(wrong(format!("{}: element {i} comes from undefined memory", program.name(index))));
                }
                Ok(value) => self.memory[(write + i) as usize] = value,
                Err(why) => return Err(wrong(format!("{}: element {i} {why}", program.name(index)))),
            }
        }
        Ok(())
    }

    fn combine(&mut self, left: u32, right: u32) -> Result<Value, String> {
        let (left, right) = (self.memory[left as usize], self.memory[right as usize]);
        if left.element != right.element {
            return Err(format!("combines the elements {} and {}", left.element, right.element));
        }
        Ok(Value { expression: self.symbols.reduce(left.expression, right.expression)?, element: left.element })
    }

    /// Compares the outputs with what they must be; whether all reductions are in the order of ranks.
    pub fn check(&self, contract: &dyn Contract) -> Result<bool> {
        let mut in_order = true;
        // One expression for each reduction, on whichever ranks it is found; proven where it is found first.
        let mut agreed: QuickMap<(usize, usize, usize, u64), Id> = QuickMap::default();
        for region in &self.program.regions {
            let Buffer::Output(output) = region.buffer else { continue };
            for index in 0..region.len {
                let value = self.memory[region.start + index];
                let fail = |what: String| {
                    let place = self.program.place(region.start + index);
                    Err(wrong(format!(
                        "{place}: {}[{}] {what}",
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
                            return fail("combines ranks out of order".into());
                        }
                        in_order &= ascends;
                        if known.is_some() {
                            return fail("was computed in another order elsewhere".into());
                        }
                        agreed.insert((ranks.start, ranks.end, element, divisor), value.expression);
                    }
                }
            }
        }
        Ok(in_order)
    }

    /// The longest chain of messages, each of which waits for the one before.
    pub fn longest_chain(&self) -> usize {
        let mut chain = vec![0u32; self.program.steps.len()];
        for &index in &self.finished {
            let before = |index: u32| {
                let after = self.program.after(index as usize).iter();
                after.map(|before| chain[before.step as usize]).max().unwrap_or(0)
            };
            chain[index as usize] = match self.program.steps[index as usize].peer {
                NONE => before(index),
                peer => 1 + before(index).max(before(peer)),
            };
        }
        chain.into_iter().max().unwrap_or(0) as usize
    }

    /// No rank may finish before every rank has begun.
    pub fn check_everyone_heard_everyone(&self) -> Result<()> {
        let (program, words) = (self.program, self.program.ranks.div_ceil(64));
        // By step, and by rank: a bit for each rank that has been heard.
        let mut heard = vec![0u64; words * program.steps.len()];
        let mut heard_by_rank = vec![vec![0u64; words]; program.ranks];
        let mut all = vec![0u64; words];
        for &index in &self.finished {
            let FlatStep { kind, peer, rank, .. } = program.steps[index as usize];
            all.fill(0);
            let sender = (peer != NONE && kind != Kind::Send).then_some(peer);
            for end in [Some(index), sender].into_iter().flatten() {
                let rank = program.steps[end as usize].rank;
                all[rank as usize / 64] |= 1 << (rank % 64);
                for before in program.after(end as usize) {
                    let cause = before.step as usize * words;
                    all.iter_mut().zip(&heard[cause..cause + words]).for_each(|(a, b)| *a |= b);
                }
            }
            heard_by_rank[rank as usize].iter_mut().zip(&all).for_each(|(a, b)| *a |= b);
            heard[index as usize * words..][..words].copy_from_slice(&all);
        }
        for (rank, heard) in heard_by_rank.iter().enumerate() {
            let missing = (0..program.ranks).find(|&r| r != rank && heard[r / 64] >> (r % 64) & 1 == 0);
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

/// For each step the steps that wait for it: the lists, and where each begins.
fn waiters(program: &Program) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0; program.steps.len() + 1];
    let all = || (0..program.steps.len()).flat_map(|index| program.after(index).iter().map(move |b| (index, b.step)));
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

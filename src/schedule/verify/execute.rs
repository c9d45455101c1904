//! Executes all ranks at once as the engine would, segment by segment, on expressions.

use std::collections::{HashMap, VecDeque};

use super::program::{FlatStep, Kind, Program};
use super::symbol::{Id, Symbols, UNDEFINED, Value};
use super::{Contract, Expect, wrong};
use crate::error::Result;
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
    done: Vec<usize>,
    /// By step: the steps that wait for it.
    waiters: Vec<Vec<usize>>,
    /// The steps in the order in which they finished last time.
    finished: Vec<usize>,
    tokens: bool,
}

impl<'a> Machine<'a> {
    pub fn new(program: &'a Program, contract: &dyn Contract) -> Self {
        let mut waiters = vec![Vec::new(); program.steps.len()];
        for (index, step) in program.steps.iter().enumerate() {
            for &(before, _) in &step.after {
                waiters[before].push(index);
            }
        }
        let symbols = Symbols::new(contract);
        let mut initial = Vec::with_capacity(program.memory);
        for region in &program.regions {
            let leaf = |index| match region.buffer {
                Buffer::Scratch => None,
                buffer => contract.initial(region.rank, buffer, index),
            };
            initial.extend((0..region.len).map(|index| leaf(index).map_or(Value::UNDEFINED, |l| symbols.leaf(l))));
        }
        let tokens = contract.synchronizes();
        Self { program, symbols, initial, memory: Vec::new(), done: Vec::new(), waiters, finished: Vec::new(), tokens }
    }

    /// Executes every step from the beginning, or says what got stuck. The result must be that of the run before, if any.
    pub fn run(&mut self, segment: usize, order: Order) -> Result<()> {
        let before = std::mem::replace(&mut self.memory, self.initial.clone());
        self.done = vec![0; self.program.steps.len()];
        self.finished.clear();
        let mut open: VecDeque<usize> = (0..self.program.steps.len()).collect();
        while let Some(step) = if order == Order::Newest { open.pop_back() } else { open.pop_front() } {
            if self.advance(step, segment)? {
                open.push_back(step);
                let ends = [Some(step), self.program.steps[step].peer];
                for end in ends.into_iter().flatten() {
                    open.extend(&self.waiters[end]);
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

    /// Executes the next segment of a step, and of its peer's, if it may.
    fn advance(&mut self, index: usize, segment: usize) -> Result<bool> {
        let step = &self.program.steps[index];
        let from = self.done[index];
        let to = from.saturating_add(segment).min(step.len);
        if from == to || self.blocker(index, to).is_some() {
            return Ok(false);
        }
        if let Some(peer) = step.peer {
            if self.blocker(peer, to).is_some() {
                return Ok(false);
            }
            let (send, recv) = if step.kind == Kind::Send { (index, peer) } else { (peer, index) };
            let source = self.program.steps[send].reads[0].expect("a send reads");
            self.compute(recv, from..to, Some(source))?;
            self.finish(peer, to);
        } else {
            self.compute(index, from..to, None)?;
        }
        self.finish(index, to);
        Ok(true)
    }

    fn finish(&mut self, index: usize, to: usize) {
        self.done[index] = to;
        if to == self.program.steps[index].len {
            self.finished.push(index);
        }
    }

    /// A step that must go on before `index` may work on its first `progress` elements.
    fn blocker(&self, index: usize, progress: usize) -> Option<usize> {
        let waits = |&&(before, shift): &&(usize, isize)| {
            let needed = (progress as isize).saturating_add(shift).clamp(0, self.program.steps[before].len as isize);
            self.done[before] < needed as usize
        };
        self.program.steps[index].after.iter().find(waits).map(|&(before, _)| before)
    }

    /// Writes the elements `range` of step `index`; `source` is where a peer sends from.
    fn compute(&mut self, index: usize, range: std::ops::Range<usize>, source: Option<usize>) -> Result<()> {
        let program = self.program;
        let FlatStep { kind, reads, write, .. } = &program.steps[index];
        let into = write.expect("every step but a send writes");
        let incoming = source.unwrap_or(0);
        let first = reads[0].unwrap_or(0);
        for i in range {
            let value = match *kind {
                Kind::Send | Kind::Recv => Ok(self.memory[incoming + i]),
                Kind::Copy => Ok(self.memory[first + i]),
                Kind::RecvReduce(Side::Left) => self.combine(incoming + i, first + i),
                Kind::RecvReduce(Side::Right) => self.combine(first + i, incoming + i),
                Kind::Reduce => self.combine(first + i, reads[1].unwrap_or(0) + i),
                Kind::Divide(by) => {
                    let Value { expression, element } = self.memory[first + i];
                    self.symbols.divide(expression, by).map(|expression| Value { expression, element })
                }
            };
            match value {
                Ok(Value { expression: UNDEFINED, .. }) if !self.tokens => {
                    return Err(wrong(format!("{}: element {i} comes from undefined memory", program.name(index))));
                }
                Ok(value) => self.memory[into + i] = value,
                Err(why) => return Err(wrong(format!("{}: element {i} {why}", program.name(index)))),
            }
        }
        Ok(())
    }

    fn combine(&mut self, left: usize, right: usize) -> Result<Value, String> {
        let (left, right) = (self.memory[left], self.memory[right]);
        if left.element != right.element {
            return Err(format!("combines the elements {} and {}", left.element, right.element));
        }
        Ok(Value { expression: self.symbols.reduce(left.expression, right.expression)?, element: left.element })
    }

    /// Compares the outputs with what they must be; whether all reductions are in the order of ranks.
    pub fn check(&self, contract: &dyn Contract) -> Result<bool> {
        let mut in_order = true;
        // One expression for each reduction, on whichever ranks it is found.
        let mut agreed: HashMap<(usize, usize, usize), Id> = HashMap::new();
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
                        let known = agreed.entry((ranks.start, ranks.end, element)).or_insert(value.expression);
                        if *known != value.expression {
                            return fail("was computed in another order elsewhere".into());
                        }
                    }
                }
            }
        }
        Ok(in_order)
    }

    /// The longest chain of messages, each of which waits for the one before.
    pub fn longest_chain(&self) -> usize {
        let mut chain = vec![0; self.program.steps.len()];
        for &index in &self.finished {
            let step = &self.program.steps[index];
            let before = |step: &FlatStep| step.after.iter().map(|&(before, _)| chain[before]).max().unwrap_or(0);
            chain[index] = match step.peer {
                None => before(step),
                Some(peer) => 1 + before(step).max(before(&self.program.steps[peer])),
            };
        }
        chain.into_iter().max().unwrap_or(0)
    }

    /// No rank may finish before every rank has begun.
    pub fn check_everyone_heard_everyone(&self) -> Result<()> {
        let words = self.program.ranks.div_ceil(64);
        let mut heard = vec![vec![0u64; words]; self.program.steps.len()];
        let mut heard_by_rank = vec![vec![0u64; words]; self.program.ranks];
        for &index in &self.finished {
            let step = &self.program.steps[index];
            let mut all = vec![0u64; words];
            all[step.rank / 64] |= 1 << (step.rank % 64);
            let mut causes: Vec<usize> = step.after.iter().map(|&(before, _)| before).collect();
            if let Some(sender) = step.peer.filter(|_| step.kind != Kind::Send) {
                all[self.program.steps[sender].rank / 64] |= 1 << (self.program.steps[sender].rank % 64);
                causes.extend(self.program.steps[sender].after.iter().map(|&(before, _)| before));
            }
            for cause in causes {
                all.iter_mut().zip(&heard[cause]).for_each(|(a, b)| *a |= b);
            }
            heard_by_rank[step.rank].iter_mut().zip(&all).for_each(|(a, b)| *a |= b);
            heard[index] = all;
        }
        for (rank, heard) in heard_by_rank.iter().enumerate() {
            let missing = (0..self.program.ranks).find(|&r| r != rank && heard[r / 64] >> (r % 64) & 1 == 0);
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
        let peer = program.steps[stuck].peer.map_or(String::new(), |peer| format!("; {}", one(peer)));
        format!("{}{peer}", one(stuck))
    }
}

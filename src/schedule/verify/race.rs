//! Finds steps of one rank that touch the same element, one of them writing, in no certain order.

use super::program::{NONE, Program};
use super::{Contract, Expect, wrong};
use crate::error::Result;
use crate::schedule::Buffer;

/// A step touched an element as its own `element`-th.
#[derive(Clone, Copy)]
struct Access {
    step: u32,
    element: u32,
}

/// Readers of one element since its last write, newest first.
#[derive(Clone, Copy)]
struct Reader {
    access: Access,
    next: u32,
}

/// Walks every rank's steps as listed. Each access must come after the last write before it, and each write after all
/// reads since that; then, order being transitive, all conflicting accesses are ordered as listed.
pub(super) fn check(program: &Program, contract: &dyn Contract) -> Result<()> {
    let mut writers = vec![Access { step: NONE, element: 0 }; program.memory];
    let mut heads = vec![NONE; program.memory];
    let mut readers: Vec<Reader> = Vec::new();
    let mut paths = Paths::new(program);
    for (index, step) in program.steps.iter().enumerate() {
        for base in step.reads.into_iter().filter(|&base| base != NONE) {
            for element in 0..step.len {
                let place = (base + element) as usize;
                paths.require(writers[place], index, element, place)?;
                let access = Access { step: index as u32, element };
                readers.push(Reader { access, next: heads[place] });
                heads[place] = readers.len() as u32 - 1;
            }
        }
        if step.write == NONE {
            continue;
        }
        for element in 0..step.len {
            let place = (step.write + element) as usize;
            let mut head = std::mem::replace(&mut heads[place], NONE);
            while head != NONE {
                let reader = readers[head as usize];
                paths.require(reader.access, index, element, place)?;
                head = reader.next;
            }
            paths.require(writers[place], index, element, place)?;
            writers[place] = Access { step: index as u32, element };
        }
    }
    for region in &program.regions {
        let Buffer::Output(output) = region.buffer else { continue };
        for index in 0..region.len {
            let writer = writers[region.start + index].step;
            if writer != NONE && contract.expected(region.rank, output, index) == Expect::Untouched {
                let place = program.place(region.start + index);
                return Err(wrong(format!(
                    "{place} must stay as it is, but {} writes it",
                    program.name(writer as usize)
                )));
            }
        }
    }
    Ok(())
}

/// Searches paths of dependencies.
struct Paths<'a> {
    program: &'a Program,
    /// How many of a step's first elements the current search has already asked for.
    asked: Vec<u32>,
    visited: Vec<u32>,
    open: Vec<(u32, u32)>,
}

impl<'a> Paths<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, asked: vec![0; program.steps.len()], visited: Vec::new(), open: Vec::new() }
    }

    /// Makes sure that `earlier` is finished before `later` works on its `element`.
    fn require(&mut self, earlier: Access, later: usize, element: u32, place: usize) -> Result<()> {
        let target = earlier.step as usize;
        if earlier.step == NONE || target == later {
            return Ok(());
        }
        let (needed, have) = (earlier.element + 1, element + 1);
        // Nearly always it waits directly; then no search is needed.
        let direct = self.program.after(later).iter().any(|before| {
            before.step == earlier.step && i64::from(have) + i64::from(before.shift) >= i64::from(needed)
        });
        if direct || self.search(earlier.step, needed, later as u32, have) {
            return Ok(());
        }
        let (earlier, later) = (self.program.name(target), self.program.name(later));
        Err(wrong(format!("{}: {later} does not wait for {earlier}", self.program.place(place))))
    }

    /// Whether `from` on its first `progress` elements implies that the first `needed` of `target` are finished.
    fn search(&mut self, target: u32, needed: u32, from: u32, progress: u32) -> bool {
        let mut found = false;
        self.open.push((from, progress));
        while let Some((step, progress)) = self.open.pop() {
            for before in self.program.after(step as usize) {
                let first = self.program.required(before, progress);
                found |= before.step == target && first >= needed;
                if before.step > target && first > self.asked[before.step as usize] {
                    self.asked[before.step as usize] = first;
                    self.visited.push(before.step);
                    self.open.push((before.step, first));
                }
            }
            if found {
                break;
            }
        }
        self.open.clear();
        self.visited.drain(..).for_each(|step| self.asked[step as usize] = 0);
        found
    }
}

//! Finds steps of one rank that touch the same element, one of them writing, in no certain order.

use super::program::Program;
use super::{Contract, Expect, wrong};
use crate::error::Result;
use crate::schedule::Buffer;

const NONE: u32 = u32::MAX;

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
        for base in step.reads.into_iter().flatten() {
            for element in 0..step.len {
                let place = base + element;
                paths.require(writers[place], index, element, place)?;
                let access = Access { step: index as u32, element: element as u32 };
                readers.push(Reader { access, next: heads[place] });
                heads[place] = readers.len() as u32 - 1;
            }
        }
        let Some(base) = step.write else { continue };
        for element in 0..step.len {
            let place = base + element;
            let mut head = std::mem::replace(&mut heads[place], NONE);
            while head != NONE {
                let reader = readers[head as usize];
                paths.require(reader.access, index, element, place)?;
                head = reader.next;
            }
            paths.require(writers[place], index, element, place)?;
            writers[place] = Access { step: index as u32, element: element as u32 };
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
    asked: Vec<usize>,
}

impl<'a> Paths<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, asked: vec![0; program.steps.len()] }
    }

    /// Makes sure that `earlier` is finished before `later` works on its `element`.
    fn require(&mut self, earlier: Access, later: usize, element: usize, place: usize) -> Result<()> {
        let target = earlier.step as usize;
        if earlier.step == NONE || target == later {
            return Ok(());
        }
        let needed = earlier.element as isize + 1;
        let have = element as isize + 1;
        // Nearly always it waits directly; then no search is needed.
        let direct =
            self.program.steps[later].after.iter().any(|&(step, shift)| step == target && have + shift >= needed);
        if direct || self.search(target, needed as usize, later, have as usize) {
            return Ok(());
        }
        let (earlier, later) = (self.program.name(target), self.program.name(later));
        Err(wrong(format!("{}: {later} does not wait for {earlier}", self.program.place(place))))
    }

    /// Whether `from` on its first `progress` elements implies that the first `needed` of `target` are finished.
    fn search(&mut self, target: usize, needed: usize, from: usize, progress: usize) -> bool {
        let mut open = vec![(from, progress)];
        let mut visited = vec![from];
        let mut found = false;
        while let Some((step, progress)) = open.pop() {
            for &(before, shift) in &self.program.steps[step].after {
                let first = (progress as isize + shift).clamp(0, self.program.steps[before].len as isize) as usize;
                found |= before == target && first >= needed;
                if before > target && first > self.asked[before] {
                    self.asked[before] = first;
                    visited.push(before);
                    open.push((before, first));
                }
            }
            if found {
                break;
            }
        }
        for step in visited {
            self.asked[step] = 0;
        }
        found
    }
}

//! Finds steps of one rank that touch the same element, one of them writing, in no certain order.

use super::pieces::{Piece, Pieces};
use super::program::{NONE, Program};
use super::{Contract, Expect, wrong};
use crate::error::Result;
use crate::schedule::Buffer;

/// What is known of some neighbouring elements.
#[derive(Clone, Copy, PartialEq)]
struct Touched {
    /// Their last writer.
    writer: u32,
    /// The newest of their readers since, in the list of readers.
    reader: u32,
}

impl Piece for Touched {
    fn skip(self, _: u32) -> Self {
        self
    }
}

/// One of the readers of some elements since their last write.
#[derive(Clone, Copy)]
struct Reader {
    access: Access,
    /// The one before.
    next: u32,
}

/// A step touches elements, its first one at `base`.
#[derive(Clone, Copy)]
struct Access {
    step: u32,
    base: u32,
}

/// Walks every rank's steps as listed. Each access must come after the last write before it, and each write after all
/// reads since that; then, order being transitive, all conflicting accesses are ordered as listed.
pub(super) fn check(program: &Program, contract: &dyn Contract) -> Result<()> {
    let mut memory = Pieces::new(program.memory, program.begins(), Touched { writer: NONE, reader: NONE });
    let mut readers: Vec<Reader> = Vec::new();
    let mut paths = Paths::new(program);
    for (index, step) in program.steps.iter().enumerate() {
        let access = |base| Access { step: index as u32, base };
        let written = |step: u32| Access { step, base: program.steps[step as usize].write };
        for base in step.reads.into_iter().filter(|&base| base != NONE) {
            let (mut at, end) = (base, base + step.len);
            memory.cut(at);
            memory.cut(end);
            while at < end {
                let mut writer = NONE;
                let next = memory.change(at, |touched| {
                    writer = touched.writer;
                    readers.push(Reader { access: access(base), next: touched.reader });
                    touched.reader = readers.len() as u32 - 1;
                });
                if writer != NONE {
                    paths.require(written(writer), access(base), at..next)?;
                }
                at = next;
            }
        }
        if step.write == NONE {
            continue;
        }
        let (mut at, end) = (step.write, step.write + step.len);
        while at < end {
            let (Touched { writer, mut reader }, next) = memory.from(at, end);
            // Readers came after the writer before them.
            if reader == NONE && writer != NONE {
                paths.require(written(writer), access(step.write), at..next)?;
            }
            while reader != NONE {
                let Reader { access: earlier, next: before } = readers[reader as usize];
                paths.require(earlier, access(step.write), at..next)?;
                reader = before;
            }
            at = next;
        }
        memory.set(step.write, end, Touched { writer: index as u32, reader: NONE });
    }
    for region in &program.regions {
        let Buffer::Output(output) = region.buffer else { continue };
        for (index, Touched { writer, .. }) in memory.elements(region.start, region.len).enumerate() {
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
    open: Vec<Wait>,
}

/// Before the step that a search began with works on its first `p` elements, `step` must have finished `p + shift` of its own,
/// or all `cap`.
#[derive(Clone, Copy)]
struct Wait {
    step: u32,
    shift: i64,
    cap: i64,
}

impl<'a> Paths<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, asked: vec![0; program.steps.len()], visited: Vec::new(), open: Vec::new() }
    }

    /// Makes sure that `earlier` is finished with each of these elements before `later` works on it.
    fn require(&mut self, earlier: Access, later: Access, elements: std::ops::Range<u32>) -> Result<()> {
        if earlier.step == later.step {
            return Ok(());
        }
        // The n-th element of the later one is the n + ahead-th of the earlier one.
        let ahead = i64::from(later.base) - i64::from(earlier.base);
        // Nearly always it waits directly; then no search is needed.
        let direct = |before: &super::program::Before| before.step == earlier.step && i64::from(before.shift) >= ahead;
        if self.program.after(later.step as usize).iter().any(direct) {
            return Ok(());
        }
        let mut progress = i64::from(elements.start - later.base) + 1;
        while progress <= i64::from(elements.end - later.base) {
            let Some(last) = self.search(earlier.step, ahead, later.step, progress) else {
                let place = self.program.place((i64::from(later.base) + progress - 1) as usize);
                let [earlier, later] = [earlier, later].map(|access| self.program.name(access.step as usize));
                return Err(wrong(format!("{place}: {later} does not wait for {earlier}")));
            };
            progress = last + 1;
        }
        Ok(())
    }

    /// If `from` on its first `progress` elements waits for the first `progress + ahead` of `target`: the largest progress
    /// for which that is so on the same way.
    fn search(&mut self, target: u32, ahead: i64, from: u32, progress: i64) -> Option<i64> {
        let steps = &self.program.steps;
        let mut found = None;
        self.open.push(Wait { step: from, shift: 0, cap: i64::from(steps[from as usize].len) });
        while let Some(wait) = self.open.pop() {
            for before in self.program.after(wait.step as usize) {
                let len = i64::from(steps[before.step as usize].len);
                let shift = i64::from(before.shift);
                let way = Wait { step: before.step, shift: wait.shift + shift, cap: (wait.cap + shift).min(len) };
                let first = (progress + way.shift).min(way.cap);
                if before.step == target && first >= progress + ahead {
                    found = Some(way.cap - ahead);
                }
                if before.step > target && first > i64::from(self.asked[before.step as usize]) {
                    self.asked[before.step as usize] = first as u32;
                    self.visited.push(before.step);
                    self.open.push(way);
                }
            }
            if found.is_some() {
                break;
            }
        }
        self.open.clear();
        self.visited.drain(..).for_each(|step| self.asked[step as usize] = 0);
        found
    }
}

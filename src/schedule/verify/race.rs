//! Finds steps of one rank that access the same element, one of them writing, without being ordered by dependencies.

use super::pieces::{Piece, Pieces};
use super::program::{NONE, Program};
use super::{Contract, Expect, wrong};
use crate::error::Result;
use crate::schedule::Buffer;

/// The accesses to some neighbouring elements.
#[derive(Clone, Copy, PartialEq)]
struct Touched {
    /// The last writer.
    writer: u32,
    /// The most recent reader since then: index in the list of readers.
    reader: u32,
}

impl Piece for Touched {
    fn skip(self, _: u32) -> Self {
        self
    }
}

/// A reader of some elements since their last write.
#[derive(Clone, Copy)]
struct Reader {
    access: Access,
    /// The previous reader.
    next: u32,
}

/// An access by a step to elements; the first one is at `base`.
#[derive(Clone, Copy)]
struct Access {
    step: u32,
    base: u32,
}

/// Goes through every rank's steps in list order. Each access must depend on the last write before it, and each write
/// on all reads since then. Dependencies are transitive, so all conflicting accesses are then in list order.
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
            // Readers already depend on the writer before them.
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
                let address = program.address_name(region.start + index);
                return Err(wrong(format!(
                    "{address} must not be written, but {} writes it",
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
    /// How many of the first elements of each step the current search has already required.
    required: Vec<u32>,
    visited: Vec<u32>,
    open: Vec<Wait>,
}

/// Before the step at which the search started processes its first `p` elements, `step` must have finished `min(p +
/// shift, cap)` of its own.
#[derive(Clone, Copy)]
struct Wait {
    step: u32,
    shift: i64,
    cap: i64,
}

impl<'a> Paths<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, required: vec![0; program.steps.len()], visited: Vec::new(), open: Vec::new() }
    }

    /// Fails unless, for each of `elements`, `earlier` finishes it before `later` processes it.
    fn require(&mut self, earlier: Access, later: Access, elements: std::ops::Range<u32>) -> Result<()> {
        if earlier.step == later.step {
            return Ok(());
        }
        // Element `n` of the later step is element `n + ahead` of the earlier one.
        let ahead = i64::from(later.base) - i64::from(earlier.base);
        // In most cases the dependency is direct, and no search is needed.
        let direct = |before: &super::program::Before| before.step == earlier.step && i64::from(before.shift) >= ahead;
        if self.program.after(later.step as usize).iter().any(direct) {
            return Ok(());
        }
        let mut progress = i64::from(elements.start - later.base) + 1;
        while progress <= i64::from(elements.end - later.base) {
            let Some(last) = self.search(earlier.step, ahead, later.step, progress) else {
                let address = self.program.address_name((i64::from(later.base) + progress - 1) as usize);
                let [earlier, later] = [earlier, later].map(|access| self.program.name(access.step as usize));
                return Err(wrong(format!("{address}: {later} does not wait for {earlier}")));
            };
            progress = last + 1;
        }
        Ok(())
    }

    /// If processing the first `progress` elements of `from` requires the first `progress + ahead` of `target`: the
    /// largest progress for which the same path of dependencies guarantees that.
    fn search(&mut self, target: u32, ahead: i64, from: u32, progress: i64) -> Option<i64> {
        let steps = &self.program.steps;
        let mut found = None;
        self.open.push(Wait { step: from, shift: 0, cap: i64::from(steps[from as usize].len) });
        while let Some(wait) = self.open.pop() {
            for before in self.program.after(wait.step as usize) {
                let len = i64::from(steps[before.step as usize].len);
                let shift = i64::from(before.shift);
                let wait = Wait { step: before.step, shift: wait.shift + shift, cap: (wait.cap + shift).min(len) };
                let first = (progress + wait.shift).min(wait.cap);
                if before.step == target && first >= progress + ahead {
                    found = Some(wait.cap - ahead);
                }
                if before.step > target && first > i64::from(self.required[before.step as usize]) {
                    self.required[before.step as usize] = first as u32;
                    self.visited.push(before.step);
                    self.open.push(wait);
                }
            }
            if found.is_some() {
                break;
            }
        }
        self.open.clear();
        self.visited.drain(..).for_each(|step| self.required[step as usize] = 0);
        found
    }
}

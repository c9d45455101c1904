//! The runs that the engine knows of, what the recorder says of them, and what later runs use again.

use std::ops::{Deref, DerefMut};

use crate::engine::execution::Execution;
use crate::engine::operation::Operation;
use crate::engine::prepared::Identity;
use crate::engine::recorder::Run;
use crate::engine::scratch::Scratch;
use crate::engine::shared::{Line, excludes};
use crate::publications::Members;
use crate::slab::Slab;

/// The collectives in progress that the engine executes, or for which a thread waits here, by their indices.
#[derive(Default)]
pub struct Operations {
    all: Slab<Operation>,
    /// What the recorder says of each of them, by its index: apart from them, since they are moved.
    runs: Vec<Run>,
    // Executions that have ended, for reuse. Boxes move between operations and this list without copying their
    // contents.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Execution>>,
}

impl Operations {
    /// Adds an operation, and returns its index, which it then knows.
    #[inline]
    pub fn insert(&mut self, operation: Operation, run: Run) -> u32 {
        let index = self.all.insert(operation);
        self.all[index].id.index = index;
        if self.runs.len() <= index as usize {
            self.runs.push(Run::default());
        }
        self.runs[index as usize] = run;
        index
    }

    /// What the recorder says of an operation, or of one that had this index last.
    #[inline]
    pub fn run(&self, index: u32) -> &Run {
        &self.runs[index as usize]
    }

    /// What the recorder says of an operation.
    #[inline]
    pub fn run_mut(&mut self, index: u32) -> &mut Run {
        &mut self.runs[index as usize]
    }

    /// An operation, and what the recorder says of it.
    #[inline]
    pub fn with_run(&mut self, index: u32) -> Option<(&mut Operation, &mut Run)> {
        Some((self.all.get_mut(index)?, &mut self.runs[index as usize]))
    }

    /// What executes the steps of a new operation.
    #[inline]
    pub fn execution(&mut self) -> Box<Execution> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps what has executed the steps of an operation that has ended.
    #[inline]
    pub fn reuse(&mut self, execution: Box<Execution>) {
        self.spare.push(execution);
    }

    /// Gives back scratch memory that no operation uses.
    pub fn release_scratch(&mut self, released: &mut Vec<Scratch>) {
        self.spare.iter_mut().for_each(|steps| steps.release_scratch(released));
    }

    /// What they are.
    pub fn ids(&self) -> impl Iterator<Item = &Identity> {
        self.all.iter().map(|(_, operation)| &operation.id)
    }

    /// The fingerprint of one that excludes a new call on this line, which is `in_order` or not.
    pub fn excluding(&self, line: Line, in_order: bool) -> Option<u64> {
        let may_not = |operation: &&Operation| {
            excludes((line, in_order), ((operation.id.kind, operation.id.tag), operation.in_order))
        };
        self.all.iter().map(|(_, operation)| operation).find(may_not).map(|operation| operation.id.fingerprint)
    }

    /// Whether one is not over, and not in its reduction function.
    pub fn any_goes_on(&self) -> bool {
        self.all.iter().any(|(_, operation)| !operation.is_over() && !operation.is_reducing())
    }

    /// Whether one waits for what a peer does in shared memory.
    pub fn any_waits_in_memory(&self) -> bool {
        self.all.iter().any(|(_, operation)| operation.waits_in_memory())
    }

    /// The members whose publications they may need.
    pub fn awaited(&self) -> Members {
        self.all.iter().fold(0, |all, (_, operation)| all | operation.awaited())
    }
}

impl Deref for Operations {
    type Target = Slab<Operation>;

    fn deref(&self) -> &Slab<Operation> {
        &self.all
    }
}

impl DerefMut for Operations {
    fn deref_mut(&mut self) -> &mut Slab<Operation> {
        &mut self.all
    }
}

//! Calls of one kind on one tag that were started one after the other, and run at the same time.
//!
//! Their messages are told apart by nothing but their order. So the first one exchanges messages, and the next one
//! begins when it is over. They have their numbers from their starts.

use std::collections::VecDeque;

use crate::engine::Core;
use crate::engine::errors::already_running;
use crate::engine::operation::Operation;
use crate::engine::prepared::Identity;
use crate::engine::shared::Line;
use crate::error::Error;
use crate::hash::QuickMap;

/// The indices of such calls that the engine executes, in the order of their starts: of each line, the first one has
/// begun.
#[derive(Debug, Default)]
pub struct Lines {
    calls: QuickMap<Line, VecDeque<u32>>,
    /// Number of those that have not begun.
    waiting: usize,
}

impl Lines {
    /// Adds a call. Returns whether it begins at once.
    pub fn add(&mut self, line: Line, index: u32) -> bool {
        let calls = self.calls.entry(line).or_default();
        calls.push_back(index);
        self.waiting += usize::from(calls.len() > 1);
        calls.len() == 1
    }

    /// Whether one has not begun.
    pub fn any_waits(&self) -> bool {
        self.waiting > 0
    }

    /// The first call on `line`, if this one is there.
    pub fn before(&self, line: Line, index: u32) -> Option<u32> {
        let calls = self.calls.get(&line).filter(|calls| calls.contains(&index))?;
        calls.front().copied()
    }

    /// Removes a call, if it is there. Returns the one that begins in its place.
    pub fn remove(&mut self, line: Line, index: u32) -> Option<u32> {
        let calls = self.calls.get_mut(&line)?;
        let at = calls.iter().position(|other| *other == index)?;
        calls.remove(at);
        self.waiting -= usize::from(!calls.is_empty());
        let next = calls.front().copied().filter(|_| at == 0);
        if calls.is_empty() {
            self.calls.remove(&line);
        }
        next
    }

    /// Lines of which a call waits for the first one, and that.
    pub fn blocked(&self) -> impl Iterator<Item = (Line, u32)> {
        let several = self.calls.iter().filter(|(_, calls)| calls.len() > 1);
        several.filter_map(|(line, calls)| Some((*line, *calls.front()?)))
    }
}

impl Core {
    /// The run for which the run `index` waits before it begins; itself, if it has begun.
    pub fn before(&self, index: u32) -> u32 {
        let Identity { kind, tag, .. } = self.operations[index].id;
        self.lines.before((kind, tag), index).unwrap_or(index)
    }

    /// Nothing that excludes calls in order begins on these lines, of calls with these digests, until
    /// [`Core::end_reservation`]. Fails as a start does if something is in progress that excludes one of them, with its
    /// position.
    pub fn reserve(&mut self, lines: &[(Line, u64)]) -> Result<(), (usize, Error)> {
        if let Some(error) = &self.broken {
            return Err((0, error.context("the context is broken")));
        }
        self.end_registration();
        let here =
            || lines.iter().enumerate().find_map(|(at, (line, _))| Some((at, self.operations.excluding(*line, true)?)));
        let running = here().or_else(|| self.shared.as_ref().and_then(|shared| shared.reserve(lines).err()));
        running.map_or(Ok(()), |(at, other)| {
            let ((own, tag), _) = lines[at];
            Err((at, already_running(other, tag, own, self.explain)))
        })
    }

    /// Ends what [`Core::reserve`] has begun.
    pub fn end_reservation(&self, lines: &[(Line, u64)]) {
        self.shared.iter().for_each(|shared| lines.iter().for_each(|(line, _)| shared.release(*line)));
    }

    /// Begins the calls for which earlier ones of their lines are over. Returns whether there are any.
    pub(super) fn begin_next(&mut self) -> bool {
        let mut any = false;
        while self.lines.any_waits() {
            let is_over = |(_, first): &(Line, u32)| self.operations.get(*first).is_none_or(Operation::is_over);
            let Some((line, first)) = self.lines.blocked().find(is_over) else { break };
            any = true;
            if let Some(next) = self.lines.remove(line, first) {
                self.begin_run(next);
            }
        }
        any
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_begins_when_those_before_it_are_removed() {
        let mut lines = Lines::default();
        let (one, other) = ((1, 7), (2, 7));
        let begun = [(one, 4), (one, 2), (other, 3), (one, 9)].map(|(line, index)| lines.add(line, index));
        assert_eq!(begun, [true, false, true, false]);
        assert!(lines.any_waits() && lines.blocked().collect::<Vec<_>>() == [(one, 4)]);
        assert_eq!(lines.remove(one, 2), None, "the first one is not over");
        assert_eq!([lines.before(one, 9), lines.before(one, 3)], [Some(4), None]);
        assert_eq!((lines.remove(one, 4), lines.before(one, 9)), (Some(9), Some(9)));
        assert!(!lines.any_waits() && lines.blocked().next().is_none());
        assert_eq!([lines.remove(one, 9), lines.remove(other, 3), lines.remove(one, 9)], [None; 3]);
        assert!(lines.calls.is_empty());
    }
}

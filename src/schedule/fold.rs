//! Reductions that combine all contributions to an element at once, in schedules, which reduce two by two.

use super::{Action, Dependency, Schedule, Span};

/// The chains of reductions of a schedule. The last step of each combines the operands of all its steps; the others do
/// nothing.
#[derive(Debug, Default)]
pub struct Folds {
    chains: Box<[Chain]>,
}

/// A chain: each step but the first has as its left operand the result of the one before.
#[derive(Debug)]
struct Chain {
    /// What is combined. All have the length of the last step.
    operands: Vec<Span>,
    /// The index of the last step.
    last: u32,
    /// Where its result is.
    into: Span,
}

impl Folds {
    /// What step `index` combines; `None` if it does nothing.
    pub fn operands(&self, index: u32) -> Option<&[Span]> {
        let chain = self.chains.binary_search_by_key(&index, |chain| chain.last).ok()?;
        Some(&self.chains[chain].operands)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Bytes of memory that its lists take.
    pub fn bytes(&self) -> usize {
        self.chains.iter().map(|chain| size_of::<Chain>() + size_of_val(&*chain.operands)).sum()
    }
}

impl Schedule {
    /// The chains of this schedule's reductions, each of `contributions` operands, of which none is a result. From now
    /// on a step that writes to an operand waits for the last step of its chain. `None` if there is any other
    /// reduction, or if a result is read, or an operand written, before the chain's end.
    pub fn fold(&mut self, contributions: usize) -> Option<Folds> {
        let (mut open, mut ended): (Vec<Chain>, Vec<Chain>) = (Vec::new(), Vec::new());
        for (index, step) in self.steps.iter_mut().enumerate() {
            let mut continued = None;
            match step.action {
                Action::RecvReduce { .. } | Action::FetchReduce { .. } => return None,
                Action::Reduce { left, right, into } => {
                    let is_result = |operand: Span| ended.iter().any(|chain: &Chain| chain.into.overlaps(operand));
                    if is_result(left) || is_result(right) {
                        return None;
                    }
                    let chain = open.iter().position(|chain| chain.into == left);
                    let mut operands = chain.map_or_else(|| vec![left], |chain| open.swap_remove(chain).operands);
                    operands.push(right);
                    // The result may be where an operand is, but not where a part of one is.
                    if operands.iter().any(|operand| operand.overlaps(into) && *operand != into) {
                        return None;
                    }
                    continued = Some(Chain { operands, last: index as u32, into });
                }
                _ => {}
            }
            let reads = step.action.reads().into_iter().flatten();
            let mut touched = reads.chain(step.action.writes());
            let is_needed = |span: &Span| {
                let written = step.action.writes() == Some(*span);
                let is_operand = |chain: &Chain| chain.operands.iter().any(|operand| operand.overlaps(*span));
                open.iter().any(|chain| chain.into.overlaps(*span) || written && is_operand(chain))
            };
            if touched.any(|span| is_needed(&span)) {
                return None;
            }
            if let Some(span) = step.action.writes() {
                for Chain { operands, last, .. } in &ended {
                    for operand in operands.iter().filter(|operand| operand.overlaps(span)) {
                        let shift = span.offset as isize - operand.offset as isize;
                        step.after.push(Dependency { step: *last, shift });
                    }
                }
            }
            match continued {
                Some(chain) if chain.operands.len() == contributions => ended.push(chain),
                chain => open.extend(chain),
            }
        }
        open.is_empty().then(|| Folds { chains: ended.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Buffer, Builder};

    const LEN: usize = 8;

    fn input(index: u32) -> Span {
        Span::new(Buffer::Input(index), 0, LEN)
    }

    fn output() -> Span {
        Span::new(Buffer::Output(0), 0, LEN)
    }

    /// `((a + b) + c) + d`, where `b` arrives in scratch memory, and `c` is the output.
    fn chain(b: &mut Builder) -> Span {
        let arrived = b.scratch(LEN);
        let before = b.scratch(LEN);
        b.recv(1, arrived);
        b.reduce(input(0), arrived, before);
        b.reduce(before, output(), output());
        b.reduce(output(), input(1), output());
        arrived
    }

    #[test]
    fn the_last_step_of_a_chain_combines_all_operands() {
        let mut b = Builder::new();
        let arrived = chain(&mut b);
        b.send(1, output());
        b.recv(1, arrived);
        let mut schedule = b.build();
        let folds = schedule.fold(4).unwrap();
        assert_eq!(
            (1..6).map(|index| folds.operands(index).is_some()).collect::<Vec<_>>(),
            [false, false, true, false, false]
        );
        assert_eq!(folds.operands(3), Some(&[input(0), arrived, output(), input(1)][..]));
        assert!(schedule.steps[5].after.contains(&Dependency { step: 3, shift: 0 }), "the operand is read at the end");
    }

    #[test]
    fn all_contributions_are_combined_at_once_or_none() {
        for contributions in [2, 3, 5] {
            let mut b = Builder::new();
            chain(&mut b);
            assert!(b.build().fold(contributions).is_none(), "{contributions}");
        }
        let refused: [fn(&mut Builder); 5] = [
            |b| b.recv_reduce(1, output(), input(0), crate::reduce::Side::Left),
            // A result of some, which is read, sent, or overwritten.
            |b| b.reduce(input(0), input(1), output()),
            |b| {
                b.reduce(input(0), input(1), output());
                b.send(1, output());
                b.reduce(output(), input(2), output());
            },
            // The right operand is one.
            |b| {
                let scratch = b.scratch(LEN);
                b.reduce(input(0), input(1), scratch);
                b.reduce(input(2), scratch, output());
            },
            // An operand is written before the end.
            |b| {
                let (scratch, into) = (b.scratch(LEN), b.scratch(LEN));
                b.recv(1, scratch);
                b.reduce(input(0), scratch, into);
                b.recv(1, scratch);
                b.reduce(into, scratch, output());
            },
        ];
        for (case, write) in refused.into_iter().enumerate() {
            let mut b = Builder::new();
            write(&mut b);
            assert!(b.build().fold(3).is_none(), "case {case}");
        }
    }
}

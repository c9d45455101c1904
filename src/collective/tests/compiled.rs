//! What is executed on shared memory does what the schedule says, which is what the verifier proves right.

use std::collections::HashMap;
use std::rc::Rc;

use super::calls::{Sample, forms};
use super::*;
use crate::schedule::compiled::{Compiled, Op, Operand};
use crate::schedule::{Action, Buffer, Schedule, Side, Span};

/// The memory of a rank, and what it has published: each element is the expression by which it was computed.
#[derive(Debug, Default, PartialEq)]
struct Memory {
    elements: HashMap<(Buffer, usize), Rc<str>>,
    published: Vec<Vec<Rc<str>>>,
}

impl Memory {
    fn read(&self, span: Span) -> Vec<Rc<str>> {
        let element = |at| self.elements.get(&(span.buffer, at)).cloned();
        (span.offset..span.end())
            .map(|at| element(at).unwrap_or_else(|| format!("{:?}[{at}]", span.buffer).into()))
            .collect()
    }

    fn write(&mut self, span: Span, values: Vec<Rc<str>>) {
        self.elements.extend((span.offset..span.end()).map(|at| (span.buffer, at)).zip(values));
    }

    fn divide(&mut self, span: Span, by: u32) {
        let divided = self.read(span).iter().map(|value| format!("{value} / {by}").into()).collect();
        self.write(span, divided);
    }

    /// What callers and peers see.
    fn visible(mut self) -> Self {
        self.elements.retain(|(buffer, _), _| *buffer != Buffer::Scratch);
        self
    }
}

/// Elements of a publication of a peer.
fn fetched(from: u32, publication: u32, at: usize, len: usize) -> Vec<Rc<str>> {
    (at..at + len).map(|at| format!("{from}.{publication}[{at}]").into()).collect()
}

fn combined(left: Vec<Rc<str>>, right: &[Rc<str>]) -> Vec<Rc<str>> {
    left.iter().zip(right).map(|(left, right)| format!("({left} {right})").into()).collect()
}

fn by_steps(schedule: &Schedule) -> Memory {
    let mut memory = Memory::default();
    for step in &schedule.steps {
        match step.action {
            Action::Publish { from, .. } => memory.published.push(memory.read(from)),
            Action::Fetch { from, publication, at, into } => {
                memory.write(into, fetched(from, publication, at, into.len));
            }
            Action::FetchReduce { from, publication, at, into, with, incoming } => {
                let (own, peer) = (memory.read(with), fetched(from, publication, at, into.len));
                memory.write(into, if incoming == Side::Left { combined(peer, &own) } else { combined(own, &peer) });
            }
            Action::Copy { from, into } => memory.write(into, memory.read(from)),
            Action::Reduce { left, right, into } => {
                memory.write(into, combined(memory.read(left), &memory.read(right)))
            }
            Action::Divide { span, by } => memory.divide(span, by),
            Action::AwaitReaders => {}
            ref message => panic!("{message:?}"),
        }
    }
    memory
}

fn compiled(program: &Compiled) -> Memory {
    let mut memory = Memory::default();
    for op in &program.ops {
        match *op {
            Op::Publish(from) => memory.published.push(memory.read(from)),
            Op::Combine { ref operands, into } => {
                let operands = program.operands[operands.clone()].iter().map(|operand| match *operand {
                    Operand::Own(span) => {
                        assert!(span == into || !span.overlaps(into), "{span:?} and {into:?}");
                        assert!(span.buffer != Buffer::Scratch || span.end() <= program.scratch, "{span:?}");
                        memory.read(span)
                    }
                    Operand::Peer { from, publication, at } => fetched(from, publication, at, into.len),
                });
                let result = operands.reduce(|left, right| combined(left, &right)).unwrap();
                memory.write(into, result);
                assert!(into.buffer != Buffer::Scratch || into.end() <= program.scratch, "{into:?}");
            }
            Op::Divide { span, by } => memory.divide(span, by),
            Op::AwaitReaders => {}
        }
    }
    memory
}

#[test]
fn programs_do_what_their_schedules_say() {
    let mut less = 0;
    for (collective, algorithm) in super::shared::all() {
        for size in (2..=9).take(Tier::from_environment().of(4, 8, 8)) {
            for form in forms(collective, algorithm, size) {
                let Some(sample) = Sample::new(collective, algorithm, size, form) else { continue };
                for domains in [vec![], (0..size as u32).map(|rank| rank / 2).collect()] {
                    for shape in sample.shapes() {
                        let shape = Shape { domains: &domains, ..shape };
                        let schedule = (algorithm.generate)(&shape).unwrap();
                        for (fused, executed) in [(true, &schedule), (false, &schedule.without_receive_and_reduce())] {
                            let program = Compiled::new(executed, &[], size, fused).unwrap();
                            let (own, expected) = (compiled(&program).visible(), by_steps(&schedule).visible());
                            assert_eq!(own, expected, "{} {} {form:?}", collective.name(), algorithm.name);
                            less += usize::from(program.scratch < executed.scratch);
                        }
                    }
                }
            }
        }
    }
    assert!(less > 0, "copies are left out");
}

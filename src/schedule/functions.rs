//! Schedules for reduction functions of the caller, which only the thread that made the call may run.

use super::{Action, Buffer, Dependency, Schedule, Side, Span, Step};

impl Schedule {
    /// Returns this schedule with every step that receives (or fetches) and reduces replaced by one that receives into
    /// scratch memory and a reduction. A fetch of no elements, which is a signal, is replaced by the fetch alone.
    pub fn without_receive_and_reduce(&self) -> Self {
        let mut out = Self { steps: Vec::with_capacity(self.steps.len()), scratch: self.scratch };
        // The new index of each step; of the reduction, if the step was replaced by two.
        let mut place = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let mut after: Vec<Dependency> =
                step.after.iter().map(|d| Dependency { step: place[d.step as usize], shift: d.shift }).collect();
            match step.action {
                Action::RecvReduce { into, with, incoming, .. } | Action::FetchReduce { into, with, incoming, .. } => {
                    let arrived = Span { buffer: Buffer::Scratch, offset: out.scratch, len: into.len };
                    out.scratch += into.len;
                    let recv = match step.action {
                        Action::FetchReduce { from, publication, at, .. } => {
                            Action::Fetch { from, publication, at, into: arrived }
                        }
                        Action::RecvReduce { from, .. } => Action::Recv { from, into: arrived },
                        other => other,
                    };
                    if into.len == 0 {
                        out.steps.push(Step { action: recv, channel: step.channel, after });
                        place.push(out.steps.len() as u32 - 1);
                        continue;
                    }
                    after.push(Dependency { step: out.steps.len() as u32, shift: 0 });
                    out.steps.push(Step { action: recv, channel: step.channel, after: Vec::new() });
                    let (left, right) = match incoming {
                        Side::Left => (arrived, with),
                        Side::Right => (with, arrived),
                    };
                    out.steps.push(Step { action: Action::Reduce { left, right, into }, channel: 0, after });
                }
                action => out.steps.push(Step { action, channel: step.channel, after }),
            }
            place.push(out.steps.len() as u32 - 1);
        }
        out
    }
}

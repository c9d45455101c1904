use std::sync::Arc;
use std::time::Duration;

use crate::engine::plan::Plan;
use crate::engine::shared::Shared;
use crate::engine::shared::part::SharedSteps;
use crate::engine::{Binding, Combine, Engine, Spin};
use crate::error::{Error, ErrorKind};
use crate::messaging::Messenger;
use crate::messaging::testing::Unconnected;
use crate::schedule::{Buffer, Builder, Readers, Schedule, Span};
use crate::transport::SystemClock;
use crate::transport::shm::HostGroup;

const COUNT: usize = 100;

/// The ranks 0 and 1 of three, which share memory.
fn engines() -> Vec<Engine> {
    let engine = |(rank, group)| {
        let messenger = Messenger::new(rank, 3, Box::new(Unconnected::new(None, None)), None);
        let engine =
            Engine::new(messenger, Arc::new(SystemClock), |_| String::new(), Spin::of(Duration::ZERO)).unwrap();
        engine.lock().shared = Some(Arc::new(Shared::new(group, Arc::default())));
        engine
    };
    HostGroup::in_process(2).into_iter().enumerate().map(engine).collect()
}

fn plan(schedule: &Schedule) -> Arc<Plan> {
    let mut plan = Plan::new(schedule);
    plan.shared_steps = SharedSteps::new(schedule, &[], &[0, 1]);
    Arc::new(plan)
}

/// Rank 0 starts to fetch what rank 1 publishes, or not, before it is lost. Returns what rank 0 has, and its error.
fn fetch_from_a_lost_rank(publishes: bool) -> (Vec<u8>, Option<Error>) {
    let engines = engines();
    let mut b = Builder::new();
    let kept = b.scratch(COUNT);
    b.fetch(1, 0, 0, kept);
    b.copy(kept, Span::new(Buffer::Output(0), 0, COUNT));
    let fetches = plan(&b.build());
    let mut b = Builder::new();
    b.publish(Readers::One(0), Span::new(Buffer::Input(0), 0, COUNT));
    b.await_readers();
    let published = plan(&b.build());
    let (input, mut output) = (vec![7u8; COUNT], vec![0u8; COUNT]);
    let (inputs, outputs) = ([input.as_ptr()], [output.as_mut_ptr()]);
    let binding = Binding {
        inputs: &inputs,
        outputs: &outputs,
        element: 1,
        segment: 8,
        combine: Combine::Nothing,
        digest: 5,
        tag: 0,
        counted: true,
        count: COUNT,
    };
    let index = engines[0].lock().start(fetches, &binding, None).unwrap();
    assert!(!engines[0].lock().is_over(index));
    if publishes {
        let mut core = engines[1].lock();
        let index = core.start(published, &binding, None).unwrap();
        assert!(core.is_over(index), "what is copied needs no reader");
        assert!(core.end(index).is_none());
    }
    let mut core = engines[0].lock();
    core.messenger.disconnect(1, &Error::new(ErrorKind::ConnectionLost, "rank 1 is lost"));
    core.progress();
    assert!(core.is_over(index));
    let error = core.end(index);
    drop(core);
    (output, error)
}

#[test]
fn what_a_rank_has_published_is_fetched_though_it_is_lost() {
    let (output, error) = fetch_from_a_lost_rank(true);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(output, [7; COUNT]);
}

#[test]
fn a_rank_that_is_lost_before_it_publishes_fails_the_call() {
    let (output, error) = fetch_from_a_lost_rank(false);
    assert_eq!(error.unwrap().kind(), ErrorKind::ConnectionLost);
    assert_eq!(output, [0; COUNT]);
}

//! Who is told of the entries of a completion queue.

use super::*;
use crate::engine::completion_queue::{CompletionQueue, HasEngine, Looks};
use crate::engine::ready::Ends;

impl HasEngine for Job {
    fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// The calls are numbered by the test.
type Queue = CompletionQueue<u32, Job>;

fn queue() -> Arc<Queue> {
    Arc::new(Queue::new(Arc::new(Forever(Instant::now()))))
}

/// What [`take`] returns if the queue is closed.
const CLOSED: u32 = u32::MAX;

/// Takes an entry, as the program's thread does. Returns the number of its call in the queue.
fn take(queue: &Queue) -> u32 {
    loop {
        if let Some((number, ..)) = queue.take() {
            return number;
        }
        let view = queue.view();
        if view.is_closed {
            return CLOSED;
        }
        let until = queue.now() + Duration::from_secs(1);
        queue.rest(&view, &mut Idle::default(), until).unwrap();
    }
}

fn takes(queue: &Arc<Queue>) -> JoinHandle<u32> {
    let queue = queue.clone();
    thread(move || take(&queue))
}

impl Job {
    /// A thread starts a reduction of what rank 1 sends with this tag, of which the queue is told.
    fn start_in(self: &Arc<Self>, queue: &Arc<Queue>, tag: u64) -> (u32, Started) {
        let number = queue.insert(0, self, 0, false).unwrap();
        assert!(queue.begin(number));
        let started = self.start(tag);
        let noted = Noted(Entry { ends: queue.clone(), number: number as usize });
        self.engine.lock().tell(started.index, Arc::new(noted));
        queue.started(number, Some(Looks::new(self.deadline, queue.now(), false))).wake();
        (number, started)
    }

    /// A thread starts a call that ends in its start.
    fn end_in(self: &Arc<Self>, queue: &Arc<Queue>) -> u32 {
        let number = queue.insert(0, self, 0, true).unwrap();
        queue.started(number, None).wake();
        number
    }
}

fn end(queue: &Queue, (number, started): (u32, Started)) {
    assert!(queue.end(number));
    assert!(started.wait());
}

#[test]
fn a_thread_takes_the_entry_of_a_call_that_another_one_starts() {
    in_every_order(|| {
        let (job, queue) = (Job::new(), queue());
        let taken = takes(&queue);
        let started = job.start_in(&queue, 0);
        job.input_arrives_with(0);
        assert_eq!(taken.join().unwrap(), started.0);
        end(&queue, started);
    });
}

#[test]
fn a_thread_that_waits_on_a_context_is_told_by_who_polls() {
    in_every_order(|| {
        let (job, queue) = (Job::new(), queue());
        let (started, receives) = (job.start_in(&queue, 0), job.receive(1));
        let taken = takes(&queue);
        job.input_arrives_with(0);
        assert_eq!(taken.join().unwrap(), started.0);
        end(&queue, started);
        job.arrives(1);
        assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
    });
}

#[test]
fn a_thread_that_waits_on_a_context_is_told_of_a_call_that_ends_in_its_start() {
    in_every_order(|| {
        let (job, queue) = (Job::new(), queue());
        let started = job.start_in(&queue, 0);
        let taken = takes(&queue);
        let ended = job.end_in(&queue);
        assert_eq!(taken.join().unwrap(), ended);
        queue.end(ended);
        job.input_arrives_with(0);
        assert_eq!(take(&queue), started.0);
        end(&queue, started);
    });
}

#[test]
fn a_thread_that_waits_on_a_context_is_told_of_a_call_on_another_one() {
    in_orders_with(PREEMPTIONS - 1, || {
        let (job, other, queue) = (Job::new(), Job::new(), queue());
        let started = job.start_in(&queue, 0);
        let taken = takes(&queue);
        let number = queue.insert(0, &other, 0, true).unwrap();
        queue.started(number, Some(Looks::new(other.deadline, queue.now(), false))).wake();
        // What ends the call has no lock of the first context.
        queue.add(number as usize);
        assert_eq!(taken.join().unwrap(), number);
        queue.end(number);
        job.input_arrives_with(0);
        assert_eq!(take(&queue), started.0);
        end(&queue, started);
    });
}

#[test]
fn each_of_two_threads_takes_an_entry() {
    in_every_order(|| {
        let (job, queue) = (Job::new(), queue());
        let threads = [takes(&queue), takes(&queue)];
        let numbers = [job.end_in(&queue), job.end_in(&queue)];
        let mut taken = threads.map(|thread| thread.join().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, numbers);
        assert!(numbers.iter().all(|number| queue.end(*number)));
    });
}

#[test]
fn threads_that_wait_are_told_that_the_queue_is_closed() {
    in_every_order(|| {
        let queue = queue();
        let threads = [takes(&queue), takes(&queue)];
        let (calls, after) = queue.close(|| ()).unwrap();
        after.wake();
        assert!(calls.is_empty());
        assert_eq!(threads.map(|thread| thread.join().unwrap()), [CLOSED; 2]);
    });
}

#[test]
fn a_call_that_ends_while_a_thread_looks_at_it_is_looked_at_again() {
    in_every_order(|| {
        let (job, queue) = (Job::new(), queue());
        let number = queue.insert(0, &job, 0, true).unwrap();
        let now = queue.now();
        queue.started(number, Some(Looks::new(now, now, true))).wake();
        let (ended, taken) = (Arc::new(Mutex::new(false)), queue.clone());
        let seen = ended.clone();
        let taken = thread(move || {
            // The first time, the call is only late.
            assert_eq!(take(&taken), number);
            while !*seen.lock().unwrap() {
                taken.put_back(number).wake();
                assert_eq!(take(&taken), number);
            }
        });
        queue.look(now).wake();
        *ended.lock().unwrap() = true;
        queue.add(number as usize);
        // Who notes an end wakes the threads of its context.
        job.engine.wake();
        taken.join().unwrap();
        queue.end(number);
    });
}

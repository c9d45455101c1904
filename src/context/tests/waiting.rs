//! Calls on shared memory that wait with the context's lock.

use super::*;
use crate::wire::fingerprint::kind;

fn call(rank: usize, tag: u64) -> Call<'static> {
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, rank, 2, 1) };
    Call { tag, ..Call::new(shape, DataType::Int64) }
}

/// The registration of a call ends without the lock; it is that of no other call, which has the same number on its tag.
#[test]
fn a_call_that_has_waited_is_in_progress_no_more_when_it_has_ended_and_others_are() {
    let contexts = shared::connected(2, false);
    let run = &|rank: usize, tag| {
        let mut cell = rank as i64 + 1;
        // SAFETY: the cell is the element of the shape.
        unsafe { contexts[rank].run(&Call { outputs: &[(&raw mut cell).cast()], ..call(rank, tag) }) }.unwrap();
        assert_eq!(cell, 3);
    };
    let kind = kind(contexts[0].select(&call(0, 0)).unwrap().digest);
    let is_registered = |tag| contexts[0].lock().unwrap().runs(kind, tag);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let [first, last] = [3, 4].map(|tag| scope.spawn(move || run(0, tag)));
            while !(is_registered(3) && is_registered(4)) {
                std::thread::yield_now();
            }
            run(1, 4);
            last.join().unwrap();
            // Whoever looks next finds it ended.
            assert_eq!(contexts[0].lock().unwrap().running((kind, 4), false), None);
            assert!(is_registered(3) && !is_registered(4));
            run(1, 3);
            first.join().unwrap();
        });
        assert_eq!(contexts[0].lock().unwrap().running((kind, 3), false), None);
        assert!(!is_registered(3));
    }
}

/// The registration of a call that waits, and its end, take no memory of those that the engine executes: the request
/// beside it finds its own.
#[test]
fn a_request_finds_its_scratch_memory_again_after_a_call_that_has_waited() {
    const COUNT: usize = 1000;
    let contexts = shared::connected(2, false);
    let kind = kind(contexts[0].select(&call(0, 0)).unwrap().digest);
    let requests = [0, 1].map(|rank| {
        let mut data = vec![rank as i64; COUNT];
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, rank, 2, COUNT) };
        let by_messages = Call {
            outputs: &[data.as_mut_ptr().cast()],
            tag: 1,
            algorithm: Some("recursive_doubling"),
            ..Call::new(shape, DataType::Int64)
        };
        // SAFETY: the vector is as long as the shape says, and lives on beside the request.
        (unsafe { contexts[rank].request(&by_messages) }.unwrap(), data)
    });
    let run = &|rank: usize| {
        let mut cell = rank as i64 + 1;
        requests[rank].0.start().unwrap();
        // The other rank comes when this one is registered.
        while rank == 1 && !contexts[0].lock().unwrap().runs(kind, 0) {
            std::thread::yield_now();
        }
        // SAFETY: the cell is the element of the shape.
        unsafe { contexts[rank].run(&Call { outputs: &[(&raw mut cell).cast()], ..call(rank, 0) }) }.unwrap();
        requests[rank].0.wait().unwrap();
        contexts[rank].lock().unwrap().kept.bytes()
    };
    let round = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| run(1));
            [run(0), other.join().unwrap()]
        })
    };
    let first = round();
    assert!(first[0] > 0, "the request needs no memory");
    for _ in 0..3 {
        assert_eq!(round(), first);
    }
}

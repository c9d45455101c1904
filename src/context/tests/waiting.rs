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
            assert_eq!(contexts[0].lock().unwrap().running((kind, 4)), None);
            assert!(is_registered(3) && !is_registered(4));
            run(1, 3);
            first.join().unwrap();
        });
        assert_eq!(contexts[0].lock().unwrap().running((kind, 3)), None);
        assert!(!is_registered(3));
    }
}

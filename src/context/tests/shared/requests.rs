//! Requests of ranks that share memory.

use super::*;

// The rank that starts a call first finds nothing of the other's then, so it must do more after its start.

/// Each rank waits for the call that the other one has started first, and that must therefore go on there.
#[test]
fn ranks_that_wait_for_their_requests_in_different_orders_do_not_wait_for_each_other() {
    // Copied into shared memory, and read where it is.
    for count in [1000, 200_000] {
        let started = Barrier::new(2);
        run(&connected(2, false), |context| {
            let mut cells = [(); 2].map(|()| vec![context.rank() as i64 + 1; count]);
            let requests: Vec<_> = cells
                .iter_mut()
                .zip(1..)
                .map(|(cells, tag)| {
                    let outputs = &[cells.as_mut_ptr().cast()];
                    let call = call(context, Collective::Allreduce, count, tag);
                    // SAFETY: the vectors are as long as the shape says, outlive the requests, and are not used before
                    // the waits.
                    unsafe { context.request(&Call { outputs, algorithm: Some("shared_slices"), ..call }) }.unwrap()
                })
                .collect();
            let [first, second] = [context.rank(), 1 - context.rank()];
            requests[first].start().unwrap();
            started.wait();
            requests[second].start().unwrap();
            requests[second].wait().unwrap();
            requests[first].wait().unwrap();
            assert!(cells.iter().flatten().all(|cell| *cell == 3));
        });
    }
}

/// Rank 1 makes no call after its start until rank 0's wait has ended.
#[test]
fn the_device_goes_on_with_a_request_in_shared_memory() {
    const COUNT: usize = 1000;
    let [started, over] = [(); 2].map(|()| Barrier::new(2));
    run(&connected(2, false), |context| {
        let mut cells = vec![context.rank() as i64 + 1; COUNT];
        let call = call(context, Collective::Allreduce, COUNT, 1);
        let outputs = &[cells.as_mut_ptr().cast()];
        // SAFETY: the vector is as long as the shape says, outlives the request, and is not used before the wait.
        let request = unsafe { context.request(&Call { outputs, algorithm: Some("shared_slices"), ..call }) }.unwrap();
        if context.rank() == 1 {
            request.start().unwrap();
            started.wait();
            over.wait();
            request.wait().unwrap();
        } else {
            started.wait();
            request.start().unwrap();
            let result = request.wait();
            over.wait();
            result.unwrap();
        }
        assert_eq!(cells, vec![3; COUNT]);
    });
}

#[test]
fn a_rank_in_another_call_goes_on_with_the_request_that_it_has_started() {
    const COUNT: usize = 1000;
    let started = Barrier::new(2);
    run(&connected(2, false), |context| {
        let mut cells = vec![context.rank() as i64 + 1; COUNT];
        let slices =
            |tag| Call { algorithm: Some("shared_slices"), ..call(context, Collective::Allreduce, COUNT, tag) };
        // SAFETY: the vector is as long as the shape says, outlives the request, and is not used before the wait.
        let request = unsafe { context.request(&Call { outputs: &[cells.as_mut_ptr().cast()], ..slices(1) }) }.unwrap();
        if context.rank() == 1 {
            request.start().unwrap();
            started.wait();
        } else {
            started.wait();
            request.start().unwrap();
            request.wait().unwrap();
        }
        assert_eq!(run_call(context, &slices(2)).unwrap(), vec![3; COUNT]);
        if context.rank() == 1 {
            request.wait().unwrap();
        }
        assert_eq!(cells, vec![3; COUNT]);
    });
}

/// Starts a call as a request, then does something else, and then only tests the request, until that fails.
fn fails_when_tested(context: &Arc<Context>, call: &Call<'_>, then: impl FnOnce()) -> Error {
    let mut cell = [1i64];
    // SAFETY: the array outlives the request, and is not used while it is active.
    let request = unsafe { context.request(&Call { outputs: &[cell.as_mut_ptr().cast()], ..*call }) }.unwrap();
    request.start().unwrap();
    then();
    (0..10_000).find_map(|_| request.test().err()).expect("a failure")
}

#[test]
fn a_test_of_a_request_finds_that_a_peer_has_left() {
    let contexts = connected(2, false);
    let call = call(&contexts[0], Collective::Allreduce, 1, 0);
    let error = fails_when_tested(&contexts[0], &call, || contexts[1].close());
    assert_eq!((error.kind(), error.details().rank), (ErrorKind::ConnectionLost, Some(1)), "{error}");
}

#[test]
fn a_test_of_a_request_finds_that_calls_differ() {
    for algorithms in [["binomial", "shared_flat"], ["shared_flat", "binomial"]] {
        let contexts = connected(2, false);
        let calls = [0, 1].map(|rank| Call {
            algorithm: Some(algorithms[rank]),
            ..call(&contexts[rank], Collective::Broadcast, 1, 0)
        });
        run_call(&contexts[0], &calls[0]).unwrap();
        let error = fails_when_tested(&contexts[1], &calls[1], || ());
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(0)), "{algorithms:?}: {error}");
    }
}

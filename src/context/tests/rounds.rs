//! Operations of several rounds exclude others from the first to the last, also between two of them.

use std::cell::Cell;

use super::*;
use crate::collective::{Collective, Shape};
use crate::context::bootstrap::parent::OverContext;
use crate::context::exchange::Exchange;
use crate::context::rounds::Exclusion;
use crate::context::setup::TAG;
use crate::net::address::Address;
use crate::tuner::Tuner;
use crate::types::DataType;

/// A gatherv of one element of each of two ranks to rank 0, which `make` makes: by an algorithm that needs the counts
/// of all, or by one that does not.
fn gathered(
    context: &Context,
    algorithm: &str,
    tag: u64,
    make: impl FnOnce(&Call<'_>) -> Result<()>,
) -> Result<Vec<u32>> {
    let (input, mut output) = ([context.rank() as u32], vec![9; 2]);
    let is_root = context.rank() == 0;
    let shape = Shape {
        recv_counts: if is_root { &[1, 1] } else { &[] },
        outputs: usize::from(is_root),
        ..Shape::new(Collective::Gatherv, context.rank(), 2, 1)
    };
    let outputs = [output.as_mut_ptr().cast()];
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: &outputs[..usize::from(is_root)],
        algorithm: Some(algorithm),
        tag,
        ..Call::new(shape, DataType::Uint32)
    };
    make(&call).map(|()| output)
}

fn gatherv(context: &Context, algorithm: &str, tag: u64) -> Result<Vec<u32>> {
    // SAFETY: the buffers are as long as the shape says and live until the call returns.
    gathered(context, algorithm, tag, |call| unsafe { context.run(call) })
}

/// A call by `shared_flat`, as a request: it is started, and is refused or waited for.
fn requested_gatherv(context: &Arc<Context>, tag: u64) -> Result<Vec<u32>> {
    gathered(context, "shared_flat", tag, |call| {
        // SAFETY: the buffers are as long as the shape says, and outlive the request.
        let request = unsafe { context.request(call) }?;
        request.start()?;
        request.wait()
    })
}

struct Own(Request);

impl HasRequest for Own {
    fn request(&self) -> &Request {
        &self.0
    }
}

/// A gatherv that starts in a group.
fn grouped_gatherv(context: &Arc<Context>, tag: u64) -> Result<Vec<u32>> {
    gathered(context, "direct", tag, |call| {
        context.check(call, None)?;
        // SAFETY: the buffers are as long as the shape says, and outlive the request.
        let own = Arc::new(Own(unsafe { context.request_checked(call, None, None, true) }?));
        let group = context.group()?;
        group.start(own.clone())?;
        group.end()?;
        own.0.wait()
    })
}

fn is_refused<T>(result: Result<T>, why: &str) {
    let error = result.err().unwrap();
    assert!(error.kind() == ErrorKind::InvalidOperation && error.message().contains(why), "{error}");
}

#[test]
fn nothing_starts_between_the_rounds_of_a_call() {
    for (shared, checked) in [(true, false), (false, false), (true, true), (false, true)] {
        let options = ContextOptions { check_calls: Some(checked), ..Default::default() };
        let contexts = agreement::on_this_host(2, shared, options);
        // What the first call has begun, and holds between its rounds.
        let shape = Shape { recv_counts: &[1, 1], ..Shape::new(Collective::Gatherv, 0, 2, 1) };
        let call = Call { tag: 3, algorithm: Some("binomial"), ..Call::new(shape, DataType::Uint32) };
        let selected = contexts[0].select(&call).unwrap();
        let mut run_of_first = contexts[0].run_of(call.binding(&selected), None, Instant::now());
        let operation = Exclusion::begin(&contexts[0], &mut run_of_first).unwrap().unwrap();
        for algorithm in ["binomial", "direct"] {
            is_refused(gatherv(&contexts[0], algorithm, 3), "gatherv binomial of uint32 with tag 3 is running");
        }
        if shared {
            is_refused(requested_gatherv(&contexts[0], 3), "gatherv binomial of uint32 with tag 3 is running");
        }
        is_refused(grouped_gatherv(&contexts[0], 3), "gatherv binomial of uint32 with tag 3 is running");
        run(&contexts, |context| drop(gatherv(context, "direct", 4).unwrap()));
        drop(operation);
        run(&contexts, |context| assert_eq!(grouped_gatherv(context, 3).unwrap()[1], [1, 9][context.rank()]));
        for algorithm in ["binomial", "direct"] {
            run(&contexts, |context| assert_eq!(gatherv(context, algorithm, 3).unwrap()[1], [1, 9][context.rank()]));
        }
        if shared {
            run(&contexts, |context| assert_eq!(requested_gatherv(context, 3).unwrap()[1], [1, 9][context.rank()]));
        }
    }
}

/// Another thread of the parent holds the lock of these operations at the moment of the fork.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_by_fork_is_refused_what_has_several_rounds() {
    let contexts = group(2);
    let shape = Shape { recv_counts: &[1, 1], ..Shape::new(Collective::Gatherv, 0, 2, 1) };
    let call = Call { algorithm: Some("direct"), ..Call::new(shape, DataType::Uint32) };
    let selected = contexts[0].select(&call).unwrap();
    let run_of_parent = contexts[0].run_of(call.binding(&selected), None, Instant::now());
    let held = run_of_parent.admit().unwrap().unwrap();
    // SAFETY: the child calls functions that are documented for it, allocates memory, and exits. The timer ends it if
    // it hangs.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            let calls = [
                gatherv(&contexts[0], "direct", 0).map(drop),
                gatherv(&contexts[0], "binomial", 0).map(drop),
                contexts[0].split(Some(0), 0).map(drop),
                contexts[0].connect_oob(&mut |_, _| Ok(())),
                contexts[1].connect_from(&contexts[1], 1),
            ];
            let is_told = |error: &Error| {
                error.kind() == ErrorKind::InvalidOperation && error.message().contains("a child by fork")
            };
            let all = calls.iter().all(|result| result.as_ref().is_err_and(is_told));
            libc::_exit(if all { 0 } else { 1 });
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        status
    };
    drop(held);
    assert_eq!(status, 0);
}

#[test]
fn a_call_of_several_rounds_does_not_begin_while_another_of_its_kind_runs() {
    for shared in [true, false] {
        let contexts = agreement::on_this_host(2, shared, ContextOptions::default());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| gatherv(&contexts[0], "direct", 3));
            await_wait(&contexts[0]);
            is_refused(gatherv(&contexts[0], "binomial", 3), "gatherv direct of uint32 with tag 3 is running");
            gatherv(&contexts[1], "direct", 3).unwrap();
            assert_eq!(first.join().unwrap().unwrap(), [0, 1]);
        });
    }
}

#[test]
fn a_context_is_made_by_one_thread_at_a_time() {
    let contexts = group(2);
    let operation = Exclusion::begin_setup(&contexts[0], TAG).unwrap();
    is_refused(contexts[0].split(Some(0), 0), "another thread is splitting this context");
    is_refused(
        contexts[0].connect_oob(&mut |_, _| panic!("it is refused")),
        "another thread is splitting this context",
    );
    assert!(contexts[0].broken().is_none());
    drop(operation);
    let make = |context: &Context| {
        let made = Context::new(device(), context.rank(), 2, &ContextOptions::default()).unwrap();
        made.connect_from(context, 5).map(|()| made)
    };
    let made = Context::new(device(), 0, 2, &ContextOptions::default()).unwrap();
    let error = made.connect_from(&contexts[0], TAG).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("18446744073709551615"), "{error}");
    let operation = Exclusion::begin_setup(&contexts[0], 5).unwrap();
    is_refused(make(&contexts[0]), "another thread is splitting this context");
    drop(operation);
    run(&contexts, |context| assert_eq!(split::sum(&make(context).unwrap(), 1, 0), 2));
}

/// Closes the context in the making after the exchange of this number.
struct Closing<'a> {
    over: OverContext<'a>,
    after: usize,
    exchanges: Cell<usize>,
}

impl Closing<'_> {
    fn exchanged<T>(&self, result: Result<T>) -> Result<T> {
        self.exchanges.set(self.exchanges.get() + 1);
        if self.exchanges.get() == self.after {
            self.over.context.close();
        }
        result
    }
}

impl Exchange for Closing<'_> {
    fn agreed(&self) -> Option<Tuner> {
        self.over.agreed()
    }

    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        self.exchanged(self.over.provisional_addresses(own))
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.exchanged(self.over.addresses(own))
    }

    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.exchanged(self.over.memory(own))
    }

    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.over.broadcast(own)
    }
}

/// After the last exchange nothing but the end of connecting finds out.
#[test]
fn a_context_that_is_closed_while_it_connects_is_closed_then() {
    const EXCHANGES: usize = 3;
    for after in 1..=EXCHANGES {
        let parents = agreement::on_this_host(2, true, ContextOptions::default());
        run(&parents, |parent| {
            let options = ContextOptions::default();
            let context = Context::new(parent.device().clone(), parent.rank(), 2, &options).unwrap();
            let limit = context.limit();
            let over = OverContext { context: &context, parent, tag: 7, limit };
            let exchange = Closing { over, after, exchanges: Cell::new(0) };
            assert_eq!(context.bootstrap(&exchange, limit).unwrap_err().kind(), ErrorKind::Closed, "after {after}");
            assert_eq!(exchange.exchanges.get(), EXCHANGES, "after {after}");
            assert!(context.shared_memory.get().is_some(), "after {after}");
            assert_eq!(gatherv(&context, "shared_flat", 0).unwrap_err().kind(), ErrorKind::Closed, "after {after}");
        });
    }
}

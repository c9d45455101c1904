//! Prepared calls, and calls that resemble them but differ.

use std::ffi::c_void;

use super::*;
use crate::collective::{Collective, Shape};
use crate::rendezvous::InProcessStore;
use crate::types::{DataType, ReduceOp};

/// Combines integers by exclusive or with the integer at `user`.
unsafe extern "C" fn mix(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    n: usize,
    user: *mut c_void,
) -> i32 {
    let (into, left, right) = (into.cast::<i32>(), left.cast::<i32>(), right.cast::<i32>());
    for i in 0..n {
        // SAFETY: all buffers have `n` integers, and `user` points to one.
        unsafe { into.add(i).write(left.add(i).read() ^ right.add(i).read() ^ *user.cast::<i32>()) };
    }
    0
}

/// A call with the input `brought`, and its expected output.
struct Case {
    call: Call<'static>,
    gives: [i32; COUNT],
}

const COUNT: usize = 2;

fn brought(rank: usize) -> [i32; COUNT] {
    [3 + 4 * rank as i32, 5 + 4 * rank as i32]
}

fn cases(rank: usize) -> [Case; 14] {
    static KEYS: [i32; 2] = [64, 128];
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, rank, 2, COUNT) };
    let call = Call::new(shape, DataType::Int32);
    let by = |op| Call { reduction: Reduction::Op(op), ..call };
    let mixed = |key: &'static i32| Call {
        reduction: Reduction::User { function: mix, user: std::ptr::from_ref(key).cast_mut().cast() },
        ..call
    };
    let broadcast = |root| Call { shape: Shape { collective: Collective::Broadcast, root, ..shape }, ..call };
    let own = brought(rank);
    [
        (call, [10, 14]),
        (Call { shape: Shape { inputs: 1, ..shape }, ..call }, [10, 14]),
        (Call { algorithm: Some("ring"), ..call }, [10, 14]),
        (Call { algorithm: Some("recursive_doubling"), ..call }, [10, 14]),
        (Call { max_segment_bytes: Some(4), ..call }, [10, 14]),
        (Call { shape: Shape { count: 1, ..shape }, ..call }, [10, own[1]]),
        (Call { dtype: DataType::Uint8.into(), ..call }, [10, own[1]]),
        (by(ReduceOp::Max), [7, 9]),
        (by(ReduceOp::BitXor), [4, 12]),
        (Call { shape: Shape { average: true, ..shape }, ..by(ReduceOp::Average) }, [5, 7]),
        (mixed(&KEYS[0]), [4 ^ 64, 12 ^ 64]),
        (mixed(&KEYS[1]), [4 ^ 128, 12 ^ 128]),
        (broadcast(0), brought(0)),
        (broadcast(1), brought(1)),
    ]
    .map(|(call, gives)| Case { call, gives })
}

fn check(context: &Context, case: &Case, what: &str) {
    let out_of_place = case.call.shape.inputs > 0;
    let input = brought(context.rank());
    let mut output = if out_of_place { [-1; COUNT] } else { input };
    let call = Call {
        inputs: if out_of_place { &[input.as_ptr().cast()] } else { &[] },
        outputs: &[output.as_mut_ptr().cast()],
        ..case.call
    };
    // SAFETY: the arrays have at least as many elements as the shape says, and live until the call returns.
    unsafe { context.run(&call) }.unwrap();
    assert_eq!(output, case.gives, "{what} on rank {}", context.rank());
    assert!(context.cached(&context.key_of(&call).unwrap()).is_some(), "{what} would be prepared again");
}

#[test]
fn a_call_is_not_taken_for_the_one_before_it() {
    run(&group(2), |context| {
        let cases = cases(context.rank());
        for (i, one) in cases.iter().enumerate() {
            for (j, other) in cases.iter().enumerate() {
                check(context, one, &format!("case {i} before {j}"));
                check(context, other, &format!("case {j} after {i}"));
                check(context, other, &format!("case {j} again"));
            }
        }
    });
}

/// What was selected before the ranks agreed on a tuning is selected again.
#[test]
fn a_context_that_connects_forgets_the_calls_before() {
    let context = Context::new(device(), 0, 1, &ContextOptions::default()).unwrap();
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, 0, 1, COUNT) };
    let call = Call::new(shape, DataType::Int32);
    let key = context.key_of(&call).unwrap();
    let mut output = [1i32; COUNT];
    // SAFETY: the array has as many elements as the shape says.
    unsafe { context.run(&Call { outputs: &[output.as_mut_ptr().cast()], ..call }) }.unwrap();
    assert!(context.cached(&key).is_some());
    context.connect(&*InProcessStore::new()).unwrap();
    assert!(context.cached(&key).is_none());
}

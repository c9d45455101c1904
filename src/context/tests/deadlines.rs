//! A call's timeout holds while its rank waits for nobody, and no other call waits for it.

use super::*;
use crate::collective::{Collective, Shape};
use crate::types::{DataType, ElementType};

/// No machine touches [`BYTES`] in it.
const TIMEOUT: Duration = Duration::from_millis(1);
const BYTES: usize = 128 << 20;

/// An alltoall in place, which `make` makes, first copies all that it sends. The other rank does not come.
fn ends_while_it_copies(make: impl Fn(&Arc<Context>, &Call<'_>) -> Result<()>) {
    for shared in [true, false] {
        let contexts = agreement::on_this_host(2, shared, ContextOptions::default());
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Alltoall, 0, 2, BYTES / 2) };
        let mut blocks = vec![0u8; BYTES];
        let outputs = [blocks.as_mut_ptr()];
        let call = Call { outputs: &outputs, timeout: Some(TIMEOUT), ..Call::new(shape, DataType::Uint8) };
        let error = make(&contexts[0], &call).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.message().contains("while this rank was copying or combining"), "shared: {shared}: {error}");
        assert!(contexts[0].broken().is_some());
    }
}

#[test]
fn a_call_that_copies_in_its_own_memory_ends_by_its_timeout() {
    // SAFETY: the vector has the length of the shape, and lives until the call returns.
    ends_while_it_copies(|context, call| unsafe { context.run(call) });
}

/// Neither the start of a request nor the device's thread takes the time that the copy would take.
#[test]
fn a_started_call_that_copies_in_its_own_memory_ends_by_its_timeout() {
    ends_while_it_copies(|context, call| {
        // SAFETY: the vector has the length of the shape, and outlives the request.
        let request = unsafe { context.request(call) }?;
        request.start()?;
        request.wait()
    });
}

/// An element that is longer than what is copied between two looks at the clock.
#[test]
fn an_element_may_be_longer_than_the_way_from_one_look_at_the_clock_to_the_next() {
    const ELEMENT: usize = 9 << 20;
    for shared in [true, false] {
        let contexts = agreement::on_this_host(2, shared, ContextOptions::default());
        std::thread::scope(|scope| {
            for (rank, context) in contexts.iter().enumerate() {
                scope.spawn(move || {
                    let (own, mut all) = (vec![rank as u8 + 1; ELEMENT], vec![0u8; 2 * ELEMENT]);
                    let (inputs, outputs) = ([own.as_ptr()], [all.as_mut_ptr()]);
                    let shape = Shape::new(Collective::Allgather, rank, 2, 1);
                    let call = Call { inputs: &inputs, outputs: &outputs, ..Call::new(shape, DataType::Uint8) };
                    let call = Call { dtype: ElementType::Opaque(ELEMENT), ..call };
                    // SAFETY: the vectors have the lengths of the shape, and live until the call returns.
                    unsafe { context.run(&call) }.unwrap();
                    let (first, second) = all.split_at(ELEMENT);
                    assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2), "{shared}");
                });
            }
        });
    }
}

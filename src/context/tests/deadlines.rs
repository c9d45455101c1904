//! A call's timeout holds while its rank waits for nobody.

use super::*;
use crate::collective::{Collective, Shape};
use crate::types::DataType;

/// No machine touches [`BYTES`] in it.
const TIMEOUT: Duration = Duration::from_millis(1);
const BYTES: usize = 128 << 20;

/// An alltoall in place first copies all that it sends. The other rank does not come.
#[test]
fn a_call_that_copies_in_its_own_memory_ends_by_its_timeout() {
    for shared in [true, false] {
        let contexts = agreement::on_this_host(2, shared, ContextOptions::default());
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Alltoall, 0, 2, BYTES / 2) };
        let mut blocks = vec![0u8; BYTES];
        let outputs = [blocks.as_mut_ptr()];
        let call = Call { outputs: &outputs, timeout: Some(TIMEOUT), ..Call::new(shape, DataType::Uint8) };
        // SAFETY: the vector has the length of the shape, and lives until the call returns.
        let error = unsafe { contexts[0].run(&call) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.message().contains("while this rank was copying or combining"), "shared: {shared}: {error}");
        assert!(contexts[0].broken().is_some());
    }
}

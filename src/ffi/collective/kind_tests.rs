use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use super::super::options::DEFAULTS;
use crate::collective::Collective;
use crate::ffi::enumeration::from_number;
use crate::ffi::*;

/// The enumerator of each collective's name.
const KINDS: [(Collective, gloo_rs_collective_t); 16] = [
    (Collective::Allreduce, GLOO_RS_ALLREDUCE),
    (Collective::Reduce, GLOO_RS_REDUCE),
    (Collective::ReduceScatter, GLOO_RS_REDUCE_SCATTER),
    (Collective::Broadcast, GLOO_RS_BROADCAST),
    (Collective::Allgather, GLOO_RS_ALLGATHER),
    (Collective::Allgatherv, GLOO_RS_ALLGATHERV),
    (Collective::Gather, GLOO_RS_GATHER),
    (Collective::Gatherv, GLOO_RS_GATHERV),
    (Collective::Scatter, GLOO_RS_SCATTER),
    (Collective::Scatterv, GLOO_RS_SCATTERV),
    (Collective::Alltoall, GLOO_RS_ALLTOALL),
    (Collective::Alltoallv, GLOO_RS_ALLTOALLV),
    (Collective::Barrier, GLOO_RS_BARRIER),
    (Collective::PairwiseExchange, GLOO_RS_PAIRWISE_EXCHANGE),
    (Collective::Scan, GLOO_RS_SCAN),
    (Collective::Exscan, GLOO_RS_EXSCAN),
];

/// The message and the operation of the last error of this thread.
fn last_error() -> (String, String) {
    let text = |text: *const c_char| {
        // SAFETY: texts of an error are valid until the next call fails on this thread.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
    };
    let error = crate::ffi::error::last();
    (text(error.message), text(error.operation))
}

/// Asserts that gloo_rs_collective and gloo_rs_collective_prepare refuse these arguments and make no request. Returns
/// their errors.
fn refused(
    kind: MaybeUninit<gloo_rs_collective_t>,
    options: *const gloo_rs_collective_options_t,
) -> [(String, String); 2] {
    // SAFETY: the context is NULL; `options` is NULL or valid, without buffers; the request's place is valid.
    unsafe {
        assert_eq!(gloo_rs_collective(ptr::null_mut(), kind, options), GLOO_RS_ERROR_INVALID_ARGUMENT);
        let called = last_error();
        let mut request = ptr::dangling_mut();
        let status = gloo_rs_collective_prepare(ptr::null_mut(), kind, options, &mut request);
        assert_eq!((status, request), (GLOO_RS_ERROR_INVALID_ARGUMENT, ptr::null_mut()));
        [called, last_error()]
    }
}

#[test]
fn each_collective_has_the_number_of_its_enumerator() {
    assert!(KINDS.iter().map(|(collective, _)| collective).eq(Collective::ALL));
    for (collective, kind) in KINDS {
        assert_eq!(collective as u32, kind as u32);
        let name = collective.name();
        let why = |function: &str| (format!("{function}({name}): context is NULL"), name.to_owned());
        assert_eq!(
            refused(MaybeUninit::new(kind), &DEFAULTS),
            [why("gloo_rs_collective"), why("gloo_rs_collective_prepare")]
        );
    }
}

#[test]
fn a_number_of_no_collective_is_refused() {
    for number in [16, i32::MAX as u32, -1i32 as u32] {
        let why = |function: &str, operation: &str| {
            (format!("{function}: kind is {number}, which is not a value of its enumeration"), operation.to_owned())
        };
        assert_eq!(
            refused(from_number(number), &DEFAULTS),
            [why("gloo_rs_collective", "collective"), why("gloo_rs_collective_prepare", "collective prepare")]
        );
    }
}

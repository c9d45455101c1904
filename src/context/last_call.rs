//! What a context's last call was prepared to: most calls ask for the same as the one before them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::collective::{Algorithm, Collective, Shape};
use crate::context::Call;
use crate::engine::plan::Plan;
use crate::tuner::Tuner;
use crate::tuner::file::AUTO;
use crate::types::{DataType, Rank};

/// Everything that preparing a call depends on; the context's rank and size aside, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    count: usize,
    collective: Collective,
    dtype: DataType,
    op: u32,
    root: Rank,
    inputs: usize,
    outputs: usize,
    average: bool,
    base: usize,
    destinations: usize,
    algorithm: Option<&'a str>,
    max_segment_bytes: Option<usize>,
    /// Where the tuner and the ranks' hosts lie in memory, which stay as they are: connecting puts others there.
    tuner: usize,
    hosts: usize,
}

impl<'a> Asked<'a> {
    /// `None` for a call that has lists of its own: comparing those is no quicker than preparing it.
    pub(super) fn of(call: &Call<'a>, tuner: &Tuner, hosts: &[u32]) -> Option<Self> {
        // Names every field, so that a new one is not forgotten.
        let Call {
            shape,
            algorithm,
            dtype,
            reduction: _,
            inputs: _,
            outputs: _,
            tag: _,
            timeout: _,
            max_segment_bytes,
        } = *call;
        let Shape {
            collective,
            rank: _,
            size: _,
            root,
            count,
            send_counts,
            recv_counts,
            inputs,
            outputs,
            average,
            base,
            destinations,
            groups,
            dims,
            links,
            counts,
        } = shape;
        let lists = send_counts.len() | recv_counts.len() | groups.len() | dims.len() | links.len() | counts.len();
        (lists == 0).then(|| Self {
            count,
            collective,
            dtype,
            op: call.op_code(),
            root,
            inputs,
            outputs,
            average,
            base,
            destinations,
            algorithm,
            max_segment_bytes,
            tuner: std::ptr::from_ref(tuner).addr(),
            hosts: hosts.as_ptr().addr(),
        })
    }
}

/// How a call is done.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(super) algorithm: &'static Algorithm,
    /// Elements of a segment.
    pub(super) segment: usize,
    /// What every message of it says.
    pub(super) check: u32,
    pub(super) plan: Arc<Plan>,
}

/// The last call that was prepared.
#[derive(Default)]
pub(super) struct LastCall(Mutex<Option<(Asked<'static>, Prepared)>>);

impl LastCall {
    /// What it was prepared to, if it asked for the same.
    pub(super) fn get(&self, asked: &Asked<'_>) -> Option<Prepared> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(known, _)| known == asked).map(|(_, prepared)| prepared.clone())
    }

    /// Forgets the one before.
    pub(super) fn set(&self, asked: Asked<'_>, prepared: Prepared) {
        // The caller's text may be gone when it is compared.
        let algorithm = asked.algorithm.map(|name| if name == AUTO { AUTO } else { prepared.algorithm.name });
        let asked = Asked { algorithm, ..asked };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((asked, prepared));
    }
}

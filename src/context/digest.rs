//! Digests of calls: every message of a collective carries one, so that ranks in different calls detect this. Also
//! describes digests in errors.

use std::hash::{Hash, Hasher};

use crate::collective::{Algorithm, Collective, Order, Shape, Uses};
use crate::context::call::{Call, Reduction};
use crate::hash::QuickHasher;
use crate::tuner;
use crate::types::{DataType, ElementType, ReduceOp};
use crate::wire::fingerprint::{
    self, COMPARISON, Digest, MAX_ALGORITHM, MAX_COLLECTIVE, NO_OPERATION, OPAQUE_TYPE, Purpose, SETUP, USER_OPERATION,
};

// If one of these assertions fails, widen the field in `wire/fingerprint.rs`.
const _: () = {
    let mut index = 0;
    while index < Collective::ALL.len() {
        let collective = Collective::ALL[index];
        assert!(collective as usize <= MAX_COLLECTIVE, "a collective's number does not fit its field of a fingerprint");
        let last = collective.algorithms().len() - 1;
        assert!(last <= MAX_ALGORITHM, "a collective has more algorithms than a fingerprint's field has values");
        index += 1;
    }
};

impl Call<'_> {
    /// The digest in all messages of the call.
    pub(super) fn digest(&self, algorithm: &Algorithm, segment: usize) -> u64 {
        let shape = &self.shape;
        // Only fields that must be equal on all ranks.
        let mut hasher = QuickHasher::default();
        (shape.root, segment, shape.size).hash(&mut hasher);
        if let ElementType::Opaque(bytes) = self.dtype {
            bytes.hash(&mut hasher);
        }
        match shape.collective {
            Collective::ReduceScatter | Collective::Allgatherv => shape.recv_counts.hash(&mut hasher),
            Collective::Gatherv | Collective::Scatterv | Collective::Alltoallv => {}
            _ => shape.count.hash(&mut hasher),
        }
        numbers(shape, algorithm).hash(&mut hasher);
        if shape.order != Order::Any {
            shape.order.hash(&mut hasher);
        }
        match algorithm.uses {
            Uses::Groups => (shape.groups, shape.dims).hash(&mut hasher),
            Uses::Links => shape.links.hash(&mut hasher),
            Uses::Domains => shape.domains.hash(&mut hasher),
            Uses::Sizes | Uses::Counts | Uses::SharedMemory => {}
        }
        // Every rank divides an average by the number of contributions that it assumes, and receives so many of each
        // rank if they travel apart. The number is added, not hashed, so that different numbers always give different
        // digests.
        let is_assumed = shape.average || shape.order == Order::Reproducible;
        let contributions = if is_assumed { shape.contributions() } else { 0 };
        let digest = Digest {
            collective: shape.collective as u32,
            algorithm: tuner::position(shape.collective, algorithm) as u32,
            dtype: match self.dtype {
                ElementType::Known(dtype) => dtype as u32,
                ElementType::Opaque(_) => OPAQUE_TYPE,
            },
            operation: self.op_code(),
            rest: (hasher.finish() as u32).wrapping_add(contributions as u32),
        };
        digest.encode()
    }

    /// The reduction operation, as encoded in the digest.
    pub(super) fn op_code(&self) -> u32 {
        match self.reduction {
            _ if !self.shape.collective.reduces() => NO_OPERATION,
            Reduction::Op(op) => op as u32,
            Reduction::User { .. } => USER_OPERATION,
        }
    }
}

/// Numbers besides counts that must be equal on all ranks if the collective or `algorithm` uses them, else 0: the
/// inputs of an allgather, the base, and the destinations.
pub(super) fn numbers(shape: &Shape<'_>, algorithm: &Algorithm) -> (usize, usize, usize) {
    let Shape { collective, inputs, base, destinations, .. } = *shape;
    let inputs = if collective == Collective::Allgather { inputs.max(1) } else { 0 };
    (inputs, if algorithm.name == "bcube" { base } else { 0 }, destinations)
}

/// Describes the call that a peer's digest stands for, for errors.
pub(super) fn explain(digest: u64) -> String {
    let Digest { collective, algorithm, dtype, operation, rest: _ } = Digest::decode(digest);
    let collective = Collective::ALL.iter().find(|c| **c as u32 == collective);
    let sharing = match Purpose::decode(digest) {
        Some(Purpose::Call) => "",
        Some(Purpose::Counts) => ", sharing its counts",
        Some(Purpose::Fused) => ", fused in a group",
        Some(Purpose::Comparison) => {
            return "a comparison of calls, which check_calls asks for (it must be the same on all ranks)".into();
        }
        Some(Purpose::Measurement) => return "a measurement of connecting".into(),
        Some(Purpose::Setup) => return "the making of a context (a split, or connecting)".into(),
        None => return UNKNOWN.into(),
    };
    let Some(collective) = collective else { return UNKNOWN.into() };
    let algorithm = collective.algorithms().get(algorithm as usize).map_or("?", |a| a.name);
    let dtype = match dtype {
        OPAQUE_TYPE => "elements of the caller's type",
        dtype => DataType::try_from(dtype).map_or("?", DataType::name),
    };
    format!("{} {algorithm} of {dtype}{}{sharing}", collective.name(), op_text(operation))
}

/// Describes the kind of a peer's call, for errors.
pub(super) fn explain_kind(kind: u8) -> String {
    let digest = |collective: &Collective| Digest { collective: *collective as u32, ..Digest::decode(0) }.encode();
    let collective = Collective::ALL.iter().find(|collective| fingerprint::kind(digest(collective)) == kind);
    match collective {
        Some(collective) => collective.name().into(),
        None if kind == COMPARISON => explain(Purpose::Comparison.alone()),
        None if kind == SETUP => explain(Purpose::Setup.alone()),
        None => UNKNOWN.into(),
    }
}

const UNKNOWN: &str = "one that this version does not know";

/// The inverse of [`Call::op_code`]: ` by sum`, or nothing.
pub(super) fn op_text(code: u32) -> String {
    match code {
        USER_OPERATION => " by a caller's function".into(),
        op => ReduceOp::try_from(op).map_or(String::new(), |op| format!(" by {op}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn errors_name_every_collective_algorithm_type_and_operation() {
        let (mut digests, mut texts) = (HashSet::new(), HashSet::new());
        let operations = (0..ReduceOp::ALL.len() as u32).chain([USER_OPERATION, NO_OPERATION]);
        for &collective in Collective::ALL {
            for (position, algorithm) in collective.algorithms().iter().enumerate() {
                for &dtype in DataType::ALL {
                    for operation in operations.clone() {
                        let digest = Digest {
                            collective: collective as u32,
                            algorithm: position as u32,
                            dtype: dtype as u32,
                            operation,
                            rest: u32::MAX,
                        };
                        let digest = digest.encode();
                        let text = explain(digest);
                        assert_eq!(
                            text,
                            format!("{} {} of {dtype}{}", collective.name(), algorithm.name, op_text(operation))
                        );
                        assert_eq!(explain(Purpose::Counts.of(digest)), format!("{text}, sharing its counts"));
                        assert_eq!(explain(Purpose::Fused.of(digest)), format!("{text}, fused in a group"));
                        assert!(digests.insert(digest) && digests.insert(Purpose::Counts.of(digest)));
                        assert!(texts.insert(text));
                    }
                }
            }
        }
        let [sum, function] = [ReduceOp::Sum as u32, USER_OPERATION].map(|operation| {
            let ring = Collective::Allreduce.algorithm("ring").unwrap();
            let algorithm = tuner::position(Collective::Allreduce, ring) as u32;
            explain(Digest { algorithm, dtype: DataType::Float32 as u32, operation, ..Digest::decode(0) }.encode())
        });
        assert_eq!(sum, "allreduce ring of float32 by sum");
        assert_eq!(function, "allreduce ring of float32 by a caller's function");
    }

    #[test]
    fn what_must_be_equal_on_all_ranks_is_in_the_digest() {
        let digest = |collective: Collective, algorithm, change: fn(&mut Shape<'_>)| {
            let mut shape = Shape::new(collective, 0, 4, 8);
            change(&mut shape);
            Call::new(shape, DataType::Int32).digest(collective.algorithm(algorithm).unwrap(), 8)
        };
        let changes: [fn(&mut Shape<'_>); 4] =
            [|s| s.base = 3, |s| s.destinations = 2, |s| s.inputs = 2, |s| s.order = Order::Ranks];
        for (collective, algorithm, counts) in [
            (Collective::Allreduce, "bcube", [true, true, false, true]),
            (Collective::Allreduce, "ring", [false, true, false, true]),
            (Collective::Allgather, "ring", [false, true, true, true]),
        ] {
            let usual = digest(collective, algorithm, |_| ());
            let differs = changes.map(|change| digest(collective, algorithm, change) != usual);
            assert_eq!(differs, counts, "{} {algorithm}", collective.name());
        }
    }

    #[test]
    fn what_no_peer_of_this_version_says_is_explained_all_the_same() {
        assert!(explain(Purpose::Comparison.alone()).starts_with("a comparison of calls"));
        assert_eq!(explain(Purpose::Measurement.alone()), "a measurement of connecting");
        let kinds: HashSet<String> = (1..=u8::MAX).map(explain_kind).collect();
        assert_eq!(
            kinds.len(),
            Collective::ALL.len() + 3,
            "every collective, a comparison, a setup, and what is unknown"
        );
        assert!(explain_kind(COMPARISON).starts_with("a comparison of calls"));
        assert!(explain_kind(SETUP).starts_with("the making of a context"));
        let digest = |collective, algorithm, dtype, operation| {
            explain(Digest { collective, algorithm, dtype, operation, ..Digest::decode(0) }.encode())
        };
        assert_eq!(digest(MAX_COLLECTIVE as u32, 0, 0, 0), UNKNOWN);
        assert_eq!(explain(u64::MAX), UNKNOWN);
        assert_eq!(digest(0, MAX_ALGORITHM as u32, 30, 29), "allreduce ? of ?");
    }
}

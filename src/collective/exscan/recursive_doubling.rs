//! Exchanges totals like scan's `recursive_doubling` ([`prefix`]; Sanders and Träff, "Parallel prefix (scan) algorithms
//! for MPI", 2006), but the result starts with the first total received from a lower rank instead of the rank's own
//! elements. It has the fewest steps: best for small buffers.
//!
//! Six ranks; `a-b` denotes the reduction over ranks `a` to `b`. Step 1: 0 and 1, and 2 and 3, exchange their own
//! elements, 4 sends its own to 5; ranks 1, 3 and 5 now have the results 0, 2, 4. Step 2: 0 and 1 send 0-1 to 2 and 3,
//! whose results are now 0-1 and 0-2, and which send 2-3 back. Step 3: 0 and 1 send 0-3 to 4 and 5, whose results are
//! now 0-3 and 0-4.
//!
//! Steps: `ceil(lg P)`. For a power of two all ranks together send `S (P lg P - P + 1)` bytes; a rank sends at most `S`
//! per step. Up to two totals and one received value are in scratch memory. Lower ranks are always the left operand, so
//! the operation need not commute.

use super::super::{Algorithm, Uses, prefix};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    name: "recursive_doubling",
    generate: |shape| prefix::generate(shape, false),
    cost: |case| prefix::cost(case, false),
    uses: Uses::Sizes,
};

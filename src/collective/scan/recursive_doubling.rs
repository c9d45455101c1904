//! Ranks exchange totals with partners at distance 1, 2, 4, ... ([`prefix`]; Sanders and Träff, "Parallel prefix (scan)
//! algorithms for MPI", 2006). It has the fewest steps: best for small buffers.
//!
//! Six ranks; `a-b` denotes the reduction over ranks `a` to `b`. Step 1: 0 and 1, and 2 and 3, exchange their own
//! elements; 4 sends its own to 5. Step 2: 0 and 1 send 0-1 to 2 and 3, which combine it, as the left operand, with 2
//! and 2-3, and send 2-3 back. Step 3: 0 and 1 send 0-3 to 4 and 5, which combine it with 4 and 4-5. Totals that no
//! rank needs are not sent, such as 5's to 4, and 4's and 5's to 0 and 1.
//!
//! Steps: `ceil(lg P)`. For a power of two all ranks together send `S (P lg P - P + 1)` bytes; a rank sends at most `S`
//! per step. Up to two totals and one received value are in scratch memory. Lower ranks are always the left operand, so
//! the operation need not commute.

use super::super::{Algorithm, Uses, prefix};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    name: "recursive_doubling",
    generate: |shape| prefix::generate(shape, true),
    cost: |case| prefix::cost(case, true),
    uses: Uses::Sizes,
};

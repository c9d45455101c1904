//! Everyone exchanges totals with partners at distance 1, 2, 4, ... ([`prefix`]; Sanders and Träff, "Parallel prefix (scan)
//! algorithms for MPI", 2006). The fewest steps, so the best for small buffers.
//!
//! Six ranks, `a-b` being the combination of the ranks `a` to `b`. Step 1: 0 and 1, and 2 and 3, exchange their own elements;
//! 4 sends its to 5. Step 2: 0 and 1 send 0-1 to 2 and 3, which put it on the left of 2 and 2-3, and send 2-3 back. Step 3: 0 and
//! 1 send 0-3 to 4 and 5, which put it on the left of 4 and 4-5. What only serves totals that nobody asks for is left out, as
//! 5's to 4, and 4's and 5's to 0 and 1.
//!
//! Steps: `ceil(lg P)`. A power of two sends `S (P lg P - P + 1)` bytes in all, a rank at most `S` in a step. Up to two totals
//! and one arrival lie in scratch memory. Lower ranks stand on the left, so the operation need not commute.

use super::super::{Algorithm, Uses, prefix};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    name: "recursive_doubling",
    generate: |shape| prefix::generate(shape, true),
    cost: |case| prefix::cost(case, true),
    uses: Uses::Sizes,
};

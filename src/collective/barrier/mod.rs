//! Barrier: no rank leaves before all ranks have entered. Tokens of one element, in scratch memory, are exchanged; a
//! rank leaves when its schedule is complete.

mod all_to_all;
mod all_to_one;
mod dissemination;
mod shared_flat;
mod shared_hierarchical;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[
    dissemination::ALGORITHM,
    all_to_all::ALGORITHM,
    all_to_one::ALGORITHM,
    shared_flat::ALGORITHM,
    shared_hierarchical::ALGORITHM,
];

//! Barrier: nobody leaves before everybody has entered. Tokens of one element travel in scratch memory; a rank may go on
//! when its schedule is done.

mod all_to_all;
mod all_to_one;
mod dissemination;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[dissemination::ALGORITHM, all_to_all::ALGORITHM, all_to_one::ALGORITHM];

//! The number of a call in the recorder, as the entry of the call has it.
//!
//! It says by its place in the record alone whether the call ends in few steps: at all places but the first. At the
//! first are 0, of a call that is not recorded; one number of each turn of the record; and the numbers of calls that
//! have waited, shifted.

use crate::engine::recorder::ENTRIES;

/// Set in the number of a call that has waited.
const WAITED: u64 = 1 << 63;

/// `number`, of a call that has not waited, once it has.
pub(super) fn waited(number: u64) -> u64 {
    WAITED | (number * ENTRIES as u64)
}

/// Whether that of a call says that it has waited.
pub(super) fn has_waited(number: u64) -> bool {
    number & WAITED != 0
}

/// The number itself.
pub(super) fn of(number: u64) -> u64 {
    if has_waited(number) { (number & !WAITED) / ENTRIES as u64 } else { number }
}

/// Whether the call is recorded, and has not waited. Also false for few others.
#[inline(always)] // On the path of small collectives.
pub(super) fn ends_quickly(number: u64) -> bool {
    !number.is_multiple_of(ENTRIES as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_has_waited_keeps_its_number_and_does_not_end_quickly() {
        let turn = ENTRIES as u64;
        for number in [0, 1, 2, turn - 1, turn, turn + 1, 12 * turn, 12 * turn + 5, 1 << 50] {
            let word = waited(number);
            assert_eq!((of(number), of(word)), (number, number));
            assert_eq!((has_waited(number), has_waited(word)), (false, true));
            assert_eq!((ends_quickly(number), ends_quickly(word)), (number % turn != 0, false));
        }
    }
}

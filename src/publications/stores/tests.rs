use super::*;

/// Ticks for a byte, through the caches and past them, of cores that share a cache, of one core's threads, and of cores
/// that share no cache.
const NEAR: [f32; 2] = [0.1, 0.25];
const ONE: [f32; 2] = [0.32, 0.1];
const FAR: [f32; 2] = [1.3, 0.18];
const BYTES: usize = 4096;

/// Makes copies on a machine with these times, and returns how many were stored past the caches.
fn copies(choice: &Choice, count: u32, [cached, streamed]: [f32; 2]) -> u32 {
    (0..count).fold(0, |past, _| {
        let stores = choice.next();
        let (each, past) = match stores {
            Stores::Cached => (cached, past),
            Stores::Streaming => (streamed, past + 1),
        };
        choice.took(stores, BYTES, (each * BYTES as f32) as u64);
        past
    })
}

#[test]
#[cfg_attr(miri, ignore = "many turns, without unsafe code")]
fn the_faster_way_is_taken_and_the_other_one_tried_now_and_then() {
    for times in [NEAR, ONE] {
        assert_eq!(copies(&Choice::default(), 10 * COPIES_PER_TRIAL, times), 10);
    }
    let choice = Choice::default();
    assert_eq!(copies(&choice, COPIES_PER_TRIAL - 1, FAR), 0, "unknown until it was tried");
    assert_eq!(copies(&choice, 1 + 10 * COPIES_PER_TRIAL, FAR), 1 + 10 * (COPIES_PER_TRIAL - 1));
}

#[test]
#[cfg_attr(miri, ignore = "many turns, without unsafe code")]
fn a_rank_that_is_moved_to_another_core_takes_the_other_way_soon() {
    let choice = Choice::default();
    for _ in 0..3 {
        copies(&choice, 8 * COPIES_PER_TRIAL, NEAR);
        assert_eq!(copies(&choice, COPIES_PER_TRIAL, NEAR), 1);
        copies(&choice, 16, FAR);
        assert_eq!(copies(&choice, COPIES_PER_TRIAL, FAR), COPIES_PER_TRIAL - 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "many turns, without unsafe code")]
fn interruptions_make_no_difference() {
    for (times, past) in [(NEAR, 1), (FAR, COPIES_PER_TRIAL - 1)] {
        let choice = Choice::default();
        copies(&choice, 4 * COPIES_PER_TRIAL, times);
        for _ in 0..20 {
            choice.took(Stores::Cached, BYTES, 1_000_000_000);
            choice.took(Stores::Streaming, BYTES, 1_000_000_000);
            assert_eq!(copies(&choice, COPIES_PER_TRIAL, times), past);
        }
    }
}

#[test]
fn both_ways_store_the_same_bytes() {
    let from: Vec<u8> = (0..3 * MIN_BYTES).map(|at| (at * 7 + 1) as u8).collect();
    for (figures, length) in
        [([1.0f32, 9.0], 3 * MIN_BYTES), ([9.0, 1.0], 3 * MIN_BYTES - 5), ([9.0, 1.0], MIN_BYTES - 1)]
    {
        let [cached, streamed] = figures.map(|figure| AtomicU32::new(figure.to_bits()));
        let choice = Choice { cached, streamed, streams: u32::from(figures[1] < 2.0).into(), ..Choice::default() };
        let mut into = vec![0; from.len()];
        // SAFETY: both have so many bytes, and do not overlap.
        unsafe { choice.copy(into.as_mut_ptr(), from.as_ptr(), length) };
        assert!(into[..length] == from[..length] && into[length..].iter().all(|byte| *byte == 0));
    }
}

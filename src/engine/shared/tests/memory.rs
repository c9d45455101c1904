//! How much memory calls take.

use super::*;

#[test]
fn memory_for_what_is_read_is_as_large_as_that() {
    const COUNT: usize = 50;
    let read = |own: &Shared| own.state().staging.iter().map(Scratch::bytes).sum::<usize>();
    std::thread::scope(|scope| {
        for (rank, group) in HostGroup::in_process(3).into_iter().enumerate() {
            scope.spawn(move || {
                let shared = Shared::new(group, Arc::default());
                let plan = by_reference(rank, 3, COUNT);
                let (input, mut output) = ([rank as f32; COUNT], [0f32; COUNT]);
                let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                for tag in 0..20 {
                    let binding = binding(&inputs, &outputs, tag);
                    let work = work(&shared, &plan, &binding);
                    let mut call = Call::start(&work).ok().unwrap();
                    // As if there were no memory for copies.
                    call.workspace().memory = Memory::default();
                    while let Some(wait) = call.advance(&work).unwrap() {
                        call.look_around(&work, wait);
                        std::thread::yield_now();
                    }
                    assert_eq!(output, [3f32; COUNT]);
                }
                // Of the two other ranks, in whole cache lines; all calls use the same.
                assert_eq!(read(&shared), 2 * (4 * COUNT).next_multiple_of(64), "rank {rank}");
            });
        }
    });
}

#[test]
fn scratch_memory_is_released_when_no_call_uses_it() {
    const COUNT: usize = 3 << 20;
    let kept = Arc::<Kept>::default();
    let shared = Shared::new(HostGroup::in_process(2).remove(0), kept.clone());
    let plan = in_place(0, 2, COUNT);
    let mut output = vec![0f32; COUNT];
    let outputs = [output.as_mut_ptr().cast()];
    let binding = binding(&[], &outputs, 0);
    let work = work(&shared, &plan, &binding);
    let mut call = Call::start(&work).ok().unwrap();
    assert!(kept.is_much() && kept.bytes() == 4 * COUNT);
    (0..3).for_each(|_| kept.reminded(|| shared.release_scratch()));
    assert_eq!(kept.bytes(), 4 * COUNT, "it is in use");
    call.withdraw(&shared);
    kept.reminded(|| shared.release_scratch());
    assert_eq!(kept.bytes(), 4 * COUNT, "it was needed a moment ago");
    kept.reminded(|| shared.release_scratch());
    assert_eq!(kept.bytes(), 0);
}

//! How much memory calls take.

use super::super::program::Memory;
use super::*;

#[test]
fn memory_for_what_is_read_is_as_large_as_that() {
    const COUNT: usize = 100;
    let read = |own: &Shared| own.state().staging.iter().map(Scratch::bytes).sum::<usize>();
    std::thread::scope(|scope| {
        for (rank, group) in HostGroup::in_process(3).into_iter().enumerate() {
            scope.spawn(move || {
                let shared = Shared::in_test(group, Arc::default());
                let sum = by_reference(rank, 3, COUNT);
                let (input, mut output) = ([rank as f32; COUNT], [0f32; COUNT]);
                let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                for tag in 0..20 {
                    let binding = binding(&sum, &inputs, &outputs, tag);
                    let work = work(&shared, &binding);
                    let mut call = Call::start(&work).ok().unwrap();
                    // The rank behaves as if there were no memory for copies.
                    call.workspace().memory = Memory::default();
                    while let Some(wait) = call.advance(&work).unwrap() {
                        call.look_around(&work, wait);
                        std::thread::yield_now();
                    }
                    assert_eq!(output, [3f32; COUNT]);
                }
                // The staging memory has room for the two other ranks, in whole cache lines; all calls use the same.
                assert_eq!(read(&shared), 2 * (4 * COUNT).next_multiple_of(64), "rank {rank}");
            });
        }
    });
}

#[test]
fn scratch_memory_is_released_when_no_call_uses_it() {
    const COUNT: usize = 3 << 20;
    let kept = Arc::<Kept>::default();
    let shared = Shared::in_test(HostGroup::in_process(2).remove(0), kept.clone());
    let sum = in_place(0, 2, COUNT);
    let mut output = vec![0f32; COUNT];
    let outputs = [output.as_mut_ptr().cast()];
    let binding = binding(&sum, &[], &outputs, 0);
    let work = work(&shared, &binding);
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

/// Where no process may read another's memory, more long calls than there is memory for wait for each other's end.
#[test]
fn a_call_that_waits_for_memory_of_its_ranks_other_calls_is_woken_when_one_ends() {
    const COUNT: usize = COPIED_BYTES / 4;
    let groups = HostGroup::in_process_without_reads(2);
    let shared: Vec<Shared> = groups.iter().cloned().map(|group| Shared::in_test(group, Arc::default())).collect();
    let sums = [0, 1].map(|rank| sum(rank, 2, COUNT));
    let (input, mut outputs) = (vec![1f32; COUNT], [vec![0f32; COUNT], vec![0f32; COUNT]]);
    let inputs = [input.as_ptr().cast()];
    let outputs = outputs.each_mut().map(|output| [output.as_mut_ptr().cast()]);
    let bindings = |rank: usize| (0..).map(move |tag| (rank, tag));
    let bindings: Vec<Vec<_>> = (0..2)
        .map(|rank| {
            bindings(rank).take(20).map(|(rank, tag)| binding(&sums[rank], &inputs, &outputs[rank], tag)).collect()
        })
        .collect();
    let work = |rank: usize, call: usize| work(&shared[rank], &bindings[rank][call]);
    let mut calls = Vec::new();
    let waits = loop {
        let own = work(0, calls.len());
        let mut call = Call::start(&own).ok().unwrap();
        let wait = call.advance(&own).unwrap().unwrap();
        calls.push(call);
        if matches!(wait, Wait::Earlier { .. }) {
            break wait;
        }
    };
    let last = calls.len() - 1;
    assert!(last > 1, "several have memory");
    let rung = || sys::poll(&[Pollable::Socket(groups[0].doorbell())], Duration::ZERO);
    let mut theirs = Call::start(&work(1, 0)).ok().unwrap();
    while theirs.advance(&work(1, 0)).unwrap().is_some() {
        assert!(calls[0].advance(&work(0, 0)).unwrap().is_some() && !rung());
    }
    assert!(
        !calls[last].is_ready(&work(0, last), waits) && !rung(),
        "the other rank has read all, but the call has not ended"
    );
    assert!(calls[0].advance(&work(0, 0)).unwrap().is_none());
    assert!(rung());
    assert!(calls[last].is_ready(&work(0, last), waits));
    calls.iter_mut().skip(1).for_each(|call| call.withdraw(&shared[0]));
}

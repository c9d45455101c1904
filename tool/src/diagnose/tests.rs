use super::analysis::{Behind, Disagreement, Findings, Stuck, compare};
use super::record::Record;
use super::{ranks, report, timeline};

/// A call in a record: collective, tag, number, state, and for whom it waits.
type Call = (&'static str, u64, u32, &'static str, Option<usize>);

fn record(rank: usize, size: usize, calls: &[Call]) -> Record {
    with_fingerprints(rank, size, calls, |_| 7)
}

fn with_fingerprints(rank: usize, size: usize, calls: &[Call], fingerprint: impl Fn(u32) -> u32) -> Record {
    let entries: Vec<_> = calls
        .iter()
        .enumerate()
        .map(|(index, (collective, tag, number, state, waited_for))| {
            serde_json::json!({
                "record_id": index + 1, "collective": collective, "purpose": "call", "algorithm": "ring",
                "operation": "sum", "input_dtypes": ["Float"], "bytes": 4096, "tag": tag, "number": number,
                "fingerprint": format!("{:016x}", fingerprint(*number)), "time_discovered_started_ns": 1_000_000_000u64,
                "time_discovered_completed_ns": (*state == "completed").then_some(2_000_000_000u64), "state": state,
                "error": (*state == "failed").then_some("TIMEOUT"), "waited_for": waited_for, "waits": "",
            })
        })
        .collect();
    let record = serde_json::json!({
        "version": "1", "rank": rank, "size": size, "time_ns": 5_000_000_000u64, "broken": null, "entries": entries,
    });
    Record::parse(&record.to_string()).unwrap()
}

#[test]
fn a_rank_that_has_not_begun_the_call_of_the_others_is_behind() {
    let ended = ("allreduce", 0, 1, "completed", None);
    let inside = |rank| record(rank, 4, &[ended, ("allreduce", 0, 2, "failed", Some(2))]);
    let records = [inside(0), inside(1), record(2, 4, &[ended]), inside(3)];
    let behind = Behind {
        collective: "allreduce".into(),
        tag: 0,
        number: 2,
        inside: vec![0, 1, 3],
        behind: vec![2],
        elsewhere: vec![],
    };
    assert_eq!(compare(&records), Findings { behind: vec![behind], ..Findings::default() });
    let text = report(&records);
    for line in [
        "4 ranks, of which 4 have a record here",
        "rank 2 is behind: not in allreduce number 2 on tag 0, in which ranks 0, 1 and 3 are",
        "  rank 0: allreduce ring of Float by sum, 4096 bytes, failed (TIMEOUT), started 4.000 s before, waited for rank 2",
        "  rank 2: in no collective; its last was allreduce number 1 on tag 0, ended 3.000 s before",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}\n{text}");
    }
}

#[test]
fn of_several_started_calls_the_first_is_the_one_in_which_a_rank_is_missing() {
    let started = |number, state| ("allreduce", 5, number, state, Some(1));
    let records =
        [record(0, 2, &[started(7, "started"), started(8, "scheduled"), started(9, "scheduled")]), record(1, 2, &[])];
    let found = compare(&records);
    assert_eq!(found.behind.iter().map(|behind| behind.number).collect::<Vec<_>>(), [7]);
}

#[test]
fn a_call_that_is_no_longer_in_a_record_was_made() {
    // Two threads: that of tag 1 waits since long, while rank 1 has ended its part, and made many calls since.
    let records = [
        record(0, 2, &[("broadcast", 1, 3, "started", None), ("allreduce", 0, 9000, "completed", None)]),
        record(1, 2, &[("broadcast", 1, 5000, "completed", None)]),
    ];
    let found = compare(&records);
    assert!(found.behind.is_empty() && found.stuck.len() == 1, "{found:?}");
}

#[test]
fn ranks_in_different_collectives_are_named_with_theirs() {
    let records = [
        record(0, 2, &[("allreduce", 0, 4, "started", Some(1))]),
        record(1, 2, &[("broadcast", 0, 2, "started", Some(0))]),
    ];
    let found = compare(&records);
    let who: Vec<_> = found.behind.iter().map(|one| (&*one.collective, one.behind[0], one.elsewhere.clone())).collect();
    assert_eq!(who, [("allreduce", 1, vec![(1, 0)]), ("broadcast", 0, vec![(0, 0)])]);
    let text = report(&records);
    let instead =
        "  rank 1: in broadcast number 2 on tag 0 instead: in progress, started 4.000 s before, waits for rank 0";
    assert!(text.contains(instead), "{text}");
}

#[test]
fn calls_of_one_number_that_differ_are_a_disagreement() {
    let call = [("allreduce", 0, 6, "failed", None)];
    let records: Vec<_> =
        (0..4).map(|rank| with_fingerprints(rank, 4, &call, |_| if rank == 1 { 8 } else { 7 })).collect();
    let found = compare(&records);
    let groups = vec![vec![0, 2, 3], vec![1]];
    let expected = Disagreement { collective: "allreduce".into(), tag: 0, number: 6, groups };
    assert_eq!(found.disagreements, [expected]);
    let text = report(&records);
    assert!(text.contains("ranks disagree about allreduce number 6 on tag 0"), "{text}");
    assert!(text.contains("  ranks 0, 2 and 3: allreduce ring of Float by sum, 4096 bytes (fingerprint "), "{text}");
}

#[test]
fn in_a_call_that_all_have_begun_those_are_named_that_wait_for_none() {
    let inside = |rank, waited_for| record(rank, 4, &[("allreduce", 0, 1, "started", waited_for)]);
    let records = [inside(0, Some(1)), inside(1, Some(2)), inside(2, None)];
    let stuck = Stuck {
        collective: "allreduce".into(),
        tag: 0,
        number: 1,
        inside: vec![0, 1, 2],
        ended: vec![],
        waits_for_none: vec![2],
    };
    assert_eq!(compare(&records), Findings { stuck: vec![stuck], missing: vec![3], ..Findings::default() });
    let text = report(&records);
    assert!(text.contains("  rank 2 waits for none of the others there"), "{text}");
    assert!(text.contains("rank 3 has no record here"), "{text}");
}

#[test]
fn records_without_a_problem_say_so() {
    let records = [0, 1].map(|rank| record(rank, 2, &[("barrier", 0, 1, "completed", None)]));
    assert_eq!(compare(&records), Findings::default());
    assert!(report(&records).contains("no call is in progress or has failed"));
}

#[test]
fn numbers_wrap() {
    let last = (1 << 24) - 1;
    let records = [
        record(0, 2, &[("barrier", 0, last, "completed", None), ("barrier", 0, 1, "started", None)]),
        record(1, 2, &[("barrier", 0, last, "completed", None)]),
    ];
    assert_eq!(compare(&records).behind.len(), 1);
}

#[test]
fn what_is_not_a_record_is_refused() {
    for (text, why) in [
        ("{", "not a record of a flight recorder"),
        (r#"{"version": "9", "rank": 0, "size": 1, "time_ns": 0, "broken": null, "entries": []}"#, "the version 9"),
        (r#"{"version": "1", "rank": 2, "size": 2, "time_ns": 0, "broken": null, "entries": []}"#, "no rank 2 of 2"),
    ] {
        let error = Record::parse(text).err().unwrap();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn ranks_are_listed() {
    assert_eq!([ranks(&[3]), ranks(&[0, 1]), ranks(&[0, 2, 5])], ["rank 3", "ranks 0 and 1", "ranks 0, 2 and 5"]);
}

#[test]
fn calls_are_shown_from_their_starts_to_their_ends_and_open_ones_until_the_record() {
    let calls = [("allreduce", 0, 1, "completed", None), ("barrier", 0, 1, "started", Some(1))];
    let mut records = [record(0, 2, &calls), record(1, 2, &calls[..1])];
    // A call in shared memory that never waited has an end only.
    records[1].entries[0].time_discovered_started_ns = None;
    let (spans, about) = timeline::spans(&records);
    let shown: Vec<_> = spans.iter().map(|span| (span.rank, &*span.name, span.begin, span.end)).collect();
    let second = 1_000_000_000_000;
    let expected =
        [(0, "allreduce ring", 0, second), (0, "barrier ring", 0, 4 * second), (1, "allreduce ring", second, second)];
    assert_eq!(shown, expected);
    assert_eq!(about["began_ns"], 1_000_000_000);
    assert_eq!((&spans[1].details["state"], &spans[1].details["waited for"]), (&"started".into(), &1.into()));
}

//! What tuning files and overrides select.

use super::*;

#[test]
fn a_subset_of_the_ranks_keeps_the_measurements_between_them_and_uses_choices_for_their_number() {
    let links: Vec<u32> = (0..9).collect();
    let choices = vec![choice(Collective::Allreduce, 3, MIB, "ring"), choice(Collective::Allreduce, 2, MIB, "tree")];
    let tuning = Tuning { links, choices, ..Tuning::default() };
    let whole = tuner(3, tuning.clone(), "allreduce:2Mi-:bcube");
    assert_eq!(names(&whole, &[1000, 2 * MIB]), ["ring", "bcube"]);
    let part = whole.of_ranks(&[2, 0], Topology::one_host(2, 2));
    assert_eq!(part.links(), [8, 6, 2, 0]);
    assert_eq!(names(&part, &[1000, 2 * MIB]), ["tree", "bcube"]);
    assert_eq!(whole.of_ranks(&[1], Topology::one_host(1, 1)).links(), [4]);
    // Measured with as many ranks as the part has, but with others.
    let other = tuner(4, tuning, "");
    assert_eq!((other.links().len(), other.of_ranks(&[0, 1, 2], Topology::one_host(3, 3)).links().len()), (0, 0));
}

#[test]
fn a_file_s_segments_are_within_the_limit() {
    let choice = Choice { segment_bytes: Some(4 * MIB), ..choice(Collective::Allreduce, 4, usize::MAX, "ring") };
    let tuner = tuner(4, Tuning { choices: vec![choice], ..Tuning::default() }, "");
    let decision = tuner.decide(&shape(Collective::Allreduce, 4, 64 * MIB), 1, None).unwrap();
    assert_eq!((decision.algorithm.name, decision.segment_bytes), ("ring", MIB));
    assert_eq!(tuner.explain(Collective::Allreduce, 64 * MIB).chosen.segment_bytes, MIB);
    let smaller = tuner.inherit(1000);
    assert_eq!(smaller.explain(Collective::Allreduce, 64 * MIB).chosen.segment_bytes, 1000);
}

#[test]
#[cfg(unix)]
fn a_file_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff.toml"));
    std::fs::write(&path, "version = 1\ngamma = 1e-9\n").unwrap();
    let source = source::Source::read(&path).unwrap();
    assert_eq!((source.tuning.gamma, source.file), (Some(1e-9), Some(path)));
}

#[test]
fn overrides_take_precedence_over_files_and_files_over_the_model() {
    let allreduce = Collective::Allreduce;
    let choices = vec![
        choice(allreduce, 4, 100, "ring_chunked"),
        choice(allreduce, 4, 1000, "bcube"),
        choice(allreduce, 4, 2000, "auto"),
        choice(Collective::Reduce, 4, MIB, "ring"),
    ];
    let tuning = Tuning { choices, ..Tuning::default() };
    let model = names(&tuner(4, Tuning::default(), ""), &[100, 1000, 1500, 5000]);
    let sizes = [0, 100, 101, 1000, 1500, 5000];
    let with = |overrides| names(&tuner(4, tuning.clone(), overrides), &sizes);
    assert_eq!(with(""), ["ring_chunked", "ring_chunked", "bcube", "bcube", model[2], model[3]]);
    assert_eq!(
        with("reduce:ring,allreduce:100-1000:halving_doubling,allreduce:5000-:ring_segmented,allreduce:5000-:bcube"),
        ["ring_chunked", "halving_doubling", "halving_doubling", "halving_doubling", model[2], "ring_segmented"]
    );
    assert_eq!(with("allreduce:-500:auto")[1], model[0], "auto in an override beats the file, too");
    // The caller's explicit choice takes precedence.
    let tuner = tuner(4, tuning, "allreduce:halving_doubling");
    let named = tuner.decide(&shape(allreduce, 4, 100), 1, Some("recursive_doubling")).unwrap();
    assert_eq!(named.algorithm.name, "recursive_doubling");
    assert!(tuner.decide(&shape(allreduce, 4, 100), 1, Some("rong")).is_err());
}

#[test]
fn the_nearest_number_of_ranks_in_a_file_applies() {
    let allreduce = Collective::Allreduce;
    let choices = vec![
        choice(allreduce, 2, usize::MAX, "ring_chunked"),
        choice(allreduce, 8, usize::MAX, "bcube"),
        choice(allreduce, 12, usize::MAX, "halving_doubling"),
    ];
    let tuning = Tuning { choices, ..Tuning::default() };
    let chosen = |size| names(&tuner(size, tuning.clone(), ""), &[MIB])[0];
    for (size, expected) in [(2, "ring_chunked"), (3, "ring_chunked"), (4, "ring_chunked"), (5, "bcube"), (9, "bcube")]
    {
        assert_eq!(chosen(size), expected, "{size} ranks");
    }
    assert_eq!((chosen(10), chosen(24)), ("halving_doubling", "halving_doubling"));
    let model = names(&tuner(25, Tuning::default(), ""), &[MIB])[0];
    assert_eq!(chosen(25), model, "more than twice as many");
    assert_eq!(chosen(1), "local");
}

#[test]
fn choices_apply_to_the_numbers_of_hosts_of_their_measurements() {
    let on = |hosts, ranks, algorithm| Choice { hosts, ..choice(Collective::Allreduce, ranks, usize::MAX, algorithm) };
    let tuning = Tuning {
        choices: vec![
            on(Some(1), 8, "ring_chunked"),
            on(Some(2), 8, "bcube"),
            on(Some(8), 8, "halving_doubling"),
            on(None, 8, "recursive_doubling"),
        ],
        ..Tuning::default()
    };
    let chosen = |tuning: &Tuning, hosts: usize, each: usize| {
        let hosts = (0..hosts as u32).flat_map(|host| vec![host; each]).collect();
        let tuner = Tuner::new(tuning.clone(), Overrides::default(), Topology::without_shared_memory(hosts, each), MIB);
        names(&tuner, &[MIB])[0]
    };
    for (hosts, each, expected) in [
        (1, 8, "ring_chunked"),
        (2, 4, "bcube"),
        (3, 3, "bcube"),
        (8, 1, "halving_doubling"),
        (16, 1, "halving_doubling"),
        (1, 4, "ring_chunked"),
    ] {
        assert_eq!(chosen(&tuning, hosts, each), expected, "{hosts} hosts of {each}");
    }
    let of_one = Tuning { choices: tuning.choices[..1].to_vec(), ..Tuning::default() };
    assert_eq!(chosen(&of_one, 2, 4), chosen(&Tuning::default(), 2, 4), "the model's");
    let of_any = Tuning { choices: tuning.choices[2..].to_vec(), ..Tuning::default() };
    assert_eq!(chosen(&of_any, 2, 4), "recursive_doubling");
}

#[test]
fn segment_sizes_in_a_file_apply() {
    let with = |segment_bytes| {
        let choices = vec![Choice { segment_bytes, ..choice(Collective::Allreduce, 4, MIB, "ring_segmented") }];
        let decided = tuner(4, Tuning { choices, ..Tuning::default() }, "").decide(
            &shape(Collective::Allreduce, 4, 1000),
            4,
            None,
        );
        decided.unwrap().segment_bytes
    };
    assert_eq!(with(Some(12_345)), 12_345);
    assert!(with(None) <= MIB);
}

#[test]
fn algorithms_in_a_file_that_cannot_run_are_ignored() {
    let choices = vec![choice(Collective::Allreduce, 2, usize::MAX, "local")];
    let tuned = tuner(2, Tuning { choices, ..Tuning::default() }, "");
    assert_eq!(names(&tuned, &[MIB]), names(&tuner(2, Tuning::default(), ""), &[MIB]));
}

#[test]
fn between_hosts_only_a_file_or_a_name_chooses_spanning_trees() {
    let links = vec![0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0];
    let tuner = |hosts: [u32; 4], choices| {
        let topology = Topology::without_shared_memory(hosts.into(), 4);
        Tuner::new(Tuning { links: links.clone(), choices, ..Tuning::default() }, Overrides::default(), topology, MIB)
    };
    let priced = |hosts| {
        let candidates = tuner(hosts, Vec::new()).explain(Collective::Allreduce, MIB).candidates;
        candidates.iter().any(|priced| priced.algorithm.name == "spanning_trees")
    };
    assert!(priced([0; 4]));
    assert!(!priced([0, 0, 1, 1]) && !priced([0, 1, 2, 3]), "the graph does not tell which ranks share a card");
    let chosen = tuner([0, 0, 1, 1], vec![choice(Collective::Allreduce, 4, MIB, "spanning_trees")]);
    assert_eq!(names(&chosen, &[MIB]), ["spanning_trees"]);
}

#[test]
fn a_choice_is_explained() {
    let choices = vec![choice(Collective::Allreduce, 4, 1000, "bcube")];
    let tuner = tuner(4, Tuning { choices, ..Tuning::default() }, "allreduce:5000-:ring_segmented");
    for bytes in [4, 3000, 70_000] {
        let Explanation { chosen, why, candidates } = tuner.explain(Collective::Allreduce, bytes);
        let expected = match bytes {
            4 => Why::File { ranks: 4 },
            3000 => Why::Model,
            _ => Why::Override,
        };
        assert_eq!(why, expected);
        assert_eq!(names(&tuner, &[bytes]), [chosen.algorithm.name]);
        assert!(candidates.is_sorted_by(|a, b| a.total <= b.total));
        let mut listed: Vec<_> = candidates.iter().map(|priced| priced.algorithm.name).collect();
        let mut known: Vec<_> = Collective::Allreduce.algorithms().iter().map(|algorithm| algorithm.name).collect();
        known.retain(|name| !["local", "spanning_trees"].contains(name) && !name.starts_with("shared_"));
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
        if why == Why::Model {
            assert_eq!(candidates[0].total, chosen.total);
        }
    }
}

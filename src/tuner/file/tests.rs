use proptest::prelude::*;

use super::*;

/// A decimal number with as many digits as measurements have.
fn decimal(max: i32) -> impl Strategy<Value = f64> {
    (1..1_000_000_000u32, -12..max).prop_map(|(digits, exponent)| format!("{digits}e{exponent}").parse().unwrap())
}

fn link() -> impl Strategy<Value = Link> {
    let bandwidth = decimal(9).prop_map(|bandwidth| bandwidth.max(1.0));
    (decimal(-3), bandwidth).prop_map(|(latency, bandwidth)| Link { latency, bandwidth })
}

fn choice() -> impl Strategy<Value = Choice> {
    let up_to = prop_oneof![9 => 0..=i64::MAX as usize, 1 => Just(usize::MAX)];
    let algorithm = (0..Collective::ALL.len(), any::<prop::sample::Index>(), any::<bool>());
    let places = (1..10_000usize, prop::option::of(1..100usize));
    (algorithm, places, up_to, prop::option::of(1..=1usize << 40)).prop_map(
        |(which, (ranks, hosts), up_to, segment)| {
            let (collective, index, auto) = (Collective::ALL[which.0], which.1, which.2);
            let algorithm = if auto { AUTO } else { index.get(collective.algorithms()).name };
            Choice { collective, ranks, hosts, up_to, algorithm: algorithm.to_owned(), segment_bytes: segment }
        },
    )
}

fn tuning() -> impl Strategy<Value = Tuning> {
    let (local, remote) = (prop::option::of(link()), prop::option::of(link()));
    let links = (0..5usize).prop_flat_map(|ranks| prop::collection::vec(any::<u32>(), ranks * ranks));
    let constant = (any::<prop::sample::Index>(), decimal(-3)).prop_map(|(index, value)| {
        let Constant { name, range, .. } = index.get(TABLE);
        (*name, value.clamp(*range.start(), *range.end()))
    });
    let constants = prop::collection::vec(constant, 0..4);
    let constants = constants.prop_map(|all| all.into_iter().collect());
    let parts =
        (local, remote, prop::option::of(decimal(-3)), constants, prop::collection::vec(choice(), 0..20), links);
    parts.prop_map(|(local, remote, gamma, constants, choices, links)| {
        let mut tuning = Tuning { local, remote, gamma, constants, choices: Vec::new(), links };
        for choice in choices {
            let of = |other: &Choice| (other.collective, other.ranks, other.hosts, other.up_to);
            if !tuning.choices.iter().any(|other| of(other) == of(&choice)) {
                tuning.choices.push(choice);
            }
        }
        tuning
    })
}

proptest! {
    #[test]
    fn what_was_read_once_is_written_and_read_without_a_change(latency in 1e-9..10.0) {
        let local = Some(Link { latency, bandwidth: 1e9 });
        let once = Tuning::parse(&Tuning { local, ..Tuning::default() }.to_toml()).unwrap();
        prop_assert_eq!(Tuning::parse(&once.to_toml()).unwrap(), once);
    }

    #[test]
    fn written_files_are_read_back_equal(tuning in tuning()) {
        let text = tuning.to_toml();
        let read = Tuning::parse(&text);
        prop_assert!(read.is_ok(), "{read:?} of {text}");
        prop_assert_eq!(read.unwrap(), tuning, "{}", text);
    }

    #[test]
    fn parsing_arbitrary_text_does_not_panic(text in "(version = 1\n)?.{0,200}", at in 0..400usize, byte in any::<char>()) {
        let _ = Tuning::parse(&text);
        let mut written = example().to_toml();
        let at = (0..=at.min(written.len())).rev().find(|at| written.is_char_boundary(*at)).unwrap_or(0);
        written.insert(at, byte);
        let _ = Tuning::parse(&written);
    }
}

fn example() -> Tuning {
    let choice = |hosts, up_to, algorithm: &str, segment_bytes| Choice {
        collective: Collective::Allreduce,
        ranks: 4,
        hosts,
        up_to,
        algorithm: algorithm.into(),
        segment_bytes,
    };
    Tuning {
        local: Some(Link { latency: 12.34e-6, bandwidth: 3.1e9 }),
        remote: Some(Link { latency: 30e-6, bandwidth: 1.25e8 }),
        gamma: Some(1.2e-10),
        constants: BTreeMap::from([("message_cpu_us", 3.5), ("overhead_us", 1.25)]),
        choices: vec![
            choice(Some(2), 8192, "recursive_doubling", None),
            choice(None, usize::MAX, "ring_segmented", Some(262_144)),
        ],
        links: vec![0, 900, 850, 0],
    }
}

#[test]
fn the_written_file_is_readable() {
    let text = r#"# How fast the links are, and which algorithm is best for what.
version = 1

# Time from sending to arrival of an empty message, and bytes per second, each way.
local = { latency_us = 12.34, bandwidth = 3.1e9 }  # between two ranks of one host
remote = { latency_us = 30.0, bandwidth = 1.25e8 }  # between hosts
gamma = 1.2e-10  # seconds to reduce one byte

# Other constants of the cost model, in the units that their names end in.
constants = { message_cpu_us = 3.5, overhead_us = 1.25 }

# Best up to and including so many bytes; beyond the last, the cost model chooses.
choices = [
    { collective = "allreduce", ranks = 4, hosts = 2, up_to = 8192, algorithm = "recursive_doubling" },
    { collective = "allreduce", ranks = 4, algorithm = "ring_segmented", segment_bytes = 262144 },
]

# Bandwidth from each rank (a row) to each (a column), in any unit; 0: no link.
links = [
    [0, 900],
    [850, 0],
]
"#;
    assert_eq!(example().to_toml(), text);
    assert_eq!(Tuning::parse(text).unwrap(), example());
}

#[test]
fn a_file_can_be_written_by_hand() {
    let text = "version = 1\n[local]\nlatency_us = 20\nbandwidth = 1_000_000_000\n\n[[choices]]\nalgorithm = 'binomial'\n\
                collective = 'broadcast'\nup_to = 0x1000\nranks = 2";
    let tuning = Tuning::parse(text).unwrap();
    assert_eq!(tuning.local, Some(Link { latency: 20e-6, bandwidth: 1e9 }));
    assert_eq!((tuning.choices[0].up_to, tuning.choices[0].algorithm.as_str()), (4096, "binomial"));
    assert_eq!(Tuning::parse("version = 1").unwrap(), Tuning::default());
}

#[test]
fn the_smallest_sufficient_bound_applies() {
    let tuning = example();
    let name =
        |ranks, bytes| tuning.choice(Collective::Allreduce, ranks, 2, bytes).map(|choice| choice.algorithm.as_str());
    assert_eq!(name(4, 0), Some("recursive_doubling"));
    assert_eq!(name(4, 8192), Some("recursive_doubling"));
    assert_eq!(name(4, 8193), Some("ring_segmented"));
    assert_eq!(name(4, usize::MAX), Some("ring_segmented"));
    assert_eq!(name(8, 8), None);
    assert_eq!(tuning.choice(Collective::Reduce, 4, 2, 8), None);
    let on_another_number_of_hosts = tuning.choice(Collective::Allreduce, 4, 1, 0).unwrap();
    assert_eq!(on_another_number_of_hosts.algorithm, "ring_segmented");
}

#[test]
fn errors_name_the_line_and_the_key() {
    let choice = |rest: &str| format!("version = 1\nchoices = [\n  {{ {rest} }},\n]\n");
    let cases = [
        ("", "line 1: version: missing; it is 1"),
        ("\nversion = 2", "line 2: version: this is version 2; known is 1"),
        ("version = 'x'", "line 1: version: 'x' is not a whole number, 0 or above"),
        (
            "version = 1\nlocall = 3",
            "line 2: locall: no such key; there are version, local, remote, gamma, constants, choices, links",
        ),
        ("version = 1\nlocal = 3", "line 2: local: 3 is not a table, as { key = value }"),
        ("version = 1\nlocal = { bandwidth = 1 }", "line 2: local: latency_us is missing"),
        ("version = 1\n[local]\nlatency_us = -1.0", "line 3: local.latency_us: -1.0 is not a number of 0e0 to 1e18"),
        ("version = 1\n[local]\nlatency_us = inf", "line 3: local.latency_us: inf is not a number of 0e0 to 1e18"),
        ("version = 1\n[local]\nlatency_us = nan", "line 3: local.latency_us: nan is not a number of 0e0 to 1e18"),
        (
            "version = 1\n[local]\nlatency_us = 1\nbandwidth = 0",
            "line 4: local.bandwidth: 0 is not a number of 1e0 to 1e18",
        ),
        (
            "version = 1\n[local]\nlatency_us = 1\nunit = 0",
            "line 4: local.unit: no such key; there are latency_us, bandwidth",
        ),
        (
            "version = 1\n[constants]\noverhead_us = 1\ngap_ms = 2",
            "line 4: constants.gap_ms: its unit is another one: gap_us",
        ),
        (
            "version = 1\nconstants = { overhead_us = -1 }",
            "line 2: constants.overhead_us: -1 is not a number of 0e0 to 1e9, in µs",
        ),
        (
            "version = 1\nconstants = { overhead_us = '2us' }",
            "line 2: constants.overhead_us: '2us' is not a number of 0e0 to 1e9, in µs",
        ),
        (
            "version = 1\nconstants.core_waiting = 1.5",
            "line 2: constants.core_waiting: 1.5 is not a number of 0e0 to 1e0",
        ),
        ("version = 1\ngamma = true", "line 2: gamma: true is not a number of 0e0 to 1e18"),
        ("version = 1\nlinks = [[0, 1], [0]]", "line 2: links[1]: 1 columns, but there are 2 rows"),
        ("version = 1\nlinks = [[4294967296]]", "line 2: links[0][0]: 4294967296 is not a number below 2^32"),
        ("version = 1\nchoices = {}", "line 2: choices: {} is not an array"),
    ];
    for (text, expected) in cases {
        assert_eq!(Tuning::parse(text).unwrap_err().message(), expected, "{text}");
    }
    let cases = [
        (
            "collective = 'allreduc', ranks = 4, algorithm = 'auto'",
            "line 3: choices[0].collective: 'allreduc' is not one of allreduce, reduce, ",
        ),
        (
            "collective = 'broadcast', ranks = 4, algorithm = 'binomal'",
            "line 3: choices[0].algorithm: broadcast has no algorithm \"binomal\"; the nearest is binomial; it has auto, binomial, ",
        ),
        ("collective = 'broadcast', algorithm = 'auto'", "line 3: choices[0]: ranks is missing"),
        ("collective = 'broadcast', ranks = 0, algorithm = 'auto'", "line 3: choices[0].ranks: 0 is not above 0"),
        ("collective = 'broadcast', ranks = 4, algorithm = 7", "line 3: choices[0].algorithm: 7 is not a string"),
        (
            "collective = 'barrier', ranks = 4, up_to = -1, algorithm = 'auto'",
            "line 3: choices[0].up_to: -1 is not a whole number, 0 or above",
        ),
        (
            "collective = 'barrier', ranks = 4, algorithm = 'auto' }, { collective = 'barrier', ranks = 4, algorithm = 'auto'",
            "line 3: choices[1]: there is a choice for barrier, 4 ranks, up to there already",
        ),
    ];
    for (rest, expected) in cases {
        let error = Tuning::parse(&choice(rest)).unwrap_err();
        assert!(error.message().starts_with(expected), "{error} for {rest}");
    }
    let error = Tuning::parse("version = 1\n[constants]\noverhed_us = 1").unwrap_err();
    let expected = "line 3: constants.overhed_us: no such key; there are overhead_us, gap_us, message_cpu_us, ";
    assert!(error.message().starts_with(expected), "{error}");
    let error = Tuning::parse("version = 1\nlocal = {").unwrap_err();
    assert!(error.message().starts_with("line 2: "), "{error}");
    let error = Tuning::read(Path::new("/nonexistent/tuning.toml")).unwrap_err();
    assert!(
        error.message().starts_with("cannot read the tuning file /nonexistent/tuning.toml: No such file"),
        "{error}"
    );
}

/// None of these may block or be read forever.
#[test]
fn special_and_oversized_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a `CString`, so the pointer refers to a NUL-terminated string that lives during the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
        let error = Tuning::read(path).unwrap_err();
        assert!(error.message().ends_with(&format!("{}: it is not a regular file", path.display())), "{error}");
    }
    let long = folder.path().join("long");
    std::fs::File::create(&long).unwrap().set_len(MAX_BYTES + 1).unwrap();
    let error = Tuning::read(&long).unwrap_err();
    assert!(error.message().ends_with("it has more than 67108864 bytes"), "{error}");
}

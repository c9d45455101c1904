//! Tests of `gloo-rs tune` as a process, and of jobs that use its file.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::launcher::{Job, gloo_rs, text};
use gloo_rs::collective::Collective;
use gloo_rs::tuner::file::Tuning;
use serde_json::Value;
use tempfile::TempDir;

/// Runs a command line, in which `DIR` stands for a directory.
fn run(line: &str, dir: &Path) -> Output {
    let line = line.replace("DIR", dir.to_str().unwrap());
    let args: Vec<_> = line.split_whitespace().collect();
    gloo_rs(&args).env_remove("GLOO_RS_TUNING").env_remove("GLOO_RS_ALGORITHM").output().unwrap()
}

/// The JSON lines of a command that must succeed.
fn json(line: &str, dir: &Path) -> Vec<Value> {
    let output = run(line, dir);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn files(dir: &TempDir) -> Vec<PathBuf> {
    let mut files: Vec<_> = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn it_measures_every_algorithm_and_writes_the_best() {
    let dir = dir();
    let line = "tune -n 2 --collective broadcast,allreduce,barrier --sizes 4,4Ki,256Ki --budget 20 --topology --json \
                --output DIR/t.toml --plot DIR/times.svg";
    let mut rows = json(line, dir.path());
    let summary = rows.pop().unwrap();
    let points: Vec<_> =
        rows.iter().map(|row| (row["collective"].as_str().unwrap(), row["bytes"].as_u64().unwrap())).collect();
    let (small, middle, large) = (4, 4096, 262_144);
    let planned = [
        ("barrier", 0),
        ("allreduce", small),
        ("broadcast", small),
        ("allreduce", middle),
        ("broadcast", middle),
        ("allreduce", large),
        ("broadcast", large),
    ];
    // A slow machine may leave something out.
    let fits = |(collective, bytes): &(&str, u64)| {
        summary["unmeasured"][*collective].as_u64().is_none_or(|from| *bytes < from)
    };
    assert_eq!(points, planned.into_iter().filter(fits).collect::<Vec<_>>());
    for row in &rows {
        assert_eq!((&row["ranks"], &row["verified"]), (&2.into(), &true.into()), "{row}");
        let (best, times) = (row["best"].as_str().unwrap(), row["times_us"].as_object().unwrap());
        let us = |value: &Value| value.as_f64().filter(|us| *us > 0.0).unwrap_or_else(|| panic!("no time in {row}"));
        // An algorithm that auto may not select is not reported as the best.
        let free = |name: &str| name != "spanning_trees";
        assert!(times.iter().all(|(name, time)| !free(name) || us(time) >= us(&row["best_us"])), "{row}");
        assert_eq!(times[best], row["best_us"]);
        assert!((us(&row["ratio"]) * us(&row["best_us"]) / us(&row["auto_us"]) - 1.0).abs() < 1e-9, "{row}");
        assert!(times.contains_key(row["auto"].as_str().unwrap()), "{row}");
        if row["bytes"] == small {
            // At the smallest size none is left out.
            let collective = Collective::ALL.iter().find(|c| row["collective"] == c.name()).unwrap();
            let names: Vec<_> =
                collective.algorithms().iter().filter(|a| !a.uses.needs_shared_memory()).map(|a| a.name).collect();
            let names: Vec<_> = names.into_iter().filter(|name| *name != "local").collect();
            assert!(names.iter().all(|name| times.contains_key(*name)), "{row} has not all of {names:?}");
        }
    }
    assert!(summary["worst_ratio"].as_f64() >= summary["median_ratio"].as_f64(), "{summary}");

    let tuning = Tuning::read(&dir.path().join("t.toml")).unwrap();
    for collective in [Collective::Allreduce, Collective::Broadcast, Collective::Barrier] {
        let largest =
            points.iter().filter(|(name, _)| *name == collective.name()).map(|(_, bytes)| *bytes).max().unwrap();
        for bytes in [0, largest as usize] {
            let choice = tuning.choice(collective, 2, 1, bytes).unwrap_or_else(|| panic!("nothing for {collective:?}"));
            assert!(collective.algorithm(&choice.algorithm).is_ok());
        }
        assert_eq!(tuning.choice(collective, 2, 1, largest as usize + 1), None, "beyond, the model knows better");
    }
    assert!(tuning.links.len() == 4 && tuning.links[0] == 0 && tuning.links[3] == 0, "{:?}", tuning.links);
    assert!(tuning.links[1] > 1 && tuning.links[2] > 1, "{:?}", tuning.links);

    let names: Vec<_> = files(&dir).iter().map(|file| file.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["t.toml", "times-allreduce.svg", "times-broadcast.svg"], "nothing else is left");
    let svg = std::fs::read_to_string(dir.path().join("times-broadcast.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(["broadcast over ", "binomial", "one_to_all", "auto"].iter().all(|part| svg.contains(part)));
}

#[test]
fn a_chart_says_what_carried_the_bytes() {
    for shared in ["0", "1"] {
        let dir = dir();
        let file = dir.path().join("a.svg");
        let args =
            ["tune", "--collective", "broadcast", "--sizes", "4,8", "--budget", "1", "--plot", file.to_str().unwrap()];
        let output = gloo_rs(&args).env("GLOO_RS_SHM", shared).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        let transport = said.split(['\n', ',']).next().unwrap().strip_prefix("# 2 ranks over ").unwrap();
        assert_eq!(transport == "tcp", shared == "0", "{said}");
        let svg = std::fs::read_to_string(file).unwrap();
        assert!(svg.contains(&format!("broadcast over {transport}, 2 ranks")), "{svg}");
    }
}

#[test]
fn a_file_keeps_its_entries_for_other_ranks_and_collectives() {
    let dir = dir();
    let old = "version = 1\ngamma = 1e-10\nchoices = [\n\
               { collective = 'allreduce', ranks = 2, up_to = 999999999, algorithm = 'bcube' },\n\
               { collective = 'allreduce', ranks = 2, hosts = 2, up_to = 7, algorithm = 'bcube' },\n\
               { collective = 'allreduce', ranks = 3, up_to = 5, algorithm = 'bcube' },\n\
               { collective = 'reduce', ranks = 2, up_to = 6, algorithm = 'binomial' },\n]\n";
    std::fs::write(dir.path().join("t.toml"), old).unwrap();
    json("tune --collective allreduce --sizes 4..64 --budget 30 --json --output DIR/t.toml", dir.path());
    let tuning = Tuning::read(&dir.path().join("t.toml")).unwrap();
    let of = |collective, ranks, hosts| {
        let place = (collective, ranks, hosts);
        tuning.choices.iter().filter(move |c| (c.collective, c.ranks, c.hosts) == place).map(|c| c.up_to).max()
    };
    // A slow machine may leave out the larger sizes.
    assert!(of(Collective::Allreduce, 2, Some(1)).is_some_and(|up_to| (4..=64).contains(&up_to)), "{tuning:?}");
    assert_eq!(of(Collective::Allreduce, 2, None), None);
    assert_eq!(of(Collective::Allreduce, 2, Some(2)), Some(7));
    assert_eq!(of(Collective::Allreduce, 3, None), Some(5));
    assert_eq!(of(Collective::Reduce, 2, None), Some(6));
}

#[test]
fn the_budget_ends_it_and_sizes_that_were_left_out_are_named() {
    let dir = dir();
    let line = "tune --collective allreduce,reduce --sizes 4,256Mi --budget 0.2 --output DIR/t.toml";
    let output = run(line, dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let first = said.lines().nth(2).unwrap();
    assert!(first.starts_with("allreduce") && first.ends_with(" yes"), "{said}");
    for collective in ["allreduce", "reduce"] {
        assert!(
            said.contains(&format!("# {collective}: from 256Mi on not measured: --budget does not reach")),
            "{said}"
        );
    }
    let tuning = Tuning::read(&dir.path().join("t.toml")).unwrap();
    assert_eq!(tuning.choices.iter().map(|choice| choice.up_to).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn sizes_that_are_rounded_to_the_same_one_are_measured_once() {
    let dir = dir();
    let rows =
        json("tune -n 3 --collective allgather --sizes 4,8,12 --budget 5 --json --output DIR/t.toml", dir.path());
    let sizes: Vec<_> = rows.iter().filter_map(|row| row["bytes"].as_u64()).collect();
    assert_eq!(sizes, [12], "{rows:?}");
}

#[test]
fn a_launched_job_is_joined() {
    let dir = dir();
    let tool = env!("CARGO_BIN_EXE_gloo-rs");
    let job =
        format!("run -n 3 --no-prefix -- {tool} tune --collective broadcast --sizes 64 --budget 1 --output DIR/t.toml");
    let rows = json(&format!("{job} --json"), dir.path());
    assert_eq!((rows.len(), &rows[0]["ranks"]), (2, &3.into()), "{rows:?}");
    let tuning = Tuning::read(&dir.path().join("t.toml")).unwrap();
    assert!(tuning.choices.iter().all(|choice| choice.ranks == 3));
    let output = run(&format!("{job} -n 2"), dir.path());
    assert!(text(&output.stderr).contains("--ranks is 2, but the job that this is part of has 3"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_job_uses_the_file_that_its_environment_names() {
    let dir = dir();
    let file = dir.path().join("t.toml");
    let choice = |up_to: usize, name: &str| {
        format!("{{ collective = 'allreduce', ranks = 2, up_to = {up_to}, algorithm = '{name}' }},\n")
    };
    let choices = [choice(64, "bcube"), choice(1024, "tree"), choice(4096, "auto")].concat();
    std::fs::write(&file, format!("version = 1\nchoices = [\n{choices}]\n")).unwrap();
    let bench = ["bench", "allreduce", "--sizes", "64,68,4096", "--iterations", "2", "--json"];
    let output = gloo_rs(&bench).env("GLOO_RS_TUNING", &file).env_remove("GLOO_RS_ALGORITHM").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["algorithm"], &lines[1]["algorithm"]), (&"bcube".into(), &"tree".into()));

    // The explanation names the algorithm that runs; for sizes without a choice in the file, the model selects another
    // one.
    let explain = |bytes: &str| {
        json(&format!("info --json --tuning DIR/t.toml --explain allreduce {bytes}"), dir.path()).remove(0)
    };
    let (small, large) = (explain("64"), explain("4Ki"));
    assert_eq!(small["chosen"]["algorithm"], "bcube");
    assert_eq!(small["why"], "the tuning file says so of 2 ranks");
    assert_eq!(large["why"], "it has the lowest price");
    assert_eq!(large["chosen"]["algorithm"], large["candidates"][0]["algorithm"]);
}

#[test]
fn prices_are_explained() {
    let dir = dir();
    let file = "version = 1\nremote = { latency_us = 30, bandwidth = 125e6 }\nconstants.message_cpu_us = 5\nconstants.gap_us = 0.5\n";
    std::fs::write(dir.path().join("t.toml"), file).unwrap();
    let line = "info --explain allreduce 1Mi --hosts 4x8 --cores 8 --tuning DIR/t.toml";
    let report = json(&format!("{line} --json"), dir.path()).remove(0);
    assert_eq!((&report["ranks"], &report["hosts"], &report["bytes"]), (&32.into(), &4.into(), &1048576.into()));
    assert_eq!((&report["remote"]["latency_us"], &report["remote"]["built_in"]), (&30.0.into(), &false.into()));
    assert_eq!(report["local"]["built_in"], true);
    let constant = |name: &str| report["constants"][name].clone();
    assert_eq!(
        (&constant("message_cpu_us")["value"], &constant("message_cpu_us")["built_in"]),
        (&5.0.into(), &false.into())
    );
    assert_eq!((&constant("overhead_us")["value"], &constant("overhead_us")["built_in"]), (&2.0.into(), &true.into()));
    assert_eq!(report["reduction_built_in"], true);
    let candidates = report["candidates"].as_array().unwrap();
    let prices: Vec<_> = candidates.iter().map(|c| c["total_us"].as_f64().unwrap_or(f64::INFINITY)).collect();
    assert!(prices.is_sorted() && prices[0] > 1000.0, "a megabyte takes 8 ms at 1 Gbit/s: {prices:?}");
    for candidate in candidates {
        let us = |field: &str| candidate[field].as_f64().unwrap_or(f64::INFINITY);
        assert!(us("total_us") >= us("path_us").max(us("work_us")), "{candidate}");
    }
    let said = text(&run(line, dir.path()).stdout);
    assert!(said.starts_with("allreduce of 1Mi, 32 ranks on 4 hosts with 8 cores\n"), "{said}");
    assert!(said.contains("remote      30.00 µs, 0.125 GB/s\n"), "{said}");
    let alone = text(&run("info --explain allreduce 4 --ranks 1 --cores 1", dir.path()).stdout);
    assert!(alone.starts_with("allreduce of 4, 1 rank on 1 host with 1 core\n"), "{alone}");
    assert!(said.contains("\na message   2.00 µs of either rank's time (built in), 0.50 µs apart\n"), "{said}");
    assert!(said.contains("\nreduction   20.000 GB/s (built in)\n"), "{said}");
    assert!(said.contains("\nconstants   message_cpu_us = 5; the others are built in\n"), "{said}");
    assert!(candidates.iter().all(|candidate| said.contains(candidate["algorithm"].as_str().unwrap())), "{said}");
    let report = json("info --json --explain allreduce 64Mi --ranks 2 --tuning default", dir.path()).remove(0);
    let scratch = |algorithm: &str| {
        let of = |candidate: &&Value| candidate["algorithm"] == algorithm;
        report["candidates"].as_array().unwrap().iter().find(of).unwrap()["scratch_bytes"].as_u64().unwrap()
    };
    assert_eq!(
        (scratch("shared_flat"), scratch("recursive_doubling"), scratch("ring_segmented")),
        (64 << 20, 64 << 20, 0)
    );
    assert_eq!(
        (&report["chosen"]["algorithm"], &report["chosen"]["scratch_bytes"]),
        (&"shared_slices".into(), &0.into())
    );
    let said = text(&run("info --explain allreduce 64Mi --ranks 2 --tuning default", dir.path()).stdout);
    let row = said.lines().find(|line| line.starts_with("shared_flat ")).unwrap();
    assert!(said.contains("scratch\nshared_slices ") && row.ends_with(" 64Mi"), "{said}");
    let output = gloo_rs(&["info", "--explain", "broadcast", "4"])
        .env("GLOO_RS_ALGORITHM", "broadcast:one_to_all")
        .output()
        .unwrap();
    let chosen = "chosen      one_to_all, segments of up to ";
    assert!(text(&output.stdout).contains(chosen), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains(": the environment variable GLOO_RS_ALGORITHM says so\n"));

    // The message about a bad name, file or list in the environment names the variable, as it names a bad argument.
    std::fs::write(dir.path().join("bad.toml"), "version = 1\n\ngamma = 'fast'\n").unwrap();
    std::fs::write(dir.path().join("unit.toml"), "version = 1\nconstants = { overhead_ms = 2 }\n").unwrap();
    for (name, value, parts) in [
        (
            "GLOO_RS_TUNING",
            "DIR/unit.toml",
            &[
                "GLOO_RS_TUNING: the tuning file ",
                "unit.toml: line 2: constants.overhead_ms: its unit is another one: overhead_us",
            ],
        ),
        (
            "GLOO_RS_TUNING",
            "DIR/bad.toml",
            &["GLOO_RS_TUNING: the tuning file ", "bad.toml: line 3: gamma: 'fast' is not"],
        ),
        ("GLOO_RS_TUNING", "DIR/none", &["GLOO_RS_TUNING: cannot read the tuning file ", "none: No such file"]),
        ("GLOO_RS_ALGORITHM", "allreduce:rong", &["GLOO_RS_ALGORITHM: \"allreduce:rong\"", "no algorithm \"rong\""]),
    ] {
        let value = value.replace("DIR", dir.path().to_str().unwrap());
        let output = gloo_rs(&["info", "--explain", "allreduce", "4"]).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(parts.iter().all(|part| text(&output.stderr).contains(part)), "{}", text(&output.stderr));
    }
    let output = run("info --explain allreduce 4 --ranks 4294967295", dir.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("too many; there can be 65536"), "{}", text(&output.stderr));

    for (line, part) in [
        ("info --explain allreduce 4 --tuning DIR/bad.toml", "--tuning: the tuning file "),
        ("info --explain nonsense 4", "--explain nonsense: there are allreduce, reduce,"),
        ("info --explain allreduce 4Qi", "not a size"),
        ("info --explain allreduce 4 --hosts 4x8 --ranks 7", "4 hosts of 8 ranks are not the 7 ranks"),
        ("info --explain allreduce 4 --tuning DIR/none", "cannot read the tuning file"),
        ("info --explain pairwise_exchange 4 -n 3", "power of two"),
    ] {
        let output = run(line, dir.path());
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output.stderr).contains(part), "{line}: {}", text(&output.stderr));
    }
}

#[test]
fn a_file_s_constants_change_what_is_chosen() {
    let dir = dir();
    std::fs::write(dir.path().join("t.toml"), "version = 1\n[constants]\noverhead_us = 0\ngap_us = 0\n").unwrap();
    let line = "info --json --explain barrier 0 --hosts 256x1 --tuning";
    let chosen = |tuning: &str| json(&format!("{line} {tuning}"), dir.path()).remove(0)["chosen"]["algorithm"].clone();
    assert_eq!((chosen("default"), chosen("DIR/t.toml")), ("dissemination".into(), "all_to_one".into()));
}

#[test]
fn the_explanation_agrees_with_a_job_in_the_same_environment() {
    let dir = dir();
    let file = dir.path().join("t.toml");
    let file_text = "version = 1\nlocal = { latency_us = 1, bandwidth = 7e9 }\n\
                     choices = [{ collective = 'allreduce', ranks = 2, up_to = 64, algorithm = 'bcube' }]\n";
    std::fs::write(&file, file_text).unwrap();
    let explain = |args: &[&str], tuning: &str, algorithm: &str| {
        let mut command = gloo_rs(&[&["info", "--explain", "allreduce", "64"], args].concat());
        let output = command.env("GLOO_RS_TUNING", tuning).env("GLOO_RS_ALGORITHM", algorithm).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let path = file.to_str().unwrap();
    let said = explain(&[], path, "");
    assert!(
        said.contains(&format!("tuning      {path}, as GLOO_RS_TUNING says\nlocal       1.00 µs, 7.000 GB/s\n")),
        "{said}"
    );
    assert!(
        said.contains("chosen      bcube, groups of 2, segments of up to 1Mi: the tuning file says so of 2 ranks\n"),
        "{said}"
    );
    // The list in GLOO_RS_ALGORITHM takes precedence over the file.
    assert!(explain(&[], path, "allreduce:0-64:tree").contains("chosen      tree, "));
    for said in [explain(&["--tuning", "default"], path, ""), explain(&[], "default", "")] {
        assert!(!said.contains("tuning ") && said.contains("local       6.00 µs, 4.000 GB/s (built in)\n"), "{said}");
        assert!(said.contains(": it has the lowest price\n"), "{said}");
    }
    for nothing in ["", "measure"] {
        let said = explain(&[], nothing, "");
        assert!(said.contains("local       6.00 µs, 4.000 GB/s (built in; jobs measure their own)\n"), "{said}");
    }
    assert!(explain(&["--tuning", path], "/nowhere", "").contains(&format!("tuning      {path}, as --tuning says\n")));
}

#[test]
fn interrupted_it_leaves_nothing_behind() {
    let dir = dir();
    let output = dir.path().join("t.toml");
    let args = ["tune", "--collective", "allreduce", "--sizes", "4..16Mi", "--budget", "50", "--output"];
    let job = Job::spawn(gloo_rs(&[&args[..], &[output.to_str().unwrap()]].concat()));
    job.line();
    job.line();
    // A rank is measuring at this point.
    job.line();
    job.signal(libc::SIGINT);
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(128 + libc::SIGINT), "{}", text(&ended.stderr));
    assert_eq!(files(&dir), [] as [PathBuf; 0]);
}

#[test]
fn invalid_arguments_are_refused_before_any_rank_starts() {
    let dir = dir();
    std::fs::write(dir.path().join("bad.toml"), "version = 1\nchoice = []").unwrap();
    std::fs::create_dir(dir.path().join("a-reduce.svg")).unwrap();
    for (line, part) in [
        ("tune --collective nonsense", "there are allreduce, reduce,"),
        ("tune --collective pairwise_exchange -n 3", "power of two"),
        ("tune -n 1", "1 is not in 2.."),
        ("tune --sizes 64Ki..4", "not a range"),
        ("tune --sizes 4..4Qi", "not a size"),
        ("tune --sizes 0", "0 bytes"),
        ("tune --budget soon", "not a number of seconds"),
        ("tune --output DIR/missing/t.toml", "--output: there is no directory "),
        ("tune --output DIR/bad.toml", "bad.toml: line 2: choice: no such key"),
        ("tune --output DIR", "cannot read the tuning file"),
        ("tune --output /proc/t.toml", "--output: cannot write /proc/t.toml: No such file"),
        ("tune --collective scan --plot DIR/missing/t.svg", "missing/t.svg: No such file"),
        ("tune --collective scan --plot DIR", "it is a directory"),
        ("tune --plot DIR/a.svg", "a-reduce.svg: it is a directory"),
        ("tune --collective scan,reduce --plot DIR/a.svg", "a-reduce.svg: it is a directory"),
    ] {
        let output = run(line, dir.path());
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output.stderr).contains(part), "{line}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
    }
}

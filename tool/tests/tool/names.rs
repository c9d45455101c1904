//! What somebody may have misspelt is refused, or named, with the nearest that there is; and where the right names can
//! be found.

use std::process::Output;

use crate::launcher::{gloo_rs, text};

fn run(line: &str) -> Output {
    gloo_rs(&line.split(' ').collect::<Vec<_>>()).output().unwrap()
}

#[test]
fn what_is_wrong_is_named_with_the_nearest_that_is_right() {
    for (line, wrong, right) in [
        ("lisst", "'lisst'", "'list'"),
        ("run -n 1 --gracee 1 true", "'--gracee'", "'--grace'"),
        ("run -n 1 --timeout 5s true", "\"5s\"", "number of seconds"),
        ("run -n 1 --bind-to cores true", "'cores'", "'core'"),
        ("bench allreduce --size 4", "'--size'", "'--sizes'"),
        ("bench alreduce", "'alreduce'", "the nearest is allreduce"),
        ("bench sendrec", "'sendrec'", "the nearest is sendrecv"),
        ("bench allreduce --sizes 4..1Mx", "\"1Mx\"", "not a size"),
        ("bench allreduce --algorithm rng", "\"rng\"", "; the nearest is ring;"),
        ("bench allreduce --dtype flaot32", "\"flaot32\"", "the nearest is float32"),
        ("bench allreduce --op summ", "\"summ\"", "the nearest is sum"),
        ("bench allreduce --transport ibverb", "'ibverb'", "'ibverbs'"),
        ("tune --collective alltoal", "'alltoal'", "the nearest is alltoall"),
        ("tune --plot a.jpg", "JPG", "a.svg"),
        ("info --explain alreduce 4", "alreduce", "the nearest is allreduce"),
        ("list --explain ring_segmentd", "'ring_segmentd'", "the nearest is ring_segmented"),
        ("simulate allreduce -n 4 --bandwidth 10", "\"10\"", "write 10GB/s"),
        ("simulate allreduce -n 4 --alpha 10", "\"10\"", "write 10us"),
        ("simulate allreduce -n 4 --gamma 2", "\"2\"", "write 2ns"),
        ("simulate allreduce -n 4 --intra 1us,100", "\"100\"", "write 100GB/s"),
        ("simulate allreduce -n 4 --element flot32", "\"flot32\"", "the nearest is float32"),
        ("simulate allreduce -n 4 --plot a.pdf", "PDF", "a.svg"),
        ("plot a.png", "PNG", "a.svg"),
    ] {
        let output = run(line);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{line}: {said}");
        assert!(said.contains(wrong) && said.contains(right), "{line}: {said}");
    }
}

#[test]
fn variables_that_nothing_reads_are_named() {
    let said = "nothing reads the variable GLOO_RS_TIMEOT; the nearest is GLOO_RS_TIMEOUT\n";
    for (line, log) in [
        ("run -n 2 true", ""),
        ("run -n 2 -x GLOO_RS_TIMEOT=9 true", ""),
        ("bench barrier --iterations 1", ""),
        ("bench barrier --iterations 1", "warning"),
        ("info", ""),
    ] {
        let mut command = gloo_rs(&line.split(' ').collect::<Vec<_>>());
        if !line.contains("-x") {
            command.env("GLOO_RS_TIMEOT", "9");
        }
        let output = command.env("GLOO_RS_LOG", log).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        // Once; and by the device of each rank, if it has a log.
        let expected = if log.is_empty() {
            vec![format!("gloo-rs: {said}")]
        } else {
            vec![format!("gloo_rs: warning: {said}"); 2]
        };
        match line {
            "info" => assert!(text(&output.stdout).contains(&format!("\nvariables   {said}")), "{output:?}"),
            _ => {
                let errors = text(&output.stderr);
                // Time, host and process stand before what the library says.
                let lines = errors.lines().map(|line| format!("{}\n", &line[line.find("gloo_rs: ").unwrap_or(0)..]));
                let lines: Vec<_> = lines.collect();
                assert!(expected.iter().all(|line| lines.contains(line)), "{line}: {errors}");
                assert_eq!(lines.len(), if log.is_empty() { 1 } else { 3 }, "{line}: {errors}");
            }
        }
    }
    let output = gloo_rs(&["run", "-n", "1", "true"]).env("GLOO_RS_LOG", "warning").output().unwrap();
    assert_eq!(text(&output.stderr), "", "it is known");
}

#[test]
fn an_algorithm_is_explained_in_three_lines() {
    let output = run("list --explain hierarchical_direct");
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 4 && lines[0] == "hierarchical_direct, of allreduce", "{said}");
    assert!(
        ["does ", "best ", "costs "].iter().zip(&lines[1..]).all(|(label, line)| line.starts_with(label)),
        "{said}"
    );
}

#[test]
fn help_is_not_wider_than_a_terminal_and_has_examples() {
    for command in ["run", "bench", "tune", "info", "list", "simulate", "plot", "top"] {
        let output = run(&format!("{command} --help"));
        let said = text(&output.stdout);
        let examples = said.split_once("Examples:\n").map_or("", |(_, examples)| examples);
        assert!(examples.contains(&format!("gloo-rs {command} ")), "{command}: {said}");
        let widest = said.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 120, "{command}: {widest}");
    }
}

#[test]
fn man_pages_and_completions_are_of_the_commands_that_people_use() {
    let folder = tempfile::tempdir().unwrap();
    let share = folder.path().join("share");
    let output = gloo_rs(&["pages", share.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let read = |name: &str| std::fs::read_to_string(share.join(name)).unwrap();
    let pages =
        std::fs::read_dir(share.join("man/man1")).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<_> = pages.collect();
    pages.sort();
    let names = ["-bench", "-diagnose", "-info", "-list", "-plot", "-run", "-simulate", "-top", "-tune", ""];
    assert_eq!(pages, names.map(|name| format!("gloo-rs{name}.1")));
    assert!(read("man/man1/gloo-rs-run.1").contains("max\\-restarts"));
    for file in
        ["bash-completion/completions/gloo-rs", "zsh/site-functions/_gloo-rs", "fish/vendor_completions.d/gloo-rs.fish"]
    {
        let text = read(file);
        assert!(text.contains("max-restarts"), "{file}");
    }
    let output = gloo_rs(&["pages", "/proc/share"]).output().unwrap();
    assert!(text(&output.stderr).contains("cannot write below /proc/share: "), "{output:?}");
}

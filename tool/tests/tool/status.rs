//! The tool's exit statuses, and output that cannot be written: the same for every command.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use crate::launcher::{gloo_rs, text};

/// The command line is invalid.
const USAGE: i32 = 2;
/// The command failed.
const FAILED: i32 = 1;

fn command(line: &str) -> Command {
    gloo_rs(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn a_wrong_command_line_ends_with_2_and_a_failure_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "this is no tuning file, no list of hosts = and no links\n").unwrap();
    let file = file.display().to_string();
    // The command line, the exit status, and a part of the message.
    let cases = [
        ("", USAGE, "Usage"),
        ("dance", USAGE, "dance"),
        ("--help", 0, ""),
        ("--version", 0, ""),
        ("run -n 1 true", 0, ""),
        ("run -n 0 true", USAGE, "0"),
        ("run -n 1", USAGE, "PROGRAM"),
        ("run --grace never -n 1 true", USAGE, "seconds"),
        ("run --hosts /nowhere true", USAGE, "/nowhere"),
        ("run --hosts FILE true", USAGE, "--hosts"),
        ("run --hosts FILE --ssh=\t true", USAGE, "there is no command in it"),
        ("run -n 1 -x =VALUE true", USAGE, "a variable has a name"),
        ("run -n 1 -x NO_SUCH_VARIABLE true", USAGE, "NO_SUCH_VARIABLE is not set here"),
        ("run -n 1 -x RANK=3 true", USAGE, "itself gives each rank its RANK"),
        ("run -n 1 -x GLOO_RS_STORE=file:///x true", USAGE, "itself gives each rank its GLOO_RS_STORE"),
        ("run -n 1 -x GLOO_RS_TIMEOUT=3 --start-timeout 4 true", USAGE, "--start-timeout sets it as well"),
        ("run -n 1 -x GLOO_RS_TRANSPORT=tcp --tls true", USAGE, "--tls sets it as well"),
        ("run -n 1 -- sh -c exit\t7", 7, "exited with status 7"),
        ("run -n 1 /nowhere/program", 127, "No such file"),
        ("run -n 1 /dev/null", 126, "ermission denied"),
        ("run -n 3 --bind-to core true", 0, ""),
        ("node --what", USAGE, "--what"),
        ("node", FAILED, ""),
        ("bench allreduce --sizes 4 --iterations 1", 0, ""),
        ("bench dance", USAGE, "there are allreduce"),
        ("bench allreduce --sizes 0", USAGE, "--sizes"),
        ("bench allreduce --algorithm dance", USAGE, "no algorithm"),
        ("bench allreduce --algorithm local", USAGE, "local"),
        ("bench allreduce --interface eth0,,", USAGE, "--interface"),
        ("bench allreduce --interface 198.51.100.0/24 --sizes 4", FAILED, "198.51.100.0/24"),
        ("run -n 2 -- GLOO bench allreduce --ranks 3", USAGE, "--ranks is 3"),
        ("run -n 2 -- GLOO bench allreduce --algorithm local", USAGE, "local"),
        ("tune --collective dance", USAGE, "there are allreduce"),
        ("tune --ranks 1", USAGE, "1"),
        ("tune --ranks 6 --collective pairwise_exchange", USAGE, "pairwise_exchange"),
        ("tune --output /nowhere/file", USAGE, "/nowhere"),
        ("tune --output FILE", USAGE, "FILE"),
        ("tune --interface 198.51.100.0/24", FAILED, "198.51.100.0/24"),
        ("run -n 2 -- GLOO tune --ranks 3", USAGE, "--ranks is 3"),
        ("run -n 1 -- GLOO tune", USAGE, "one rank alone"),
        ("info", 0, ""),
        ("info --interface eth0,,", USAGE, "--interface"),
        ("info --interface 198.51.100.0/24", FAILED, "198.51.100.0/24"),
        ("info --store carrier-pigeon://host", USAGE, "--store"),
        ("info --store tcp://host.invalid:1", FAILED, "host.invalid"),
        ("info --explain dance 4", USAGE, "there are allreduce"),
        ("info --explain allreduce many", USAGE, "many"),
        ("info --explain allreduce 4 --hosts 2x2 --ranks 5", USAGE, "5"),
        ("info --explain pairwise_exchange 4 --ranks 3", USAGE, "power of two"),
        ("info --explain allreduce 4 --tuning FILE", USAGE, "FILE"),
        ("list", 0, ""),
        ("list --what", USAGE, "--what"),
        ("simulate allreduce --ranks 4", 0, ""),
        ("simulate dance --ranks 4", USAGE, "there are allreduce"),
        ("simulate allreduce --ranks 4 --root 4", USAGE, "--root"),
        ("simulate allreduce --ranks 4 --algorithm local", USAGE, "local"),
        ("simulate pairwise_exchange --ranks 3", USAGE, "power of two"),
        ("simulate allreduce --ranks 4 --links FILE", USAGE, "--links"),
        ("simulate allreduce --ranks 4 --plot /nowhere/a.svg", USAGE, "/nowhere"),
        ("simulate allreduce --algorithm ring_segmented --ranks 512 --memory 1Mi", FAILED, "1 MiB"),
        ("plot", USAGE, "FILE"),
        ("plot /nowhere/a.svg", USAGE, "/nowhere"),
        ("plot /dev/null", FAILED, "standard input is not a chart"),
    ];
    let tool = env!("CARGO_BIN_EXE_gloo-rs");
    for (line, status, said) in cases {
        let words: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let real = |word: &&str| match *word {
            "GLOO" => tool.to_owned(),
            word => word.replace("FILE", &file).replace('\t', " "),
        };
        let words: Vec<_> = words.iter().map(real).collect();
        let output = gloo_rs(&words.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}: {errors}");
        let said = if said == "FILE" && words.iter().any(|word| word == &file) { &file } else { said };
        assert!(errors.contains(said), "{line}: {errors:?} does not say {said:?}");
        // The launcher returns a rank's own status.
        assert_eq!(errors.is_empty(), status == 0 || line == "node", "{line}: {errors}");
    }
}

#[test]
fn an_invalid_environment_variable_is_a_failure() {
    let output = command("info --explain allreduce 4").env("GLOO_RS_TUNING", "/nowhere/file").output().unwrap();
    assert_eq!(output.status.code(), Some(FAILED), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("/nowhere/file"));
    for line in ["bench allreduce", "tune", "run --hosts /nowhere/file true"] {
        let output = command(line).env("GLOO_RS_TIMEOUT", "5m").output().unwrap();
        assert_eq!(output.status.code(), Some(FAILED), "{line}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr).matches("GLOO_RS_TIMEOUT is \"5m\"").count(), 1, "{}", text(&output.stderr));
    }
}

#[test]
fn the_timeout_of_the_environment_is_that_of_a_command_that_names_none() {
    for line in ["bench allreduce", "tune"] {
        // Rank 0 waits for another one.
        let mut command = command(line);
        command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("GLOO_RS_STORE", "tcp://127.0.0.1:0")]);
        let output = command.env("GLOO_RS_TIMEOUT", "0.5").output().unwrap();
        assert_eq!(output.status.code(), Some(FAILED), "{line}: {}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("after 500ms, 1 of 2 ranks have not arrived"),
            "{line}: {}",
            text(&output.stderr)
        );
    }
}

/// Every command that writes to standard output, with the options that change the format.
const WRITING: [&str; 14] = [
    "--help",
    "--version",
    "bench --help",
    "run -n 2 -- echo text",
    "bench allreduce --sizes 4 --iterations 1",
    "bench allreduce --sizes 4,8 --iterations 1 --json",
    "tune --collective allreduce --sizes 4 --budget 1",
    "tune --collective allreduce --sizes 4 --budget 1 --json",
    "info",
    "info --json",
    "info --explain allreduce 4",
    "list",
    "simulate allreduce --ranks 4",
    "simulate allreduce --ranks 4 --bytes 4,8 --compare --json",
];

#[test]
fn output_that_cannot_be_written_is_a_failure_with_its_reason() {
    for line in WRITING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(line).stdout(full).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(FAILED), "{line}: {errors}");
        let said = "gloo-rs: cannot write to standard output: No space left on device";
        assert_eq!(errors.matches(said).count(), 1, "{line}: {errors}");
    }
}

#[test]
fn a_command_whose_reader_has_ended_ends_silently() {
    for line in WRITING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let Output { status, stderr, .. } = command(line).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        // Either killed by SIGPIPE itself, or a launcher with the status of ranks that were. `echo` may end before the
        // signal.
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        assert!(
            code == Some(128 + libc::SIGPIPE) || line.ends_with("echo text") && code == Some(0),
            "{line}: {status}"
        );
        assert_eq!(text(&stderr), "", "{line}");
    }
}

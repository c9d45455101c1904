//! Tests of `gloo-rs run` as a process, with shell programs as ranks.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use std::thread;

use crate::launcher::{Job, assert_ends, gloo_rs, kill, sorted_lines, text};

/// `script` in every rank.
fn command(ranks: usize, options: &[&str], script: &str) -> Command {
    let ranks = ranks.to_string();
    gloo_rs(&[&["run", "-n", &ranks], options, &["--", "sh", "-c", script]].concat())
}

/// Runs `script` in every rank, to the end.
fn run(ranks: usize, options: &[&str], script: &str) -> Output {
    command(ranks, options, script).output().unwrap()
}

fn start(ranks: usize, options: &[&str], script: &str) -> Job {
    Job::spawn(command(ranks, options, script))
}

#[test]
fn each_job_gets_its_own_token() {
    let script = "echo token=$GLOO_RS_TOKEN";
    let tokens = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let tokens: Vec<_> = text.lines().map(|line| line.split_once('=').unwrap().1.to_owned()).collect();
        assert!(tokens.len() == 3 && tokens.iter().all(|token| *token == tokens[0]), "{text}");
        tokens[0].clone()
    };
    let (one, other) = (tokens(run(3, &[], script)), tokens(run(3, &[], script)));
    assert!(one != other && one.len() == 64, "{one} {other}");
}

#[test]
fn every_rank_finds_its_position_in_its_environment() {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $GLOO_RS_STORE";
    let output = run(3, &[], script);
    assert!(output.status.success());
    let lines = sorted_lines(&output.stdout);
    let port: u16 = lines[0].split(' ').nth(6).unwrap().parse().unwrap();
    assert!(port > 0);
    let expected: Vec<_> =
        (0..3).map(|rank| format!("[{rank}] {rank} 3 {rank} 3 127.0.0.1 {port} tcp://127.0.0.1:{port}")).collect();
    assert_eq!(lines, expected);
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_time_to_start_is_passed_on() {
    let output = run(2, &["--no-prefix", "--start-timeout", "2.5"], "echo $GLOO_RS_TIMEOUT");
    assert_eq!(text(&output.stdout), "2.5\n2.5\n");
    let output = run(1, &["--start-timeout", "0"], "true");
    assert!(text(&output.stderr).contains("from 0.001"), "{output:?}");
}

#[test]
fn ranks_let_the_launcher_and_its_descendants_trace_them_unless_the_user_says_otherwise() {
    let script = "[ $GLOO_RS_PTRACER = $PPID ] && echo launcher || echo $GLOO_RS_PTRACER";
    // The number of any other process would be one of another launcher, or of another host.
    for (given, expected) in [("", "launcher"), ("1", "launcher"), ("any", "any"), ("0", "0")] {
        let output = command(1, &["--no-prefix"], script).env("GLOO_RS_PTRACER", given).output().unwrap();
        assert_eq!(text(&output.stdout), format!("{expected}\n"), "{given:?}");
        let variable = format!("GLOO_RS_PTRACER={given}");
        assert_eq!(
            text(&run(1, &["--no-prefix", "-x", &variable], script).stdout),
            format!("{expected}\n"),
            "{given:?}"
        );
    }
}

#[test]
fn the_port_is_free_for_rank_0() {
    let output = run(1, &["--no-prefix"], "printf $MASTER_PORT");
    let port: u16 = text(&output.stdout).parse().unwrap();
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn output_and_errors_stay_separate_and_an_unfinished_line_is_not_lost() {
    let output = run(2, &[], "printf 'a\\nb'; printf 'c\\nd' >&2");
    assert_eq!(sorted_lines(&output.stdout), ["[0] a", "[0] b", "[1] a", "[1] b"]);
    assert_eq!(sorted_lines(&output.stderr), ["[0] c", "[0] d", "[1] c", "[1] d"]);
    assert!(output.stdout.ends_with(b"b\n"));
}

#[test]
fn lines_come_whole_and_in_order_from_ranks_that_write_much() {
    let output = run(4, &[], "seq 1 20000");
    for rank in 0..4 {
        let mark = format!("[{rank}] ");
        let numbers: Vec<u32> =
            text(&output.stdout).lines().filter_map(|line| line.strip_prefix(&mark)?.parse().ok()).collect();
        assert!(numbers.iter().copied().eq(1..=20_000), "rank {rank} wrote {} lines", numbers.len());
    }
}

#[test]
fn bytes_that_are_not_text_are_unchanged() {
    let output = run(1, &[], "printf '\\377\\000\\200\\nx\\r\\n'");
    assert_eq!(output.stdout, b"[0] \xff\x00\x80\n[0] x\r\n");
}

#[test]
fn without_prefix_the_output_is_the_programs_own() {
    let output = run(1, &["--no-prefix"], "printf 'a\\nb'; printf c >&2");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (b"a\nb".as_slice(), b"c".as_slice()));
}

#[test]
fn a_line_is_written_as_soon_as_it_is_complete() {
    let mut job = start(1, &[], "echo first; sleep 60");
    assert_eq!(job.line(), "[0] first");
    assert!(job.launcher.try_wait().unwrap().is_none());
    job.signal(libc::SIGTERM);
    assert_eq!(job.end().status.code(), Some(128 + libc::SIGTERM));
}

#[test]
fn rank_0_reads_standard_input_and_the_others_read_nothing() {
    let mut command = gloo_rs(&["run", "-n", "2", "--", "sh", "-c", "cat"]);
    let mut launcher = command.stdin(Stdio::piped()).spawn().unwrap();
    launcher.stdin.take().unwrap().write_all(b"to rank 0\n").unwrap();
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), "[0] to rank 0\n");
}

#[test]
fn when_one_rank_fails_the_others_end_with_all_they_started() {
    // Rank 1 fails after both others have printed their process ids.
    let script = "if [ $RANK = 1 ]; then exec 3<>$FIFO; read line <&3; read line <&3; exit 42; fi
        sleep 60 & echo $$; echo $!; echo ready > $FIFO; wait";
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let output = gloo_rs(&["run", "-n", "3", "--", "sh", "-c", script]).env("FIFO", &fifo).output().unwrap();
    assert_eq!(output.status.code(), Some(42));
    let said = text(&output.stderr);
    assert!(said.contains("gloo-rs: rank 1 (pid ") && said.contains(") exited with status 42\n"), "{said}");
    let pids: Vec<i32> =
        text(&output.stdout).lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(pids.len(), 4);
    pids.into_iter().for_each(assert_ends);
}

#[test]
fn a_rank_killed_by_a_signal_is_named_with_the_signal() {
    let output = run(3, &[], "echo $$; if [ $RANK = 2 ]; then kill -9 $$; fi; exec sleep 60");
    assert_eq!(output.status.code(), Some(128 + 9));
    let killed = text(&output.stdout).lines().find_map(|line| line.strip_prefix("[2] ")?.parse::<i32>().ok()).unwrap();
    let said = text(&output.stderr);
    assert!(said.contains(&format!("gloo-rs: rank 2 (pid {killed}) was killed by signal 9 (SIGKILL)\n")), "{said}");
}

#[test]
fn ranks_that_do_not_end_on_sigterm_are_killed() {
    let script = "if [ $RANK = 0 ]; then read line < $FIFO; exit 3; fi
        trap '' TERM; echo $$; echo ready > $FIFO; while :; do sleep 1; done";
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let args = ["run", "-n", "2", "--grace", "0.2", "--", "sh", "-c", script];
    let output = gloo_rs(&args).env("FIFO", &fifo).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let pid: i32 = text(&output.stdout).trim().strip_prefix("[1] ").unwrap().parse().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains(&format!("rank 1 (pid {pid}) did not end within 0.2 s of SIGTERM; killing it")), "{said}");
    assert_ends(pid);
}

#[test]
fn ranks_may_use_the_grace_period_after_sigterm() {
    let script = "trap 'echo saved; exit 0' TERM
        if [ $RANK = 0 ]; then read line < $FIFO; exit 3; fi
        echo ready > $FIFO; while :; do sleep 0.01; done";
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let args = ["run", "-n", "2", "--grace", "60", "--", "sh", "-c", script];
    let output = gloo_rs(&args).env("FIFO", &fifo).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "[1] saved\n");
}

#[test]
fn signals_are_passed_on_to_all_ranks() {
    let script = "n=0; for s in HUP INT TERM USR1 USR2; do trap \"n=\\$((n + 1)); echo got $s\" $s; done
        echo ready; while [ $n -lt 5 ]; do sleep 0.01; done; exit 0";
    let job = start(3, &["--grace", "60"], script);
    (0..3).for_each(|_| assert!(job.line().ends_with(" ready")));
    let signals = [
        (libc::SIGHUP, "HUP"),
        (libc::SIGINT, "INT"),
        (libc::SIGTERM, "TERM"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
    ];
    for (signal, name) in signals {
        job.signal(signal);
        let lines: BTreeSet<_> = (0..3).map(|_| job.line()).collect();
        let expected: BTreeSet<_> = (0..3).map(|rank| format!("[{rank}] got {name}")).collect();
        assert_eq!(lines, expected);
    }
    assert!(job.end().status.success());
}

/// Sends `signal` to a job whose ranks ignore `ignored`, and returns how it ended.
fn interrupt(ignored: &str, signal: i32) -> (Vec<i32>, Output) {
    let script = format!("trap '' {ignored}; echo $$; while :; do sleep 1; done");
    let job = start(2, &["--grace", "0.2"], &script);
    let pids = job.pids(2);
    job.signal(signal);
    (pids, job.end())
}

#[test]
fn ranks_that_ignore_an_interrupt_are_ended_after_the_grace_period() {
    for (ignored, signal, name) in
        [("INT", libc::SIGINT, "SIGINT"), ("INT TERM", libc::SIGINT, "SIGINT"), ("TERM", libc::SIGTERM, "SIGTERM")]
    {
        let (pids, output) = interrupt(ignored, signal);
        assert_eq!(output.status.code(), Some(128 + signal), "{ignored}");
        let said = text(&output.stderr);
        assert!(said.contains(&format!("2 ranks still running 0.2 s after {name}; ending them")), "{said}");
        assert_eq!(said.contains("did not end within 0.2 s of SIGTERM; killing it"), ignored != "INT", "{said}");
        pids.into_iter().for_each(assert_ends);
    }
}

#[test]
fn a_signal_that_the_launcher_ignores_has_no_effect() {
    let script = "echo ready; read line < $FIFO; echo done";
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let tool = env!("CARGO_BIN_EXE_gloo-rs");
    let args =
        ["-c", "trap '' HUP; exec \"$@\"", "sh", tool, "run", "-n", "1", "--grace", "0", "--", "sh", "-c", script];
    let mut command = Command::new("sh");
    command.args(args).env("FIFO", &fifo).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let job = Job::spawn(command);
    assert!(job.line().ends_with(" ready"));
    job.signal(libc::SIGHUP);
    std::fs::write(&fifo, "on\n").unwrap();
    assert_eq!(job.line(), "[0] done");
    assert!(job.end().status.success());
}

#[test]
fn an_interrupt_ends_the_job_with_its_own_status() {
    let job = start(2, &[], "echo ready; exec sleep 60");
    (0..2).for_each(|_| assert!(job.line().ends_with(" ready")));
    job.signal(libc::SIGINT);
    let output = job.end();
    assert_eq!(output.status.code(), Some(128 + libc::SIGINT));
    assert!(text(&output.stderr).contains("was killed by signal 2 (SIGINT)"));
}

#[test]
fn no_rank_survives_the_launcher() {
    let job = start(3, &[], "echo $$; exec sleep 60");
    let pids = job.pids(3);
    job.signal(libc::SIGKILL);
    job.end();
    pids.into_iter().for_each(assert_ends);
}

#[test]
fn ranks_get_the_same_descriptors_and_signals_as_without_a_launcher() {
    // `echo` is a shell builtin, so this lists the shell's descriptors. 31: signals above are the C library's own.
    let script = "echo /proc/self/fd/*
        while read key value; do case $key in SigBlk:|SigIgn:) echo $key $((0x$value & 0x7fffffff));; esac
        done < /proc/self/status";
    let direct = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output().unwrap();
    let expected: Vec<_> = text(&direct.stdout).lines().map(str::to_owned).collect();
    assert_eq!(expected.len(), 3, "{expected:?}");
    let launched = text(&run(4, &[], script).stdout);
    for rank in 0..4 {
        let mark = format!("[{rank}] ");
        let lines: Vec<_> = launched.lines().filter_map(|line| line.strip_prefix(&mark)).collect();
        assert_eq!(lines, expected, "rank {rank}");
    }
}

#[test]
fn a_program_that_does_not_exist_is_reported_and_leaves_no_rank() {
    let output = gloo_rs(&["run", "-n", "2", "/nowhere/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("cannot start rank 0: /nowhere/program: No such file"));
    let output = gloo_rs(&["run", "-n", "2", "/dev/null"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn ranks_get_sigpipe_if_the_output_is_not_read() {
    let mut launcher = gloo_rs(&["run", "-n", "2", "yes"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.ends_with("] y\n"), "{line}");
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + libc::SIGPIPE));
    assert_eq!(text(&output.stderr), "", "as without a launcher between");
}

#[test]
fn a_background_process_that_keeps_the_output_open_does_not_delay_the_end_of_a_job() {
    let job = start(2, &[], "sleep 60 & echo $!");
    let pids = job.pids(2);
    assert!(job.end().status.success());
    for pid in pids {
        kill(pid, libc::SIGKILL);
    }
}

#[test]
fn arguments_of_the_program_are_not_taken_for_the_tools_own() {
    let output = gloo_rs(&["run", "-n", "1", "echo", "-n", "--no-prefix", "x"]).output().unwrap();
    assert_eq!(text(&output.stdout), "[0] --no-prefix x\n");
    let output = gloo_rs(&["run", "-np", "2", "--no-prefix", "echo", "-np", "x"]).output().unwrap();
    assert_eq!(text(&output.stdout), "-np x\n-np x\n");
    assert_eq!(gloo_rs(&["run", "-n", "0", "true"]).output().unwrap().status.code(), Some(2));
    assert_eq!(gloo_rs(&["run", "-n", "2"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn an_option_that_is_unknown_does_not_become_the_program() {
    let program = ["echo", "started"];
    for (options, parts) in [
        (&["-n", "1", "--no-prefx"][..], &["'--no-prefx'", "'--no-prefix'"][..]),
        (&["-n", "1", "--bogus"], &["'--bogus'", "'-- --bogus'"]),
        (&["-n", "1", "-q"], &["'-q'"]),
        (&["-np", "x"], &["'x'", "--ranks"]),
    ] {
        let output = gloo_rs(&[&["run"], options, &program].concat()).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{options:?}: {output:?}");
        assert!(parts.iter().all(|part| said.contains(part)), "{options:?}: {said}");
    }
    // What begins with a dash can be a program all the same.
    let output = gloo_rs(&["run", "-n", "1", "--", "-echo"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
}

#[test]
fn a_job_ends_when_its_time_is_over() {
    let output = run(2, &["--timeout", "0.05"], "exec sleep 60");
    assert_eq!(output.status.code(), Some(124));
    let said = text(&output.stderr);
    assert!(said.contains("2 ranks still running after 0.05 s (--timeout); ending them"), "{said}");
    let output = run(2, &["--timeout", "3600"], "exit 0");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn what_each_rank_writes_is_also_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("new").join("logs");
    let at = logs.display().to_string();
    let output = run(2, &["--log-dir", &at], "printf 'a\\nb'; printf '\\377\\r' >&2");
    assert_eq!(sorted_lines(&output.stdout), ["[0] a", "[0] b", "[1] a", "[1] b"]);
    let read = |name: &str| std::fs::read(logs.join(name)).unwrap();
    for rank in 0..2 {
        assert_eq!(read(&format!("rank-{rank}.out")), b"a\nb");
        assert_eq!(read(&format!("rank-{rank}.err")), b"\xff\r");
    }
    // Without prefixes, and from the beginning.
    let output = run(1, &["--no-prefix", "--log-dir", &at], "printf c");
    assert_eq!((output.stdout, read("rank-0.out")), (b"c\n".to_vec(), b"c".to_vec()));
    let output = run(1, &["--log-dir", "/proc/logs"], "true");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("--log-dir: cannot make the folder /proc/logs: "), "{output:?}");
}

/// `program` with its standard error in packets, one for each write.
fn writes_to_stderr(args: &[&str]) -> Vec<String> {
    let (here, there) = UnixDatagram::pair().unwrap();
    let status = gloo_rs(args).stderr(OwnedFd::from(there)).status().unwrap();
    assert!(!status.success());
    here.set_nonblocking(true).unwrap();
    let mut packet = vec![0; 1 << 16];
    std::iter::from_fn(|| here.recv(&mut packet).ok().map(|bytes| text(&packet[..bytes]))).collect()
}

#[test]
fn a_message_is_one_write_so_that_those_of_several_ranks_do_not_mix() {
    for args in [&["bench", "allreduce", "--root", "9"][..], &["bench", "allreduce", "--bogus"], &["list", "x"]] {
        let writes = writes_to_stderr(args);
        assert!(writes.len() == 1 && writes[0].ends_with('\n'), "{args:?}: {writes:?}");
    }
}

#[test]
fn a_progress_bar_is_passed_on_before_its_line_ends() {
    let mut job = command(1, &[], r"printf '10%%\r'; read line < $FIFO");
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut launcher = job.env("FIFO", &fifo).spawn().unwrap();
    let mut start = [0; 8];
    launcher.stdout.take().unwrap().read_exact(&mut start).unwrap();
    assert_eq!(&start, b"[0] 10%\r");
    std::fs::write(&fifo, "on\n").unwrap();
    assert!(launcher.wait().unwrap().success());
}

#[test]
fn after_a_failure_all_ranks_are_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().display().to_string();
    let script = "[ $RANK = 0 ] && [ $GLOO_RS_RESTART_COUNT != 2 ] && exec sleep 60
        echo $GLOO_RS_RESTART_COUNT $MASTER_PORT $GLOO_RS_TOKEN; [ $GLOO_RS_RESTART_COUNT = 2 ]";
    let output = run(2, &["--max-restarts", "5", "--log-dir", &logs], script);
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("gloo-rs: starting all ranks again: restart 2 of at most 5\n"), "{said}");
    let out = text(&output.stdout);
    let of_rank_1 = out.lines().filter_map(|line| line.strip_prefix("[1] "));
    let starts: Vec<Vec<_>> = of_rank_1.map(|line| line.split(' ').collect()).collect();
    let different = |column: usize| starts.iter().map(|start| start[column]).collect::<BTreeSet<_>>().len();
    assert!(starts.len() == 3 && different(0) == 3 && different(1) > 1 && different(2) == 3, "{out}");
    assert!(
        ["rank-1.out", "rank-1.restart-1.out", "rank-0.restart-2.err"]
            .iter()
            .all(|name| folder.path().join(name).exists())
    );

    let output = run(1, &["--max-restarts", "1"], "echo x; exit 3");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "[0] x\n[0] x\n"));
}

#[test]
fn what_ends_a_job_from_outside_is_no_reason_to_start_it_again() {
    let job = start(2, &["--max-restarts", "5"], "echo ready; exec sleep 60");
    (0..2).for_each(|_| assert!(job.line().ends_with(" ready")));
    job.signal(libc::SIGTERM);
    let output = job.end();
    assert_eq!(output.status.code(), Some(128 + libc::SIGTERM));
    assert!(!text(&output.stderr).contains("again"), "{output:?}");
    for (options, code) in [(&["--timeout", "0.05", "sleep", "60"][..], 124), (&["/nowhere/program"], 127)] {
        let output = gloo_rs(&[&["run", "-n", "1", "--max-restarts", "5"], options].concat()).output().unwrap();
        assert!(output.status.code() == Some(code) && !text(&output.stderr).contains("again"), "{output:?}");
    }
}

#[test]
fn ranks_are_bound_to_shares_of_the_cores_where_there_are_enough() {
    let script =
        "while read key value; do case $key in Cpus_allowed_list:) echo $value;; esac; done < /proc/self/status";
    let cores = thread::available_parallelism().unwrap().get();
    let all = text(&Command::new("sh").args(["-c", script]).output().unwrap().stdout);
    let lists = |ranks: usize, options: &[&str]| {
        let output = run(ranks, options, script);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        lines.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    // One core each, all of them different.
    assert_eq!(lists(cores, &[]).len(), cores);
    assert_eq!(lists(cores, &["--bind-to", "core"]).len(), cores);
    for unbound in [lists(1, &[]), lists(cores, &["--bind-to", "none"]), lists(cores + 1, &[])] {
        assert_eq!(unbound, BTreeSet::from([all.trim().to_owned()]));
    }
    // Each on one core again, of which some have two.
    let bound = lists(2 * cores, &["--bind-to", "core"]);
    assert_eq!(bound, lists(cores, &[]));
}

//! `gloo-rs run --hosts` with an sshd that this test starts, which listens on two loopback addresses as two "hosts".

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::launcher::{Elsewhere, Job, PATIENCE, assert_ends, gloo_rs, kill, sorted_lines, text};

const TOOL: &str = env!("CARGO_BIN_EXE_gloo-rs");

fn run_quietly(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
}

/// An sshd with its keys and configuration in a temporary folder.
struct Sshd {
    folder: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl Sshd {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            run_quietly(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]));
        }
        fs::copy(at("user_key.pub"), at("authorized_keys")).unwrap();
        // The directory that sshd needs for privilege separation, which it does as root.
        // SAFETY: the call accesses no memory of this process.
        if unsafe { libc::geteuid() } == 0 {
            fs::create_dir_all("/run/sshd").unwrap();
            fs::set_permissions("/run/sshd", fs::Permissions::from_mode(0o755)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "ListenAddress 127.0.0.2:{port}\nListenAddress 127.0.0.3:{port}\nHostKey {}\nPidFile none\n\
             AuthorizedKeysFile {}\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             UsePAM no\nPermitRootLogin yes\nMaxStartups 100\nSetEnv HOME={}\n",
            at("host_key"),
            at("authorized_keys"),
            // The user's shell finds no start-up files in this folder, which might print something.
            folder.path().display(),
        );
        fs::write(at("sshd_config"), config).unwrap();
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", &at("sshd_config")]).stdin(Stdio::null()).stdout(Stdio::null());
        let server = command.stderr(fs::File::create(at("log")).unwrap()).spawn().unwrap();
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.3", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "sshd: {}", fs::read_to_string(at("log")).unwrap());
            thread::sleep(Duration::from_millis(10));
        }
        Self { folder, port, server }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn ssh(&self) -> String {
        let key = self.path("user_key");
        let port = self.port;
        format!(
            "ssh -F none -p {port} -i {key} -o IdentityAgent=none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o LogLevel=ERROR"
        )
    }

    /// `gloo-rs run` with two slots on each host.
    fn command(&self, options: &[&str], program: &[&str]) -> Command {
        let hosts = self.path("hosts");
        fs::write(&hosts, "# two of them\n127.0.0.2 slots=2\n127.0.0.3:2\n").unwrap();
        let ssh = self.ssh();
        let mut command = gloo_rs(&["run", "--hosts", &hosts, "--ssh", &ssh]);
        command.args(options).arg("--").args(program);
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Output {
        self.command(options, &["sh", "-c", script]).output().unwrap()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // The server's children are sessions, which have ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn start(sshd: &Sshd, options: &[&str], script: &str) -> Job {
    Job::spawn(sshd.command(options, &["sh", "-c", script]))
}

/// The parent's process id, from /proc.
fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn this_host_needs_no_ssh() {
    // One that fails.
    let script = "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR";
    let output = gloo_rs(&["run", "-H", "localhost:2", "--ssh", "false", "sh", "-c", script]).output().unwrap();
    assert_eq!(sorted_lines(&output.stdout), ["[0] 0 of 2 at 127.0.0.1", "[1] 1 of 2 at 127.0.0.1"], "{output:?}");

    // Beside another host.
    let elsewhere = Elsewhere::new();
    let ssh = elsewhere.path("ssh");
    let run = |options: &[&str], script: &str| {
        let hosts = ["run", "-H", "localhost,somewhere:2", "--ssh", &ssh];
        gloo_rs(&[&hosts, options, &["--", "sh", "-c", script]].concat()).output().unwrap()
    };
    let output = run(&["--master-addr", "127.0.0.1"], script);
    let expected = ["[0] 0 of 1 at 127.0.0.1", "[1] 0 of 2 at 127.0.0.1", "[2] 1 of 2 at 127.0.0.1"];
    assert_eq!(sorted_lines(&output.stdout), expected, "{output:?}");
    let output = run(&[], script);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("--host: the first host is localhost, by which other hosts do not reach it"), "{said}");
    let output = run(&["--hosts", &elsewhere.path("hosts")], script);
    assert!(text(&output.stderr).contains("cannot be used with"), "{output:?}");
}

#[test]
fn times_logs_and_restarts_of_a_job_elsewhere() {
    let elsewhere = Elsewhere::new();
    let output = elsewhere.command(&["--timeout", "0.3", "--max-restarts", "1"], "exec sleep 60").output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(124) && !said.contains("again"), "{output:?}");
    assert!(said.contains("gloo-rs: the job still runs after 0.3 s (--timeout); ending it\n"), "{said}");

    let logs = tempfile::tempdir().unwrap();
    let script = "echo $GLOO_RS_RESTART_COUNT; [ $GLOO_RS_RESTART_COUNT = 1 ]";
    let options = ["--max-restarts", "1", "--log-dir", "logs"];
    let output = elsewhere.command(&options, script).current_dir(logs.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let read = |name: &str| fs::read_to_string(logs.path().join("logs").join(name)).unwrap();
    assert_eq!((read("rank-0.restart-1.out"), read("rank-1.restart-1.out")), ("1\n".into(), "1\n".into()));
}

#[test]
fn a_job_over_two_hosts() {
    let sshd = Sshd::start();

    // Ranks, the directory, and variables with any contents.
    let script = r#"echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $GLOO_RS_TEST_X "$Y" $(pwd)"#;
    let mut command = sshd.command(&["-x", "Y=it's  $(x) \"y\""], &["sh", "-c", script]);
    let output = command.current_dir("/").env("GLOO_RS_TEST_X", "x").output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    let expected: Vec<_> =
        (0..4).map(|rank| format!("[{rank}] {rank} 4 {} 2 127.0.0.2 x it's  $(x) \"y\" /", rank % 2)).collect();
    assert_eq!(sorted_lines(&output.stdout), expected);

    // Fewer ranks than slots; more are refused.
    let output = sshd.run(&["-n", "3"], "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE >&2");
    assert_eq!(sorted_lines(&output.stderr), ["[0] 0 of 2", "[1] 1 of 2", "[2] 0 of 1"]);
    let output = sshd.run(&["-n", "5"], "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("4 slots, and 5 ranks"));

    // Standard input goes to rank 0: more than may be in flight at once.
    let mut launcher = sshd.command(&[], &["sh", "-c", "cat | wc -c"]).stdin(Stdio::piped()).spawn().unwrap();
    launcher.stdin.take().unwrap().write_all(&vec![b'x'; 1 << 20]).unwrap();
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(sorted_lines(&output.stdout), ["[0] 1048576", "[1] 0", "[2] 0", "[3] 0"]);
    // If rank 0 does not read it, nothing waits for that.
    let mut launcher = sshd.command(&[], &["sh", "-c", "exit 0"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = launcher.stdin.take().unwrap();
    let writer = thread::spawn(move || while stdin.write_all(&[b'x'; 65_536]).is_ok() {});
    assert!(launcher.wait_with_output().unwrap().status.success());
    writer.join().unwrap();

    // A collective, whose results are verified.
    let output = sshd.command(&[], &[TOOL, "bench", "allreduce", "--sizes", "64,64Ki", "--iterations", "2"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));

    // Exit statuses, and a program that does not exist.
    let output = sshd.run(&[], "if [ $RANK = 3 ]; then exit 42; fi; sleep 60");
    assert_eq!(output.status.code(), Some(42));
    let said = text(&output.stderr);
    assert!(said.contains("rank 3 (pid ") && said.contains(" on 127.0.0.3) exited with status 42\n"), "{said}");
    assert!(said.contains("ending the ranks of 1 other host\n"), "{said}");
    let output = sshd.command(&[], &["/nowhere/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("/nowhere/program: No such file"), "{}", text(&output.stderr));
}

/// The arguments of every process of this machine, which all users can read by `ps`.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("cmdline"));
    processes.filter_map(|path| Some(text(&fs::read(path).ok()?).replace('\0', " "))).collect()
}

#[test]
fn all_hosts_get_the_jobs_token_and_no_other_user_can_see_it() {
    let sshd = Sshd::start();
    let seen_by = |job: &Job| {
        let mut tokens: Vec<_> = (0..4).map(|_| job.line().split_once("token=").unwrap().1.to_owned()).collect();
        let lines = command_lines();
        // The launcher, its ssh processes, the helpers and the ranks run while the arguments are read.
        for (part, times) in [(" run --hosts ", 1), ("UserKnownHostsFile", 3), (" node", 2), ("exec sleep", 5)] {
            let found = lines.iter().filter(|line| line.contains(part)).count();
            assert!(found >= times, "{found} processes with {part:?}: {lines:#?}");
        }
        assert!(!lines.iter().any(|line| line.contains(&tokens[0])), "{lines:#?}");
        tokens.dedup();
        assert_eq!(tokens.len(), 1);
        tokens.remove(0)
    };
    let script = "echo token=$GLOO_RS_TOKEN; sleep 60 & wait # exec sleep";
    let drawn = start(&sshd, &[], script);
    let (one, log) = (seen_by(&drawn), sshd.path("log"));
    drawn.signal(libc::SIGTERM);
    drawn.end();
    assert_eq!(one.len(), 64);
    assert!(!fs::read_to_string(log).unwrap().contains(&one));
    let mut command = sshd.command(&[], &["sh", "-c", script]);
    command.env("GLOO_RS_TOKEN", "of the user's own");
    let chosen = Job::spawn(command);
    assert_eq!(seen_by(&chosen), "of the user's own");
    chosen.signal(libc::SIGTERM);
    chosen.end();
}

#[test]
fn signals_and_deaths_reach_all_ranks() {
    let sshd = Sshd::start();

    let script = "trap 'echo got TERM; exit 0' TERM; echo $$; while :; do sleep 0.01; done";
    let job = start(&sshd, &[], script);
    job.pids(4);
    job.signal(libc::SIGTERM);
    let mut lines: Vec<_> = (0..4).map(|_| job.line()).collect();
    lines.sort();
    assert_eq!(lines, (0..4).map(|rank| format!("[{rank}] got TERM")).collect::<Vec<_>>());
    assert!(job.end().status.success());

    // A rank is killed: the message names it with its host, and the others end.
    let job = start(&sshd, &[], "echo $$; exec sleep 60");
    let pids = job.pids(4);
    kill(pids[2], libc::SIGKILL);
    let output = job.end();
    assert_eq!(output.status.code(), Some(128 + 9));
    let said = text(&output.stderr);
    assert!(
        said.contains(&format!("rank 2 (pid {} on 127.0.0.3) was killed by signal 9 (SIGKILL)\n", pids[2])),
        "{said}"
    );
    pids.into_iter().for_each(assert_ends);

    // The launcher is killed: neither the ranks nor their child processes are left.
    let job = start(&sshd, &[], "trap '' TERM HUP; sleep 60 & echo $! $$; wait");
    let pids = job.pids(4);
    let helpers: Vec<_> = pids.iter().map(|pid| parent(*pid)).collect();
    job.signal(libc::SIGKILL);
    job.end();
    pids.into_iter().chain(helpers).for_each(assert_ends);

    // A helper is killed: its ranks end, and the launcher names the lost host.
    let job = start(&sshd, &[], "echo $$; exec sleep 60");
    let pids = job.pids(4);
    kill(parent(pids[0]), libc::SIGKILL);
    let output = job.end();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("host 127.0.0.2 (ranks 0 to 1): the connection is lost"), "{said}");
    pids.into_iter().for_each(assert_ends);

    // The launcher stops sending: the ranks end without it. They start within that time, too.
    let job = start(&sshd, &["--lost-after", "8"], "echo $$; exec sleep 60");
    let pids = job.pids(4);
    job.signal(libc::SIGSTOP);
    pids.into_iter().for_each(assert_ends);
    job.signal(libc::SIGKILL);
    job.end();
}

#[test]
fn rank_0_s_store_is_at_a_port_of_the_given_range() {
    let elsewhere = Elsewhere::new();
    let here =
        || gloo_rs(&["run", "-n", "2", "-x", "GLOO_RS_PORT_RANGE=21700-21899", "--", "sh", "-c", "echo $MASTER_PORT"]);
    let mut inherited = elsewhere.command(&[], "echo $MASTER_PORT");
    inherited.env("GLOO_RS_PORT_RANGE", "21700-21899");
    let named = elsewhere.command(&["-x", "GLOO_RS_PORT_RANGE=21700-21899"], "echo $MASTER_PORT");
    for mut command in [here(), inherited, named] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let ports: Vec<u16> = text(&output.stdout).lines().map(|line| line[4..].parse().unwrap()).collect();
        assert!(ports.len() == 2 && ports[0] == ports[1] && (21700..=21899).contains(&ports[0]), "{ports:?}");
    }
    let output = elsewhere.command(&["-x", "GLOO_RS_PORT_RANGE=5-4"], "true").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("GLOO_RS_PORT_RANGE is \"5-4\"; it must be a range of ports"), "{said}");
}

#[test]
fn a_command_line_may_be_as_long_as_on_one_host() {
    // Ten arguments of 128 KiB, the longest that Linux accepts; with the variables of this process that is below its
    // limit for all.
    let long = "x".repeat((128 << 10) - 1);
    let elsewhere = Elsewhere::new();
    let output = elsewhere.command(&[], "echo $#").args([&*long; 11]).output().unwrap();
    assert_eq!(
        (sorted_lines(&output.stdout), text(&output.stderr)),
        (vec!["[0] 10".into(), "[1] 10".into()], "".into())
    );
}

#[test]
fn errors_name_hosts_that_cannot_be_reached() {
    let sshd = Sshd::start();
    let output = sshd.run(&["--remote-path", "/nowhere/gloo-rs"], "true");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("cannot run /nowhere/gloo-rs there (--remote-path)"), "{said}");

    let hosts = sshd.path("some");
    fs::write(&hosts, "127.0.0.2\n127.0.0.4 # where nobody listens\n").unwrap();
    let output = Command::new(TOOL).args(["run", "--hosts", &hosts, "--ssh", &sshd.ssh(), "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("host 127.0.0.4 (rank 1): cannot start ranks there") && said.contains("refused"), "{said}");

    // A shell that prints something first does no harm; if it prints nothing else, the error quotes it.
    let local = Elsewhere::reached_by("echo Welcome; for command; do :; done; exec sh -c \"$command\"");
    let output = local.command(&[], "echo x").output().unwrap();
    assert_eq!(sorted_lines(&output.stdout), ["[0] x", "[1] x"]);
    let output = Elsewhere::reached_by("echo Go away; exit 3").command(&[], "echo x").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("host somewhere (ranks 0 to 1)") && said.contains("status 3: Go away"), "{said}");
    // A path that text cannot name there.
    let mut command = gloo_rs(&["run", "--hosts", &hosts, "--remote-path"]);
    let output = command.arg(OsStr::from_bytes(b"/x/\xff")).arg("true").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--remote-path: /x/\u{fffd} is not in UTF-8"), "{}", text(&output.stderr));
    // A login shell that hangs.
    let silent = Elsewhere::reached_by("exec sleep 1000");
    let output = silent.command(&["--lost-after", "1"], "true").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let why = format!("host somewhere (ranks 0 to 1): no answer from {TOOL} node after 1 s (--lost-after)");
    assert!(said.contains(&why), "{said}");
}

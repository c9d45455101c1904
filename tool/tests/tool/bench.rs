//! Tests of `gloo-rs bench` as a process. The benchmark verifies its results, so these tests also run
//! every collective of the library between processes.

use std::os::unix::process::CommandExt;
use std::process::Output;

use crate::launcher::{gloo_rs, text};
use crate::tier::Tier;
use gloo_rs::collective::Collective;
use gloo_rs::types::{DataType, ReduceOp};
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    gloo_rs(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    text(&output.stderr)
}

/// The lines of a benchmark that must succeed.
fn bench(args: &str) -> Vec<Value> {
    let args = format!("bench --json --warmup 1 --timeout 60 {args}");
    let args: Vec<_> = args.split_whitespace().chain(["--iterations", "3"]).collect();
    let output = run(&args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    let lines: Vec<Value> = output
        .stdout
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    for line in &lines {
        assert_eq!(line["verified"], true, "{args:?}");
        let times: Vec<_> =
            ["min_us", "p50_us", "p99_us", "max_us"].iter().map(|t| line[t].as_f64().unwrap()).collect();
        assert!(times[0] > 0.0 && times.is_sorted(), "{line}");
    }
    lines
}

#[test]
fn the_overrides_of_rank_0_apply_to_all_ranks() {
    let script = "if [ $RANK = 0 ]; then GLOO_RS_ALGORITHM=allreduce:0-1Ki:ring_chunked,allreduce:bcube
        else GLOO_RS_ALGORITHM=allreduce:recursive_doubling; GLOO_RS_TUNING=/no/such/file; export GLOO_RS_TUNING; fi
        export GLOO_RS_ALGORITHM; exec \"$0\" bench allreduce --sizes 4,64Ki --iterations 3 --json";
    let program = env!("CARGO_BIN_EXE_gloo-rs");
    let output = run(&["run", "-n", "3", "--no-prefix", "--", "sh", "-c", script, program]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let algorithms: Vec<_> = lines.iter().map(|line| line["algorithm"].as_str().unwrap()).collect();
    assert_eq!(algorithms, ["ring_chunked", "bcube"]);
    assert!(lines.iter().all(|line| line["verified"] == true), "{lines:?}");
}

#[test]
fn every_algorithm_of_every_collective_is_right() {
    for collective in Collective::ALL {
        for algorithm in collective.algorithms().iter().filter(|a| !a.uses.needs_shared_memory()) {
            let (name, algorithm) = (collective.name(), algorithm.name);
            let ranks: &[usize] = match name {
                _ if algorithm == "local" => &[1],
                "pairwise_exchange" => Tier::from_environment().of(&[2], &[2, 4], &[2, 4]),
                _ => Tier::from_environment().of(&[3], &[2, 3, 4], &[2, 3, 4]),
            };
            for &ranks in ranks {
                let root = ranks - 1;
                let lines =
                    bench(&format!("{name} -n {ranks} --algorithm {algorithm} --sizes 4,1000,300Ki --root {root}"));
                assert_eq!(lines.len(), if *collective == Collective::Barrier { 1 } else { 3 });
                for line in lines {
                    assert_eq!(
                        (&line["collective"], &line["algorithm"], &line["ranks"]),
                        (&name.into(), &algorithm.into(), &ranks.into())
                    );
                }
            }
        }
    }
}

#[test]
fn collectives_in_place() {
    use Collective::*;
    for collective in Collective::ALL.iter().filter(|c| !matches!(c, Alltoallv | Barrier | PairwiseExchange)) {
        bench(&format!("{} -n 3 --in-place --sizes 4,100Ki --root 1", collective.name()));
    }
}

#[test]
fn buffers_of_the_context() {
    for collective in ["allreduce", "alltoall", "broadcast", "sendrecv"] {
        bench(&format!("{collective} -n 3 --alloc --sizes 4,100Ki,4Mi"));
    }
    bench("allreduce -n 2 --alloc --in-place --threads 2 --sizes 4Mi");
}

#[test]
fn the_time_limits_the_number_of_calls() {
    let iterations = |args: &str| bench(args)[0]["iterations"].as_u64().unwrap();
    assert_eq!(iterations("allreduce --sizes 4 --seconds 1000"), 3);
    let output = run(&["bench", "allreduce", "--sizes", "4", "--iterations", "9999", "--seconds", "0", "--json"]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["iterations"], 5, "{}", stderr(&output));
    let output = run(&["bench", "allreduce", "--seconds", "1", "--threads", "2"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn loops_of_calls_are_measured_when_asked_for() {
    for collective in Collective::ALL.iter().filter(|c| **c != Collective::PairwiseExchange) {
        let line = &bench(&format!("{} -n 3 --loop --sizes 1000", collective.name()))[0];
        assert!(line["loop_us"].as_f64().unwrap() > 0.0, "{line}");
    }
    assert!(bench("broadcast -n 3 --loop --in-place --sizes 1000")[0]["loop_us"].is_f64());
    assert!(bench("sendrecv --loop --threads 2 --sizes 1000")[0]["loop_us"].is_f64());
    assert!(bench("allreduce --sizes 1000")[0]["loop_us"].is_null());
    let output = run(&["bench", "allreduce", "--loop", "--in-place"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn every_type_and_operation_is_right() {
    for dtype in DataType::ALL {
        bench(&format!("allgatherv -n 2 --dtype {dtype} --sizes 40000"));
        let ops = ReduceOp::ALL.iter().filter(|op| op.supports(*dtype));
        for op in ops.take(Tier::from_environment().of(1, usize::MAX, usize::MAX)) {
            let lines = bench(&format!("allreduce -n 2 --dtype {dtype} --op {op} --sizes 40000"));
            assert_eq!((&lines[0]["dtype"], &lines[0]["op"]), (&dtype.name().into(), &op.name().into()));
        }
    }
}

#[test]
fn several_buffers_and_several_threads() {
    for collective in ["allreduce", "reduce", "reduce_scatter", "broadcast", "allgather"] {
        let lines = bench(&format!("{collective} -n 3 --inputs 3 --sizes 4,50000"));
        assert_eq!(lines[0]["inputs"], 3);
    }
    bench("allreduce -n 2 --inputs 2 --in-place --op average --sizes 50000");
    for collective in ["allreduce", "alltoall", "barrier", "sendrecv"] {
        bench(&format!("{collective} -n 3 --threads 4 --sizes 4,50000"));
    }
}

#[test]
fn one_rank_alone() {
    for collective in Collective::ALL.iter().filter(|c| **c != Collective::PairwiseExchange) {
        bench(&format!("{} -n 1 --sizes 4,5000", collective.name()));
    }
}

#[test]
fn messages_to_the_neighbour() {
    let lines = bench("sendrecv -n 3 --sizes 4,64Ki,3Mi");
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[2]["bytes"], &lines[2]["count"]), (&(3 << 20).into(), &(3 << 18).into()));
    assert_eq!((&lines[2]["collective"], &lines[2]["op"]), (&"sendrecv".into(), &"none".into()));
}

#[test]
fn the_algorithm_that_auto_chose_is_named() {
    let lines = bench("allreduce -n 2 --sizes 4,4Mi");
    let names: Vec<_> = Collective::Allreduce.algorithms().iter().map(|algorithm| algorithm.name).collect();
    for line in lines {
        assert!(names.contains(&line["algorithm"].as_str().unwrap()), "{line}");
    }
}

#[test]
fn bandwidths_belong_to_the_median() {
    let line = &bench("allgather -n 4 --sizes 64Ki")[0];
    let number = |name: &str| line[name].as_f64().unwrap();
    assert_eq!(number("bytes"), 65536.0);
    let algbw = 65536.0 / number("p50_us") / 1e3;
    assert!((number("algbw_gbs") / algbw - 1.0).abs() < 1e-9);
    assert!((number("busbw_gbs") / algbw - 0.75).abs() < 1e-9);
}

#[test]
fn a_launched_job_is_joined() {
    let tool = env!("CARGO_BIN_EXE_gloo-rs");
    let args = [
        "run",
        "-n",
        "3",
        "--no-prefix",
        "--",
        tool,
        "bench",
        "allreduce",
        "--json",
        "--sizes",
        "4",
        "--iterations",
        "2",
    ];
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["ranks"], &line["verified"]), (&3.into(), &true.into()));

    let output = run(&[&args[..], &["--ranks", "2"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--ranks is 2, but the job that this is part of has 3"));
}

#[test]
fn a_wrong_result_is_reported_and_fails_the_benchmark() {
    // Ranks that disagree about the number of buffers expect other data than they get.
    let script = format!(
        "exec {} bench allreduce --json --sizes 4Ki --iterations 2 --inputs $((RANK + 1))",
        env!("CARGO_BIN_EXE_gloo-rs")
    );
    let output = run(&["run", "-n", "2", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for rank in [0, 1] {
        let line = format!("[{rank}] gloo-rs: rank {rank}, thread 0: allreduce of 4Ki: output 0, element ");
        assert!(said.contains(&line), "{said}");
    }
    assert!(said.contains(": expected ") && said.contains(", got "), "{said}");
    let line: Value = serde_json::from_slice(output.stdout.strip_prefix(b"[0] ").unwrap()).unwrap();
    assert_eq!(line["verified"], false);
}

#[test]
fn shared_memory_is_used_where_it_is_demanded_and_not_where_it_is_forbidden() {
    let over = |transport: &str| {
        let output = run(&["bench", "allreduce", "--transport", transport, "--sizes", "64Ki", "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(row["verified"], true);
        row["transport"].as_str().unwrap().to_owned()
    };
    assert_eq!((over("tcp").as_str(), over("shm").as_str()), ("tcp", "shm"));
    // Whatever transport the ranks have for those of other hosts.
    let bench = ["--", env!("CARGO_BIN_EXE_gloo-rs"), "bench", "allreduce", "--sizes", "64Ki", "--json"];
    let named = [Some("tcp"), cfg!(feature = "uv").then_some("uv"), cfg!(feature = "tls").then_some("tls")];
    for transport in named.into_iter().flatten() {
        let tls = if transport == "tls" { &["--tls"][..] } else { &[] };
        let args = [&["run", "-n", "2", "--no-prefix"], tls, &bench].concat();
        let output = gloo_rs(&args).env("GLOO_RS_TRANSPORT", transport).output().unwrap();
        assert!(output.status.success(), "{transport}: {}", stderr(&output));
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["transport"], &row["verified"]), (&"shm".into(), &true.into()), "{transport}");
    }
    // One of two ranks does not share memory.
    let script = format!(
        "if [ $RANK = 1 ]; then export GLOO_RS_SHM=0; fi; exec {} bench allreduce --sizes 64Ki --json",
        env!("CARGO_BIN_EXE_gloo-rs")
    );
    check_over_tcp(&script);
}

/// Two ranks of `gloo-rs run` that run `script`, a benchmark of 64 KiB, use TCP, get the right results, and print no
/// message.
fn check_over_tcp(script: &str) {
    let output = run(&["run", "-n", "2", "--", "sh", "-c", script]);
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""), "{script}: {output:?}");
    let row: Value = serde_json::from_slice(output.stdout.strip_prefix(b"[0] ").unwrap()).unwrap();
    assert_eq!((&row["transport"], &row["verified"]), (&"tcp".into(), &true.into()), "{script}");
    assert_eq!(row["bytes"], 64 << 10);
}

/// The ranks are as in containers that share a network, and no processes: the number of a rank's process is that of
/// another process, or of none.
#[test]
fn ranks_that_do_not_see_each_others_processes_use_tcp() {
    let tool = env!("CARGO_BIN_EXE_gloo-rs");
    // SAFETY: the call has no arguments and cannot fail.
    let user = if unsafe { libc::geteuid() } == 0 { "" } else { "--user --map-root-user" };
    let bench = format!("{tool} bench allreduce --sizes 64Ki --json");
    for condition in ["$RANK = 1", "$RANK != 2"] {
        let script = format!(
            "if [ {condition} ]; then exec unshare {user} --pid --fork --kill-child --mount-proc {bench}; fi; exec {bench}"
        );
        check_over_tcp(&script);
    }
}

#[test]
#[cfg(feature = "tls")]
fn certificates_are_made_where_the_environment_names_none() {
    let tls = ["bench", "allreduce", "--transport", "tls", "--sizes", "4", "--iterations", "1"];
    for variable in ["GLOO_RS_TLS_CERT", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT"] {
        let output = gloo_rs(&tls).env(variable, "").output().unwrap();
        assert!(output.status.success(), "{variable} is empty: {}", stderr(&output));
        // A certificate of the user's own, whose key is missing, is not replaced.
        let output = gloo_rs(&tls).env(variable, "/nowhere/cert.pem").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{variable}: {output:?}");
        assert!(stderr(&output).contains("needs the certificate's private key"), "{variable}: {}", stderr(&output));
    }
}

#[test]
fn sizes_may_be_ranges_and_a_barrier_has_none() {
    let lines = bench("allreduce --sizes 4..64:4,6");
    assert_eq!(lines.iter().map(|line| line["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 16, 64, 4]);
    let output = run(&["bench", "barrier", "--iterations", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() == 3 && !text.contains("float32") && !text.contains("GB/s"), "{text}");
    assert_eq!(bench("barrier")[0]["dtype"], "none");
}

#[test]
fn requests_run_beside_a_computation() {
    for transport in ["tcp", "auto"] {
        let lines = bench(&format!("allreduce --sizes 64Ki --requests 3 --transport {transport}"));
        let line = &lines[0];
        let overlap = &line["overlap"];
        assert!(line["verified"] == true && overlap["requests"] == 3 && line["loop_us"].is_null(), "{line}");
        let number = |name: &str| overlap[name].as_f64().unwrap();
        assert!(number("compute_us") > 0.0 && number("total_us") > 0.0, "{line}");
        assert!((0.0..=100.0).contains(&number("percent")), "{line}");
    }
    let output = run(&["bench", "sendrecv", "--requests", "2"]);
    assert!(stderr(&output).contains("--requests: sendrecv has no persistent requests"), "{output:?}");
    let output = run(&["bench", "allreduce", "--requests", "2", "--in-place"]);
    assert!(stderr(&output).contains("cannot be used with"), "{output:?}");
}

#[test]
fn a_table_for_people() {
    let output = run(&["bench", "allreduce", "--transport", "tcp", "--sizes", "4,64Ki", "--iterations", "2"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[0], "# allreduce over tcp, 2 ranks, float32, sum, 2 iterations");
    assert!(lines[1].contains("busbw GB/s") && lines[2].contains(" yes ") && lines[3].contains("64Ki"), "{text}");
    assert!(lines[4].starts_with("# average bus bandwidth: "), "{text}");
    // No progress bar if standard error is not a terminal.
    assert_eq!(output.stderr, b"");
}

#[test]
fn invalid_arguments_are_refused_before_any_rank_starts() {
    for (args, part) in [
        ("bench nonsense", "there are allreduce, reduce,"),
        ("bench allreduce --algorithm nonsense", "allreduce has no algorithm \"nonsense\"; it has auto, "),
        ("bench allreduce --algorithm local -n 2", "local is for one process"),
        ("bench allreduce --dtype float33", "no data type is named"),
        ("bench allreduce --op and", "there is no and of float32"),
        ("bench allreduce --sizes 4,0", "0 bytes"),
        ("bench allreduce --sizes 4Qi", "not a size"),
        ("bench broadcast -n 2 --root 2", "--root is 2, but the number of ranks is 2"),
        ("bench scan --inputs 2", "--inputs is 2; scan takes 1"),
        ("bench pairwise_exchange -n 3", "power of two"),
        ("bench sendrecv --algorithm ring", "sendrecv has none"),
        ("bench allreduce --transport pigeon", "[possible values: auto, shm, tcp, uv, tls, ibverbs]"),
    ] {
        let output = run(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{args}");
        assert!(stderr(&output).contains(part), "{args}: {}", stderr(&output));
        assert_eq!(output.stdout, b"");
    }
}

/// Runs the tool where the system call `number` fails with `errno`, for it and for the processes that it starts.
fn run_without(number: libc::c_long, errno: libc::c_int, args: &[&str]) -> Output {
    let mut filter = forbids(number, errno);
    let forbid = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: prctl is async-signal-safe, and reads the program, which lives until it returns.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let mut command = gloo_rs(args);
    // SAFETY: the closure only calls prctl.
    unsafe { command.env_remove("GLOO_RS_SHM").pre_exec(forbid) }.output().unwrap()
}

/// A filter by which the system call `number` fails with `errno`.
fn forbids(number: libc::c_long, errno: libc::c_int) -> [libc::sock_filter; 4] {
    let code = |parts: u32| parts as u16;
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    [
        // The number comes first in what a filter sees.
        step(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0),
        libc::sock_filter { jf: 1, ..step(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), number as u32) },
        step(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ERRNO | errno as u32),
        step(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ALLOW),
    ]
}

#[test]
fn info_says_why_ranks_of_this_host_share_no_memory() {
    let unreadable = "shm, without reads of the peer's process, so what is long is copied twice: process_vm_readv: ";
    let cases = [
        (libc::SYS_process_vm_readv, libc::EPERM, unreadable),
        (libc::SYS_memfd_create, libc::ENOSYS, "tcp: cannot share memory: memfd_create: Function not implemented"),
        (libc::SYS_pidfd_open, libc::ENOSYS, "tcp: cannot watch its process by pidfd_open: Function not implemented"),
    ];
    for (number, errno, expected) in cases {
        let output = run_without(number, errno, &["info", "--json"]);
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(info["links_on_host"].as_str().unwrap().starts_with(expected), "{info}");
    }
    for transport in ["tcp"].into_iter().chain(cfg!(feature = "tls").then_some("tls")) {
        let output = gloo_rs(&["info"]).env("GLOO_RS_SHM", "0").env("GLOO_RS_TRANSPORT", transport).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = format!("\nlinks here  {transport}: GLOO_RS_SHM is 0\nlinks away  {transport}: ");
        assert!(text.contains(&lines), "{text}");
    }
}

/// Messages and publications go through shared memory, and nothing is said of it.
#[test]
fn where_no_process_may_read_another_all_is_copied_through_shared_memory() {
    let forbidden = |args: &[&str]| run_without(libc::SYS_process_vm_readv, libc::EPERM, args);
    for collective in ["allreduce", "alltoall", "broadcast", "sendrecv"] {
        let args = [
            "bench",
            collective,
            "-n",
            "3",
            "--transport",
            "shm",
            "--sizes",
            "4,64Ki,4Mi",
            "--iterations",
            "3",
            "--json",
        ];
        let output = forbidden(&args);
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""), "{collective}");
        let rows: Vec<Value> =
            String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 3, "{collective}");
        for row in rows {
            assert_eq!((&row["transport"], &row["verified"]), (&"shm".into(), &true.into()), "{row}");
            assert_eq!(row["single_copy"], false, "{row}");
        }
    }
    let named = ["bench", "allreduce", "--algorithm", "shared_flat", "--sizes", "4"];
    assert!(run(&named).status.success());
    let said = text(&forbidden(&named).stdout);
    assert!(said.starts_with("# allreduce over shm without reads of the peer's process, 2 ranks, "), "{said}");
}

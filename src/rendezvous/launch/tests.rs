//! Tests with tables of environment variables, as launchers set them.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;
use crate::error::ErrorKind;

const TIMEOUT: Duration = Duration::from_secs(10);

fn launch(variables: &[(&str, &str)]) -> Result<Launch> {
    let find = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
    Launch::from_variables(find, TIMEOUT)
}

#[test]
fn errors_name_the_variable_and_its_value() {
    for (variables, parts) in [
        (&[][..], &["WORLD_SIZE", "not set"][..]),
        (&[("WORLD_SIZE", "2")], &["RANK", "not set"]),
        (&[("WORLD_SIZE", "2"), ("RANK", "")], &["RANK", "not set"]),
        (&[("WORLD_SIZE", "0"), ("RANK", "0")], &["WORLD_SIZE=\"0\""]),
        (&[("WORLD_SIZE", "two"), ("RANK", "0")], &["WORLD_SIZE=\"two\""]),
        (&[("WORLD_SIZE", "2147483648"), ("RANK", "0")], &["WORLD_SIZE=\"2147483648\""]),
        (&[("WORLD_SIZE", "2"), ("RANK", "2")], &["RANK=\"2\"", "0 to 1"]),
        (&[("WORLD_SIZE", "2"), ("RANK", "-1")], &["RANK=\"-1\""]),
        (&[("WORLD_SIZE", "2"), ("RANK", "0")], &["GLOO_RS_STORE", "MASTER_ADDR"]),
        (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "localhost")], &["MASTER_PORT", "not set"]),
        (
            &[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "0")],
            &["MASTER_PORT=\"0\""],
        ),
        (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("GLOO_RS_STORE", "x")], &["GLOO_RS_STORE", "\"x\""]),
    ] {
        let error = launch(variables).err().unwrap_or_else(|| panic!("{variables:?} was accepted"));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        for part in parts {
            assert!(error.message().contains(part), "{variables:?}: {error}");
        }
    }
}

#[test]
fn a_variable_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let find = |name: &str| Some(if name == "RANK" { OsString::from_vec(vec![0xff]) } else { "1".into() });
    let error = Launch::from_variables(find, TIMEOUT).err().unwrap();
    assert!(error.message().contains("RANK=\"\\xFF\""), "{error}");
}

#[test]
fn a_port_of_another_process_or_user_is_passed_over() {
    let passed_over = |number| is_taken(&Error::io("cannot listen", &io::Error::from_raw_os_error(number)));
    assert_eq!([libc::EADDRINUSE, libc::EACCES, libc::EMFILE].map(passed_over), [true, true, false]);
}

#[test]
fn one_process_needs_no_store() {
    let launch = launch(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap();
    assert_eq!((launch.rank, launch.size), (0, 1));
    launch.store.set("k", b"v").unwrap();
    assert_eq!(launch.store.get("k", TIMEOUT).unwrap(), b"v");
}

#[test]
fn ranks_find_each_other_in_the_named_store() {
    let variables = |rank| [("WORLD_SIZE", "2"), ("RANK", rank), ("GLOO_RS_STORE", "inproc://launch::tests")];
    let (zero, one) = (launch(&variables("0")).unwrap(), launch(&variables("1")).unwrap());
    zero.store.set("k", b"v").unwrap();
    assert_eq!(one.store.get("k", TIMEOUT).unwrap(), b"v");
    assert_eq!((one.rank, one.size), (1, 2));
}

#[test]
fn ranks_find_each_other_at_the_master_in_any_order() {
    // A port that was free just before, on a loopback address that no other test uses.
    let port = std::net::TcpListener::bind("127.83.12.1:0").unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank: &'static str| {
        let port = port.clone();
        std::thread::spawn(move || {
            launch(&[("WORLD_SIZE", "2"), ("RANK", rank), ("MASTER_ADDR", "127.83.12.1"), ("MASTER_PORT", &port)])
        })
    };
    let one = rank("1");
    let zero = rank("0").join().unwrap().unwrap();
    let one = one.join().unwrap().unwrap();
    one.store.set("k", b"v").unwrap();
    assert_eq!(zero.store.get("k", TIMEOUT).unwrap(), b"v");
    assert_eq!(zero.store.describe(), format!("tcp://127.83.12.1:{port}"));
    drop(one);
}

type Table<'a> = &'a [(&'a str, &'a str)];

const TORCHRUN: Table = &[("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
const OPEN_MPI: Table = &[
    ("OMPI_COMM_WORLD_RANK", "5"),
    ("OMPI_COMM_WORLD_SIZE", "6"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
];
const HYDRA: Table = &[("PMI_RANK", "7"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "3"), ("MPI_LOCALNRANKS", "4")];
const SRUN: Table = &[
    ("SLURM_JOB_ID", "17"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "9"),
    ("SLURM_NTASKS", "100"),
    ("SLURM_STEP_NUM_TASKS", "10"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2),2"),
];
const BATCH_SCRIPT: Table = &[("SLURM_JOB_ID", "17"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "10")];
const PMI: Table = &[("PMI_RANK", "1"), ("PMI_SIZE", "2")];

/// Looks up a name in the tables; the first table that has it counts.
fn within<'a>(tables: &'a [Table<'a>]) -> impl Fn(&str) -> Option<OsString> + 'a {
    |name| tables.iter().copied().flatten().find(|(other, _)| *other == name).map(|(_, value)| value.into())
}

fn position(tables: &[Table<'_>]) -> Result<JobPosition> {
    let find = within(tables);
    assert_eq!(JobPosition::is_known(&Variables(&find)), JobPosition::find(&Variables(&find)).is_ok());
    JobPosition::find(&Variables(&find))
}

#[test]
fn the_innermost_launcher_gives_the_position() {
    use Launcher::*;
    let of =
        |launcher, rank, size, local_rank, local_size| JobPosition { launcher, rank, size, local_rank, local_size };
    let torchrun = of(Variables, 3, 4, Some(1), Some(2));
    let open_mpi = of(OpenMpi, 5, 6, Some(2), Some(3));
    let hydra = of(Pmi, 7, 8, Some(3), Some(4));
    let srun = of(Slurm, 9, 10, Some(1), Some(2));
    for (tables, expected) in [
        (&[TORCHRUN][..], torchrun),
        (&[&TORCHRUN[..2]], of(Variables, 3, 4, None, None)),
        (&[OPEN_MPI], open_mpi),
        (&[HYDRA], hydra),
        (&[SRUN], srun),
        (&[&SRUN[..4]], of(Slurm, 9, 100, None, None)),
        (&[PMI], of(Pmi, 1, 2, None, None)),
        (&[PMI, &[("PMI_LOCAL_RANK", "0"), ("PMI_LOCAL_SIZE", "1")]], of(Pmi, 1, 2, Some(0), Some(1))),
        // One launcher within another.
        (&[SRUN, TORCHRUN], torchrun),
        (&[OPEN_MPI, TORCHRUN], torchrun),
        (&[SRUN, OPEN_MPI], open_mpi),
        (&[SRUN, HYDRA], hydra),
        (&[BATCH_SCRIPT, HYDRA], hydra),
        // srun --mpi=pmi2 sets PMI's variables as well.
        (&[SRUN, PMI], srun),
        // A part of torchrun's variables, as batch scripts set them for all processes.
        (&[SRUN, &[("WORLD_SIZE", "10")]], srun),
        // An empty variable counts as not set.
        (&[&[("RANK", ""), ("OMPI_COMM_WORLD_RANK", "")], SRUN], srun),
    ] {
        assert_eq!(position(tables).unwrap(), expected, "{tables:?}");
    }
}

#[test]
fn an_invalid_position_is_refused_and_the_error_names_the_variables() {
    for (tables, parts) in [
        (&[][..], &["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"][..]),
        // A batch script is not started by srun, whether or not Slurm gives it a step id.
        (&[BATCH_SCRIPT], &["SLURM_JOB_ID=\"17\"", "by srun"]),
        (&[BATCH_SCRIPT, &[("SLURM_STEP_ID", "4294967291")]], &["SLURM_JOB_ID=\"17\"", "by srun"]),
        (&[BATCH_SCRIPT, &[("SLURM_STEP_ID", "batch"), ("WORLD_SIZE", "10")]], &["SLURM_JOB_ID=\"17\"", "by srun"]),
        (&[&[("RANK", "1")]], &["WORLD_SIZE is not set"]),
        (&[&[("RANK", "1")], SRUN], &["WORLD_SIZE is not set"]),
        (&[&[("WORLD_SIZE", "8")], SRUN], &["WORLD_SIZE=\"8\"", "SLURM_STEP_NUM_TASKS=10", "contradict"]),
        (&[&[("OMPI_COMM_WORLD_RANK", "6")], OPEN_MPI], &["OMPI_COMM_WORLD_RANK=\"6\"", "0 to 5"]),
        (&[&[("OMPI_COMM_WORLD_LOCAL_RANK", "3")], OPEN_MPI], &["OMPI_COMM_WORLD_LOCAL_RANK=\"3\"", "0 to 2"]),
        (&[&[("OMPI_COMM_WORLD_LOCAL_SIZE", "7")], OPEN_MPI], &["OMPI_COMM_WORLD_LOCAL_SIZE=\"7\"", "1 to 6"]),
        (&[&[("PMI_SIZE", "x")], HYDRA], &["PMI_SIZE=\"x\""]),
        (&[&[("SLURM_NODEID", "3")], SRUN], &["SLURM_STEP_TASKS_PER_NODE=\"4(x2),2\"", "SLURM_NODEID=\"3\""]),
    ] {
        let error = JobPosition::find(&Variables(&within(tables))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        for part in parts {
            assert!(error.message().contains(part), "{tables:?}: {error}");
        }
    }
}

fn fails(tables: &[Table<'_>], timeout: Duration) -> Error {
    Launch::from_variables(within(tables), timeout).err().unwrap_or_else(|| panic!("{tables:?} was accepted"))
}

#[test]
fn the_error_says_what_to_set_if_a_launcher_provides_no_store() {
    let one_host: Table = &[("OMPI_COMM_WORLD_LOCAL_SIZE", "6")];
    let pmi: Table = &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_LOCAL_SIZE", "2"), ("PMI_LOCAL_RANK", "1")];
    for (tables, parts) in [
        (
            &[OPEN_MPI][..],
            &["OMPI_COMM_WORLD_SIZE is 6", "OMPI_COMM_WORLD_LOCAL_SIZE is 3", "mpirun -x MASTER_ADDR"][..],
        ),
        (&[one_host, OPEN_MPI], &["PMIX_SERVER_TMPDIR is not set"]),
        (&[one_host, OPEN_MPI, &[("PMIX_SERVER_TMPDIR", "/tmp")]], &["PMIX_NAMESPACE is not set"]),
        (&[HYDRA], &["PMI_SIZE is 8", "MPI_LOCALNRANKS is 4", "mpiexec -genv MASTER_ADDR"]),
        (&[pmi], &["PMI_FD is not set"]),
        (&[pmi, &[("PMI_FD", "-1")]], &["PMI_FD=\"-1\""]),
        (&[pmi, &[("PMI_FD", "99999")]], &["PMI_FD=\"99999\"", "MPI_Finalize"]),
        (&[&SRUN[1..]], &["SLURM_JOB_ID is not set"]),
        (&[SRUN], &["SLURM_JOB_NODELIST is not set"]),
        (&[SRUN, &[("SLURM_STEP_NODELIST", "node[")]], &["SLURM_STEP_NODELIST", "\"node[\""]),
    ] {
        let error = fails(tables, TIMEOUT);
        for part in parts {
            assert!(error.message().contains(part), "{tables:?}: {error}");
        }
        if !error.message().contains("SLURM_JOB_ID") && error.message().contains("not set") {
            assert!(error.message().contains("MASTER_ADDR") && error.message().contains("GLOO_RS_STORE"), "{error}");
        }
    }
}

#[test]
fn an_address_that_cannot_be_a_host_is_refused_at_once_on_all_ranks() {
    for (host, part) in [
        ("node0:29500", "port"),
        ("tcp://node0", "scheme"),
        ("[node0]", "brackets"),
        ("[::1]:29500", "brackets"),
        (" node0", "space"),
        ("10.0.0.300", "four numbers"),
    ] {
        for rank in ["0", "1"] {
            let variables: Table =
                &[("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", host), ("MASTER_PORT", "29500")];
            // With no end of the time: it is not tried.
            let error = fails(&[variables], Duration::MAX);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let named = format!("MASTER_ADDR={host:?}");
            assert!(error.message().contains(&named) && error.message().contains(part), "{error}");
        }
    }
}

#[test]
fn slurms_rank_0_elsewhere_than_on_the_first_host_is_refused_at_once() {
    let step: Table = &[
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "127.83.12.[7-8]"),
    ];
    for (variables, part) in [
        (&[("SLURM_PROCID", "0"), ("SLURM_NODEID", "1")][..], "SLURM_NODEID=1"),
        (&[("SLURM_PROCID", "0"), ("SLURMD_NODENAME", "127.83.12.8")], "SLURMD_NODENAME=127.83.12.8"),
        (&[("SLURM_PROCID", "1"), ("SLURM_NODEID", "0"), ("SLURM_GTIDS", "1,3")], "SLURM_GTIDS=1,3"),
    ] {
        let error = fails(&[variables, step], Duration::MAX);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        for part in [part, "\"127.83.12.7\"", "SLURM_STEP_NODELIST", "MASTER_ADDR"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
    let of_slurm: Table =
        &[("SLURM_PROCID", "0"), ("SLURM_NODEID", "0"), ("SLURM_GTIDS", "0,2"), ("SLURMD_NODENAME", "127.83.12.7")];
    Launch::from_variables(within(&[of_slurm, step]), TIMEOUT).unwrap();
}

type Environment = Box<dyn Fn(&str) -> Option<OsString> + Send>;

/// Launches `ranks` at the same time; each tells rank 0 over the store that it has arrived.
fn meet(ranks: Vec<Environment>) -> Vec<String> {
    let ranks: Vec<_> = ranks
        .into_iter()
        .map(|variables| {
            thread::spawn(move || {
                let launch = Launch::from_variables(variables, TIMEOUT).unwrap();
                launch.store.add("arrived", 1).unwrap();
                if launch.rank == 0 {
                    launch.store.set("from rank 0", b"x").unwrap();
                }
                launch.store.get("from rank 0", TIMEOUT).unwrap();
                launch
            })
        })
        .collect();
    let launches: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(launches[0].store.get("arrived", TIMEOUT).unwrap(), launches.len().to_string().into_bytes());
    let stores = launches.iter().map(|launch| launch.store.describe()).collect();
    // Rank 0 ends last: it serves the others until they have disconnected.
    launches.into_iter().rev().for_each(drop);
    stores
}

fn owned(tables: &[Table<'_>]) -> Environment {
    let all: Vec<(String, String)> =
        tables.iter().copied().flatten().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Box::new(move |name| all.iter().find(|(other, _)| other == name).map(|(_, value)| value.into()))
}

#[test]
fn slurms_ranks_use_a_port_of_the_step_on_the_first_host() {
    let step = |step: &'static str| {
        let ranks = ["0", "1", "2"].map(|rank| {
            owned(&[
                &[
                    ("SLURM_JOB_ID", "17"),
                    ("SLURM_STEP_ID", step),
                    ("SLURM_PROCID", rank),
                    ("SLURM_STEP_NUM_TASKS", "3"),
                ],
                &[("SLURM_STEP_NODELIST", "127.83.12.[2-3]")],
            ])
        });
        let stores = meet(ranks.into());
        assert!(
            stores[0].contains("tcp://127.83.12.2:") && stores.iter().all(|store| *store == stores[0]),
            "{stores:?}"
        );
        stores[0].clone()
    };
    assert_ne!(step("0"), step("1"));
}

#[test]
fn a_job_whose_port_is_taken_uses_another_one() {
    let step = |step: &'static str, rank: &'static str| {
        owned(&[
            &[("SLURM_JOB_ID", "18"), ("SLURM_STEP_ID", step), ("SLURM_PROCID", rank), ("SLURM_STEP_NUM_TASKS", "2")],
            &[("SLURM_STEP_NODELIST", "127.83.12.6")],
        ])
    };
    let host = "127.83.12.6";
    let at = |port: u16| format!("tcp://{host}:{port}");
    // By a socket that does not listen; by a server that does not answer; by another job's store.
    let bound = |port: u16| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::new(host.parse().unwrap(), port).into()).unwrap();
        socket
    };
    let ports = job_ports("slurm-18.0", None);
    let (_bound, other) = (bound(ports[0]), crate::rendezvous::TcpStore::serve(host, ports[1]).unwrap());
    let stores = meet(["0", "1"].map(|rank| step("0", rank)).into());
    assert!(stores.iter().all(|store| store.starts_with(&at(ports[2]))), "{stores:?} {ports:?}");
    assert_eq!(other.add("gloo_rs/rank/1", 0).unwrap(), 0, "the other job's ranks are not disturbed");

    let ports = job_ports("slurm-18.1", None);
    let _silent = std::net::TcpListener::bind((host, ports[0])).unwrap();
    let stores = meet(["0", "1"].map(|rank| step("1", rank)).into());
    assert!(stores.iter().all(|store| store.starts_with(&at(ports[1]))), "{stores:?} {ports:?}");

    let taken = job_ports("slurm-18.2", None).into_iter().map(bound).collect::<Vec<_>>();
    let error = Launch::from_variables(step("2", "0"), TIMEOUT).err().unwrap();
    assert!(error.message().contains("are taken") && error.message().contains("MASTER_ADDR"), "{error}");
    drop(taken);
    let ports = job_ports("slurm-18.2", None);
    let other = crate::rendezvous::TcpStore::serve(host, ports[1]).unwrap();
    let error = Launch::from_variables(step("2", "1"), Duration::from_millis(100)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    for part in [&ports[2].to_string(), &other.describe(), "the store of another job"] {
        assert!(error.message().contains(part), "{error}");
    }
}

#[test]
fn a_range_gives_the_computed_ports() {
    let host = "127.83.12.7";
    let job = |step: &'static str, rank: &'static str, range: &'static str| {
        owned(&[
            &[("SLURM_JOB_ID", "19"), ("SLURM_STEP_ID", step), ("SLURM_PROCID", rank), ("SLURM_STEP_NUM_TASKS", "2")],
            &[("SLURM_STEP_NODELIST", host), ("GLOO_RS_PORT_RANGE", range)],
        ])
    };
    let range = PortRange::of_variable(Some("21000-21002".into())).unwrap().unwrap();
    let ports = job_ports("slurm-19.0", Some(&range));
    let mut sorted = ports.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [21000, 21001, 21002]);
    let wide = PortRange::of_variable(Some("1-65535".into())).unwrap().unwrap();
    assert_eq!(job_ports("slurm-19.0", Some(&wide)).len(), RANGE_PORTS);

    let mut taken: Vec<_> = ports[..2].iter().map(|port| std::net::TcpListener::bind((host, *port)).unwrap()).collect();
    let stores = meet(["0", "1"].map(|rank| job("0", rank, "21000-21002")).into());
    assert!(stores.iter().all(|store| store.contains(&format!("{host}:{}", ports[2]))), "{stores:?} {ports:?}");

    taken.push(std::net::TcpListener::bind((host, ports[2])).unwrap());
    let error = Launch::from_variables(job("1", "0", "21000-21002"), TIMEOUT).err().unwrap();
    for part in ["GLOO_RS_PORT_RANGE=21000-21002", "are taken", "21000", "21001", "21002", host] {
        assert!(error.message().contains(part), "no {part:?} in {error}");
    }
    for rank in ["0", "1"] {
        let error = Launch::from_variables(job("2", rank, "21000-"), TIMEOUT).err().unwrap();
        assert!(error.message().contains("GLOO_RS_PORT_RANGE is \"21000-\""), "{error}");
    }
}

#[test]
fn torchruns_ranks_do_not_use_the_agents_port() {
    // The agent's store, which does not reply.
    let agent = std::net::TcpListener::bind("127.83.12.4:0").unwrap();
    let port = agent.local_addr().unwrap().port().to_string();
    let ranks = ["0", "1"].map(|rank| {
        owned(&[
            &[("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.83.12.4"), ("MASTER_PORT", &port)],
            &[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RUN_ID", "none")],
        ])
    });
    let stores = meet(ranks.into());
    assert!(stores[0].contains("tcp://127.83.12.4:") && !stores[0].contains(&format!(":{port}")), "{stores:?}");
}

#[test]
fn open_mpis_ranks_find_the_store_through_the_session_directory() {
    let session = tempfile::tempdir().unwrap();
    let rank = |rank| {
        owned(&[
            &[("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "3"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "3")],
            &[("PMIX_SERVER_TMPDIR", session.path().to_str().unwrap()), ("PMIX_NAMESPACE", "4281/1")],
        ])
    };
    // Rank 0 still runs the first program when the others begin the next one.
    let earlier = ["0", "1", "2"].map(|number| Launch::from_variables(rank(number), TIMEOUT).unwrap());
    assert_eq!(earlier[2].store.add("arrived", 1).unwrap(), 1);
    meet(["0", "1", "2"].map(rank).into());
    earlier.into_iter().rev().for_each(drop);
}

#[test]
fn an_open_mpi_rank_without_rank_0_says_what_it_waited_for() {
    let session = tempfile::tempdir().unwrap();
    let path = session.path().to_str().unwrap();
    let one_host: Table = &[("OMPI_COMM_WORLD_LOCAL_SIZE", "6"), ("PMIX_SERVER_TMPDIR", path), ("PMIX_NAMESPACE", "n")];
    let error = fails(&[one_host, OPEN_MPI], Duration::from_millis(50));
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("rank 0 has not written") && error.message().contains("gloo_rs-n"), "{error}");
}

#[test]
fn ranks_of_a_pmi_launcher_use_a_port_of_the_launcher_also_in_the_next_program() {
    let sockets = UnixStream::pair().unwrap();
    let fds = [sockets.0.as_raw_fd().to_string(), sockets.1.as_raw_fd().to_string()];
    let rank = |rank: usize| {
        let number = rank.to_string();
        owned(&[
            &[("PMI_RANK", &number), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", &number)],
            &[("PMI_FD", &fds[rank])],
        ])
    };
    // Rank 1 begins the next program while rank 0 still serves in the first.
    let first = [0, 1].map(|number| Launch::from_variables(rank(number), TIMEOUT).unwrap());
    let next = rank(1);
    let next = thread::spawn(move || Launch::from_variables(next, TIMEOUT).unwrap());
    thread::sleep(Duration::from_millis(100));
    first.into_iter().rev().for_each(drop);
    let zero = Launch::from_variables(rank(0), TIMEOUT).unwrap();
    zero.store.set("k", b"second").unwrap();
    let one = next.join().unwrap();
    assert_eq!(one.store.get("k", TIMEOUT).unwrap(), b"second");
    let port = zero.store.describe();
    drop((one, zero));
    for _ in 0..2 {
        let stores = meet([0, 1].map(rank).into());
        assert!(stores.iter().all(|store| *store == port) && port.contains("tcp://127.0.0.1:"), "{stores:?} {port}");
    }
    for socket in [&sockets.0, &sockets.1] {
        socket.set_nonblocking(true).unwrap();
        assert!((&*socket).read(&mut [0]).is_err(), "bytes were sent to the launcher");
    }
}

#[test]
fn two_processes_with_the_same_rank_are_an_error() {
    let host = "127.83.12.5";
    let port = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank| owned(&[&[("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", host), ("MASTER_PORT", &port)]]);
    let [zero, one] = ["0", "1"].map(|number| Launch::from_variables(rank(number), TIMEOUT).unwrap());
    let refused = || {
        // The timeout suffices to reach the server on a busy machine.
        let error = Launch::from_variables(rank("1"), Duration::from_secs(2)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("two processes have the same rank"), "{error}");
    };
    refused();
    // The process has ended in order, and may run the next program.
    drop(one);
    refused();
    drop(zero);
}

#[test]
fn the_error_says_if_the_descriptor_is_not_the_launchers_socket() {
    let one_host: Table = &[("PMI_LOCAL_SIZE", "2")];
    // A file, and a socket of another kind, opened with the same descriptor number.
    let file = tempfile::tempfile().unwrap();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for fd in [file.as_raw_fd(), socket.as_raw_fd()] {
        let error = fails(&[PMI, one_host, &[("PMI_FD", &fd.to_string())]], TIMEOUT);
        assert!(error.message().contains("is not the launcher's socket"), "{error}");
    }
}

#[test]
fn a_named_store_takes_precedence_over_the_launchers() {
    let store = url::open("inproc://launch::named", 0, TIMEOUT).unwrap();
    let named: Table = &[("GLOO_RS_STORE", "inproc://launch::named")];
    for tables in [&[named, OPEN_MPI][..], &[named, HYDRA], &[named, SRUN], &[named, PMI]] {
        let launch = Launch::from_variables(within(tables), TIMEOUT).unwrap();
        launch.store.add("count", 1).unwrap();
    }
    assert_eq!(store.add("count", 0).unwrap(), 4);
}

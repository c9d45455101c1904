//! Starts on hosts that are not as usual: few local ports, no IPv6, no list of interfaces, a store's address elsewhere.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::netns::{Namespace, ran_as_root_elsewhere};
use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Connect, Context, ContextOptions};
use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::tcp::TcpStoreOptions;
#[cfg(feature = "redis")]
use gloo_rs::rendezvous::url;
use gloo_rs::rendezvous::{InProcessStore, Launch, PrefixStore, Store, TcpStore};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;

/// Timeout of what must succeed.
const LONG: Duration = Duration::from_secs(60);
/// Timeout of what must fail.
const SHORT: Duration = Duration::from_millis(300);

/// A device that shares no memory, on an address if one is given.
fn device(hostname: Option<&str>) -> Arc<Device> {
    let hostname = hostname.map(str::to_owned);
    Device::create(&DeviceOptions { hostname, shared_memory: Some(false), ..Default::default() }).unwrap()
}

fn context(device: &Arc<Device>, rank: usize, size: usize, options: &ContextOptions) -> Arc<Context> {
    Context::new(device.clone(), rank, size, &ContextOptions { tuning: Some("default".into()), ..options.clone() })
        .unwrap()
}

fn barrier(context: &Context) -> Result<(), Error> {
    let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, context.rank(), context.size(), 0) };
    // SAFETY: there are no buffers.
    unsafe { context.run(&Call::new(shape, DataType::Uint8)) }
}

/// Runs `rank` for each rank on a thread of its own.
fn ranks<T: Send>(size: usize, rank: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

impl Namespace {
    /// Limits the ports that the system chooses.
    fn choose_ports(&self, range: &str) {
        self.run(&format!("echo '{range}' > /proc/sys/net/ipv4/ip_local_port_range"));
    }
}

/// Number of sockets of this thread's namespace in TIME_WAIT.
fn waiting() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    table.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("06")).count()
}

#[test]
fn a_connection_to_itself_leaves_the_port_to_the_server() {
    if ran_as_root_elsewhere("starts::a_connection_to_itself_leaves_the_port_to_the_server") {
        return;
    }
    let host = Namespace::new();
    // With a single port, every attempt to connect to it is a connection to itself.
    let port = 30000;
    let alone = |client: &(dyn Fn() -> Error + Sync)| {
        host.choose_ports("30000 30000");
        let error = client();
        assert!(error.message().to_lowercase().contains("refused"), "{error}");
        assert_eq!(waiting(), 0, "{error}");
        host.choose_ports("32768 60999");
        TcpListener::bind(("127.0.0.1", port)).unwrap()
    };
    host.within(|| {
        drop(alone(&|| TcpStore::connect("127.0.0.1", port, SHORT).err().unwrap()));
        #[cfg(feature = "redis")]
        drop(alone(&|| url::open("redis://127.0.0.1:30000", 1, SHORT).err().unwrap()));

        // A rank that has ended before the other connects to it.
        let store = InProcessStore::new();
        let options = ContextOptions { timeout: LONG, ..Default::default() };
        let fixed = DeviceOptions {
            hostname: Some("127.0.0.1".into()),
            port,
            shared_memory: Some(false),
            ..Default::default()
        };
        let fixed = Device::create(&fixed).unwrap();
        let devices = [fixed, device(Some("127.0.0.1"))];
        let mut contexts = ranks(2, |rank| {
            let context = context(&devices[rank], rank, 2, &options);
            context.connect(&*store).unwrap();
            context
        });
        let [fixed, _other] = devices;
        drop((contexts.remove(0), fixed));
        let waiter = &contexts[0];
        drop(alone(&|| barrier(waiter).unwrap_err()));
    });
}

#[test]
fn few_local_ports_suffice_for_many_contexts() {
    if ran_as_root_elsewhere("starts::few_local_ports_suffice_for_many_contexts") {
        return;
    }
    let host = Namespace::new();
    host.choose_ports("32768 32867");
    for hostname in [None, Some("127.0.0.1")] {
        // Six connections each time, of which each leaves a port in TIME_WAIT: more than there are, but not for each of
        // the four listeners.
        host.within(|| {
            let store: Arc<dyn Store> = InProcessStore::new();
            let devices: Vec<_> = (0..4).map(|_| device(hostname)).collect();
            ranks(4, |rank| {
                for turn in 0..25 {
                    let options = ContextOptions { timeout: LONG, connect: Connect::Full, ..Default::default() };
                    let context = context(&devices[rank], rank, 4, &options);
                    context.connect(&PrefixStore::new(format!("{hostname:?}{turn}"), store.clone())).unwrap();
                    barrier(&context).unwrap();
                }
            });
        });
    }
}

#[test]
fn the_error_says_that_local_ports_have_run_out() {
    if ran_as_root_elsewhere("starts::the_error_says_that_local_ports_have_run_out") {
        return;
    }
    let host = Namespace::new();
    host.within(|| {
        let server = TcpStore::serve("127.0.0.1", 29999).unwrap();
        host.choose_ports("32768 32775");
        let connections: Vec<_> = std::iter::from_fn(|| TcpStream::connect("127.0.0.1:29999").ok()).collect();
        assert_eq!(connections.len(), 8);
        let says = |error: Error| {
            for part in ["no free port", "32768 to 32775", "net.ipv4.ip_local_port_range"] {
                assert!(error.message().contains(part), "{error}");
            }
        };
        says(TcpStore::connect("127.0.0.1", 29999, SHORT).err().unwrap());
        #[cfg(feature = "redis")]
        says(url::open("redis://127.0.0.1:29999", 1, SHORT).err().unwrap());
        // The ports are used by sockets that are connected, and a listener needs one for itself.
        says(TcpStore::serve("127.0.0.1", 0).err().unwrap());
        let named = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
        says(Device::create(&named).err().unwrap());
        drop((connections, server));
    });
}

#[test]
fn ranks_meet_where_ipv6_is_switched_off() {
    if ran_as_root_elsewhere("starts::ranks_meet_where_ipv6_is_switched_off") {
        return;
    }
    let host = Namespace::new();
    host.run("for i in all default lo; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; done");
    host.within(|| {
        // A name that the server need not resolve: it listens on all addresses.
        let server: Arc<dyn Store> = Arc::new(TcpStore::serve("rank0.example", 29999).unwrap());
        ranks(2, |rank| {
            let client = || Arc::new(TcpStore::connect("127.0.0.1", 29999, LONG).unwrap());
            let store: Arc<dyn Store> = if rank == 0 { server.clone() } else { client() };
            let context = context(&device(None), rank, 2, &ContextOptions { timeout: LONG, ..Default::default() });
            context.connect(&*store).unwrap();
            barrier(&context).unwrap();
        });
    });
}

/// Lets this thread, and those that it starts, no longer make sockets of netlink, by which the system lists interfaces.
fn forbid_netlink() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // The number of the call is at offset 0, its first argument at offset 16 of seccomp_data (little-endian).
    let filter = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, libc::SYS_socket as u32, 0, 3),
        step(LOAD, 16, 0, 0),
        step(EQUAL, libc::AF_NETLINK as u32, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the first call accesses no memory; the second reads the program, which lives until it returns.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0),
        ]
    };
    assert_eq!(results, [0, 0], "no filter: {}", std::io::Error::last_os_error());
}

#[test]
fn no_list_of_interfaces_is_needed_where_none_is_named() {
    if ran_as_root_elsewhere("starts::no_list_of_interfaces_is_needed_where_none_is_named") {
        return;
    }
    let host = Namespace::new();
    host.within(|| {
        forbid_netlink();
        gloo_rs::net::interface::interfaces().expect_err("the system does not tell");
        for (hostname, size) in [(None, 1), (None, 2), (Some("127.0.0.1"), 2), (Some("127.0.0.7"), 1)] {
            let store = InProcessStore::new();
            ranks(size, |rank| {
                let device = device(hostname);
                let context = context(&device, rank, size, &ContextOptions { timeout: LONG, ..Default::default() });
                context.connect(&*store).unwrap();
                barrier(&context).unwrap();
                let address = device.addresses()[0].ip().to_string();
                assert_eq!(address, hostname.unwrap_or("127.0.0.1"));
            });
        }
        for (interface, hostname, part) in [
            (Some("eth0"), None, "cannot list"),
            (Some("^eth0"), None, "cannot list"),
            (None, Some("192.0.2.1"), "does not have"),
        ] {
            let [interface, hostname] = [interface, hostname].map(|text| text.map(str::to_owned));
            let options = DeviceOptions { interface, hostname, shared_memory: Some(false), ..Default::default() };
            let error = Device::create(&options)
                .and_then(|device| context(&device, 0, 1, &ContextOptions::default()).connect(&*InProcessStore::new()));
            let error = error.unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
    });
}

#[test]
fn an_address_of_the_store_that_is_not_rank_0s_is_said_in_the_log_and_in_the_error() {
    if ran_as_root_elsewhere("starts::an_address_of_the_store_that_is_not_rank_0s_is_said_in_the_log_and_in_the_error")
    {
        return;
    }
    let host = Namespace::new();
    host.within(|| {
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = told.clone();
        let options = TcpStoreOptions {
            log: Some(Arc::new(move |_, text: &str| into.lock().unwrap().push(text.to_owned()))),
            ..Default::default()
        };
        let says = |text: &str| {
            for part in ["\"192.0.2.1\" is no address of rank 0's host", "lo (127.0.0.1", "MASTER_ADDR"] {
                assert!(text.contains(part), "{text}");
            }
        };
        let store: Arc<dyn Store> = Arc::new(TcpStore::serve_with("192.0.2.1", 0, &options).unwrap());
        says(&told.lock().unwrap().join("\n"));
        let short = ContextOptions { timeout: SHORT, ..Default::default() };
        let error = context(&device(None), 0, 2, &short).connect(&PrefixStore::new("p", store)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.message().contains("1 of 2 ranks have not arrived: 1"), "{error}");
        says(error.message());

        told.lock().unwrap().clear();
        let store = TcpStore::serve_with("127.0.0.1", 0, &options).unwrap();
        let error = context(&device(None), 0, 2, &short).connect(&store).unwrap_err();
        assert!(told.lock().unwrap().is_empty() && !error.message().contains("no address of"), "{error}");
    });
}

/// Not a test by itself: a rank of two that the environment describes, over the C ABI. Prints why it cannot start.
#[test]
#[ignore = "run by the tests"]
fn a_rank_alone() {
    let (mut store, mut rank, mut size) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: pointers to variables that live until the calls return; the store, context and device are used as the
    // header demands.
    unsafe {
        use gloo_rs::ffi::*;
        if gloo_rs_launch_from_env(GLOO_RS_TIMEOUT_DEFAULT, &mut store, &mut rank, &mut size) == GLOO_RS_OK {
            let (mut device, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            assert_eq!(gloo_rs_device_create(std::ptr::null(), &mut device), GLOO_RS_OK);
            assert_eq!(gloo_rs_context_create(device, rank, size, std::ptr::null(), &mut context), GLOO_RS_OK);
            assert_ne!(gloo_rs_context_connect(context, store), GLOO_RS_OK);
        }
        println!("{}", std::ffi::CStr::from_ptr(gloo_rs_last_error_message()).to_str().unwrap());
    }
}

/// The command of rank `rank` of `size` ranks, whose store rank 0 serves at `address` and `port`.
fn alone(rank: &str, size: &str, address: &str, port: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "starts::a_rank_alone", "--ignored", "--nocapture"]).env_remove("GLOO_RS_STORE");
    command.env("RANK", rank).env("WORLD_SIZE", size).env("MASTER_ADDR", address).env("MASTER_PORT", port);
    command
}

#[test]
fn a_rank_that_dies_while_others_gather_is_replaced() {
    // A port on an address of loopback that no other test uses.
    let address = "127.83.15.2";
    let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port().to_string();
    let launch = |rank: usize, timeout| {
        let rank = rank.to_string();
        let variables = [("RANK", &*rank), ("WORLD_SIZE", "3"), ("MASTER_ADDR", address), ("MASTER_PORT", &*port)];
        let find = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
        Launch::from_variables(find, timeout)
    };
    let zero = launch(0, LONG).unwrap();
    let mut first = alone("1", "3", address, &port).stdout(std::process::Stdio::null()).spawn().unwrap();
    zero.store.wait(&["host/1"], LONG).unwrap();
    let error = launch(1, SHORT).err().expect("the first is there");
    assert!(error.message().contains("another process is rank 1 there"), "{error}");
    first.kill().unwrap();
    first.wait().unwrap();
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let launches = ranks(3, |rank| {
        let own = (rank != 0).then(|| launch(rank, LONG).unwrap());
        let context = context(&device(Some("127.0.0.1")), rank, 3, &options);
        context.connect(&*own.as_ref().unwrap_or(&zero).store).unwrap();
        barrier(&context).unwrap();
        own
    });
    // All ranks are gathered: nobody takes the place of a rank that ends now.
    drop(launches);
    let error = launch(1, SHORT).err().expect("the job is complete");
    assert!(error.message().contains("another process is rank 1 there"), "{error}");
}

#[test]
fn the_environment_sets_the_time_of_a_start_and_errors_say_so() {
    // A port on an address of loopback that no other test uses.
    let address = "127.83.15.1";
    let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port().to_string();
    let output = |rank, timeout| {
        let output = alone(rank, "2", address, &port).env("GLOO_RS_TIMEOUT", timeout).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (rank, after) in
        [("1", "no store to connect to after 0.3"), ("0", "after 350ms, 1 of 2 ranks have not arrived: 1")]
    {
        let text = output(rank, "0.35");
        assert!(text.contains(after) && text.contains("the default, which GLOO_RS_TIMEOUT"), "{text}");
    }
    let text = output("1", "5m");
    assert!(text.contains("GLOO_RS_TIMEOUT is \"5m\""), "{text}");
}

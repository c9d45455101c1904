//! Hosts that are network namespaces, on one switch. A namespace exists as long as a descriptor of the test's process,
//! so nothing is left behind, however the test ends. Needs root, or the right to create user namespaces.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs `test` again in a user namespace of its own, where it is root, unless it is root already. Returns whether it
/// did; then the test is done. Panics if the test failed there, or no such namespace can be created.
pub fn ran_as_root_elsewhere(test: &str) -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        needs(&["--net"]);
        return false;
    }
    let elsewhere = ["--user", "--map-root-user", "--net"];
    needs(&elsewhere);
    let mut command = Command::new("unshare");
    command.args(elsewhere).arg("--").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // A name that no test has would run none, and pass.
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test}, in a user namespace: {}: {said}",
        output.status
    );
    true
}

/// Fails the test with a message if `unshare` cannot create such namespaces or the test may not change them.
fn needs(namespaces: &[&str]) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["--", "ip", "link", "set", "lo", "up"]).env("PATH", path).stdin(Stdio::null());
    let why = match command.output() {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "),
        Err(error) => error.to_string(),
    };
    panic!(
        "this test makes network namespaces: it needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged), \
         or user namespaces: unshare {}: {why}",
        namespaces.join(" ")
    );
}

/// A rank's process with captured standard output; it is killed with its owner.
pub struct Rank(pub Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rank {
    /// Returns the rank's output, once it has ended.
    pub fn finish(mut self) -> Report {
        let until = Instant::now() + Duration::from_secs(40);
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "a rank does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        Report(text)
    }
}

/// A rank's output, in lines `what: text`.
pub struct Report(pub String);

impl Report {
    /// The text for `what`, which must exist.
    pub fn get(&self, what: &str) -> &str {
        self.find(what).unwrap_or_else(|| panic!("no {what} in {}", self.0))
    }

    pub fn find(&self, what: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(": "))
    }
}

/// A network namespace.
pub struct Namespace(OwnedFd);

impl Namespace {
    /// A new namespace, with loopback up.
    pub fn new() -> Self {
        let make = || {
            // SAFETY: the call accesses no memory; only this thread changes its namespace, and it ends.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(made, 0, "no network namespace: {}", std::io::Error::last_os_error());
            OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap())
        };
        let namespace = Self(std::thread::spawn(make).join().unwrap());
        namespace.run("ip link set lo up");
        namespace
    }

    /// The path of the namespace for `ip ... netns` and `nsenter --net=`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command that will run in the namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let fd = self.0.as_raw_fd();
        let mut command = Command::new(program);
        // SAFETY: between fork and exec there is only a system call, on a descriptor that `self` keeps open until
        // `spawn`.
        unsafe {
            command.pre_exec(move || match libc::setns(fd, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        command
    }

    /// Runs `body` on a thread in the namespace; the threads and sockets that it makes are there as well.
    pub fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let fd = self.0.as_raw_fd();
        let enter = move || {
            // SAFETY: the call accesses no memory; only this thread changes its namespace, and it ends.
            let entered = unsafe { libc::setns(fd, libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "not in the namespace: {}", std::io::Error::last_os_error());
            body()
        };
        std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a shell command in the namespace, which must succeed; returns its output.
    pub fn run(&self, command: &str) -> String {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let output = self.command("sh").args(["-c", command]).env("PATH", path).stdin(Stdio::null()).output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {text}{errors}");
        text.into_owned()
    }

    /// Brings an interface up, and waits until it is.
    fn bring_up(&self, card: &str) {
        self.run(&format!("ip link set {card} up"));
        let until = Instant::now() + Duration::from_secs(10);
        while !self.run(&format!("ip -o link show {card}")).contains("state UP") {
            assert!(Instant::now() < until, "{card} does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Limits the interface's sending rate to `rate`, such as `100mbit`, with a `burst` such as `8kb`.
    pub fn limit(&self, card: &str, rate: &str, burst: &str) {
        self.run(&format!("tc qdisc replace dev {card} root tbf rate {rate} burst {burst} latency 100ms"));
    }

    /// Ends the effect of `swallow`.
    pub fn swallow_no_more(&self) {
        self.run("nft delete table inet cut");
    }

    /// Drops every arriving packet that `matches`, in nft's language.
    pub fn swallow(&self, matches: &str) {
        self.treat(matches, "drop");
    }

    /// Does with every arriving packet that `matches` what `verdict` says, in nft's language.
    pub fn treat(&self, matches: &str, verdict: &str) {
        self.run(&format!(
            "nft 'add table inet cut; add chain inet cut in {{ type filter hook input priority 0; }}; \
             add rule inet cut in {matches} {verdict}'"
        ));
    }
}

/// Hosts and the switch between them.
pub struct Network {
    switch: Namespace,
    cards: usize,
}

impl Network {
    pub fn new() -> Self {
        let switch = Namespace::new();
        switch.run("ip link add switch type bridge mcast_snooping 0 && ip link set switch up");
        Self { switch, cards: 0 }
    }

    /// A switch with this many hosts, each with `eth0`: 10.77.0.1 and up.
    pub fn of_hosts(count: usize) -> (Self, Vec<Namespace>) {
        let mut network = Self::new();
        let hosts = (1..=count).map(|i| network.host(&[("eth0", &[&*format!("10.77.0.{i}/24")])])).collect();
        (network, hosts)
    }

    /// Adds a host with these interfaces and their addresses: `("eth0", &["10.77.0.1/24", "fd77::1/64"])`.
    pub fn host(&mut self, cards: &[(&str, &[&str])]) -> Namespace {
        let host = Namespace::new();
        for (name, addresses) in cards {
            let port = format!("port{}", self.cards);
            self.cards += 1;
            self.switch.run(&format!(
                "ip link add {port} type veth peer name {name} netns {} && ip link set {port} master switch up",
                host.path()
            ));
            for address in *addresses {
                let nodad = if address.contains(':') { "nodad" } else { "" };
                let ipv6 = std::path::Path::new("/proc/net/if_inet6").exists();
                assert!(nodad.is_empty() || ipv6, "this test needs IPv6, which this host's kernel does not have");
                host.run(&format!("ip address add {address} dev {name} {nodad}"));
            }
            host.bring_up(name);
        }
        host
    }
}

/// A wire between two hosts that delays packets. It is removed with its owner.
pub struct Wire {
    ended: Arc<AtomicBool>,
    relay: Option<JoinHandle<()>>,
}

impl Wire {
    /// Gives each host an interface `wire0` with that address; packets take `delay` in each direction.
    pub fn new(hosts: [(&Namespace, &str); 2], delay: Duration) -> Self {
        let middle = Namespace::new();
        let ends = hosts.map(|(host, address)| {
            let end = format!("end{}", host.0.as_raw_fd());
            middle.run(&format!(
                "ip link add {end} type veth peer name wire0 netns {} && ip link set {end} up",
                host.path()
            ));
            host.run(&format!("ip address add {address} dev wire0"));
            host.bring_up("wire0");
            middle.tap(&end)
        });
        let ended = Arc::new(AtomicBool::new(false));
        let stop = ended.clone();
        let relay = std::thread::spawn(move || {
            relay(ends, delay, &stop);
            drop(middle);
        });
        Self { ended, relay: Some(relay) }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.relay.take().unwrap().join();
    }
}

impl Namespace {
    /// A socket that receives the packets that arrive at an interface there, and sends packets that are written to it;
    /// each has the kernel's data on its checksum and segmentation in front.
    fn tap(&self, card: &str) -> File {
        let (fd, card) = (self.0.as_raw_fd(), CString::new(card).unwrap());
        let open = move || {
            let ok = |result: i32| {
                assert!(result >= 0, "no packet socket: {}", std::io::Error::last_os_error());
                result
            };
            let all = (libc::ETH_P_ALL as u16).to_be();
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: the call accesses no memory; only this thread changes its namespace, and it ends.
            ok(unsafe { libc::setns(fd, libc::CLONE_NEWNET) });
            // SAFETY: the call accesses no memory; the descriptor is new and has no other owner.
            let tap = unsafe { File::from_raw_fd(ok(libc::socket(libc::AF_PACKET, kind, all.into()))) };
            let one: libc::c_int = 1;
            // SAFETY: the call reads one int, whose size is passed.
            ok(unsafe {
                let size = size_of_val(&one) as u32;
                libc::setsockopt(
                    tap.as_raw_fd(),
                    libc::SOL_PACKET,
                    libc::PACKET_VNET_HDR,
                    (&raw const one).cast(),
                    size,
                )
            });
            // SAFETY: a zeroed address is valid.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            // SAFETY: the name is a string that ends with a NUL byte.
            address.sll_ifindex = unsafe { libc::if_nametoindex(card.as_ptr()) } as i32;
            // SAFETY: the call reads one address, whose size is passed.
            ok(unsafe { libc::bind(tap.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) });
            tap
        };
        std::thread::spawn(open).join().unwrap()
    }
}

fn relay(mut ends: [File; 2], delay: Duration, ended: &AtomicBool) {
    /// Interval at which it checks whether it must end.
    const LOOK: Duration = Duration::from_millis(50);
    let mut under_way: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    let mut packet = vec![0; 1 << 17];
    while !ended.load(Ordering::Relaxed) {
        let next = under_way.iter().filter_map(|way| way.front()).map(|(due, _)| *due).min();
        let wait = next.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
        let wait = libc::timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
        let mut polled =
            [&ends[0], &ends[1]].map(|end| libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        // SAFETY: the pointer and the count are those of the array; the timespec lives until the call returns.
        unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &wait, std::ptr::null()) };
        for (end, way) in ends.iter_mut().zip(&mut under_way) {
            while let Ok(length @ 1..) = end.read(&mut packet) {
                way.push_back((Instant::now() + delay, packet[..length].to_vec()));
            }
        }
        for (from, way) in under_way.iter_mut().enumerate() {
            while way.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                // If the socket does not accept it, the packet is lost, as on a real wire.
                let _ = way.pop_front().map(|(_, packet)| ends[1 - from].write_all(&packet));
            }
        }
    }
}

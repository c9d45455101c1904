//! Hosts made of network namespaces, on one switch. A namespace lives as long as a descriptor of the test's process, so that
//! nothing is left behind, however the test ends. Needs root, or the right to make user namespaces.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs `test` again in a user namespace of its own, where it is root, unless it is root already. Whether it did; then the
/// test is done. Panics if the test failed there, or no such namespace can be made.
pub fn ran_as_root_elsewhere(test: &str) -> bool {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        return false;
    }
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .status();
    let ran = status.as_ref().is_ok_and(|status| status.success());
    assert!(ran, "{test} needs root, or user namespaces (unshare --user --map-root-user --net): {status:?}");
    true
}

/// A network namespace.
pub struct Namespace(OwnedFd);

impl Namespace {
    /// A new one, with its loopback up.
    pub fn new() -> Self {
        let make = || {
            // SAFETY: no pointers; only this thread moves, and it ends.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(made, 0, "no network namespace: {}", std::io::Error::last_os_error());
            OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap())
        };
        let namespace = Self(std::thread::spawn(make).join().unwrap());
        namespace.run("ip link set lo up");
        namespace
    }

    /// Where `ip ... netns` finds it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command that will run there.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let fd = self.0.as_raw_fd();
        let mut command = Command::new(program);
        // SAFETY: between fork and exec there is only a system call, on a descriptor that `self` keeps open until `spawn`.
        unsafe {
            command.pre_exec(move || match libc::setns(fd, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        command
    }

    /// Runs a shell's command there, which must succeed; what it writes.
    pub fn run(&self, command: &str) -> String {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let output = self.command("sh").args(["-c", command]).env("PATH", path).stdin(Stdio::null()).output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {text}{errors}");
        text.into_owned()
    }

    /// From now on every packet that arrives and `matches`, in nft's language, is swallowed.
    pub fn swallow(&self, matches: &str) {
        self.run(&format!(
            "nft 'add table inet cut; add chain inet cut in {{ type filter hook input priority 0; }}; \
             add rule inet cut in {matches} drop'"
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

    /// A host with these network cards and their addresses: `("eth0", &["10.77.0.1/24", "fd77::1/64"])`.
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
                host.run(&format!("ip address add {address} dev {name} {nodad}"));
            }
            host.run(&format!("ip link set {name} up"));
            let until = Instant::now() + Duration::from_secs(10);
            while !host.run(&format!("ip -o link show {name}")).contains("state UP") {
                assert!(Instant::now() < until, "{name} does not come up");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        host
    }
}

//! `gloo-rs info`: the features of this build and host, and the addresses on which ranks would listen.

use std::net::{SocketAddr, ToSocketAddrs};

use gloo_rs::environment::{self, SHARED_MEMORY};
use gloo_rs::net::choice::{Choice, Chosen, Surroundings};
use gloo_rs::net::interface::{self, Interface};
use gloo_rs::rendezvous::url;
use gloo_rs::sys::topology;
use gloo_rs::transport::shm::{self, Trial};
use serde::Serialize;

use crate::Failure;
use crate::explain::Explain;
use crate::parse;
use crate::verbs::{self, Verbs};

const EXAMPLES: &str = "\
Examples:
  gloo-rs info                                         interfaces, transports, and where a rank would listen
  gloo-rs info --explain allreduce 64Ki -n 8           why `auto` would select an algorithm";

/// Show the features of this build and host, the addresses on which a rank would listen, and why; or why auto selects
/// an algorithm
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The store of the job, as in GLOO_RS_STORE: tcp://host:port, redis://host, file:///path. Nothing is sent to it
    #[arg(long, value_name = "URL", value_parser = parse::store)]
    store: Option<String>,

    /// Network interfaces to use: eth0,ib*,10.0.0.0/8 in order of preference, or ^docker* for all but those
    #[arg(long, value_name = "LIST", value_parser = parse::interfaces)]
    interface: Option<String>,

    #[command(flatten)]
    explain: Explain,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    /// Try to share memory with the process that started this one
    #[arg(long, hide = true, value_name = "SEGMENT")]
    try_segment: Option<String>,
}

const FEATURES: &[(&str, bool)] = &[
    ("cuda", cfg!(all(feature = "cuda", unix))),
    ("redis", cfg!(feature = "redis")),
    ("tls", cfg!(feature = "tls")),
    ("uv", cfg!(feature = "uv")),
    ("ibverbs", cfg!(all(feature = "ibverbs", target_os = "linux"))),
];

#[derive(Serialize)]
struct Info {
    version: &'static str,
    /// Optional features that are built in.
    features: Vec<&'static str>,
    transports: Vec<Transport>,
    /// The reduction kernels used on this CPU.
    kernels: &'static str,
    /// The number of cores that this process may use.
    cores: usize,
    /// The first CPU of the last-level cache that all of them share, if they share one.
    cache: Option<u32>,
    interfaces: Vec<Address>,
    /// The ports of InfiniBand and RoCE devices.
    ibverbs: Vec<verbs::Port>,
    /// The ports that a rank would take, or why it would take none.
    rails: Option<String>,
    /// The links between two ranks of this host, and why.
    links_on_host: String,
    /// The links to ranks of other hosts, and why.
    links_to_other_hosts: String,
    /// Where a rank listens if all ranks of its job are on this host.
    one_host: Vec<Listens>,
    /// Where a rank listens if its job is on several hosts.
    several_hosts: Vec<Listens>,
    /// What is said of variables that seem to be this library's and that nothing reads.
    unread_variables: Vec<String>,
}

/// A way for bytes to other ranks.
#[derive(Serialize)]
struct Transport {
    name: &'static str,
    /// What it is.
    does: &'static str,
    /// Why this build or system does not have it; `None` if it has.
    absent: Option<String>,
}

fn transports(verbs: &Verbs) -> Vec<Transport> {
    let built = |has: bool, why: &str| if has { None } else { Some(why.to_owned()) };
    vec![
        Transport {
            name: "shm",
            does: "memory that ranks of one host share; taken by itself, with another transport for the other ranks",
            absent: built(cfg!(target_os = "linux"), "it needs Linux: memfd, pidfd, process_vm_readv"),
        },
        Transport { name: "tcp", does: "TCP, by epoll on Linux and by poll elsewhere", absent: None },
        Transport {
            name: "tls",
            does: "TLS 1.3 over TCP, with certificates on both sides",
            absent: built(cfg!(feature = "tls"), "built without the cargo feature tls"),
        },
        Transport {
            name: "uv",
            does: "TCP, by libuv",
            absent: built(cfg!(feature = "uv"), "built without the cargo feature uv"),
        },
        Transport {
            name: "ibverbs",
            does: "InfiniBand and RoCE, by verbs; TCP sets up the connections",
            absent: verbs.absent.clone(),
        },
    ]
}

#[derive(Serialize)]
struct Address {
    interface: String,
    address: String,
    up: bool,
    loopback: bool,
    speed_mbps: Option<u32>,
}

#[derive(Serialize)]
struct Listens {
    address: String,
    interface: Option<String>,
    why: String,
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    if let Some(segment) = &args.try_segment {
        let unreadable = Trial::attempt(segment).map_err(|error| error.to_string().into());
        return crate::end(unreadable.and_then(|why| Ok(crate::print(&why.unwrap_or_default())?)));
    }
    let here = || {
        let info = info(&args)?;
        let json = || serde_json::to_string(&info).map_err(|error| error.to_string());
        Ok(if args.json { json()? } else { table(&info) })
    };
    let text = args.explain.text(args.json).unwrap_or_else(here);
    crate::end(text.and_then(|text| Ok(crate::print(&text)?)))
}

fn info(args: &Args) -> Result<Info, Failure> {
    let says = |error: gloo_rs::error::Error| error.to_string();
    let (one_host, several_hosts) = match Choice::make(args.interface.as_deref(), None).map_err(says)? {
        Choice::Named(chosen) => (chosen.clone(), chosen),
        Choice::Free(patterns) => {
            let store = server(args.store.as_deref())?;
            let here = Surroundings::here(patterns.as_ref()).map_err(says)?;
            let several = here.on_several_hosts(store, &mut std::iter::empty()).map_err(says)?;
            (here.on_one_host(&[]).map_err(says)?, several)
        }
    };
    let verbs = Verbs::here();
    let transport = gloo_rs::transport::tcp::Transport::choose(None).map_err(says)?.name();
    Ok(Info {
        version: env!("CARGO_PKG_VERSION"),
        features: FEATURES.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect(),
        transports: transports(&verbs),
        kernels: gloo_rs::reduce::cpu_features(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        cache: topology::place().map_err(|error| error.to_string())?.cache,
        interfaces: interface::interfaces().map_err(says)?.into_iter().map(Address::from).collect(),
        ibverbs: verbs.ports,
        rails: verbs.choice,
        links_on_host: links_on_host(transport)?,
        links_to_other_hosts: format!("{transport}: ranks of different hosts share no memory"),
        one_host: one_host.into_iter().map(Listens::from).collect(),
        several_hosts: several_hosts.into_iter().map(Listens::from).collect(),
        unread_variables: environment::unread(),
    })
}

/// The links between two ranks of this host, tried with another process; by `transport` if they cannot share memory.
fn links_on_host(transport: &str) -> Result<String, Failure> {
    if environment::switch(SHARED_MEMORY).map_err(|error| error.to_string())? == Some(false) {
        return Ok(format!("{transport}: {SHARED_MEMORY} is 0"));
    }
    let tracers = shm::ptracer::choose(None).map_err(|error| error.to_string())?;
    let permitted = tracers.and_then(shm::ptracer::permit).map_or(String::new(), |said| format!("; {said}"));
    let tried = Trial::create().map_err(|error| error.to_string()).and_then(|trial| {
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
        let mut other = std::process::Command::new(program);
        let ended = other.args(["info", "--try-segment", &trial.text]).output();
        let ended = ended.map_err(|error| format!("cannot start another process: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let says = |error: String| error.strip_prefix("gloo-rs: ").map(str::to_owned).unwrap_or(error);
        if ended.status.success() { Ok(text(&ended.stdout)) } else { Err(says(text(&ended.stderr))) }
    });
    Ok(match tried {
        Ok(why) if why.is_empty() => format!("shm: a process here can map another's memory, and read it{permitted}"),
        Ok(why) => {
            format!("shm, without reads of the peer's process, so what is long is copied twice: {why}{permitted}")
        }
        Err(why) => format!("{transport}: {why}"),
    })
}

/// The address of the store's server, if it has one.
fn server(url: Option<&str>) -> Result<Option<SocketAddr>, String> {
    let Some((host, port)) = url.map(url::server).transpose().map_err(|error| error.to_string())?.flatten() else {
        return Ok(None);
    };
    let addresses = (host.as_str(), port).to_socket_addrs();
    Ok(addresses.map_err(|error| format!("cannot resolve the store's host {host:?}: {error}"))?.next())
}

impl From<Chosen> for Listens {
    fn from(Chosen { address, interface, why }: Chosen) -> Self {
        Self { address: without_port(address), interface, why }
    }
}

impl From<Interface> for Address {
    fn from(interface: Interface) -> Self {
        let Interface { name, address, up, loopback, speed_mbps } = interface;
        Self { interface: name, address: without_port(address), up, loopback, speed_mbps }
    }
}

/// The address with its scope, if it has one: `fe80::1%2`.
fn without_port(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => address.ip().to_string(),
    }
}

/// Says for a reader which last-level cache the cores of this process share.
fn caches(cache: Option<u32>) -> String {
    match cache {
        Some(cpu) => format!("all these cores share the last-level cache of CPU {cpu}"),
        None => "these cores do not all share a last-level cache, or the system does not say".to_owned(),
    }
}

fn table(info: &Info) -> String {
    let mut lines = vec![format!("version     {}", info.version), format!("features    {}", info.features.join(", "))];
    for (index, Transport { name, does, absent }) in info.transports.iter().enumerate() {
        let label = if index == 0 { "transports" } else { "" };
        let says = absent.as_ref().map_or_else(|| (*does).to_owned(), |why| format!("absent: {why}"));
        lines.push(format!("{label:10}  {name:7} {says}"));
    }
    lines.extend([
        format!("kernels     {}", info.kernels),
        format!("cores       {}", info.cores),
        format!("caches      {}", caches(info.cache)),
    ]);
    let width = info.interfaces.iter().map(|a| a.interface.len()).max().unwrap_or(0);
    let addresses = info.interfaces.iter().map(|a| a.address.len()).max().unwrap_or(0);
    for (index, a) in info.interfaces.iter().enumerate() {
        let label = if index == 0 { "interfaces" } else { "" };
        let state = if a.up { "up" } else { "down" };
        let loopback = if a.loopback { ", loopback" } else { "" };
        let speed = a.speed_mbps.map(|speed| format!(", {speed} Mbit/s")).unwrap_or_default();
        lines.push(format!("{label:10}  {:width$}  {:addresses$}  {state}{loopback}{speed}", a.interface, a.address));
    }
    lines.extend(verbs::lines(&info.ibverbs, info.rails.as_deref()));
    lines.push(format!("links here  {}", info.links_on_host));
    lines.push(format!("links away  {}", info.links_to_other_hosts));
    for (label, listens) in [("one host", &info.one_host), ("several", &info.several_hosts)] {
        for (index, Listens { address, interface, why }) in listens.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let on = interface.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
            lines.push(format!("{label:10}  {address}{on}: {why}"));
        }
    }
    for (index, said) in info.unread_variables.iter().enumerate() {
        lines.push(format!("{:10}  {said}", if index == 0 { "variables" } else { "" }));
    }
    lines.join("\n")
}

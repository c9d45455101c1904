//! `gloo-rs info`: what this build and this host have.

use gloo_rs::transport::tcp::DeviceOptions;
use gloo_rs::transport::tcp::interface::{self, Interface};
use serde::Serialize;

/// Show what this build and this host have
#[derive(clap::Args)]
pub struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info {
    version: &'static str,
    /// Optional parts that are built in.
    features: Vec<&'static str>,
    transports: Vec<&'static str>,
    /// The reduction kernels that this CPU gets.
    kernels: &'static str,
    /// Those that this process may use.
    cores: usize,
    interfaces: Vec<Address>,
    /// Where a device with default options listens.
    device: Device,
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
struct Device {
    address: String,
    interface: Option<String>,
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    let text = info().and_then(|info| {
        if args.json { serde_json::to_string(&info).map_err(|error| error.to_string()) } else { Ok(table(&info)) }
    });
    match text.and_then(|text| crate::print(&text)) {
        Ok(()) => 0,
        Err(message) => crate::fail(&message, 1),
    }
}

fn info() -> Result<Info, String> {
    let interfaces = interface::interfaces().map_err(|error| error.to_string())?;
    let (address, interface) = interface::resolve(&DeviceOptions::default()).map_err(|error| error.to_string())?;
    Ok(Info {
        version: env!("CARGO_PKG_VERSION"),
        features: vec!["cli"],
        transports: vec!["tcp"],
        kernels: gloo_rs::reduce::cpu_features(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        interfaces: interfaces.into_iter().map(Address::from).collect(),
        device: Device { address: without_port(address), interface },
    })
}

impl From<Interface> for Address {
    fn from(interface: Interface) -> Self {
        let Interface { name, address, up, loopback, speed_mbps } = interface;
        Self { interface: name, address: without_port(address), up, loopback, speed_mbps }
    }
}

/// The address with its scope, if it has one: `fe80::1%2`.
fn without_port(address: std::net::SocketAddr) -> String {
    match address {
        std::net::SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => address.ip().to_string(),
    }
}

fn table(info: &Info) -> String {
    let mut lines = vec![
        format!("version     {}", info.version),
        format!("features    {}", info.features.join(", ")),
        format!("transports  {}", info.transports.join(", ")),
        format!("kernels     {}", info.kernels),
        format!("cores       {}", info.cores),
    ];
    let width = info.interfaces.iter().map(|a| a.interface.len()).max().unwrap_or(0);
    let addresses = info.interfaces.iter().map(|a| a.address.len()).max().unwrap_or(0);
    for (index, a) in info.interfaces.iter().enumerate() {
        let label = if index == 0 { "interfaces" } else { "" };
        let state = if a.up { "up" } else { "down" };
        let loopback = if a.loopback { ", loopback" } else { "" };
        let speed = a.speed_mbps.map(|speed| format!(", {speed} Mbit/s")).unwrap_or_default();
        lines.push(format!("{label:10}  {:width$}  {:addresses$}  {state}{loopback}{speed}", a.interface, a.address));
    }
    let on = info.device.interface.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
    lines.push(format!("device      {}{on}", info.device.address));
    lines.join("\n")
}

//! Log messages, for events and problems that no call reports.

use std::io::Write;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::sys;
use crate::utc::Utc;

/// How important a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Needs an operator's attention, such as a connection that belongs to no job.
    Warning,
    /// An event, such as the address that a device chose.
    Notice,
    /// Information for debugging.
    Detail,
}

impl Level {
    const ALL: [Self; 3] = [Self::Warning, Self::Notice, Self::Detail];

    fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Notice => "notice",
            Self::Detail => "detail",
        }
    }
}

/// Callback for log messages that no call returns, each without the line's end. May be called from any thread, while
/// locks of the library are held: it must not call the library.
pub type LogCallback = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// The environment variable that enables messages on stderr, for devices and stores without a callback.
pub const VARIABLE: &str = "GLOO_RS_LOG";

/// `callback`; without one, a callback that prints to stderr if [`VARIABLE`] is set, else `None`. Fails if the variable
/// contains no level.
pub fn or_environment(callback: Option<LogCallback>) -> Result<Option<LogCallback>> {
    if callback.is_some() {
        return Ok(callback);
    }
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
    let Some(max) = Level::ALL.into_iter().find(|level| value == level.name()) else {
        let names = Level::ALL.map(Level::name).join(", ");
        return Err(Error::invalid(format!("{VARIABLE} is {}; it must be one of {names}", value.display())));
    };
    Ok(Some(Arc::new(move |level, text| {
        if level <= max {
            let host = sys::host_name().unwrap_or_default();
            let (now, host, process) = (Utc::now(), String::from_utf8_lossy(&host), std::process::id());
            let line = format!("{now:.3} {host}[{process}] gloo_rs: {}: {text}\n", level.name());
            // One write per message keeps lines of several processes intact. Errors are ignored: if stderr is closed,
            // there is no reader.
            let _ = sys::without_sigpipe(|| std::io::stderr().write_all(line.as_bytes()));
        }
    })))
}

//! Log messages: what happens beside the calls, and so is in no call's error.

use std::io::Write;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::sys;

/// How important a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Needs an operator's attention, such as a connection that belongs to no job.
    Warning,
    /// An event, such as the address that a device chose.
    Notice,
    /// Helps to find a fault.
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

/// Callback for log messages that no call returns, each without the line's end. May be called from any thread, while locks of
/// the library are held: it must not call the library.
pub type LogCallback = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// The environment variable that asks for messages on stderr, for devices and stores without a callback.
pub const VARIABLE: &str = "GLOO_RS_LOG";

/// `callback`, or without one what [`VARIABLE`] asks for; `None` if that asks for nothing. Fails if it names no level.
pub fn or_environment(callback: Option<LogCallback>) -> Result<Option<LogCallback>> {
    if callback.is_some() {
        return Ok(callback);
    }
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
    let Some(most) = Level::ALL.into_iter().find(|level| value == level.name()) else {
        let names = Level::ALL.map(Level::name).join(", ");
        return Err(Error::invalid(format!("{VARIABLE} is {}; it must be one of {names}", value.display())));
    };
    Ok(Some(Arc::new(move |level, text| {
        if level <= most {
            let line = format!("gloo_rs: {}: {text}\n", level.name());
            // In one write, so that lines of several processes stay whole. Where stderr is closed, nobody wants to read it.
            let _ = sys::without_sigpipe(|| std::io::stderr().write_all(line.as_bytes()));
        }
    })))
}

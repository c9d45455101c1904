//! How threads wait for other ranks, by name.

use std::ffi::OsStr;

use crate::error::{Error, Result};

/// The environment variable that says how threads wait, for devices and contexts whose options do not.
pub const VARIABLE: &str = "GLOO_RS_WAIT";

/// Whether a waiting thread polls, or sleeps in the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// The thread polls until the wait ends.
    Poll,
    /// The thread polls for longer where its core is its own.
    #[default]
    Auto,
    /// The thread sleeps soon.
    Sleep,
}

impl WaitMode {
    /// The modes with their names.
    const NAMES: [(&str, Self); 3] = [("poll", Self::Poll), ("auto", Self::Auto), ("sleep", Self::Sleep)];

    /// The mode with this name, which `source` has given.
    pub fn parse(source: &str, name: &OsStr) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(own, _)| name == *own);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| Error::invalid(format!("{source} is {name:?}; it must be poll, auto or sleep")))
    }

    /// The mode that the environment names, if it does.
    pub fn from_environment() -> Result<Option<Self>> {
        let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        value.map(|value| Self::parse(VARIABLE, &value)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse = |name: &str| WaitMode::parse(VARIABLE, name.as_ref());
        for (name, mode) in WaitMode::NAMES {
            assert_eq!(parse(name).unwrap(), mode);
        }
        for name in ["", "Poll", "sleep ", "yield"] {
            let text = parse(name).unwrap_err().message().to_owned();
            assert_eq!(text, format!("GLOO_RS_WAIT is {name:?}; it must be poll, auto or sleep"));
        }
    }
}

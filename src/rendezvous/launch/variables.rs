//! The environment variables that launchers set.

use std::ffi::OsString;

use crate::error::{Error, Result};

/// Environment variables; empty ones count as not set.
pub struct Variables<'a>(pub &'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    /// The value of `name`, if it is set.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        match (self.0)(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value
                .into_string()
                .map(Some)
                .map_err(|value| Error::invalid(format!("the environment variable {name}={value:?} is not UTF-8"))),
        }
    }

    /// The value of `name`, which must be set.
    pub fn needed(&self, name: &str, meaning: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| Error::invalid(format!("the environment variable {name} is not set: {meaning}")))
    }

    /// The first of `names` that is set, with its value.
    pub fn first(&self, names: &[&'static str]) -> Result<Option<(&'static str, String)>> {
        for name in names {
            if let Some(value) = self.text(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }
}

//! The source of rank 0's tuning: the context's options or the environment.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::tuner::file::Tuning;

/// The environment variable that corresponds to the context's option `tuning`.
pub const VARIABLE: &str = "GLOO_RS_TUNING";

/// A tuning file, or a keyword in its place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// The contents of the file; empty if there is none.
    pub tuning: Tuning,
    /// The path of the file.
    pub file: Option<PathBuf>,
    /// Whether missing values are measured when ranks connect, or those of rank 0's processor; otherwise the built-in
    /// ones are used.
    pub measures: bool,
}

impl Source {
    /// The source named by the environment variable. Errors name the variable, the file and the line.
    pub fn from_environment() -> Result<Self> {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::read(&text).map_err(|error| error.context(VARIABLE))
    }

    /// The source named by `text`: `measure` (also the meaning of an empty string), `default`, or the path of a tuning
    /// file. Errors name the file and the line.
    pub fn read(text: impl AsRef<OsStr>) -> Result<Self> {
        let path = Path::new(text.as_ref());
        match path.to_str() {
            Some("" | "measure") => Ok(Self { measures: true, ..Self::default() }),
            Some("default") => Ok(Self::default()),
            _ => Ok(Self { tuning: Tuning::read(path)?, file: Some(path.into()), measures: true }),
        }
    }
}

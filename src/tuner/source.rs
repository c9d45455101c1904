//! What rank 0 is told to go by: in its context's options, or in the environment.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::tuner::file::Tuning;

/// The environment variable that stands for a context's option `tuning`.
pub const VARIABLE: &str = "GLOO_RS_TUNING";

/// A tuning file, or what stands for one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// What the file says; nothing, if there is none.
    pub tuning: Tuning,
    /// The file.
    pub file: Option<PathBuf>,
    /// Whether what is missing there is measured when ranks connect, or else built in.
    pub measures: bool,
}

impl Source {
    /// What the environment says. Errors name the variable, the file and the line.
    pub fn from_environment() -> Result<Self> {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::read(&text.to_string_lossy()).map_err(|error| error.context(VARIABLE))
    }

    /// What `text` stands for: `measure`, which is also what nothing means, `default`, or a tuning file's path. Errors name the
    /// file and the line.
    pub fn read(text: &str) -> Result<Self> {
        match text {
            "" | "measure" => Ok(Self { measures: true, ..Self::default() }),
            "default" => Ok(Self::default()),
            path => Ok(Self { tuning: Tuning::read(Path::new(path))?, file: Some(path.into()), measures: true }),
        }
    }
}

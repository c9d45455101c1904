//! Environment variables: those that switch something on or off, the one with the default timeout, and the names of
//! all.

use std::ffi::OsString;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::nearest::nearest;

/// The variable with the timeout, in seconds, of starts and of calls that name none.
pub const TIMEOUT: &str = "GLOO_RS_TIMEOUT";
/// The variable by which `gloo-rs run` says how often it has started the ranks again.
pub const RESTART_COUNT: &str = "GLOO_RS_RESTART_COUNT";
/// The variable that forbids sharing memory.
pub const SHARED_MEMORY: &str = "GLOO_RS_SHM";
/// The variable with the beginning of the names of files to which flight recorders are written.
pub const RECORDER: &str = "GLOO_RS_RECORDER";
/// The variable that lets `gloo-rs top` ask this process.
pub const TOP: &str = "GLOO_RS_TOP";
/// The timeout if [`TIMEOUT`] is not set.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest: a year.
const LONGEST_SECONDS: f64 = 31_536_000.0;

/// The timeout of starts and of calls that name none. Fails if [`TIMEOUT`] is not a positive number of seconds.
pub fn default_timeout() -> Result<Duration> {
    timeout_or(DEFAULT_TIMEOUT)
}

/// Like [`default_timeout`], with another timeout if the variable is not set.
pub fn timeout_or(default: Duration) -> Result<Duration> {
    timeout_of(std::env::var_os(TIMEOUT), default)
}

fn timeout_of(value: Option<OsString>, default: Duration) -> Result<Duration> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(default) };
    let seconds = value.to_str().and_then(|text| text.parse::<f64>().ok());
    let time = seconds.filter(|seconds| (1e-3..=LONGEST_SECONDS).contains(seconds)).map(Duration::from_secs_f64);
    time.ok_or_else(|| {
        Error::invalid(format!(
            "{TIMEOUT} is {value:?}; it must be a number of seconds from 0.001 to {LONGEST_SECONDS}"
        ))
    })
}

/// The error of a call that named no timeout: if that was too short, with the variable that sets it, once.
pub fn by_default(error: Error) -> Error {
    let text = format!("; the call named no timeout, so it was the default, which {TIMEOUT} (in seconds) sets");
    if error.kind() != ErrorKind::Timeout || error.message().contains(&text) { error } else { error.and(text) }
}

/// Whether `variable` is 1 or 0; `None` if it is empty or not set. Fails if it is anything else.
pub fn switch(variable: &str) -> Result<Option<bool>> {
    match std::env::var_os(variable).as_deref().map(std::ffi::OsStr::as_encoded_bytes) {
        None | Some(b"") => Ok(None),
        Some(b"0") => Ok(Some(false)),
        Some(b"1") => Ok(Some(true)),
        Some(other) => {
            let text = String::from_utf8_lossy(other);
            Err(Error::invalid(format!("{variable} is {text:?}; it must be 0 or 1")))
        }
    }
}

/// What all names of variables of this library and its tool begin with.
pub const PREFIX: &str = "GLOO_RS_";
/// What those of the tests begin with.
const OF_TESTS: &str = "GLOO_RS_TEST";

/// All variables that the library, the tool or the package for Python reads, or sets for programs.
pub const KNOWN: &[&str] = &[
    "GLOO_RS_ALGORITHM",
    "GLOO_RS_CHECK_CALLS",
    "GLOO_RS_IB_GID_INDEX",
    "GLOO_RS_IB_HCA",
    "GLOO_RS_IB_PORT",
    "GLOO_RS_IB_REGISTRATION_CACHE",
    "GLOO_RS_IB_RETRY_COUNT",
    "GLOO_RS_IB_TIMEOUT",
    "GLOO_RS_IB_TRAFFIC_CLASS",
    "GLOO_RS_JOB",
    "GLOO_RS_LOG",
    "GLOO_RS_PORT_RANGE",
    "GLOO_RS_PTRACER",
    "GLOO_RS_RECORDER",
    "GLOO_RS_RESTART_COUNT",
    "GLOO_RS_SHM",
    "GLOO_RS_SOCKET_IFNAME",
    "GLOO_RS_STORE",
    "GLOO_RS_STREAMS",
    "GLOO_RS_TIMEOUT",
    "GLOO_RS_TLS_CA_FILE",
    "GLOO_RS_TLS_CA_PATH",
    "GLOO_RS_TLS_CERT",
    "GLOO_RS_TLS_KEY",
    "GLOO_RS_TLS_NAMES",
    "GLOO_RS_TOKEN",
    "GLOO_RS_TOP",
    "GLOO_RS_TORCH",
    "GLOO_RS_TRANSPORT",
    "GLOO_RS_TUNING",
    "GLOO_RS_WAIT",
];

/// A sentence for each of this process's variables that seems to be the library's and that nothing reads, in
/// alphabetical order.
pub fn unread() -> Vec<String> {
    unread_of(std::env::vars_os().map(|(name, _)| name))
}

/// Like [`unread`], for variables with these names.
pub fn unread_of(names: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let names = names.into_iter().map(|name| name.to_string_lossy().into_owned());
    let is_unread =
        |name: &String| name.starts_with(PREFIX) && !name.starts_with(OF_TESTS) && !KNOWN.contains(&name.as_str());
    let mut unread: Vec<_> = names.filter(is_unread).collect();
    unread.sort();
    unread.dedup();
    unread.iter().map(|name| format!("nothing reads the variable {name}{}", meant(name))).collect()
}

/// The known name that is most like `name`, for a sentence. What all names begin with does not count.
fn meant(name: &str) -> String {
    let rest = |name: &'static str| name.strip_prefix(PREFIX);
    let near = nearest(name.strip_prefix(PREFIX).unwrap_or(name), KNOWN.iter().copied().filter_map(rest));
    near.map_or(String::new(), |near| format!("; the nearest is {PREFIX}{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn variables_that_nothing_reads_are_named_with_the_nearest() {
        let said = |names: &[&str]| unread_of(names.iter().map(OsString::from));
        assert_eq!(
            said(&["PATH", "GLOO_RS_TIMEOT", "GLOO_RS_LOG", "GLOO_RS_TEST_TIER", "GLOO_RS_COLOUR", "GLOO_RS_IB_HAC"]),
            [
                "nothing reads the variable GLOO_RS_COLOUR",
                "nothing reads the variable GLOO_RS_IB_HAC; the nearest is GLOO_RS_IB_HCA",
                "nothing reads the variable GLOO_RS_TIMEOT; the nearest is GLOO_RS_TIMEOUT",
            ]
        );
        assert!(said(KNOWN).is_empty());
    }

    /// The names in quotes in the sources below `folder`, but for the names of the C interface, in a folder that reads
    /// no variable.
    fn names_in(folder: &Path) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // The compressed kernels for GPUs are no text; `kernels.ptx`, from which they are made, is.
            if path.ends_with("src/ffi") || path.ends_with("src/cuda/kernels.ptx.deflate") {
                continue;
            }
            if path.is_dir() {
                names.extend(names_in(&path));
            } else if !path.ends_with("src/environment.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let parts = text.split('"');
                let is_name = |part: &str| {
                    part.starts_with(PREFIX)
                        && part.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
                };
                names.extend(parts.filter(|part| is_name(part)).map(str::to_owned));
            }
        }
        names
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn all_variables_of_the_sources_are_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // A package of this crate does not contain the tool.
        let Ok(tool) = root.join("tool/src").canonicalize() else { return };
        let mut named = names_in(&root.join("src"));
        named.extend(names_in(&tool));
        named.retain(|name| !name.starts_with(OF_TESTS) && name != PREFIX);
        // Constants of this file have theirs here, and one is of `python/gloo_rs_autoload`.
        named.extend([TIMEOUT, RESTART_COUNT, SHARED_MEMORY, RECORDER, TOP, "GLOO_RS_TORCH"].map(str::to_owned));
        assert_eq!(named, KNOWN.iter().map(|name| (*name).to_owned()).collect());
    }

    #[test]
    fn timeouts() {
        let timeout = |text: &str| timeout_of(Some(text.into()), DEFAULT_TIMEOUT);
        assert_eq!(timeout_of(None, Duration::from_secs(7)).unwrap(), Duration::from_secs(7));
        for (text, seconds) in [("", 30.0), ("300", 300.0), ("0.25", 0.25), ("1e3", 1000.0)] {
            assert_eq!(timeout(text).unwrap(), Duration::from_secs_f64(seconds), "{text}");
        }
        for text in ["0", "-1", "5m", "inf", "nan", "1e9", " 5"] {
            let error = timeout(text).unwrap_err();
            assert!(error.message().contains(&format!("{TIMEOUT} is {text:?}")), "{error}");
        }
    }

    #[test]
    fn only_timeouts_name_the_variable() {
        let text = |kind| by_default(Error::new(kind, "why")).message().to_owned();
        assert!(text(ErrorKind::Timeout).contains(TIMEOUT));
        let twice = by_default(by_default(Error::new(ErrorKind::Timeout, "why")).context("a wait in a call"));
        assert_eq!(twice.message().matches(TIMEOUT).count(), 1, "{twice}");
        assert_eq!(text(ErrorKind::Mismatch), "why");
    }
}

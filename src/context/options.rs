//! What the creator of a context chooses.

use std::path::PathBuf;
use std::time::Duration;

use super::{check_calls, recorder};
use crate::collective::Order;
use crate::environment;
use crate::error::{Error, Result};
use crate::secret::JobToken;
use crate::transport::Device;
use crate::version::Version;
use crate::wait_mode::WaitMode;

/// When connections to peers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Connect {
    /// On first use.
    #[default]
    Lazy,
    /// To every rank, before `connect` returns.
    Full,
}

/// Options of a context.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// Timeout of an operation, if the call does not set one. Zero: only what is possible without waiting.
    /// `Duration::MAX`: no timeout. 30 s by default.
    pub timeout: Duration,
    /// Whether nobody has chosen `timeout`: errors of calls that end by it then name the variable
    /// [`environment::TIMEOUT`].
    pub timeout_by_default: bool,
    /// When connections are made.
    pub connect: Connect,
    /// Longest message of a collective, in bytes. 1 MiB by default. The same on all ranks.
    pub max_segment_bytes: usize,
    /// The job token, which must be equal on all ranks; empty for none. `None`: the value of `GLOO_RS_TOKEN` when the
    /// context is created.
    pub token: Option<JobToken>,
    /// Whether ranks compare their calls before each collective, which costs an allgather. Calls that differ then fail
    /// on every rank, with an error that names the differences, and the context stays usable. `None`: as
    /// `GLOO_RS_CHECK_CALLS` says, else not. The same on all ranks.
    pub check_calls: Option<bool>,
    /// The order of the allreduces, reduces and reduce-scatters that have none of their own. The same on all ranks.
    pub order: Order,
    /// Source of the constants for estimating the cost of algorithms, and of recorded choices: a tuning file's path,
    /// `measure`, or `default` for built-in constants. `None`: as `GLOO_RS_TUNING` says, else `measure`. Only rank 0's
    /// option is used, for all ranks.
    pub tuning: Option<String>,
    /// Whether [`alloc`](super::Context::alloc) takes all pages at once. This takes as long as writing them, and a rank
    /// that writes its memory from a thread on another NUMA node finds it far away; but no later write waits for a
    /// page, or finds none.
    pub commit_memory: bool,
    /// Whether waiting threads poll or sleep. `None`: as the device's options say, else as `GLOO_RS_WAIT` says, else
    /// `auto`.
    pub wait: Option<WaitMode>,
    /// The beginning of the name of the file to which the flight recorder is written if a collective fails; the rank
    /// follows. Empty: it is not written. `None`: as `GLOO_RS_RECORDER` says, else it is not.
    pub recorder: Option<PathBuf>,
    /// Whether the ranks can [agree](super::Context::agree) on who is left, and [shrink](super::Context::shrink) the
    /// context. Some tests count what each of their contexts does, and need no more.
    pub agrees: bool,
    /// This library's. Tests pretend to be another.
    pub version: Version,
}

impl ContextOptions {
    /// These, for contexts of `device`, with what the environment says where they say nothing.
    pub(super) fn with_environment(&self, device: &dyn Device) -> Result<Self> {
        if self.max_segment_bytes == 0 {
            return Err(Error::invalid("a context's largest segment must not be zero"));
        }
        Ok(Self {
            token: Some(self.token.clone().unwrap_or_else(JobToken::from_environment)),
            check_calls: Some(self.check_calls.map_or_else(check_calls::from_environment, Ok)?),
            wait: match self.wait.or(device.wait_mode()) {
                None => WaitMode::from_environment()?,
                chosen => chosen,
            },
            recorder: self.recorder.clone().or_else(recorder::from_environment),
            ..self.clone()
        })
    }
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self {
            timeout: environment::DEFAULT_TIMEOUT,
            timeout_by_default: false,
            connect: Connect::Lazy,
            max_segment_bytes: 1 << 20,
            token: None,
            check_calls: None,
            order: Order::Any,
            tuning: None,
            commit_memory: false,
            wait: None,
            recorder: None,
            agrees: true,
            version: Version::OWN,
        }
    }
}

//! Tells a user what the contexts of a device are doing: `gloo-rs top` asks for it.
//!
//! A monitor has a thread of its own, because the device's thread has messages to progress. It exists only if the device
//! was told to have one. It listens at a Unix socket and answers processes of the same user, and root. A client sends a
//! line with a [`Question`], and receives a JSON object with a document of each context, and the end of the stream.
//!
//! Nothing that a client does holds up the job or another client: requests are short, answers are made one context after
//! the other as they are read, and a client has a few seconds.

#[cfg(target_os = "linux")]
pub mod client;
#[cfg(target_os = "linux")]
mod server;

#[cfg(target_os = "linux")]
pub use server::Monitor;

/// What a client wants to know of each context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// What it is doing: its record without most of the calls that have ended.
    Present,
    /// Its whole record.
    Record,
}

impl Question {
    /// The line that asks, without its end.
    pub fn text(self) -> &'static str {
        match self {
            Self::Present => "gloo_rs 1 present",
            Self::Record => "gloo_rs 1 record",
        }
    }

    #[cfg(target_os = "linux")]
    fn parse(line: &[u8]) -> Option<Self> {
        [Self::Present, Self::Record].into_iter().find(|question| line == question.text().as_bytes())
    }
}

/// Makes the document of one context; `None` if it has ended.
pub type Report = Box<dyn FnOnce(Question) -> Option<String> + Send>;

/// What the names of monitors' sockets in the abstract namespace begin with. The process follows, and a random number:
/// nobody can take the name before.
pub const NAMES: &str = "gloo_rs-top/";

/// Where monitors do not exist.
#[cfg(not(target_os = "linux"))]
pub enum Monitor {}

#[cfg(not(target_os = "linux"))]
impl Monitor {
    /// Fails.
    pub fn start(_reports: impl Fn() -> Vec<Report> + Send + 'static) -> std::io::Result<Self> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "only Linux has monitors"))
    }

    /// For a child by fork.
    pub fn abandon(self) {}
}

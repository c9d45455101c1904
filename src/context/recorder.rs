//! Writes what the flight recorder has to files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::{Context, Shared};
use crate::engine::Guard;
use crate::engine::recorder::{About, Snapshot};
use crate::environment::RECORDER;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::net::monitor::Question;
use crate::types::Rank;

/// Where and when the recorder of a context is written.
pub(super) struct Dumps {
    about: About,
    /// The file to which it is written on failure and on request.
    place: Option<PathBuf>,
    /// Whether the first failure was written.
    has_failed: AtomicBool,
    /// Whether the device's thread is to write it.
    is_requested: AtomicBool,
}

/// The beginning of the files' names, if the environment has it.
pub(super) fn from_environment() -> Option<PathBuf> {
    std::env::var_os(RECORDER).map(PathBuf::from)
}

impl Dumps {
    /// For a context of `rank` of `size` whose device has this transport. `prefix`: how the file's name begins.
    pub fn new(rank: Rank, size: usize, transport: &'static str, prefix: Option<&Path>) -> Self {
        let place = prefix.filter(|prefix| !prefix.as_os_str().is_empty()).map(|prefix| {
            let mut name = prefix.as_os_str().to_owned();
            name.push(rank.to_string());
            PathBuf::from(name)
        });
        let about = About { rank, size, transport };
        Self { about, place, has_failed: AtomicBool::new(false), is_requested: AtomicBool::new(false) }
    }

    fn write(&self, snapshot: &Snapshot, path: &Path) -> Result<()> {
        let failed = |error| Error::io(format_args!("cannot write the flight recorder to {}", path.display()), &error);
        // Whoever reads the file finds all of it.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(name);
        let written = fs::write(&part, snapshot.to_json(&self.about)).and_then(|()| fs::rename(&part, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&part);
            failed(error)
        })
    }
}

impl Shared {
    fn write_or_warn(&self, snapshot: &Snapshot, path: &Path) {
        if let (Err(error), Some(log)) = (self.dumps.write(snapshot, path), self.device.log()) {
            log(Level::Warning, &format!("rank {}: {error}", self.dumps.about.rank));
        }
    }

    /// For the device's thread: writes the recorder if that was requested.
    pub(super) fn dump_if_requested(&self) {
        if let Some(place) = self.dumps.place.as_ref().filter(|_| self.dumps.is_requested.swap(false, Ordering::AcqRel))
        {
            let snapshot = self.engine.lock().snapshot();
            self.write_or_warn(&snapshot, place);
        }
    }
}

impl Shared {
    /// The answer of this context. Takes the lock only for what is in progress.
    pub(super) fn report_on(&self, question: Question) -> String {
        let snapshot = self.engine.lock().in_progress();
        let snapshot = snapshot.with_ended(self.engine.recorder());
        let snapshot = if question == Question::Present { snapshot.present() } else { snapshot };
        snapshot.to_json(&self.dumps.about)
    }
}

impl Context {
    /// Writes the last collectives of this context, and those in progress, to the file `path`, as JSON.
    pub fn dump_recorder(&self, path: &Path) -> Result<()> {
        let snapshot = self.lock()?.snapshot();
        self.shared.dumps.write(&snapshot, path)
    }

    /// Has the device's thread write the recorder to the file that the options or the environment name. Returns false
    /// if they name none, or this process has inherited the context by fork. Safe in a signal handler.
    pub fn request_dump(&self) -> bool {
        let dumps = &self.shared.dumps;
        if dumps.place.is_none() || self.is_inherited() {
            return false;
        }
        dumps.is_requested.store(true, Ordering::Release);
        self.engine().remind();
        true
    }

    /// What is to be written if a collective has failed with `error`, which breaks the context: before other calls
    /// fail, too.
    #[cold]
    pub(super) fn snapshot_of_failure(&self, guard: &mut Guard<'_>, error: &Error) -> Option<Snapshot> {
        let dumps = &self.shared.dumps;
        let is_first = dumps.place.is_some()
            && error.kind() != ErrorKind::Closed
            && !dumps.has_failed.swap(true, Ordering::AcqRel);
        is_first.then(|| {
            let snapshot = guard.snapshot();
            Snapshot { broken: Some(error.clone()), ..snapshot }
        })
    }

    /// Writes it, without locks.
    pub(super) fn dump_failure(&self, snapshot: Option<Snapshot>) {
        if let Some((snapshot, place)) = snapshot.as_ref().zip(self.shared.dumps.place.as_deref()) {
            self.shared.write_or_warn(snapshot, place);
        }
    }
}

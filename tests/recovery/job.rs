//! A job whose ranks are forked from this process, which has no thread, device or context.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tempfile::TempDir;

use crate::host;
use crate::rank::{self, Order};

/// Time limit of a rank's answer, reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(180);

/// A rank's process. Dropping it kills it.
struct Process {
    id: libc::pid_t,
    lines: BufReader<UnixStream>,
}

impl Process {
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the call accesses no memory; the process is a child that has not been waited for, so its id is valid.
        assert_eq!(unsafe { libc::kill(self.id, signal) }, 0);
    }

    fn wait(&self) {
        let mut status = 0;
        // SAFETY: the call writes an int to `status`; the process is a child that is waited for once.
        assert_eq!(unsafe { libc::waitpid(self.id, &mut status, 0) }, self.id);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.wait();
    }
}

/// What a rank said of the call that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Nanoseconds of the monotonic clock.
    pub began: u64,
    pub ended: u64,
    pub kind: String,
    /// The rank that the error names; -1 for none.
    pub rank: i64,
    /// The rank that the context named as the reason why it is broken; -1 if it named none, or was not broken.
    pub broken_by: i64,
    pub text: String,
}

pub struct Job {
    /// Dropped, and so killed, before their store.
    ranks: Vec<Process>,
    directory: TempDir,
}

impl Job {
    pub fn new(size: usize) -> Self {
        let mut job = Self { ranks: Vec::new(), directory: tempfile::tempdir().unwrap() };
        (0..size).for_each(|_| {
            let new = job.fork();
            job.ranks.push(new);
        });
        job
    }

    fn fork(&self) -> Process {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(PATIENCE)).unwrap();
        // SAFETY: this process has one thread, so the child may do anything. It ends by `_exit` and drops nothing of
        // this process.
        let id = unsafe { libc::fork() };
        assert_ne!(id, -1, "{}", std::io::Error::last_os_error());
        if id > 0 {
            return Process { id, lines: BufReader::new(here) };
        }
        // SAFETY: descriptors that this process does not use, and whose owners it never drops.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let others = self.ranks.iter().map(|other| other.lines.get_ref().as_raw_fd());
            others.chain([here.as_raw_fd()]).for_each(|fd| assert_eq!(libc::close(fd), 0));
        }
        let ended = catch_unwind(AssertUnwindSafe(|| rank::serve(there, self.directory.path())));
        // SAFETY: ends the process without running destructors.
        unsafe { libc::_exit(i32::from(ended.is_err())) }
    }

    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Gives every rank its order, and waits until all are connected.
    pub fn start(&mut self, order: impl Fn(usize) -> Order) {
        for (rank, process) in self.ranks.iter_mut().enumerate() {
            process.lines.get_mut().write_all(order(rank).write().as_bytes()).unwrap();
        }
        (0..self.size()).for_each(|rank| assert_eq!(self.line(rank, "up").len(), 0));
    }

    /// The fields of the next line of `rank`, which begins with `word`.
    fn line(&mut self, rank: usize, word: &str) -> Vec<String> {
        let mut line = String::new();
        let read = self.ranks[rank].lines.read_line(&mut line);
        let mut fields = line.trim_end().split('\t').map(str::to_owned);
        let first = fields.next().unwrap_or_default();
        assert_eq!(first, word, "rank {rank} has ended, or hangs, or said: {line} ({read:?})");
        fields.collect()
    }

    /// How the call of `rank` failed.
    pub fn failure(&mut self, rank: usize) -> Failure {
        let [began, ended, kind, named, broken_by, text] = self.line(rank, "failed").try_into().unwrap();
        let time = |text: String| text.parse().unwrap();
        let number = |text: String| text.parse().unwrap();
        let (rank, broken_by) = (number(named), number(broken_by));
        Failure { began: time(began), ended: time(ended), kind, rank, broken_by, text }
    }

    /// When `rank` had a verified sum of the survivors.
    pub fn went_on(&mut self, rank: usize) -> u64 {
        let fields = self.line(rank, "went on");
        assert_eq!(fields[1], (self.size() - 1).to_string(), "rank {rank}'s sum");
        fields[0].parse().unwrap()
    }

    /// Waits until `rank` has destroyed its contexts and found that nothing of them is left.
    pub fn ready(&mut self, rank: usize) {
        assert_eq!(self.line(rank, "ready").len(), 0);
    }

    pub fn signal(&self, rank: usize, signal: libc::c_int) {
        self.ranks[rank].signal(signal);
    }

    /// Waits for the end of `rank`, which has been killed or exits, and starts another process in its place.
    pub fn replace(&mut self, rank: usize) {
        // The process is not reaped before its replacement is forked, so that its id stays its own.
        let new = self.fork();
        drop(std::mem::replace(&mut self.ranks[rank], new));
    }

    /// Checks that `/dev/shm` is empty, and the store holds keys of these contexts and nothing else: of all with equal
    /// size the same number.
    pub fn check_files(&self, contexts: &[(String, usize)]) {
        assert_eq!(host::files("/dev/shm"), [""; 0]);
        let mut keys: HashMap<&str, usize> = contexts.iter().map(|(prefix, _)| (&prefix[..], 0)).collect();
        let found = host::files(self.directory.path().to_str().unwrap());
        for file in found.iter().filter(|file| *file != "gloo_rs.lock") {
            let prefix =
                file.strip_prefix("gloo_rs.key.").and_then(|key| key.split_once("%2F")).map(|(prefix, _)| prefix);
            let count = prefix.and_then(|prefix| keys.get_mut(prefix));
            *count.unwrap_or_else(|| panic!("{file} is left in the store")) += 1;
        }
        let mut expected = HashMap::new();
        for (prefix, size) in contexts {
            let (count, first) = (keys[&prefix[..]], *expected.entry(size).or_insert(keys[&prefix[..]]));
            assert!(count == first && count > 2 * size, "{count} keys of {prefix}, of another {first}: {found:?}");
        }
    }
}

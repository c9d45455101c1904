//! The ranks' output on its way to this process's standard output and error. It waits in a queue, so that a reader that
//! pauses (`| less`) holds up the ranks that write, and nothing else.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::frame;

/// The destination of a rank's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Stdout,
    Stderr,
    /// Frames of this kind, to the launcher that started this helper.
    Frames(u8),
}

impl Target {
    /// The message for a failed write.
    pub fn lost(self, error: &io::Error) -> String {
        let name = if self == Self::Stderr { "standard error" } else { "standard output" };
        format!("cannot write to {name}: {error}")
    }
}

/// A queue of this many bytes has no room for what ranks write.
const FULL_BYTES: usize = 64 << 10;

/// Erases the line of a terminal from the cursor on (ECMA-48, EL).
const ERASE_LINE: &[u8] = b"\x1b[K";

/// What is still to be written to one descriptor.
struct Queue {
    target: Target,
    descriptor: i32,
    /// The pipe or terminal of `descriptor` once more, non-blocking. The descriptor itself may be shared with other
    /// processes, which a change of its flags would surprise.
    reopened: Option<File>,
    bytes: VecDeque<u8>,
    /// Whether it is a terminal.
    terminal: bool,
    /// Whether the last line is one that its end, a carriage return, lets the next one overwrite.
    returned: bool,
    /// Whether it cannot be written any more. What comes then is dropped.
    lost: bool,
}

impl Queue {
    fn new(target: Target, descriptor: i32) -> Self {
        let reopened = reopen(descriptor);
        let descriptor = reopened.as_ref().map_or(descriptor, AsRawFd::as_raw_fd);
        // SAFETY: the call accesses no memory of this process.
        let terminal = unsafe { libc::isatty(descriptor) } == 1;
        Self { target, descriptor, reopened, bytes: VecDeque::new(), terminal, returned: false, lost: false }
    }

    fn poll(&self) -> libc::pollfd {
        libc::pollfd { fd: self.descriptor, events: libc::POLLOUT, revents: 0 }
    }

    /// Writes as much as the descriptor accepts without waiting.
    fn flush(&mut self) -> io::Result<()> {
        while !self.bytes.is_empty() {
            let mut poll = self.poll();
            // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
            if unsafe { libc::poll(&mut poll, 1, 0) } <= 0 {
                break;
            }
            let (front, _) = self.bytes.as_slices();
            // What is ready and not non-blocking accepts so much without waiting: a socket, or a file, which does not
            // wait at all.
            let max = if self.reopened.is_some() { front.len() } else { front.len().min(libc::PIPE_BUF) };
            // SAFETY: the pointer is that of `front`, and the length is not above its own.
            let written = unsafe { libc::write(self.descriptor, front.as_ptr().cast(), max) };
            if let Ok(written) = usize::try_from(written) {
                self.bytes.drain(..written);
                continue;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => break,
                _ => {
                    self.lose();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Adds whole lines. On a terminal, the first one replaces a line that ended with a carriage return, whoever wrote
    /// that.
    fn extend(&mut self, bytes: &[u8]) {
        if self.terminal && self.returned {
            self.bytes.extend(ERASE_LINE);
        }
        self.returned = bytes.ends_with(b"\r");
        self.bytes.extend(bytes);
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= FULL_BYTES
    }

    fn lose(&mut self) {
        self.lost = true;
        self.bytes = VecDeque::new();
    }
}

/// The queues of standard output and standard error: one for both if they are one file, so that lines stay whole and in
/// order.
pub struct Outputs {
    queues: Vec<Queue>,
    /// Why files of ranks' output could not be written.
    lost_logs: Vec<String>,
}

impl Outputs {
    pub fn new() -> Self {
        let errors = (!is_one_file(libc::STDOUT_FILENO, libc::STDERR_FILENO))
            .then(|| Queue::new(Target::Stderr, libc::STDERR_FILENO));
        let queues = [Queue::new(Target::Stdout, libc::STDOUT_FILENO)].into_iter().chain(errors).collect();
        Self { queues, lost_logs: Vec::new() }
    }

    /// The index of the queue of `target`.
    fn of(&self, target: Target) -> usize {
        if target == Target::Stderr { self.queues.len() - 1 } else { 0 }
    }

    /// Whether `target` may get more. What comes from the launcher itself need not ask.
    pub fn has_room(&self, target: Target) -> bool {
        !self.queues[self.of(target)].is_full()
    }

    /// Whether `target` cannot be written any more.
    pub fn is_lost(&self, target: Target) -> bool {
        self.queues[self.of(target)].lost
    }

    /// Adds `bytes`, which [`Outputs::flush`] writes.
    pub fn push(&mut self, target: Target, bytes: &[u8]) {
        let index = self.of(target);
        let queue = &mut self.queues[index];
        match target {
            _ if queue.lost || bytes.is_empty() => {}
            Target::Frames(kind) => queue.bytes.extend(frame::encode(kind, bytes)),
            Target::Stdout | Target::Stderr => queue.extend(bytes),
        }
    }

    /// A file of a rank's output could not be written.
    pub fn lose_log(&mut self, why: String) {
        self.lost_logs.push(why);
    }

    /// Why files could not be written, each once.
    pub fn lost_logs(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lost_logs)
    }

    /// Adds a message of the launcher.
    pub fn say(&mut self, target: Target, message: &str) {
        self.push(target, format!("gloo-rs: {message}\n").as_bytes());
    }

    /// Writes as much as is accepted without waiting. An error is that of the first target that is lost by it; call it
    /// again then.
    pub fn flush(&mut self) -> Result<(), (Target, io::Error)> {
        self.queues.iter_mut().try_for_each(|queue| queue.flush().map_err(|error| (queue.target, error)))
    }

    /// The descriptors to poll for: those that are waited for.
    pub fn polls(&self) -> impl Iterator<Item = libc::pollfd> {
        self.queues.iter().filter(|queue| !queue.bytes.is_empty()).map(Queue::poll)
    }

    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.bytes.is_empty())
    }

    /// Drops everything, also what is still to come.
    pub fn discard(&mut self) {
        self.queues.iter_mut().for_each(Queue::lose);
    }

    /// Does that where there is no room.
    pub fn discard_full(&mut self) {
        self.queues.iter_mut().filter(|queue| queue.is_full()).for_each(Queue::lose);
    }
}

/// Whether two descriptors are of one pipe, terminal, socket or file.
fn is_one_file(one: i32, other: i32) -> bool {
    let identity = |descriptor| status(descriptor).map(|stat| (stat.st_dev, stat.st_ino));
    identity(one).is_some_and(|own| identity(other) == Some(own))
}

/// Opens a pipe or a terminal once more, non-blocking, if the system allows it.
fn reopen(descriptor: i32) -> Option<File> {
    let is_pipe = status(descriptor).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFIFO);
    // SAFETY: the call accesses no memory of this process.
    if !is_pipe && unsafe { libc::isatty(descriptor) } != 1 {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().write(true).custom_flags(flags).open(format!("/proc/self/fd/{descriptor}")).ok()
}

fn status(descriptor: i32) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills `stat`, unless it fails.
    let known = unsafe { libc::fstat(descriptor, stat.as_mut_ptr()) } == 0;
    // SAFETY: it has been filled.
    known.then(|| unsafe { stat.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_queue_never_waits_for_its_reader_and_loses_nothing() {
        for reopens in [true, false] {
            let (reader, writer) = io::pipe().unwrap();
            let mut queue = Queue::new(Target::Stdout, writer.as_raw_fd());
            assert!(queue.reopened.is_some());
            if !reopens {
                (queue.reopened, queue.descriptor) = (None, writer.as_raw_fd());
            }
            passes_all_on(queue, reader);
        }
    }

    fn passes_all_on(mut queue: Queue, mut reader: io::PipeReader) {
        let sent: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
        queue.bytes.extend(&sent);
        let mut received = Vec::new();
        let mut piece = vec![0; 10_000];
        while received.len() < sent.len() {
            queue.flush().unwrap();
            let read = reader.read(&mut piece).unwrap();
            received.extend_from_slice(&piece[..read]);
        }
        assert!(received == sent && queue.bytes.is_empty());
        queue.bytes.extend(&sent);
        drop(reader);
        assert_eq!(queue.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(queue.lost && queue.bytes.is_empty());
    }

    #[test]
    fn the_next_line_on_a_terminal_erases_one_that_may_be_overwritten() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut queue = Queue::new(Target::Stdout, writer.as_raw_fd());
        for (terminal, expected) in [(false, "[0] 100%\r[1] x\n[1] y\n"), (true, "[0] 100%\r\x1b[K[1] x\n[1] y\n")] {
            queue.terminal = terminal;
            ["[0] 100%\r", "[1] x\n", "[1] y\n"].iter().for_each(|line| queue.extend(line.as_bytes()));
            assert_eq!(queue.bytes.drain(..).collect::<Vec<_>>(), expected.as_bytes());
        }
    }

    #[test]
    fn one_file_has_one_queue() {
        let (reader, writer) = io::pipe().unwrap();
        let again = writer.try_clone().unwrap();
        assert!(is_one_file(writer.as_raw_fd(), again.as_raw_fd()));
        let (_, other) = io::pipe().unwrap();
        assert!(!is_one_file(writer.as_raw_fd(), other.as_raw_fd()));
        drop(reader);
    }
}

//! The process of one rank, and its output.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::log::Log;
use super::output::{Outputs, Target};
use super::prefix::Prefixer;
use super::signals;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Exited(i32),
    Killed { signal: i32, core: bool },
}

impl Outcome {
    pub fn from_wait_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Killed { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
        } else {
            Self::Exited(libc::WEXITSTATUS(status))
        }
    }

    /// The exit status as a shell reports it: the status, or 128 plus the signal.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(status) => status as u8,
            Self::Killed { signal, .. } => (128 + signal) as u8,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Killed { signal, core } => {
                let core = if core { ", core dumped" } else { "" };
                match signals::name(signal) {
                    "" => write!(f, "was killed by signal {signal}{core}"),
                    name => write!(f, "was killed by signal {signal} ({name}{core})"),
                }
            }
        }
    }
}

/// A started rank. It leads a process group that contains all processes it starts.
pub struct Rank {
    pub pid: i32,
    /// Set once it has ended and has been waited for.
    pub outcome: Option<Outcome>,
}

impl Rank {
    /// Starts `command`, bound to `cores` if given, with the signal mask `mask`. The rank is killed when the calling
    /// thread ends. The returned child is only for its pipes.
    pub fn start(
        command: &mut Command,
        mask: libc::sigset_t,
        cores: Option<libc::cpu_set_t>,
    ) -> io::Result<(Self, Child)> {
        let launcher = std::process::id() as i32;
        let prepare = move || {
            // SAFETY: the functions are async-signal-safe, act on this process only, and their arguments live until
            // they return.
            unsafe {
                if libc::setpgid(0, 0) != 0 || libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) != 0 {
                    return Err(io::Error::last_os_error());
                }
                super::set(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)?;
                // If a core has gone offline meanwhile, the rank runs unbound.
                if let Some(cores) = &cores {
                    libc::sched_setaffinity(0, size_of_val(cores), cores);
                }
                // If the launcher died before PR_SET_PDEATHSIG, this process would never be ended.
                if libc::getppid() != launcher {
                    libc::_exit(1);
                }
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec, where it neither allocates nor locks.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn()?;
        Ok((Self { pid: child.id() as i32, outcome: None }, child))
    }

    /// Sends `signal` to the whole group. Must not be called after all processes of the group have been waited for.
    pub fn signal_group(&self, signal: i32) {
        // SAFETY: the call accesses no memory of this process.
        unsafe { libc::kill(-self.pid, signal) };
    }

    /// Whether any process of the group is left: the rank or a process that it has started.
    ///
    /// The launcher adopts orphans of the ranks, so all processes of a group are children of the launcher or of one of
    /// its children; and while one is left, the system does not reuse the group's number.
    pub fn group_lives(&self) -> bool {
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `waitid` accepts a null pointer for details that are not wanted.
        unsafe { libc::waitid(libc::P_PGID, self.pid as libc::id_t, std::ptr::null_mut(), flags) == 0 }
    }
}

/// Makes this process's end of a pipe non-blocking; the rank's end has flags of its own and is unchanged.
pub fn set_nonblocking(pipe: i32) -> io::Result<()> {
    // SAFETY: the call accesses no memory of this process.
    if unsafe { libc::fcntl(pipe, libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The reading end of a rank's standard output or error.
pub struct Stream {
    pipe: File,
    pub target: Target,
    prefixer: Prefixer,
    log: Option<Log>,
}

/// The result of [`Stream::forward`].
#[derive(Debug)]
pub enum Forwarded {
    /// Bytes were read.
    Bytes(usize),
    /// No bytes were available.
    Nothing,
    /// All writers have closed it.
    End,
}

impl Stream {
    /// What comes is written to `log` as well, without the prefix.
    pub fn new(pipe: OwnedFd, target: Target, prefix: &str, log: Option<Log>) -> io::Result<Self> {
        set_nonblocking(pipe.as_raw_fd())?;
        Ok(Self { pipe: File::from(pipe), target, prefixer: Prefixer::new(prefix), log })
    }

    pub fn as_raw_fd(&self) -> i32 {
        self.pipe.as_raw_fd()
    }

    /// Reads once, and adds the lines that are complete to `outputs`.
    pub fn forward(&mut self, buffer: &mut [u8], outputs: &mut Outputs) -> Forwarded {
        let read = loop {
            match self.pipe.read(buffer) {
                Ok(read) => break read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Forwarded::Nothing,
                Err(_) => break 0,
            }
        };
        if read == 0 {
            self.finish(outputs);
            return Forwarded::End;
        }
        if let Some(Err(why)) = self.log.as_mut().map(|log| log.write(&buffer[..read])) {
            outputs.lose_log(why);
        }
        let mut lines = Vec::with_capacity(read);
        self.prefixer.push(&buffer[..read], &mut lines);
        outputs.push(self.target, &lines);
        Forwarded::Bytes(read)
    }

    /// Forwards the contents of the pipe and an incomplete line. Does not wait for output of processes that still run,
    /// nor for room.
    pub fn drain(&mut self, buffer: &mut [u8], outputs: &mut Outputs) {
        let mut left: libc::c_int = 0;
        // SAFETY: the pipe is open, and the call writes an int to `left`.
        if unsafe { libc::ioctl(self.as_raw_fd(), libc::FIONREAD, &mut left) } != 0 {
            left = 0;
        }
        let mut left = usize::try_from(left).unwrap_or(0);
        while left > 0 {
            match self.forward(buffer, outputs) {
                Forwarded::Bytes(bytes) => left = left.saturating_sub(bytes),
                Forwarded::Nothing | Forwarded::End => break,
            }
        }
        self.finish(outputs);
    }

    fn finish(&mut self, outputs: &mut Outputs) {
        let mut line = Vec::new();
        self.prefixer.finish(&mut line);
        outputs.push(self.target, &line);
    }
}

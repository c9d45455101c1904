//! Receives signals through a descriptor that can be polled, and names them.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The signals that a launcher passes on to its ranks.
pub const PASSED_ON: [i32; 7] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP, // the ranks are in process groups of their own, where a terminal's Ctrl-Z and `fg` do not reach them
    libc::SIGCONT,
];

/// Receives [`PASSED_ON`] and SIGCHLD while it exists; meanwhile they have no other effect on this thread.
pub struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Must be called before other threads exist: they would receive the signals too.
    pub fn catch() -> io::Result<Self> {
        // If SIGCHLD were ignored, as the parent may have set it, children would leave no exit status to wait for.
        // SAFETY: sets the default action, which runs no code of this process.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigemptyset initializes the set before anything reads it; the numbers are valid signals; sigprocmask
        // fills `before`; sigaction fills `action`, which is valid as zeros, too.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                // A signal that this process ignores (`nohup`) stays ignored; if it were blocked, it would be received
                // here.
                let mut action = MaybeUninit::<libc::sigaction>::zeroed();
                let known = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
                if !known || action.assume_init().sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(set.as_mut_ptr(), signal);
                }
            }
            if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                let error = io::Error::last_os_error();
                libc::sigprocmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
                return Err(error);
            }
            // SAFETY: the descriptor is new and has no other owner.
            Ok(Self { descriptor: OwnedFd::from_raw_fd(descriptor), before: before.assume_init() })
        }
    }

    /// The signal mask before, which ranks must start with.
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// The next pending signal, if any.
    pub fn next(&self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has `size` bytes; a signalfd writes whole records or nothing.
        let read = unsafe { libc::read(self.descriptor.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        // SAFETY: the call has written a whole record.
        (usize::try_from(read) == Ok(size)).then(|| unsafe { info.assume_init() }.ssi_signo as i32)
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that sigprocmask stored.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// The name of a signal, `SIGKILL` for 9; empty for real-time signals.
pub fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGSYS => "SIGSYS",
        _ => "",
    }
}

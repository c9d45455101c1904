//! Signals, which are the host program's.

/// Blocks all signals in this thread, because they are meant for the host program.
pub fn block_signals() {
    #[cfg(unix)]
    // SAFETY: a zeroed sigset_t is a valid value that sigfillset initialises; the calls change only this thread's mask,
    // and a null pointer for the old mask is permitted.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Runs `write` so that a pipe without readers is an error of it and no signal, which would end a host program that
/// left SIGPIPE as it was. For descriptors that are no sockets; [`send`](super::send) does without signals.
#[cfg(unix)]
pub fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` may be zeroed, and each call gets valid sets of this function's.
    unsafe {
        let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        let result = write();
        // The signal of a failed write is this thread's, and waits.
        if !was_pending {
            take(&pipe);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Takes a pending signal of `set`, if there is one.
///
/// # Safety
/// The set is valid, and its signals are blocked.
#[cfg(target_os = "linux")]
unsafe fn take(set: &libc::sigset_t) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: valid pointers; a null pointer for what is not wanted is permitted.
    unsafe {
        while libc::sigtimedwait(set, std::ptr::null_mut(), &now) == -1 && *libc::__errno_location() == libc::EINTR {}
    }
}

/// Takes a pending SIGPIPE, the only signal of `set`, if there is one.
///
/// # Safety
/// The set is valid, and its signal is blocked.
#[cfg(all(unix, not(target_os = "linux")))]
unsafe fn take(set: &libc::sigset_t) {
    // SAFETY: `sigset_t` may be zeroed; the pointers are valid during the calls.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending);
        if libc::sigismember(&pending, libc::SIGPIPE) == 1 {
            let mut taken = 0;
            libc::sigwait(set, &mut taken);
        }
    }
}

/// Runs `write`: this system has no such signal.
#[cfg(not(unix))]
pub fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    write()
}

/// Runs `work` on a thread to which a signal with a handler comes again after each `pause`, until it ends.
#[cfg(all(test, target_os = "linux"))]
pub fn interrupted<T: Send>(pause: std::time::Duration, work: impl FnOnce() -> T + Send) -> T {
    extern "C" fn ignore(_: libc::c_int) {}
    let (say, hear) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // SAFETY: a handler that does nothing, without flags: calls that it interrupts are not restarted. No other test
        // uses the signal. The thread is not joined while it is sent signals.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
            let worker = scope.spawn(move || {
                say.send(libc::pthread_self()).unwrap();
                work()
            });
            let thread = hear.recv().unwrap();
            while !worker.is_finished() {
                libc::pthread_kill(thread, libc::SIGUSR2);
                std::thread::sleep(pause);
            }
            worker.join().unwrap()
        }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_write_without_readers_is_an_error_and_no_signal() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        // SAFETY: the child makes system calls only. SIGPIPE would end it.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                let written = without_sigpipe(|| libc::write(writer.as_raw_fd(), [0u8].as_ptr().cast(), 1));
                libc::_exit(if written == -1 && *libc::__errno_location() == libc::EPIPE { 0 } else { 1 });
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }
}

/// Runs `body`, and on Linux leaves errno as it was: for calls in signal handlers.
pub fn keep_errno<T>(body: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "linux")]
    // SAFETY: the pointer is valid for this thread.
    let before = unsafe { *libc::__errno_location() };
    let result = body();
    #[cfg(target_os = "linux")]
    // SAFETY: as above.
    unsafe {
        *libc::__errno_location() = before;
    }
    result
}

//! Ctrl-C while a call waits.
//!
//! Python runs the handlers of signals on its main thread, once the call that this thread is in has returned. So calls
//! that wait for the ranks of a context are ended from outside: a handler of SIGINT in front of Python's wakes a
//! watcher, which closes the context. Such a call pays one system call for that. Waits for stores, which nothing can
//! end from outside, go on in another thread, and the main thread looks for signals meanwhile.

use crate::abi::*;
use crate::error::{Failed, check, detached, exception_of};
use crate::handle::Handle;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the main thread looks for signals while another thread waits for it.
const LOOK: Duration = Duration::from_millis(20);

/// The watcher of this process; null before the first call that needs it.
static WATCHER: AtomicPtr<Watcher> = AtomicPtr::new(std::ptr::null_mut());

/// The handler of SIGINT to which `on_sigint` passes on, as in `struct sigaction`, and whether it takes three
/// arguments.
static NEXT_HANDLER: AtomicUsize = AtomicUsize::new(0);
static NEXT_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// What is written to an eventfd.
static ONE: u64 = 1;

/// Ends the wait of the main thread on Ctrl-C. Never freed: handlers of signals use it.
struct Watcher {
    /// An eventfd, which the handler makes readable.
    bell: c_int,
    /// The number of the main thread's call, from 1; 0 while it is in none.
    call: AtomicU64,
    /// The number of the call in which SIGINT came.
    interrupted: AtomicU64,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    /// The contexts of the call, and their number. They live, and the list, at least until that is 0 again.
    contexts: *const *mut gloo_rs_context_t,
    count: usize,
    calls: u64,
}

// SAFETY: handles are thread-safe, by the header.
unsafe impl Send for Waiting {}

/// Runs `call`, which may wait for other ranks of `context`, without the interpreter's lock. Ctrl-C closes the context,
/// and the call fails.
pub fn waiting(
    py: Python<'_>,
    context: &Handle<gloo_rs_context_t>,
    call: impl FnOnce() -> gloo_rs_status_t,
) -> PyResult<()> {
    waiting_on(py, &[context.get()], call)
}

/// [`waiting`] for other ranks of any of `contexts`, all of which live until this returns. Ctrl-C closes them.
pub fn waiting_on(
    py: Python<'_>,
    contexts: &[*mut gloo_rs_context_t],
    call: impl FnOnce() -> gloo_rs_status_t,
) -> PyResult<()> {
    let Some(watcher) = is_main_thread().then(|| Watcher::get(py)).flatten() else {
        return check(py, detached(py, call));
    };
    precede_handler();
    watcher.enter(contexts);
    // A signal that came before was not seen by `on_sigint`.
    let ended = py.check_signals().map(|()| detached(py, call));
    watcher.leave();
    check(py, ended?)
}

/// Runs `call`, which may wait for a store or a launcher. The main thread runs handlers of signals meanwhile. What they
/// raise ends the wait: then `give_up` is called, and `call` is left to itself, in a thread that ends with it. `what`
/// it waits for, for the error.
///
/// # Safety
/// `call` owns what its pointers point to, and any thread may use that.
pub unsafe fn waiting_on_thread<T: Send + 'static>(
    py: Python<'_>,
    operation: &str,
    what: &str,
    give_up: impl FnOnce(),
    call: impl FnOnce() -> Result<T, Failed> + 'static,
) -> PyResult<T> {
    struct Owner<F>(F);
    // SAFETY: by the contract.
    unsafe impl<F> Send for Owner<F> {}
    impl<T, F: FnOnce() -> T> Owner<F> {
        fn run(self) -> T {
            (self.0)()
        }
    }
    if !is_main_thread() {
        return detached(py, call).map_err(|failed| failed.raise(py));
    }
    let begin = Instant::now();
    let (sender, receiver) = channel();
    let call = Owner(call);
    // Nobody may be there any more to receive it.
    std::thread::Builder::new().name("gloo_rs-wait".into()).spawn(move || drop(sender.send(call.run())))?;
    loop {
        match detached(py, || receiver.recv_timeout(LOOK)) {
            Ok(result) => return result.map_err(|failed| failed.raise(py)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
        }
        if let Err(interruption) = py.check_signals() {
            give_up();
            let text =
                format!("{operation}: interrupted after {:.3} s, waiting for {what}", begin.elapsed().as_secs_f64());
            interruption.set_cause(py, Some(exception_of(py, GLOO_RS_ERROR_ABORTED, operation, text)));
            return Err(interruption);
        }
    }
}

impl Watcher {
    /// This process's watcher, which the first call starts. None if the system has no resources for it, so that Ctrl-C
    /// has to wait.
    fn get(py: Python<'_>) -> Option<&'static Self> {
        // SAFETY: watchers are never freed.
        unsafe { WATCHER.load(Ordering::Acquire).as_ref() }.or_else(|| Self::start(py))
    }

    #[cold]
    fn start(py: Python<'_>) -> Option<&'static Self> {
        register_fork(py).ok()?;
        // SAFETY: no pointers are passed.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if bell < 0 {
            return None;
        }
        let waiting = Mutex::new(Waiting { contexts: std::ptr::null(), count: 0, calls: 0 });
        let watcher = Self { bell, call: AtomicU64::new(0), interrupted: AtomicU64::new(0), waiting };
        let watcher: &'static Self = Box::leak(Box::new(watcher));
        if std::thread::Builder::new().name("gloo_rs-sigint".into()).spawn(|| watcher.watch()).is_err() {
            // SAFETY: nobody else has the descriptor.
            unsafe { libc::close(bell) };
            return None;
        }
        WATCHER.store(std::ptr::from_ref(watcher).cast_mut(), Ordering::Release);
        Some(watcher)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, contexts: &[*mut gloo_rs_context_t]) {
        let mut waiting = self.lock();
        (waiting.contexts, waiting.count) = (contexts.as_ptr(), contexts.len());
        waiting.calls += 1;
        self.call.store(waiting.calls, Ordering::Release);
    }

    fn leave(&self) {
        // If the watcher is closing contexts, this waits until it has.
        self.lock().count = 0;
        self.call.store(0, Ordering::Release);
    }

    fn watch(&self) {
        let mut rings = 0_u64;
        loop {
            // SAFETY: an eventfd writes 8 bytes.
            let read = unsafe { libc::read(self.bell, (&raw mut rings).cast(), size_of::<u64>()) };
            if read < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return;
            }
            let call = self.interrupted.load(Ordering::Acquire);
            // Whether another handler of the program raises can only be known by running it, which is the main
            // thread's.
            if Python::try_attach(is_default_handler) != Some(true) {
                continue;
            }
            let waiting = self.lock();
            if waiting.count > 0 && waiting.calls == call {
                // SAFETY: the list and its contexts live as long as the call, which cannot leave before the lock is
                // released.
                let contexts = unsafe { std::slice::from_raw_parts(waiting.contexts, waiting.count) };
                for context in contexts {
                    // SAFETY: as above.
                    let _ = unsafe { gloo_rs_context_close(*context) };
                }
            }
        }
    }
}

/// Whether Ctrl-C raises KeyboardInterrupt, by Python's own handler.
fn is_default_handler(py: Python<'_>) -> bool {
    static SIGNAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let compare = || -> PyResult<bool> {
        let signal =
            SIGNAL.get_or_try_init(py, || py.import("signal").map(|module| module.into_any().unbind()))?.bind(py);
        let current = signal.call_method1("getsignal", (libc::SIGINT,))?;
        Ok(current.is(&signal.getattr("default_int_handler")?))
    };
    compare().unwrap_or(false)
}

/// Puts `on_sigint` in front of the current handler of SIGINT. The program may have set another since the last call.
fn precede_handler() {
    // SAFETY: zeroed is valid, and the function fills it.
    let current = unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGINT, std::ptr::null(), &mut current);
        current
    };
    let own = on_sigint as *const () as usize;
    if [own, libc::SIG_DFL, libc::SIG_IGN].contains(&current.sa_sigaction) {
        return;
    }
    NEXT_HANDLER.store(current.sa_sigaction, Ordering::Release);
    NEXT_FLAGS.store((current.sa_flags & libc::SA_SIGINFO) as usize, Ordering::Release);
    let action = libc::sigaction { sa_sigaction: own, sa_flags: current.sa_flags | libc::SA_SIGINFO, ..current };
    // SAFETY: the handler does only what handlers may.
    unsafe { libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut()) };
}

/// Wakes the watcher if the main thread is in a call, then does what the handler does that was there before.
extern "C" fn on_sigint(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: watchers are never freed, and write may be called in handlers. The handler's address is that of a
    // function of this type.
    unsafe {
        if let Some(watcher) = WATCHER.load(Ordering::Acquire).as_ref()
            && let call @ 1.. = watcher.call.load(Ordering::Acquire)
        {
            let errno = *libc::__errno_location();
            watcher.interrupted.store(call, Ordering::Release);
            libc::write(watcher.bell, (&raw const ONE).cast(), size_of::<u64>());
            *libc::__errno_location() = errno;
        }
        let next = NEXT_HANDLER.load(Ordering::Acquire) as *const ();
        if NEXT_FLAGS.load(Ordering::Acquire) == 0 {
            std::mem::transmute::<*const (), extern "C" fn(c_int)>(next)(signal);
        } else {
            std::mem::transmute::<*const (), extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(next)(
                signal, info, context,
            );
        }
    }
}
thread_local! {
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether this is the process's first thread, which is the one on which Python runs handlers of signals.
pub fn is_main_thread() -> bool {
    IS_MAIN.get().unwrap_or_else(|| {
        // SAFETY: no pointers are passed.
        let is_main = unsafe { libc::gettid() == libc::getpid() };
        IS_MAIN.set(Some(is_main));
        is_main
    })
}

/// Has children of os.fork, in which the watcher's thread does not run, start one of their own.
fn register_fork(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: PyOnceLock<()> = PyOnceLock::new();
    REGISTERED
        .get_or_try_init(py, || {
            let keywords = pyo3::types::PyDict::new(py);
            keywords.set_item("after_in_child", wrap_pyfunction!(after_fork, py)?)?;
            py.import("os")?.call_method("register_at_fork", (), Some(&keywords)).map(drop)
        })
        .map(drop)
}

#[pyfunction]
fn after_fork() {
    IS_MAIN.set(None);
    let watcher = WATCHER.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: watchers are never freed.
    if let Some(watcher) = unsafe { watcher.as_ref() } {
        // SAFETY: in this process nobody else has the descriptor.
        unsafe { libc::close(watcher.bell) };
    }
}

//! A loop of libuv. Sockets that are ready are found by the loop, which never blocks; a thread that has nothing to do
//! sleeps in the system's poll with the same sockets, since a loop can be run by one thread only, and other threads
//! change what it watches.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libuv_sys2 as sys;

use super::poll::Poll;
use super::{BROKEN, Event, HANGUP, PEER_ENDED, Pollable, READ, WRITE};
use crate::sys::socket::RawSocket;

/// A loop; clones share it.
#[derive(Clone)]
pub struct Uv(Arc<Shared>);

struct Shared {
    watched: Poll,
    state: Mutex<State>,
}

struct State {
    /// Has a stable address, which libuv keeps.
    uv: Box<sys::uv_loop_t>,
    /// By entry in the list. Each was allocated by a box; the callback of `uv_close` frees it.
    handles: HashMap<u64, *mut Handle>,
    /// Events that no wait has returned yet, by entry.
    ready: VecDeque<(u64, Event)>,
}

// SAFETY: libuv's loops and handles are not tied to a thread, and are used only while `State` is locked.
unsafe impl Send for State {}

/// libuv's handle of a socket. Its first field is what libuv knows.
#[repr(C)]
struct Handle {
    poll: sys::uv_poll_t,
    entry: u64,
    number: u64,
    /// Where the callback puts events: the state's `ready` while the loop runs, else null.
    ready: *mut VecDeque<(u64, Event)>,
}

fn check(result: std::ffi::c_int) -> io::Result<()> {
    if result >= 0 {
        return Ok(());
    }
    // SAFETY: libuv returns static strings that end with NUL, also for numbers that it does not know.
    let text = unsafe { std::ffi::CStr::from_ptr(sys::uv_strerror(result)) };
    Err(io::Error::other(format!("libuv: {}", text.to_string_lossy())))
}

/// Called by `uv_run` when the socket is ready.
unsafe extern "C" fn on_ready(poll: *mut sys::uv_poll_t, status: std::ffi::c_int, events: std::ffi::c_int) {
    // SAFETY: the handle is the first field of a `Handle`, which lives until it is closed.
    let handle = unsafe { &*poll.cast::<Handle>() };
    let has = |bit: sys::uv_poll_event| events as i64 & bit as i64 != 0;
    let ready = if status < 0 {
        // The loop does not watch a socket on any more that has failed. Reading or writing returns the error.
        READ | WRITE | BROKEN
    } else {
        let bit = |bit, ready| if has(bit) { ready } else { 0 };
        bit(sys::uv_poll_event_UV_READABLE, READ)
            | bit(sys::uv_poll_event_UV_WRITABLE, WRITE)
            | bit(sys::uv_poll_event_UV_DISCONNECT, PEER_ENDED)
    };
    // SAFETY: not null while the loop runs, and then the running thread has the only access.
    unsafe { (*handle.ready).push_back((handle.entry, Event { number: handle.number, ready })) };
}

/// Called by `uv_run` after `uv_close`.
unsafe extern "C" fn on_closed(handle: *mut sys::uv_handle_t) {
    // SAFETY: the handle is the first field of a boxed `Handle`, which nobody uses any more.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
}

impl std::fmt::Debug for Uv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Uv").field(&self.0.watched).finish()
    }
}

impl Uv {
    pub(super) fn new() -> io::Result<Self> {
        let watched = Poll::new()?;
        // SAFETY: every bit pattern of zeros is valid for this struct of C, which `uv_loop_init` fills.
        let mut uv: Box<sys::uv_loop_t> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: the loop's memory is valid and has a stable address.
        check(unsafe { sys::uv_loop_init(&mut *uv) })?;
        let state = Mutex::new(State { uv, handles: HashMap::new(), ready: VecDeque::new() });
        Ok(Self(Arc::new(Shared { watched, state })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watched sockets, for a thread that sleeps.
    pub(super) fn watched(&self) -> &Poll {
        &self.0.watched
    }

    pub(super) fn add(&self, what: Pollable, interest: u32, number: u64) -> io::Result<u64> {
        let Pollable::Socket(socket) = what else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut state = self.state();
        let entry = self.0.watched.add(what, interest, number);
        let added = state.open(socket, entry, number).and_then(|()| state.start(entry, interest));
        if added.is_err() {
            state.close(entry);
            self.0.watched.remove(entry);
        }
        added.map(|()| entry)
    }

    pub(super) fn set(&self, entry: u64, interest: u32, number: u64) -> io::Result<()> {
        let mut state = self.state();
        self.0.watched.set(entry, interest, number);
        if let Some(handle) = state.handles.get(&entry) {
            // SAFETY: the handle lives as long as it is in the table.
            unsafe { (**handle).number = number };
        }
        state.start(entry, interest)
    }

    /// Does nothing in a child by fork, whose loop shares the kernel's object with the parent's.
    pub(super) fn remove(&self, entry: u64) {
        if self.0.watched.is_inherited() {
            return;
        }
        self.state().close(entry);
        self.0.watched.remove(entry);
    }

    pub(super) fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        if timeout != Some(Duration::ZERO) && self.state().ready.is_empty() {
            self.0.watched.sleep(timeout)?;
        }
        let mut state = self.state();
        if state.ready.is_empty() {
            state.run(sys::uv_run_mode_UV_RUN_NOWAIT);
        }
        let n = events.len().min(state.ready.len());
        for (event, (_, ready)) in events.iter_mut().zip(state.ready.drain(..n)) {
            *event = ready;
        }
        Ok(n)
    }
}

impl State {
    fn open(&mut self, socket: RawSocket, entry: u64, number: u64) -> io::Result<()> {
        // SAFETY: zeros are valid for the struct of C, which `uv_poll_init_socket` fills.
        let poll = unsafe { std::mem::zeroed() };
        let handle = Box::into_raw(Box::new(Handle { poll, entry, number, ready: ptr::null_mut() }));
        // SAFETY: loop and handle are valid and have stable addresses.
        let opened = check(unsafe { sys::uv_poll_init_socket(&mut *self.uv, handle.cast(), socket as _) });
        match opened {
            Ok(()) => drop(self.handles.insert(entry, handle)),
            // SAFETY: libuv does not keep a handle that it has refused.
            Err(_) => drop(unsafe { Box::from_raw(handle) }),
        }
        opened
    }

    fn start(&mut self, entry: u64, interest: u32) -> io::Result<()> {
        let Some(&handle) = self.handles.get(&entry) else { return Err(io::ErrorKind::NotConnected.into()) };
        // Events of the interest before.
        self.ready.retain(|(of, _)| *of != entry);
        let bit = |ready, bit: sys::uv_poll_event| if interest & ready != 0 { bit as i64 } else { 0 };
        let bits = bit(READ, sys::uv_poll_event_UV_READABLE)
            | bit(WRITE, sys::uv_poll_event_UV_WRITABLE)
            | bit(PEER_ENDED | HANGUP, sys::uv_poll_event_UV_DISCONNECT);
        // SAFETY: an open handle.
        check(unsafe {
            if bits == 0 {
                sys::uv_poll_stop(handle.cast())
            } else {
                sys::uv_poll_start(handle.cast(), bits as std::ffi::c_int, Some(on_ready))
            }
        })
    }

    fn close(&mut self, entry: u64) {
        self.ready.retain(|(of, _)| *of != entry);
        if let Some(handle) = self.handles.remove(&entry) {
            // SAFETY: an open handle, which is closed once. The loop forgets its socket at once, and the memory is
            // freed when the loop has run.
            unsafe {
                sys::uv_poll_stop(handle.cast());
                sys::uv_close(handle.cast(), Some(on_closed));
            }
        }
    }

    fn run(&mut self, mode: sys::uv_run_mode) {
        let ready: *mut _ = &mut self.ready;
        // SAFETY: the handles live as long as they are in the table. While the loop runs, only its callbacks use
        // `ready`.
        unsafe {
            self.handles.values().for_each(|handle| (**handle).ready = ready);
            sys::uv_run(&mut *self.uv, mode);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Closing the child's copy of a parent's loop would change what the parent's watches.
        if self.watched.is_inherited() {
            return;
        }
        let entries: Vec<u64> = state.handles.keys().copied().collect();
        entries.into_iter().for_each(|entry| state.close(entry));
        // Runs the callbacks that free the handles; with all closed, it ends.
        state.run(sys::uv_run_mode_UV_RUN_DEFAULT);
        // SAFETY: the loop has no handles any more.
        unsafe { sys::uv_loop_close(&mut *state.uv) };
    }
}

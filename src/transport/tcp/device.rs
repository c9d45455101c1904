//! The place where connections arrive: an address of this host, and the thread that serves what nobody waits on.
//!
//! A context whose operations somebody waits for is driven by that thread alone. The device's thread takes over, for each
//! context on its own, when messages are left to be sent that nobody waits for ("armed"), and otherwise one or two [`TICK`]s
//! after the last waiter has left; then it also receives, and notices peers that leave.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Error, Result};
use crate::secret::SecretKey;
use crate::sys::{self, Epoll, Waker};
use crate::transport::tcp::greeting::{Dropped, Failure, Greetings};
use crate::transport::tcp::handshake::{Handle, Proven};
use crate::transport::tcp::interface;
use crate::transport::{LogCallback, Watch};

/// How often the thread looks after contexts that nobody has waited on since.
pub const TICK: Duration = Duration::from_millis(5);
/// How long a connection that we have ended is kept for its peer to acknowledge everything.
const LINGER: Duration = Duration::from_secs(2);

const LISTENER: u64 = 0;
const WAKER: u64 = 1;

/// Which address of this host to use. With nothing set, the address that the host's name resolves to, else loopback.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// Name of a network interface: `eth0`.
    pub interface: Option<String>,
    /// A host name of this host, or an IPv4 or IPv6 address of it.
    pub hostname: Option<String>,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Told what happens on the side.
    pub log: Option<LogCallback>,
}

/// What the device's thread does for a context.
pub trait Served: Send + Sync {
    /// The context's descriptor was readable while armed, or a tick has passed while it was not.
    fn serve(&self);
    /// A peer has connected, asked for this context, and proven that it belongs to it.
    fn accept(&self, socket: OwnedFd, peer: &Proven);
}

struct Entry {
    served: Weak<dyn Served>,
    number: u64,
    key: SecretKey,
}

#[derive(Default)]
struct Contexts {
    by_handle: HashMap<Handle, Entry>,
    lingering: Vec<(OwnedFd, Instant)>,
}

struct Shared {
    address: SocketAddr,
    interface: Option<String>,
    log: Option<LogCallback>,
    epoll: Epoll,
    waker: Waker,
    contexts: Mutex<Contexts>,
    next_number: AtomicU64,
    /// Contexts that are not armed: while there are any, the thread ticks.
    unarmed: AtomicUsize,
    /// The thread sleeps without a tick.
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// A listening socket and its thread. Contexts keep their device alive.
pub struct Device {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A context's place at its device. Ends with `Drop`.
pub struct Place {
    device: Arc<Device>,
    handle: Handle,
    fd: RawFd,
    number: u64,
    armed: AtomicBool,
}

impl Device {
    /// Binds, listens, and starts the thread.
    pub fn create(options: &DeviceOptions) -> Result<Arc<Device>> {
        let (wanted, interface) = interface::resolve(options)?;
        let failed = |e: io::Error| Error::io(format_args!("cannot listen on {wanted}"), &e);
        let listener = (|| {
            let socket =
                Socket::new(Domain::for_address(wanted), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&wanted.into())?;
            socket.listen(4096)?;
            Ok(socket)
        })()
        .map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?.as_socket().unwrap_or(wanted);
        let (epoll, waker) = Epoll::new().and_then(|e| Ok((e, Waker::new()?))).map_err(failed)?;
        epoll.add(listener.as_raw_fd(), sys::READ, LISTENER).map_err(failed)?;
        epoll.add(waker.as_raw_fd(), sys::READ, WAKER).map_err(failed)?;
        let shared = Arc::new(Shared {
            address,
            interface,
            log: options.log.clone(),
            epoll,
            waker,
            contexts: Mutex::default(),
            next_number: AtomicU64::new(WAKER + 1),
            unarmed: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let thread = {
            let shared = shared.clone();
            let work = move || {
                Thread { shared, listener, greetings: Greetings::default(), listening: true, serving: Vec::new() }.run()
            };
            std::thread::Builder::new().name("gloo_rs".into()).spawn(work).map_err(failed)?
        };
        Ok(Arc::new(Device { shared, thread: Some(thread) }))
    }

    /// Where peers connect to.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The interface that has the address, if one does.
    pub fn interface(&self) -> Option<&str> {
        self.shared.interface.as_deref()
    }

    /// Who is told what happens on the side.
    pub fn log(&self) -> Option<LogCallback> {
        self.shared.log.clone()
    }

    /// Gives a context, known as `handle`, reached by who has `key`, and polled through `fd`, a place. It begins armed.
    pub fn enter(
        self: &Arc<Self>,
        handle: Handle,
        key: SecretKey,
        fd: RawFd,
        served: Weak<dyn Served>,
    ) -> Result<Place> {
        let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        self.shared.contexts().by_handle.insert(handle, Entry { served, number, key });
        let place = Place { device: self.clone(), handle, fd, number, armed: AtomicBool::new(true) };
        self.shared.epoll.add(fd, sys::READ, number).map_err(|e| Error::io("cannot watch a context", &e))?;
        Ok(place)
    }

    /// Takes over connections that were ended in good order, until their peers have everything.
    pub fn linger(&self, sockets: Vec<OwnedFd>) {
        if !sockets.is_empty() {
            let until = Instant::now() + LINGER;
            self.shared.contexts().lingering.extend(sockets.into_iter().map(|s| (s, until)));
            self.shared.waker.wake();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The last context may be dropped by the thread itself, which then ends on its own.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Place {
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Watch for Place {
    fn arm(&self) {
        if !self.armed.swap(true, Ordering::SeqCst) {
            let shared = &self.device.shared;
            shared.unarmed.fetch_sub(1, Ordering::SeqCst);
            let _ = shared.epoll.modify(self.fd, sys::READ, self.number);
        }
    }

    fn disarm(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let shared = &self.device.shared;
            shared.unarmed.fetch_add(1, Ordering::SeqCst);
            let _ = shared.epoll.modify(self.fd, 0, self.number);
            if shared.asleep.swap(false, Ordering::SeqCst) {
                shared.waker.wake();
            }
        }
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = &self.device.shared;
        let _ = shared.epoll.remove(self.fd);
        if !self.is_armed() {
            shared.unarmed.fetch_sub(1, Ordering::SeqCst);
        }
        shared.contexts().by_handle.remove(&self.handle);
    }
}

impl Shared {
    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, level: u32, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }
}

struct Thread {
    shared: Arc<Shared>,
    listener: Socket,
    greetings: Greetings,
    /// Whether the listener is watched: not while descriptors have run out.
    listening: bool,
    serving: Vec<Weak<dyn Served>>,
}

impl Thread {
    fn run(&mut self) {
        // Signals belong to the host program's threads.
        // SAFETY: the set is initialised by sigfillset before it is used.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        }
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut last_tick = Instant::now();
        let mut stop_at = None;
        loop {
            let lingering = !self.shared.contexts().lingering.is_empty();
            if self.shared.stop.load(Ordering::SeqCst) {
                let until = *stop_at.get_or_insert_with(|| Instant::now() + LINGER);
                if !lingering || Instant::now() >= until {
                    return;
                }
            }
            let idle = self.greetings.is_empty() && self.listening && !lingering;
            self.shared.asleep.store(idle, Ordering::SeqCst);
            let sleep = idle && self.shared.unarmed.load(Ordering::SeqCst) == 0;
            let n = self.shared.epoll.wait(&mut ready, (!sleep).then_some(TICK)).unwrap_or(0);
            self.shared.asleep.store(false, Ordering::SeqCst);
            let found = ready;
            for event in &found[..n] {
                let number = event.u64;
                match number {
                    LISTENER => self.accept(),
                    WAKER => self.shared.waker.clear(),
                    number if self.greetings.contains(number) => self.greet(number),
                    number => self.serve(|entry| entry.number == number),
                }
            }
            if !sleep && last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Serves the contexts that `which` selects, without the lock on their list: what a context does may change it.
    fn serve(&mut self, which: impl Fn(&Entry) -> bool) {
        let contexts = self.shared.contexts();
        self.serving.extend(contexts.by_handle.values().filter(|e| which(e)).map(|e| e.served.clone()));
        drop(contexts);
        self.serving.drain(..).filter_map(|served| served.upgrade()).for_each(|served| served.serve());
    }

    fn tick(&mut self) {
        self.serve(|_| true);
        let now = Instant::now();
        while let Some(dropped) = self.greetings.expire(now) {
            self.report(&dropped);
        }
        if !self.listening {
            self.listening = self.shared.epoll.modify(self.listener.as_raw_fd(), sys::READ, LISTENER).is_ok();
        }
        // Closing a socket that has unread bytes cuts off what the peer has not acknowledged; what it has acknowledged, it
        // can read even then.
        let mut staging = [0; 4096];
        self.shared.contexts().lingering.retain(|(socket, until)| {
            let fd = socket.as_raw_fd();
            loop {
                match sys::receive(fd, &mut [IoSliceMut::new(&mut staging)]) {
                    // The peer has ended it too, or it broke.
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => return false,
                }
            }
            now < *until && sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0)
        });
    }

    fn accept(&mut self) {
        // Level-triggered: what is left comes back at once.
        for _ in 0..64 {
            let (socket, from) = match self.listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Ok(accepted) => accepted,
                Err(e) => {
                    if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) {
                        self.shared.log(1, &format!("cannot accept connections for a while: {e}"));
                        let _ = self.shared.epoll.modify(self.listener.as_raw_fd(), 0, LISTENER);
                        self.listening = false;
                    }
                    return;
                }
            };
            let from = from.as_socket().map_or_else(|| "somewhere".into(), |a| a.to_string());
            let _ = socket.set_tcp_nodelay(true);
            let socket = OwnedFd::from(socket);
            let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
            if self.shared.epoll.add(socket.as_raw_fd(), sys::READ, number).is_err() {
                continue;
            }
            let Ok(nonce) = sys::random() else { continue };
            if let Some(dropped) = self.greetings.insert(number, socket, from, nonce) {
                self.report(&dropped);
            }
            self.greet(number);
        }
    }

    /// Goes on with a handshake; hands the connection to its context once it has proven itself.
    fn greet(&mut self, number: u64) {
        let find = |handle: &Handle| self.shared.contexts().by_handle.get(handle).map(|entry| entry.key.clone());
        match self.greetings.advance(number, find) {
            None => {}
            Some(Err(dropped)) => self.report(&dropped),
            Some(Ok((socket, peer))) => {
                let _ = self.shared.epoll.remove(socket.as_raw_fd());
                let served = self.shared.contexts().by_handle.get(&peer.to).and_then(|e| e.served.upgrade());
                if let Some(served) = served {
                    served.accept(socket, &peer);
                }
            }
        }
    }

    fn report(&self, Dropped { from, claims, failure }: &Dropped) {
        let who = claims.map_or(String::new(), |rank| format!(" that says it is rank {rank}"));
        let why = match failure {
            Failure::Fault(fault) => fault.to_string(),
            Failure::Ended => "it ended in the middle of the handshake".into(),
            Failure::Slow => "it did not finish the handshake in time".into(),
            Failure::Crowded => "it made room for newer ones".into(),
        };
        self.shared.log(1, &format!("dropped a connection from {from}{who}: {why}"));
    }
}

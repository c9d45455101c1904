//! The thread that answers.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use super::{NAMES, Question, Report};
use crate::net::gate::Stream;
use crate::sys::poller::Event;
use crate::sys::{self, OwnedSocket, Poller, PollerKind, READ, Registration, WRITE, Waker, local_socket};

/// How long a client may take in all.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of clients at a time; a further one takes the place of the oldest.
const MAX_CLIENTS: usize = 8;
/// Longest request, with the end of its line.
const MAX_REQUEST_BYTES: usize = 64;
/// Pause after the system has refused to accept a connection, or to wait for one.
const PAUSE: Duration = Duration::from_millis(20);

/// Numbers of events; those of clients follow.
const WAKER: u64 = 0;
const LISTENER: u64 = 1;

/// Answers while it lives.
pub struct Monitor {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Listens, and starts the thread. `reports` lists the contexts at each request.
    pub fn start(reports: impl Fn() -> Vec<Report> + Send + 'static) -> io::Result<Self> {
        Self::with_patience(PATIENCE, reports)
    }

    fn with_patience(patience: Duration, reports: impl Fn() -> Vec<Report> + Send + 'static) -> io::Result<Self> {
        let random: [u8; 8] = sys::random()?;
        let name = format!("{NAMES}{}/{:016x}", std::process::id(), u64::from_ne_bytes(random));
        let poller = Poller::new(PollerKind::SYSTEM)?;
        let listener = OwnedSocket::from(local_socket::listen(&name)?);
        let (stop, waker) = (Arc::<AtomicBool>::default(), Arc::new(Waker::new()?));
        let listens = poller.add(&listener, READ, LISTENER)?;
        let wakes = poller.add(&*waker, READ, WAKER)?;
        let server = Server {
            _registrations: [listens, wakes],
            listener,
            poller,
            waker: waker.clone(),
            stop: stop.clone(),
            reports: Box::new(reports),
            patience,
            clients: BTreeMap::new(),
            next: LISTENER + 1,
        };
        let thread = std::thread::Builder::new().name("gloo_rs-top".into()).spawn(move || server.run())?;
        Ok(Self { stop, waker, thread: Some(thread) })
    }

    /// Forgets it in a child by fork, where its thread does not exist.
    pub fn abandon(mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Monitor {
    /// The socket is closed when this returns, unless the thread itself drops the monitor with the last context.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if !sys::is_current(&thread) {
            let _ = thread.join();
        }
    }
}

struct Server {
    /// Dropped before the sockets.
    _registrations: [Registration; 2],
    listener: OwnedSocket,
    poller: Poller,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    reports: Box<dyn Fn() -> Vec<Report> + Send>,
    /// How long a client may take.
    patience: Duration,
    /// By the numbers of their events: the oldest first.
    clients: BTreeMap<u64, Client>,
    next: u64,
}

struct Client {
    /// Dropped before the socket.
    registration: Registration,
    stream: OwnedSocket,
    request: Vec<u8>,
    answer: Option<Answer>,
    until: Instant,
}

/// What is left to be sent.
struct Answer {
    question: Question,
    reports: IntoIter<Report>,
    part: Vec<u8>,
    sent: usize,
    /// Documents that were written.
    written: usize,
    is_closed: bool,
}

impl Server {
    fn run(mut self) {
        sys::block_signals();
        let mut ready = [Event::default(); 2 + MAX_CLIENTS];
        loop {
            // A deadline is that of the oldest, as all have the same time.
            let until = self.clients.first_key_value().map(|(_, client)| client.until);
            let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
            let waited = self.poller.wait(&mut ready, timeout);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let found = waited.unwrap_or_else(|_| {
                std::thread::sleep(PAUSE);
                0
            });
            for event in &ready[..found] {
                match event.number {
                    WAKER => self.waker.clear(),
                    LISTENER => self.accept(),
                    number => self.advance(number),
                }
            }
            let now = Instant::now();
            self.clients.retain(|_, client| now < client.until);
        }
    }

    fn accept(&mut self) {
        match sys::socket::accept(&self.listener) {
            Ok((socket, _)) if is_permitted(&socket) => self.admit(socket.into()),
            // Who asks sees whose process this is, and so knows why it is not answered.
            Ok(_) => {}
            Err(error) if sys::socket::is_exhausted(&error) => std::thread::sleep(PAUSE),
            Err(_) => {}
        }
    }

    fn admit(&mut self, stream: OwnedSocket) {
        let number = self.next;
        self.next += 1;
        let Ok(registration) = self.poller.add(&stream, READ, number) else { return };
        if self.clients.len() >= MAX_CLIENTS {
            self.clients.pop_first();
        }
        let until = Instant::now() + self.patience;
        self.clients.insert(number, Client { registration, stream, request: Vec::new(), answer: None, until });
        self.advance(number);
    }

    /// Reads what a client asks and sends what it can take; drops the client when that is done, or it has broken the
    /// rules.
    fn advance(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if client.answer.is_none() {
            match client.read_question() {
                Ok(Some(question)) => client.answer = Some(Answer::new(question, (self.reports)())),
                Ok(None) => return,
                Err(_) => return drop(self.clients.remove(&number)),
            }
        }
        match client.send() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && client.registration.set(WRITE, number).is_ok() => {}
            _ => drop(self.clients.remove(&number)),
        }
    }
}

/// Whether the process at the other end is this user's, or root's.
fn is_permitted(socket: &impl sys::AsRaw) -> bool {
    local_socket::peer(socket).is_ok_and(|peer| peer.user == 0 || peer.user == local_socket::user())
}

impl Client {
    /// The question, once its line is complete. Fails if the client asks for nothing that there is, or has ended.
    fn read_question(&mut self) -> io::Result<Option<Question>> {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        while self.request.len() < MAX_REQUEST_BYTES {
            match self.stream.receive(&mut bytes[self.request.len()..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    let have = self.request.len();
                    self.request.extend_from_slice(&bytes[have..have + n]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(line) = self.request.strip_suffix(b"\n") {
                return Question::parse(line).map(Some).ok_or_else(|| ErrorKind::InvalidInput.into());
            }
        }
        Err(ErrorKind::InvalidInput.into())
    }

    /// Sends the rest of the answer. Fails with [`ErrorKind::WouldBlock`] while the client does not take it.
    fn send(&mut self) -> io::Result<()> {
        let Some(answer) = &mut self.answer else { return Ok(()) };
        while answer.sent < answer.part.len() || answer.next_part() {
            answer.sent += self.stream.send(&answer.part[answer.sent..])?;
        }
        Ok(())
    }
}

impl Answer {
    fn new(question: Question, reports: Vec<Report>) -> Self {
        let part = format!("{{\"process\": {}, \"contexts\": [", std::process::id()).into_bytes();
        Self { question, reports: reports.into_iter(), part, sent: 0, written: 0, is_closed: false }
    }

    /// Replaces the part, which was sent, by the next one. Returns false if there is none.
    fn next_part(&mut self) -> bool {
        let Some(document) = self.reports.find_map(|report| report(self.question)) else {
            let was_closed = std::mem::replace(&mut self.is_closed, true);
            (self.part, self.sent) = (b"]}\n".to_vec(), 0);
            return !was_closed;
        };
        let comma = if self.written > 0 { "," } else { "" };
        self.written += 1;
        (self.part, self.sent) = (format!("{comma}{document}").into_bytes(), 0);
        true
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

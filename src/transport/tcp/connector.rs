//! How connections to the peers of one context begin: by either side, on first use. When both connect at the same time, the
//! connection of the lower rank is kept.

mod handshake;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::device::Shared;
use super::link::TcpLink;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::net::address::{self, Address, MAX_SOCKETS};
use crate::net::handshake::{self as proofs, Answer, Handle, Identity, Proven, Reason};
use crate::secret::{JobToken, SecretKey};
use crate::sys::{self, Epoll};
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Interest, LogCallback};
use crate::types::Rank;

/// How long one of several addresses may leave an attempt to connect unanswered.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// How long a peer that is connecting to us may take for that.
const YIELD_TIME: Duration = Duration::from_millis(500);
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How long a peer may refuse connections before it counts as gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes on their way to a rank of the same host. By itself the system lets megabytes pile up there, which leave the cache
/// before they are read: 32 MiB between two ranks then take 15 ms instead of 9.
const LOCAL_SEND_BUFFER: usize = 128 << 10;
/// An idle connection whose peer's host does not answer breaks after a minute. Processes that are busy or stopped do not
/// matter: it is the system that answers.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10)).with_retries(3);

/// How far the way to a peer is.
enum State {
    /// Nobody has needed it yet.
    Idle,
    /// It is needed; the next attempt is at this time.
    Retry(Instant),
    /// The system is connecting.
    Connecting(OwnedFd),
    /// The hello is sent; both sides prove that they belong together.
    Greeting(OwnedFd, Box<proofs::Connector>),
    /// The peer is connecting to us, and its connection is the one to keep. It is asked again at this time.
    Yielded(Instant),
    /// A link stands.
    Established,
    /// There will be none any more.
    Over,
}

/// The way to one peer.
struct Way {
    state: State,
    /// Who the peer says it is, that has connected to us.
    theirs: Option<Handle>,
    /// Why the last attempt to connect failed, and how many have.
    attempts: u32,
    last_error: Option<Error>,
    /// Which of the addresses that it can be reached at is, or will be, tried.
    target: usize,
    /// When an attempt that is not answered ends, so that another address gets its turn.
    give_up: Option<Instant>,
    /// Since when the peer's host answers, and the peer does not, at each of those addresses.
    refused_since: [Option<Instant>; MAX_SOCKETS],
}

impl Way {
    fn new() -> Self {
        Self {
            state: State::Idle,
            theirs: None,
            attempts: 0,
            last_error: None,
            target: 0,
            give_up: None,
            refused_since: [None; MAX_SOCKETS],
        }
    }
}

/// Connections whose peers have proven themselves, from the device's thread to their connector.
pub(super) type Arrivals = Arc<Mutex<Vec<(OwnedFd, Proven)>>>;

/// Makes the connections of one context.
pub struct TcpConnector {
    rank: Rank,
    size: usize,
    local: Address,
    token: JobToken,
    log: Option<LogCallback>,
    epoll: Epoll,
    shared: Arc<Shared>,
    /// When it was made: what is due then is due at once.
    made: Instant,
    addresses: QuickMap<u32, Address>,
    ways: QuickMap<u32, Way>,
    /// Ranks to which a way is being made.
    pending: Vec<Rank>,
    arrivals: Arrivals,
    /// The context is closed; with the words for those who come later.
    closed: Option<Option<CloseNotice>>,
}

impl TcpConnector {
    /// For `rank` of `size`, whose peers have `token`, too, and find it at `sockets`, or where `set_sockets` says. Connections
    /// whose peers have proven themselves come by `arrivals`.
    pub(super) fn new(
        rank: Rank,
        size: usize,
        token: &JobToken,
        sockets: Vec<SocketAddr>,
        shared: Arc<Shared>,
        arrivals: Arrivals,
    ) -> Result<Self> {
        let failed = |e| Error::io("cannot create a context", &e);
        let identity: Identity = sys::random().map_err(failed)?;
        Ok(Self {
            rank,
            size,
            local: Address { identity, sockets, host: address::host(), cores: address::cores() },
            token: token.clone(),
            log: shared.log.clone(),
            epoll: Epoll::new().map_err(failed)?,
            shared,
            made: Instant::now(),
            addresses: QuickMap::default(),
            ways: QuickMap::default(),
            pending: Vec::new(),
            arrivals,
            closed: None,
        })
    }

    /// What this context is called in the open.
    pub(super) fn handle(&self) -> Handle {
        proofs::handle(&self.local.identity)
    }

    /// What peers must have to connect to it.
    pub(super) fn key(&self) -> SecretKey {
        proofs::key(&self.token, &self.local.identity)
    }

    fn log(&self, level: u32, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }

    fn way(&mut self, rank: Rank) -> &mut Way {
        self.ways.entry(rank as u32).or_insert_with(Way::new)
    }

    fn set_state(&mut self, rank: Rank, state: State) {
        let pending = matches!(state, State::Retry(_) | State::Connecting(_) | State::Greeting(..) | State::Yielded(_));
        self.pending.retain(|r| *r != rank);
        if pending {
            self.pending.push(rank);
        }
        self.way(rank).state = state;
    }

    /// The addresses of `rank` that can be tried, the preferred first.
    fn targets(&self, rank: Rank) -> Vec<SocketAddr> {
        self.peer(rank).map(|address| address.ways_from(&self.local)).unwrap_or_default()
    }

    /// The address of `rank` that is connected to, is being tried, or comes next.
    fn target(&self, rank: Rank) -> Option<SocketAddr> {
        let targets = self.targets(rank);
        let index = self.ways.get(&(rank as u32)).map_or(0, |way| way.target);
        let mut target = targets.get(index).or(targets.first()).copied();
        // A link-local address is of the link that we are known on; the peer's number of it means nothing here.
        if let Some(SocketAddr::V6(v6)) = &mut target
            && v6.ip().is_unicast_link_local()
            && let Some(SocketAddr::V6(own)) = self.local.sockets.iter().find(|s| s.is_ipv6())
        {
            v6.set_scope_id(own.scope_id());
        }
        target
    }

    /// Begins to connect to `rank`. An error is final.
    fn attempt(&mut self, rank: Rank, now: Instant) -> Result<()> {
        let Some(to) = self.target(rank) else {
            let theirs = self.peer(rank).map(|a| &a.sockets[..]).unwrap_or_default();
            let text = format!(
                "there is no way to rank {rank}: it listens at {theirs:?}, this rank at {:?}; they need a family in \
                 common, and loopback leads to no other host",
                self.local.sockets
            );
            return Err(Error::new(ErrorKind::Io, text));
        };
        match self.open(rank, to) {
            Ok(socket) => {
                // Where there is another way, a network that swallows packets is not waited for.
                let give_up = (self.targets(rank).len() > 1).then(|| now + ANSWER_TIME);
                self.way(rank).give_up = give_up;
                self.set_state(rank, State::Connecting(socket));
                Ok(())
            }
            Err(e) => {
                let error = Error::io(format_args!("cannot connect to {}", self.peer_name(rank)), &e);
                self.retry_later(rank, error, now)
            }
        }
    }

    /// Has the system connect to `to`.
    fn open(&self, rank: Rank, to: SocketAddr) -> io::Result<OwnedFd> {
        let domain = Domain::for_address(to);
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        // Leave from the address that we are known by.
        if let Some(mut from) = self.local.sockets.iter().find(|s| s.is_ipv4() == to.is_ipv4()).copied() {
            from.set_port(0);
            socket.bind(&from.into())?;
        }
        match socket.connect(&to.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        self.epoll.add(socket.as_raw_fd(), sys::READ | sys::WRITE, rank as u64)?;
        Ok(OwnedFd::from(socket))
    }

    /// The attempt with the present address has failed: tries the next, after a while if that is the first again. An error is
    /// final.
    fn retry_later(&mut self, rank: Rank, error: Error, now: Instant) -> Result<()> {
        let targets = self.targets(rank).len().max(1);
        let name = self.peer_name(rank);
        let way = self.way(rank);
        // It listened before anyone was told its address: where its host answers and it does not, it is gone.
        let refused = error.kind() == ErrorKind::ConnectionLost;
        way.refused_since[way.target] = if refused { way.refused_since[way.target].or(Some(now)) } else { None };
        if way.refused_since[..targets].iter().all(|since| since.is_some_and(|since| now - since >= PATIENCE)) {
            let text = format!("{name} is gone: {error} ({} attempts)", way.attempts + 1);
            return Err(Error::new(ErrorKind::ConnectionLost, text));
        }
        way.target = (way.target + 1) % targets;
        let round = way.attempts / targets as u32;
        let wait = FIRST_RETRY.saturating_mul(1 << round.min(10)).min(LAST_RETRY);
        let wait = if way.target == 0 { wait } else { Duration::ZERO };
        way.attempts += 1;
        way.last_error = Some(error);
        self.set_state(rank, State::Retry(now + wait));
        Ok(())
    }

    /// Tries again what has waited long enough for that, and gives up what has waited too long for an answer.
    fn retry_due(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        for rank in self.pending.clone() {
            let way = self.way(rank);
            let result = match way.state {
                State::Retry(at) | State::Yielded(at) if at <= now => self.attempt(rank, now),
                State::Connecting(_) if way.give_up.is_some_and(|at| at <= now) => {
                    let text = format!("cannot connect to {}: no answer in {ANSWER_TIME:?}", self.peer_name(rank));
                    self.retry_later(rank, Error::new(ErrorKind::Timeout, text), now)
                }
                _ => Ok(()),
            };
            self.conclude(rank, result, events);
        }
    }

    /// Reports an error that is final.
    fn conclude(&mut self, rank: Rank, result: Result<()>, events: &mut Vec<ConnectorEvent>) {
        if let Err(error) = result {
            self.give_up(rank);
            events.push(ConnectorEvent::Unreachable { rank, error });
        }
    }

    /// Moves a connection that is being made. An error is final.
    fn advance(&mut self, rank: Rank, now: Instant, events: &mut Vec<ConnectorEvent>) -> Result<()> {
        let Some(to) = self.peer(rank).map(|address| address.identity) else { return Ok(()) };
        match self.greet(rank, &to) {
            Ok(None) => Ok(()),
            Ok(Some((Answer::Accepted, connection))) => {
                match std::mem::replace(&mut self.way(rank).state, State::Idle) {
                    State::Greeting(socket, _) => {
                        self.established(rank, socket, &proofs::handle(&to), connection, events)
                    }
                    _ => Ok(()),
                }
            }
            Ok(Some((Answer::Yield, _))) => {
                // It may give up its connection, or end, before that reaches us.
                self.set_state(rank, State::Yielded(now + YIELD_TIME));
                Ok(())
            }
            // Another process has its port now, or it is about to end.
            Ok(Some((Answer::Refused(Reason::NoContext), _))) => {
                let text = format!("{} has closed its context", self.peer_name(rank));
                self.retry_later(rank, Error::new(ErrorKind::ConnectionLost, text), now)
            }
            Ok(Some((Answer::Refused(reason), _))) => {
                let why = match reason {
                    Reason::Version => "it speaks another version of the protocol",
                    Reason::Proof => "it does not believe that this rank belongs to its job",
                    Reason::Stranger => "it knows this rank by another address",
                    Reason::Over => "its context is closed, or has lost this rank already",
                    Reason::Connected => "it has a connection to this rank already",
                    Reason::NoContext | Reason::OneToken => "it does not know this context",
                };
                let text = format!("{} refused the connection: {why}", self.peer_name(rank));
                Err(Error::new(ErrorKind::ConnectionLost, text))
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => Err(error),
            Err(error) => self.retry_later(rank, error, now),
        }
    }

    /// A connection stands: makes a link of it. An error is final.
    fn established(
        &mut self,
        rank: Rank,
        socket: OwnedFd,
        theirs: &Handle,
        connection: u32,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        // A host that is lost without a word is noticed even by who waits longer than that, and firewalls do not forget us.
        let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE);
        if self.peer(rank).is_some_and(|address| address.host == self.local.host) {
            // If the system refuses, its own choice stays.
            let _ = socket2::SockRef::from(&socket).set_send_buffer_size(LOCAL_SEND_BUFFER);
        }
        self.way(rank).theirs = Some(*theirs);
        let link = TcpLink::new(socket, rank, self.epoll.clone(), self.shared.clone())
            .map_err(|e| Error::io(format_args!("cannot watch the connection to {}", self.peer_name(rank)), &e))?;
        self.set_state(rank, State::Established);
        events.push(ConnectorEvent::Established { rank, link: Box::new(link), connection });
        Ok(())
    }
}

impl Connector for TcpConnector {
    fn address(&self) -> &Address {
        &self.local
    }

    fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.local.sockets = sockets;
    }

    fn set_peer(&mut self, rank: Rank, address: Address) -> Result<()> {
        let claimed = self.ways.get(&(rank as u32)).and_then(|way| way.theirs);
        let stranger = claimed.is_some_and(|theirs| theirs != proofs::handle(&address.identity));
        self.addresses.insert(rank as u32, address);
        if stranger {
            let text = format!("{} was impersonated: someone else connected in its name", self.peer_name(rank));
            return Err(Error::new(ErrorKind::ConnectionLost, text));
        }
        Ok(())
    }

    fn peer(&self, rank: Rank) -> Option<&Address> {
        self.addresses.get(&(rank as u32))
    }

    fn knows_any_peer(&self) -> bool {
        !self.addresses.is_empty()
    }

    fn connect(&mut self, rank: Rank) {
        let made = self.made;
        if self.addresses.contains_key(&(rank as u32)) && matches!(self.way(rank).state, State::Idle) {
            self.set_state(rank, State::Retry(made));
        }
    }

    fn give_up(&mut self, rank: Rank) {
        self.set_state(rank, State::Over);
    }

    fn close(&mut self, last_words: Option<CloseNotice>) {
        self.closed = Some(last_words);
        self.pending.clear();
        self.ways.values_mut().for_each(|way| way.state = State::Over);
    }

    #[inline]
    fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        for (socket, proven) in arrivals {
            let result = self.accept(socket, &proven, events);
            self.conclude(proven.rank as usize, result, events);
        }
        self.retry_due(now, events);
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let n = self.epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap_or(0);
        for event in &ready[..n] {
            let rank = event.u64 as usize;
            if self.pending.contains(&rank) {
                let result = self.advance(rank, now, events);
                self.conclude(rank, result, events);
            } else {
                // The end of a stream is readable, however it comes.
                let of = Interest { readable: true, writable: event.events & sys::WRITE != 0 };
                events.push(ConnectorEvent::Ready { rank, of });
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let due = |rank: &Rank| {
            let way = self.ways.get(&(*rank as u32))?;
            match way.state {
                State::Retry(at) | State::Yielded(at) => Some(at),
                State::Connecting(_) => way.give_up,
                _ => None,
            }
        };
        self.pending.iter().filter_map(due).min()
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(self.epoll.as_raw_fd());
    }

    fn location(&self, rank: Rank) -> Option<String> {
        self.target(rank).map(|at| at.to_string())
    }

    fn why_not_connected(&self, rank: Rank) -> String {
        match self.ways.get(&(rank as u32)) {
            Some(Way { state: State::Greeting(..), .. }) => {
                "not connected: its host has taken the connection, but its process has not answered".to_owned()
            }
            Some(Way { state: State::Yielded(_), .. }) => "not connected: it is connecting to this rank".to_owned(),
            Some(Way { last_error: Some(error), attempts, .. }) => {
                format!("not connected after {attempts} attempts; the last one: {error}")
            }
            Some(Way { state: State::Connecting(_), .. }) => "not connected: nothing has answered there".to_owned(),
            _ => "not connected".to_owned(),
        }
    }
}

impl Drop for TcpConnector {
    fn drop(&mut self) {
        self.shared.forget(&self.handle());
    }
}

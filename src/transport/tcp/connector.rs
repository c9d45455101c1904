//! Connections to the peers of one context. Either side connects on first use. If both do at the same time, the
//! connection initiated by the lower rank is kept.

mod attempts;
mod handshake;
mod joining;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use socket2::TcpKeepalive;

use self::handshake::Step;
use self::joining::Joining;
use super::buffered::BufferedLinks;
use super::closing::ClosingLink;
use super::link::TcpLink;
use super::shared::{Arrivals, Shared};
use super::streams::Streams;
use super::{number, of_number};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::log::{Level, LogCallback};
use crate::net::address::MAX_SOCKETS;
use crate::net::handshake::{self as proofs, Answer, Handle, Identity, Part, Reason};
use crate::net::stream::Stream;
use crate::secret::{JobToken, SecretKey};
use crate::sys::poller::Event;
use crate::sys::{self, OwnedSocket, Pollable, Poller, Registration};
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Description, Interest, Peers, Reach};
use crate::types::Rank;

/// How long to wait for a peer on another host, or on this one, that is connecting to this rank.
const YIELD_TIME: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(25)];
/// Send buffer in bytes for ranks of the same host. By default the kernel buffers megabytes, which leave the cache
/// before they are read: 32 MiB between two ranks then take 15 ms instead of 9 ms. A little more than one segment of an
/// algorithm: the kernel doubles the number, and counts what it needs itself, so with 128 KiB two segments would need a
/// second call, after a wait for room.
const LOCAL_SEND_BUFFER_BYTES: usize = 160 << 10;
/// An idle connection is closed after a minute without an answer from the peer's host. Busy or stopped processes do not
/// matter, since the kernel answers.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10)).with_retries(3);

/// Number of the event of [`BufferedLinks`]; those of peers are their ranks.
const BUFFERED_LINKS: u64 = u64::MAX;

/// The state of the connection to a peer.
enum State {
    /// No link is needed yet.
    Idle,
    /// A link is needed; the next attempt is at this time.
    Retry(Instant),
    /// This rank connects.
    Connecting(Attempt),
    /// There is a first connection, and the link will have others.
    Joining(Box<Joining>),
    /// The peer is connecting to this rank, and its connection will be kept. If it does not arrive until this time, the
    /// next attempt starts.
    Yielded(Instant),
    /// There is a link.
    Established,
    /// Final: no link will be established.
    Closed,
}

/// A connection that this rank makes.
enum Attempt {
    /// A TCP connection is being established.
    Opening(Registration, OwnedSocket),
    /// The hello has been sent; the mutual authentication is in progress.
    Handshaking(Registration, Stream, Box<proofs::Connector>),
}

/// A peer and the state of the connection to it.
struct PeerConnection {
    state: State,
    /// The identity that the peer claimed when it connected to this rank.
    theirs: Option<Handle>,
    /// The number of failed attempts, and the error of the last one.
    attempts: u32,
    last_error: Option<Error>,
    /// Index of the peer's address that is being tried, or will be tried next.
    target: usize,
    /// When an unanswered attempt is abandoned in favour of the next address.
    give_up: Option<Instant>,
    /// Since when connections to each address have been refused.
    refused_since: [Option<Instant>; MAX_SOCKETS],
}

impl PeerConnection {
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

/// Establishes the connections of one context.
pub struct TcpConnector {
    /// In the address of this context.
    identity: Identity,
    token: JobToken,
    log: Option<LogCallback>,
    poller: Poller,
    /// The registration of [`BufferedLinks`] with the poller.
    _buffered_registration: Option<Registration>,
    shared: Arc<Shared>,
    /// When the connector was created; a time in the past for immediate attempts.
    created: Instant,
    connections: QuickMap<u32, PeerConnection>,
    /// Ranks with an attempt in progress.
    pending: Vec<Rank>,
    arrivals: Arrivals,
    /// The links that hold bytes, if links do.
    buffered_links: Option<Arc<BufferedLinks>>,
    /// Whether the poller must be polled before a thread sleeps until it is readable.
    must_poll: bool,
    /// Whether it was polled since the last [`Connector::wake`].
    has_polled: bool,
    /// Whether the context is closed; then, the notice for peers that connect later, if it has failed.
    closed: Option<Option<CloseNotice>>,
}

impl TcpConnector {
    /// A connector of the context with this identity, whose peers have `token`. Authenticated incoming connections are
    /// passed in `arrivals`.
    pub(super) fn new(token: &JobToken, identity: Identity, shared: Arc<Shared>, arrivals: Arrivals) -> Result<Self> {
        let failed = |e| Error::io("cannot create a context", &e);
        let poller = Poller::new(shared.transport.poller()).map_err(failed)?;
        let buffered_links =
            if shared.security.is_encrypted() { Some(BufferedLinks::new().map_err(failed)?) } else { None };
        let watched = buffered_links
            .as_ref()
            .map(|buffered_links| poller.add(buffered_links, sys::READ, BUFFERED_LINKS))
            .transpose()
            .map_err(failed)?;
        Ok(Self {
            identity,
            token: token.clone(),
            log: shared.log.clone(),
            poller,
            _buffered_registration: watched,
            buffered_links: buffered_links.map(Arc::new),
            must_poll: false,
            has_polled: false,
            shared,
            created: Instant::now(),
            connections: QuickMap::default(),
            pending: Vec::new(),
            arrivals,
            closed: None,
        })
    }

    /// The public name of this context.
    pub(super) fn handle(&self) -> Handle {
        proofs::handle(&self.identity)
    }

    /// The key with which peers authenticate themselves to this context.
    pub(super) fn key(&self) -> SecretKey {
        proofs::key(&self.token, &self.identity)
    }

    fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }

    fn entry(&mut self, rank: Rank) -> &mut PeerConnection {
        self.connections.entry(rank as u32).or_insert_with(PeerConnection::new)
    }

    fn set_state(&mut self, rank: Rank, state: State) {
        let pending = matches!(state, State::Retry(_) | State::Connecting(_) | State::Joining(_) | State::Yielded(_));
        self.pending.retain(|r| *r != rank);
        if pending {
            self.pending.push(rank);
        }
        self.entry(rank).state = state;
    }

    /// The reachable addresses of `rank`, in order of preference.
    fn targets(&self, peers: &Peers, rank: Rank) -> Vec<SocketAddr> {
        peers.get(rank).map(|address| address.ways_from(&peers.own)).unwrap_or_default()
    }

    /// The address of `rank` that is connected, is being tried, or will be tried next.
    fn target(&self, peers: &Peers, rank: Rank) -> Option<SocketAddr> {
        let targets = self.targets(peers, rank);
        let index = self.connections.get(&(rank as u32)).map_or(0, |entry| entry.target);
        let mut target = targets.get(index).or(targets.first()).copied();
        // The scope of a link-local address is local to a host: use the interface of this rank's address, not the
        // peer's scope id.
        if let Some(SocketAddr::V6(v6)) = &mut target
            && v6.ip().is_unicast_link_local()
            && let Some(SocketAddr::V6(own)) = peers.own.sockets.iter().find(|s| s.is_ipv6())
        {
            v6.set_scope_id(own.scope_id());
        }
        target
    }

    /// The name of `rank` in messages.
    fn peer_name(&self, peers: &Peers, rank: Rank) -> String {
        peers.name(rank, self.target(peers, rank))
    }

    /// Reports a final error.
    fn report_failure(&mut self, rank: Rank, result: Result<()>, events: &mut Vec<ConnectorEvent>) {
        if let Err(error) = result {
            self.give_up(rank);
            events.push(ConnectorEvent::Unreachable { rank, error });
        }
    }

    /// Goes on with the connection at `index` of the link to `rank`, on which something has happened. An error is
    /// final.
    fn advance(
        &mut self,
        peers: &Peers,
        rank: Rank,
        index: usize,
        now: Instant,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        match std::mem::replace(&mut self.entry(rank).state, State::Idle) {
            State::Connecting(attempt) => self.connect_first(peers, rank, attempt, now, events),
            State::Joining(joining) => self.join(peers, rank, index, joining, now, events),
            other => {
                self.entry(rank).state = other;
                Ok(())
            }
        }
    }

    /// Continues an attempt to connect. An error is final.
    fn connect_first(
        &mut self,
        peers: &Peers,
        rank: Rank,
        attempt: Attempt,
        now: Instant,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        match self.shake_hands(peers, rank, attempt, Part::first(self.streams_to(peers, rank))) {
            Ok(Step::Pending(attempt)) => {
                self.set_state(rank, State::Connecting(attempt));
                Ok(())
            }
            Ok(Step::Answered(Answer::Accepted, agreed, first)) => {
                let theirs = peers.get(rank).map(|address| proofs::handle(&address.identity)).unwrap_or_default();
                if agreed.streams == 1 {
                    let (registration, stream) = first;
                    let only = vec![(Some(registration), stream)];
                    return self.established(peers, rank, only, &theirs, agreed.connection, events);
                }
                self.connect_others(peers, rank, theirs, agreed, first, now)
            }
            Ok(Step::Answered(Answer::Yield, ..)) => {
                // The peer may abandon its own connection, or end, before that connection arrives here.
                self.set_state(rank, State::Yielded(now + YIELD_TIME[usize::from(peers.is_here(rank))]));
                Ok(())
            }
            // Another process may use its port now, or the peer is about to end.
            Ok(Step::Answered(Answer::Refused(Reason::NoContext), ..)) => {
                let text = format!("{} has closed its context", self.peer_name(peers, rank));
                self.retry_later(peers, rank, Error::new(ErrorKind::ConnectionLost, text), now)
            }
            Ok(Step::Answered(Answer::Refused(reason), ..)) => {
                let why = match reason {
                    Reason::Version => "it uses another version of the protocol",
                    Reason::Proof => "it could not authenticate this rank as part of its job",
                    Reason::Stranger => "it knows this rank by another address",
                    Reason::Closed => "its context is closed, or has already disconnected from this rank",
                    Reason::Connected => "it has a connection to this rank already",
                    Reason::NoContext | Reason::OneToken => "it does not know this context",
                };
                let text = format!("{} refused the connection: {why}", self.peer_name(peers, rank));
                Err(Error::new(ErrorKind::ConnectionLost, text))
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => Err(error),
            Err(error) => self.retry_later(peers, rank, error, now),
        }
    }

    /// Creates the link for authenticated connections. An error is final.
    fn established(
        &mut self,
        peers: &Peers,
        rank: Rank,
        connections: Vec<(Option<Registration>, Stream)>,
        theirs: &Handle,
        connection: u32,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        for (_, stream) in &connections {
            // Keepalive detects a host that disappears even if the peer waits longer, and keeps the entries in stateful
            // firewalls.
            let _ = socket2::SockRef::from(stream.socket()).set_tcp_keepalive(&KEEPALIVE);
            if peers.is_here(rank) {
                // If this fails, the default size remains.
                let _ = socket2::SockRef::from(stream.socket()).set_send_buffer_size(LOCAL_SEND_BUFFER_BYTES);
            }
        }
        self.entry(rank).theirs = Some(*theirs);
        let link =
            TcpLink::new(connections, rank, self.poller.clone(), self.shared.clone(), self.buffered_links.clone())
                .map_err(|e| {
                    Error::io(format_args!("cannot watch the connection to {}", self.peer_name(peers, rank)), &e)
                })?;
        self.set_state(rank, State::Established);
        events.push(ConnectorEvent::Established { rank, link: Box::new(link), connection });
        Ok(())
    }
}

impl Connector for TcpConnector {
    fn reach(&mut self, peers: &Peers, rank: Rank) -> Result<Reach> {
        let claimed = self.connections.get(&(rank as u32)).and_then(|entry| entry.theirs);
        let own = peers.get(rank).map(|address| proofs::handle(&address.identity));
        if claimed.is_some_and(|theirs| own.is_some_and(|own| own != theirs)) {
            let text =
                format!("{} was impersonated: another process connected in its name", self.peer_name(peers, rank));
            return Err(Error::new(ErrorKind::ConnectionLost, text));
        }
        Ok(Reach::Yes)
    }

    fn connect(&mut self, rank: Rank) {
        let created = self.created;
        if matches!(self.entry(rank).state, State::Idle) {
            self.set_state(rank, State::Retry(created));
        }
    }

    fn give_up(&mut self, rank: Rank) {
        self.set_state(rank, State::Closed);
    }

    fn close(&mut self, close_notice: CloseNotice, has_failed: bool) {
        self.pending.clear();
        for entry in self.connections.values_mut() {
            // The peer may have accepted, and would take the end of the connection for the end of this process.
            let first = match std::mem::replace(&mut entry.state, State::Closed) {
                State::Connecting(Attempt::Handshaking(registration, stream, connector)) => {
                    connector.connection().map(|connection| (connection, registration, stream))
                }
                State::Joining(joining) => {
                    let (registration, stream) = joining.first;
                    Some((joining.connection, registration, stream))
                }
                _ => None,
            };
            if let Some((connection, registration, stream)) = first {
                registration.end();
                self.shared.linger(ClosingLink::new(Streams::new([stream.into()].into()), close_notice(connection)));
            }
        }
        self.closed = Some(has_failed.then_some(close_notice));
    }

    #[inline]
    fn is_busy(&self) -> bool {
        self.must_poll
            || !self.pending.is_empty()
            || self.buffered_links.as_ref().is_some_and(|buffered_links| !buffered_links.is_empty())
    }

    fn progress(&mut self, peers: &Peers, now: Instant, events: &mut Vec<ConnectorEvent>) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        for (stream, proven) in arrivals {
            let result = self.accept(peers, stream, &proven, events);
            self.report_failure(proven.rank as usize, result, events);
        }
        self.retry_due(peers, now, events);
        // Links that hold bytes, of which the poller knows nothing, or that may find room now.
        for rank in self.buffered_links.iter().flat_map(|buffered_links| buffered_links.ready()) {
            events.push(ConnectorEvent::Ready { rank, of: Interest { readable: true, writable: true } });
        }
        (self.must_poll, self.has_polled) = (false, true);
        let mut ready = [Event::default(); 64];
        let n = self.poller.wait(&mut ready, Some(Duration::ZERO)).unwrap_or_else(|error| {
            let error = Error::io("cannot look for events of this rank's connections", &error);
            events.push(ConnectorEvent::Failed { error });
            0
        });
        for event in &ready[..n] {
            if event.number == BUFFERED_LINKS {
                continue;
            }
            let (rank, index) = of_number(event.number);
            if self.pending.contains(&rank) {
                let result = self.advance(peers, rank, index, now, events);
                self.report_failure(rank, result, events);
            } else {
                // The end of a stream is reported as readable, whether it is orderly or not.
                let of = Interest { readable: true, writable: event.ready & sys::WRITE != 0 };
                events.push(ConnectorEvent::Ready { rank, of });
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let due = |rank: &Rank| {
            let entry = self.connections.get(&(*rank as u32))?;
            match entry.state {
                State::Retry(at) | State::Yielded(at) => Some(at),
                State::Connecting(_) => entry.give_up,
                _ => None,
            }
        };
        self.pending.iter().filter_map(due).min()
    }

    /// Whoever reads a few links without asking the poller does not know whether that works, and nothing else wakes it.
    fn sleep(&mut self, _: bool) -> bool {
        self.must_poll = !self.has_polled;
        self.must_poll
    }

    fn wake(&mut self, _: bool) {
        self.has_polled = false;
    }

    fn describe(&self, peers: &Peers, rank: Rank) -> Description {
        let location = self.target(peers, rank).map(|at| at.to_string());
        Description { location, why_not_connected: Some(self.why_not_connected(peers, rank)) }
    }
}

impl TcpConnector {
    /// What is to be polled.
    pub(super) fn source(&self) -> Pollable {
        self.poller.clone().into()
    }

    /// Why there is no link to `rank`.
    fn why_not_connected(&self, peers: &Peers, rank: Rank) -> String {
        match self.connections.get(&(rank as u32)) {
            Some(PeerConnection { state: State::Connecting(Attempt::Handshaking(..)), .. }) => {
                "not connected: its host has accepted the connection, but its process has not answered".to_owned()
            }
            Some(PeerConnection { state: State::Yielded(_), .. }) => {
                "not connected: it is connecting to this rank".to_owned()
            }
            Some(PeerConnection { last_error: Some(error), attempts, .. }) => {
                format!("not connected after {attempts} attempts; the last one: {error}")
            }
            Some(PeerConnection { state: State::Joining(joining), .. }) => {
                let (there, all) = joining.progress();
                format!("not connected: there are {there} of {all} connections; its process has not answered yet")
            }
            Some(PeerConnection { state: State::Connecting(_), .. }) => {
                format!("not connected: no answer from that address{}", self.no_common_network(peers, rank))
            }
            _ => "not connected".to_owned(),
        }
    }
}

impl Drop for TcpConnector {
    fn drop(&mut self) {
        self.shared.remove_context(&self.handle(), self.closed.take().flatten());
    }
}

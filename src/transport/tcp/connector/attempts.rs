//! Attempts to connect: at which address, how long, and why one has failed.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Domain;

use super::{Attempt, State, TcpConnector, number};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::BY_NAME;
use crate::net::ports::PORT_RANGE;
use crate::sys::{self, OwnedSocket, connect};
use crate::transport::{ConnectorEvent, Peers};
use crate::types::Rank;

/// Timeout for the answer from one of several addresses.
const ANSWER_TIME: Duration = Duration::from_secs(2);
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How long a peer on another host, or on this one, may refuse connections before it is considered gone. On this host
/// the kernel that refuses knows that nobody listens; the time is for other ranks that have the reason to pass it on.
const REFUSAL_TIME: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(20)];

impl TcpConnector {
    /// Starts to connect to `rank`. An error is final.
    pub(super) fn attempt(&mut self, peers: &Peers, rank: Rank, now: Instant) -> Result<()> {
        let Some(to) = self.target(peers, rank) else {
            let theirs = peers.get(rank).map(|a| &a.sockets[..]).unwrap_or_default();
            let text = format!(
                "there is no route to rank {}: it listens at {theirs:?}, this rank at {:?}; they need a common address \
                 family, and a loopback address cannot be reached from another host; name interfaces that have one, {BY_NAME}",
                peers.named(rank),
                peers.own.sockets
            );
            return Err(Error::new(ErrorKind::Io, text));
        };
        match self.open(peers, rank, 0, to) {
            Ok(attempt) => {
                // If there is another address, do not wait long for a network that drops packets.
                let give_up = (self.targets(peers, rank).len() > 1).then(|| now + ANSWER_TIME);
                self.entry(rank).give_up = give_up;
                self.set_state(rank, State::Connecting(attempt));
                Ok(())
            }
            Err(e) => {
                let error = self.cannot_connect(peers, rank, &e);
                self.retry_later(peers, rank, error, now)
            }
        }
    }

    /// Starts a TCP connection to `to`, which becomes the one at `index` of a link.
    pub(super) fn open(&self, peers: &Peers, rank: Rank, index: usize, to: SocketAddr) -> io::Result<Attempt> {
        let socket = connect::client(Domain::for_address(to))?;
        socket.set_tcp_nodelay(true)?;
        // If interfaces were named, connections leave from them, whatever the routes.
        if self.shared.names_interfaces()
            && let Some(mut from) = peers.own.sockets.iter().find(|s| s.is_ipv4() == to.is_ipv4()).copied()
        {
            from.set_port(0);
            connect::leave_from(&socket, from).map_err(|error| match sys::socket::is_foreign_address(&error) {
                true => io::Error::other(format!(
                    "this host has no address {} any more: name another interface, {BY_NAME}",
                    from.ip()
                )),
                false => error,
            })?;
        }
        match socket.connect(&to.into()) {
            Err(e) if !sys::socket::is_in_progress(&e) => return Err(e),
            _ => {}
        }
        let registration = self.poller.add(&socket, sys::READ | sys::WRITE, number(rank, index))?;
        Ok(Attempt::Opening(registration, OwnedSocket::from(socket)))
    }

    /// The error of an attempt to connect to `rank`.
    pub(super) fn cannot_connect(&self, peers: &Peers, rank: Rank, error: &io::Error) -> Error {
        let doing = format!("cannot connect to {}", self.peer_name(peers, rank));
        if self.target(peers, rank).is_some_and(|to| connect::lacks_ports(error, to)) {
            let text = format!("{doing}: {}", connect::ports_in_words(error));
            return Error::new(ErrorKind::ResourceExhausted, text).with_errno(error.raw_os_error());
        }
        let failed = Error::io(doing, error);
        if sys::socket::is_unreachable(error) { failed.and(self.no_common_network(peers, rank)) } else { failed }
    }

    /// What may be the reason if nothing comes from `rank`, on another host.
    pub(super) fn no_common_network(&self, peers: &Peers, rank: Rank) -> String {
        let ips = |sockets: &[SocketAddr]| sockets.iter().map(|s| s.ip().to_string()).collect::<Vec<_>>().join(", ");
        let theirs = peers.get(rank).map(|address| ips(&address.sockets)).unwrap_or_default();
        if peers.is_here(rank) {
            return String::new();
        }
        format!(
            "; rank {} listens at {theirs}, this rank at {}: if these are of networks that do not reach each other, name interfaces \
             of a common one, {BY_NAME}; if a firewall is between them, let it pass connections to the ports of {PORT_RANGE}",
            peers.named(rank),
            ips(&peers.own.sockets)
        )
    }

    /// What else may be the reason if the host of `rank` refuses connections.
    fn rejecting(&self, peers: &Peers, rank: Rank) -> String {
        if peers.is_here(rank) {
            return String::new();
        }
        format!("; or a firewall rejects connections to it: let it pass those to the ports of {PORT_RANGE}")
    }

    /// Handles a failed attempt: tries the next address, after a delay if all have been tried. An error is final.
    pub(super) fn retry_later(&mut self, peers: &Peers, rank: Rank, error: Error, now: Instant) -> Result<()> {
        let targets = self.targets(peers, rank).len().max(1);
        let (name, patience) = (self.peer_name(peers, rank), REFUSAL_TIME[usize::from(peers.is_here(rank))]);
        let entry = self.entry(rank);
        // The peer listened before it published its address. If its host answers but refuses the connection, the peer
        // is gone.
        let refused = error.kind() == ErrorKind::ConnectionLost;
        entry.refused_since[entry.target] =
            if refused { entry.refused_since[entry.target].or(Some(now)) } else { None };
        if entry.refused_since[..targets].iter().all(|since| since.is_some_and(|since| now - since >= patience)) {
            let text =
                format!("{name} is gone: {error} ({} attempts)", entry.attempts + 1) + &self.rejecting(peers, rank);
            return Err(Error::new(ErrorKind::ConnectionLost, text).with_errno(error.details().errno));
        }
        entry.target = (entry.target + 1) % targets;
        let round = entry.attempts / targets as u32;
        let wait = FIRST_RETRY.saturating_mul(1 << round.min(10)).min(LAST_RETRY);
        let wait = if entry.target == 0 { wait } else { Duration::ZERO };
        entry.attempts += 1;
        entry.last_error = Some(error);
        self.set_state(rank, State::Retry(now + wait));
        Ok(())
    }

    /// Starts the attempts that are due, and abandons those that were not answered in time.
    pub(super) fn retry_due(&mut self, peers: &Peers, now: Instant, events: &mut Vec<ConnectorEvent>) {
        for rank in self.pending.clone() {
            let entry = self.entry(rank);
            let result = match entry.state {
                State::Retry(at) | State::Yielded(at) if at <= now => self.attempt(peers, rank, now),
                State::Connecting(_) if entry.give_up.is_some_and(|at| at <= now) => {
                    let text =
                        format!("cannot connect to {}: no answer in {ANSWER_TIME:?}", self.peer_name(peers, rank));
                    self.retry_later(peers, rank, Error::new(ErrorKind::Timeout, text), now)
                }
                _ => Ok(()),
            };
            self.report_failure(rank, result, events);
        }
    }
}

//! The store over TCP: one rank serves it, the others connect.

mod connection;
mod frame;
mod handshake;
mod listen;
mod peer;
mod protocol;
mod server;
#[cfg(any(test, fuzzing))]
pub(crate) use server::fuzz;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Store;
use super::support::{Backoff, Deadline, NAMED_KEYS, check_key, check_value, doing, no_value, seconds, times};
use crate::environment::{self, by_default};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{self, Level, LogCallback};
use crate::net::admission::ConnectionStatistics;
use crate::net::host;
use crate::net::ports::{self, PortRange};
use crate::net::stream::{Security, Transport};
use crate::reserve::{try_copy, try_with_capacity};
use crate::secret::{JobToken, SecretKey};
use crate::sys::ForkMark;
use crate::sys::connect::ports_in_words;
use connection::{Connection, Fault};
use frame::Reader;
use protocol::{GATHERED, Reply, Request};
use server::{Limits, Server};

/// Connections kept open for later calls; more are opened while more threads call at the same time.
const IDLE_CONNECTIONS: usize = 4;

/// Time limit for a server's reply to its own process.
const OWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a reply may take beyond the call's timeout.
const GRACE: Duration = Duration::from_millis(900);

/// A client of a store's server and, on the rank that serves, the server. Thread-safe.
///
/// Each call uses a connection of its own, so a wait on one thread does not block the others. Connections are kept open
/// for later calls. A server that has ended is not replaced: calls fail with `ConnectionLost`, and a new server at the
/// same address is not taken for the old one. If the server does not answer, calls fail with `Timeout` at most 1 s
/// after their timeout; calls without a timeout after that of [`environment::TIMEOUT`].
///
/// Dropping the store of the rank that serves ends the server after all other clients have disconnected, or after 2 s,
/// so that ranks that are slightly behind can still read their keys.
///
/// The server needs one descriptor for each client. With a job token, both sides prove that they have it before any
/// request is read; without one, every process that can reach the server's port can read and change every key.
pub struct TcpStore {
    /// The URL as given by the user.
    url: String,
    /// The host in it.
    host: String,
    address: SocketAddr,
    instance: u64,
    key: SecretKey,
    security: Security,
    /// The timeout of calls that name none.
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
    /// Whether claims outlive this store if it ends in order.
    keeps_claims: AtomicBool,
    server: Option<Server>,
    mark: ForkMark,
}

/// Options of a [`TcpStore`].
#[derive(Clone, Default)]
pub struct TcpStoreOptions {
    /// The token that server and clients must have; an empty one means none. `None` for the value of `GLOO_RS_TOKEN`.
    pub token: Option<JobToken>,
    /// Callback for log messages about connections that the server drops. Called from the server's thread.
    pub log: Option<LogCallback>,
    /// What carries the bytes of connections: the same on all ranks. `None`: as [`crate::net::stream::TRANSPORT`] says,
    /// else TCP.
    pub transport: Option<Transport>,
}

impl TcpStoreOptions {
    fn key(&self) -> SecretKey {
        handshake::key(&self.token.clone().unwrap_or_else(JobToken::from_environment))
    }
}

impl TcpStore {
    /// Starts a server and connects to it. With `port` 0 it is one of [`ports::PORT_RANGE`], or the system chooses it;
    /// [`TcpStore::port`] returns it.
    ///
    /// `host` is the name or address by which the other ranks connect. The server listens on it if it is an IP address
    /// of this host, or `localhost`; otherwise it listens on all addresses.
    pub fn serve(host: &str, port: u16) -> Result<Self> {
        Self::serve_with(host, port, &TcpStoreOptions::default())
    }

    /// Like [`TcpStore::serve`], with options.
    pub fn serve_with(host: &str, port: u16, options: &TcpStoreOptions) -> Result<Self> {
        Self::start(host, port, options, Limits::default())
    }

    fn start(host: &str, port: u16, options: &TcpStoreOptions, limits: Limits) -> Result<Self> {
        check_host(host)?;
        let (key, range, timeout) = (options.key(), PortRange::choose(None)?, environment::default_timeout()?);
        let log = log::or_environment(options.log.clone())?;
        let security = Security::of(&Transport::choose(options.transport.as_ref())?, log.as_ref())?;
        let failed = |error: &io::Error| {
            ports::cannot_listen(format_args!("{}: cannot serve a store", url(host, port)), port, error)
        };
        let mark = ForkMark::new().map_err(|error| failed(&error))?;
        let warn = log.clone();
        let server = listen::listen(host, port, range.as_ref())
            .and_then(|listener| Server::start(listener, limits, key.clone(), security.clone(), log));
        let server = server.map_err(|error| failed(&error))?;
        let bound = server.address();
        let (url, deadline) = (url(host, bound.port()), Deadline::after(OWN_TIMEOUT));
        let mut own = Err(Fault::Silent);
        let mut address = bound;
        for at in listen::reachable(bound) {
            (address, own) = (at, Connection::open(at, &key, &security, &deadline));
            if own.is_ok() {
                break;
            }
        }
        let connection =
            own.map_err(|fault| fault.explain(&url, address, "cannot connect to its own server", Duration::ZERO))?;
        if let Some(log) = warn
            && let Some(obstacle) = listen::elsewhere(host)
        {
            log(Level::Warning, &format!("{url}: {obstacle}"));
        }
        Ok(Self::over((address, connection), url, host, (key, security, timeout), Some(server), mark))
    }

    /// A store whose server is at the address of `connection`, the first to it, and is `server` if this process runs
    /// it.
    fn over(
        (address, connection): (SocketAddr, Connection),
        url: String,
        host: &str,
        (key, security, timeout): (SecretKey, Security, Duration),
        server: Option<Server>,
        mark: ForkMark,
    ) -> Self {
        let (instance, idle) = (connection.instance, Mutex::new(vec![connection]));
        let (host, keeps_claims) = (host.to_owned(), AtomicBool::new(true));
        Self { url, host, address, instance, key, security, timeout, idle, keeps_claims, server, mark }
    }

    /// Connects to the store that another rank serves; retries until `timeout`.
    ///
    /// Fails at once if another program listens there, or a store of another version or with another token.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        Self::connect_with(host, port, timeout, &TcpStoreOptions::default())
    }

    /// Like [`TcpStore::connect`], with options.
    pub fn connect_with(host: &str, port: u16, timeout: Duration, options: &TcpStoreOptions) -> Result<Self> {
        Self::reach(host, port, (timeout, true), options)
    }

    /// Like [`TcpStore::connect`], but tries once: fails at once if nobody listens there.
    pub(super) fn connect_once(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        Self::reach(host, port, (timeout, false), &TcpStoreOptions::default())
    }

    fn reach(host: &str, port: u16, (timeout, again): (Duration, bool), options: &TcpStoreOptions) -> Result<Self> {
        check_host(host)?;
        let (key, own) = (options.key(), environment::default_timeout()?);
        let security = Security::of(&Transport::choose(options.transport.as_ref())?, options.log.as_ref())?;
        let url = url(host, port);
        if port == 0 {
            return Err(Error::invalid(format!("{url}: no server has port 0")));
        }
        let deadline = Deadline::after(timeout);
        let mark = ForkMark::new().map_err(|error| Error::io(format_args!("{url}: cannot connect"), &error))?;
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match Connection::open_any(host, port, (&key, &security), &deadline) {
                Ok(connected) => return Ok(Self::over(connected, url, host, (key, security, own), None, mark)),
                Err(Fault::Foreign(what)) => return Err(Error::new(ErrorKind::Mismatch, format!("{url}: {what}"))),
                Err(Fault::NoDescriptor(error)) => return Err(connection::no_descriptor(&url, "connect", &error)),
                Err(Fault::NoMemory(error)) => return Err(error.context(format_args!("{url}: connect"))),
                Err(Fault::Silent) => ("connected, but the server did not answer".to_owned(), None),
                Err(Fault::NoPort(error)) => (ports_in_words(&error), error.raw_os_error()),
                Err(Fault::Lost(error) | Fault::Unreachable(error) | Fault::TurnedAway(error)) => {
                    (error.to_string(), error.raw_os_error())
                }
            };
            if !again || deadline.passed() {
                let ((failure, errno), waited) = (failure, seconds(deadline.elapsed()));
                let message =
                    format!("{url}: no store to connect to after {waited} ({}; last: {failure})", times(tries));
                return Err(Error::new(ErrorKind::Timeout, message).with_errno(errno));
            }
            backoff.sleep(&deadline);
        }
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Counts of the connections that the server has accepted and dropped, on the rank that serves.
    pub fn statistics(&self) -> Option<ConnectionStatistics> {
        self.server.as_ref().map(Server::statistics)
    }

    /// Sends a request on a connection of its own, and returns the server's reply.
    fn ask(&self, doing: &str, request: &Request<'_>, patience: Duration) -> Result<Vec<u8>> {
        let deadline = Deadline::after(patience);
        let failed = |fault: Fault| fault.explain(&self.url, self.address, doing, deadline.elapsed());
        let request_frame = request.encode().map_err(|error| failed(Fault::NoMemory(error)))?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect_again(&deadline).map_err(failed)?,
        };
        let frame = connection.exchange(&request_frame, deadline.remaining()).map_err(failed)?;
        connection.claims |= matches!(request, Request::Claim { .. });
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS || connection.claims {
            idle.push(connection);
        } else {
            connection.end();
        }
        Ok(frame)
    }

    /// Opens another connection to this store's server. If it refuses the connection, it has ended. If it cannot be
    /// reached, or has no room for this client, tries again until `deadline`.
    fn connect_again(&self, deadline: &Deadline) -> Result<Connection, Fault> {
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        loop {
            match Connection::open(self.address, &self.key, &self.security, deadline) {
                Ok(connection) if connection.instance == self.instance => return Ok(connection),
                Ok(_) => {
                    let what = "another server has taken its place";
                    return Err(Fault::Lost(io::Error::new(io::ErrorKind::ConnectionReset, what)));
                }
                Err(Fault::Unreachable(_) | Fault::TurnedAway(_) | Fault::NoPort(_)) if !deadline.passed() => {
                    backoff.sleep(deadline)
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// A request to which the server replies at once.
    fn ask_now<T>(
        &self,
        doing: &str,
        request: &Request<'_>,
        patience: Duration,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<T> {
        let frame = self.ask(doing, request, patience)?;
        self.read_reply(doing, &frame, read)?.map_err(|_| self.failed(doing, &frame::invalid()))
    }

    /// A request that waits for keys. Returns the values, or how many keys are missing and the positions of the first
    /// ones.
    fn ask_for_keys<T>(
        &self,
        doing: &str,
        request: &Request<'_>,
        timeout: Duration,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<Result<T, (usize, Vec<usize>)>> {
        let frame = self.ask(doing, request, timeout.saturating_add(GRACE))?;
        self.read_reply(doing, &frame, read)
    }

    /// What `read` makes of a reply of success; or how many keys are missing and the positions of the first ones.
    fn read_reply<T>(
        &self,
        doing: &str,
        frame: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<Result<T, (usize, Vec<usize>)>> {
        match Reply::decode(frame).map_err(|error| self.failed(doing, &error))? {
            Reply::Done(mut rest) => read(&mut rest).map(Ok).map_err(|error| self.failed(doing, &error)),
            Reply::Missing { count, positions } => Ok(Err((count, positions))),
            Reply::Refused { kind: ErrorKind::ResourceExhausted, message } => {
                Err(self.failed(doing, &Error::new(ErrorKind::ResourceExhausted, message)))
            }
            Reply::Refused { kind, message } => Err(Error::new(kind, format!("{}: {message}", self.url))),
        }
    }

    fn failed(&self, doing: &str, error: &Error) -> Error {
        error.context(format_args!("{}: {doing}", self.url))
    }

    fn set_all(&self, pairs: &[(&str, &[u8])], patience: Duration) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.check(key, value.len()))?;
        for batch in frame::batches(pairs, |(key, value)| 6 + key.len() + value.len()) {
            let doing = doing("set", batch.iter().map(|(key, _)| *key));
            let request = Request::Set(try_copy(batch, LIST).map_err(|error| self.failed(&doing, &error))?);
            self.ask_now(&doing, &request, patience, nothing)?;
        }
        Ok(())
    }

    /// What `make` makes of a copy of `keys`.
    fn request<'a>(
        &self,
        doing: &str,
        keys: &[&'a str],
        make: impl FnOnce(Vec<&'a str>) -> Request<'a>,
    ) -> Result<Request<'a>> {
        try_copy(keys, LIST).map(make).map_err(|error| self.failed(doing, &error))
    }

    fn append_all(&self, key: &str, value: &[u8], patience: Duration) -> Result<()> {
        self.check(key, value.len())?;
        self.ask_now(&doing("append to", [key]), &Request::Append { key, value }, patience, nothing)
    }

    /// How long a call without a timeout waits for the reply.
    fn patience(&self) -> Duration {
        self.timeout.saturating_add(GRACE)
    }

    fn check(&self, key: &str, value_bytes: usize) -> Result<()> {
        check_key(|| self.describe(), key)?;
        check_value(|| self.describe(), key, value_bytes)
    }
}

impl Drop for TcpStore {
    fn drop(&mut self) {
        // The server waits for its clients to disconnect, including this one.
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !self.mark.is_child() {
            let keeps = *self.keeps_claims.get_mut();
            idle.into_iter().for_each(|connection| match keeps && connection.claims {
                true => connection.end_and_keep(),
                false => connection.end(),
            });
        }
        drop(self.server.take());
    }
}

fn check_host(host: &str) -> Result<()> {
    host::check(host).map_err(|why| Error::invalid(format!("{host:?} is not a host for a TCP store: {why}")))
}

fn url(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("tcp://[{host}]:{port}"),
        _ => format!("tcp://{host}:{port}"),
    }
}

/// What there is no memory for, in errors.
const LIST: &str = "the list of a request";
const VALUES: &str = "values from the server";

fn nothing(_: &mut Reader<'_>) -> Result<()> {
    Ok(())
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.set_within(key, value, self.timeout).map_err(by_default)
    }

    fn set_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.set_all(&[(key, value)], timeout.saturating_add(GRACE))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        Ok(self.multi_get(&[key], timeout)?.pop().unwrap_or_default())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        keys.iter().try_for_each(|key| self.check(key, 0))?;
        let deadline = Deadline::after(timeout);
        let (mut count, mut missing) = (0, Vec::new());
        for batch in frame::batches(keys, |key| 2 + key.len()) {
            // After the deadline, the remaining keys are requested without waiting, so that the error names all missing
            // keys.
            let timeout = deadline.remaining();
            let doing = doing("wait for", batch.iter().copied());
            let request = self.request(&doing, batch, |keys| Request::Wait { timeout, keys })?;
            if let Err((more, positions)) = self.ask_for_keys(&doing, &request, timeout, nothing)? {
                count += more;
                missing.extend(positions.into_iter().filter_map(|position| batch.get(position).copied()));
                missing.truncate(NAMED_KEYS);
            }
        }
        if count == 0 {
            return Ok(());
        }
        Err(no_value(&self.url, keys.len(), count, missing, deadline.elapsed()))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.check(key, 0)?;
        let read = |rest: &mut Reader<'_>| Ok(rest.u64()? as i64);
        self.ask_now(&doing("add to", [key]), &Request::Add { key, amount }, self.patience(), read).map_err(by_default)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.append_within(key, value, self.timeout).map_err(by_default)
    }

    fn append_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.append_all(key, value, timeout.saturating_add(GRACE))
    }

    fn claim_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.check(key, value.len())?;
        let request = Request::Claim { key, value };
        self.ask_now(&doing("append to", [key]), &request, timeout.saturating_add(GRACE), nothing)
    }

    fn disclaim(&self) {
        self.keeps_claims.store(false, Ordering::Relaxed);
    }

    fn set_and_settle_claims(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.set_all(&[(key, value), (GATHERED, b"")], timeout.saturating_add(GRACE))
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        keys.iter().try_for_each(|key| self.check(key, 0))?;
        let deadline = Deadline::after(timeout);
        let mut values: Vec<Vec<u8>> = try_with_capacity(keys.len(), VALUES)
            .map_err(|error| self.failed(&doing("get", keys.iter().copied()), &error))?;
        for batch in frame::batches(keys, |key| 2 + key.len()) {
            let mut rest = batch;
            // A reply has as many values as fit; the next request is for the remaining keys.
            while !rest.is_empty() {
                let timeout = deadline.remaining();
                let doing = doing("get", rest.iter().copied());
                let request = self.request(&doing, rest, |keys| Request::Get { timeout, keys })?;
                let read = |answer: &mut Reader<'_>| {
                    let got = answer.values()?;
                    if got.is_empty() || got.len() > rest.len() {
                        return Err(frame::invalid());
                    }
                    for value in &got {
                        values.push(try_copy(value, VALUES)?);
                    }
                    Ok(got.len())
                };
                match self.ask_for_keys(&doing, &request, timeout, read)? {
                    Ok(count) => rest = &rest[count..],
                    Err((count, positions)) => {
                        let missing = positions.into_iter().filter_map(|position| rest.get(position).copied());
                        return Err(no_value(&self.url, keys.len(), count, missing, deadline.elapsed()));
                    }
                }
            }
        }
        Ok(values)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        self.set_all(pairs, self.patience()).map_err(by_default)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.check(key, 0)?;
        let read = |rest: &mut Reader<'_>| Ok(rest.u8()? != 0);
        self.ask_now(&doing("delete", [key]), &Request::Delete { key }, self.patience(), read).map_err(by_default)
    }

    fn describe(&self) -> String {
        self.url.clone()
    }

    fn server(&self) -> Option<SocketAddr> {
        Some(self.address)
    }

    fn obstacle(&self) -> Option<String> {
        self.server.as_ref().and_then(|_| listen::elsewhere(&self.host))
    }
}

//! The store: how its calls map to Redis commands, and what happens if the server does not answer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{Pipeline, ServerError, Value, pipe};

use super::super::support::{
    Backoff, Deadline, NAMED_KEYS, check_key, check_value, doing, no_value, quote, seconds, times,
};
use super::super::{MAX_VALUE_BYTES, Store};
use super::connection::{Connection, Fault, Target, is_passing, reason};
use super::{RedisOptions, tls};
use crate::environment::{self, by_default};
use crate::error::{Error, ErrorKind, Result};
use crate::net::host;
use crate::reserve::{SMALL_BYTES, check_room, try_with_capacity};
use crate::sys::file::Until;

/// Connections kept open for later calls; more are opened while more threads call at the same time.
const IDLE_CONNECTIONS: usize = 4;

/// Time that a reply may take beyond the call's timeout, so that a call with timeout zero can succeed.
const GRACE: Duration = Duration::from_millis(900);

/// The maximum number of keys and bytes sent in one request.
const BATCH_KEYS: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// Appends `ARGV[1]` to `KEYS[1]` and sets its lifetime to `ARGV[3]` seconds, unless it would get longer than
/// `ARGV[2]`; returns its length.
const APPEND: &str = "local n = redis.call('STRLEN', KEYS[1]) + #ARGV[1] \
    if n > tonumber(ARGV[2]) then return n end \
    redis.call('APPEND', KEYS[1], ARGV[1]) \
    if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end \
    return n";

/// Keys and values in a Redis server (version 5 or newer, not a cluster). Every key has a time to live.
///
/// Each call uses a connection of its own; connections are kept open for later calls. Waits poll after 1 ms at first,
/// up to every 100 ms later. If the server is down, starting, or does not answer, calls retry until their timeout and
/// at most 1 s longer, and then fail with `Timeout`; calls without a timeout, after that of [`environment`]. Operations
/// that must not be repeated (`add`, `append`, `delete`) are sent only once; if the reply is lost they fail with
/// `ConnectionLost` and may or may not have been executed.
///
/// If the server comes back without this store's data (it restarted without persistence, or was emptied), all calls
/// fail with a `ConnectionLost` that says so: the entries of other ranks are lost, and no other error would show this.
pub struct RedisStore {
    target: Target,
    /// The URL without secrets, for error messages.
    url: String,
    /// The value of [`RedisStore::mark`] when the store was opened: if it is still there, the server has the data.
    sign: Vec<u8>,
    /// The address of the first connection to the server.
    server: Option<SocketAddr>,
    /// The timeout of calls that name none.
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

/// Until when a call retries, and until when it waits for a reply.
struct Time {
    deadline: Deadline,
    limit: Deadline,
}

impl Time {
    fn new(timeout: Duration) -> Self {
        Self { deadline: Deadline::after(timeout), limit: Deadline::after(timeout.saturating_add(GRACE)) }
    }
}

/// Whether commands may reach the server twice, which happens if a reply is lost and the request is repeated.
#[derive(Clone, Copy, PartialEq)]
enum Twice {
    Harmless,
    Harmful,
}

impl RedisStore {
    /// Connects to the server; retries until `timeout` while it cannot be reached. Fails at once if the server refuses
    /// this user or this database, or is not a Redis server.
    pub fn connect(options: RedisOptions, timeout: Duration) -> Result<Self> {
        let url = options.url();
        host::check(&options.host)
            .map_err(|why| Error::invalid(format!("{url}: not a host of a Redis server: {why}")))?;
        if options.port == 0 {
            return Err(Error::invalid(format!("{url}: no Redis server has port 0")));
        }
        if options.username.is_some() && options.password.is_none() {
            return Err(Error::invalid(format!("{url}: a user needs a password")));
        }
        let own = environment::default_timeout()?;
        let time = Time::new(timeout);
        let tls = options.tls.as_ref().map(|tls| tls::client(tls, Until::after(timeout))).transpose();
        let tls = tls.map_err(|error| error.context(&url))?;
        let (target, idle) = (Target { options, tls }, Mutex::default());
        let mut store = Self { target, url, sign: Vec::new(), server: None, timeout: own, idle };

        let mut setup = pipe();
        let random = format!("{:016x}", RandomState::new().build_hasher().finish());
        let mark = store.mark();
        store.expiring(setup.cmd("SET").arg(&mark).arg(random).arg("NX"));
        store.add_setup(&mut setup);
        let (connection, mut replies) = store
            .retry(&time, || Connection::open(&store.target, &setup, &time.limit))
            .map_err(|fault| store.explain("connect", fault, &time))?;
        let last = replies.pop();
        // Writing fails on a replica, or for a user that may only read.
        if let (Some(Value::ServerError(error)), _) | (_, Some(Value::ServerError(error))) = (replies.first(), &last) {
            return Err(store.refused("connect", error));
        }
        let Some(Value::BulkString(sign)) = last else { return Err(store.nonsense("connect", last.as_ref())) };
        store.sign = sign;
        store.server = connection.server();
        store.keep(connection);
        Ok(store)
    }

    /// The name of a key in the server.
    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.target.options.prefix)
    }

    /// The key that shows whether the server still has the data. It contains a NUL byte, which no user's key may
    /// contain.
    fn mark(&self) -> String {
        self.name("\0sign")
    }

    fn ttl(&self) -> u64 {
        self.target.options.ttl.as_secs()
    }

    /// Last arguments of a SET: the lifetime of the key.
    fn expiring(&self, command: &mut Pipeline) {
        if self.ttl() > 0 {
            command.arg("EX").arg(self.ttl());
        }
    }

    /// Sets the lifetime of a key as if it were written now.
    fn renew(&self, commands: &mut Pipeline, name: &str) {
        if self.ttl() > 0 {
            commands.cmd("EXPIRE").arg(name).arg(self.ttl());
        }
    }

    /// Commands for a new connection: renews the lifetime of the mark; the last reply is its value.
    fn add_setup(&self, commands: &mut Pipeline) {
        self.renew(commands, &self.mark());
        commands.cmd("GET").arg(self.mark());
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a connection for a later call.
    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_CONNECTIONS {
            idle.push(connection);
        }
    }

    /// A connection to a server that has this store's data.
    fn open(&self, limit: &Deadline) -> Result<Connection, Fault> {
        let mut setup = pipe();
        self.add_setup(&mut setup);
        let (connection, replies) = Connection::open(&self.target, &setup, limit)?;
        match replies.last() {
            Some(Value::BulkString(sign)) if *sign == self.sign => Ok(connection),
            Some(Value::ServerError(error)) if is_passing(error) => Err(Fault::Lost(reason(error))),
            _ => {
                let ttl = match self.ttl() {
                    0 => String::new(),
                    ttl => format!(", or its keys expired, which they do after {ttl} s"),
                };
                let why = format!("it has lost the keys of this job: it restarted without them, or was emptied{ttl}");
                Err(Fault::Final(ErrorKind::ConnectionLost, why))
            }
        }
    }

    /// Repeats `attempt` until it succeeds, fails permanently, or the deadline has passed.
    fn retry<T>(&self, time: &Time, mut attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        let mut tries = 0;
        loop {
            let lost = match attempt() {
                Err(Fault::Lost(lost)) => lost,
                result => return result,
            };
            tries += 1;
            if time.deadline.passed() {
                return Err(Fault::Lost(format!("{}; last: {lost}", times(tries))));
            }
            backoff.sleep(&time.deadline);
        }
    }

    /// Sends `commands` and returns one reply for each.
    fn ask(&self, doing: &str, commands: &Pipeline, twice: Twice, time: &Time) -> Result<Vec<Value>> {
        let replies = self.retry(time, || {
            let replies = self.exchange(commands, twice, &time.limit)?;
            // After such an error nothing was executed.
            match replies.first() {
                Some(Value::ServerError(error)) if is_passing(error) => Err(Fault::Lost(reason(error))),
                _ => Ok(replies),
            }
        });
        let replies = replies.map_err(|fault| self.explain(doing, fault, time))?;
        let refusal = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) => Some(self.refused(doing, error)),
            _ => None,
        });
        refusal.map_or(Ok(replies), Err)
    }

    /// One attempt. A connection that was kept open may have broken since; then a new one is tried.
    fn exchange(&self, commands: &Pipeline, twice: Twice, limit: &Deadline) -> Result<Vec<Value>, Fault> {
        // A separate statement, so that the lock is released before communicating with the server.
        let kept = self.idle().pop();
        if let Some(mut kept) = kept {
            let replies = match twice {
                Twice::Harmless => kept.exchange(commands, limit).map(Some),
                Twice::Harmful => kept.exchange(pipe().cmd("PING"), limit).map(|_| None),
            };
            match replies {
                Ok(Some(replies)) => {
                    self.keep(kept);
                    return Ok(replies);
                }
                Ok(None) => return self.exchange_on(kept, commands, twice, limit),
                // The others have probably broken too.
                Err(_) => self.idle().clear(),
            }
        }
        self.exchange_on(self.open(limit)?, commands, twice, limit)
    }

    fn exchange_on(
        &self,
        mut connection: Connection,
        commands: &Pipeline,
        twice: Twice,
        limit: &Deadline,
    ) -> Result<Vec<Value>, Fault> {
        let replies = connection.exchange(commands, limit).map_err(|fault| match fault {
            Fault::Lost(lost) if twice == Twice::Harmful => Fault::Final(
                ErrorKind::ConnectionLost,
                format!("lost the server, which may have done it or not: {lost}"),
            ),
            fault => fault,
        })?;
        self.keep(connection);
        Ok(replies)
    }

    fn explain(&self, doing: &str, fault: Fault, time: &Time) -> Error {
        let after = seconds(time.deadline.elapsed());
        match fault {
            Fault::Lost(how) => {
                let message = format!("{}: {doing}: no answer from the server after {after} ({how})", self.url);
                Error::new(ErrorKind::Timeout, message)
            }
            Fault::Final(kind, why) => Error::new(kind, format!("{}: {doing}: {why} (after {after})", self.url)),
        }
    }

    fn refused(&self, doing: &str, error: &ServerError) -> Error {
        let reason = reason(error);
        let kind = match error.code() {
            "OOM" => ErrorKind::ResourceExhausted,
            "WRONGTYPE" => ErrorKind::InvalidOperation,
            _ if reason.contains("not an integer") || reason.contains("overflow") => ErrorKind::InvalidOperation,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{}: {doing}: the server refuses: {reason}", self.url))
    }

    fn nonsense(&self, doing: &str, reply: Option<&Value>) -> Error {
        let kind = match reply {
            None => "nothing",
            Some(Value::Nil) => "nil",
            Some(Value::Int(_)) => "a number",
            Some(Value::BulkString(_) | Value::SimpleString(_) | Value::Okay) => "a string",
            Some(_) => "something else",
        };
        Error::new(ErrorKind::Mismatch, format!("{}: {doing}: the server's reply, {kind}, is invalid", self.url))
    }

    fn check(&self, key: &str, value_bytes: usize) -> Result<()> {
        check_key(|| self.describe(), key)?;
        check_value(|| self.describe(), key, value_bytes)
    }

    /// Fails if there is no memory for a request with values of `bytes`: the `redis` crate copies them into commands,
    /// and these into the request, which may grow to twice its length.
    fn check_room(&self, bytes: usize) -> Result<()> {
        if bytes < SMALL_BYTES {
            return Ok(());
        }
        check_room(bytes.saturating_mul(4), "a request to the server").map_err(|error| error.context(&self.url))
    }

    /// An empty list with room for `n` elements.
    fn list<T>(&self, n: usize) -> Result<Vec<T>> {
        try_with_capacity(n, "a list of keys or values").map_err(|error| error.context(&self.url))
    }

    /// Whether each of `keys` has a value.
    fn look(&self, keys: &[&str], time: &Time) -> Result<Vec<bool>> {
        let mut commands = pipe();
        for key in keys {
            commands.cmd("EXISTS").arg(self.name(key));
        }
        let doing = doing("wait for", keys.iter().copied());
        let replies = self.ask(&doing, &commands, Twice::Harmless, time)?;
        let found = replies.iter().map(|reply| match reply {
            Value::Int(count) => Ok(*count > 0),
            other => Err(self.nonsense(&doing, Some(other))),
        });
        found.collect()
    }

    /// Polls until all `keys` have values. While one is missing, only that one is requested. When it is found, the
    /// number of keys per request grows with the number of keys found, so the total work is proportional to the number
    /// of keys.
    fn await_keys(&self, keys: &[&str], time: &Time) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        let mut at = 0;
        loop {
            // The deadline is checked before the last look: a value that was set in time is found.
            let last = time.deadline.passed();
            let start = if last { 0 } else { at };
            let mut order = self.list(keys.len())?;
            order.extend((start..keys.len()).chain(0..start));
            let (mut missing, mut count) = (Vec::new(), 0);
            let (mut rest, mut batch) = (&order[..], if last { BATCH_KEYS } else { 1 });
            while !rest.is_empty() && (last || missing.is_empty()) {
                let (now, after) = rest.split_at(batch.min(rest.len()));
                let wanted: Vec<&str> = now.iter().map(|&i| keys[i]).collect();
                let found = self.look(&wanted, time)?;
                count += found.iter().filter(|found| !**found).count();
                missing.extend(now.iter().zip(found).filter(|(_, found)| !found).map(|(i, _)| *i));
                missing.truncate(NAMED_KEYS);
                (rest, batch) = (after, (batch * 8).min(BATCH_KEYS));
            }
            let Some(&first) = missing.first() else { return Ok(()) };
            if last {
                let shown = missing.iter().map(|&i| keys[i]);
                return Err(no_value(&self.url, keys.len(), count, shown, time.deadline.elapsed()));
            }
            if first != at {
                backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
            }
            at = first;
            backoff.sleep(&time.deadline);
        }
    }

    fn set_all(&self, pairs: &[(&str, &[u8])], time: &Time) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.check(key, value.len()))?;
        let mut rest = pairs;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fitting = rest.iter().take(BATCH_KEYS).take_while(|(key, value)| {
                bytes += key.len() + value.len();
                bytes <= BATCH_BYTES
            });
            let (batch, after) = rest.split_at(fitting.count().max(1));
            self.check_room(batch.iter().map(|(_, value)| value.len()).sum())?;
            let mut commands = pipe();
            for (key, value) in batch {
                self.expiring(commands.cmd("SET").arg(self.name(key)).arg(value));
            }
            self.renew(&mut commands, &self.mark());
            self.ask(&doing("set", batch.iter().map(|(key, _)| *key)), &commands, Twice::Harmless, time)?;
            rest = after;
        }
        Ok(())
    }

    fn append_by(&self, key: &str, value: &[u8], twice: Twice, timeout: Duration) -> Result<()> {
        self.check(key, value.len())?;
        self.check_room(value.len())?;
        let mut commands = pipe();
        let script = commands.cmd("EVAL").arg(APPEND).arg(1).arg(self.name(key));
        script.arg(value).arg(MAX_VALUE_BYTES).arg(self.ttl());
        self.renew(&mut commands, &self.mark());
        let doing = doing("append to", [key]);
        match self.ask(&doing, &commands, twice, &Time::new(timeout))?.first() {
            Some(Value::Int(bytes)) => self.check(key, usize::try_from(*bytes).unwrap_or(usize::MAX)),
            other => Err(self.nonsense(&doing, other)),
        }
    }
}

impl Store for RedisStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.set_within(key, value, self.timeout).map_err(by_default)
    }

    fn set_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.set_all(&[(key, value)], &Time::new(timeout))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        Ok(self.multi_get(&[key], timeout)?.pop().unwrap_or_default())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        keys.iter().try_for_each(|key| self.check(key, 0))?;
        self.await_keys(keys, &Time::new(timeout))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.check(key, 0)?;
        let mut commands = pipe();
        commands.cmd("INCRBY").arg(self.name(key)).arg(amount);
        self.renew(&mut commands, &self.name(key));
        self.renew(&mut commands, &self.mark());
        let doing = format!("add {amount} to {}", quote(key));
        let replies = self.ask(&doing, &commands, Twice::Harmful, &Time::new(self.timeout)).map_err(by_default)?;
        match replies.first() {
            Some(Value::Int(sum)) => Ok(*sum),
            other => Err(self.nonsense(&doing, other)),
        }
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.append_by(key, value, Twice::Harmful, self.timeout).map_err(by_default)
    }

    fn append_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.append_by(key, value, Twice::Harmless, timeout)
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        keys.iter().try_for_each(|key| self.check(key, 0))?;
        let time = Time::new(timeout);
        'again: loop {
            self.await_keys(keys, &time)?;
            let mut values = self.list(keys.len())?;
            for batch in keys.chunks(BATCH_KEYS) {
                let mut commands = pipe();
                for key in batch {
                    commands.cmd("GET").arg(self.name(key));
                }
                let doing = doing("get", batch.iter().copied());
                for reply in self.ask(&doing, &commands, Twice::Harmless, &time)? {
                    match reply {
                        Value::BulkString(value) => values.push(value),
                        // Deleted in between: wait again; this fails if the deadline has passed and the key is still
                        // missing.
                        Value::Nil => continue 'again,
                        other => return Err(self.nonsense(&doing, Some(&other))),
                    }
                }
            }
            return Ok(values);
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        self.set_all(pairs, &Time::new(self.timeout)).map_err(by_default)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.check(key, 0)?;
        let doing = doing("delete", [key]);
        let (mut commands, time) = (pipe(), Time::new(self.timeout));
        commands.cmd("DEL").arg(self.name(key));
        let replies = self.ask(&doing, &commands, Twice::Harmful, &time).map_err(by_default)?;
        match replies.first() {
            Some(Value::Int(count)) => Ok(*count > 0),
            other => Err(self.nonsense(&doing, other)),
        }
    }

    fn describe(&self) -> String {
        self.url.clone()
    }

    fn server(&self) -> Option<SocketAddr> {
        self.server
    }
}

//! The store: what its calls are in Redis' commands, and what happens when the server does not answer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{Pipeline, ServerError, Value, pipe};

use super::super::support::{Backoff, Deadline, NAMED_KEYS, check_key, check_value, doing, no_value, quote, seconds};
use super::super::{MAX_VALUE_BYTES, Store};
use super::connection::{Connection, Fault, Target, is_passing, reason};
use super::{RedisOptions, tls};
use crate::error::{Error, ErrorKind, Result};

/// Connections kept open for the next call; more are opened while more threads call at once.
const IDLE_CONNECTIONS: usize = 4;

/// Time for calls that come without a timeout.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What an answer may take longer than a call's time: somebody who asks once gives the server a chance.
const GRACE: Duration = Duration::from_millis(900);

/// Keys and bytes that are sent in one go.
const BATCH_KEYS: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// Appends `ARGV[1]` to `KEYS[1]`, which then lives `ARGV[3]` seconds, unless it would be longer than `ARGV[2]`; its length then.
const APPEND: &str = "local n = redis.call('STRLEN', KEYS[1]) + #ARGV[1] \
    if n > tonumber(ARGV[2]) then return n end \
    redis.call('APPEND', KEYS[1], ARGV[1]) \
    if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end \
    return n";

/// Keys and values in a Redis server (version 5 or newer; one that is no cluster). Every key has a time to live.
///
/// Each call has a connection of its own while it talks to the server; connections are kept for later calls. Waits poll, at
/// first every millisecond and later every 100. A server that is gone, starts up, or does not answer is tried again until the
/// call's time is up, and at most 1 s longer; then the call fails with `Timeout`. For calls without a timeout that time is
/// 30 s. What may not happen twice (`add`, `append`, `delete`) is not repeated once it has left: it then fails with
/// `ConnectionLost`, and may have happened or not.
///
/// A server that comes back without this store's data (it restarted without persistence, or was emptied) fails all calls with
/// `ConnectionLost` that says so: what other ranks have put there is lost, and nobody else would notice.
pub struct RedisStore {
    target: Target,
    /// For messages.
    url: String,
    /// The value of [`RedisStore::mark`] when the store was opened: as long as it is there, the server has the data.
    sign: Vec<u8>,
    /// Where the server was reached first.
    server: Option<SocketAddr>,
    idle: Mutex<Vec<Connection>>,
}

/// When a call gives up trying, and when it gives up an answer.
struct Time {
    deadline: Deadline,
    limit: Deadline,
}

impl Time {
    fn new(timeout: Duration) -> Self {
        Self { deadline: Deadline::after(timeout), limit: Deadline::after(timeout.saturating_add(GRACE)) }
    }
}

/// Whether commands may reach the server twice, which happens when an answer is lost.
#[derive(Clone, Copy, PartialEq)]
enum Twice {
    Harmless,
    Harmful,
}

impl RedisStore {
    /// Connects to the server, which may come up until `timeout`. Fails at once if the server does not want this user, has no
    /// such database, or is no Redis server.
    pub fn connect(options: RedisOptions, timeout: Duration) -> Result<Self> {
        let url = options.url();
        if options.host.is_empty() || options.host.contains('\0') || options.port == 0 {
            return Err(Error::invalid(format!("{url}: host and port are of no Redis server")));
        }
        if options.username.is_some() && options.password.is_none() {
            return Err(Error::invalid(format!("{url}: a user needs a password")));
        }
        let tls = options.tls.as_ref().map(tls::client).transpose();
        let tls = tls.map_err(|why| Error::invalid(format!("{url}: {why}")))?;
        let mut store =
            Self { target: Target { options, tls }, url, sign: Vec::new(), server: None, idle: Mutex::default() };

        let mut greeting = pipe();
        let random = format!("{:016x}", RandomState::new().build_hasher().finish());
        let mark = store.mark();
        store.expiring(greeting.cmd("SET").arg(&mark).arg(random).arg("NX"));
        store.greet(&mut greeting);
        let time = Time::new(timeout);
        let (connection, mut replies) = store
            .retry(&time, || Connection::open(&store.target, &greeting, &time.limit))
            .map_err(|fault| store.explain("connect", fault, &time))?;
        let last = replies.pop();
        // Setting fails on a replica, or for a user that may only read.
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

    /// The key that tells whether the server still has the data. No user's key holds a NUL byte.
    fn mark(&self) -> String {
        self.name("\0sign")
    }

    fn ttl(&self) -> u64 {
        self.target.options.ttl.as_secs()
    }

    /// Ends a SET.
    fn expiring(&self, command: &mut Pipeline) {
        if self.ttl() > 0 {
            command.arg("EX").arg(self.ttl());
        }
    }

    /// Lets a key live as long as one that is written now.
    fn renew(&self, commands: &mut Pipeline, name: &str) {
        if self.ttl() > 0 {
            commands.cmd("EXPIRE").arg(name).arg(self.ttl());
        }
    }

    /// What a new connection asks: the mark lives as long as what is written last, and its value is the last reply.
    fn greet(&self, commands: &mut Pipeline) {
        self.renew(commands, &self.mark());
        commands.cmd("GET").arg(self.mark());
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a connection aside for a later call.
    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_CONNECTIONS {
            idle.push(connection);
        }
    }

    /// A connection to a server that has this store's data.
    fn open(&self, limit: &Deadline) -> Result<Connection, Fault> {
        let mut greeting = pipe();
        self.greet(&mut greeting);
        let (connection, replies) = Connection::open(&self.target, &greeting, limit)?;
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

    /// Calls `attempt` until it works, fails for good, or time is up.
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
                return Err(Fault::Lost(format!("{tries} tries; last: {lost}")));
            }
            backoff.sleep(&time.deadline);
        }
    }

    /// Sends `commands`, and returns a reply for each.
    fn ask(&self, doing: &str, commands: &Pipeline, twice: Twice, time: &Time) -> Result<Vec<Value>> {
        let replies = self.retry(time, || {
            let replies = self.exchange(commands, twice, &time.limit)?;
            // Refused so, nothing was done.
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

    /// One attempt. A connection that was kept may have broken since, which says nothing about the server.
    fn exchange(&self, commands: &Pipeline, twice: Twice, limit: &Deadline) -> Result<Vec<Value>, Fault> {
        // On a line of its own: the lock is not held while this talks to the server.
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
                // What broke this one has probably broken all.
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
        Error::new(ErrorKind::Mismatch, format!("{}: {doing}: the server's answer, {kind}, makes no sense", self.url))
    }

    fn check(&self, key: &str, value_bytes: usize) -> Result<()> {
        check_key(|| self.describe(), key)?;
        check_value(|| self.describe(), key, value_bytes)
    }

    /// Which of `keys` have values.
    fn look(&self, keys: &[&str], time: &Time) -> Result<Vec<bool>> {
        let mut commands = pipe();
        for key in keys {
            commands.cmd("EXISTS").arg(self.name(key));
        }
        let doing = doing("wait for", keys);
        let replies = self.ask(&doing, &commands, Twice::Harmless, time)?;
        let found = replies.iter().map(|reply| match reply {
            Value::Int(count) => Ok(*count > 0),
            other => Err(self.nonsense(&doing, Some(other))),
        });
        found.collect()
    }

    /// Polls until all `keys` are there. While one is missing only that one is asked for; the more of the others are found,
    /// the more are asked for at once, so that the work for all is in proportion to their number.
    fn await_keys(&self, keys: &[&str], time: &Time) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        let mut at = 0;
        loop {
            // Whether time is up is asked before the last look, not after: what came in time is seen.
            let last = time.deadline.passed();
            let order: Vec<usize> = (at..keys.len()).chain(0..at).collect();
            let mut missing = Vec::new();
            let (mut rest, mut batch) = (&order[..], if last { BATCH_KEYS } else { 1 });
            while !rest.is_empty() && (last || missing.is_empty()) {
                let (now, after) = rest.split_at(batch.min(rest.len()));
                let asked: Vec<&str> = now.iter().map(|&i| keys[i]).collect();
                let found = self.look(&asked, time)?;
                missing.extend(now.iter().zip(found).filter(|(_, found)| !found).map(|(i, _)| *i));
                (rest, batch) = (after, (batch * 8).min(BATCH_KEYS));
            }
            let Some(&first) = missing.first() else { return Ok(()) };
            if last {
                missing.sort_unstable();
                let shown = missing.iter().take(NAMED_KEYS).map(|&i| keys[i]);
                return Err(no_value(&self.url, keys.len(), missing.len(), shown, time.deadline.elapsed()));
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
            let mut commands = pipe();
            for (key, value) in batch {
                self.expiring(commands.cmd("SET").arg(self.name(key)).arg(value));
            }
            self.renew(&mut commands, &self.mark());
            let keys: Vec<&str> = batch.iter().map(|(key, _)| *key).collect();
            self.ask(&doing("set", &keys), &commands, Twice::Harmless, time)?;
            rest = after;
        }
        Ok(())
    }

    fn append_by(&self, key: &str, value: &[u8], twice: Twice, timeout: Duration) -> Result<()> {
        self.check(key, value.len())?;
        let mut commands = pipe();
        let script = commands.cmd("EVAL").arg(APPEND).arg(1).arg(self.name(key));
        script.arg(value).arg(MAX_VALUE_BYTES).arg(self.ttl());
        self.renew(&mut commands, &self.mark());
        let doing = doing("append to", &[key]);
        match self.ask(&doing, &commands, twice, &Time::new(timeout))?.first() {
            Some(Value::Int(bytes)) => self.check(key, usize::try_from(*bytes).unwrap_or(usize::MAX)),
            other => Err(self.nonsense(&doing, other)),
        }
    }
}

impl Store for RedisStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.set_within(key, value, CALL_TIMEOUT)
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
        match self.ask(&doing, &commands, Twice::Harmful, &Time::new(CALL_TIMEOUT))?.first() {
            Some(Value::Int(sum)) => Ok(*sum),
            other => Err(self.nonsense(&doing, other)),
        }
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.append_by(key, value, Twice::Harmful, CALL_TIMEOUT)
    }

    fn append_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.append_by(key, value, Twice::Harmless, timeout)
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        keys.iter().try_for_each(|key| self.check(key, 0))?;
        let time = Time::new(timeout);
        'again: loop {
            self.await_keys(keys, &time)?;
            let mut values = Vec::with_capacity(keys.len());
            for batch in keys.chunks(BATCH_KEYS) {
                let mut commands = pipe();
                for key in batch {
                    commands.cmd("GET").arg(self.name(key));
                }
                let doing = doing("get", batch);
                for reply in self.ask(&doing, &commands, Twice::Harmless, &time)? {
                    match reply {
                        Value::BulkString(value) => values.push(value),
                        // Deleted since: the wait begins again, and fails if time is up and the key still gone.
                        Value::Nil => continue 'again,
                        other => return Err(self.nonsense(&doing, Some(&other))),
                    }
                }
            }
            return Ok(values);
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        self.set_all(pairs, &Time::new(CALL_TIMEOUT))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.check(key, 0)?;
        let doing = doing("delete", &[key]);
        let replies =
            self.ask(&doing, pipe().cmd("DEL").arg(self.name(key)), Twice::Harmful, &Time::new(CALL_TIMEOUT))?;
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

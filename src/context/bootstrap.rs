//! How the ranks of a context find each other.
//!
//! In two rounds: first every rank tells which host it is on, and from where that reaches the store; then, knowing where the
//! others are, it listens, and tells at which addresses. Last, rank 0 tells what algorithms are chosen by (see
//! [`tuning`]). There are three ways to tell: over a [`store`], by an [allgather of the caller's](oob), and
//! over a connected [context](parent), of which the first round and the last are known.

mod oob;
mod parent;
pub(super) mod record;
mod store;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::collective::Constants;
use crate::context::claim::SEPARATE;
use crate::context::tuning::{self, Links};
use crate::context::{Connect, Context};
use crate::engine::Spin;
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::{self, Address};
use crate::rendezvous::Store;
use crate::tuner::Tuner;
use crate::tuner::source::Source;
use oob::ByAllgather;
use parent::OverContext;
use store::OverStore;

/// What errors call connecting.
pub(super) const CONNECT: &str = "connect";

/// A way in which the ranks of a context tell each other what they need to connect. Every rank calls the methods in this order. A
/// failure is told to the others where they can hear of it: so the second round is called after a failure, too.
pub(super) trait Exchange {
    /// Where the server is reached that all go through, if there is one.
    fn server(&self) -> Option<SocketAddr> {
        None
    }

    /// What all ranks choose algorithms by already, if they do.
    fn agreed(&self) -> Option<Tuner> {
        None
    }

    /// The first round: where everyone is, as far as they know. `own` is what this rank tells, or why it cannot go on.
    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>>;

    /// The second round: what this rank has told, and what all have, in their order.
    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)>;

    /// What rank 0, which alone has `own`, tells all when the second round has gone well.
    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>>;
}

/// An allgather of the caller's: what this rank gives, and memory for what all ranks give, in their order, each as many bytes.
pub type AllgatherFunction<'a> = dyn FnMut(&[u8], &mut [u8]) -> Result<()> + 'a;

/// When connecting must be over, and after how long that is.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub deadline: Instant,
    pub timeout: Duration,
}

impl Limit {
    /// Zero once it has passed.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl Context {
    /// Finds the other ranks over `store`. Collective: every rank calls it, with a store (or prefix) of this context's own.
    pub fn connect(&self, store: &dyn Store) -> Result<()> {
        let limit = self.limit();
        self.bootstrap(&OverStore { context: self, store, limit }, limit).map_err(|e| {
            e.context(format_args!("{}: cannot connect over {}", self.own(), store.describe())).during(CONNECT)
        })
    }

    /// Finds the other ranks by an allgather that the caller has. Collective. It is called on this thread, without locks, and twice on
    /// every rank; if it fails, connecting does, at once. Nothing ends a call of it early: the deadline is looked at between calls.
    pub fn connect_oob(&self, allgather: &mut AllgatherFunction<'_>) -> Result<()> {
        let limit = self.limit();
        self.bootstrap(&ByAllgather::new(self, allgather, limit), limit).map_err(|e| {
            e.context(format_args!("{}: cannot connect by the caller's allgather", self.own())).during(CONNECT)
        })
    }

    /// Finds the other ranks over a connected context of the same ranks, with `tag`. Collective.
    pub fn connect_from(&self, parent: &Context, tag: u64) -> Result<()> {
        if (parent.rank, parent.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "rank {} of {} cannot connect out of a context in which it is rank {} of {}",
                self.rank, self.size, parent.rank, parent.size
            )));
        }
        let limit = self.limit();
        self.bootstrap(&OverContext { context: self, parent, tag, limit }, limit)
            .map_err(|e| e.context(format_args!("{}: cannot connect out of a context", self.own())).during(CONNECT))
    }

    pub(super) fn limit(&self) -> Limit {
        let (deadline, timeout) = self.deadline(None);
        Limit { deadline, timeout }
    }

    fn bootstrap(&self, exchange: &dyn Exchange, limit: Limit) -> Result<()> {
        let (server, agreed) = (exchange.server(), exchange.agreed());
        // First, so that nobody waits for a rank 0 that cannot go on.
        let source = if agreed.is_none() { self.source() } else { Ok(None) };
        let wants = source.as_ref().map_or(0, |source| source.as_ref().map_or(0, tuning::wants));
        let provisional = || {
            self.check_open()?;
            source.as_ref().map_err(Error::clone)?;
            self.tell(self.device().provisional_sockets(server)?, wants)
        };
        let everyone = exchange.provisional_addresses(provisional());
        let listen = |everyone: Vec<Address>| self.tell(self.device().listen(server, &everyone, self.rank)?, wants);
        let (own, list) = exchange.addresses(everyone.and_then(listen))?;
        let addresses = self.set_peers(&list, &own)?;
        let tuner = match agreed {
            Some(tuner) => tuner,
            // The last byte of what rank 0 has told.
            None => self.agree(exchange, source?, Links::wanted(list[own.len() - 1], &addresses), &addresses, limit)?,
        };
        self.adopt(tuner, &addresses)?;
        self.connect_fully(limit)
    }

    /// Refuses what would connect a context that is closed, or broken otherwise.
    pub(super) fn check_open(&self) -> Result<()> {
        match self.lock()?.broken.clone() {
            None => Ok(()),
            Some(closed) if closed.kind() == ErrorKind::Closed => Err(closed),
            Some(why) => Err(Error::new(ErrorKind::InvalidOperation, why.message())),
        }
    }

    /// Makes sure that this rank listens, though nothing is known of the others.
    pub(super) fn listen_anywhere(&self) -> Result<()> {
        if self.lock()?.messenger.sockets().is_empty() {
            self.tell(self.device().listen_anywhere()?, 0)?;
        }
        Ok(())
    }

    /// What this rank tells the others when it is, or may be, found at `sockets`: its address, and what rank 0 wants to measure.
    fn tell(&self, sockets: Vec<SocketAddr>, wants: u8) -> Result<Vec<u8>> {
        let mut guard = self.lock()?;
        guard.messenger.set_sockets(sockets);
        Ok([guard.messenger.address(), vec![wants]].concat())
    }

    /// Rank 0: what it goes by in tuning.
    fn source(&self) -> Result<Option<Source>> {
        if self.rank != 0 {
            return Ok(None);
        }
        let source = match &self.options.tuning {
            Some(text) => Source::read(text).map_err(|error| error.context("the context's options")),
            None => Source::from_environment(),
        };
        source.map(Some)
    }

    /// What all ranks have told; `own` is what this one has.
    fn parse(&self, list: &[u8], own: &[u8]) -> Result<Vec<Address>> {
        let length = own.len();
        if list.len() != length * self.size {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("the addresses of {} ranks are not {} bytes long: another size?", self.size, list.len()),
            ));
        }
        if list[self.rank * length..][..length] != *own {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("the address published for rank {} is another process's: {SEPARATE}", self.rank),
            ));
        }
        let address = |(rank, told): (usize, &[u8])| {
            Address::deserialize(&told[..length - 1])
                .map_err(|e| e.context(format_args!("what rank {rank} tells of itself")).with_rank(rank))
        };
        list.chunks_exact(length).enumerate().map(address).collect()
    }

    /// Where everyone is, as all have told, this rank `own`.
    fn set_peers(&self, list: &[u8], own: &[u8]) -> Result<Vec<Address>> {
        let addresses = self.parse(list, own)?;
        self.meet(&addresses, &Constants::BUILT_IN)?;
        Ok(addresses)
    }

    /// Everyone is there; threads wait by `constants`.
    pub(super) fn meet(&self, addresses: &[Address], constants: &Constants) -> Result<()> {
        address::check(addresses)?;
        let _ = self.hosts.set(address::number_hosts(addresses));
        let mut guard = self.lock()?;
        for (rank, address) in addresses.iter().enumerate() {
            guard.messenger.set_peer(rank, &address.serialize())?;
        }
        guard.set_spin(self.spin(addresses, constants));
        self.engine().leave(guard);
        Ok(())
    }

    /// Goes by `tuner` from now on. What was agreed on first stays.
    pub(crate) fn adopt(&self, tuner: Tuner, addresses: &[Address]) -> Result<()> {
        self.lock()?.set_spin(self.spin(addresses, tuner.constants()));
        let _ = self.agreed.set(tuner);
        Ok(())
    }

    /// How long a waiting thread polls before it sleeps.
    fn spin(&self, addresses: &[Address], constants: &Constants) -> Spin {
        let here = || addresses.iter().filter(|address| address.host == addresses[self.rank].host);
        let shares = here().count() > address::count_cores(here());
        Spin::For(duration(if shares { constants.spin_shared_us } else { constants.spin_us }))
    }

    /// Makes the connections that the options want now.
    pub(super) fn connect_fully(&self, Limit { deadline, timeout }: Limit) -> Result<()> {
        if self.options.connect == Connect::Full {
            for rank in 0..self.size {
                self.lock()?.messenger.connect(rank);
            }
            for rank in (0..self.size).filter(|rank| *rank != self.rank) {
                self.await_connection(rank, deadline, timeout)?;
            }
        }
        Ok(())
    }
}

/// So many µs.
pub(super) fn duration(us: f64) -> Duration {
    Duration::from_secs_f64(us * 1e-6)
}

//! Connects the ranks of a context: exchanges their addresses and the tuning.
//!
//! There are two or three rounds. In the first, every rank publishes its host, and the local address from which it
//! reaches the store. When the hosts are known, it listens, and publishes its addresses in the second. If ranks of a
//! host have memory to share, there is a third, in which every rank says whether it could open that of the others.
//! Last, rank 0 publishes the tuning by which algorithms are selected (see [`tuning`]). The exchange is done over a
//! [`store`], by an [allgather of the caller](oob), or over a connected [context](parent), whose hosts and tuning are
//! known.

pub(super) mod members;
mod oob;
pub(super) mod parent;
pub(super) mod record;
pub(super) mod store;

use std::fmt;
use std::net::SocketAddr;

use crate::collective::Constants;
use crate::context::claim::SEPARATE;
use crate::context::exchange::{Exchange, Limit, other_ranks};
use crate::context::rounds::Exclusion;
use crate::context::setup::TAG;
use crate::context::tuning::{self, Links};
use crate::context::{Connect, Context};
use crate::engine::{Cores, Spin};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::{self, Address};
use crate::rendezvous::Store;
use crate::reserve::check_room;
use crate::sys::{control_group, topology};
use crate::transport::Sharing;
use crate::tuner::Tuner;
use crate::tuner::file::Tuning;
use crate::tuner::source::Source;
use crate::types::Rank;
use oob::ByAllgather;
use parent::OverContext;
use store::OverStore;

/// The operation that errors of connecting name.
pub(super) const CONNECT: &str = "connect";

/// Upper bound of the memory that a context takes for each rank of which it knows: addresses, hosts, peers.
pub(super) const BYTES_PER_RANK: usize = 2 << 10;

/// An allgather of the caller: gets this rank's record, and memory for the records of all ranks, in their order, of
/// equal length.
pub type AllgatherFunction<'a> = dyn FnMut(&[u8], &mut [u8]) -> Result<()> + 'a;

impl Context {
    /// Connects the ranks over `store`. Collective: every rank calls it, with a store (or prefix) used only by this
    /// context.
    pub fn connect(&self, store: &dyn Store) -> Result<()> {
        let limit = self.limit();
        let connected = self.bootstrap(&OverStore::new(self, store, limit), limit);
        connected.map_err(|e| self.unconnectable(&e, limit, format_args!("over {}", store.describe())))
    }

    /// Connects the ranks by the caller's allgather. Collective. It is called three times on every rank, on this
    /// thread, without locks; if it fails, this fails at once. A call of it is not interrupted: the deadline is checked
    /// between calls.
    pub fn connect_oob(&self, allgather: &mut AllgatherFunction<'_>) -> Result<()> {
        let limit = self.limit();
        let connected = self.bootstrap(&ByAllgather::new(self, allgather, limit), limit);
        connected.map_err(|e| self.unconnectable(&e, limit, format_args!("by the caller's allgather")))
    }

    /// Connects the ranks over a connected context of the same ranks, with `tag`, any but [`TAG`]. Collective.
    pub fn connect_from(&self, parent: &Context, tag: u64) -> Result<()> {
        if (parent.rank, parent.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "rank {} of {} cannot connect out of a context in which it is rank {} of {}",
                self.rank, self.size, parent.rank, parent.size
            )));
        }
        if tag == TAG {
            return Err(Error::invalid(format!("the tag {tag} is that of splits: use another one")));
        }
        let limit = self.limit();
        let unconnectable = |e: &Error| self.unconnectable(e, limit, format_args!("out of a context"));
        let _exclusion = Exclusion::begin_setup(parent, tag).map_err(|e| unconnectable(&e))?;
        let connected = self.bootstrap(&OverContext { context: self, parent, tag, limit }, limit);
        connected.map_err(|e| unconnectable(&e))
    }

    /// The error of a context that cannot connect in this way.
    fn unconnectable(&self, error: &Error, limit: Limit, how: fmt::Arguments<'_>) -> Error {
        let error = error.context(format_args!("{}: cannot connect {how}", self.own()));
        self.amended(None, limit.deadline, error.during(CONNECT))
    }

    pub(super) fn limit(&self) -> Limit {
        let (deadline, timeout) = self.deadline(None);
        Limit { deadline, timeout, by_default: self.timeout.is_default() }
    }

    pub(super) fn bootstrap(&self, exchange: &dyn Exchange, limit: Limit) -> Result<()> {
        let _exclusion = Exclusion::begin_setup(self, TAG)?;
        let (server, agreed) = (exchange.server(), exchange.agreed());
        // Read first: if rank 0 fails here, the other ranks are notified by the exchange.
        let source = if agreed.is_none() { self.source(exchange.earlier()) } else { Ok(None) };
        let wants = source.as_ref().map_or(0, |source| source.as_ref().map_or(0, tuning::wants));
        let provisional = || {
            self.check_open()?;
            let text = format_args!("{}: a context of {} ranks", self.own(), self.size);
            check_room(self.size.saturating_mul(BYTES_PER_RANK), text)?;
            source.as_ref().map_err(Error::clone)?;
            let sockets = exchange.sockets().map_or_else(|| self.device().provisional_sockets(server), Ok);
            self.set_own_address(sockets?, wants)
        };
        let everyone = exchange.provisional_addresses(provisional());
        let listen = |everyone: Vec<Address>| {
            let sockets = exchange.sockets();
            let sockets = sockets.map_or_else(|| self.device().listen(server, &everyone, self.rank), Ok);
            self.set_own_address(sockets?, wants)
        };
        let listed = exchange.addresses(everyone.and_then(listen)).and_then(|(own, list)| {
            let addresses = self.parse(&list, &own)?;
            // The last byte of rank 0's content.
            let links = Links::wanted(list[own.len() - 1], &addresses);
            Ok((self.use_addresses(&addresses, &|rank| rank, &Constants::BUILT_IN)?, addresses, links))
        });
        let shares = |(_, addresses, _): &(_, Vec<Address>, _)| address::any_share_memory(addresses.iter());
        // What each rank has found; none if no rank has memory to share.
        let mut found = Vec::new();
        if exchange.waits_for_all() || listed.as_ref().ok().is_none_or(shares) {
            let own = listed.as_ref().map(|(found, ..)| vec![found.number()]).map_err(Error::clone);
            found = Sharing::parse(&exchange.memory(own)?, self.size)?;
            Sharing::check_room(found.iter().copied().enumerate())?;
            self.lock()?.messenger.connections_mut().share_memory(&found)?;
        }
        let (_, addresses, links) = listed?;
        let tuner = match agreed {
            Some(tuner) => tuner,
            None => self.agree_on_tuning(exchange, source?, links, &addresses, limit)?,
        };
        self.adopt(tuner, &addresses, &found)?;
        self.connect_fully(limit)?;
        // Another thread may have ended it after the last exchange.
        self.check_open().or_else(|error| if error.kind().is_intended() { Err(error) } else { Ok(()) })
    }

    /// Fails if the context is closed, aborted, or broken.
    pub(super) fn check_open(&self) -> Result<()> {
        match self.lock()?.broken.clone() {
            None => Ok(()),
            Some(ended) if ended.kind().is_intended() => Err(ended),
            Some(why) => {
                let text = format!("the context is broken: {}", why.message());
                Err(Error::new(ErrorKind::InvalidOperation, text).about(*why.details()))
            }
        }
    }

    /// Makes sure that this rank listens, even if the other ranks are unknown.
    pub(super) fn listen_anywhere(&self) -> Result<()> {
        if self.lock()?.messenger.connections().address().sockets.is_empty() {
            self.set_own_address(self.device().listen_anywhere()?, 0)?;
        }
        Ok(())
    }

    /// Sets the addresses of this rank. Returns its content for a round: its version, its address, and which links rank
    /// 0 measures.
    pub(super) fn set_own_address(&self, sockets: Vec<SocketAddr>, wants: u8) -> Result<Vec<u8>> {
        self.lock()?.messenger.connections_mut().set_sockets(sockets);
        self.content(wants)
    }

    /// This rank's content for a round.
    pub(super) fn content(&self, wants: u8) -> Result<Vec<u8>> {
        let address = self.lock()?.messenger.address();
        Ok(self.versions.publish(&[address, vec![wants]].concat()))
    }

    /// Rank 0: the source of the tuning. What it published when it connected before, without success on all ranks, it
    /// publishes again. That of an `earlier` context counts before its own.
    pub(super) fn source(&self, earlier: Option<&Tuner>) -> Result<Option<Source>> {
        if self.rank != 0 {
            return Ok(None);
        }
        let source = match (self.tuners.agreed(), &self.options.tuning) {
            (Some(tuner), _) => Ok(Source { tuning: tuner.tuning().clone(), ..Source::default() }),
            (None, Some(text)) => Source::read(text).map_err(|error| error.context("the context's options")),
            (None, None) => Source::from_environment(),
        };
        // Bandwidths between other ranks do not apply to these.
        let earlier = earlier.map(|earlier| Tuning { links: Vec::new(), ..earlier.tuning().clone() });
        source.map(|source| Some(Source { tuning: earlier.unwrap_or(source.tuning), ..source }))
    }

    /// Parses the contents of all ranks; `own` is this rank's.
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
        let address = |(rank, content): (usize, &[u8])| {
            let content = self.versions.read(rank, content)?;
            Address::deserialize(&content[..content.len() - 1])
                .map_err(|e| e.context(format_args!("the address published by rank {rank}")).with_rank(rank))
        };
        list.chunks_exact(length).enumerate().map(address).collect()
    }

    /// Sets the addresses of all peers, and returns what this rank can share with those of its host. `named`: the
    /// numbers of ranks in errors. Threads poll as long as `constants` says.
    pub(crate) fn use_addresses(
        &self,
        addresses: &[Address],
        named: &dyn Fn(Rank) -> Rank,
        constants: &Constants,
    ) -> Result<Sharing> {
        address::check(addresses, named)?;
        let hosts = address::number_hosts(addresses);
        let mut guard = self.lock()?;
        let (messenger, group) = (&guard.messenger, guard.messenger.connections().local_ranks());
        let is_same = |rank: Rank| {
            messenger.connections().peers().get(rank).is_none_or(|known| known.identity == addresses[rank].identity)
        };
        // Memory that is shared is in use.
        let are_same = group.is_none_or(|group| group.ranks().iter().all(|rank| is_same(*rank as Rank)));
        if *self.hosts.get_or_init(|| hosts.clone()) != hosts || !are_same {
            return Err(other_ranks());
        }
        let found = guard.messenger.connections_mut().open_memory(addresses);
        for (rank, address) in addresses.iter().enumerate() {
            guard.messenger.set_peer(rank, &address.serialize())?;
        }
        guard.waiters.set_spin(self.spin(addresses, constants));
        guard.messenger.connections_mut().peers_mut().streams = constants.streams as u8;
        self.engine().leave(guard);
        Ok(found)
    }

    /// Uses `tuner` from now on, unless a tuner was agreed on before. `found`: what each rank can share with those of
    /// its host.
    pub(crate) fn adopt(&self, tuner: Tuner, addresses: &[Address], found: &[Sharing]) -> Result<()> {
        let sharing = self.share_memory(found)?;
        let tuner = tuner.with_shared_memory(sharing != Sharing::Nothing, address::number_caches(addresses));
        let mut guard = self.lock()?;
        guard.waiters.set_spin(self.spin(addresses, tuner.constants()));
        guard.messenger.connections_mut().peers_mut().streams = tuner.constants().streams as u8;
        drop(guard);
        self.tuners.agree(tuner, sharing);
        self.forget_calls();
        self.agreements.iter().try_for_each(|agreements| agreements.set_peers(addresses))?;
        Ok(())
    }

    /// How long a waiting thread polls before it sleeps.
    fn spin(&self, addresses: &[Address], constants: &Constants) -> Spin {
        let whose = || {
            let here = || addresses.iter().filter(|address| address.host == addresses[self.rank].host);
            let own = topology::affinity().map_or(0, |own| own.len());
            let (ranks, cores) = (here().count(), address::count_cores(here()));
            Cores::of(ranks, cores, own, control_group::processor_quota())
        };
        Spin::new(self.options.wait.unwrap_or_default(), *self.cores.get_or_init(whose), constants)
    }

    /// Makes all connections, if the options say so.
    pub(super) fn connect_fully(&self, Limit { deadline, timeout, .. }: Limit) -> Result<()> {
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

//! How the ranks of a context find each other.
//!
//! Every rank puts its address into the store; rank 0 collects them and puts the list there as one value. So each rank makes
//! two requests, and rank 0 one large one, whatever the number of ranks.

use std::time::{Duration, Instant};

use crate::collective::{Collective, Shape};
use crate::context::{Call, Connect, Context, Reduction, SPIN, SPIN_SHARED};
use crate::engine::Spin;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Store;
use crate::transport::Transport;
use crate::types::{DataType, ReduceOp};

const LIST: &str = "addresses";

/// A store that answers later than this after a wait's end is one that does not answer.
const LATE: Duration = Duration::from_millis(500);

fn rank_key(rank: usize) -> String {
    format!("address/{rank}")
}

impl Context {
    /// Finds the other ranks over `store`. Collective: every rank calls it, with a store (or prefix) of this context's own.
    pub fn connect(&self, store: &dyn Store) -> Result<()> {
        let (deadline, timeout) = self.deadline(None);
        let own = self.lock()?.transport.address();
        let failed = |e: Error| e.context(format_args!("{}: cannot connect over {}", self.own(), store.describe()));
        store.set_within(&rank_key(self.rank), &own, left(deadline)).map_err(failed)?;
        let list = if self.rank == 0 {
            let keys: Vec<String> = (0..self.size).map(rank_key).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let list = store
                .multi_get(&keys, left(deadline))
                .map_err(|e| failed(self.name_missing(store, e, deadline, timeout)))?;
            let list = list.concat();
            store.set_within(LIST, &list, left(deadline)).map_err(failed)?;
            list
        } else {
            store.get(LIST, left(deadline)).map_err(|e| failed(self.name_missing(store, e, deadline, timeout)))?
        };
        self.set_peers(&list, &own, deadline, timeout).map_err(failed)
    }

    /// Finds the other ranks over a connected context of the same ranks, with `tag`. Collective.
    pub fn connect_from(&self, parent: &Context, tag: u32) -> Result<()> {
        if (parent.rank, parent.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "rank {} of {} cannot connect out of a context in which it is rank {} of {}",
                self.rank, self.size, parent.rank, parent.size
            )));
        }
        let (deadline, timeout) = self.deadline(None);
        let own = self.lock()?.transport.address();
        let mut list = vec![0; own.len() * self.size];
        let shape = Shape::new(Collective::Allgather, self.rank, self.size, own.len());
        let call = Call {
            shape,
            algorithm: None,
            dtype: DataType::Uint8,
            reduction: Reduction::Op(ReduceOp::Sum),
            inputs: &[own.as_ptr()],
            outputs: &[list.as_mut_ptr()],
            tag,
            timeout: Some(left(deadline)),
            max_segment_bytes: None,
        };
        // SAFETY: the buffers are as long as the shape says and live until the call returns.
        unsafe { parent.run(&call) }.map_err(|e| e.context("cannot connect out of a context"))?;
        self.set_peers(&list, &own, deadline, timeout)
            .map_err(|e| e.context(format_args!("{}: cannot connect out of a context", self.own())))
    }

    /// Adds the ranks whose address is not in the store to a timeout.
    fn name_missing(&self, store: &dyn Store, error: Error, deadline: Instant, timeout: Duration) -> Error {
        // This rank's own address is there; a store that does not say so, at once, says nothing about the others.
        let own = rank_key(self.rank);
        let answers = || Instant::now() < deadline + LATE && store.wait(&[&own], Duration::ZERO).is_ok();
        if error.kind() != ErrorKind::Timeout || !answers() {
            return error;
        }
        let missing: Vec<String> = (0..self.size)
            .filter(|rank| {
                store.wait(&[&rank_key(*rank)], Duration::ZERO).is_err_and(|e| e.kind() == ErrorKind::Timeout)
            })
            .map(|rank| rank.to_string())
            .collect();
        if missing.is_empty() {
            return error.context("all ranks have arrived, but rank 0 has not published their addresses");
        }
        const SHOWN: usize = 16;
        let more = missing.len().saturating_sub(SHOWN);
        let ranks = missing[..missing.len().min(SHOWN)].join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Error::new(
            ErrorKind::Timeout,
            format!("after {timeout:?}, {} of {} ranks have not arrived: {ranks}{more}", missing.len(), self.size),
        )
    }

    fn set_peers(&self, list: &[u8], own: &[u8], deadline: Instant, timeout: Duration) -> Result<()> {
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
                format!(
                    "the address published for rank {} is another process's: two processes have the same rank, or the \
                     store holds what an earlier job left there",
                    self.rank
                ),
            ));
        }
        let mut guard = self.lock()?;
        let mut local = 0;
        for (rank, address) in list.chunks_exact(length).enumerate() {
            guard.transport.set_peer(rank, address)?;
            local += usize::from(guard.transport.shares_host(rank) == Some(true));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        guard.set_spin(Spin::For(if local <= cores { SPIN } else { SPIN_SHARED }));
        self.engine().leave(guard);
        if self.options.connect == Connect::Full {
            for rank in 0..self.size {
                self.lock()?.transport.connect(rank);
            }
            for rank in (0..self.size).filter(|rank| *rank != self.rank) {
                self.await_connection(rank, deadline, timeout)?;
            }
        }
        Ok(())
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

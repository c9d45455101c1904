//! What the connector and the links of a context share: completion queues, memory, and the connections.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ibverbs_sys as ffi;

use super::common::Common;
use super::connection::{Connection, Depth};
use super::handles::{CompletionQueue, DeviceContext};
use super::memory::{Pool, Registration, Registry};
use super::rail::{PathOptions, Rail};
use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::transport::{self, Counters, Counting, KeepAlive};

/// Completions that are taken at once.
const COMPLETIONS_AT_ONCE: usize = 32;
/// Work requests in all send queues, and receives in all receive queues, together, as far as the least [`Depth`]
/// permits.
const MAX_REQUESTS: usize = 16 << 10;

/// The state behind the lock.
pub struct State {
    pub common: Common,
    connections: QuickMap<u32, Box<Connection>>,
    next: u32,
    completions: [ffi::ibv_wc; COMPLETIONS_AT_ONCE],
}

/// The shared part of a context.
pub struct Shared(Mutex<State>);

// SAFETY: completions hold plain numbers.
unsafe impl Send for State {}

impl Shared {
    /// Makes what the links of a context of up to `size` ranks share.
    pub fn new(rails: Vec<Arc<Rail>>, path: PathOptions, registration: Registration) -> Arc<Self> {
        let common = Common {
            registry: Registry::new(rails.clone(), registration),
            pool: Pool::new(rails.clone()),
            rails,
            queues: Vec::new(),
            path,
            counters: Counters::default(),
            now: None,
            touched: Vec::new(),
            is_due: false,
            is_ending: false,
        };
        // SAFETY: zero is a valid value of all fields.
        let completions = unsafe { std::mem::zeroed() };
        Arc::new(Self(Mutex::new(State { common, connections: QuickMap::default(), next: 0, completions })))
    }

    /// Locks the state. There is no contention but with the device's thread, when connections end.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl transport::Registry for Shared {
    fn retain(&self, memory: *mut u8, bytes: usize) {
        self.lock().common.registry.retain(memory, bytes);
    }

    fn release(&self, memory: *mut u8, bytes: usize) {
        self.lock().common.registry.release(memory, bytes);
    }
}

impl Counting for Shared {
    fn counters(&self) -> Counters {
        let state = self.lock();
        let common = &state.common;
        let registrations = common.registry.registrations + common.pool.registrations + common.counters.registrations;
        Counters { registrations, ..common.counters }
    }
}

impl KeepAlive for Shared {
    fn next(&self) -> Option<Instant> {
        let mut state = self.lock();
        let (connections, _) = state.connections();
        connections.filter_map(|(_, connection)| connection.silent_until()).min()
    }
}

impl State {
    /// Creates the completion queues of a context of `size` ranks.
    pub fn open(&mut self, size: usize) -> Result<()> {
        let depth = self.depth(size);
        for rail in &self.common.rails {
            let wanted = size.saturating_sub(1).max(1) * (depth.sends + depth.receives + depth.spare);
            let entries = wanted.min(rail.max_completions);
            let queue = CompletionQueue::new(rail.domain.context().clone(), entries).map_err(|e| {
                Error::io(format_args!("cannot create a completion queue of {entries} on {}", rail.name), &e)
            })?;
            self.common.queues.push(queue);
        }
        Ok(())
    }

    /// The sizes of the queues of each connection of a context of `size` ranks.
    pub fn depth(&self, size: usize) -> Depth {
        let max = self.common.rails.iter().map(|rail| rail.max_requests.min(rail.max_completions / 2)).min();
        Depth::of(MAX_REQUESTS / size.max(1), max.unwrap_or(0))
    }

    /// Adds a connection, which `make` makes with its number.
    pub fn add<E>(&mut self, make: impl FnOnce(&mut Common, u32) -> Result<Connection, E>) -> Result<u32, E> {
        let id = self.next;
        let connection = make(&mut self.common, id)?;
        self.next = self.next.wrapping_add(1);
        self.connections.insert(id, Box::new(connection));
        Ok(id)
    }

    /// A connection, and what concerns all.
    pub fn connection(&mut self, id: u32) -> Option<(&mut Connection, &mut Common)> {
        let connection = self.connections.get_mut(&id)?;
        Some((connection, &mut self.common))
    }

    /// All connections.
    pub fn connections(&mut self) -> (impl Iterator<Item = (u32, &mut Connection)>, &mut Common) {
        let all = self.connections.iter_mut().map(|(id, connection)| (*id, connection.as_mut()));
        (all, &mut self.common)
    }

    /// Removes a connection: its queue pairs are destroyed, and no memory is accessed by it any more.
    pub fn remove(&mut self, id: u32) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.close(&mut self.common);
        }
    }

    /// Handles all completions that there are. Returns whether there were any.
    pub fn poll(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.common.queues.len() {
            loop {
                match self.common.queues[index].poll(&mut self.completions) {
                    Ok(count) => {
                        any |= count > 0;
                        self.common.counters.completions += count as u64;
                        for number in 0..count {
                            let completion = self.completions[number];
                            let id = (completion.wr_id() >> 32) as u32;
                            if let Some(connection) = self.connections.get_mut(&id) {
                                connection.completed(&completion, &mut self.common);
                            }
                        }
                        if count < COMPLETIONS_AT_ONCE {
                            break;
                        }
                    }
                    Err(error) => {
                        self.queue_broke(index, &error);
                        break;
                    }
                }
            }
        }
        any
    }

    /// A completion queue is unusable, for example because its device was removed.
    fn queue_broke(&mut self, index: usize, error: &io::Error) {
        let text = format!("{}: {error}", self.common.rails[index].describe());
        for connection in self.connections.values_mut() {
            connection.fail(&text, &mut self.common);
        }
    }

    /// The state of this device or of one of its ports has changed: fails its connections, or lets retries decide
    /// whether they still work.
    pub fn device_changed(&mut self, device: &Arc<DeviceContext>) {
        let rails = self.common.rails.iter().enumerate();
        let rails: Vec<usize> =
            rails.filter(|(_, rail)| Arc::ptr_eq(rail.domain.context(), device)).map(|(index, _)| index).collect();
        for rail in rails {
            let text = format!("{}: the device has failed or was removed", self.common.rails[rail].name);
            for connection in self.connections.values_mut().filter(|connection| connection.uses(rail)) {
                match device.is_gone() {
                    true => connection.fail(&text, &mut self.common),
                    false => connection.probe_rail(rail, &mut self.common),
                }
            }
        }
    }
}

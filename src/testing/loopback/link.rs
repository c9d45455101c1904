//! One end of an in-memory link.

use std::io::{self, IoSlice, IoSliceMut};

use super::network::placements::SentMemory;
use super::network::{Network, RegisteredMemory};
use crate::error::Result;
use crate::transport::{Interest, Link, Placement, RemoteMemory};

pub(super) struct LoopbackLink {
    pub network: Network,
    pub node: usize,
    pub peer: usize,
    pub ended: bool,
    /// The last message that was placed in a buffer of the link.
    pub taken: Vec<u8>,
}

impl Link for LoopbackLink {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.network.state().send(self.node, self.peer, parts)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.network.state().receive(self.peer, self.node, parts)
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        self.network.state().watch(self.node, self.peer, interest);
        Ok(())
    }

    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        let (reads, _) = self.network.state().eager_bytes(self.node, self.peer);
        reads.is_some().then_some(self)
    }

    fn placement(&mut self) -> Option<&mut dyn Placement> {
        let (_, places) = self.network.state().eager_bytes(self.node, self.peer);
        places.is_some().then_some(self)
    }

    #[cfg(test)]
    fn exposures(&self) -> (usize, usize) {
        self.network.state().in_use(self.node, self.peer)
    }

    fn end(mut self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        self.network.state().close_link(self.node, self.peer, Some((rest, close_notice)));
        self.ended = true;
    }
}

impl RemoteMemory for LoopbackLink {
    fn eager_bytes(&self) -> usize {
        self.network.state().eager_bytes(self.node, self.peer).0.unwrap_or(usize::MAX)
    }

    unsafe fn register(&mut self, key: u32, memory: *const u8, bytes: usize) -> Result<()> {
        self.network.state().register(self.node, self.peer, key, RegisteredMemory { memory, bytes })
    }

    fn unregister(&mut self, key: u32) {
        self.network.state().unregister(self.node, self.peer, key);
    }

    fn read(&mut self, key: u32, offset: usize, into: &mut [u8]) -> io::Result<usize> {
        self.network.state().read(self.peer, self.node, key, offset, into)
    }
}

impl Placement for LoopbackLink {
    fn eager_bytes(&self) -> usize {
        self.network.state().eager_bytes(self.node, self.peer).1.unwrap_or(usize::MAX)
    }

    unsafe fn expose(&mut self, key: u32, into: Option<*mut u8>, bytes: usize) -> bool {
        self.network.state().expose(self.node, self.peer, key, into, bytes)
    }

    fn placed(&mut self, key: u32) -> Option<&[u8]> {
        self.taken = self.network.state().placed(self.node, self.peer, key)?;
        Some(&self.taken)
    }

    fn withdraw(&mut self, key: u32, is_done: bool) {
        self.network.state().withdraw(self.node, self.peer, key, is_done);
    }

    fn forget(&mut self, key: u32) {
        self.network.state().forget(self.node, self.peer, key);
    }

    unsafe fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32) -> bool {
        self.network.state().place(self.node, self.peer, key, SentMemory { from, bytes }, ticket)
    }

    fn finished(&mut self) -> Option<u32> {
        self.network.state().finished(self.node, self.peer)
    }

    fn cancel(&mut self, ticket: u32) {
        self.network.state().cancel(self.node, self.peer, ticket);
    }
}

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        if !self.ended {
            self.network.state().close_link(self.node, self.peer, None);
        }
    }
}

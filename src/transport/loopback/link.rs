//! One end of an in-memory link.

use std::io::{self, IoSlice, IoSliceMut};

use super::network::{Network, RegisteredMemory};
use crate::error::Result;
use crate::transport::{Interest, Link, RemoteMemory};

pub(super) struct LoopbackLink {
    pub network: Network,
    pub node: usize,
    pub peer: usize,
    pub ended: bool,
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
        let eager_bytes = self.network.state().eager_bytes(self.node, self.peer);
        eager_bytes.is_some().then_some(self)
    }

    fn end(mut self: Box<Self>, mut rest: Vec<u8>, close_notice: Vec<u8>) {
        rest.extend(close_notice);
        self.network.state().close_link(self.node, self.peer, Some(&rest));
        self.ended = true;
    }
}

impl RemoteMemory for LoopbackLink {
    fn eager_bytes(&self) -> usize {
        self.network.state().eager_bytes(self.node, self.peer).unwrap_or(usize::MAX)
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

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        if !self.ended {
            self.network.state().close_link(self.node, self.peer, None);
        }
    }
}

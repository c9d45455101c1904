//! One end of a link in memory.

use std::io::{self, IoSlice, IoSliceMut};

use super::network::Network;
use crate::transport::{Interest, Link};

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

    fn end(mut self: Box<Self>, last_words: Vec<u8>) {
        self.network.state().let_go(self.node, self.peer, Some(&last_words));
        self.ended = true;
    }
}

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        if !self.ended {
            self.network.state().let_go(self.node, self.peer, None);
        }
    }
}

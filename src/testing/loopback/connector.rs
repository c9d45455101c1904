//! Creates the in-memory links of one context.

use std::time::Instant;

use super::link::LoopbackLink;
use super::network::{Network, PendingEvent, connection};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Description, Peers, Reach};
use crate::types::Rank;

pub(super) struct LoopbackConnector {
    pub network: Network,
    pub node: usize,
    /// The nodes of the ranks whose addresses are known.
    pub peers: QuickMap<u32, usize>,
}

impl LoopbackConnector {
    fn rank_of(&self, node: usize) -> Option<Rank> {
        self.peers.iter().find(|(_, other)| **other == node).map(|(rank, _)| *rank as Rank)
    }
}

impl Connector for LoopbackConnector {
    fn reach(&mut self, peers: &Peers, rank: Rank) -> Result<Reach> {
        let node = peers.get(rank).map(|address| self.network.state().node_of(&address.identity));
        self.network.state().nodes[self.node].awaits_peers &= node.is_none();
        self.peers.extend(node.map(|node| (rank as u32, node)));
        Ok(Reach::Yes)
    }

    fn connect(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get(&(rank as u32)) {
            self.network.state().connect(self.node, *peer);
        }
    }

    fn give_up(&mut self, rank: Rank) {
        if let Some(node) = self.peers.get(&(rank as u32)).copied() {
            let mut state = self.network.state();
            let of = |event: &PendingEvent| match event {
                PendingEvent::Established(peer) | PendingEvent::Accepted(peer) | PendingEvent::Refused(peer, _) => {
                    *peer
                }
            };
            let pending = &mut state.nodes[self.node].pending;
            let is_link = |event: &PendingEvent| !matches!(event, PendingEvent::Refused(..));
            let begun = pending.iter().any(|(_, event)| is_link(event) && of(event) == node);
            pending.retain(|(_, event)| of(event) != node);
            if begun {
                // The link may already be established on the other side.
                state.close_link(self.node, node, None);
            }
        }
    }

    fn close(&mut self, close_notice: CloseNotice, has_failed: bool) {
        self.network.state().close(self.node, close_notice, has_failed);
    }

    fn is_busy(&self) -> bool {
        // The network determines the order in which links are reported.
        true
    }

    fn progress(&mut self, _: &Peers, now: Instant, events: &mut Vec<ConnectorEvent>) {
        if self.peers.is_empty() {
            // Peers that connect earlier wait.
            return;
        }
        let mut state = self.network.state();
        let due: Vec<PendingEvent> = {
            let pending = &mut state.nodes[self.node].pending;
            let due = pending.iter().filter(|(at, _)| *at <= now).map(|(_, event)| event.clone()).collect();
            pending.retain(|(at, _)| *at > now);
            due
        };
        let mut opened = Vec::new();
        for event in due {
            match event {
                PendingEvent::Established(peer) | PendingEvent::Accepted(peer) => {
                    state.open(self.node, peer);
                    opened.push(peer);
                }
                PendingEvent::Refused(peer, why) => {
                    if let Some(rank) = self.rank_of(peer) {
                        let text = format!("rank {rank} at node {peer} is gone: {why}");
                        let error = Error::new(ErrorKind::ConnectionLost, text);
                        events.push(ConnectorEvent::Unreachable { rank, error });
                    }
                }
            }
        }
        let ready = state.ready(self.node);
        drop(state);
        for peer in opened {
            let link = Box::new(LoopbackLink {
                network: self.network.clone(),
                node: self.node,
                peer,
                ended: false,
                taken: Vec::new(),
            });
            if let Some(rank) = self.rank_of(peer) {
                events.push(ConnectorEvent::Established { rank, link, connection: connection(self.node, peer) });
            }
        }
        for (peer, of) in ready {
            if let Some(rank) = self.rank_of(peer) {
                events.push(ConnectorEvent::Ready { rank, of });
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let state = self.network.state();
        // The device tells of connections that peers have made.
        let own =
            state.nodes[self.node].pending.iter().filter(|(_, event)| !matches!(event, PendingEvent::Accepted(_)));
        own.map(|(at, _)| *at).min()
    }

    fn describe(&self, _: &Peers, rank: Rank) -> Description {
        let location = self.peers.get(&(rank as u32)).map(|node| format!("node {node}"));
        Description { location, why_not_connected: None }
    }
}

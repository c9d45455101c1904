//! The α–β–γ model: what messages and reductions cost on a network of hosts (Hockney 1994; Thakur, Rabenseifner and Gropp
//! 2005). [`Network`] says how fast the links are, [`Cost`] what an algorithm asks of them. The simulator plays schedules on
//! a network; the algorithms price themselves by formulas; both mean the same by it.
//!
//! A message of `n` bytes arrives `latency + n / bandwidth` after it was sent. It occupies its link for `n / bandwidth` only,
//! each way on its own. Ranks on one host have a link for each pair of them; all ranks of a host share its network card.
//! A rank reduces one segment at a time.

/// A way from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// α: seconds from sending to arrival, for a message of no bytes.
    pub latency: f64,
    /// B: bytes per second, each way.
    pub bandwidth: f64,
}

/// What ranks are connected by, and how they are spread over hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Between two ranks of one host.
    pub local: Link,
    /// Between hosts: each host's network card, shared by its ranks.
    pub remote: Link,
    /// γ: seconds to reduce one byte.
    pub gamma: f64,
    /// Ranks on a host; where hosts differ, the most. 1: every rank has a host of its own.
    pub per_host: usize,
    /// Whether the ranks of a host have consecutive numbers. If not, neighbours are taken to be on different hosts.
    pub consecutive: bool,
    /// Cores that the ranks of one host share.
    pub cores: usize,
}

/// What an algorithm asks of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds from the first message to the last result, where every rank has a core of its own.
    pub path: f64,
    /// Messages sent by all ranks together, segments counted.
    pub messages: f64,
    /// Bytes sent by all ranks together.
    pub sent: f64,
    /// Bytes reduced by all ranks together.
    pub reduced: f64,
}

impl Link {
    /// Seconds until a message of `bytes` has arrived.
    pub fn time(self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }
}

impl Network {
    /// Every rank on a host of its own.
    pub const fn flat(link: Link, gamma: f64) -> Self {
        Self { local: link, remote: link, gamma, per_host: 1, consecutive: true, cores: 1 }
    }

    /// The link between rank `r` and rank `r + distance` (or `r XOR distance`) when every rank of `size` sends over that
    /// distance at the same time: the slowest that any of them gets.
    pub fn link(&self, size: usize, distance: usize) -> Link {
        if self.per_host >= size {
            return self.local;
        }
        let crossing = if self.consecutive { self.per_host.min(distance.max(1)) } else { self.per_host };
        let shared = Link { bandwidth: self.remote.bandwidth / crossing as f64, ..self.remote };
        // Where some stay on their host, the slower of both counts.
        match self.per_host {
            1 => shared,
            _ => Link {
                latency: shared.latency.max(self.local.latency),
                bandwidth: shared.bandwidth.min(self.local.bandwidth),
            },
        }
    }
}

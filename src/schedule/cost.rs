//! The α–β–γ model: what messages and reductions cost on a network of hosts (Hockney 1994; Thakur, Rabenseifner and Gropp
//! 2005); between hosts with the ranks' own time for each message (LogGP: Alexandrov, Ionescu, Schauser and Scheiman 1995).
//! [`Network`] says how fast the links are, [`Cost`] what an algorithm asks of them. The simulator plays schedules on a
//! network; the algorithms price themselves by formulas; both mean the same by it.
//!
//! A message of `n` bytes arrives `latency + n / bandwidth` after it was sent. It occupies its link for `n / bandwidth` only,
//! each way on its own. Ranks on one host have a link for each pair of them; all ranks of a host share its network card.
//! A rank reduces one segment at a time.
//!
//! Between hosts, a rank is busy for `overhead` with each message that it sends and with each that it receives, and reduces
//! nothing meanwhile; what it sends leaves it, and what it receives comes to it, no less than `gap` apart. A message alone takes
//! no longer by that: α is LogGP's `L + 2o`.

/// A way from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// α: seconds from sending to arrival, for a message of no bytes.
    pub latency: f64,
    /// B: bytes per second, each way.
    pub bandwidth: f64,
}

/// A link with what the ranks at its ends do for each message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// α: seconds from sending to arrival, for a message of no bytes.
    pub latency: f64,
    /// B: bytes per second, each way.
    pub bandwidth: f64,
    /// Seconds that a rank is busy with each message that it passes on, which is received and sent.
    pub busy: f64,
    /// g: least seconds from one message to the next.
    pub gap: f64,
}

/// What ranks are connected by, and how they are spread over hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Between two ranks of one host.
    pub local: Link,
    /// Between hosts: each host's network card, shared by its ranks.
    pub remote: Link,
    /// o: seconds that a rank is busy with each message that it sends to another host, or receives from there. At most half of
    /// the latency, of which it is a part.
    pub overhead: f64,
    /// g: least seconds from one message to the next that a rank sends to other hosts, or receives from there.
    pub gap: f64,
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

impl Hop {
    /// Seconds until a message of `bytes` has arrived.
    pub fn time(self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }

    /// For a rank that only sends or only receives.
    pub fn one_way(self) -> Self {
        Self { busy: self.busy / 2.0, ..self }
    }

    /// Least seconds from one message to the next of such a rank.
    pub fn turn(self) -> f64 {
        self.one_way().busy.max(self.gap)
    }

    /// Seconds until a rank that first sends so many messages and then takes in as many has done so.
    pub fn both(self, messages: f64) -> f64 {
        let own = self.busy / 2.0;
        if messages > 0.0 { (messages + 1.0) * own + (messages - 1.0).max(0.0) * self.turn() } else { 0.0 }
    }
}

impl Network {
    /// Every rank on a host of its own, and messages that cost ranks no time of their own.
    pub const fn flat(link: Link, gamma: f64) -> Self {
        Self { local: link, remote: link, overhead: 0.0, gap: 0.0, gamma, per_host: 1, consecutive: true, cores: 1 }
    }

    /// Between two ranks of one host.
    pub fn near(&self) -> Hop {
        let Link { latency, bandwidth } = self.local;
        Hop { latency, bandwidth, busy: 0.0, gap: 0.0 }
    }

    /// Between hosts.
    pub fn far(&self) -> Hop {
        let Link { latency, bandwidth } = self.remote;
        Hop { latency, bandwidth, busy: 2.0 * self.overhead, gap: self.gap }
    }

    /// The link between rank `r` and rank `r + distance` (or `r XOR distance`) when every rank of `size` sends over that
    /// distance at the same time: the slowest that any of them gets.
    pub fn link(&self, size: usize, distance: usize) -> Hop {
        if self.per_host >= size {
            return self.near();
        }
        let crossing = if self.consecutive { self.per_host.min(distance.max(1)) } else { self.per_host };
        let shared = Hop { bandwidth: self.remote.bandwidth / crossing as f64, ..self.far() };
        // Where some stay on their host, the slower of both counts.
        match self.per_host {
            1 => shared,
            _ => Hop {
                latency: shared.latency.max(self.local.latency),
                bandwidth: shared.bandwidth.min(self.local.bandwidth),
                ..shared
            },
        }
    }
}

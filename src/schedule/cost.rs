//! The α–β–γ model: the cost of messages and reductions on a network of hosts (Hockney 1994; Thakur, Rabenseifner and
//! Gropp 2005), between hosts with CPU time per message (LogGP: Alexandrov, Ionescu, Schauser and Scheiman 1995).
//! [`Network`] describes the links, [`Cost`] the demands of an algorithm. The simulator runs schedules on this model;
//! the algorithms' cost formulas use the same one.
//!
//! A message of `n` bytes arrives `latency + n / bandwidth` after it was sent. It occupies its link for `n /
//! bandwidth`; links are full duplex. Each pair of ranks on one host has its own link; all ranks of a host share its
//! network card. A rank reduces one segment at a time.
//!
//! Between hosts, each message that a rank sends or receives takes `overhead` of its CPU time, during which it reduces
//! nothing. Consecutive messages leave, and arrive at, a rank at least `gap` apart. A single message does not take
//! longer because of that: α is LogGP's `L + 2o`.

/// A link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// α: seconds from sending to arrival for an empty message.
    pub latency: f64,
    /// B: bytes per second in each direction.
    pub bandwidth: f64,
}

/// A link together with the CPU time of the ranks at its ends per message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// α: seconds from sending to arrival for an empty message.
    pub latency: f64,
    /// B: bytes per second in each direction.
    pub bandwidth: f64,
    /// CPU seconds of a rank for each message that it forwards, that is, receives and sends.
    pub busy: f64,
    /// g: minimum seconds between two messages.
    pub gap: f64,
}

/// The time that memory written by another rank takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access {
    /// σ: seconds until a rank that waits sees what another has published, or that a reader is done.
    pub signal: f64,
    /// CPU seconds of a rank for each fetch, besides its bytes.
    pub fetch: f64,
    /// Seconds to copy one byte out of a publication by value.
    pub copy: f64,
}

/// The memory that the ranks of one host share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedMemory {
    /// Between ranks that share a cache.
    pub near: Access,
    /// Between ranks that do not.
    pub far: Access,
    /// CPU seconds of a rank for each fetch from a publication by reference, besides its bytes, in addition to those of
    /// any fetch.
    pub call: f64,
    /// Seconds to copy one byte into a publication by value.
    pub copy: f64,
    /// Seconds to read one byte of a publication by reference.
    pub read: f64,
    /// Bytes of the largest publication by value.
    pub by_value: f64,
    /// Whether longer ones are written piece by piece while others read, else they are by reference.
    pub streams: bool,
    /// The bytes of the largest publication by value of a rank that fetches nothing, in such a call.
    pub by_value_alone: f64,
    /// The bytes of the largest publication by reference in such a call; only longer ones are written piece by piece.
    /// 0 if every publication that is not by value is written so.
    pub by_reference: f64,
}

/// The links between ranks, and the distribution of ranks over hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The link between two ranks of one host.
    pub local: Link,
    /// The link between hosts: each host's network card, shared by its ranks.
    pub remote: Link,
    /// o: CPU seconds of a rank for each message that it sends to or receives from another host. At most half of the
    /// latency, which includes it.
    pub overhead: f64,
    /// g: minimum seconds between two messages that a rank sends to other hosts, or receives from them.
    pub gap: f64,
    /// γ: seconds to reduce one byte.
    pub gamma: f64,
    /// Ranks per host; the maximum, if hosts differ. 1: every rank has its own host.
    pub per_host: usize,
    /// Whether the ranks of a host are consecutive. If not, neighbouring ranks are assumed to be on different hosts.
    pub consecutive: bool,
    /// Number of cores shared by the ranks of one host.
    pub cores: usize,
    /// The memory that the ranks of one host share, if they do.
    pub memory: SharedMemory,
}

/// The demands of an algorithm on a network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds from the first message to the last result if every rank has its own core.
    pub path: f64,
    /// Messages (segments) sent by all ranks together.
    pub messages: f64,
    /// Bytes sent by all ranks together, or fetched.
    pub sent: f64,
    /// Bytes reduced by all ranks together.
    pub reduced: f64,
}

impl SharedMemory {
    /// Ranks that do not use shared memory; what they did with it would cost nothing.
    pub const UNUSED: Self = Self {
        near: Access::NONE,
        far: Access::NONE,
        call: 0.0,
        copy: 0.0,
        read: 0.0,
        by_value: 0.0,
        streams: false,
        by_value_alone: 0.0,
        by_reference: 0.0,
    };

    /// Whether a publication of `bytes` is by value; `alone`: its rank fetches nothing.
    pub fn is_by_value(&self, bytes: f64, alone: bool) -> bool {
        bytes <= if alone && self.streams { self.by_value_alone } else { self.by_value }
    }

    /// CPU seconds to publish `bytes`. A rank that fetches nothing writes them while others read, and takes no longer
    /// than these.
    pub fn publish(&self, bytes: f64, alone: bool) -> f64 {
        let copies = self.is_by_value(bytes, alone) || self.streams && !alone && bytes > self.by_reference;
        if copies { bytes * self.copy } else { 0.0 }
    }

    /// The access to memory of a rank that is `far` or not.
    pub fn access(&self, far: bool) -> Access {
        if far { self.far } else { self.near }
    }

    /// CPU seconds to fetch `bytes` of a publication of `of` bytes of a rank that is `far` or not.
    pub fn fetch(&self, of: f64, bytes: f64, far: bool) -> f64 {
        let access = self.access(far);
        let copies = of <= self.by_value || self.streams && of > self.by_reference;
        let (call, byte) = if copies { (0.0, access.copy) } else { (self.call, self.read) };
        access.fetch + if bytes > 0.0 { call + bytes * byte } else { 0.0 }
    }

    /// Seconds from the last fetch from publications of at most `bytes` until their rank knows that; `far`: of the
    /// reader. There is nothing to wait for if all were by value.
    pub fn readers(&self, bytes: f64, far: bool, alone: bool) -> f64 {
        if self.is_by_value(bytes, alone) { 0.0 } else { self.access(far).signal }
    }
}

impl Access {
    const NONE: Self = Self { signal: 0.0, fetch: 0.0, copy: 0.0 };
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

    /// The hop of a rank that only sends or only receives.
    pub fn one_way(self) -> Self {
        Self { busy: self.busy / 2.0, ..self }
    }

    /// Minimum seconds between two messages of a rank that only sends or only receives.
    pub fn turn(self) -> f64 {
        self.one_way().busy.max(self.gap)
    }

    /// Seconds for a rank to send `messages` and then receive as many.
    pub fn both(self, messages: f64) -> f64 {
        let own = self.busy / 2.0;
        if messages > 0.0 { (messages + 1.0) * own + (messages - 1.0).max(0.0) * self.turn() } else { 0.0 }
    }
}

impl Network {
    /// One rank per host, and no CPU time per message.
    pub const fn flat(link: Link, gamma: f64) -> Self {
        Self {
            local: link,
            remote: link,
            overhead: 0.0,
            gap: 0.0,
            gamma,
            per_host: 1,
            consecutive: true,
            cores: 1,
            memory: SharedMemory::UNUSED,
        }
    }

    /// The hop between two ranks of one host.
    pub fn near(&self) -> Hop {
        let Link { latency, bandwidth } = self.local;
        Hop { latency, bandwidth, busy: 0.0, gap: 0.0 }
    }

    /// The hop between hosts.
    pub fn far(&self) -> Hop {
        let Link { latency, bandwidth } = self.remote;
        Hop { latency, bandwidth, busy: 2.0 * self.overhead, gap: self.gap }
    }

    /// The link between rank `r` and rank `r + distance` (or `r XOR distance`) when every rank of `size` sends over
    /// that distance at the same time: the slowest that any rank gets.
    pub fn link(&self, size: usize, distance: usize) -> Hop {
        if self.per_host >= size {
            return self.near();
        }
        let crossing = if self.consecutive { self.per_host.min(distance.max(1)) } else { self.per_host };
        let shared = Hop { bandwidth: self.remote.bandwidth / crossing as f64, ..self.far() };
        // Some ranks communicate within their host: the slower of both links counts.
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

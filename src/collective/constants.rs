//! The table of all constants of the cost model that were measured elsewhere, fitted, or assumed. A tuning file can
//! override them by name (docs/tuning.md). Values that follow from a schedule, such as the number of messages of a
//! rank, are part of the formula in the algorithm's file.

use std::ops::RangeInclusive;

use crate::schedule::cost::{Access, Link, SharedMemory};

/// An entry of the table.
#[derive(Debug)]
pub struct Constant {
    /// The key in a tuning file. Its suffix is the unit: `_us`, `_ns` or `_bytes`; without one the constant is a plain
    /// number.
    pub name: &'static str,
    /// Valid values.
    pub range: RangeInclusive<f64>,
    /// How the built-in value was obtained.
    pub source: &'static str,
    field: fn(&mut Constants) -> &mut f64,
}

/// Units by name suffix.
const UNITS: [(&str, &str); 3] = [("_us", "µs"), ("_ns", "ns"), ("_bytes", "bytes")];
/// Suffixes of other units, recognised for error messages.
const OTHER_ENDS: [&str; 6] = ["_s", "_ms", "_ps", "_kib", "_mib", "_gib"];

impl Constant {
    /// The constant called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|constant| constant.name == name)
    }

    /// The constant whose name differs from `name` only in the unit suffix.
    pub fn in_another_unit(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|constant| constant.name != name && stem(constant.name) == stem(name))
    }

    /// The unit; empty for plain numbers.
    pub fn unit(&self) -> &'static str {
        UNITS.iter().find(|(end, _)| self.name.ends_with(end)).map_or("", |(_, unit)| unit)
    }

    /// Returns the constant's value in `constants`.
    pub fn of(&self, constants: &Constants) -> f64 {
        *(self.field)(&mut { *constants })
    }

    /// Sets its value in `constants`.
    pub fn set(&self, constants: &mut Constants, value: f64) {
        *(self.field)(constants) = value;
    }
}

impl Constants {
    /// The constants of a job whose rank 0 runs on this processor, but for those that are measured.
    pub fn here() -> Self {
        let mut constants = Self::BUILT_IN;
        for (name, value) in Self::of_this_processor() {
            if let Some(constant) = Constant::named(name) {
                constant.set(&mut constants, *value);
            }
        }
        constants
    }

    /// What differs from [`Constants::BUILT_IN`] on this processor. Nothing in the library's own tests, which are to do
    /// the same everywhere.
    pub fn of_this_processor() -> &'static [(&'static str, f64)] {
        // AMD's processors with AVX-512 have SSE4a as well.
        #[cfg(all(target_arch = "x86_64", not(test)))]
        if is_x86_feature_detected!("avx512f") && !is_x86_feature_detected!("sse4a") {
            return XEON;
        }
        &[]
    }

    /// The memory that the ranks of one host share; `oversubscribed`: they also share cores. `per_host`: their number.
    /// `alone`: there are no other hosts, so long publications are written piece by piece.
    pub fn shared_memory(&self, oversubscribed: bool, per_host: usize, alone: bool) -> SharedMemory {
        let sole = alone && per_host == 2;
        let [by_value, by_reference] = match sole {
            true => [self.memory_sole_value_bytes, self.memory_sole_read_bytes],
            false => [self.memory_value_bytes, 0.0],
        };
        let [signal, far_signal] = match oversubscribed {
            false => [self.memory_signal_us, self.memory_far_signal_us],
            true => [self.memory_signal_shared_us; 2],
        };
        SharedMemory {
            near: Access {
                signal: signal * 1e-6,
                fetch: self.memory_fetch_us * 1e-6,
                copy: self.memory_copy_ns * 1e-9,
            },
            far: Access {
                signal: far_signal * 1e-6,
                fetch: self.memory_far_fetch_us * 1e-6,
                copy: self.memory_far_copy_ns * 1e-9,
            },
            call: self.memory_call_us * 1e-6,
            copy: self.memory_copy_ns * 1e-9,
            read: self.memory_read_ns * 1e-9,
            by_value: by_value.min(self.memory_value_bytes),
            streams: alone,
            by_value_alone: by_value.min(self.memory_value_alone_bytes),
            by_reference,
        }
    }
}

fn stem(name: &str) -> &str {
    let ends = UNITS.iter().map(|(end, _)| *end).chain(OTHER_ENDS);
    ends.filter_map(|end| name.strip_suffix(end)).next().unwrap_or(name)
}

macro_rules! table {
    ($($(#[doc = $what:literal])+ $name:ident = $value:literal in $range:expr, $source:literal;)+) => {
        /// The constants of the cost model.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Constants {
            /// The link between two ranks of one host. Built in: TCP over loopback, measured on a virtual machine with
            /// two cores.
            pub local: Link,
            /// The link between hosts. Built in: Ethernet of 10 Gbit/s, assumed.
            pub remote: Link,
            /// γ: seconds to reduce one byte. Built in: floats in cache, measured with AVX2.
            pub gamma: f64,
            $($(#[doc = $what])+ pub $name: f64,)+
        }

        impl Constants {
            /// The values used if nothing was measured and no tuning file sets them.
            pub const BUILT_IN: Self = Self {
                local: Link { latency: 6e-6, bandwidth: 4e9 },
                remote: Link { latency: 20e-6, bandwidth: 1.2e9 },
                gamma: 5e-11,
                $($name: $value,)+
            };
        }

        /// The constants with an entry of their own in a tuning file; `local`, `remote` and `gamma` are keys there,
        /// too.
        pub const TABLE: &[Constant] = &[$(Constant {
            name: stringify!($name),
            range: $range,
            source: $source,
            field: |constants| &mut constants.$name,
        }),+];
    };
}

/// An upper bound for times, which keeps sums and products finite.
const MAX_VALUE: f64 = 1e9;

/// Constants of Intel's processors with a mesh of cores (Xeon from Skylake-SP on), where a line that another core has
/// written or read takes longer to get than it does within a core complex of Zen 3. Measured on Sapphire Rapids.
#[cfg(all(target_arch = "x86_64", not(test)))]
const XEON: &[(&str, f64)] = &[
    ("memory_signal_us", 0.3),
    ("memory_copy_ns", 0.083),
    ("memory_call_us", 2.0),
    ("memory_read_ns", 0.06),
    ("memory_sole_value_bytes", 16384.0),
    ("memory_sole_read_bytes", 8388608.0),
    ("memory_cache_bytes", 134217728.0),
];

table! {
    /// o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman 1995): CPU time of a rank for each message that it sends
    /// to or receives from another host. It is part of the latency.
    overhead_us = 2.0 in 0.0..=MAX_VALUE, "measured when ranks connect; built in is half of message_cpu_us";
    /// g of LogGP: minimum interval between two messages that a rank sends to other hosts, or receives from them.
    gap_us = 0.1 in 0.0..=MAX_VALUE, "assumed: the shortest frame that holds a message, on Ethernet of 10 Gbit/s";
    /// CPU time per message, sender and receiver together.
    message_cpu_us = 4.0 in 0.0..=MAX_VALUE, "fitted to collectives over TCP on one host, 2 to 8 ranks on 2 cores";
    /// CPU time per byte of a message, sender and receiver together.
    byte_cpu_ns = 0.2 in 0.0..=MAX_VALUE, "fitted to collectives over TCP on one host, 2 to 8 ranks on 2 cores";
    /// Fraction of the other ranks on its core for which a rank that is ready to run waits.
    core_waiting = 0.5 in 0.0..=1.0, "assumed: half of them on average";
    /// Shared memory: time until a rank that waits sees what another has published.
    memory_signal_us = 0.15 in 0.0..=MAX_VALUE, "assumed: two transfers of a cache line between cores";
    /// Shared memory: as memory_signal_us, if ranks share cores.
    memory_signal_shared_us = 5.0 in 0.0..=MAX_VALUE, "assumed: a change of threads on a core";
    /// Shared memory: what each further signal in a call takes besides for each other rank on the core, since all must
    /// run again.
    memory_switch_us = 1.7 in 0.0..=MAX_VALUE, "a change of threads that yield their core, on Zen 3";
    /// Shared memory: CPU time of each fetch besides its bytes.
    memory_fetch_us = 0.05 in 0.0..=MAX_VALUE, "assumed: a transfer of a cache line between cores";
    /// Shared memory: CPU time per byte copied into or out of a publication by value.
    memory_copy_ns = 0.05 in 0.0..=MAX_VALUE, "a copy of 64 KiB to memory that another core has read, on Zen 3";
    /// Shared memory: as memory_signal_us, between ranks that do not share a last-level cache.
    memory_far_signal_us = 0.3 in 0.0..=MAX_VALUE, "with memory_far_fetch_us: an exchange of 4 bytes takes 0.25 µs more than in one cache, on Zen 3";
    /// Shared memory: as memory_fetch_us, between ranks that do not share a last-level cache.
    memory_far_fetch_us = 0.15 in 0.0..=MAX_VALUE, "see memory_far_signal_us";
    /// Shared memory: as memory_copy_ns, out of a publication of a rank that does not share a last-level cache.
    memory_far_copy_ns = 0.4 in 0.0..=MAX_VALUE, "an exchange of 512 KiB takes 0.2 ms more than in one cache, on Zen 3";
    /// Shared memory: CPU time of each fetch from another process's memory (a publication by reference) besides its
    /// bytes.
    memory_call_us = 1.0 in 0.0..=MAX_VALUE, "assumed: a system call";
    /// Shared memory: CPU time per byte read from another process's memory.
    memory_read_ns = 0.11 in 0.0..=MAX_VALUE, "process_vm_readv of 256 KiB between two cores, on Zen 3";
    /// Shared memory: the largest publication by value.
    memory_value_bytes = 1048576.0 in 0.0..=1e18, "what the engine copies at most";
    /// Shared memory: as memory_value_bytes, for a rank that fetches nothing, in calls without messages.
    memory_value_alone_bytes = 32768.0 in 0.0..=1e18, "what the engine copies at most";
    /// Shared memory: as memory_value_bytes, for a publication that one rank reads, in calls without messages.
    memory_sole_value_bytes = 1048576.0 in 0.0..=1e18, "what the engine copies at most";
    /// Shared memory: a publication beyond memory_sole_value_bytes that one rank reads is by reference up to this
    /// length, and beyond it written piece by piece.
    memory_sole_read_bytes = 0.0 in 0.0..=1e18, "what the engine does: on Zen 3, pieces are as fast";
    /// `shared_slices`: time for each byte of a slice that is read again, once to be reduced and once to be published,
    /// if the buffers do not fit into the cache.
    memory_again_ns = 0.06 in 0.0..=MAX_VALUE, "fitted to allreduce of 2 ranks, 16 to 256 MiB, on Zen 3";
    /// The size of the cache that memory_again_ns is about.
    memory_cache_bytes = 33554432.0 in 0.0..=1e18, "the last-level cache of a core complex of Zen 3";
    /// On one host: scratch memory of a call that costs nothing, since a context keeps it for later calls.
    memory_scratch_bytes = 8388608.0 in 0.0..=1e18, "what a context keeps";
    /// Time for each byte of scratch memory of a call that needs more: it is taken from the system, which clears it.
    memory_fresh_ns = 0.25 in 0.0..=MAX_VALUE, "assumed: 1 µs for a page of 4 KiB; a virtual machine with Zen 3 takes four times as long";
    /// On one host: fraction of a message's time by which each further message to or from a root extends the total, if
    /// they are concurrent.
    root_turn = 0.5 in 0.0..=1.0, "assumed: half of a link's time is work at either end; agrees with measurements of 2 to 8 ranks";
    /// `tree`: number of latencies of its largest messages during which messages up and messages down do not overlap.
    tree_turn_latencies = 3.0 in 0.0..=1e3, "fitted to the simulator, 4 to 1024 ranks";
    /// `double_binary_tree`, broadcast: delay by collisions of the two trees' messages, in segments.
    double_binary_tree_down_meeting = 0.55 in 0.0..=1e3, "fitted to the simulator, 8 to 4096 ranks";
    /// `double_binary_tree`, allreduce: delay by collisions of the two trees' messages, in segments.
    double_binary_tree_both_meeting = 0.5 in 0.0..=1e3, "fitted to the simulator, 16 to 4096 ranks";
    /// `double_binary_tree`, reduce: factor from the ratio of reduction time to link time to the fraction of reductions
    /// that wait.
    double_binary_tree_up_waiting = 3.0 in 0.0..=1e3, "fitted to the simulator, 4 to 4096 ranks";
    /// `double_binary_tree`, reduce: number of reductions that overlap with others in trees of even height.
    double_binary_tree_even_saved = 0.5 in 0.0..=1e3, "fitted to the simulator, 16 to 4096 ranks";
    /// `double_binary_tree`, reduce: number of reductions that overlap with others in trees of odd height.
    double_binary_tree_odd_saved = 1.0 in 0.0..=1e3, "fitted to the simulator, 32 to 2048 ranks";
    /// `double_binary_tree`, allreduce between hosts: how often each level above the second waits for the leaves' CPU
    /// time for messages.
    double_binary_tree_both_waiting = 2.0 in 0.0..=1e3, "fitted to the simulator, 4 to 16 ranks";
    /// `torus_2d` and `torus_nd` between hosts with segmented messages: factor on the critical path, without column
    /// dimensions.
    torus_cut = 0.9 in 0.0..=1e3, "fitted to the simulator, 4 to 64 ranks";
    /// `torus_2d` and `torus_nd` between hosts with segmented messages: increase of that factor per column dimension.
    torus_cut_each = 0.2 in 0.0..=1e3, "fitted to the simulator, 4 to 64 ranks";
    /// `mesh_2d` on one host: fraction of the reduction time in excess of the message's link time that delays other
    /// messages.
    mesh_meeting = 0.25 in 0.0..=1.0, "fitted to the simulator, 4 to 64 ranks";
    /// The smallest segment size for which a cost is computed.
    least_segment_bytes = 32768.0 in 1.0..=1e18, "assumed: a shorter message takes a core as long as its bytes";
    /// Maximum number of messages of all candidates of one decision for which the simulator is used.
    simulated_messages = 20000.0 in 0.0..=MAX_VALUE, "measured: they take some ten milliseconds";
    /// Maximum memory in bytes for the schedules of one simulated candidate.
    simulated_memory_bytes = 67108864.0 in 0.0..=1e18, "assumed: what a program spares for a moment";
    /// A tuning file's choices for a number of ranks also apply to numbers that are larger or smaller by up to this
    /// factor.
    near_ranks = 2.0 in 1.0..=MAX_VALUE, "assumed";
    /// How long a waiting thread polls before it sleeps, if every rank of its host has a core.
    spin_us = 200.0 in 0.0..=MAX_VALUE, "assumed: several times a round trip over loopback";
    /// How long a waiting thread polls before it sleeps, if ranks share cores. It yields its core after each poll, and
    /// a message that arrives meanwhile needs no wake-up: four ranks on two cores exchange 4 bytes in 40 µs, against 90
    /// µs if each sleeps at once. With 200 µs, eight ranks delay each other.
    spin_shared_us = 50.0 in 0.0..=MAX_VALUE, "measured with four and eight ranks on two cores";
    /// How long a waiting thread polls instead of `spin_us` where each rank has a core, as long as no other thread runs
    /// on it. To wake a thread that sleeps takes some 15 µs, a small part of a longer wait.
    spin_alone_us = 100000.0 in 0.0..=MAX_VALUE, "assumed: ranks come late by up to some tens of milliseconds where it matters";
    /// Number of connections of each link made from then on, between ranks whose devices' options and environment do
    /// not say. No part of the costs, which follow from the links' bandwidth.
    streams = 1.0 in 1.0..=16.0, "enough where one connection is not limited to a part of the network's bandwidth";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_has_a_name_a_source_and_a_value_that_makes_sense() {
        for (index, constant) in TABLE.iter().enumerate() {
            let Constant { name, range, source, .. } = constant;
            assert!(TABLE[..index].iter().all(|other| stem(other.name) != stem(name)), "{name}");
            assert!(range.contains(&constant.of(&Constants::BUILT_IN)), "{name}");
            assert!(!source.is_empty(), "{name}");
            let mut changed = Constants::BUILT_IN;
            constant.set(&mut changed, 0.75);
            assert_eq!((constant.of(&changed), changed == Constants::BUILT_IN), (0.75, false), "{name}");
        }
    }

    #[test]
    fn docs_tuning_md_has_the_same_table() {
        let page = include_str!("../../docs/tuning.md");
        for constant in TABLE {
            let row = format!("| `{}` | {} |", constant.name, constant.of(&Constants::BUILT_IN));
            assert!(page.contains(&row), "docs/tuning.md has no row {row}");
        }
    }

    #[test]
    fn names_end_in_their_units() {
        let unit = |name: &str| Constant::named(name).unwrap().unit();
        assert_eq!((unit("overhead_us"), unit("byte_cpu_ns"), unit("least_segment_bytes")), ("µs", "ns", "bytes"));
        assert_eq!(unit("near_ranks"), "");
        let meant = |name: &str| Constant::in_another_unit(name).map(|constant| constant.name);
        assert_eq!((meant("overhead_ms"), meant("overhead")), (Some("overhead_us"), Some("overhead_us")));
        assert_eq!((meant("near_ranks_us"), meant("overhead_us"), meant("near")), (Some("near_ranks"), None, None));
    }
}

//! Every constant of the cost model that was measured somewhere else, fitted, or assumed: in one table. A tuning file may say
//! other values by name (docs/tuning.md). What a formula derives from its schedule, such as how many messages a rank sends, stands
//! with the formula in the algorithm's file.

use std::ops::RangeInclusive;

use crate::schedule::cost::Link;

/// One line of the table.
#[derive(Debug)]
pub struct Constant {
    /// In a tuning file. It ends in the unit: `_us`, `_ns` or `_bytes`; a name without one is a plain number.
    pub name: &'static str,
    /// What values make sense.
    pub range: RangeInclusive<f64>,
    /// Where the built-in value comes from.
    pub source: &'static str,
    field: fn(&mut Constants) -> &mut f64,
}

/// Units by the ends of names.
const UNITS: [(&str, &str); 3] = [("_us", "µs"), ("_ns", "ns"), ("_bytes", "bytes")];
/// What people might write instead.
const OTHER_ENDS: [&str; 6] = ["_s", "_ms", "_ps", "_kib", "_mib", "_gib"];

impl Constant {
    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|constant| constant.name == name)
    }

    /// The one that differs from `name` by its unit alone.
    pub fn in_another_unit(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|constant| constant.name != name && stem(constant.name) == stem(name))
    }

    /// What it is counted in; nothing for plain numbers.
    pub fn unit(&self) -> &'static str {
        UNITS.iter().find(|(end, _)| self.name.ends_with(end)).map_or("", |(_, unit)| unit)
    }

    /// Its value among these.
    pub fn of(&self, constants: &Constants) -> f64 {
        *(self.field)(&mut { *constants })
    }

    /// Changes it among these.
    pub fn set(&self, constants: &mut Constants, value: f64) {
        *(self.field)(constants) = value;
    }
}

fn stem(name: &str) -> &str {
    let ends = UNITS.iter().map(|(end, _)| *end).chain(OTHER_ENDS);
    ends.filter_map(|end| name.strip_suffix(end)).next().unwrap_or(name)
}

macro_rules! table {
    ($($(#[doc = $what:literal])+ $name:ident = $value:literal in $range:expr, $source:literal;)+) => {
        /// The values that prices go by.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Constants {
            /// Between two ranks of one host. TCP over loopback, measured on a virtual machine of two cores.
            pub local: Link,
            /// Between hosts. Ethernet of 10 Gbit/s, assumed.
            pub remote: Link,
            /// γ: seconds to reduce a byte. Floats in cache, measured with AVX2.
            pub gamma: f64,
            $($(#[doc = $what])+ pub $name: f64,)+
        }

        impl Constants {
            /// Where nothing was measured, and no file says anything else.
            pub const BUILT_IN: Self = Self {
                local: Link { latency: 6e-6, bandwidth: 4e9 },
                remote: Link { latency: 20e-6, bandwidth: 1.2e9 },
                gamma: 5e-11,
                $($name: $value,)+
            };
        }

        /// The constants that have a name in a tuning file of their own; `local`, `remote` and `gamma` are keys there, too.
        pub const TABLE: &[Constant] = &[$(Constant {
            name: stringify!($name),
            range: $range,
            source: $source,
            field: |constants| &mut constants.$name,
        }),+];
    };
}

const MOST: f64 = 1e9;

table! {
    /// o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman 1995): how long a rank is busy with each message that it sends to
    /// another host, and with each that it receives from there. It is part of the latency.
    overhead_us = 2.0 in 0.0..=MOST, "measured when ranks connect; built in is half of message_cpu_us";
    /// g of LogGP: least time from one message to the next that a rank sends to other hosts, or receives from there.
    gap_us = 0.1 in 0.0..=MOST, "assumed: the shortest frame that holds a message, on Ethernet of 10 Gbit/s";
    /// How long a core is busy with a message, on both sides together.
    message_cpu_us = 4.0 in 0.0..=MOST, "fitted to collectives over TCP on one host, 2 to 8 ranks on 2 cores";
    /// The same with each byte of it.
    byte_cpu_ns = 0.2 in 0.0..=MOST, "fitted to collectives over TCP on one host, 2 to 8 ranks on 2 cores";
    /// For what part of the others that share its core a rank waits that could go on.
    core_waiting = 0.5 in 0.0..=1.0, "assumed: half of them on average";
    /// On one host: what part of a message's time counts at a root for each but one of the messages that come to it at once.
    root_turn = 0.5 in 0.0..=1.0, "assumed: half of a link's time is work at either end; agrees with measurements of 2 to 8 ranks";
    /// `tree`: so many latencies of its largest messages are not gained by those down being under way with those up.
    tree_turn_latencies = 3.0 in 0.0..=1e3, "fitted to the simulator, 4 to 1024 ranks";
    /// `double_binary_tree`, broadcast: messages of both trees that meet, in segments.
    double_binary_tree_down_meeting = 0.55 in 0.0..=1e3, "fitted to the simulator, 8 to 4096 ranks";
    /// `double_binary_tree`, allreduce: the same.
    double_binary_tree_both_meeting = 0.5 in 0.0..=1e3, "fitted to the simulator, 16 to 4096 ranks";
    /// `double_binary_tree`, reduce: by how much reductions, in parts of a link's time, make further ones wait.
    double_binary_tree_up_waiting = 3.0 in 0.0..=1e3, "fitted to the simulator, 4 to 4096 ranks";
    /// `double_binary_tree`, reduce: reductions that are under way together in trees of an even height.
    double_binary_tree_even_saved = 0.5 in 0.0..=1e3, "fitted to the simulator, 16 to 4096 ranks";
    /// The same in trees of an odd height.
    double_binary_tree_odd_saved = 1.0 in 0.0..=1e3, "fitted to the simulator, 32 to 2048 ranks";
    /// `double_binary_tree`, allreduce between hosts: how often levels beyond the second wait for what leaves do for messages.
    double_binary_tree_both_waiting = 2.0 in 0.0..=1e3, "fitted to the simulator, 4 to 16 ranks";
    /// `torus_2d` and `torus_nd` between hosts, messages cut: how much longer the path is than without a dimension of columns.
    torus_cut = 0.9 in 0.0..=1e3, "fitted to the simulator, 4 to 64 ranks";
    /// The same for each dimension of columns.
    torus_cut_each = 0.2 in 0.0..=1e3, "fitted to the simulator, 4 to 64 ranks";
    /// `mesh_2d` on one host: what part of a reduction beyond a message's time on its link holds up others.
    mesh_meeting = 0.25 in 0.0..=1.0, "fitted to the simulator, 4 to 64 ranks";
    /// The smallest segments that are priced.
    least_segment_bytes = 32768.0 in 1.0..=1e18, "assumed: a shorter message takes a core as long as its bytes";
    /// Messages that all candidates of one decision together may have to be simulated.
    simulated_messages = 20000.0 in 0.0..=MOST, "measured: they take some ten milliseconds";
    /// Bytes that the schedules of a simulated candidate may take.
    simulated_memory_bytes = 67108864.0 in 0.0..=1e18, "assumed: what a program spares for a moment";
    /// A tuning file's choices count for numbers of ranks that are up to so many times more, or fewer.
    near_ranks = 2.0 in 1.0..=MOST, "assumed";
    /// How long a waiting thread polls before it sleeps, where every rank of its host has a core.
    spin_us = 200.0 in 0.0..=MOST, "assumed: several times a round trip over loopback";
    /// Likewise, where ranks share cores. It offers its core after every look, and what comes soon costs no wake-up: four ranks
    /// on two cores exchange 4 bytes in 40 µs so, and in 90 if each sleeps at once. With 200 µs eight ranks get in each other's
    /// way.
    spin_shared_us = 50.0 in 0.0..=MOST, "measured with four and eight ranks on two cores";
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
    fn the_page_on_tuning_has_the_same_table() {
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

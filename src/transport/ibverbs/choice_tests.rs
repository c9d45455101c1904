use proptest::prelude::*;

use super::super::port::{State, tests::port};
use super::*;
use LinkLayer::{Ethernet, InfiniBand};

/// Eight cards of InfiniBand on two nodes, and a slower one of RoCE for the management of the host.
fn training_host() -> Listing {
    let mut ports: Vec<_> = (0..8)
        .map(|card| Port { speed: 400_000, numa_node: Some(card / 4), ..port(&format!("mlx5_{card}"), 1, InfiniBand) })
        .collect();
    ports.push(Port { speed: 25_000, ..port("mlx5_bond_0", 1, Ethernet) });
    Listing { ports, broken: Vec::new() }
}

fn on_node(node: u32) -> Nearness {
    Nearness::on(node, &[(node, 10), (1 - node, 21)])
}

fn names_of(listing: &Listing, options: &Options, near: &Nearness) -> Result<Vec<String>> {
    select(listing, options, near).map(|chosen| chosen.into_iter().map(|at| listing.ports[at].name()).collect())
}

fn hca(list: &str) -> Options {
    Options { hca: Some(list.into()), ..Options::default() }
}

#[test]
fn the_nearest_cards_with_the_highest_speed_are_taken() {
    let host = training_host();
    let chosen = |node| names_of(&host, &Options::default(), &on_node(node)).unwrap();
    assert_eq!(chosen(0), ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"]);
    assert_eq!(chosen(1), ["mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_7:1"]);
    let unknown = names_of(&host, &Options::default(), &Nearness::default()).unwrap();
    assert_eq!(unknown, ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"], "at most four");
}

#[test]
fn ports_that_are_down_are_not_taken() {
    let mut host = training_host();
    for card in [0, 2, 3] {
        host.ports[card].state = State::Down;
    }
    assert_eq!(names_of(&host, &Options::default(), &on_node(0)).unwrap(), ["mlx5_1:1"]);
    host.ports[1].state = State::Initializing;
    let far = names_of(&host, &Options::default(), &on_node(0)).unwrap();
    assert_eq!(far, ["mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_7:1"], "a far card is faster than a slow one nearby");
    host.ports[..8].iter_mut().for_each(|port| port.state = State::Down);
    assert_eq!(names_of(&host, &Options::default(), &on_node(1)).unwrap(), ["mlx5_bond_0:1"]);
}

#[test]
fn kinds_are_not_mixed_unless_named() {
    let mut host = training_host();
    host.ports[8].speed = 400_000;
    let chosen = names_of(&host, &Options::default(), &Nearness::default()).unwrap();
    assert!(chosen.iter().all(|name| name != "mlx5_bond_0:1"), "{chosen:?}");
    host.ports.rotate_right(1);
    host.ports[0].speed = 800_000;
    assert_eq!(names_of(&host, &Options::default(), &on_node(1)).unwrap(), ["mlx5_bond_0:1"]);
    let mixed = names_of(&host, &hca("mlx5_bond_0,mlx5_3"), &on_node(1)).unwrap();
    assert_eq!(mixed, ["mlx5_bond_0:1", "mlx5_3:1"]);
}

#[test]
fn named_ports_are_taken_in_the_order_of_their_names() {
    let host = training_host();
    let chosen = |list: &str| names_of(&host, &hca(list), &on_node(0)).unwrap();
    assert_eq!(chosen("mlx5_6:1,mlx5_1"), ["mlx5_6:1", "mlx5_1:1"]);
    assert_eq!(chosen("mlx5_6,mlx5_6,mlx5_6:1"), ["mlx5_6:1"]);
    assert_eq!(
        chosen("mlx5"),
        names_of(&host, &Options::default(), &on_node(0)).unwrap(),
        "of nine, as if none were named"
    );
    assert_eq!(
        chosen("mlx5_7,mlx5_6,mlx5_1,mlx5_0,mlx5_2"),
        ["mlx5_1:1", "mlx5_0:1", "mlx5_2:1"],
        "the nearest of five"
    );
    assert_eq!(chosen("^mlx5_0,mlx5_2:1"), ["mlx5_1:1", "mlx5_3:1"]);
    assert_eq!(chosen("^mlx5_0,mlx5_1,mlx5_2,mlx5_3"), ["mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_7:1"]);
}

#[test]
fn a_name_for_both_ports_of_a_card_stands_for_the_active_ones() {
    let mut listing =
        Listing { ports: vec![port("mlx4_0", 1, InfiniBand), port("mlx4_0", 2, Ethernet)], ..Listing::default() };
    let chosen = |listing: &Listing, list: &str, port| {
        names_of(listing, &Options { port, ..hca(list) }, &Nearness::default())
            .map_err(|error| error.message().to_owned())
    };
    assert_eq!(chosen(&listing, "mlx4_0", None).unwrap(), ["mlx4_0:1", "mlx4_0:2"]);
    assert_eq!(chosen(&listing, "mlx4_0", Some(2)).unwrap(), ["mlx4_0:2"]);
    listing.ports[1].state = State::Down;
    assert_eq!(chosen(&listing, "mlx4_0", None).unwrap(), ["mlx4_0:1"]);
    let down = "mlx4_0:2 cannot be used: mlx4_0:2 (RoCE): its state is down";
    assert_eq!(chosen(&listing, "mlx4_0:2", None).unwrap_err(), down);
    let missing = "no port of this host is called mlx4_0 with port 3; it has mlx4_0:1, mlx4_0:2";
    assert_eq!(chosen(&listing, "mlx4_0", Some(3)).unwrap_err(), missing);
    let automatic = Options { port: Some(1), ..Options::default() };
    assert_eq!(names_of(&listing, &automatic, &Nearness::default()).unwrap(), ["mlx4_0:1"]);
}

#[test]
fn errors_say_what_was_found() {
    let mut host = Listing {
        ports: vec![port("mlx5_0", 1, Ethernet), port("rxe0", 1, Ethernet)],
        broken: vec![("mlx5_1".into(), "Permission denied (os error 13)".into())],
    };
    let error = |host: &Listing, options: &Options| names_of(host, options, &Nearness::default()).unwrap_err();
    let missing = error(&host, &hca("=mlx5"));
    let text =
        "no port of this host is called =mlx5; it has mlx5_0:1, rxe0:1, mlx5_1 (Permission denied (os error 13))";
    assert_eq!((missing.kind(), missing.message()), (ErrorKind::InvalidArgument, text));
    let excluded = error(&host, &hca("^mlx5,rxe"));
    assert!(excluded.message().starts_with("the options allow none of this host's ports: mlx5_0:1"), "{excluded}");
    host.ports.iter_mut().for_each(|port| port.state = State::Down);
    let down = error(&host, &Options::default());
    let text = "no InfiniBand or RoCE port of this host can be used: mlx5_0:1 (RoCE): its state is down; rxe0:1 (RoCE): its state is \
                down; mlx5_1: Permission denied (os error 13)";
    assert_eq!((down.kind(), down.message()), (ErrorKind::Io, text));
}

proptest! {
    /// On any machine the choice is of one kind and speed, active, nothing nearer is left out, and there are at most
    /// four.
    #[test]
    fn any_machine(
        cards in prop::collection::vec((0u32..3, 0usize..3, any::<bool>(), any::<bool>()), 0..12),
        node in 0u32..2,
    ) {
        let one = |(at, (numa, speed, active, infiniband)): (usize, &(u32, usize, bool, bool))| Port {
            numa_node: Some(*numa).filter(|numa| *numa < 2),
            speed: [25_000, 100_000, 400_000][*speed],
            state: if *active { State::Active } else { State::Down },
            ..port(&format!("mlx5_{at}"), 1, if *infiniband { InfiniBand } else { Ethernet })
        };
        let listing = Listing { ports: cards.iter().enumerate().map(one).collect(), broken: Vec::new() };
        let near = on_node(node);
        let active: Vec<_> = listing.ports.iter().filter(|port| port.state == State::Active).collect();
        match select(&listing, &Options::default(), &near) {
            Err(_) => prop_assert!(active.is_empty()),
            Ok(chosen) => {
                prop_assert!((1..=4).contains(&chosen.len()));
                let ports: Vec<_> = chosen.iter().map(|&at| &listing.ports[at]).collect();
                let first = ports[0];
                let kind = |port: &Port| (port.speed, port.link_layer);
                prop_assert!(ports.iter().all(|port| kind(port) == kind(first) && port.state == State::Active));
                prop_assert!(active.iter().all(|port| port.speed <= first.speed));
                let distance = |port: &Port| near.distance(port.numa_node);
                let nearer = active.iter().filter(|port| kind(port) == kind(first) && distance(port) < distance(first));
                prop_assert_eq!(nearer.count(), 0);
            }
        }
    }
}

use super::super::sysfs::GpuAccess;
use super::*;

/// A port of an invented machine: active, with GIDs as a card with one IPv4 address has them.
pub fn port(device: &str, number: u8, layer: LinkLayer) -> Port {
    let gids = match layer {
        LinkLayer::InfiniBand => vec![gid(0, "fe80::b8:59f:3:1", GidType::InfiniBand)],
        LinkLayer::Ethernet => vec![
            gid(0, "fe80::1", GidType::RoceV1),
            gid(1, "fe80::1", GidType::RoceV2),
            gid(2, "::ffff:10.0.0.1", GidType::RoceV1),
            gid(3, "::ffff:10.0.0.1", GidType::RoceV2),
        ],
    };
    Port {
        device: device.into(),
        number,
        state: State::Active,
        link_layer: layer,
        lid: if layer == LinkLayer::InfiniBand { 7 } else { 0 },
        mtu: 5,
        speed: 100_000,
        max_message: 1 << 30,
        limits: Limits { requests: 32768, completions: 4 << 20, reads: [16, 16] },
        gids,
        pci: None,
        numa_node: Some(0),
        gpu_direct: GpuDirect { by: GpuAccess::Nothing, why: String::new() },
        unusable: None,
    }
}

fn gid(index: u8, address: &str, kind: GidType) -> Gid {
    Gid { index, address: address.parse().unwrap(), kind, interface: None }
}

fn with(layer: LinkLayer, gids: &[Gid]) -> Port {
    Port { gids: gids.to_vec(), ..port("mlx5_0", 1, layer) }
}

#[test]
fn the_best_gid_of_roce_is_an_ipv4_address_of_version_2() {
    use GidType::{RoceV1, RoceV2};
    // Each one is taken until the next is added.
    let worst_first = [
        gid(0, "fe80::1", RoceV1),
        gid(4, "fd00::1", RoceV1),
        gid(8, "::ffff:10.0.0.1", RoceV1),
        gid(5, "fe80::1", RoceV2),
        gid(1, "fd00::1", RoceV2),
        gid(9, "::ffff:10.0.0.1", RoceV2),
    ];
    for count in 1..=worst_first.len() {
        let port = with(LinkLayer::Ethernet, &worst_first[..count]);
        assert_eq!(port.gid(None).unwrap(), &worst_first[count - 1]);
    }
    let link_local = [gid(3, "::ffff:169.254.7.7", RoceV2), gid(5, "fd00::1", RoceV2)];
    assert_eq!(with(LinkLayer::Ethernet, &link_local).gid(None).unwrap().index, 5);
    let two = [gid(5, "::ffff:10.0.1.1", RoceV2), gid(3, "::ffff:10.0.0.1", RoceV2)];
    assert_eq!(with(LinkLayer::Ethernet, &two).gid(None).unwrap().index, 3);
}

#[test]
fn infiniband_takes_the_first_gid_unless_an_index_is_given() {
    let gids = [gid(0, "fe80::2", GidType::InfiniBand), gid(1, "fec0::2", GidType::InfiniBand)];
    let port = with(LinkLayer::InfiniBand, &gids);
    assert_eq!((port.gid(None).unwrap().index, port.gid(Some(1)).unwrap().index), (0, 1));
}

#[test]
fn an_index_that_cannot_work_is_refused_with_the_table() {
    let roce = port("mlx5_1", 2, LinkLayer::Ethernet);
    assert_eq!(roce.gid(Some(0)).unwrap().kind, GidType::RoceV1, "named, so it is taken");
    let error = roce.gid(Some(7)).unwrap_err();
    let expected = "the GID with index 7 of mlx5_1:2 is empty; it has 0: fe80::1 (RoCE v1), 1: fe80::1 (RoCE v2), 2: \
                    ::ffff:10.0.0.1 (RoCE v1), 3: ::ffff:10.0.0.1 (RoCE v2)";
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, expected));
    let mixed = with(LinkLayer::Ethernet, &[gid(0, "fe80::2", GidType::InfiniBand)]);
    let message = mixed.gid(Some(0)).unwrap_err().message().to_owned();
    assert!(message.contains("index 0 of mlx5_0:1 is IB, which does not work with RoCE"), "{message}");
    assert_eq!(mixed.gid(None).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(with(LinkLayer::Ethernet, &[]).gid(Some(0)).unwrap_err().message().ends_with("is empty; it has none"));
}

#[test]
fn faults_of_ports() {
    let good = port("mlx5_0", 1, LinkLayer::InfiniBand);
    assert_eq!(good.fault(), None);
    let fault = |port: Port| port.fault().unwrap();
    assert_eq!(fault(Port { state: State::Down, ..good.clone() }), "its state is down");
    let configured = "its state is initializing: no subnet manager has configured it";
    assert_eq!(fault(Port { state: State::Initializing, ..good.clone() }), configured);
    assert_eq!(fault(Port { gids: Vec::new(), ..good.clone() }), "it has no GID");
    assert_eq!(fault(Port { unusable: Some("it is an iWARP device".into()), ..good }), "it is an iWARP device");
}

#[test]
fn speeds_by_their_usual_names() {
    let names = [((2, 4), 40_000), ((2, 16), 56_000), ((2, 32), 100_000), ((2, 64), 200_000), ((2, 128), 400_000)];
    for ((width, lane), expected) in names {
        assert_eq!(speed(width, lane), expected);
    }
    assert_eq!((speed(1, 1), speed(16, 32), speed(8, 1)), (2_500, 50_000, 30_000));
    assert_eq!((speed(0, 32), speed(2, 0), speed(255, 255)), (0, 0, 0));
    assert_eq!(port("mlx5_0", 1, LinkLayer::InfiniBand).mtu_bytes(), 4096);
}

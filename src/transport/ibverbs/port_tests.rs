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

#[test]
fn names_are_ordered_by_their_numbers() {
    let mut names = ["rxe0", "mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_0"];
    names.sort_by_key(|name| natural(name));
    assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0", "rxe0"]);
}

/// A `/sys` with one card and one device in software.
fn system(release: &str, modules: &[&str]) -> (tempfile::TempDir, System) {
    let folder = tempfile::tempdir().unwrap();
    let sys = folder.path().to_owned();
    let write = |path: &str, text: &str| {
        let path = sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    let card = "devices/pci0000:3a/0000:3b:00.0";
    write(&format!("{card}/numa_node"), "1");
    write("bus/pci/drivers/mlx5_core/uevent", "");
    std::os::unix::fs::symlink(sys.join("bus/pci/drivers/mlx5_core"), sys.join(card).join("driver")).unwrap();
    for (name, kind) in [("mlx5_0", "1: CA"), ("rxe0", "1: CA"), ("siw0", "4: RNIC"), ("efa_0", "7: Unspecified")] {
        write(&format!("class/infiniband/{name}/node_type"), kind);
    }
    std::os::unix::fs::symlink(sys.join(card), sys.join("class/infiniband/mlx5_0/device")).unwrap();
    write("class/infiniband/mlx5_0/ports/1/rate", "800 Gb/sec (4X XDR)");
    write("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "eth2");
    modules.iter().for_each(|module| write(&format!("module/{module}/refcnt"), "0"));
    (folder, System { sys, release: release.into() })
}

#[test]
fn what_the_system_says_of_a_card() {
    let (_folder, system) = system("6.1.0-18-amd64", &[]);
    let (pci, node) = (|name| system.pci(name).unwrap(), |name| system.numa_node(name).unwrap());
    assert_eq!((pci("mlx5_0").as_deref(), node("mlx5_0")), (Some("0000:3b:00.0"), Some(1)));
    assert_eq!((pci("rxe0"), node("rxe0")), (None, None));
    let rate = |port| system.rate("mlx5_0", port).unwrap();
    assert_eq!((rate(1), rate(2)), (800_000, 0));
    assert_eq!(system.gid_interface("mlx5_0", 1, 3).unwrap().as_deref(), Some("eth2"));
    let unusable = |name| system.unusable(name).unwrap();
    assert_eq!((unusable("mlx5_0"), unusable("nowhere")), (None, None));
    assert!(unusable("siw0").unwrap().contains("iWARP") && unusable("efa_0").is_some());
    assert_eq!(system.names(), ["efa_0", "mlx5_0", "rxe0", "siw0"]);
    // A lack of descriptors is an error, and not taken for a device of which the system says nothing.
    assert!(crate::sys::without_descriptors(|| {
        system.numa_node("mlx5_0").is_err() && system.rate("mlx5_0", 1).is_err() && system.unusable("siw0").is_err()
    }));
}

#[test]
fn access_to_gpus_and_how_it_is_known() {
    let access = |release: &str, modules: &[&str], device: &str| {
        let (_folder, system) = system(release, modules);
        let GpuDirect { by, why } = system.gpu_direct(device).unwrap();
        (by, why)
    };
    let (by, why) = access("5.10.0", &["nvidia", "nvidia_peermem"], "mlx5_0");
    assert_eq!((by, why.as_str()), (GpuAccess::PeerMemory, "the module nvidia_peermem is loaded"));
    let (by, why) = access("6.1.0-18-amd64", &["nvidia"], "mlx5_0");
    assert!(
        by == GpuAccess::DmaBuf && why.contains("mlx5_core registers dma-bufs") && why.contains("not tried"),
        "{why}"
    );
    let (by, why) = access("5.10.0", &["nvidia"], "mlx5_0");
    assert!(by == GpuAccess::Nothing && why.contains("older than 5.12"), "{why}");
    assert_eq!(access("6.1.0", &["nvidia"], "rxe0").1, "neither nvidia_peermem nor nv_peer_mem is loaded");
    assert_eq!(access("6.1.0", &[], "mlx5_0").1, "no driver of a GPU is loaded");
}

#[test]
fn a_host_without_devices_says_what_is_missing() {
    let (_folder, there) = system("6.1.0", &[]);
    let message = there.no_device().message().to_owned();
    assert!(
        message.starts_with("this host has efa_0, mlx5_0, rxe0, siw0, but libibverbs finds no driver"),
        "{message}"
    );
    let none = System { sys: PathBuf::from("/nowhere"), release: String::new() };
    assert!(none.no_device().message().contains("no InfiniBand or RoCE device"));
    let no_list = none.no_list(&std::io::Error::from_raw_os_error(libc::ENOSYS));
    assert!(no_list.kind() == ErrorKind::Unsupported && no_list.message().contains("modprobe"), "{no_list}");
    let forbidden = none.no_list(&std::io::Error::from_raw_os_error(libc::EPERM));
    assert!(forbidden.kind() == ErrorKind::Io && forbidden.message().contains("not permitted"), "{forbidden}");
}

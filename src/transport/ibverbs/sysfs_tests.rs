use super::*;

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

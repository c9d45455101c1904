//! Tests of `gloo-rs info` and `list` as processes.

use std::process::Output;

use crate::launcher::{gloo_rs, text};
use crate::netns::{Network, ran_as_root_elsewhere};
use gloo_rs::collective::Collective;
use gloo_rs::types::DataType;
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    gloo_rs(args).output().unwrap()
}

#[test]
fn info_describes_this_host() {
    let output = run(&["info", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(info["kernels"], gloo_rs::reduce::cpu_features());
    let interfaces = info["interfaces"].as_array().unwrap();
    let loopback = interfaces.iter().find(|i| i["address"] == "127.0.0.1").expect("a loopback address");
    assert_eq!((&loopback["loopback"], &loopback["up"]), (&true.into(), &true.into()));
    assert_eq!(
        (&info["one_host"][0]["address"], &info["one_host"][0]["interface"]),
        (&"127.0.0.1".into(), &loopback["interface"])
    );
    let several = &info["several_hosts"][0];
    assert!(interfaces.iter().any(|i| i["address"] == several["address"]) && several["why"].is_string(), "{info}");

    let verbs = info["transports"].as_array().unwrap().iter().find(|transport| transport["name"] == "ibverbs").unwrap();
    assert!(info["ibverbs"].is_array() && (verbs["absent"].is_null() || verbs["absent"].is_string()), "{info}");
    let said = text(&run(&["info"]).stdout);
    let line = format!("several     {} on ", several["address"].as_str().unwrap());
    assert!(said.contains("one host    127.0.0.1 on lo: all ranks are on this host") && said.contains(&line), "{said}");
}

#[test]
fn info_shows_where_a_rank_would_listen_for_a_list_and_a_store() {
    let said = text(&run(&["info", "--interface", "127.0.0.0/8"]).stdout);
    let listens = "127.0.0.1 on lo: the device's interfaces are \"127.0.0.0/8\"";
    assert!(
        said.contains(&format!("one host    {listens}")) && said.contains(&format!("several     {listens}")),
        "{said}"
    );
    let excluded = run(&["info", "--interface", "^*"]);
    assert!(
        text(&excluded.stderr).contains("excludes all") && excluded.status.code() == Some(1),
        "{}",
        text(&excluded.stderr)
    );
    let output = run(&["info", "--store", "tcp://nowhere"]);
    assert!(text(&output.stderr).contains("\"tcp://nowhere\" is not a store URL"), "{}", text(&output.stderr));
    // The route to a store on this host does not show how other hosts are reached.
    let said = text(&run(&["info", "--store", "tcp://127.0.0.1:9"]).stdout);
    assert!(!said.contains("reaches the store") && said.contains("several     "), "{said}");
}

#[test]
fn info_tells_which_card_reaches_a_store_on_another_host() {
    if ran_as_root_elsewhere("info::info_tells_which_card_reaches_a_store_on_another_host") {
        return;
    }
    let mut network = Network::new();
    let host = network.host(&[("eth0", &["10.77.0.2/24"]), ("ib0", &["10.88.0.2/24", "fd88::2/64"])]);
    let info = |options: &[&str]| {
        let output = host
            .command(env!("CARGO_BIN_EXE_gloo-rs"))
            .arg("info")
            .args(options)
            .env_remove("GLOO_RS_SOCKET_IFNAME")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let ways = [
        ("10.77.0.1:6379", "10.77.0.2 on eth0: it reaches the store at 10.77.0.1"),
        ("10.88.0.1:6379", "10.88.0.2 on ib0: it reaches the store at 10.88.0.1"),
        ("[fd88::1]:6379", "fd88::2 on ib0: it reaches the store at fd88::1"),
    ];
    for (scheme, (place, way)) in ["tcp", "redis", "rediss"].iter().flat_map(|scheme| ways.map(|way| (scheme, way))) {
        let text = info(&["--store", &format!("{scheme}://{place}")]);
        assert!(text.contains(&format!("several     {way}\n")), "{scheme}://{place}: {text}");
    }
    let text = info(&["--store", "tcp://10.77.0.1:6379", "--interface", "^eth*"]);
    assert!(text.contains("several     10.88.0.2 on ib0: "), "{text}");
}

#[test]
fn list_shows_collectives_types_and_operations() {
    let output = run(&["list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let allreduce = &list["collectives"][0];
    assert_eq!(allreduce["name"], "allreduce");
    let names: Vec<_> = Collective::Allreduce.algorithms().iter().map(|algorithm| algorithm.name).collect();
    assert_eq!(allreduce["algorithms"], Value::from(names));
    assert_eq!(list["collectives"].as_array().unwrap().len(), Collective::ALL.len());
    assert_eq!(list["dtypes"].as_array().unwrap().len(), DataType::ALL.len());
    assert!(list["ops"][2]["dtypes"].as_array().unwrap().iter().all(|dtype| dtype != "complex64"));
    for op in list["ops"].as_array().unwrap() {
        let mut expected = vec!["allreduce", "reduce", "reduce_scatter", "scan", "exscan"];
        expected.truncate(if op["name"] == "average" { 3 } else { 5 });
        assert_eq!(op["collectives"], Value::from(expected), "{op}");
    }

    let said = text(&run(&["list"]).stdout);
    assert!(Collective::ALL.iter().all(|collective| said.contains(collective.name())), "{said}");
    assert!(said.contains("\naverage            bool, scan, exscan\n"), "{said}");
}

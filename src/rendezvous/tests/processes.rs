//! Stores shared by several processes.

use std::time::Duration;

use super::super::{Store, TcpStore, url};
use super::{LONG, finish, role, spawn_self};

const PROCESSES: usize = 4;

/// The operations of each process; `process` is its number.
fn work(store: &dyn Store, process: usize) {
    for i in 0..100 {
        store.add("sum", i).unwrap();
        store.append("log", format!("{process}:{i:02};").as_bytes()).unwrap();
        // Every process overwrites this key; no reader may see a partial value.
        store.set("contested", format!("{process}").repeat(5000).as_bytes()).unwrap();
        let value = store.get("contested", Duration::ZERO).unwrap();
        assert!(value.len() == 5000 && value.iter().all(|byte| *byte == value[0]), "a torn value");
    }
    let names: Vec<String> = (0..PROCESSES).map(|i| format!("done/{i}")).collect();
    store.set(&names[process], process.to_string().as_bytes()).unwrap();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let values = store.multi_get(&keys, LONG).unwrap();
    assert!((0..PROCESSES).all(|i| values[i] == i.to_string().as_bytes()));
    // No process leaves before all have read.
    store.add("left", 1).unwrap();
}

/// Runs the part of a helper process, which runs the same test with `number url` as its role. Returns whether this is
/// one.
fn worked_in_this_role() -> bool {
    let Some(role) = role() else { return false };
    let (process, store) = role.split_once(' ').unwrap();
    let process: usize = process.parse().unwrap();
    work(&*url::open(store, process + 1, LONG).unwrap(), process);
    true
}

fn share(test: &str, store: &dyn Store, url: &str) {
    let helpers: Vec<_> = (0..PROCESSES).map(|process| spawn_self(test, &format!("{process} {url}"))).collect();
    helpers.into_iter().for_each(finish);
    assert_eq!(store.add("sum", 0).unwrap(), (PROCESSES * 4950) as i64);
    assert_eq!(store.add("left", 0).unwrap(), PROCESSES as i64);
    let log = String::from_utf8(store.get("log", Duration::ZERO).unwrap()).unwrap();
    for process in 0..PROCESSES {
        let mine: Vec<&str> =
            log.split_terminator(';').filter_map(|s| s.strip_prefix(&format!("{process}:"))).collect();
        assert_eq!(mine, (0..100).map(|i| format!("{i:02}")).collect::<Vec<_>>());
    }
}

#[test]
fn processes_share_a_file_store() {
    if worked_in_this_role() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    share("rendezvous::tests::processes::processes_share_a_file_store", &*url::open(&url, 0, LONG).unwrap(), &url);
}

#[test]
fn processes_share_a_tcp_store() {
    if worked_in_this_role() {
        return;
    }
    let store = TcpStore::serve("127.0.0.1", 0).unwrap();
    share("rendezvous::tests::processes::processes_share_a_tcp_store", &store, &store.describe());
}

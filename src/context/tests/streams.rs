//! How many connections the links of a context have.

use super::agreement::{connected_on, file};
use super::split::sum;
use super::*;

/// Two ranks whose devices want so many connections, and whose tuning is rank 0's file with this line; the number that
/// they have.
fn connections(streams: [Option<u32>; 2], line: &str) -> u64 {
    let (_file, path) =
        file(&format!("version = 1\nlocal = {{ latency_us = 5, bandwidth = 1e9 }}\ngamma = 1e-10\n{line}"));
    let devices = streams.map(|streams| {
        let (hostname, shared_memory) = (Some("127.0.0.1".into()), Some(false));
        Device::create(&DeviceOptions { hostname, shared_memory, streams, ..Default::default() }).unwrap()
    });
    let next = std::sync::Mutex::new(devices.to_vec());
    let tuned = ContextOptions { timeout: Duration::from_secs(60), tuning: Some(path), ..Default::default() };
    let contexts = connected_on(&|| next.lock().unwrap().pop().unwrap(), &[tuned.clone(), tuned]);
    let contexts: Vec<_> = contexts.into_iter().map(Result::unwrap).collect();
    // One rank connects, since of two connections made at once one is given up.
    contexts[0].lock().unwrap().messenger.connect(1);
    let connected = |context: &Arc<Context>| context.lock().unwrap().messenger.has_been_connected(0).unwrap();
    let begun = std::time::Instant::now();
    while !connected(&contexts[1]) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        for context in &contexts {
            context.lock().unwrap().progress();
        }
    }
    run(&contexts, |context| assert_eq!(sum(context, 1 + context.rank() as u64, 0), 3));
    devices.iter().map(|device| device.statistics().accepted).sum()
}

#[test]
fn the_tuner_says_how_many_connections_links_have_unless_a_device_does() {
    assert_eq!(connections([None; 2], ""), 1);
    assert_eq!(connections([None; 2], "constants = { streams = 3 }"), 3);
    // The lower number of the two.
    assert_eq!(connections([Some(2), None], "constants = { streams = 3 }"), 2);
    assert_eq!(connections([Some(5), Some(4)], "constants = { streams = 3 }"), 4);
    assert_eq!(connections([Some(5), None], ""), 1);
}

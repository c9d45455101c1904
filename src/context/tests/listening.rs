//! At which addresses contexts listen, and which of a peer's addresses they use.

use std::net::SocketAddr;

use super::*;
use crate::net::address::Address;
use crate::net::closed;
use crate::rendezvous::in_process::InProcessStore;
use crate::version::Version;

/// A device without a given address listens when the ranks' hosts are known.
#[test]
fn a_device_listens_on_loopback_once_all_ranks_turn_out_to_be_on_this_host() {
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (store, options) = (store.clone(), options.clone());
            scope.spawn(move || {
                let device = Device::create(&DeviceOptions::default()).unwrap();
                assert!(device.addresses().is_empty() && device.interface().is_none());
                let context = Context::new(device.clone(), rank, 3, &options).unwrap();
                context.connect(&*store).unwrap();
                let addresses = device.addresses();
                assert!(!addresses.is_empty() && addresses.iter().all(|a| a.ip().is_loopback()), "{addresses:?}");
                assert!(device.interface().is_some());
                // Another context of the same device uses the addresses that its parent determined.
                let child = Context::new(device.clone(), rank, 3, &options).unwrap();
                child.connect_from(&context, 7).unwrap();
                assert_eq!(device.addresses(), addresses);
                for other in 0..3 {
                    assert!(child.shares_host(other).unwrap());
                }
            });
        }
    });
}

/// It is an argument of the caller's, unlike what other ranks publish.
#[test]
fn what_is_no_address_of_a_pair_is_an_invalid_argument() {
    let contexts = group(2);
    let pair = contexts[0].pair(1).unwrap();
    let version = Version::OWN.encode();
    for bytes in [&[][..], &[0; 7], &[0; 100], &version, &[&version[..], &[7; 30]].concat()] {
        let error = pair.connect(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn a_pair_listens_when_its_address_is_asked_for() {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let device = Device::create(&DeviceOptions::default()).unwrap();
    // The device listens for another context already, but this peer's address is still unknown.
    let other = Context::new(device.clone(), 0, 1, &options).unwrap();
    other.connect(&*InProcessStore::new()).unwrap();
    let contexts: Vec<_> = (0..2).map(|rank| Context::new(device.clone(), rank, 2, &options).unwrap()).collect();
    assert!(contexts[0].lock().unwrap().messenger.connections().address().sockets.is_empty());
    let pairs = [contexts[0].pair(1).unwrap(), contexts[1].pair(0).unwrap()];
    let addresses = [pairs[0].address().unwrap(), pairs[1].address().unwrap()];
    assert_eq!(contexts[0].versions.publish(&contexts[0].lock().unwrap().messenger.address()), addresses[0]);
    assert!(!contexts[0].lock().unwrap().messenger.connections().address().sockets.is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| pairs[0].connect(&addresses[1]).unwrap());
        scope.spawn(|| pairs[1].connect(&addresses[0]).unwrap());
    });
}

/// Two contexts, and the second one's address.
fn two() -> (Vec<Arc<Context>>, Address) {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let contexts: Vec<_> = (0..2).map(|rank| Context::new(device(), rank, 2, &options).unwrap()).collect();
    let address = Address::deserialize(&contexts[1].lock().unwrap().messenger.address()).unwrap();
    (contexts, address)
}

#[test]
fn an_address_that_does_not_answer_is_followed_by_the_next() {
    // 192.0.2.1 belongs to no host, and there is no route to it from loopback.
    for useless in [closed(), SocketAddr::from(([192, 0, 2, 1], 9))] {
        let (contexts, mut address) = two();
        address.sockets.insert(0, useless);
        contexts[0].pair(1).unwrap().connect(&contexts[1].versions.publish(&address.serialize())).unwrap();
    }
}

#[test]
fn a_peer_is_gone_when_it_refuses_at_all_its_addresses() {
    let (contexts, mut address) = two();
    address.sockets = vec![closed(), closed()];
    let error = contexts[0].pair(1).unwrap().connect(&contexts[1].versions.publish(&address.serialize())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    assert!(error.message().contains("rank 1 at 127.0.0.1:") && error.message().contains("is gone"), "{error}");
    // An address that cannot be reached for another reason may still be valid.
    let (contexts, mut address) = two();
    address.sockets = vec![closed(), SocketAddr::from(([192, 0, 2, 1], 9))];
    contexts[0].set_timeout(Duration::from_millis(500));
    let error = contexts[0].pair(1).unwrap().connect(&contexts[1].versions.publish(&address.serialize())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[test]
fn an_address_to_which_no_way_leads_is_an_error_at_once() {
    let (contexts, address) = two();
    let elsewhere = Address { host: address.host ^ 1, ..address };
    let error =
        contexts[0].pair(1).unwrap().connect(&contexts[1].versions.publish(&elsewhere.serialize())).unwrap_err();
    assert!(error.message().contains("no route to rank 1: it listens at [127.0.0.1:"), "{error}");
}

use std::sync::Mutex;

use super::super::handshake;
use super::*;
use crate::secret::JobToken;

#[test]
fn a_server_that_cannot_wait_any_more_says_so() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let log: LogCallback = {
        let said = said.clone();
        Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_owned()))
    };
    let (poller, stop) = (Poller::new(PollerKind::SYSTEM).unwrap(), Arc::new(Waker::new().unwrap()));
    let stopped = poller.add(&*stop, sys::READ, STOP).unwrap();
    let listeners = Listeners::new(&poller);
    let security = (handshake::key(&JobToken::none()), Security::Plain);
    let parts = (poller.clone(), stopped);
    let mut server = Loop::new(parts, &listeners, stop, Limits::default(), security, Some(log));
    poller.break_down();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    server.enter(Stream::from(sys::OwnedSocket::from(ours)));
    server.run();
    let why = "Invalid argument (os error 22)";
    assert_eq!(
        *said.lock().unwrap(),
        [
            format!("store: dropped a client from somewhere: this process could not serve it: {why}"),
            format!("store: cannot wait for events, so it ends: {why}")
        ]
    );
}

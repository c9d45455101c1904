//! Fuzz body: stores' URLs, without opening what lies outside this process.

use super::*;
use crate::error::ErrorKind;

/// Any text is a URL or an error that shows it; a host and a port that were understood are the same when written anew.
pub fn store_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok((host, port)) = host_and_port(text) {
        let again = if text.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        assert_eq!(host_and_port(&again), Ok((host, port)));
    }
    let opens = match text.split_once("://") {
        Some(("tcp", place)) => host_and_port(place).is_ok(),
        Some(("file", place)) => place.starts_with('/'),
        Some(("redis" | "rediss", _)) => true,
        _ => false,
    };
    if opens {
        return;
    }
    match open(text, 1, Duration::ZERO) {
        Ok(store) => assert!(text.starts_with("inproc://") && store.describe().starts_with("inproc://")),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    }
}

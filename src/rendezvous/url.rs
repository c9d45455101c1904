//! Stores by name: `tcp://10.0.0.1:29500`, `file:///shared/job-17`, `inproc://test`.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::sync::Arc;
use std::time::Duration;

use super::{FileStore, InProcessStore, Store, TcpStore};
use crate::error::{Error, Result};
use crate::types::Rank;

/// Opens the store that `url` names, the same on all ranks:
///
/// | URL | store |
/// |---|---|
/// | `tcp://host:port` | rank 0 serves it ([`TcpStore::serve`]), the others connect, for at most `timeout`; IPv6 addresses are in brackets |
/// | `file:///path` | the directory `/path` ([`FileStore`]); the path is taken as it stands, without escapes |
/// | `inproc://name` | this process's store of that name ([`InProcessStore::open`]) |
pub fn open(url: &str, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    let wrong = |why: &str| Error::invalid(format!("{url:?} is no URL of a store: {why}"));
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(wrong("it should be like tcp://host:port, file:///path or inproc://name"));
    };
    match scheme {
        "tcp" => {
            let (host, port) = host_and_port(rest).map_err(wrong)?;
            open_tcp(host, port, rank, timeout)
        }
        "file" if !rest.starts_with('/') => Err(wrong("a file's path begins with a slash, as in file:///path")),
        "file" => Ok(Arc::new(FileStore::new(rest)?)),
        "inproc" if rest.is_empty() => Err(wrong("there is no name, as in inproc://name")),
        "inproc" => Ok(InProcessStore::open(rest)?),
        _ => Err(wrong("the schemes are tcp, file and inproc")),
    }
}

pub(super) fn open_tcp(host: &str, port: u16, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    let store = if rank == 0 { TcpStore::serve(host, port) } else { TcpStore::connect(host, port, timeout) };
    Ok(Arc::new(store?))
}

/// Takes `host:port` or `[v6]:port` apart.
fn host_and_port(text: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").ok_or("an address in brackets needs ]:port behind it")?,
        None => text.rsplit_once(':').ok_or("there is no port, as in tcp://host:port")?,
    };
    if host.is_empty() {
        return Err("there is no host, as in tcp://host:port");
    }
    if !text.starts_with('[') && host.contains(':') {
        return Err("an IPv6 address stands in brackets, as in tcp://[::1]:29500");
    }
    if host.contains('/') {
        return Err("there is a slash in the host");
    }
    match port.parse() {
        Ok(number) if !port.starts_with('+') => Ok((host, number)),
        _ => Err("the port is not a number from 0 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn hosts_and_ports() {
        assert_eq!(host_and_port("a.b:80"), Ok(("a.b", 80)));
        assert_eq!(host_and_port("[fe80::1%eth0]:65535"), Ok(("fe80::1%eth0", 65535)));
        assert_eq!(host_and_port("127.0.0.1:0"), Ok(("127.0.0.1", 0)));
    }

    #[test]
    fn wrong_urls_say_what_is_wrong() {
        for (url, part) in [
            ("", "tcp://host:port"),
            ("localhost:80", "tcp://host:port"),
            ("http://localhost:80", "schemes"),
            ("tcp://localhost", "no port"),
            ("tcp://:80", "no host"),
            ("tcp://::1:80", "brackets"),
            ("tcp://[::1]", "brackets"),
            ("tcp://[]:1", "no host"),
            ("tcp://localhost:65536", "0 to 65535"),
            ("tcp://localhost:", "0 to 65535"),
            ("tcp://localhost:+80", "0 to 65535"),
            ("tcp://localhost:80/", "0 to 65535"),
            ("tcp://a/b:80", "slash"),
            ("file://relative", "slash"),
            ("inproc://", "no name"),
        ] {
            let error = open(url, 1, Duration::ZERO).err().unwrap_or_else(|| panic!("{url} opened"));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains(part), "{url}: {error}");
            assert!(error.message().contains(&format!("{url:?}")), "{error}");
        }
        let error = open("tcp://localhost:0", 1, Duration::ZERO).err().unwrap();
        assert!(error.message().contains("port 0"), "{error}");
    }

    #[test]
    fn every_scheme_opens_a_store_that_works() {
        let directory = tempfile::tempdir().unwrap();
        let file = format!("file://{}", directory.path().display());
        for url in ["tcp://127.0.0.1:0", "inproc://url::tests", &file] {
            let store = open(url, 0, Duration::from_secs(5)).unwrap();
            store.set("k", url.as_bytes()).unwrap();
            assert_eq!(store.get("k", Duration::from_secs(5)).unwrap(), url.as_bytes());
            let described = store.describe();
            if url.starts_with("tcp") {
                let other = open(&described, 1, Duration::from_secs(5)).unwrap();
                assert_eq!(other.get("k", Duration::from_secs(5)).unwrap(), url.as_bytes());
            }
        }
    }
}

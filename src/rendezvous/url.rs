//! Stores by URL: `tcp://10.0.0.1:29500`, `file:///shared/job-17`, `redis://10.0.0.1/0?prefix=job-17/`,
//! `inproc://test`.

#[cfg(any(test, fuzzing))]
#[path = "../testing/fuzz/store_url.rs"]
pub(crate) mod fuzz;
pub(super) mod parts;

use std::sync::Arc;
use std::time::Duration;

use self::parts::{Query, host_and_port};
use super::redis::{self, RedisOptions};
use super::{FileStore, InProcessStore, Store, TcpStore};
use crate::error::{Error, Result};
use crate::types::Rank;

/// Opens the store that `url` names. All ranks pass the same URL:
///
/// | URL | store |
/// |---|---|
/// | `tcp://host:port` | rank 0 serves it ([`TcpStore::serve`]), the others connect, for at most `timeout`; IPv6 addresses are in brackets |
/// | `file:///path` | the directory `/path` ([`FileStore`]); the path is taken literally, without escapes |
/// | `redis://[user:password@]host[:port][/database][?prefix=TEXT&ttl=SECONDS]` | a Redis server ([`redis::open`]), retried until `timeout` |
/// | `rediss://...[?ca=FILE&cert=FILE&key=FILE&insecure=true]` | the same over TLS |
/// | `inproc://name` | this process's store of that name ([`InProcessStore::open`]) |
///
/// Errors contain no user name and no password.
pub fn open(url: &str, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    match StoreUrl::parse(url)? {
        StoreUrl::Tcp(host, port) => open_tcp(host, port, rank, timeout),
        StoreUrl::File(path) => Ok(Arc::new(FileStore::new(path)?)),
        StoreUrl::Redis(options) => redis::open(*options, timeout),
        StoreUrl::InProcess(name) => Ok(InProcessStore::open(name)?),
    }
}

/// The host and port of the server that `url` names, without connecting to it; `None` for stores without a server.
pub fn server(url: &str) -> Result<Option<(String, u16)>> {
    Ok(match StoreUrl::parse(url)? {
        StoreUrl::Tcp(host, port) => Some((host.to_owned(), port)),
        StoreUrl::Redis(options) => Some((options.host, options.port)),
        StoreUrl::File(_) | StoreUrl::InProcess(_) => None,
    })
}

/// A parsed store URL.
enum StoreUrl<'a> {
    Tcp(&'a str, u16),
    File(&'a str),
    Redis(Box<RedisOptions>),
    InProcess(&'a str),
}

impl<'a> StoreUrl<'a> {
    fn parse(url: &'a str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("{:?} is not a store URL: {why}", without_secrets(url)));
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(wrong("it should be like tcp://host:port, file:///path, redis://host:port or inproc://name"));
        };
        let (address, query) = Query::split(rest);
        if let ("tcp" | "file" | "inproc", Some((name, _))) = (scheme, query.pairs().next()) {
            return Err(wrong(&query.unknown(name, &[])));
        }
        match scheme {
            "tcp" => host_and_port(address).map(|(host, port)| Self::Tcp(host, port)).map_err(wrong),
            "file" if !address.starts_with('/') => Err(wrong("a file's path begins with a slash, as in file:///path")),
            "file" => Ok(Self::File(address)),
            "redis" | "rediss" => {
                let options = RedisOptions::from_url(address, &query, scheme == "rediss");
                Ok(Self::Redis(Box::new(options.map_err(|why| wrong(&why))?)))
            }
            "inproc" if address.is_empty() => Err(wrong("there is no name, as in inproc://name")),
            "inproc" => Ok(Self::InProcess(address)),
            _ => Err(wrong("the schemes are tcp, file, redis, rediss and inproc")),
        }
    }
}

pub(super) fn open_tcp(host: &str, port: u16, rank: Rank, timeout: Duration) -> Result<Arc<dyn Store>> {
    let store = if rank == 0 { TcpStore::serve(host, port) } else { TcpStore::connect(host, port, timeout) };
    Ok(Arc::new(store?))
}

/// The URL for messages: the user, the password and all options, which might contain secrets by mistake, are replaced
/// by stars.
fn without_secrets(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    if matches!(scheme, "tcp://" | "file://" | "inproc://") {
        return url.to_owned();
    }
    let (login, address) = rest.rsplit_once('@').map_or(("", rest), |(_, address)| ("***@", address));
    let (address, options) = address.split_once('?').map_or((address, ""), |(address, _)| (address, "?***"));
    format!("{scheme}{login}{address}{options}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_server_of_a_url_is_known_without_asking_it() {
        assert_eq!(server("tcp://[fd00::1]:80").unwrap(), Some(("fd00::1".to_owned(), 80)));
        assert_eq!(server("redis://:secret@h/3").unwrap(), Some(("h".to_owned(), 6379)));
        assert_eq!(server("file:///shared/job").unwrap(), None);
        assert!(server("tcp://a").unwrap_err().message().contains("no port"));
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
            ("tcp://[localhost]:80", "only an IPv6 address"),
            ("tcp://a b:80", "space"),
            ("tcp://10.0.0.300:80", "four numbers"),
            ("tcp://me@a:80", "user"),
            ("file://relative", "slash"),
            ("inproc://", "no name"),
            ("inproc://name?ttl=1", "no options"),
            ("tcp://localhost:80?", "no options"),
            ("file:///tmp/x?prefix=a", "\"prefix\""),
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
    fn no_message_holds_a_secret() {
        for (url, shown) in [
            ("redis://user:secret@h:port/0", "redis://***@h:port/0"),
            ("rediss://:sec/ret@h/x", "rediss://***@h/x"),
            ("redis://:a?secret@h/x", "redis://***@h/x"),
            ("redis://h?password=secret", "redis://h?***"),
            ("redsi://user:secret@h", "redsi://***@h"),
            ("user:secret@h", "***@h"),
        ] {
            let error = open(url, 1, Duration::ZERO).err().unwrap_or_else(|| panic!("{url} opened"));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(&format!("{shown:?}")), "{url}: {error}");
            assert!(!error.message().contains("secret"), "{url}: {error}");
        }
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

//! This process's place in a launched job, from the environment that launchers set.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use super::{InProcessStore, Store, url};
use crate::error::{Error, Result};
use crate::types::Rank;

/// Which process of how many this is, and the store that all of them reach.
pub struct Launch {
    /// This process: `0..size`.
    pub rank: Rank,
    /// Processes of the job.
    pub size: usize,
    /// Reached by all of them.
    pub store: Arc<dyn Store>,
}

impl Launch {
    /// Reads the environment of this process:
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `RANK`, `WORLD_SIZE` | this process, and how many there are |
    /// | `GLOO_RS_STORE` | the store's URL ([`url::open`]) |
    /// | `MASTER_ADDR`, `MASTER_PORT` | without `GLOO_RS_STORE`: where rank 0 serves a TCP store |
    ///
    /// An empty variable counts as not set. A job of one process needs no store. `timeout` is how long to look for rank 0's
    /// server. To be called once in a process, since rank 0 cannot serve twice at one address. Errors name the variable.
    pub fn from_environment(timeout: Duration) -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name), timeout)
    }

    /// The same with variables from elsewhere.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>, timeout: Duration) -> Result<Self> {
        let text = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value
                .into_string()
                .map(Some)
                .map_err(|value| Error::invalid(format!("the environment variable {name}={value:?} is not UTF-8"))),
        };
        let needed = |name: &str, meaning: &str| {
            text(name)?.ok_or_else(|| Error::invalid(format!("the environment variable {name} is not set: {meaning}")))
        };

        let size_text = needed("WORLD_SIZE", "how many processes the job has")?;
        let rank_text = needed("RANK", "which of the job's processes this is, from 0")?;
        // The C ABI's ranks are int32_t.
        let number = |text: &str| text.parse::<i32>().ok().and_then(|number| usize::try_from(number).ok());
        let size = number(&size_text).filter(|size| *size > 0).ok_or_else(|| {
            Error::invalid(format!("the environment variable WORLD_SIZE={size_text:?} is not a number of processes"))
        })?;
        let rank = number(&rank_text).filter(|rank| *rank < size).ok_or_else(|| {
            let last = size - 1;
            Error::invalid(format!(
                "the environment variable RANK={rank_text:?} is not a number from 0 to {last} (WORLD_SIZE={size})"
            ))
        })?;

        let store = if let Some(store) = text("GLOO_RS_STORE")? {
            url::open(&store, rank, timeout).map_err(|error| error.context("the environment variable GLOO_RS_STORE"))?
        } else if let Some(host) = text("MASTER_ADDR")? {
            let port_text = needed("MASTER_PORT", "the port of rank 0's store at MASTER_ADDR")?;
            let port = port_text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                Error::invalid(format!(
                    "the environment variable MASTER_PORT={port_text:?} is not a port from 1 to 65535"
                ))
            })?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
            url::open_tcp(host, port, rank, timeout)
                .map_err(|error| error.context("the store of MASTER_ADDR and MASTER_PORT"))?
        } else if size == 1 {
            InProcessStore::new()
        } else {
            return Err(Error::invalid(format!(
                "neither of the environment variables GLOO_RS_STORE (tcp://host:port, file:///path) and MASTER_ADDR (with \
                 MASTER_PORT) is set: where the {size} processes of the job find each other"
            )));
        };
        Ok(Self { rank, size, store })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn launch(variables: &[(&str, &str)]) -> Result<Launch> {
        let find = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
        Launch::from_variables(find, TIMEOUT)
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        for (variables, parts) in [
            (&[][..], &["WORLD_SIZE", "not set"][..]),
            (&[("WORLD_SIZE", "2")], &["RANK", "not set"]),
            (&[("WORLD_SIZE", "2"), ("RANK", "")], &["RANK", "not set"]),
            (&[("WORLD_SIZE", "0"), ("RANK", "0")], &["WORLD_SIZE=\"0\""]),
            (&[("WORLD_SIZE", "two"), ("RANK", "0")], &["WORLD_SIZE=\"two\""]),
            (&[("WORLD_SIZE", "2147483648"), ("RANK", "0")], &["WORLD_SIZE=\"2147483648\""]),
            (&[("WORLD_SIZE", "2"), ("RANK", "2")], &["RANK=\"2\"", "0 to 1"]),
            (&[("WORLD_SIZE", "2"), ("RANK", "-1")], &["RANK=\"-1\""]),
            (&[("WORLD_SIZE", "2"), ("RANK", "0")], &["GLOO_RS_STORE", "MASTER_ADDR"]),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "localhost")], &["MASTER_PORT", "not set"]),
            (
                &[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "0")],
                &["MASTER_PORT=\"0\""],
            ),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("GLOO_RS_STORE", "x")], &["GLOO_RS_STORE", "\"x\""]),
        ] {
            let error = launch(variables).err().unwrap_or_else(|| panic!("{variables:?} was accepted"));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            for part in parts {
                assert!(error.message().contains(part), "{variables:?}: {error}");
            }
        }
    }

    #[test]
    fn a_variable_that_is_not_utf8_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let find = |name: &str| Some(if name == "RANK" { OsString::from_vec(vec![0xff]) } else { "1".into() });
        let error = Launch::from_variables(find, TIMEOUT).err().unwrap();
        assert!(error.message().contains("RANK=\"\\xFF\""), "{error}");
    }

    #[test]
    fn one_process_needs_no_store() {
        let launch = launch(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap();
        assert_eq!((launch.rank, launch.size), (0, 1));
        launch.store.set("k", b"v").unwrap();
        assert_eq!(launch.store.get("k", TIMEOUT).unwrap(), b"v");
    }

    #[test]
    fn ranks_meet_at_the_named_store() {
        let variables = |rank| [("WORLD_SIZE", "2"), ("RANK", rank), ("GLOO_RS_STORE", "inproc://launch::tests")];
        let (zero, one) = (launch(&variables("0")).unwrap(), launch(&variables("1")).unwrap());
        zero.store.set("k", b"v").unwrap();
        assert_eq!(one.store.get("k", TIMEOUT).unwrap(), b"v");
        assert_eq!((one.rank, one.size), (1, 2));
    }

    #[test]
    fn ranks_meet_at_the_master_whatever_comes_first() {
        // A port that was free a moment ago, at a loopback address that no other test listens on.
        let port = std::net::TcpListener::bind("127.83.12.1:0").unwrap().local_addr().unwrap().port().to_string();
        let rank = |rank: &'static str| {
            let port = port.clone();
            std::thread::spawn(move || {
                launch(&[("WORLD_SIZE", "2"), ("RANK", rank), ("MASTER_ADDR", "127.83.12.1"), ("MASTER_PORT", &port)])
            })
        };
        let one = rank("1");
        let zero = rank("0").join().unwrap().unwrap();
        let one = one.join().unwrap().unwrap();
        one.store.set("k", b"v").unwrap();
        assert_eq!(zero.store.get("k", TIMEOUT).unwrap(), b"v");
        assert_eq!(zero.store.describe(), format!("tcp://127.83.12.1:{port}"));
        drop(one);
    }
}

//! The options of a Redis store, and how they are parsed from a URL.

use std::path::PathBuf;
use std::time::Duration;

use crate::net::host::without_brackets;
use crate::rendezvous::url::parts::{Query, host_and_port};

/// Redis' default port.
const DEFAULT_PORT: u16 = 6379;

/// Default lifetime of keys: longer than any rendezvous, and the keys of a dead job expire by the next day.
const DEFAULT_TTL: Duration = Duration::from_secs(86_400);

/// Default prefix of keys.
const DEFAULT_PREFIX: &str = "gloo_rs/";

/// Address and database of a Redis server, and how to authenticate.
#[derive(Clone)]
pub struct RedisOptions {
    /// Name or address.
    pub host: String,
    /// Usually 6379.
    pub port: u16,
    /// A user of the server's access control list; requires `password`.
    pub username: Option<String>,
    /// Password of the user, or of the server (`requirepass`). No message contains it.
    pub password: Option<String>,
    /// Number of the database, as in `SELECT`.
    pub database: u32,
    /// Use TLS.
    pub tls: Option<RedisTls>,
    /// Prepended to every key. Each job needs a prefix that no job used before, or its own server or database.
    pub prefix: String,
    /// Time after which a key expires since it was last written, in whole seconds; zero means never.
    pub ttl: Duration,
}

/// Trusted authorities and client certificate. Files are in PEM format and are read when the store is opened.
#[derive(Clone, Default)]
pub struct RedisTls {
    /// The only trusted authorities; `None` for those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate, for servers that require one (`tls-auth-clients`); requires `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The private key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Accept any certificate: gives no protection against an attacker in the middle. For tests.
    pub insecure: bool,
}

impl RedisOptions {
    /// A server without password and TLS, and defaults for the rest.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            username: None,
            password: None,
            database: 0,
            tls: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            ttl: DEFAULT_TTL,
        }
    }

    /// Parses `[user[:password]@]host[:port][/database]`. The error text contains no part of the input.
    pub(in super::super) fn from_url(address: &str, query: &Query<'_>, tls: bool) -> Result<Self, String> {
        // Split at the last @, since the password may contain one.
        let (login, address) = match address.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, address),
        };
        let (address, database) = match address.split_once('/') {
            Some((address, database)) => (address, database),
            None => (address, ""),
        };
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let (host, port) = match has_port {
            true => host_and_port(address)?,
            false => host_and_port(&format!("{address}:{DEFAULT_PORT}"))
                .map(|(_, port)| (without_brackets(address), port))?,
        };
        let mut options = Self::new(host, port);
        if port == 0 {
            return Err("no server has port 0".to_owned());
        }
        if let Some(login) = login {
            let Some((user, password)) = login.split_once(':') else {
                return Err("there is a user without a password: user:password@host, or :password@host".to_owned());
            };
            options.username = Some(decode(user)?).filter(|user| !user.is_empty());
            options.password = Some(decode(password)?);
        }
        if !database.is_empty() {
            let number = database.parse().ok().filter(|_| !database.starts_with('+'));
            options.database = number.ok_or("the database, behind the slash, is not a number")?;
        }
        let mut security = RedisTls::default();
        for (name, value) in query.pairs() {
            let value = decode(value)?;
            match (name, tls) {
                ("prefix", _) => options.prefix = value,
                ("ttl", _) => {
                    let seconds = value.parse().ok().filter(|_| !value.starts_with('+'));
                    let seconds: u32 = seconds.ok_or("ttl is not a number of seconds")?;
                    options.ttl = Duration::from_secs(seconds.into());
                }
                ("ca", true) => security.ca_file = Some(value.into()),
                ("cert", true) => security.cert_file = Some(value.into()),
                ("key", true) => security.key_file = Some(value.into()),
                ("insecure", true) if value == "true" => security.insecure = true,
                ("insecure", true) => return Err("insecure may be true, or be left out".to_owned()),
                ("ca" | "cert" | "key" | "insecure", false) => {
                    return Err(format!("{name} is for TLS, which is rediss://host:port"));
                }
                _ => return Err(query.unknown(name, &["prefix", "ttl", "ca", "cert", "key", "insecure"])),
            }
        }
        options.tls = tls.then_some(security);
        Ok(options)
    }

    /// The URL for messages: without user and password.
    pub(super) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}/{}", self.port, self.database)
    }
}

/// Decodes percent escapes such as `%2F` (RFC 3986, section 2.1).
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = after.split_at_checked(2).and_then(|(two, after)| Some((std::str::from_utf8(two).ok()?, after)));
        let code = digits.filter(|(two, _)| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some((code, after)) = code else {
            return Err("a percent sign needs two hexadecimal digits behind it; %25 is a percent sign".to_owned());
        };
        bytes.extend(u8::from_str_radix(code, 16));
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| "what the percent signs stand for is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<RedisOptions, String> {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (address, query) = Query::split(rest);
        RedisOptions::from_url(address, &query, scheme == "rediss")
    }

    #[test]
    fn every_part_is_found() {
        let found = options("redis://h").unwrap();
        assert_eq!((&*found.host, found.port, found.database), ("h", 6379, 0));
        assert_eq!((found.username, found.password), (None, None));
        assert_eq!((&*found.prefix, found.ttl), (DEFAULT_PREFIX, DEFAULT_TTL));
        assert!(found.tls.is_none());

        let found = options("redis://us%3Aer:p%40s/s%25@[::1]:7000/15?ttl=0&prefix=job%2017/").unwrap();
        assert_eq!((&*found.host, found.port, found.database), ("::1", 7000, 15));
        assert_eq!((found.username.as_deref(), found.password.as_deref()), (Some("us:er"), Some("p@s/s%")));
        assert_eq!((&*found.prefix, found.ttl), ("job 17/", Duration::ZERO));
        assert_eq!(found.url(), "redis://[::1]:7000/15");

        let found = options("rediss://:p@q@[fe80::1]/?ca=/a&cert=/b&key=/c&insecure=true").unwrap();
        assert_eq!((&*found.host, found.port, found.username), ("fe80::1", 6379, None));
        assert_eq!(found.password.as_deref(), Some("p@q"));
        let tls = found.tls.unwrap();
        assert_eq!((tls.ca_file, tls.insecure), (Some("/a".into()), true));
        assert_eq!((tls.cert_file, tls.key_file), (Some("/b".into()), Some("/c".into())));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, part) in [
            ("redis://", "no host"),
            ("redis://:6379", "no host"),
            ("redis://user@h", "without a password"),
            ("redis://h:", "0 to 65535"),
            ("redis://h:0", "port 0"),
            ("redis://h:65536", "0 to 65535"),
            ("redis://::1", "brackets"),
            ("redis://h/x", "not a number"),
            ("redis://h/-1", "not a number"),
            ("redis://h/+1", "not a number"),
            ("redis://h/1/2", "not a number"),
            ("redis://h?ttl=1d", "seconds"),
            ("redis://h?ttl=+1", "seconds"),
            ("redis://h?ttl", "seconds"),
            ("redis://h?tll=1", "\"tll\""),
            ("redis://h?", "\"\""),
            ("redis://h?ca=/a", "rediss://"),
            ("rediss://h?insecure", "true"),
            ("redis://:%@h", "hexadecimal"),
            ("redis://:%+1@h", "hexadecimal"),
            ("redis://:%ff@h", "UTF-8"),
        ] {
            let error = options(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}

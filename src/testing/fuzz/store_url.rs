//! Fuzz bodies: URLs of stores, without opening anything outside the process.

use super::*;
use crate::error::ErrorKind;

/// Does not occur in any text by chance.
const SECRET: &str = "Rr7-secret-q0Z";

/// Any text is a URL or an error that shows it; what was understood is the same when written anew; errors hold no
/// secrets.
pub fn store_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    url(text);
    for scheme in ["redis", "rediss"] {
        url(&format!("{scheme}://{text}"));
        let error = StoreUrl::parse(&format!("{scheme}://user:{SECRET}@{text}")).err();
        // The password ends at the last @; what comes before that is secret all the same.
        assert!(error.is_none_or(|e| !e.message().contains(SECRET)), "a secret is shown");
        let error = StoreUrl::parse(&format!("{scheme}://{text}?password={SECRET}")).err();
        assert!(error.is_none_or(|e| !e.message().contains(SECRET)), "a secret is shown");
    }
}

fn url(text: &str) {
    let named = server(text);
    match StoreUrl::parse(text) {
        Ok(StoreUrl::Tcp(host, port)) => {
            assert_eq!(named.unwrap(), Some((host.to_owned(), port)));
            assert_eq!(host_and_port(&joined(host, port)), Ok((host, port)));
        }
        Ok(StoreUrl::File(path)) => assert!(path.starts_with('/') && named.unwrap().is_none()),
        Ok(StoreUrl::Redis(options)) => {
            assert_eq!(named.unwrap(), Some((options.host.clone(), options.port)));
            let Ok(StoreUrl::Redis(again)) = StoreUrl::parse(&written(&options)) else {
                panic!("{}", written(&options))
            };
            assert_eq!(written(&again), written(&options));
            assert_eq!(shape(&again), shape(&options));
        }
        Ok(StoreUrl::InProcess(_)) => {
            let store = open(text, 1, Duration::ZERO).expect("a store of this process");
            assert!(store.describe().starts_with("inproc://"));
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    }
}

fn joined(host: &str, port: u16) -> String {
    if host.contains([':', '[']) { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn shape(options: &RedisOptions) -> impl PartialEq + std::fmt::Debug {
    let tls = options
        .tls
        .as_ref()
        .map(|tls| (tls.ca_file.clone(), tls.cert_file.clone(), tls.key_file.clone(), tls.insecure));
    (options.username.clone(), options.password.clone(), options.database, options.prefix.clone(), options.ttl, tls)
}

/// The options as a URL, every byte of a value escaped.
fn written(options: &RedisOptions) -> String {
    let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let mut url = if options.tls.is_some() { "rediss://".to_owned() } else { "redis://".to_owned() };
    if let Some(password) = &options.password {
        let user = options.username.as_deref().unwrap_or_default();
        url += &format!("{}:{}@", escaped(user), escaped(password));
    }
    let (prefix, ttl) = (escaped(&options.prefix), options.ttl.as_secs());
    url += &format!("{}/{}?prefix={prefix}&ttl={ttl}", joined(&options.host, options.port), options.database);
    if let Some(tls) = &options.tls {
        for (name, file) in [("ca", &tls.ca_file), ("cert", &tls.cert_file), ("key", &tls.key_file)] {
            if let Some(file) = file {
                url += &format!("&{name}={}", escaped(file.to_str().expect("made of text")));
            }
        }
        if tls.insecure {
            url += "&insecure=true";
        }
    }
    url
}

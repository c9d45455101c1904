//! The bodies of the fuzz targets in `fuzz/`: each accepts any bytes, and panics if a requirement is violated. Built
//! for fuzzing and for this crate's own tests, which run every body on the corpus in `fuzz/corpus/`. A body that looks
//! inside a module is one of its modules, by `#[path]`.

mod handshake;
mod matching;
mod messaging;
#[cfg(all(unix, feature = "tls"))]
mod tls;

pub use crate::engine::shared::fuzz::shared_memory;
pub use crate::ffi::fuzz::options;
pub use crate::rendezvous::tcp::fuzz::store_protocol;
pub use crate::rendezvous::url::fuzz::store_url;
pub use handshake::handshake;
pub use matching::matching;
pub use messaging::{exchange, frames};
#[cfg(feature = "tls")]
pub use tls::tls;

/// The body of a fuzz target.
pub type Body = fn(&[u8]);

/// All bodies, with the names of their targets, which are also the names of the corpora.
pub const BODIES: &[(&str, Body)] = &[
    ("exchange", exchange),
    ("frames", frames),
    ("handshake", handshake),
    ("matching", matching),
    ("options", options),
    ("shared_memory", shared_memory),
    ("store_protocol", store_protocol),
    ("store_url", store_url),
    #[cfg(feature = "tls")]
    ("tls", tls),
];

/// Decodes a fuzzer's bytes into small numbers that select actions, until the bytes are used up.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number less than `n`, which is at most 256; `None` if the bytes are used up.
    pub(crate) fn below(&mut self, n: usize) -> Option<usize> {
        Some(usize::from(self.byte()?) % n)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        Some(from[self.below(from.len())?])
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Runs the corpus of every target, on every toolchain.
    #[test]
    fn the_corpus_is_replayed() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        for (name, body) in BODIES {
            assert!(fuzz.join(format!("fuzz_targets/{name}.rs")).is_file(), "no fuzz target {name}");
            let entries = std::fs::read_dir(fuzz.join("corpus").join(name)).unwrap();
            let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            assert!(!paths.is_empty() && paths.len() <= 200, "{} inputs for {name}", paths.len());
            for path in paths {
                let data = std::fs::read(&path).unwrap();
                // The output is shown only if the body panics.
                println!("{}", path.display());
                body(&data);
            }
        }
        let targets = std::fs::read_dir(fuzz.join("fuzz_targets")).unwrap().count();
        let absent = usize::from(!cfg!(feature = "tls"));
        assert_eq!(targets, BODIES.len() + absent, "each target has its body here");
    }
}

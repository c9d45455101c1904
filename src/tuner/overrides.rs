//! `GLOO_RS_ALGORITHM`: the algorithm that `auto` selects, by collective and size.

use std::fmt;

use crate::collective::{Algorithm, Collective};
use crate::error::{Error, Result};
use crate::size;
use crate::tuner::file::AUTO;

/// The environment variable.
pub const VARIABLE: &str = "GLOO_RS_ALGORITHM";

/// A comma-separated list of `collective:algorithm` or `collective:FROM-TO:algorithm`. Sizes are in bytes, inclusive;
/// an omitted size means no bound. The first entry that matches a call applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<Override>);

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The collective to which it applies.
    pub collective: Collective,
    /// Minimum size in bytes.
    pub from: usize,
    /// Maximum size in bytes.
    pub up_to: usize,
    /// The algorithm's name; `None` for `auto`: the cost model decides.
    pub algorithm: Option<&'static str>,
}

impl Overrides {
    /// The list in the environment variable. Errors name the variable and quote the entry.
    pub fn from_environment() -> Result<Self> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(Self::default()) };
        Self::parse(&value.to_string_lossy()).map_err(|error| error.context(VARIABLE))
    }

    /// Parses a list, which may be empty. Errors quote the entry.
    pub fn parse(text: &str) -> Result<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let parse = |part| Override::parse(part).map_err(|error| error.context(format_args!("{part:?}")));
        Ok(Self(parts.map(parse).collect::<Result<_>>()?))
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.0.iter()
    }
}

impl Override {
    fn parse(part: &str) -> Result<Self> {
        let fields: Vec<&str> = part.split(':').map(str::trim).collect();
        let (collective, range, algorithm) = match fields[..] {
            [collective, algorithm] => (collective, "-", algorithm),
            [collective, range, algorithm] => (collective, range, algorithm),
            _ => {
                let form = "write collective:algorithm or collective:FROM-TO:algorithm, as allreduce:0-8Ki:tree";
                return Err(Error::invalid(form));
            }
        };
        let known = Collective::ALL.iter().find(|known| known.name() == collective);
        let collective = *known.ok_or_else(|| {
            let names: Vec<_> = Collective::ALL.iter().map(|collective| collective.name()).collect();
            Error::invalid(format!("there is no collective {collective:?}; there are {}", names.join(", ")))
        })?;
        let (from, up_to) = range
            .split_once('-')
            .ok_or_else(|| Error::invalid(format!("{range:?} is not a range of bytes; write FROM-TO, FROM- or -TO")))?;
        let bound = |text: &str, none| if text.is_empty() { Ok(none) } else { size::parse(text) };
        let (from, up_to) = (bound(from, 0)?, bound(up_to, usize::MAX)?);
        if from > up_to {
            return Err(Error::invalid(format!("{range:?} ends before it begins")));
        }
        let algorithm = match algorithm {
            AUTO => None,
            name => Some(collective.algorithm(name)?.name),
        };
        Ok(Self { collective, from, up_to, algorithm })
    }

    /// The algorithm, unless the entry is for `auto`.
    pub fn algorithm(&self) -> Option<&'static Algorithm> {
        let algorithms = self.collective.algorithms();
        self.algorithm.and_then(|name| algorithms.iter().find(|algorithm| algorithm.name == name))
    }
}

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let up_to = if part.up_to == usize::MAX { String::new() } else { size::text(part.up_to) };
            let (collective, from) = (part.collective.name(), size::text(part.from));
            write!(f, "{comma}{collective}:{from}-{up_to}:{}", part.algorithm.unwrap_or(AUTO))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_with_and_without_ranges() {
        let text =
            "allreduce:0-8Ki:recursive_doubling, allreduce:8Ki-:ring_segmented,broadcast:binomial,reduce:-64:auto,";
        let overrides = Overrides::parse(text).unwrap();
        let part = |collective, from, up_to, algorithm| Override { collective, from, up_to, algorithm };
        let expected = [
            part(Collective::Allreduce, 0, 8192, Some("recursive_doubling")),
            part(Collective::Allreduce, 8192, usize::MAX, Some("ring_segmented")),
            part(Collective::Broadcast, 0, usize::MAX, Some("binomial")),
            part(Collective::Reduce, 0, 64, None),
        ];
        assert!(overrides.iter().eq(&expected), "{overrides:?}");
        assert_eq!(
            overrides.to_string(),
            "allreduce:0-8Ki:recursive_doubling,allreduce:8Ki-:ring_segmented,broadcast:0-:binomial,reduce:0-64:auto"
        );
        assert_eq!(Overrides::parse(&overrides.to_string()).unwrap(), overrides);
        assert_eq!(overrides.iter().nth(2).unwrap().algorithm().unwrap().name, "binomial");
        assert_eq!(Overrides::parse("").unwrap(), Overrides::default());
    }

    #[test]
    fn errors_quote_the_invalid_entry() {
        for (text, parts) in [
            ("allreduce", &["\"allreduce\"", "write collective:algorithm"][..]),
            ("broadcast:binomial,allreduce:a:b:c", &["\"allreduce:a:b:c\"", "collective:FROM-TO:algorithm"]),
            ("reduce_all:ring", &["\"reduce_all:ring\"", "no collective \"reduce_all\"", "reduce_scatter"]),
            ("allreduce:rong", &["\"allreduce:rong\"", "\"rong\"", "recursive_doubling"]),
            ("allreduce:8Ki:ring_chunked", &["\"8Ki\" is not a range"]),
            ("allreduce:0-8Kx:ring_chunked", &["allreduce:0-8Kx:ring_chunked", "\"8Kx\" is not a size"]),
            ("allreduce:9-8:ring_chunked", &["\"9-8\" ends before it begins"]),
        ] {
            let error = Overrides::parse(text).unwrap_err();
            for part in parts {
                assert!(error.message().contains(part), "{error}");
            }
        }
    }
}

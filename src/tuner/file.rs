//! The tuning file in TOML: speed of the links, best algorithm by size, bandwidth between ranks. Written by `gloo-rs
//! tune` or by hand.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::io;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::collective::constants::{Constant, TABLE};
use crate::collective::{Collective, Constants};
use crate::error::{Error, Result};
use crate::reserve::check_room;
use crate::schedule::cost::Link;
use crate::sys;

/// Version of the file format. Files with other versions are refused.
const VERSION: usize = 1;

/// Maximum size of a file in bytes: rank 0 publishes its contents as one value in the store.
const MAX_BYTES: u64 = 64 << 20;

/// Upper bound of the memory for a tuning, in lengths of its text: the text itself, and numbers of few digits in lists
/// that grow.
const TEXT_FACTOR: usize = 64;

/// The name that stands for the cost model's choice.
pub const AUTO: &str = "auto";

/// The contents of a tuning file. Missing values are measured, or chosen as without a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// The link between two ranks of one host.
    pub local: Option<Link>,
    /// The link between hosts.
    pub remote: Option<Link>,
    /// γ: seconds to reduce one byte.
    pub gamma: Option<f64>,
    /// Other [`Constants`] of the cost model; names as in [`TABLE`], values in the units of the names' suffixes.
    pub constants: BTreeMap<&'static str, f64>,
    /// The best algorithms, in any order.
    pub choices: Vec<Choice>,
    /// A row-major matrix of the bandwidth from each sender to each receiver, in any unit, for `spanning_trees`; 0 for
    /// no link. Empty or square.
    pub links: Vec<u32>,
}

/// The algorithm for calls up to a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of their hosts; `None` for any.
    pub hosts: Option<usize>,
    /// Maximum size of the call in bytes, inclusive. The lower bound is the next smaller `up_to` for the same
    /// collective and numbers of ranks and hosts. `usize::MAX`: no upper bound.
    pub up_to: usize,
    /// The algorithm's name, or [`AUTO`].
    pub algorithm: String,
    /// Segment size in bytes; `None`: the tuner decides.
    pub segment_bytes: Option<usize>,
}

impl Tuning {
    /// Reads a file. Errors name the file, the line and the key.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)
            .map_err(|error| Error::io(format_args!("cannot read the tuning file {}", path.display()), &error))?;
        Self::parse(&text).map_err(|error| error.context(format_args!("the tuning file {}", path.display())))
    }

    /// Parses the format that [`Tuning::to_toml`] writes. Errors name the line and the key.
    pub fn parse(text: &str) -> Result<Self> {
        check_room(text.len().saturating_mul(TEXT_FACTOR), "a tuning")?;
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Error::invalid(format!("line {}: {}", line_of(text, at), error.message()))
        })?;
        let (span, table) = (table.span(), DeValue::Table(table.into_inner()));
        let value = Spanned::new(span, table);
        let file = Value { text, key: String::new(), value: &value };
        // Checked first, because the permitted keys depend on it.
        let version = file.get("version")?.ok_or_else(|| Error::invalid("line 1: version: missing; it is 1"))?;
        if version.whole()? != VERSION {
            return Err(version.error(format_args!("this is version {}; known is {VERSION}", version.whole()?)));
        }
        file.known(&["version", "local", "remote", "gamma", "constants", "choices", "links"])?;
        Ok(Self {
            local: file.get("local")?.map(|link| link.link()).transpose()?,
            remote: file.get("remote")?.map(|link| link.link()).transpose()?,
            gamma: file.get("gamma")?.map(|gamma| gamma.number(0.0..=MAX_NUMBER)).transpose()?,
            constants: file.get("constants")?.map(|table| table.constants()).transpose()?.unwrap_or_default(),
            choices: file.get("choices")?.map(|choices| choices.choices()).transpose()?.unwrap_or_default(),
            links: file.get("links")?.map(|links| links.square()).transpose()?.unwrap_or_default(),
        })
    }

    /// With the constants of this processor where this has none.
    pub fn on_this_processor(mut self) -> Self {
        for (name, value) in Constants::of_this_processor() {
            self.constants.entry(name).or_insert(*value);
        }
        self
    }

    /// The constants of the cost model: the file's values, and the built-in ones where it has none.
    pub fn constants(&self) -> Constants {
        let mut constants = Constants::BUILT_IN;
        constants.local = self.local.unwrap_or(constants.local);
        constants.remote = self.remote.unwrap_or(constants.remote);
        constants.gamma = self.gamma.unwrap_or(constants.gamma);
        for (constant, value) in TABLE.iter().filter_map(|one| Some((one, self.constants.get(one.name)?))) {
            constant.set(&mut constants, *value);
        }
        constants
    }

    /// The file as text, with explanatory comments. [`Tuning::parse`] restores it exactly for numbers of up to 15
    /// digits.
    pub fn to_toml(&self) -> String {
        let mut text =
            format!("# How fast the links are, and which algorithm is best for what.\nversion = {VERSION}\n");
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        if self.local.is_some() || self.remote.is_some() || self.gamma.is_some() {
            writeln!(to, "\n# Time from sending to arrival of an empty message, and bytes per second, each way.")?;
        }
        for (name, link, what) in
            [("local", self.local, "between two ranks of one host"), ("remote", self.remote, "between hosts")]
        {
            if let Some(Link { latency, bandwidth }) = link {
                let latency_us = scaled(latency, 6);
                writeln!(to, "{name} = {{ latency_us = {latency_us:?}, bandwidth = {bandwidth:e} }}  # {what}")?;
            }
        }
        if let Some(gamma) = self.gamma {
            writeln!(to, "gamma = {gamma:e}  # seconds to reduce one byte")?;
        }
        if !self.constants.is_empty() {
            writeln!(to, "\n# Other constants of the cost model, in the units that their names end in.")?;
            let all: Vec<_> = self.constants.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
            writeln!(to, "constants = {{ {} }}", all.join(", "))?;
        }
        if !self.choices.is_empty() {
            writeln!(to, "\n# Best up to and including so many bytes; beyond the last, the cost model chooses.")?;
            writeln!(to, "choices = [")?;
            for Choice { collective, ranks, hosts, up_to, algorithm, segment_bytes } in &self.choices {
                write!(to, "    {{ collective = \"{}\", ranks = {ranks}, ", collective.name())?;
                if let Some(hosts) = hosts {
                    write!(to, "hosts = {hosts}, ")?;
                }
                if *up_to != usize::MAX {
                    write!(to, "up_to = {up_to}, ")?;
                }
                write!(to, "algorithm = \"{algorithm}\"")?;
                if let Some(bytes) = segment_bytes {
                    write!(to, ", segment_bytes = {bytes}")?;
                }
                writeln!(to, " }},")?;
            }
            writeln!(to, "]")?;
        }
        let ranks = self.links.len().isqrt();
        if ranks > 0 {
            writeln!(to, "\n# Bandwidth from each rank (a row) to each (a column), in any unit; 0: no link.")?;
            writeln!(to, "links = [")?;
            for row in self.links.chunks(ranks) {
                let row: Vec<_> = row.iter().map(u32::to_string).collect();
                writeln!(to, "    [{}],", row.join(", "))?;
            }
            writeln!(to, "]")?;
        }
        Ok(())
    }

    /// The choice for calls of `collective` with `ranks` ranks on `hosts` hosts and `bytes` bytes.
    pub fn choice(&self, collective: Collective, ranks: usize, hosts: usize, bytes: usize) -> Option<&Choice> {
        let is_there = |choice: &Choice| choice.ranks == ranks && choice.hosts.is_none_or(|of| of == hosts);
        let of = |choice: &&Choice| choice.collective == collective && is_there(choice) && bytes <= choice.up_to;
        self.choices.iter().filter(of).min_by_key(|choice| choice.up_to)
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(sys::file::read_regular(path, MAX_BYTES)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// An upper bound for all numbers, which keeps sums and products finite.
const MAX_NUMBER: f64 = 1e18;

/// `number`, of which 15 digits count, times 10 to the power of `places`. With so few digits, this is undone exactly by
/// `-places`.
fn scaled(number: f64, places: i32) -> f64 {
    let text = format!("{number:.14e}");
    let moved = text.split_once('e').and_then(|(digits, exponent)| {
        let exponent: i32 = exponent.parse().ok()?;
        format!("{digits}e{}", exponent + places).parse().ok()
    });
    moved.unwrap_or(number)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
}

/// A value in the file with its location.
struct Value<'a> {
    text: &'a str,
    /// The full key, for example `choices[3].up_to`. Empty for the whole file.
    key: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Value<'a> {
    fn error(&self, what: impl std::fmt::Display) -> Error {
        let line = line_of(self.text, self.value.span().start);
        Error::invalid(format!("line {line}: {}: {what}", self.key))
    }

    fn wrong(&self, expected: impl std::fmt::Display) -> Error {
        let found = &self.text[self.value.span()];
        let found: String = found.chars().take(40).collect();
        self.error(format_args!("{found} is not {expected}"))
    }

    fn table(&self) -> Result<&'a DeTable<'a>> {
        self.value.get_ref().as_table().ok_or_else(|| self.wrong("a table, as { key = value }"))
    }

    fn inner(&self, key: impl std::fmt::Display, value: &'a Spanned<DeValue<'a>>) -> Value<'a> {
        let dot = if self.key.is_empty() { "" } else { "." };
        Value { text: self.text, key: format!("{}{dot}{key}", self.key), value }
    }

    fn get(&self, key: &str) -> Result<Option<Value<'a>>> {
        Ok(self.table()?.get(key).map(|value| self.inner(key, value)))
    }

    fn required(&self, key: &str) -> Result<Value<'a>> {
        self.get(key)?.ok_or_else(|| self.error(format_args!("{key} is missing")))
    }

    /// Fails if the table has a key that is not in `keys`.
    fn known(&self, keys: &[&str]) -> Result<()> {
        let other = self.table()?.keys().find(|key| !keys.contains(&key.get_ref().as_ref()));
        other.map_or(Ok(()), |key| {
            let (line, inner) = (line_of(self.text, key.span().start), self.inner(key.get_ref(), self.value));
            Err(Error::invalid(format!("line {line}: {}: no such key; there are {}", inner.key, keys.join(", "))))
        })
    }

    fn items(&self) -> Result<impl ExactSizeIterator<Item = Value<'a>>> {
        let array = self.value.get_ref().as_array().ok_or_else(|| self.wrong("an array"))?;
        let (text, key) = (self.text, self.key.clone());
        Ok(array.iter().enumerate().map(move |(index, value)| Value { text, key: format!("{key}[{index}]"), value }))
    }

    fn string(&self) -> Result<&'a str> {
        self.value.get_ref().as_str().ok_or_else(|| self.wrong("a string"))
    }

    fn whole(&self) -> Result<usize> {
        let number = self.value.get_ref().as_integer();
        let number = number.and_then(|n| usize::from_str_radix(n.as_str(), n.radix()).ok());
        number.ok_or_else(|| self.wrong("a whole number, 0 or above"))
    }

    fn number(&self, range: std::ops::RangeInclusive<f64>) -> Result<f64> {
        self.number_in(range, "")
    }

    fn number_in(&self, range: std::ops::RangeInclusive<f64>, unit: &str) -> Result<f64> {
        let number = match self.value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => self.whole().ok().map(|number| number as f64),
        };
        let (min, max) = (range.start(), range.end());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let unit = if unit.is_empty() { String::new() } else { format!(", in {unit}") };
            self.wrong(format_args!("a number of {min:e} to {max:e}{unit}"))
        })
    }

    fn link(&self) -> Result<Link> {
        self.known(&["latency_us", "bandwidth"])?;
        Ok(Link {
            latency: scaled(self.required("latency_us")?.number(0.0..=MAX_NUMBER)?, -6),
            bandwidth: self.required("bandwidth")?.number(1.0..=MAX_NUMBER)?,
        })
    }

    fn constants(&self) -> Result<BTreeMap<&'static str, f64>> {
        let names: Vec<_> = TABLE.iter().map(|constant| constant.name).collect();
        let mut constants = BTreeMap::new();
        for (key, value) in self.table()? {
            let name = key.get_ref().as_ref();
            let Some(constant) = Constant::named(name) else {
                if let Some(Constant { name: meant, .. }) = Constant::in_another_unit(name) {
                    let (line, key) = (line_of(self.text, key.span().start), &self.key);
                    return Err(Error::invalid(format!("line {line}: {key}.{name}: its unit is another one: {meant}")));
                }
                return self.known(&names).map(|()| constants);
            };
            let value = self.inner(name, value);
            constants.insert(constant.name, value.number_in(constant.range.clone(), constant.unit())?);
        }
        Ok(constants)
    }

    fn choices(&self) -> Result<Vec<Choice>> {
        let (mut choices, mut seen) = (Vec::new(), HashSet::new());
        for item in self.items()? {
            let choice = item.choice()?;
            let Choice { collective, ranks, hosts, up_to, .. } = choice;
            if !seen.insert((collective as usize, ranks, hosts, up_to)) {
                let name = collective.name();
                let on = hosts.map_or(String::new(), |hosts| format!(" on {hosts} hosts"));
                return Err(
                    item.error(format_args!("there is a choice for {name}, {ranks} ranks{on}, up to there already"))
                );
            }
            choices.push(choice);
        }
        Ok(choices)
    }

    fn choice(&self) -> Result<Choice> {
        self.known(&["collective", "ranks", "hosts", "up_to", "algorithm", "segment_bytes"])?;
        let positive = |value: Value<'_>| match value.whole()? {
            0 => Err(value.wrong("above 0")),
            number => Ok(number),
        };
        let (name, algorithm) = (self.required("collective")?, self.required("algorithm")?);
        let collective =
            *Collective::ALL.iter().find(|c| name.string().is_ok_and(|n| n == c.name())).ok_or_else(|| {
                let names: Vec<_> = Collective::ALL.iter().map(|collective| collective.name()).collect();
                name.wrong(format_args!("one of {}", names.join(", ")))
            })?;
        if algorithm.string()? != AUTO {
            collective.algorithm(algorithm.string()?).map_err(|error| algorithm.error(error))?;
        }
        Ok(Choice {
            collective,
            ranks: positive(self.required("ranks")?)?,
            hosts: self.get("hosts")?.map(positive).transpose()?,
            up_to: self.get("up_to")?.map_or(Ok(usize::MAX), |value| value.whole())?,
            algorithm: algorithm.string()?.to_owned(),
            segment_bytes: self.get("segment_bytes")?.map(positive).transpose()?,
        })
    }

    /// A square matrix in row-major order.
    fn square(&self) -> Result<Vec<u32>> {
        let rows = self.items()?;
        let ranks = rows.len();
        let mut links = Vec::new();
        for row in rows {
            let columns = row.items()?;
            if columns.len() != ranks {
                return Err(row.error(format_args!("{} columns, but there are {ranks} rows", columns.len())));
            }
            for link in columns {
                links.push(u32::try_from(link.whole()?).map_err(|_| link.wrong("a number below 2^32"))?);
            }
        }
        Ok(links)
    }
}

//! The simulated network, as described on the command line.

use std::path::Path;

use gloo_rs::environment;
use gloo_rs::schedule::cost::{Link, Network};
use gloo_rs::sys::file::{self, Until};
use gloo_rs::sys::topology::domain;
use gloo_rs::tuner::file::Tuning;

use crate::parse::{self, MAX_RANKS, counted};

/// The maximum number of bytes of a file with a matrix.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The network for a given number of ranks.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub network: Network,
    /// The host of each rank.
    pub hosts: Vec<u32>,
    /// Bytes per second from each rank to each; empty if no file was given.
    pub links: Vec<f64>,
    /// Description for the report.
    pub text: String,
}

/// Ranks on each host: `128x8`, or `8,8,4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    Alike { hosts: usize, each: usize },
    Unlike(Vec<usize>),
}

/// Parses hosts.
pub fn hosts(text: &str) -> Result<Hosts, String> {
    let error =
        || format!("{text:?} does not say which hosts there are; write 128x8 for 128 hosts of 8 ranks, or 8,8,4");
    let number = |text: &str| text.parse::<u32>().ok().filter(|&n| n > 0).map(|n| n as usize).ok_or_else(error);
    let hosts = match text.split_once('x') {
        Some((hosts, each)) => Hosts::Alike { hosts: number(hosts)?, each: number(each)? },
        None => Hosts::Unlike(text.split(',').map(number).collect::<Result<_, _>>()?),
    };
    match hosts.ranks() {
        ..=MAX_RANKS => Ok(hosts),
        ranks => Err(format!("{ranks} ranks are too many; there can be {MAX_RANKS}")),
    }
}

/// The last-level caches of one host, with equally many ranks in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    sockets: usize,
    /// The caches of each socket.
    caches: usize,
    /// Ranks of each cache.
    each: usize,
}

/// Parses sockets, the caches of each, and the ranks of each; the first may be left out.
pub fn caches(text: &str) -> Result<Caches, String> {
    match dims(text)?[..] {
        [caches, each] => Ok(Caches { sockets: 1, caches, each }),
        [sockets, caches, each] => Ok(Caches { sockets, caches, each }),
        _ => Err(format!("{text:?} does not say which caches there are; write 4x8 for 4 caches of 8 ranks")),
    }
}

impl std::fmt::Display for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sockets, caches, each } = self;
        write!(f, "{sockets} x {} of {}", counted(*caches, "cache"), counted(*each, "rank"))
    }
}

impl Caches {
    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.sockets * self.caches * self.each
    }

    /// The cache of each of `ranks` ranks, as [`Shape::domains`](gloo_rs::collective::Shape::domains).
    pub fn of_ranks(&self, ranks: usize) -> Result<Vec<u32>, String> {
        let Self { caches, each, .. } = *self;
        if self.ranks() != ranks {
            return Err(format!("--caches: {self} are not the {} that --ranks says", counted(ranks, "rank")));
        }
        Ok((0..ranks).map(|rank| domain((rank / each / caches) as u32, (rank / each) as u32)).collect())
    }
}

/// Parses a link: `10us,25GB/s`.
pub fn link(text: &str) -> Result<Link, String> {
    let (latency, bandwidth) =
        text.split_once(',').ok_or_else(|| format!("{text:?} is not a link; write 1us,100GB/s"))?;
    Ok(Link { latency: parse::duration(latency)?, bandwidth: parse::bandwidth(bandwidth)? })
}

/// Parses the dimensions of a grid: `4x8x8`.
pub fn dims(text: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|&n| n > 0).map(|n| n as usize);
    let error = || format!("{text:?} is not a grid; write its dimensions, such as 4x8x8");
    let dims: Vec<usize> = text.split('x').map(|extent| number(extent).ok_or_else(error)).collect::<Result<_, _>>()?;
    match dims.iter().fold(1, |ranks: usize, extent| ranks.saturating_mul(*extent)) {
        ..=MAX_RANKS => Ok(dims),
        _ => Err(format!("{text} has too many ranks; there can be {MAX_RANKS}")),
    }
}

impl Hosts {
    /// The number of ranks of all hosts.
    pub fn ranks(&self) -> usize {
        match self {
            Self::Alike { hosts, each } => hosts.saturating_mul(*each),
            Self::Unlike(sizes) => sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)),
        }
    }

    /// Whether there is only one.
    pub fn is_one(&self) -> bool {
        matches!(self, Self::Alike { hosts: 1, .. }) || matches!(self, Self::Unlike(sizes) if sizes.len() == 1)
    }

    /// The host of each of `ranks` ranks.
    pub fn of_ranks(&self, ranks: usize) -> Result<Vec<u32>, String> {
        let sizes = match self {
            Self::Alike { hosts, each } if hosts.checked_mul(*each) == Some(ranks) => vec![*each; *hosts],
            Self::Unlike(sizes) if sizes.iter().sum::<usize>() == ranks => sizes.clone(),
            Self::Alike { hosts, each } => {
                return Err(format!(
                    "--hosts: {} of {} are not the {} that --ranks says",
                    counted(*hosts, "host"),
                    counted(*each, "rank"),
                    counted(ranks, "rank")
                ));
            }
            Self::Unlike(sizes) => {
                let sum: usize = sizes.iter().sum();
                return Err(format!(
                    "--hosts: the hosts have {} together, but --ranks says {ranks}",
                    counted(sum, "rank")
                ));
            }
        };
        Ok(sizes.iter().zip(0..).flat_map(|(&size, host)| std::iter::repeat_n(host, size)).collect())
    }
}

impl Surroundings {
    /// The network for `ranks` ranks; without `hosts` every rank has a host of its own, with links as `far`.
    pub fn new(
        ranks: usize,
        far: Network,
        local: Link,
        hosts: Option<&Hosts>,
        links: Option<&Path>,
    ) -> Result<Self, String> {
        let Network { remote, overhead, gap, gamma, .. } = far;
        let link = |link: Link| format!("α {}, {}", parse::duration_text(link.latency), rate(link.bandwidth));
        let own_time = |(name, seconds): (&str, f64)| {
            (seconds > 0.0).then(|| format!(", {name} {}", parse::duration_text(seconds)))
        };
        let own_time: String = [("o", overhead), ("g", gap)].into_iter().filter_map(own_time).collect();
        let gamma = if gamma > 0.0 { rate(1.0 / gamma) } else { "no time".to_owned() };
        let mut surroundings = match hosts {
            None => Self {
                network: far,
                hosts: (0..ranks as u32).collect(),
                links: Vec::new(),
                text: format!("each rank on its own host; {}{own_time}; reduces at {gamma}", link(remote)),
            },
            Some(hosts) => {
                let hosts = hosts.of_ranks(ranks)?;
                let number = hosts.last().map_or(0, |&host| host + 1);
                let each = hosts.chunk_by(|a, b| a == b).map(<[u32]>::len);
                let (min, max) = each.fold((usize::MAX, 0), |(low, high), n| (low.min(n), high.max(n)));
                let network = Network { local, per_host: max, cores: max, ..far };
                let each = if min == max { counted(max, "rank") } else { format!("{min} to {max} ranks") };
                let text = format!(
                    "{} of {each}; between hosts {}{own_time}; inside {}; reduces at {gamma}",
                    counted(number as usize, "host"),
                    link(remote),
                    link(local)
                );
                Self { network, hosts, links: Vec::new(), text }
            }
        };
        if let Some(path) = links {
            let says = |error: String| format!("--links {}: {error}", path.display());
            surroundings.links = matrix(path, remote.bandwidth).map_err(says)?;
            let rows = surroundings.links.len().isqrt();
            if rows != ranks {
                return Err(says(format!("it is of {}, but --ranks says {ranks}", counted(rows, "rank"))));
            }
            surroundings.text = format!("links of {}; reduces at {gamma}", path.display());
        }
        Ok(surroundings)
    }

    /// The links in the form that algorithms take.
    pub fn links_in_megabytes(&self) -> Vec<u32> {
        let whole = |bandwidth: f64| match bandwidth {
            0.0 => 0,
            _ => (bandwidth / 1e6).round().clamp(1.0, f64::from(u32::MAX)) as u32,
        };
        self.links.iter().map(|&bandwidth| whole(bandwidth)).collect()
    }
}

/// Reads bytes per second from each rank to each from a file: comma-separated values, a row for each sender, or `links`
/// of a tuning file. Numbers with a unit are bandwidths; without one they are relative, and the largest is as fast as
/// `fastest`.
fn matrix(path: &Path, fastest: f64) -> Result<Vec<f64>, String> {
    if path.extension().is_some_and(|extension| extension == "toml") {
        let links = Tuning::read(path).map_err(|error| error.to_string())?.links;
        if links.is_empty() {
            return Err("there are no links in it".into());
        }
        return Ok(relative(links.into_iter().map(f64::from).collect(), fastest));
    }
    let until = Until::after(environment::default_timeout().map_err(|error| error.to_string())?);
    let text = file::read(path, MAX_FILE_BYTES, until).map_err(|error| format!("cannot read it: {error}"))?;
    let text = String::from_utf8(text).map_err(|error| format!("cannot read it: {error}"))?;
    let rows = || text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    let ranks = rows().count();
    if ranks > MAX_RANKS {
        return Err(format!("it has {ranks} rows, one for each rank; there can be {MAX_RANKS}"));
    }
    let mut links = Vec::new();
    let mut units = false;
    for (row, line) in rows() {
        let values: Vec<&str> = row.split(',').map(str::trim).collect();
        if values.len() != ranks {
            return Err(format!(
                "line {line} has {}, but the number of rows is {ranks}",
                counted(values.len(), "value")
            ));
        }
        for value in values {
            units |= value.ends_with("/s");
            let plain = value.parse::<f64>().ok().filter(|v| (0.0..1e18).contains(v));
            links.push(plain.map_or_else(|| parse::bandwidth(value).map_err(|e| format!("line {line}: {e}")), Ok)?);
        }
    }
    if links.is_empty() {
        return Err("there is nothing in it".into());
    }
    Ok(if units { links } else { relative(links, fastest) })
}

fn relative(links: Vec<f64>, fastest: f64) -> Vec<f64> {
    let max = links.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    links.into_iter().map(|link| link / max * fastest).collect()
}

/// `25 GB/s`.
fn rate(bandwidth: f64) -> String {
    let units = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bandwidth >= *unit).unwrap_or((1.0, "B/s"));
    format!("{} {name}", (bandwidth / unit * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LINK: Link = Link { latency: 1e-5, bandwidth: 1e9 };

    fn new(ranks: usize, hosts: Option<&Hosts>, links: Option<&Path>) -> Result<Surroundings, String> {
        Surroundings::new(ranks, Network::flat(LINK, 5e-11), LINK, hosts, links)
    }

    #[test]
    fn hosts_as_people_write_them() {
        assert_eq!(hosts("128x8"), Ok(Hosts::Alike { hosts: 128, each: 8 }));
        assert_eq!(hosts("8,8,4"), Ok(Hosts::Unlike(vec![8, 8, 4])));
        assert_eq!(hosts("5"), Ok(Hosts::Unlike(vec![5])));
        for text in ["4294967295x4294967295", "4294967295,4294967295", "65537x1"] {
            assert!(hosts(text).unwrap_err().contains("too many; there can be 65536"), "{text}");
        }
        assert!(dims("4294967295x4294967295x4294967295").unwrap_err().contains("too many"));
        assert_eq!(link("1us,25GB/s"), Ok(Link { latency: 1e-6, bandwidth: 25e9 }));
        for (text, why) in
            [("25GB/s", "not a link"), ("1,25GB/s", "without a unit; write 1us"), ("1us,25GB", "not a bandwidth")]
        {
            assert!(link(text).unwrap_err().contains(why), "{text}");
        }
        for text in ["", "x", "0x4", "4x", "4,0", "4,,4", "2x2x2", "-1"] {
            assert!(hosts(text).is_err(), "{text}");
        }
        assert_eq!(caches("2x3").unwrap().of_ranks(6), Ok(vec![0, 0, 0, 1, 1, 1]));
        assert_eq!(caches("2x1x2").unwrap().of_ranks(4), Ok(vec![0, 0, domain(1, 1), domain(1, 1)]));
        assert!(
            caches("2x3").unwrap().of_ranks(5).unwrap_err().contains("1 x 2 caches of 3 ranks are not the 5 ranks")
        );
        for text in ["4", "2x2x2x2", "0x2", "x"] {
            assert!(caches(text).is_err(), "{text}");
        }
        assert_eq!(dims("4x2"), Ok(vec![4, 2]));
        assert!(dims("4x").is_err() && dims("0x4").is_err());
        let two = new(4, Some(&hosts("2x2").unwrap()), None).unwrap();
        assert_eq!((&two.hosts[..], two.network.per_host), (&[0, 0, 1, 1][..], 2));
        let uneven = new(5, Some(&hosts("1,3,1").unwrap()), None).unwrap();
        assert_eq!((&uneven.hosts[..], uneven.network.per_host), (&[0, 1, 1, 1, 2][..], 3));
        let error = new(5, Some(&hosts("2x2").unwrap()), None).unwrap_err();
        assert!(error.contains("2 hosts of 2 ranks are not the 5 ranks"), "{error}");
        let error = new(5, Some(&hosts("2,2").unwrap()), None).unwrap_err();
        assert!(error.contains("4 ranks together, but --ranks says 5"), "{error}");
    }

    fn file(text: &str, suffix: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn links_from_files() {
        let links = |text: &str, suffix: &str| new(2, None, Some(file(text, suffix).path())).map(|s| s.links);
        assert_eq!(links("0, 4\n2, 0\n", ".csv"), Ok(vec![0.0, 1e9, 5e8, 0.0]), "relative to --bandwidth");
        assert_eq!(links("# who to whom\n0,4MB/s\n2GB/s,0\n", ".csv"), Ok(vec![0.0, 4e6, 2e9, 0.0]));
        assert_eq!(links("version = 1\nlinks = [[0, 10], [5, 0]]\n", ".toml"), Ok(vec![0.0, 1e9, 5e8, 0.0]));
        let refused = |text: &str, suffix: &str, why: &str| {
            let error = links(text, suffix).unwrap_err();
            assert!(error.starts_with("--links ") && error.contains(why), "{error}");
        };
        refused("0,1\n", ".csv", "line 1 has 2 values, but the number of rows is 1");
        refused("0,1,1\n1,0,1\n1,1,0\n", ".csv", "it is of 3 ranks, but --ranks says 2");
        refused("0,fast\n1,0\n", ".csv", "line 1: \"fast\" is not a bandwidth");
        // A matrix of this many ranks would need 73 TiB.
        refused(&"0\n".repeat(3_162_278), ".csv", "it has 3162278 rows, one for each rank; there can be 65536");
        refused("", ".csv", "nothing in it");
        refused("version = 1\n", ".toml", "no links");
        let error = new(2, None, Some(Path::new("/nowhere.csv"))).unwrap_err();
        assert!(error.contains("cannot read it"), "{error}");
    }
}

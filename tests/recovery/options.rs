//! The command line.

pub struct Options {
    /// Kills in all.
    pub kills: usize,
    /// Numbers of ranks of the jobs.
    pub ranks: Vec<usize>,
    pub seed: u64,
    /// Where to write the latencies as JSON.
    pub json: Option<String>,
    /// The parts to run; all if empty.
    parts: Vec<String>,
}

impl Options {
    /// Exits with a message if the arguments are wrong.
    pub fn from_arguments() -> Self {
        Self::parse(std::env::args().skip(1)).unwrap_or_else(|wrong| {
            eprintln!("recovery: {wrong}");
            std::process::exit(2);
        })
    }

    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { kills: 300, ranks: vec![2, 4, 8], seed: 20_26, json: None, parts: Vec::new() };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let number = |text: &str| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
            match argument.as_str() {
                "--kills" => options.kills = number(&value()?)?,
                "--ranks" => options.ranks = value()?.split(',').map(number).collect::<Result<_, _>>()?,
                "--seed" => options.seed = number(&value()?)? as u64,
                "--json" => options.json = Some(value()?),
                // These options are for the test harness of the other tests, when cargo runs all.
                _ if argument.starts_with('-') => {}
                _ => options.parts.push(argument),
            }
        }
        if options.ranks.is_empty() || options.ranks.iter().any(|size| *size < 2) {
            return Err("--ranks must be a list of numbers of 2 or more".to_owned());
        }
        Ok(options)
    }

    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|name| part.contains(name.as_str()))
    }
}

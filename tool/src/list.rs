//! `gloo-rs list`: the collectives, algorithms, data types and operations.

use gloo_rs::collective::Collective;
use gloo_rs::types::{DataType, ReduceOp};
use serde::Serialize;

mod algorithms;

use crate::Failure;
use algorithms::{ALGORITHMS, Explained};
use gloo_rs::nearest;

const EXAMPLES: &str = "\
Examples:
  gloo-rs list                                         everything that there is
  gloo-rs list --explain ring_segmented                what this algorithm does, and for what it is good";

/// Show the collectives with their algorithms, the data types and the operations
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Say in three lines what this algorithm is
    #[arg(long, value_name = "ALGORITHM", value_parser = explained, conflicts_with = "json")]
    explain: Option<&'static Explained>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn explained(name: &str) -> Result<&'static Explained, String> {
    ALGORITHMS.iter().find(|algorithm| algorithm.name == name).ok_or_else(|| {
        let near = nearest::hint(name, ALGORITHMS.iter().map(|algorithm| algorithm.name));
        format!("there is no such algorithm{near}; `gloo-rs list` prints all")
    })
}

#[derive(Serialize)]
struct List {
    collectives: Vec<Named>,
    dtypes: Vec<Type>,
    ops: Vec<Operation>,
}

#[derive(Serialize)]
struct Named {
    name: &'static str,
    algorithms: Vec<&'static str>,
}

#[derive(Serialize)]
struct Type {
    name: &'static str,
    bytes: usize,
}

#[derive(Serialize)]
struct Operation {
    name: &'static str,
    dtypes: Vec<&'static str>,
    collectives: Vec<&'static str>,
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    let list = list();
    let text = match args.explain {
        Some(algorithm) => Ok(explanation(algorithm, &list)),
        None if args.json => serde_json::to_string(&list).map_err(|error| error.to_string()),
        None => Ok(table(&list)),
    };
    crate::end(text.and_then(|text| crate::print(&text)).map_err(Failure::from))
}

/// Explains the algorithm to a reader, with the collectives that have it.
fn explanation(algorithm: &Explained, list: &List) -> String {
    let Explained { name, does, best, costs } = algorithm;
    let of = list.collectives.iter().filter(|collective| collective.algorithms.contains(name)).map(|c| c.name);
    let of = of.collect::<Vec<_>>().join(", ");
    format!("{name}, of {of}\ndoes   {does}\nbest   {best}\ncosts  {costs}")
}

fn list() -> List {
    let collectives = Collective::ALL.iter().map(|collective| Named {
        name: collective.name(),
        algorithms: collective.algorithms().iter().map(|algorithm| algorithm.name).collect(),
    });
    let ops = ReduceOp::ALL.iter().map(|op| Operation {
        name: op.name(),
        dtypes: DataType::ALL.iter().filter(|dtype| op.supports(**dtype)).map(|dtype| dtype.name()).collect(),
        collectives: Collective::ALL.iter().filter(|c| c.reduces_by(*op)).map(|c| c.name()).collect(),
    });
    List {
        collectives: collectives.collect(),
        dtypes: DataType::ALL.iter().map(|dtype| Type { name: dtype.name(), bytes: dtype.size() }).collect(),
        ops: ops.collect(),
    }
}

fn table(list: &List) -> String {
    let mut lines = vec!["collective         algorithms (besides auto)".to_owned()];
    lines.extend(list.collectives.iter().map(|c| format!("{:17}  {}", c.name, c.algorithms.join(", "))));
    lines.extend([String::new(), "data type          bytes".to_owned()]);
    lines.extend(list.dtypes.iter().map(|dtype| format!("{:17}  {}", dtype.name, dtype.bytes)));
    lines.extend([String::new(), "operation          not for".to_owned()]);
    for op in &list.ops {
        let types = list.dtypes.iter().map(|t| t.name).filter(|name| !op.dtypes.contains(name));
        let reduce = Collective::ALL.iter().filter(|c| c.reduces()).map(|c| c.name());
        let without: Vec<_> = types.chain(reduce.filter(|name| !op.collectives.contains(name))).collect();
        lines.push(format!("{:17}  {}", op.name, if without.is_empty() { "-".to_owned() } else { without.join(", ") }));
    }
    lines.join("\n")
}

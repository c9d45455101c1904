//! Parses Slurm's variables about the hosts of a step.

use super::STORE_ADVICE;
use super::variables::Variables;
use crate::error::{Error, Result};

/// The first host of a list such as `gpu[01-03,7],login`: Slurm's node 0, where task 0 runs.
pub fn first_host(list: &str) -> Result<String> {
    let wrong = |why| Error::invalid(format!("{list:?} is not a list of hosts: {why}"));
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        let (plain, tail) = rest.split_at(end);
        if plain.contains(']') {
            return Err(wrong("a ] without its ["));
        }
        host.push_str(plain);
        let Some(inside) = tail.strip_prefix('[') else { break };
        let (ranges, after) = inside.split_once(']').ok_or_else(|| wrong("a [ without its ]"))?;
        let first = ranges.split([',', '-']).next().unwrap_or_default();
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong("between [ and ] there must be numbers and ranges"));
        }
        host.push_str(first);
        rest = after;
    }
    if host.is_empty() { Err(wrong("the first host has no name")) } else { Ok(host) }
}

/// Fails if rank 0 is not on the `first` host of the list, where the others look for it (an arbitrary distribution, or
/// a step of which only the job's list of hosts is known): on rank 0, and on the ranks of the first host, as far as
/// Slurm tells them.
pub fn check_rank_0_is_on(first: &str, list: &str, rank: usize, variables: &Variables<'_>) -> Result<()> {
    let [node, ranks, name] = ["SLURM_NODEID", "SLURM_GTIDS", "SLURMD_NODENAME"].map(|name| variables.text(name));
    let (node, ranks, name) = (node?, ranks?, name?);
    let said = match (node.as_deref(), ranks, name) {
        (Some(node), ..) if rank == 0 && node != "0" => format!("SLURM_PROCID=0 runs on the node SLURM_NODEID={node}"),
        (_, _, Some(name)) if rank == 0 && name != first => {
            format!("SLURM_PROCID=0 runs on the node SLURMD_NODENAME={name}")
        }
        (Some("0"), Some(ranks), _) if !ranks.split(',').any(|rank| rank.trim() == "0") => {
            format!("the first node has the ranks SLURM_GTIDS={ranks}, and not rank 0")
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "{said}, but the ranks look for rank 0 on {first:?}, the first host of {list}: {STORE_ADVICE}"
    )))
}

/// The number of the step's processes on this host, if Slurm sets it.
pub fn slurm_local_size(variables: &Variables<'_>) -> Result<Option<usize>> {
    let (Some(tasks), Some(node)) = (variables.text("SLURM_STEP_TASKS_PER_NODE")?, variables.text("SLURM_NODEID")?)
    else {
        return Ok(None);
    };
    node.parse().ok().and_then(|node| tasks_of(&tasks, node)).map(Some).ok_or_else(|| {
        Error::invalid(format!(
            "the environment variables SLURM_STEP_TASKS_PER_NODE={tasks:?} and SLURM_NODEID={node:?} do not tell how many \
             processes are on this host"
        ))
    })
}

/// The number for `node` in a list such as `4(x2),3`: 4 on nodes 0 and 1, 3 on node 2.
fn tasks_of(list: &str, mut node: usize) -> Option<usize> {
    for item in list.split(',') {
        let (tasks, times) = match item.strip_suffix(')') {
            Some(item) => item.split_once("(x")?,
            None => (item, "1"),
        };
        let (tasks, times): (usize, usize) = (tasks.parse().ok()?, times.parse().ok()?);
        match node.checked_sub(times) {
            Some(left) => node = left,
            None => return Some(tasks).filter(|tasks| *tasks > 0),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("node0", "node0"),
            ("node0,node1", "node0"),
            ("node[01-03,7]", "node01"),
            ("node[7,9-12],login", "node7"),
            ("rack[1-2]n[08-10]", "rack1n08"),
            ("rack[1-2]n[08-10].example.org,x", "rack1n08.example.org"),
            ("a-b_c.d", "a-b_c.d"),
        ] {
            assert_eq!(first_host(list).unwrap(), host, "{list}");
        }
        for list in ["", ",a", "node[", "node[1", "node]", "node[]", "node[a-b]", "node[1]]", "node[-3]"] {
            let error = first_host(list).unwrap_err();
            assert!(error.message().contains(&format!("{list:?}")), "{error}");
        }
    }

    #[test]
    fn the_tasks_of_a_node() {
        let list = "4(x2),3,1(x100)";
        let found: Vec<_> = [0, 1, 2, 3, 102, 103].map(|node| tasks_of(list, node)).into();
        assert_eq!(found, [Some(4), Some(4), Some(3), Some(1), Some(1), None]);
        for list in ["", "x", "4(x", "4(2)", "(x2)", "0", "4)"] {
            assert_eq!(tasks_of(list, 0), None, "{list}");
        }
    }

    /// Slurm's notation for hosts with these `numbers`: consecutive numbers as ranges, padded with zeros.
    fn compress(prefix: &str, numbers: &[u32], width: usize) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &number in numbers {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        let ranges = ranges.iter().map(|&(first, last)| {
            if first == last { format!("{first:0width$}") } else { format!("{first:0width$}-{last:0width$}") }
        });
        format!("{prefix}[{}]", ranges.collect::<Vec<_>>().join(","))
    }

    proptest! {
        #[test]
        fn the_first_of_any_hosts(
            prefix in "[a-z][a-z0-9.-]{0,8}", suffix in "([a-z.-][a-z0-9]{0,4})?", more in "(,[a-z]{1,5}(\\[[0-9]{1,3}\\])?){0,3}",
            mut numbers in proptest::collection::vec(0u32..2000, 1..20), width in 1usize..6,
        ) {
            numbers.sort_unstable();
            numbers.dedup();
            let list = compress(&prefix, &numbers, width) + &suffix + &more;
            prop_assert_eq!(first_host(&list).unwrap(), format!("{prefix}{:0width$}{suffix}", numbers[0]));
        }

        #[test]
        fn any_text_is_a_list_or_an_error(text in "[a-b0-1\\[\\],-]{0,12}") {
            if let Ok(host) = first_host(&text) {
                prop_assert!(!host.is_empty() && !host.contains(['[', ']', ',']), "{}", host);
            }
        }
    }
}

//! The walls between the parts of library and tool: which file may import which. What only tests compile is left out.
//! Also the words that names may have.

mod imports;
mod source;
mod table;
mod tests;
mod words;

use std::collections::BTreeSet;
use std::path::Path;

use imports::{Import, Imports, circles, imports};
use source::{Read, Sources};
use table::Table;

/// Library and tool, read by this function.
fn sources(read: &Read<'_>) -> Sources {
    let mut sources = Sources::default();
    sources.add_crate("gloo_rs", "src/lib.rs", read);
    sources.add_crate("tool", "tool/src/main.rs", read);
    sources
}

/// A file of this repository.
fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).ok()
}

fn of_repository() -> (Sources, Imports) {
    let sources = sources(&read);
    let (imports, unresolved) = imports(&sources);
    assert!(unresolved.is_empty(), "paths that lead nowhere: {unresolved:#?}");
    assert!(imports.len() > 500, "only {} imports were found", imports.len());
    (sources, imports)
}

/// Where a file imports from another one, for a person to find it.
fn shown(sources: &Sources, imports: &Imports, import: Import) -> String {
    let (line, path) = &imports[&import][0];
    let [from, to] = [import.0, import.1].map(|file| &sources.files[file].name);
    format!("{from}:{line}: {path}, of {to}")
}

/// The imports that the table forbids.
fn against(table: &Table, sources: &Sources, imports: &Imports) -> Vec<String> {
    let row = |file: usize| {
        let name = &sources.files[file].name;
        table.row_of(name).unwrap_or_else(|| panic!("docs/architecture.md: no floor of the table has {name}"))
    };
    let is_root = |file: usize| sources.files[file].parent.is_none();
    let is_forbidden = |&(from, to): &Import| {
        !is_root(from) && !is_root(to) && row(from) != row(to) && table.floor(row(from)) <= table.floor(row(to))
    };
    imports.keys().copied().filter(is_forbidden).map(|import| shown(sources, imports, import)).collect()
}

/// Files and folders that stand behind the interface of the floor they are on: only those named beside them may import
/// them. The first are transports, the second stores; users of the C ABI and of the tool choose one of them.
const BEHIND: [(&[&str], &[&str]); 2] = [
    (
        &["src/transport/tcp/", "src/transport/shm/", "src/transport/ibverbs/"],
        &["src/transport/", "src/ffi/", "tool/src/"],
    ),
    (
        &[
            "src/rendezvous/callback.rs",
            "src/rendezvous/file.rs",
            "src/rendezvous/in_process.rs",
            "src/rendezvous/prefix.rs",
            "src/rendezvous/redis/",
            "src/rendezvous/tcp/",
        ],
        &["src/rendezvous/", "src/ffi/", "tool/src/"],
    ),
];
/// This one is a part of the interface, under the name `transport::Allocations`: without shared memory it is ordinary
/// memory.
const IN_FRONT: &str = "src/transport/shm/allocations.rs";

/// The imports of what is [`BEHIND`] an interface by files that may not know it.
fn past_interfaces(sources: &Sources, imports: &Imports) -> Vec<String> {
    let is_in = |file: usize, paths: &[&str]| paths.iter().any(|path| sources.files[file].name.starts_with(path));
    let is_forbidden = |&(from, to): &Import| {
        let mut all = BEHIND.iter();
        sources.files[to].name != IN_FRONT && all.any(|(behind, may)| is_in(to, behind) && !is_in(from, may))
    };
    imports.keys().copied().filter(is_forbidden).map(|import| shown(sources, imports, import)).collect()
}

/// The imports within each circle of files.
fn all_circles(sources: &Sources, imports: &Imports) -> Vec<String> {
    let all: BTreeSet<Import> = imports.keys().copied().collect();
    let told = |circle: &_| {
        let within = all.iter().filter(|(from, to)| BTreeSet::contains(circle, from) && circle.contains(to));
        within.map(|import| format!("\n  {}", shown(sources, imports, *import))).collect()
    };
    circles(sources, &all).iter().map(told).collect()
}

#[test]
fn a_floor_imports_only_from_floors_below_it() {
    let (sources, imports) = of_repository();
    let table = Table::read(&read("docs/architecture.md").unwrap());
    let forbidden = against(&table, &sources, &imports);
    assert!(
        forbidden.is_empty(),
        "imports that the table of floors in docs/architecture.md forbids:\n  {}",
        forbidden.join("\n  ")
    );
}

#[test]
fn transports_and_stores_are_known_to_who_chooses_one_alone() {
    let (sources, imports) = of_repository();
    let past = past_interfaces(&sources, &imports);
    assert!(past.is_empty(), "imports of particular transports or stores:\n  {}", past.join("\n  "));
}

#[test]
fn no_file_imports_in_a_circle() {
    let (sources, imports) = of_repository();
    let circles = all_circles(&sources, &imports);
    let text = circles.join("\n");
    assert!(circles.is_empty(), "files that import each other in circles, {} of them:{text}", circles.len());
}

//! The walls between the parts of library and tool: which file may import which. What only tests compile is left out.

mod imports;
mod source;
mod table;
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use imports::{Import, Imports, circles, imports};
use source::{Read, Sources};
use table::Table;

/// Imports that make circles, each to be removed here with the circle: `(from, to)`.
const IN_CIRCLES: &[(&str, &str)] = &[
    ("src/messaging/peer.rs", "src/messaging/offers.rs"),
    ("src/messaging/send.rs", "src/messaging/placements.rs"),
    ("src/transport/ibverbs/library.rs", "src/transport/ibverbs/handles.rs"),
    ("src/transport/ibverbs/rail.rs", "src/transport/ibverbs/port.rs"),
    ("src/transport/ibverbs/shared.rs", "src/transport/ibverbs/connection/mod.rs"),
    ("src/transport/shm/segment.rs", "src/transport/shm/allocations.rs"),
    ("src/transport/tcp/connector.rs", "src/transport/tcp/device.rs"),
    ("src/transport/tcp/link.rs", "src/transport/tcp/device.rs"),
    ("src/transport/tcp/relay.rs", "src/transport/tcp/device.rs"),
    ("src/transport/tcp/relay.rs", "src/transport/tcp/streams.rs"),
];

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

/// The circles that are left without these imports, and which of these need not be left out.
fn circles_without(allowed: &[(&str, &str)], sources: &Sources, imports: &Imports) -> (Vec<String>, Vec<String>) {
    let all: BTreeSet<Import> = imports.keys().copied().collect();
    let file = |name: &str| sources.files.iter().position(|file| file.name == name);
    let find = |(from, to): (&str, &str)| all.get(&(file(from)?, file(to)?)).copied();
    let but = |one: Option<(&str, &str)>| {
        let left_out: Vec<Import> =
            allowed.iter().filter(|its| Some(**its) != one).filter_map(|its| find(*its)).collect();
        circles(sources, &all.iter().copied().filter(|import| !left_out.contains(import)).collect())
    };
    let found = but(None);
    let told = found.iter().map(|circle| {
        let within = all.iter().filter(|(from, to)| circle.contains(from) && circle.contains(to));
        within.map(|import| format!("\n  {}", shown(sources, imports, *import))).collect()
    });
    let is_needless = |one: &&(&str, &str)| find(**one).is_none() || but(Some(**one)) == found;
    let needless = allowed.iter().filter(is_needless).map(|(from, to)| format!("\n  {from} imports {to}")).collect();
    (told.collect(), needless)
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
fn no_file_imports_in_a_circle() {
    let (sources, imports) = of_repository();
    let (circles, needless) = circles_without(IN_CIRCLES, &sources, &imports);
    let text = circles.join("\n");
    assert!(circles.is_empty(), "files that import each other in circles, {} of them:{text}", circles.len());
    assert!(needless.is_empty(), "no longer in a circle, so IN_CIRCLES must not name it:{}", needless.concat());
}

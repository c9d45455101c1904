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
fn no_file_imports_in_a_circle() {
    let (sources, imports) = of_repository();
    let circles = all_circles(&sources, &imports);
    let text = circles.join("\n");
    assert!(circles.is_empty(), "files that import each other in circles, {} of them:{text}", circles.len());
}

//! Made-up crates, to see that nothing is overlooked.

use std::collections::BTreeSet;

use crate::imports::imports;
use crate::source::Sources;
use crate::table::Table;
use crate::{against, all_circles, past_interfaces};

/// A crate of these files, with the library's name.
fn made_up(files: &[(&str, &str)]) -> Sources {
    let mut sources = Sources::default();
    let read = |name: &str| files.iter().find(|file| file.0 == name).map(|file| file.1.to_owned());
    sources.add_crate("gloo_rs", "src/lib.rs", &read);
    sources
}

/// What imports what, as `from:line: to`, for files in `src/`.
fn found(sources: &Sources) -> BTreeSet<String> {
    let (imports, unresolved) = imports(sources);
    assert_eq!(unresolved, Vec::<String>::new());
    let name = |file: usize| sources.files[file].name.trim_start_matches("src/").trim_end_matches(".rs");
    let lines = imports.iter().flat_map(|(&(from, to), places)| {
        places.iter().map(move |(line, _)| format!("{}:{line}: {}", name(from), name(to)))
    });
    lines.collect()
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn every_kind_of_import_is_found() {
    let sources = made_up(&[
        (
            "src/lib.rs",
            "mod a;\nmod b;\n#[cfg(unix)]\nmod c;\n#[cfg(not(unix))]\n#[path = \"absent/c.rs\"]\nmod c;\nmod d;\nmod user;\n",
        ),
        ("src/a/mod.rs", "pub mod deep;\npub use deep::Thing as Renamed;\npub use self::deep::*;\npub struct Here;\n"),
        (
            "src/a/deep.rs",
            "pub struct Thing;\npub fn act() {}\nmod inner { pub(super) fn up() { super::super::Here; crate::d::Kind::One; } }\n",
        ),
        ("src/b.rs", "pub mod child;\npub struct B;\n"),
        ("src/b/child.rs", "pub fn f(_: super::B) {}\n"),
        ("src/c.rs", "pub fn f() {}\n"),
        ("src/absent/c.rs", "pub fn f() {}\n"),
        ("src/d.rs", "named! { pub enum Kind { One } }\npub const D: u8 = 0;\n"),
        (
            "src/user.rs",
            r##"//! crate::d::D is a comment.
use crate::{
    a::{self, Here, Renamed},
    b::{child::{self as grandchild}, B as _},
};
use std::fmt::{self, Display};
/* crate::d::D /* is */ a comment */
const TEXT: &str = "crate::d::D is a \" string";
const RAW: &str = r#"crate::d::D is "a" string"#;
const QUOTE: char = '"'; const OTHER: u8 = b'\''; fn lifetime<'a>(_: &'a str) {}
fn code(x: &impl Display) -> fmt::Result {
    grandchild::f(B);
    a::act();
    crate::c::f();
    let _ = <crate::d::Kind as Default>::default();
    super::a::deep::act();
    x.crate_field.c::<u8>();
    gloo_rs::d::D;
}
"##,
        ),
    ]);
    let expected = set(&[
        "a/mod:2: a/deep",
        "a/mod:3: a/deep",
        "a/deep:3: a/mod",
        "a/deep:3: d",
        "b/child:1: b",
        "user:3: a/mod",
        "user:3: a/deep",
        "user:4: b/child",
        "user:4: b",
        "user:12: b/child",
        "user:13: a/deep",
        "user:14: c",
        "user:14: absent/c",
        "user:15: d",
        "user:16: a/deep",
        "user:18: d",
    ]);
    assert_eq!(found(&sources), expected);
}

#[test]
fn what_only_tests_compile_is_left_out() {
    let sources = made_up(&[
        (
            "src/lib.rs",
            "mod a;\n#[cfg(test)]\nmod tests;\n#[cfg(any(test, fuzzing))]\npub mod fuzz;\n#[cfg(all(test, not(loom)))]\nmod more;\nmod b;\nmod whole;\n",
        ),
        ("src/b.rs", "pub fn f() {}\n"),
        ("src/whole.rs", "#![cfg(loom)]\nuse crate::b::f;\n"),
        (
            "src/a.rs",
            "//! A comment.
#[cfg(not(test))]
use crate::b::f as kept;

/// Only in tests.
#[cfg(test)]
use crate::{b::f, b};
#[cfg(test)]
#[derive(Debug)]
struct S { x: crate::b::T }
struct T {
    #[cfg(test)]
    x: crate::b::T,
}
#[cfg(all(test, unix))]
mod tests {
    use crate::b::f;
}
#[cfg(any(test, unix))]
use crate::b::g as also_kept;
",
        ),
    ]);
    assert_eq!(found(&sources), set(&["a:3: b", "a:20: b"]));
    let names: Vec<&str> = sources.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["src/lib.rs", "src/a.rs", "src/b.rs", "src/whole.rs"]);
    let counts: Vec<_> = sources.files.iter().map(crate::source::File::count).collect();
    assert_eq!(counts, [(3, 3), (7, 6), (1, 1), (0, 0)]);
}

#[test]
fn a_path_that_leads_nowhere_is_told() {
    let sources = made_up(&[("src/lib.rs", "mod a;\n"), ("src/a.rs", "\nuse crate::absent::X;\n")]);
    assert_eq!(imports(&sources).1, ["src/a.rs:2: crate::absent::X"]);
}

const CIRCLES: [(&str, &str); 8] = [
    ("src/lib.rs", "mod parent;\nmod x;\nmod y;\nmod z;\n"),
    // The parent and its children import each other; the children do not.
    ("src/parent/mod.rs", "mod one;\nmod two;\npub use one::One;\npub use two::Two;\npub struct P;\n"),
    ("src/parent/one.rs", "use super::P;\nuse super::Two;\npub struct One;\n"),
    ("src/parent/two.rs", "mod inner;\nuse super::P;\npub struct Two;\n"),
    ("src/parent/two/inner.rs", "use crate::parent::P;\n"),
    ("src/x.rs", "use crate::y::Y;\npub struct X;\n"),
    ("src/y.rs", "pub struct Y(crate::z::Z);\n"),
    ("src/z.rs", "pub struct Z;\n"),
];

/// The circles in `CIRCLES` with another text of one file.
fn circles_with(name: &str, text: &str) -> usize {
    let files = CIRCLES.map(|file| if file.0 == name { (name, text) } else { file });
    let sources = made_up(&files);
    all_circles(&sources, &imports(&sources).0).len()
}

#[test]
fn circles_are_found_but_those_of_a_module_and_its_children() {
    assert_eq!(circles_with("", ""), 0);
    assert_eq!(circles_with("src/parent/two.rs", "mod inner;\nuse super::One;\npub struct Two;\n"), 1);
    assert_eq!(circles_with("src/z.rs", "pub struct Z;\nfn f() { crate::x::X; }\n"), 1);
}

#[test]
fn a_circle_through_a_module_and_a_child_of_it_is_found() {
    let x_imports_parent = "use crate::parent::P;\npub struct X;\n";
    assert_eq!(circles_with("src/x.rs", x_imports_parent), 0);
    let files = CIRCLES.map(|file| match file.0 {
        "src/x.rs" => (file.0, x_imports_parent),
        "src/parent/one.rs" => (file.0, "use crate::x::X;\npub struct One;\n"),
        _ => file,
    });
    let sources = made_up(&files);
    assert_eq!(all_circles(&sources, &imports(&sources).0).len(), 1);
}

#[test]
fn imports_upwards_and_sideways_are_found() {
    let page = "# A\n## Floors\n| floor | where | what |\n|---|---|---|\n| 2 | `src/{x,y}.rs` | `src/z.rs` |\n| 1 | `src/z.rs` | |\n\
                | 1 | `src/parent/<any>/a.rs` | |\n## B\n| 9 | `src/z.rs` | |\n";
    let table = Table::read(page);
    let check = |z: &str| {
        let files = CIRCLES.map(|file| if file.0 == "src/z.rs" { (file.0, z) } else { file });
        let sources = made_up(&files);
        against(&table, &sources, &imports(&sources).0)
    };
    assert_eq!(check("pub struct Z;\n"), Vec::<String>::new());
    assert_eq!(check("use crate::parent::P;\n"), ["src/z.rs:1: crate::parent::P, of src/parent/mod.rs"]);
    assert_eq!(check("\nuse crate::x::X;\n"), ["src/z.rs:2: crate::x::X, of src/x.rs"]);
}

#[test]
fn imports_of_particular_transports_are_found() {
    let check = |engine: &str| {
        let sources = made_up(&[
            ("src/lib.rs", "mod engine;\nmod transport;\n"),
            ("src/transport/mod.rs", "pub mod device;\npub mod shm;\npub use shm::Allocations;\npub trait Link {}\n"),
            ("src/transport/device.rs", "use super::shm::Group;\n"),
            ("src/transport/shm/mod.rs", "mod allocations;\npub use allocations::Allocations;\npub struct Group;\n"),
            ("src/transport/shm/allocations.rs", "pub struct Allocations;\n"),
            ("src/engine.rs", engine),
        ]);
        past_interfaces(&sources, &imports(&sources).0)
    };
    assert_eq!(check("use crate::transport::{Allocations, Link};\n"), Vec::<String>::new());
    let found = ["src/engine.rs:1: crate::transport::shm::Group, of src/transport/shm/mod.rs"];
    assert_eq!(check("use crate::transport::{Link, shm::Group};\n"), found);
}

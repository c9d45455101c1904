//! The files, sections and environment variables that the documentation refers to exist.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below `folder` with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
    found
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name)));
    pages
}

/// The lines of a page that are not in code blocks.
fn prose(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut in_code = false;
    let outside = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    };
    text.lines().filter(outside).map(str::to_owned).collect()
}

/// The anchors of a page's headings, as GitHub generates them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(page).into_iter().filter(|line| line.starts_with('#'));
    let anchors = headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    anchors.collect()
}

#[test]
fn links_lead_to_existing_files_and_sections() {
    let mut links = 0;
    for page in pages() {
        for line in prose(&page) {
            for rest in line.split("](").skip(1) {
                let target = rest.split(')').next().unwrap();
                if target.contains("://") {
                    continue;
                }
                let (file, anchor) =
                    target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
                let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
                assert!(path.exists(), "{}: there is no {target}", page.display());
                if let Some(anchor) = anchor {
                    assert!(anchors(&path).contains(anchor), "{}: there is no section {target}", page.display());
                }
                links += 1;
            }
        }
    }
    assert!(links > 50, "only {links} links were found");
}

/// The names of this library's environment variables in `text` that are enclosed by `before` and `after`.
fn variables(text: &str, before: char, after: char) -> BTreeSet<String> {
    let is_name = |name: &&str| {
        name.strip_prefix("GLOO_RS_")
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let names = text.split(before).skip(1).filter_map(|rest| rest.split(after).next());
    names.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn one_page_lists_the_environment_variables_that_are_read() {
    let sources = ["src", "tool/src"].map(|folder| files(&root().join(folder), "rs")).concat();
    let is_test = |path: &PathBuf| path.components().any(|part| part.as_os_str().to_string_lossy().contains("tests"));
    // Names of statuses look the same.
    let is_status = |path: &PathBuf| path.ends_with("src/ffi/status.rs");
    let read: BTreeSet<String> = sources
        .iter()
        .filter(|path| !is_test(path) && !is_status(path))
        .flat_map(|path| variables(&std::fs::read_to_string(path).unwrap(), '"', '"'))
        // Those of the library's own tests.
        .filter(|name| !name.starts_with("GLOO_RS_TEST_"))
        .collect();
    let page = std::fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let rows: String = page.lines().filter(|line| line.starts_with("| `GLOO_RS_")).collect();
    assert_eq!(variables(&rows, '`', '`'), read);
    assert!(read.len() > 5, "{read:?}");
}

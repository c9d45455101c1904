//! What the documentation refers to exists: files, sections, environment variables, commands, installed folders,
//! recorded figures. The index of the pages is complete, and their paragraphs are short.

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
        } else if path.extension().is_some_and(|other| other == extension) {
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

/// The lines of a page that are in code blocks, or those that are not.
fn lines(page: &Path, code: bool) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut in_code = false;
    let wanted = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        in_code == code && !fence
    };
    text.lines().filter(wanted).map(str::to_owned).collect()
}

fn prose(page: &Path) -> Vec<String> {
    lines(page, false)
}

/// What stands between backquotes in a text.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
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

#[test]
fn every_page_is_in_the_index() {
    let index = root().join("docs/README.md");
    let text = prose(&index).join("\n");
    let targets = text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap());
    let listed: BTreeSet<PathBuf> = targets.map(|target| root().join("docs").join(target)).collect();
    for page in files(&root().join("docs"), "md").into_iter().filter(|page| *page != index) {
        assert!(listed.contains(&page), "docs/README.md does not list {}", page.display());
    }
    assert!(
        prose(&root().join("README.md")).join("\n").contains("](docs/README.md)"),
        "README.md does not link the index"
    );
}

/// Most lines of a paragraph or of an item of a list, and fewest characters of a table's cell that are too many.
const PARAGRAPH_LINES: usize = 5;
const CELL_CHARACTERS: usize = 200;

/// Paragraphs and cells of a page that are too long, each with its line.
fn too_long(text: &str) -> Vec<String> {
    let (mut found, mut in_code, mut length) = (Vec::new(), false, 0);
    for (at, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        in_code ^= is_fence;
        let (first, rest) = start.split_once(' ').unwrap_or((start, ""));
        let is_item = !rest.is_empty()
            && (["-", "*"].contains(&first)
                || first.strip_suffix('.').is_some_and(|number| number.parse::<u32>().is_ok()));
        if in_code || is_fence || start.is_empty() || start.starts_with(['#', '|']) {
            length = 0;
        } else {
            length = if is_item { 1 } else { length + 1 };
            if length == PARAGRAPH_LINES + 1 {
                found.push(format!("line {}: more than {PARAGRAPH_LINES} lines in one paragraph", at + 1));
            }
        }
        if !in_code && start.starts_with('|') {
            let cells = start.split('|').map(|cell| cell.trim().chars().count());
            let long = cells.filter(|length| *length >= CELL_CHARACTERS);
            found.extend(long.map(|length| format!("line {}: a cell of {length} characters", at + 1)));
        }
    }
    found
}

#[test]
fn paragraphs_and_cells_are_short() {
    let lines = "one\n".repeat(PARAGRAPH_LINES);
    let cell = "x".repeat(CELL_CHARACTERS - 1);
    let short = format!("{lines}\n{lines}- {lines}1. {lines}\n| a | {cell} |\n```\n{lines}{lines}```\n{lines}");
    assert_eq!(too_long(&short), Vec::<String>::new());
    assert_eq!(too_long(&format!("# A\n{lines}more\nand more\n")), ["line 7: more than 5 lines in one paragraph"]);
    assert_eq!(too_long(&format!("- {lines}  more\n")), ["line 6: more than 5 lines in one paragraph"]);
    assert_eq!(
        too_long(&format!("| a | b |\n|---|---|\n| {cell}x | {cell} |\n")),
        ["line 3: a cell of 200 characters"]
    );

    let records = root().join("docs/benchmarks");
    for page in files(&root().join("docs"), "md").into_iter().filter(|page| !page.starts_with(&records)) {
        let found = too_long(&std::fs::read_to_string(&page).unwrap());
        assert!(found.is_empty(), "{}:\n  {}", page.display(), found.join("\n  "));
    }
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
    // A test of the library compares this list with the sources.
    let read: BTreeSet<String> = gloo_rs::environment::KNOWN.iter().map(|name| (*name).to_owned()).collect();
    let page = std::fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let rows: String = page.lines().filter(|line| line.starts_with("| `GLOO_RS_")).collect();
    assert_eq!(variables(&rows, '`', '`'), read);
}

/// Names of the Makefile's targets or of the tool's commands.
fn names(file: &str, name_of: impl Fn(&str) -> Option<&str>) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    text.lines().filter_map(name_of).map(str::to_lowercase).collect()
}

fn is_name(word: &&str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[test]
fn commands_of_make_and_of_the_tool_exist() {
    let targets = names("Makefile", |line| line.split_once(':').map(|(name, _)| name).filter(is_name));
    // The variants of `enum Command` are indented by four spaces.
    let variant = |line: &str| line.starts_with("    ") && line.as_bytes()[4].is_ascii_uppercase();
    let tool =
        names("tool/src/main.rs", |line| line.trim().split_once('(').map(|(name, _)| name).filter(|_| variant(line)));
    let mut found = 0;
    for page in pages() {
        let (code, text) = (lines(&page, true), prose(&page).join("\n"));
        let blocks = code.iter().map(|line| line.split(" #").next().unwrap());
        for command in blocks.chain(quoted(&text)).flat_map(|code| code.split("&&")) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let mut first = words.iter().copied().skip_while(|word| word.contains('=') || *word == "sudo");
            if first.next() == Some("make") {
                for target in first.take_while(is_name) {
                    assert!(targets.contains(target), "{}: no target {target} for {command}", page.display());
                    found += 1;
                }
            }
            for pair in words.windows(2).filter(|pair| pair[0] == "gloo-rs" || pair[0].ends_with("/gloo-rs")) {
                if is_name(&pair[1]) && !pair[1].starts_with('-') && pair[1] != "help" {
                    assert!(tool.contains(pair[1]), "{}: the tool has no command {}", page.display(), pair[1]);
                    found += 1;
                }
            }
        }
    }
    assert!(found > 100, "only {found} commands were found");
}

#[test]
fn the_page_on_installing_has_every_folder_that_is_installed_and_no_other() {
    let rules = ["cmake/Install.cmake", "cmake/InstallGloo.cmake"]
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap())
        .concat();
    let mut values: Vec<(String, String)> =
        [("LIBDIR", "lib"), ("INCLUDEDIR", "include"), ("BINDIR", "bin"), ("DATAROOTDIR", "share")]
            .map(|(name, value)| (format!("${{CMAKE_INSTALL_{name}}}"), value.to_owned()))
            .into();
    let expand = |text: &str, values: &[(String, String)]| {
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name.as_str(), value))
    };
    for (name, rest) in rules.lines().filter_map(|line| line.strip_prefix("set(")?.split_once(" \"")) {
        let value = expand(rest.trim_end_matches("\")"), &values);
        values.push((format!("${{{name}}}"), value));
    }
    let installed: BTreeSet<String> = rules
        .split("DESTINATION \"")
        .skip(1)
        .map(|rest| expand(rest.split('"').next().unwrap(), &values) + "/")
        .collect();
    assert!(installed.len() > 8 && !installed.iter().any(|folder| folder.contains('$')), "{installed:?}");

    let page = prose(&root().join("docs/getting-started.md")).join("\n");
    for folder in &installed {
        let covers =
            |path: &&str| path.starts_with(folder.as_str()) || path.ends_with('/') && folder.starts_with(*path);
        assert!(quoted(&page).iter().any(covers), "{folder} is installed");
    }
    let table = page.split("| file | what |").nth(1).unwrap().split("\n\n").next().unwrap();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let path = quoted(row)[0];
        let folder = &path[..=path.rfind('/').unwrap()];
        assert!(installed.iter().any(|file| file.starts_with(folder)), "nothing is installed at {path}");
    }
}

#[test]
fn the_figures_of_the_readme_are_recorded() {
    let record = prose(&root().join("docs/benchmarks/gloo.md"));
    let readme = prose(&root().join("README.md")).join("\n");
    let section = readme.split("## How fast it is").nth(1).unwrap().split("\n## ").next().unwrap();
    let cells = |row: &str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let rows =
        section.lines().filter(|line| line.starts_with("| ") && line.contains("iB |") || line.starts_with("| 4 B"));
    let mut count = 0;
    for row in rows.map(cells) {
        let start = format!("| {} | ", row[1]);
        let recorded = cells(record.iter().find(|line| line.starts_with(&start)).unwrap());
        // A call's time; behind a stroke stands a loop's.
        let figure = |column: usize| recorded[column].split(" / ").next().unwrap().to_owned();
        assert_eq!(row[2..5], [figure(5), figure(2), figure(6)], "{}", row[1]);
        count += 1;
    }
    assert_eq!(count, 4);
}

//! Words that no name in Rust has, since the field has another one for what they once were here. The dictionary of
//! CONTRIBUTING.md has the words that are ours.

use std::path::{Path, PathBuf};

use crate::source::names;

/// Each with the word that takes its place. The words of a name are those between underscores and before capitals.
const WORDS: [(&str, &str); 16] = [
    ("desk", "publication table"),
    ("seat", "entry"),
    ("sit", "enter"),
    ("asked", "requested, queried, polled"),
    ("laggard", "slow reader"),
    ("aside", "copy-in-copy-out"),
    ("crowded", "oversubscribed"),
    ("its", "the name of its owner"),
    ("last words", "close notice"),
    ("lingering", "draining"),
    ("news", "event, notice"),
    ("go on", "continue, advance"),
    ("work off", "drain, progress"),
    ("entrust", "arm"),
    ("unattended", "background"),
    ("holding", "retained, deferred"),
];

/// Names that no type has.
const TYPES: [(&str, &str); 5] = [
    ("Room", "capacity, space"),
    ("Known", "cached, prepared"),
    ("Asked", "call, request"),
    ("Held", "retained"),
    ("Holds", "retention"),
];

/// Names of the C ABI keep their words.
const OF_THE_ABI: [&str; 2] = ["crowded_out", "CrowdedOut"];

/// A longer name is a sentence, that of a test.
const MAX_WORDS: usize = 4;

/// The words of a name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for character in name.chars() {
        if character == '_' || character.is_uppercase() && was_lower {
            words.push(String::new());
        }
        was_lower = character.is_lowercase();
        if character != '_' {
            words.last_mut().unwrap().extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// What a name should not be called, and how instead. `before` is the name before it.
fn wrong(before: &str, name: &str) -> Option<(&'static str, &'static str)> {
    let defines = ["struct", "enum", "trait", "type", "union"].contains(&before);
    if let Some(found) = TYPES.into_iter().find(|(word, _)| defines && name == *word) {
        return Some(found);
    }
    let own = words(name);
    if own.len() > MAX_WORDS || OF_THE_ABI.contains(&name) {
        return None;
    }
    WORDS.into_iter().find(|(word, _)| {
        let word: Vec<_> = word.split(' ').collect();
        own.windows(word.len()).any(|part| part == word)
    })
}

/// Whether a line has the letters of one of the words.
fn has_word(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    WORDS.iter().any(|(word, _)| word.split(' ').all(|part| lower.contains(part)))
        || TYPES.iter().any(|(word, _)| line.contains(word))
}

fn wrong_names(text: &str) -> Vec<(usize, &str, &'static str)> {
    let names = names(text);
    let before = std::iter::once("").chain(names.iter().map(|(name, _)| *name));
    let found = names.iter().zip(before).map(|(&(name, line), before)| (line, name, wrong(before, name)));
    found.filter_map(|(line, name, wrong)| Some((line, name, wrong?.1))).collect()
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}")) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
}

#[test]
fn names_have_the_words_of_the_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for folder in ["src", "tool/src", "tool/tests", "tests", "python/src", "benches", "fuzz/fuzz_targets"] {
        sources(&root.join(folder), &mut all);
    }
    assert!(all.len() > 700, "only {} files", all.len());
    let mut found = Vec::new();
    for path in &all {
        let text = std::fs::read_to_string(path).unwrap();
        // The names of a whole file are slow to find.
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        if !code.any(|line| has_word(line) && !wrong_names(line).is_empty()) {
            continue;
        }
        for (line, name, instead) in wrong_names(&text) {
            found.push(format!("{}:{line}: {name}; the field says: {instead}", path.display()));
        }
    }
    assert!(found.is_empty(), "names that the field has another word for:\n{}", found.join("\n"));
}

#[test]
fn a_word_is_found_in_any_form_of_a_name_and_not_in_texts() {
    let found = |text| wrong_names(text).iter().map(|(line, name, _)| format!("{line}: {name}")).collect::<Vec<_>>();
    let text = "struct LastWords;\nfn go_on() {}\nlet its = 1; const MAX_SEAT: u8 = 0;\nstruct Known;";
    assert_eq!(found(text), ["1: LastWords", "2: go_on", "3: its", "3: MAX_SEAT", "4: Known"]);
    let text = "// its\nlet a = \"its\"; let seats = 1; ElementType::Known; fn a_call_of_its_own_is_found() {}";
    assert_eq!(found(text), [""; 0]);
}

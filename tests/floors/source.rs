//! The modules of a crate, read from its sources as the compiler reads them for a user: without what is compiled only
//! for tests, for fuzzing, for loom, for Miri or for the documentation. A module knows which names it defines and
//! imports, and which paths its code names.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// What no user's build sets.
const UNSET: [&str; 5] = ["doc", "fuzzing", "loom", "miri", "test"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Name,
    Mark,
    /// A string, a character, a number or a lifetime.
    Literal,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    line: usize,
    last_line: usize,
}

impl Token<'_> {
    fn is(&self, mark: &str) -> bool {
        self.kind == Kind::Mark && self.text == mark
    }

    fn names(&self, name: &str) -> bool {
        self.kind == Kind::Name && self.text == name
    }
}

/// The tokens of a text, without comments. `::` is one.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let run = |from: usize| from + bytes[from..].iter().take_while(|byte| is_name(**byte)).count();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let (kind, end) = if bytes[at].is_ascii_whitespace() {
            (None, at + 1)
        } else if rest.starts_with("//") {
            (None, at + rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, at + comment(rest))
        } else if let Some(length) = string(rest).or_else(|| character(rest)) {
            (Some(Kind::Literal), at + length)
        } else if bytes[at] == b'\'' {
            (Some(Kind::Literal), run(at + 1))
        } else if bytes[at].is_ascii_digit() {
            (Some(Kind::Literal), run(at))
        } else if rest.starts_with("r#") {
            (Some(Kind::Name), run(at + 2))
        } else if is_name(bytes[at]) {
            (Some(Kind::Name), run(at))
        } else {
            (Some(Kind::Mark), at + if rest.starts_with("::") { 2 } else { 1 })
        };
        let text = &text[at..end];
        let last_line = line + text.matches('\n').count();
        if let Some(kind) = kind {
            tokens.push(Token { kind, text: text.strip_prefix("r#").unwrap_or(text), line, last_line });
        }
        (at, line) = (end, last_line);
    }
    tokens
}

/// The names in a text and their lines, with keywords, and without those in comments and texts.
pub fn names(text: &str) -> Vec<(&str, usize)> {
    let names = tokens(text).into_iter().filter(|token| token.kind == Kind::Name);
    names.map(|token| (token.text, token.line)).collect()
}

/// The length of the comment, which may hold others, at the beginning of a text.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let two = text.as_bytes().get(at..at + 2);
        match two {
            Some(b"/*") => depth += 1,
            Some(b"*/") => depth -= 1,
            _ => {}
        }
        at += if matches!(two, Some(b"/*" | b"*/")) { 2 } else { 1 };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of the string, raw or not, at the beginning of a text.
fn string(text: &str) -> Option<usize> {
    let letters = text.len() - text.trim_start_matches(['b', 'c']).len();
    if letters > 1 {
        return None;
    }
    let rest = &text[letters..];
    if let Some(rest) = rest.strip_prefix('r') {
        let inner = rest.trim_start_matches('#');
        let hashes = &rest[..rest.len() - inner.len()];
        let end = format!("\"{hashes}");
        let inner = inner.strip_prefix('"')?;
        return Some(letters + 1 + hashes.len() + 1 + inner.find(&end)? + end.len());
    }
    rest.strip_prefix('"').and_then(|inner| Some(letters + 1 + quoted(inner, b'"')?))
}

/// The length of the character or byte in quotes, rather than a lifetime, at the beginning of a text.
fn character(text: &str) -> Option<usize> {
    let letters = usize::from(text.starts_with("b'"));
    let inner = text[letters..].strip_prefix('\'')?;
    let mut characters = inner.chars();
    let first = characters.next()?;
    let is_one = first == '\\' || characters.next() == Some('\'');
    is_one.then(|| quoted(inner, b'\'')).flatten().map(|length| letters + 1 + length)
}

/// The number of bytes up to and with the closing quote.
fn quoted(text: &str, quote: u8) -> Option<usize> {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == quote && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map(|end| end + 1)
}

/// The position after the group of brackets that begins at `at`.
fn after_group(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        if token.kind == Kind::Mark {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return i + 1;
            }
        }
    }
    tokens.len()
}

/// Whether the condition of a `cfg` is true for a user; `None` if it depends on the system or on features.
fn holds(tokens: &[Token<'_>], at: &mut usize) -> Option<bool> {
    let name = tokens[*at].text;
    *at += 1;
    if tokens.get(*at).is_some_and(|token| token.is("=")) {
        *at += 2;
        return None;
    }
    if !tokens.get(*at).is_some_and(|token| token.is("(")) {
        return UNSET.contains(&name).then_some(false);
    }
    *at += 1;
    let mut parts = Vec::new();
    while !tokens[*at].is(")") {
        parts.push(holds(tokens, at));
        *at += usize::from(tokens[*at].is(","));
    }
    *at += 1;
    let (deciding, otherwise) = match name {
        "not" => return parts[0].map(|part| !part),
        "all" => (false, true),
        "any" => (true, false),
        _ => return None,
    };
    if parts.contains(&Some(deciding)) {
        Some(deciding)
    } else if parts.contains(&None) {
        None
    } else {
        Some(otherwise)
    }
}

/// The position after the item, statement, field, variant or arm that begins at `at`.
fn after_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    const BEGIN_ITEMS: [&str; 16] = [
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "impl",
        "let",
        "macro_rules",
        "mod",
        "pub",
        "static",
        "struct",
        "trait",
        "type",
        "unsafe",
        "use",
    ];
    while tokens.get(at).is_some_and(|token| token.is("#")) {
        at = after_group(tokens, at + 1);
    }
    let mut words = HashSet::new();
    let mut next = at;
    while let Some(token) = tokens.get(next) {
        if token.is("(") {
            next = after_group(tokens, next);
        } else if token.kind == Kind::Literal || BEGIN_ITEMS.contains(&token.text) {
            words.insert(token.text);
            next += 1;
        } else {
            break;
        }
    }
    let is_item = BEGIN_ITEMS.iter().any(|word| words.contains(word));
    let ends_by_semicolon =
        !words.contains("fn") && ["const", "let", "static", "type", "use"].iter().any(|word| words.contains(word));
    while let Some(token) = tokens.get(at) {
        if token.kind != Kind::Mark {
            at += 1;
            continue;
        }
        match token.text {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            ")" | "]" | "}" => return at,
            "(" | "[" => at = after_group(tokens, at),
            "{" => {
                at = after_group(tokens, at);
                let goes_on =
                    tokens.get(at).is_some_and(|next| [",", ";", ".", "?", "=", "|", "else"].contains(&next.text));
                if !ends_by_semicolon && (is_item || !goes_on) {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

/// A path that a module names, in a `use` or in its code.
#[derive(Clone, Debug)]
pub struct Path {
    pub names: Vec<String>,
    pub line: usize,
}

/// A `use` of one name, or of all that a module has.
#[derive(Clone, Debug)]
pub struct Import {
    /// What it is called here; `None` for all.
    pub name: Option<String>,
    pub path: Path,
}

#[derive(Default, Debug)]
pub struct Module {
    pub file: usize,
    pub parent: Option<usize>,
    /// More than one of a name if each is for another system.
    pub children: HashMap<String, Vec<usize>>,
    pub imports: Vec<Import>,
    /// Names of what is defined here.
    pub items: HashSet<String>,
    pub paths: Vec<Path>,
}

/// A file, and what of it a user's build contains.
#[derive(Debug)]
pub struct File {
    /// From the root of the repository.
    pub name: String,
    /// The file whose module has declared that of this one.
    pub parent: Option<usize>,
    /// The lines, from 1, that only tests compile.
    of_tests: Vec<RangeInclusive<usize>>,
    lines: usize,
    /// The lines on which there is something besides comments.
    code: HashSet<usize>,
}

impl File {
    /// The number of lines that a user's build contains, and how many of these are neither empty nor comments alone.
    pub fn count(&self) -> (usize, usize) {
        let is_counted = |line: &usize| !self.of_tests.iter().any(|range| range.contains(line));
        let lines = (1..=self.lines).filter(is_counted).count();
        (lines, self.code.iter().filter(|line| is_counted(line)).count())
    }
}

/// All modules of some crates.
#[derive(Default, Debug)]
pub struct Sources {
    pub modules: Vec<Module>,
    pub files: Vec<File>,
    /// The root of each crate by its name.
    pub crates: HashMap<String, usize>,
}

/// The text of the file of this name, if there is one.
pub type Read<'a> = dyn Fn(&str) -> Option<String> + 'a;

impl Sources {
    /// Adds the crate of this name whose first file is `file`.
    pub fn add_crate(&mut self, name: &str, file: &str, read: &Read<'_>) {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let text = read(file).unwrap_or_else(|| panic!("there is no {file}"));
        let root = self.add_file(file, &text, None, folder, read);
        self.crates.insert(name.to_owned(), root);
    }

    pub fn root_of(&self, module: usize) -> usize {
        self.modules[module].parent.map_or(module, |parent| self.root_of(parent))
    }

    /// Whether `ancestor` is the file of a module that contains that of `file`.
    pub fn contains(&self, ancestor: usize, file: usize) -> bool {
        let parent = self.files[file].parent;
        parent.is_some_and(|parent| parent == ancestor || self.contains(ancestor, parent))
    }

    /// Adds a file, whose children's files are in `folder`.
    fn add_file(&mut self, name: &str, text: &str, parent: Option<usize>, folder: &str, read: &Read<'_>) -> usize {
        let tokens = tokens(text);
        let file = self.files.len();
        self.files.push(File {
            name: name.to_owned(),
            parent: parent.map(|parent| self.modules[parent].file),
            of_tests: Vec::new(),
            lines: text.lines().count(),
            code: tokens.iter().flat_map(|token| token.line..=token.last_line).collect(),
        });
        self.add_module(&tokens, file, parent, folder, read)
    }

    fn add_module(
        &mut self,
        tokens: &[Token<'_>],
        file: usize,
        parent: Option<usize>,
        folder: &str,
        read: &Read<'_>,
    ) -> usize {
        let module = self.modules.len();
        self.modules.push(Module { file, parent, ..Module::default() });
        let mut at = 0;
        let mut path = None;
        let mut depth = 0_usize;
        while let Some(token) = tokens.get(at) {
            let is_mark = |ahead: usize, mark| tokens.get(at + ahead).is_some_and(|token| token.is(mark));
            let is_name = |ahead: usize| tokens.get(at + ahead).is_some_and(|token| token.kind == Kind::Name);
            if token.is("#") && (is_mark(1, "[") || is_mark(1, "!") && is_mark(2, "[")) {
                let is_inner = is_mark(1, "!");
                let begin = at + if is_inner { 2 } else { 1 };
                let end = after_group(tokens, begin);
                let attribute = &tokens[begin + 1..end - 1];
                if attribute[0].names("path") {
                    path = Some(attribute[2].text.trim_matches('"'));
                }
                if attribute[0].names("cfg") && holds(attribute, &mut 2) == Some(false) {
                    let from = if at == 0 { 1 } else { tokens[at - 1].last_line + 1 };
                    at = if is_inner { tokens.len() } else { after_item(tokens, end) };
                    let to = if is_inner { self.files[file].lines } else { tokens[at - 1].last_line };
                    self.files[file].of_tests.push(from..=to);
                    path = None;
                } else {
                    at = end;
                }
            } else if depth == 0 && token.names("mod") && is_name(1) && (is_mark(2, "{") || is_mark(2, ";")) {
                let name = tokens[at + 1].text;
                let child = if is_mark(2, "{") {
                    let end = after_group(tokens, at + 2);
                    let inner = &tokens[at + 3..end - 1];
                    at = end;
                    self.add_module(inner, file, Some(module), &join(folder, name), read)
                } else {
                    at += 3;
                    self.add_declared(name, path, module, folder, read)
                };
                self.modules[module].children.entry(name.to_owned()).or_default().push(child);
                path = None;
            } else if token.names("use")
                && !is_mark(1, "<")
                && (is_name(1) || is_mark(1, "::") || is_mark(1, "{") || is_mark(1, "$"))
            {
                let imports = &mut self.modules[module].imports;
                at = use_tree(tokens, at + 1, &[], imports)
                    .unwrap_or_else(|| panic!("{}:{}: what is imported?", self.files[file].name, token.line));
            } else if token.kind == Kind::Name {
                let defines =
                    ["const", "enum", "fn", "macro_rules", "mod", "static", "struct", "trait", "type", "union"];
                if defines.contains(&token.text) {
                    let name = tokens[at + 1..].iter().find(|token| token.kind != Kind::Mark).map(|token| token.text);
                    self.modules[module].items.extend(name.map(str::to_owned));
                }
                let is_continued = at > 0 && (tokens[at - 1].is("::") || tokens[at - 1].is("."));
                let mut names = vec![token.text.to_owned()];
                at += 1;
                while let [colons, next, ..] = tokens[at..]
                    && colons.is("::")
                    && next.kind == Kind::Name
                {
                    names.push(next.text.to_owned());
                    at += 2;
                }
                if !is_continued {
                    self.modules[module].paths.push(Path { names, line: token.line });
                }
            } else {
                match token.text {
                    "(" | "[" | "{" if token.kind == Kind::Mark => depth += 1,
                    ")" | "]" | "}" if token.kind == Kind::Mark => depth = depth.saturating_sub(1),
                    _ => {}
                }
                at += 1;
            }
        }
        module
    }

    /// Adds the file of `mod name;`.
    fn add_declared(&mut self, name: &str, path: Option<&str>, parent: usize, folder: &str, read: &Read<'_>) -> usize {
        let declaring = &self.files[self.modules[parent].file].name;
        let declaring_folder = declaring.rsplit_once('/').map_or("", |(folder, _)| folder);
        let candidates = match path {
            Some(path) => vec![(join(declaring_folder, path), None)],
            None => vec![
                (join(folder, &format!("{name}.rs")), Some(join(folder, name))),
                (join(folder, &format!("{name}/mod.rs")), Some(join(folder, name))),
            ],
        };
        for (file, folder) in &candidates {
            if let Some(text) = read(file) {
                let own = file.rsplit_once('/').map_or("", |(folder, _)| folder);
                return self.add_file(file, &text, Some(parent), folder.as_deref().unwrap_or(own), read);
            }
        }
        panic!("{declaring}: mod {name}: there is none of {candidates:?}");
    }
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Adds what a tree of `use` imports, below `prefix`. The position after it; `None` if this is none.
fn use_tree(tokens: &[Token<'_>], mut at: usize, prefix: &[String], imports: &mut Vec<Import>) -> Option<usize> {
    let mut names = prefix.to_vec();
    let mut line = tokens.get(at)?.line;
    loop {
        let token = tokens.get(at)?;
        if token.is("::") || token.is("$") {
            at += 1;
        } else if token.is("{") {
            at += 1;
            while !tokens.get(at)?.is("}") {
                at = use_tree(tokens, at, &names, imports)?;
                at += usize::from(tokens.get(at)?.is(","));
            }
            return Some(at + 1);
        } else if token.is("*") {
            imports.push(Import { name: None, path: Path { names, line: token.line } });
            return Some(at + 1);
        } else if token.names("as") {
            let name = tokens.get(at + 1)?.text.to_owned();
            imports.push(Import { name: Some(name), path: Path { names, line } });
            return Some(at + 2);
        } else if token.kind == Kind::Name {
            line = token.line;
            // `a::{self}` is `a`.
            if token.text != "self" || names.is_empty() {
                names.push(token.text.to_owned());
            }
            at += 1;
            let next = tokens.get(at)?;
            if !next.is("::") && !next.names("as") {
                imports.push(Import { name: names.last().cloned(), path: Path { names, line } });
                return Some(at);
            }
        } else {
            return None;
        }
    }
}

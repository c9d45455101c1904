//! Finds which file imports which: by `use`, or by a path in its code.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::source::{Path, Sources};

/// A file and one that it imports from, as indices of [`Sources::files`].
pub type Import = (usize, usize);

/// All imports, each with the lines of the first file, and what these name.
pub type Imports = BTreeMap<Import, Vec<(usize, String)>>;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Found {
    Module(usize),
    /// Something that this module defines.
    ItemOf(usize),
}

/// The imports of all files from others, and the paths from `crate`, `self` or `super` that lead nowhere, each with its
/// file and line.
pub fn imports(sources: &Sources) -> (Imports, Vec<String>) {
    let mut imports = Imports::new();
    let mut unresolved = Vec::new();
    for (at, module) in sources.modules.iter().enumerate() {
        let imports_all = module.imports.iter().any(|import| import.name.is_none());
        // A name alone is defined or imported here, unless all names of another module are imported.
        let in_code = module.paths.iter().filter(|path| path.names.len() > 1 || imports_all);
        for path in module.imports.iter().map(|import| &import.path).chain(in_code) {
            let found = resolve(sources, at, &path.names, &mut HashSet::new());
            let is_ours = |name: &str| ["crate", "self", "super"].contains(&name) || sources.crates.contains_key(name);
            if found.is_empty() && path.names.len() > 1 && is_ours(&path.names[0]) {
                unresolved.push(format!(
                    "{}:{}: {}",
                    sources.files[module.file].name,
                    path.line,
                    path.names.join("::")
                ));
            }
            for found in found {
                let (Found::Module(from) | Found::ItemOf(from)) = found;
                let file = sources.modules[from].file;
                if file != module.file {
                    imports.entry((module.file, file)).or_default().push(shown(path));
                }
            }
        }
    }
    (imports, unresolved)
}

fn shown(path: &Path) -> (usize, String) {
    (path.line, path.names.join("::"))
}

/// What a path means in a module.
fn resolve(sources: &Sources, module: usize, names: &[String], seen: &mut HashSet<(usize, String)>) -> Vec<Found> {
    let supers = names.iter().take_while(|name| *name == "self" || *name == "super");
    let (mut found, at) = if names[0] == "crate" {
        (vec![Found::Module(sources.root_of(module))], 1)
    } else if supers.clone().next().is_some() {
        let up = supers.clone().filter(|name| *name == "super").count();
        let parent = |module: usize, _| sources.modules[module].parent.unwrap_or(module);
        (vec![Found::Module((0..up).fold(module, parent))], supers.count())
    } else {
        let here = look_up(sources, module, &names[0], seen);
        // Another crate, if nothing here has its name.
        let root = sources.crates.get(&names[0]).filter(|_| here.is_empty());
        (root.map_or(here, |root| vec![Found::Module(*root)]), 1)
    };
    for name in &names[at..] {
        let mut next = Vec::new();
        for one in found {
            let Found::Module(within) = one else {
                // What belongs to a type is where the type is.
                next.push(one);
                continue;
            };
            let inner = look_up(sources, within, name, seen);
            // The definition of what a macro defines cannot be seen, but a crate's root has none.
            if inner.is_empty() && sources.modules[within].parent.is_some() {
                next.push(Found::ItemOf(within));
            }
            next.extend(inner);
        }
        found = next;
    }
    let unique: HashSet<Found> = found.into_iter().collect();
    unique.into_iter().collect()
}

/// What a name means in a module. `seen` is what is being looked up, so that imports of each other end.
fn look_up(sources: &Sources, module: usize, name: &str, seen: &mut HashSet<(usize, String)>) -> Vec<Found> {
    let key = (module, name.to_owned());
    if !seen.insert(key.clone()) {
        return Vec::new();
    }
    let here = &sources.modules[module];
    let mut found: Vec<Found> =
        here.children.get(name).into_iter().flatten().map(|child| Found::Module(*child)).collect();
    if here.items.contains(name) {
        found.push(Found::ItemOf(module));
    }
    for import in here.imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
        found.extend(resolve(sources, module, &import.path.names, seen));
    }
    if found.is_empty() {
        for import in here.imports.iter().filter(|import| import.name.is_none()) {
            for all in resolve(sources, module, &import.path.names, seen) {
                if let Found::Module(from) = all {
                    found.extend(look_up(sources, from, name, seen));
                }
            }
        }
    }
    seen.remove(&key);
    found
}

/// The sets of files that import each other in circles. A module's file may import from those of modules in it, and
/// they from it; so it does not count if a circle consists of a file and files of modules in it, and if there is none
/// without that file.
pub fn circles(sources: &Sources, imports: &BTreeSet<Import>) -> Vec<BTreeSet<usize>> {
    let all = (0..sources.files.len()).collect();
    let mut circles = Vec::new();
    let mut left = components(&all, imports);
    while let Some(circle) = left.pop() {
        let contains_all =
            |file: &&usize| circle.iter().all(|other| other == *file || sources.contains(**file, *other));
        match circle.iter().find(contains_all).copied() {
            Some(file) => {
                let others = circle.iter().copied().filter(|other| *other != file).collect();
                left.extend(components(&others, imports));
            }
            None => circles.push(circle),
        }
    }
    circles.sort();
    circles
}

/// The sets of two or more of these files each of which imports, by way of others, all of its set.
fn components(files: &BTreeSet<usize>, imports: &BTreeSet<Import>) -> Vec<BTreeSet<usize>> {
    let within: Vec<Import> =
        imports.iter().copied().filter(|(from, to)| files.contains(from) && files.contains(to)).collect();
    let forward = neighbours(&within);
    let backward = neighbours(&within.iter().map(|&(from, to)| (to, from)).collect::<Vec<_>>());
    let mut left = files.clone();
    let mut components = Vec::new();
    while let Some(first) = left.pop_first() {
        let component: BTreeSet<usize> =
            reached(first, &forward).intersection(&reached(first, &backward)).copied().collect();
        left.retain(|file| !component.contains(file));
        if component.len() > 1 {
            components.push(component);
        }
    }
    components
}

fn neighbours(imports: &[Import]) -> BTreeMap<usize, Vec<usize>> {
    let mut neighbours = BTreeMap::<usize, Vec<usize>>::new();
    for &(from, to) in imports {
        neighbours.entry(from).or_default().push(to);
    }
    neighbours
}

fn reached(from: usize, neighbours: &BTreeMap<usize, Vec<usize>>) -> BTreeSet<usize> {
    let mut reached = BTreeSet::from([from]);
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        left.extend(neighbours.get(&file).into_iter().flatten().copied().filter(|next| reached.insert(*next)));
    }
    reached
}

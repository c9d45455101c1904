//! Counts lines: `count ROOT`, of the library's and the tool's sources below ROOT. scripts/count-lines.sh builds it.

mod source;

use std::collections::BTreeMap;
use std::path::Path;

fn main() {
    let root = std::env::args_os().nth(1).expect("count ROOT");
    let read = |name: &str| std::fs::read_to_string(Path::new(&root).join(name)).ok();
    let mut sources = source::Sources::default();
    sources.add_crate("gloo_rs", "src/lib.rs", &read);
    sources.add_crate("tool", "tool/src/main.rs", &read);
    let mut folders = BTreeMap::<&str, [usize; 3]>::new();
    for file in &sources.files {
        let name = file.name.strip_prefix("tool/").map_or(&*file.name, |_| "tool/");
        let end = name.match_indices('/').map(|(at, _)| at).take(2).last().unwrap();
        let (lines, code) = file.count();
        for folder in [&name[..end], "all"] {
            let sums = folders.entry(folder).or_default();
            [1, lines, code].iter().zip(sums).for_each(|(add, sum)| *sum += add);
        }
    }
    println!("{:<16} {:>6} {:>8} {:>8}", "folder", "files", "lines", "code");
    let all = folders.remove("all");
    for (folder, [files, lines, code]) in folders.into_iter().chain(all.map(|sums| ("all", sums))) {
        println!("{folder:<16} {files:>6} {lines:>8} {code:>8}");
    }
}

//! The header is what cbindgen makes of the library's sources. `WRITE=1` makes it anew.

use std::path::Path;

#[test]
fn header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings =
        cbindgen::Builder::new().with_config(config).with_src(root.join("src/ffi/mod.rs")).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = root.join("include/gloo_rs.h");
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&path, &made).unwrap();
        return;
    }
    let there = std::fs::read_to_string(&path).unwrap();
    let differs = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    let differs = differs.or_else(|| (there != made).then(|| there.lines().count().min(made.lines().count())));
    if let Some(line) = differs {
        let of = |text: &str| text.lines().nth(line).unwrap_or("nothing").to_owned();
        panic!(
            "include/gloo_rs.h is not what cbindgen makes of src/ffi: line {} is\n  {}\ninstead of\n  {}\nTo make it anew: make header",
            line + 1,
            of(&there),
            of(&made)
        );
    }
}

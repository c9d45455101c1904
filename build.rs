//! Gives the shared library its soname, and keeps libibverbs out of what is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if os == "linux" {
        // Programs linked against it ask for this name, which changes whenever they might break: with the minor version
        // before 1.0. CMake links the library that it installs by itself, with the same name (cmake/CargoBuild.cmake).
        let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        let abi = if major == "0" { format!("0.{minor}") } else { major.into() };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgloo_rs.so.{abi}");
    }
    if os == "linux" && std::env::var_os("CARGO_FEATURE_IBVERBS").is_some() {
        // ibverbs-sys, of which only the types are used, links libibverbs. Programs that do not use it must not need
        // it, and the build need not have it: an archive without members is found first.
        let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
        std::fs::write(out.join("libibverbs.a"), "!<arch>\n")
            .unwrap_or_else(|error| panic!("cannot write to {out:?}: {error}"));
        println!("cargo::rustc-link-search=native={}", out.display());
    }
}

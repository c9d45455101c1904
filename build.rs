//! Gives the shared library its soname.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if os == "linux" {
        // Programs linked against it ask for this name, which changes whenever they might break: with the minor version before 1.0.
        // CMake links the library that it installs by itself, with the same name (cmake/CargoBuild.cmake).
        let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        let abi = if major == "0" { format!("0.{minor}") } else { major.into() };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgloo_rs.so.{abi}");
    }
}

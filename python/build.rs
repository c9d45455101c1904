//! Links the module with the shared library of an installed gloo_rs, which the wheel has beside the module.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=GLOO_RS_PREFIX");
    // Without it the module can be checked, but not loaded: python/backend.py always sets it.
    let Some(prefix) = std::env::var_os("GLOO_RS_PREFIX") else { return };
    let library = std::path::Path::new(&prefix).join("lib/libgloo_rs.so");
    println!("cargo::rerun-if-changed={}", library.display());
    println!("cargo::rustc-cdylib-link-arg={}", library.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/lib");
}

//! Writes the list of the functions that are not simulated, and gives the library the name of
//! cuBLAS.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let names = std::fs::read_to_string("src/unsupported.txt")?;
    let list = format!("not_simulated! {{\n{names}}}");
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("unsupported.rs"), list)?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/unsupported.txt");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcublas.so.12");
    Ok(())
}

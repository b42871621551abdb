//! Writes the list of the driver's functions, and gives the library the driver's name.

use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut list = String::from("export! {\n");
    for (index, (name, _)) in dmr_sim::driver_functions().into_iter().enumerate() {
        writeln!(list, "{index} {name}")?;
    }
    list.push('}');
    let folder = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&folder).join("functions.rs"), list)?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    Ok(())
}

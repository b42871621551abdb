//! C2: the header in the repository is the one that cbindgen makes of the sources.

use std::fs;
use std::path::PathBuf;

#[test]
fn c2_the_header_is_made_from_the_sources() {
    // Cargo runs tests in the folder of the crate.
    let config = cbindgen::Config::from_file("cbindgen.toml").unwrap();
    let builder = cbindgen::Builder::new().with_config(config).with_src("src/lib.rs");
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("dmr.h");
    fs::create_dir_all(&folder).unwrap();
    fs::write(&path, &made).unwrap();
    let kept = fs::read_to_string("include/dmr.h").unwrap_or_default();
    assert!(kept == made, "include/dmr.h is not made from the sources: replace it by {path:?}");
}

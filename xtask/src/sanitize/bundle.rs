//! `cargo xtask sanitize --bundle`: packs the programs, xtask as their runner, and a script, for a
//! machine with a GPU and without Rust.

use std::path::Path;

use super::{absolute, programs, this_program};
use crate::bundle::pack;
use crate::failure::Failure;
use crate::workspace::Workspace;

const FOLDER: &str = "dmr-sanitize-bundle";
const SCRIPT: &str = include_str!("sanitize.sh");

/// Builds the programs of each build into a folder of their own, and packs them.
pub(super) fn run(out: Option<&Path>) -> Result<(), Failure> {
    let out = match out {
        Some(out) => absolute(out)?,
        None => Workspace::load()?.target_directory.join("bundle"),
    };
    let folder = out.join(FOLDER);
    programs::build(&folder)?;
    pack::executable(&this_program()?, &folder.join("bin/xtask"))?;
    pack::script(SCRIPT, &folder.join("sanitize.sh"))?;
    let archive = pack::archive(&out, FOLDER)?;
    println!("{}: {:.1} MiB", archive.path.display(), archive.bytes as f64 / f64::from(1 << 20));
    archive.check_size()
}

//! `cargo xtask docs`: the documentation of every crate builds without a warning, shows the
//! compiler's errors, and without the feature `cudarc` names no type of cudarc.

use std::fs;
use std::path::Path;

use crate::failure::{Failure, Violation, none_of};
use crate::{command, compile_errors};

/// Builds the documentation with all features, like docs.rs.
pub(crate) fn run() -> Result<(), Failure> {
    let mut doc = command::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    command::show(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    compile_errors::run()?;
    names_no_cudarc()
}

/// The crates whose feature `cudarc` has what names its types.
const WITH_FEATURE: &[&str] = &["dmr", "dmr-buffer", "dmr-graphs", "dmr-launch", "dmr-streams"];

/// The other features of `dmr` in which a type could be named.
const FEATURES: &str = "dmr/arrow,dmr/budget,dmr/callbacks,dmr/debug-guard,dmr/dlpack,dmr/logging,dmr/pool,dmr/shared,dmr/spill,dmr/statistics";

/// Builds the documentation of these crates without the feature, beside that of cudarc, and finds
/// the pages with a link to one of cudarc's types.
fn names_no_cudarc() -> Result<(), Failure> {
    let target = command::root().join("target/without-cudarc");
    let doc = |packages: &[&str], more: &[&str]| {
        let mut doc = command::cargo(&["doc", "--no-deps", "--target-dir"]);
        doc.arg(&target).args(packages.iter().flat_map(|package| ["--package", package]));
        // Links to what is documented only with the feature.
        command::show(doc.args(more).env("RUSTDOCFLAGS", "--cap-lints allow"))
    };
    let pages = target.join("doc");
    // Rustdoc links to the crates that it finds there.
    doc(&["cudarc"], &[])?;
    doc(WITH_FEATURE, &["--no-default-features", "--features", FEATURES])?;
    let mut found = Vec::new();
    for package in WITH_FEATURE {
        find_links(&pages.join(package.replace('-', "_")), &mut found)?;
    }
    none_of(found)
}

fn find_links(folder: &Path, found: &mut Vec<Violation>) -> Result<(), Failure> {
    let setup = |error: std::io::Error| Failure::Setup(format!("{}: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(setup)? {
        let path = entry.map_err(setup)?.path();
        if path.is_dir() {
            find_links(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = fs::read_to_string(&path).map_err(setup)?;
            if let Some(link) = text.split("href=\"").find(|link| is_of_cudarc(link)) {
                let link = link.split('"').next().unwrap_or_default();
                let page = path.display().to_string();
                found.push(Violation::of(&page, format!("links to {link} without the feature")));
            }
        }
    }
    Ok(())
}

/// Returns whether a link is to the documentation of cudarc in this folder.
fn is_of_cudarc(link: &str) -> bool {
    link.trim_start_matches("../").starts_with("cudarc/")
}

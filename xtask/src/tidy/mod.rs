//! `cargo xtask tidy`: the repository's own lints.

mod dependencies;
mod errors;
mod features;
mod manifests;
mod pages;
mod promises;
mod sources;
mod style;
mod tree;
mod words;

use crate::failure::{Failure, none_of};
use crate::workspace::Workspace;
use tree::Tree;

/// Runs the lints on every file that git tracks or would add.
pub(crate) fn run() -> Result<(), Failure> {
    let tree = Tree::load()?;
    let workspace = Workspace::load()?;
    let mut found = sources::violations(&tree);
    found.extend(errors::violations(&tree));
    found.extend(features::violations(&tree));
    found.extend(manifests::violations(&tree, &workspace));
    found.extend(dependencies::violations(&tree, &workspace));
    found.extend(pages::violations(&tree));
    found.extend(promises::violations(&tree));
    found.extend(style::violations(&tree));
    found.extend(words::violations(&tree));
    none_of(found)
}

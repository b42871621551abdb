//! Files of the repository that tests read: from the sources, or from a device bundle, which has
//! no sources.

use std::path::PathBuf;

/// Returns the folder of the device bundle that the test runs in; `None` outside of one.
#[must_use]
pub fn bundle() -> Option<PathBuf> {
    std::env::var_os("DMR_BUNDLE").map(PathBuf::from)
}

/// Returns the path of a trace: `trace("gpt_train.csv.gz")`.
#[must_use]
pub fn trace(name: &str) -> PathBuf {
    let root = bundle().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../..").into());
    root.join("traces").join(name)
}

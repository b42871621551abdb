//! `cargo xtask cuda`: compiles the facade with all features against cudarc's interface of each
//! CUDA version from 12.0 on.

use serde::Deserialize;

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// The oldest version that is supported, as cudarc writes it: 12.0.
const OLDEST: u32 = 12000;

/// The packages that `cargo metadata` reports, including those of the registry.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<PackageFeatures>,
}

#[derive(Deserialize)]
struct PackageFeatures {
    name: String,
    features: std::collections::BTreeMap<String, Vec<String>>,
}

/// Checks the facade once for each CUDA version that the locked cudarc supports.
pub(crate) fn run() -> Result<(), Failure> {
    let folder = Workspace::load()?.target_directory.join("cuda");
    for version in versions(&command::capture(&mut command::cargo(METADATA))?)? {
        let mut check = command::cargo(CHECK);
        check.arg(format!("cudarc/cuda-{version}")).arg("--target-dir").arg(&folder);
        command::show(check.env("CARGO_INCREMENTAL", "0"))?;
    }
    Ok(())
}

const METADATA: &[&str] = &["metadata", "--format-version", "1"];

const CHECK: &[&str] = &["check", "--quiet", "--package", "dmr", "--all-features", "--features"];

/// Returns the versions that cudarc has a feature for, from the oldest supported one on.
fn versions(metadata: &str) -> Result<Vec<u32>, Failure> {
    let metadata: Metadata = serde_json::from_str(metadata)
        .map_err(|error| Failure::Setup(format!("cargo metadata: {error}")))?;
    let cudarc = metadata.packages.into_iter().find(|package| package.name == "cudarc");
    let features = cudarc.into_iter().flat_map(|package| package.features.into_keys());
    let versions: Vec<u32> = features
        .filter_map(|feature| feature.strip_prefix("cuda-")?.parse().ok())
        .filter(|version| *version >= OLDEST)
        .collect();
    if versions.first() == Some(&OLDEST) {
        return Ok(versions);
    }
    Err(Failure::Setup(format!(
        "the locked cudarc has no feature `cuda-{OLDEST}`, which dmr supports; it has {versions:?}: lock a \
         cudarc that has it, or raise OLDEST in xtask/src/cuda.rs"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(features: &[&str]) -> String {
        let features: serde_json::Map<_, _> =
            features.iter().map(|name| ((*name).to_owned(), serde_json::json!([]))).collect();
        let packages = serde_json::json!([
            { "name": "other", "features": { "cuda-12090": [] } },
            { "name": "cudarc", "features": features },
        ]);
        serde_json::json!({ "packages": packages }).to_string()
    }

    #[test]
    fn every_version_from_12_0_on_is_checked() {
        let features = ["cuda-11080", "cuda-12000", "cuda-13040", "cuda-version-from-build-system"];
        assert_eq!(versions(&metadata(&features)).unwrap(), [12000, 13040]);
    }

    #[test]
    fn a_cudarc_that_has_dropped_the_oldest_version_is_an_error() {
        let failure = versions(&metadata(&["cuda-13000", "driver"])).unwrap_err();
        assert!(failure.to_string().contains("cuda-12000"), "{failure}");
    }
}

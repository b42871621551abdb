//! The crates of this workspace, from `cargo metadata`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::command;
use crate::failure::Failure;

/// The crates of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    /// In the order of `cargo metadata`.
    pub(crate) packages: Vec<Package>,
    /// Cargo's target folder.
    pub(crate) target_directory: PathBuf,
}

/// One crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// The path of its manifest.
    pub(crate) manifest_path: String,
    /// `Some(vec![])` for a crate that is never published.
    pub(crate) publish: Option<Vec<String>>,
    /// Its dependencies, of all kinds.
    pub(crate) dependencies: Vec<Dependency>,
    /// Its features, including those that optional dependencies imply.
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) documentation: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) rust_version: Option<String>,
    pub(crate) readme: Option<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) categories: Vec<String>,
    /// `package.metadata`.
    pub(crate) metadata: serde_json::Value,
}

/// One dependency of a crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// The name of the crate.
    pub(crate) name: String,
    /// The kind of the dependency.
    #[serde(deserialize_with = "kind_or_normal")]
    pub(crate) kind: DependencyKind,
    /// The accepted versions; `*` where none is named.
    pub(crate) req: String,
}

/// The kind of a dependency.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DependencyKind {
    /// The crate itself.
    Normal,
    /// Its build script.
    Build,
    /// Its tests, examples and benches.
    Dev,
}

impl Workspace {
    /// Runs `cargo metadata`.
    pub(crate) fn load() -> Result<Self, Failure> {
        let arguments = ["metadata", "--no-deps", "--format-version", "1"];
        let text = command::capture(&mut command::cargo(&arguments))?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::Setup(format!("cargo metadata: {error}")))
    }

    /// Returns the crate with this name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }
}

impl Package {
    /// Returns whether it is published to the registry.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

/// Reads a kind. Cargo writes `null` for a normal dependency.
fn kind_or_normal<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<DependencyKind, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(DependencyKind::Normal))
}

/// Workspaces in the format of `cargo metadata`, for the tests of the gates.
#[cfg(test)]
pub(crate) mod example {
    use serde_json::{Value, json};

    use super::Workspace;

    pub(crate) fn workspace(packages: &[Value]) -> Workspace {
        let workspace = json!({ "packages": packages, "target_directory": "target" });
        serde_json::from_value(workspace).expect("as cargo describes it")
    }

    /// Makes a complete published crate of memory, without dependencies and features.
    pub(crate) fn package(name: &str) -> Value {
        json!({
            "name": name, "manifest_path": format!("crates/memory/{name}/Cargo.toml"), "publish": null,
            "dependencies": [], "features": {}, "description": "d",
            "license": "l", "rust_version": "1.88", "readme": "README.md", "keywords": ["k"],
            "categories": ["c"], "metadata": { "docs": { "rs": { "all-features": true } } },
        })
    }

    pub(crate) fn dependency(name: &str, kind: Option<&str>, req: &str) -> Value {
        json!({ "name": name, "kind": kind, "req": req })
    }
}

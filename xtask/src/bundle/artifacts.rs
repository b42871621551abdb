//! The executables that cargo has built, from its messages.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The kind of an executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A test harness: unit tests or an integration test.
    Test,
    /// An example.
    Example,
    /// A binary.
    Program,
}

/// One executable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The name of its crate.
    pub(crate) package: String,
    /// The name of the test, example or binary.
    pub(crate) target: String,
    /// `true` if it has the unit tests of the crate.
    pub(crate) is_unit_test: bool,
    pub(crate) role: Role,
    pub(crate) executable: PathBuf,
}

impl Artifact {
    /// Returns its path in the bundle. Unit tests of a library and of its binary can have one crate
    /// and one name, so their names contain the kind.
    pub(crate) fn place(&self) -> PathBuf {
        let Self { package, target, .. } = self;
        match self.role {
            Role::Test if self.is_unit_test => format!("tests/{package}.unit-{target}").into(),
            Role::Test => format!("tests/{package}.{target}").into(),
            Role::Example => format!("examples/{target}").into(),
            Role::Program => Path::new("bin").join(target),
        }
    }
}

/// Returns the executables in cargo's JSON messages, one a line; other messages are ignored.
pub(crate) fn from_messages(messages: &str) -> Vec<Artifact> {
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    parsed.filter_map(Message::artifact).collect()
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Message {
    fn artifact(self) -> Option<Artifact> {
        if self.reason != "compiler-artifact" {
            return None;
        }
        let target = self.target?;
        let executable = self.executable?;
        let is = |kind: &str| target.kind.iter().any(|it| it == kind);
        let role = match self.profile?.test {
            true => Role::Test,
            false if is("example") => Role::Example,
            false if is("bin") => Role::Program,
            false => return None,
        };
        // The folder of a crate has the name of the crate.
        let folder = self.manifest_path?.parent()?.file_name()?.to_string_lossy().into_owned();
        let is_unit_test = role == Role::Test && !is("test");
        let name =
            if is_unit_test && is("bin") { format!("bin-{}", target.name) } else { target.name };
        Some(Artifact { package: folder, target: name, is_unit_test, role, executable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, is_test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/tools/dmr-cli/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
        )
    }

    #[test]
    fn each_kind_of_executable_has_its_place() {
        let messages = [
            message("lib", "dmr_cli", true, "\"/t/a\""),
            message("bin", "dmr", true, "\"/t/b\""),
            message("test", "it", true, "\"/t/c\""),
            message("example", "quickstart", false, "\"/t/d\""),
            message("bin", "dmr", false, "\"/t/e\""),
        ];
        let artifacts = from_messages(&messages.join("\n"));
        let places: Vec<_> =
            artifacts.iter().map(|it| it.place().to_str().unwrap().to_owned()).collect();
        let expected = [
            "tests/dmr-cli.unit-dmr_cli",
            "tests/dmr-cli.unit-bin-dmr",
            "tests/dmr-cli.it",
            "examples/quickstart",
            "bin/dmr",
        ];
        assert_eq!(places, expected);
        assert_eq!(artifacts[2].executable, Path::new("/t/c"));
    }

    #[test]
    fn libraries_and_other_messages_are_passed_over() {
        let messages = [
            message("lib", "dmr_cli", false, "null"),
            message("custom-build", "build-script-build", false, "\"/t/build\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "warning: not JSON".to_owned(),
        ];
        assert_eq!(from_messages(&messages.join("\n")), []);
    }
}

//! The rows of the table: tests of each stack under each tool, and planted faults.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A tool of Compute Sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tool {
    Memcheck,
    Initcheck,
    Racecheck,
    Synccheck,
}

impl Tool {
    const ALL: [Self; 4] = [Self::Memcheck, Self::Initcheck, Self::Racecheck, Self::Synccheck];

    /// The value of `--tool`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Initcheck => "initcheck",
            Self::Racecheck => "racecheck",
            Self::Synccheck => "synccheck",
        }
    }

    /// Returns the class of the fault that the tool's canary commits.
    pub(super) fn canary(self) -> &'static str {
        match self {
            Self::Memcheck => "overrun",
            Self::Initcheck => "uninitialized",
            Self::Racecheck => "shared-race",
            Self::Synccheck => "divergent-barrier",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One build of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Build {
    /// The direct backend and no other.
    Direct,
    /// The pool over the direct backend, whose blocks are announced to the tool.
    PoolDirect,
    /// Every backend.
    All,
}

impl Build {
    /// Every build, the smallest first.
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::PoolDirect, Self::All];

    /// The folder of its programs.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PoolDirect => "pool-direct",
            Self::All => "all",
        }
    }

    /// The cargo features of its programs.
    pub(super) fn features(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PoolDirect => "pool-direct,nvtx",
            Self::All => "all",
        }
    }

    /// The backends that its programs must report, and no others.
    pub(super) fn backends(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PoolDirect => "direct nvtx pool",
            Self::All => "async direct pool virtual",
        }
    }
}

/// The program of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The device tests on one stack.
    Tests,
    /// A planted fault of a class.
    Control { name: String, class: String },
}

/// One process under one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) tool: Tool,
    pub(super) build: Build,
    pub(super) stack: String,
    pub(super) subject: Subject,
}

impl Row {
    /// The row's name, as `--rows` selects it; also the name of its files.
    pub(super) fn id(&self) -> String {
        match &self.subject {
            Subject::Tests => format!("{}.{}", self.tool, self.stack),
            Subject::Control { name, .. } => format!("control.{name}"),
        }
    }

    /// The program, relative to the folder of all programs.
    pub(super) fn program(&self) -> String {
        let program = match self.subject {
            Subject::Tests => "device",
            Subject::Control { .. } => "control",
        };
        format!("{}/{program}", self.build.folder())
    }

    /// The program's arguments.
    pub(super) fn arguments(&self) -> Vec<&str> {
        match &self.subject {
            Subject::Tests => vec!["--stack", &self.stack, "--test-threads", "1"],
            Subject::Control { name, .. } => vec![name],
        }
    }
}

/// Returns the rows that run tests: four tools over the stacks on the direct backend, then memcheck
/// over the stacks that take memory from the driver in other ways.
pub(super) fn tests() -> Vec<Row> {
    let row = |tool, build, stack: &str| Row {
        tool,
        build,
        stack: stack.to_owned(),
        subject: Subject::Tests,
    };
    let direct = [(Build::Direct, "direct-tracked"), (Build::PoolDirect, "pool-direct")];
    let mut rows = Vec::new();
    for (build, stack) in direct {
        rows.extend(Tool::ALL.map(|tool| row(tool, build, stack)));
    }
    let own = ["async", "pool", "pool-compact"];
    rows.extend(own.map(|stack| row(Tool::Memcheck, Build::All, stack)));
    rows
}

/// Returns the rows of the controls in the output of `control --list`: name, tool, stack and class,
/// separated by tabs.
pub(super) fn controls(build: Build, list: &str) -> Result<Vec<Row>, Failure> {
    list.lines().map(|line| control(build, line)).collect()
}

fn control(build: Build, line: &str) -> Result<Row, Failure> {
    let fields: Vec<&str> = line.split('\t').collect();
    if let [name, tool, stack, class] = fields[..]
        && let Some(tool) = Tool::ALL.into_iter().find(|it| it.name() == tool)
    {
        let subject = Subject::Control { name: name.to_owned(), class: class.to_owned() };
        return Ok(Row { tool, build, stack: stack.to_owned(), subject });
    }
    Err(Failure::Setup(format!("{}/control --list: not understood: {line:?}", build.folder())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_tools_check_the_direct_stacks_and_memcheck_the_others() {
        let ids: Vec<_> = super::tests().iter().map(Row::id).collect();
        let expected = [
            "memcheck.direct-tracked",
            "initcheck.direct-tracked",
            "racecheck.direct-tracked",
            "synccheck.direct-tracked",
            "memcheck.pool-direct",
            "initcheck.pool-direct",
            "racecheck.pool-direct",
            "synccheck.pool-direct",
            "memcheck.async",
            "memcheck.pool",
            "memcheck.pool-compact",
        ];
        assert_eq!(ids, expected);
    }

    #[test]
    fn a_control_is_a_line_of_four_fields() {
        let rows = controls(Build::All, "a\tracecheck\tdirect\tshared-race\n").unwrap();
        assert_eq!(rows[0].id(), "control.a");
        assert_eq!(rows[0].program(), "all/control");
        for line in ["a\tracecheck\tdirect", "a\tgrindcheck\tdirect\tleak", "a"] {
            let failure = controls(Build::All, line).unwrap_err().to_string();
            assert!(failure.contains("not understood"), "{failure}");
        }
    }
}

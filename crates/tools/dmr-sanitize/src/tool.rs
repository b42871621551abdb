//! The four tools of Compute Sanitizer.

use std::fmt;
use std::str::FromStr;

/// A tool of Compute Sanitizer: the value of `--tool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tool {
    /// Accesses outside of allocations, leaks, and the order of stream-ordered allocations.
    Memcheck,
    /// Reads of global memory that was never written.
    Initcheck,
    /// Hazards in shared memory.
    Racecheck,
    /// Wrong use of barriers.
    Synccheck,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 4] = [Self::Memcheck, Self::Initcheck, Self::Racecheck, Self::Synccheck];

    /// The tool's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Initcheck => "initcheck",
            Self::Racecheck => "racecheck",
            Self::Synccheck => "synccheck",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Tool {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|tool| tool.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no tool {name:?}: the tools are {names}")
        })
    }
}

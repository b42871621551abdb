//! The results of a run of the suite.

use std::fmt;

/// The results of a run of the suite. Its `Display` lists the failed checks, with the reasons.
#[derive(Clone)]
pub struct Report {
    results: Vec<CheckResult>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckResult {
    /// The check's name.
    pub name: &'static str,
    /// The id of the promise that it checks: `T3`.
    pub promise: &'static str,
    /// The reason of its failure; `None` if it passed.
    pub failure: Option<String>,
}

impl Report {
    pub(super) fn new(results: Vec<CheckResult>) -> Self {
        Self { results }
    }

    pub(super) fn no_such_check(name: &str) -> Self {
        let failure = Some(format!("there is no check {name:?}; `CHECKS` lists them"));
        Self::new(vec![CheckResult { name: "(unknown)", promise: "", failure }])
    }

    /// Returns all results, in the order of the run.
    #[must_use]
    pub fn results(&self) -> &[CheckResult] {
        &self.results
    }

    /// Returns the checks that passed.
    pub fn passed(&self) -> impl Iterator<Item = &CheckResult> {
        self.results.iter().filter(|result| result.failure.is_none())
    }

    /// Returns the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CheckResult> {
        self.results.iter().filter(|result| result.failure.is_some())
    }

    /// Returns whether every check passed.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.failed().next().is_none()
    }

    /// Converts the report to the return value of a `#[test]`.
    ///
    /// # Errors
    ///
    /// The report itself, if a check failed.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} checks passed", self.passed().count(), self.results.len())?;
        for CheckResult { name, promise, failure } in self.failed() {
            write!(f, "\n  FAILED {promise} {name}: {}", failure.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Formats like `Display`: a test that returns `Err` prints its `Debug`.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Report {}

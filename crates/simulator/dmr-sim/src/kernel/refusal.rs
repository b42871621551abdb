//! A refusal of the simulated driver, with its reason.

use std::fmt;

/// A refusal of the simulated driver: an image that it cannot load, a kernel that it cannot run, or
/// a function that it does not have. The program has got an error code, and this is its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The driver's function: one that loads a module, for a kernel of it that cannot run; one that
    /// launches, for each launch of it.
    pub call: &'static str,
    /// The kernel that cannot run; `None` for an image or a function.
    pub kernel: Option<String>,
    /// The line of the PTX text, from 1.
    pub line: Option<u32>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.call)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "kernel `{kernel}` cannot run: ")?;
        }
        f.write_str(&self.reason)
    }
}

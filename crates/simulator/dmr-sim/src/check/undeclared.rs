//! An access that a launch has not declared, in a finding.

use std::fmt;

/// An access that a launch has not declared, in a finding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Undeclared {
    /// The number of the block; 0 if it has none.
    pub block: u64,
    /// The first byte of the block.
    pub start: u64,
    /// `true` if the launch has declared the bytes as read, and writes them.
    pub as_read: bool,
    /// `true` if the bytes are written.
    pub(super) writes: bool,
    /// The launch's declaration: `reads "x" (block #7), writes "y" (block #8)`.
    pub declared: String,
}

/// Writes what the launch declares, and what is missing.
impl fmt::Display for Undeclared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { as_read, declared, .. } = self;
        match declared.as_str() {
            "" => f.write_str("the launch declares nothing: ")?,
            declared => write!(f, "the launch declares: {declared}; ")?,
        }
        f.write_str(match (as_read, self.writes) {
            (true, _) => "declare `write` or `read_write` instead of `read`",
            (false, true) => "declare the bytes with `write` or `read_write`",
            (false, false) => "declare the bytes with `read`",
        })
    }
}

/// Returns the name of a block in messages.
pub(crate) fn name(tag: Option<&str>, number: u64) -> String {
    match (tag, number) {
        (Some(tag), 0) => format!("{tag:?}"),
        (Some(tag), number) => format!("{tag:?} (block #{number})"),
        (None, 0) => "memory without a number".to_owned(),
        (None, number) => format!("block #{number}"),
    }
}

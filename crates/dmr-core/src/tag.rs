//! Who asked for an allocation.

use std::collections::HashSet;
use std::fmt;
use std::sync::Mutex;

use crate::process::PerProcess;
use crate::sync::lock;

/// A name for what an allocation is for: "hash-table", "kv-cache".
///
/// `Copy`, two words, free to carry along. Names known at compile time need no call at run time
/// ([`AllocTag::new`]); names made at run time are interned once ([`AllocTag::intern`]).
/// Tags compare by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocTag(&'static str);

impl AllocTag {
    /// No tag was given.
    pub const UNTAGGED: Self = Self("");

    /// What [`intern`](Self::intern) answers for a new name once it holds
    /// [`MAX_INTERNED`](Self::MAX_INTERNED) of them.
    pub const OTHER: Self = Self("(other)");

    /// How many different names a process can intern.
    pub const MAX_INTERNED: usize = 1 << 16;

    /// How long an interned name can be, in bytes; a longer one is cut at a character boundary.
    pub const MAX_LEN: usize = 128;

    /// A tag whose name is known at compile time.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// A tag whose name is made at run time.
    ///
    /// The first call for a name copies it and keeps the copy for the life of the process; keep the
    /// tag rather than calling again, this takes a lock. What it keeps is bounded:
    /// [`MAX_INTERNED`](Self::MAX_INTERNED) names of [`MAX_LEN`](Self::MAX_LEN) bytes; after that,
    /// new names become [`AllocTag::OTHER`]. A forked child starts with none.
    #[must_use]
    pub fn intern(name: &str) -> Self {
        static NAMES: PerProcess<Mutex<HashSet<&'static str>>> = PerProcess::new(Mutex::default);
        let name = &name[..name.floor_char_boundary_at(Self::MAX_LEN)];
        if name.is_empty() {
            return Self::UNTAGGED;
        }
        let mut names = lock(NAMES.get());
        if let Some(known) = names.get(name) {
            return Self(known);
        }
        if names.len() == Self::MAX_INTERNED {
            return Self::OTHER;
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        Self(kept)
    }

    /// The name; empty for [`AllocTag::UNTAGGED`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Whether this is [`AllocTag::UNTAGGED`].
    #[must_use]
    pub const fn is_untagged(self) -> bool {
        self.0.is_empty()
    }
}

impl Default for AllocTag {
    fn default() -> Self {
        Self::UNTAGGED
    }
}

impl fmt::Display for AllocTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_untagged() { "untagged" } else { self.0 })
    }
}

impl fmt::Debug for AllocTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllocTag({:?})", self.0)
    }
}

/// `str::floor_char_boundary` is newer than our Rust floor.
trait FloorCharBoundary {
    fn floor_char_boundary_at(&self, len: usize) -> usize;
}

impl FloorCharBoundary for str {
    fn floor_char_boundary_at(&self, len: usize) -> usize {
        if self.len() <= len {
            return self.len();
        }
        (0..=len).rev().find(|&at| self.is_char_boundary(at)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_made_at_run_time_equals_the_same_name_known_at_compile_time() {
        const STATIC: AllocTag = AllocTag::new("tag::equal");
        let made = AllocTag::intern(&["tag::", "equal"].concat());
        assert_eq!(made, STATIC);
        assert_eq!(AllocTag::intern(""), AllocTag::UNTAGGED);
        assert_eq!(AllocTag::default().to_string(), "untagged");
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_boundary() {
        let long = "é".repeat(AllocTag::MAX_LEN);
        let tag = AllocTag::intern(&long);
        assert_eq!(tag.name().len(), AllocTag::MAX_LEN);
        let odd = format!("x{long}");
        assert_eq!(AllocTag::intern(&odd).name().len(), AllocTag::MAX_LEN - 1);
    }
}

//! Names for the purpose of an allocation.

use std::collections::HashSet;
use std::fmt;
use std::sync::Mutex;

use crate::process::PerProcess;
use crate::sync::lock;

/// The purpose of an allocation: "hash-table", "kv-cache".
///
/// `Copy`, two words. A name that is a literal needs no call at run time ([`AllocTag::new`]); names
/// made at run time are interned once ([`AllocTag::intern`]). Tags compare by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocTag(&'static str);

impl AllocTag {
    /// The tag of an allocation without one.
    pub const UNTAGGED: Self = Self("");

    /// The tag that [`intern`](Self::intern) returns for a new name once it holds
    /// [`MAX_INTERNED`](Self::MAX_INTERNED) names.
    pub const OTHER: Self = Self("(other)");

    /// The maximum number of different names that a process can intern.
    pub const MAX_INTERNED: usize = 1 << 16;

    /// The maximum length of an interned name, in bytes; a longer one is cut at a character
    /// boundary.
    pub const MAX_LEN: usize = 128;

    /// Makes a tag from a literal.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Returns a tag whose name is made at run time.
    ///
    /// The first call for a name copies it and keeps the copy for the life of the process. Every
    /// call takes a lock: keep the tag rather than calling again. The process keeps at most
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
        if let Some(interned) = names.get(name) {
            return Self(interned);
        }
        if names.len() == Self::MAX_INTERNED {
            return Self::OTHER;
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        Self(kept)
    }

    /// Returns the name; empty for [`AllocTag::UNTAGGED`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Returns whether this is [`AllocTag::UNTAGGED`].
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

/// `str::floor_char_boundary`, which is newer than the minimum Rust version.
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

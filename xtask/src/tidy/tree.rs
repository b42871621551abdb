//! The text files of the repository, by path.

use std::collections::BTreeMap;
use std::process::Command;

use crate::command;
use crate::failure::Failure;

/// The content of each file by its path from the root, with `/`. A file that is not text has empty
/// content.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads every file that git tracks or would add.
    pub(crate) fn load() -> Result<Self, Failure> {
        let root = command::root();
        let mut list = Command::new("git");
        list.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
        let names = command::capture(list.current_dir(&root))?;
        let present = names.split_terminator('\0').filter(|name| root.join(name).is_file());
        let mut files = BTreeMap::new();
        for name in present {
            let bytes = std::fs::read(root.join(name))
                .map_err(|error| Failure::Setup(format!("cannot read {name}: {error}")))?;
            files.insert(name.to_owned(), String::from_utf8(bytes).unwrap_or_default());
        }
        Ok(Self { files })
    }

    /// Returns the content of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns whether there is such a file, or a folder with a file in it.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        self.files.contains_key(path)
            || self
                .files
                .range(inside.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&inside))
    }

    /// Returns the files whose path ends with `suffix`, with their content.
    pub(crate) fn ending(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter(move |(path, _)| path.ends_with(suffix))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(files: [(&str, &str); N]) -> Self {
        let owned = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        Self { files: owned.into() }
    }
}

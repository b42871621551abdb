//! The accounts of this user, for display. Nothing is changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dmr_core::error::ProcessHolder;

use crate::config::{directory, prefix};
use crate::error::{Problem, SharedLimitError};
use crate::file::{AccountFile, check_namespaces, user};
use crate::layout::Header;
use crate::table::Table;

/// An account: its limit, and what each living process has charged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountUsage {
    /// The UUID of the GPU.
    pub uuid: [u8; 16],
    /// The group.
    pub group: String,
    /// The limit, in bytes.
    pub limit: u64,
    /// The living processes, most bytes first; empty if all have ended.
    pub processes: Vec<ProcessHolder>,
}

impl AccountUsage {
    /// Returns the bytes that all processes have charged.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.processes.iter().map(|process| process.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that are left.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }
}

const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the accounts of this user in `directory`, or where
/// [`SharedLimitConfig::VARIABLE`](crate::SharedLimitConfig::VARIABLE) says; an error in place of
/// an account that cannot be read. Waits for at most a second for each. There are none on platforms
/// other than Linux.
///
/// # Errors
///
/// The directory cannot be read.
pub fn accounts(
    directory_of_accounts: Option<&Path>,
) -> Result<Vec<Result<AccountUsage, SharedLimitError>>, SharedLimitError> {
    if cfg!(not(target_os = "linux")) {
        return Ok(Vec::new());
    }
    let directory = directory(directory_of_accounts);
    let error = |error: std::io::Error| SharedLimitError {
        path: directory.clone(),
        problem: Problem::System { call: "readdir", problem: error.to_string() },
    };
    let prefix = prefix(user());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(error)? {
        let entry = entry.map_err(error)?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let read = |path: PathBuf| match read(&path).transpose()? {
        // The last member has left.
        Err(_) if !path.exists() => None,
        account => Some(account),
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

/// Returns `None` for an account that no process has joined.
fn read(path: &Path) -> Result<Option<AccountUsage>, SharedLimitError> {
    let usage = || {
        let mut file = AccountFile::open_to_read(path)?;
        let mut table = Table::lock(&mut file, PATIENCE)?;
        let Some(Header { uuid, group, limit, .. }) = table.header().copied() else {
            return Ok(None);
        };
        table.header().map_or(Ok(()), check_namespaces)?;
        table.ignore_dead();
        let processes = table.holders();
        Ok(Some(AccountUsage { uuid, group: group.into(), limit, processes }))
    };
    usage().map_err(|problem| SharedLimitError { path: path.to_owned(), problem })
}

//! [`SharedLimitConfig`]: the limit, the GPU, the group, and where the account is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Problem, SharedLimitError};

/// The account to join, and its limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a configuration does nothing until `SharedLimit::join`"]
pub struct SharedLimitConfig {
    pub(crate) uuid: [u8; 16],
    pub(crate) limit: u64,
    pub(crate) group: String,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) patience: Duration,
}

/// The directory of accounts, unless a variable or the configuration names another one.
const SHARED_MEMORY: &str = "/dev/shm";

impl SharedLimitConfig {
    /// The environment variable that names the directory of the accounts: a `tmpfs`. An empty value
    /// counts as not set. Without it, accounts are in `/dev/shm`.
    pub const VARIABLE: &'static str = "DMR_SHARED_LIMIT_DIR";

    /// The group of members that name none.
    pub const DEFAULT_GROUP: &'static str = "default";

    /// Configures a limit of `limit` bytes, at most 2^63 - 1, for the GPU with this UUID, and for
    /// all processes of the user that name no group.
    pub fn new(uuid: [u8; 16], limit: u64) -> Self {
        let group = Self::DEFAULT_GROUP.to_owned();
        let patience = Duration::from_secs(5);
        Self { uuid, limit, group, directory: None, patience }
    }

    /// Shares the limit with the processes of the user that name this group, and with no other. A
    /// group name has 1 to 64 characters: ASCII letters, digits, `.`, `_` and `-`.
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Sets the directory of the accounts, a `tmpfs`. All processes that share the limit must use
    /// the same.
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets how long a call waits for the lock of the account (default: 5 s). A lock is held for
    /// microseconds, unless a process is stopped while it has it. A release waits for at most 50
    /// ms.
    pub fn with_lock_timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the file of the account.
    ///
    /// # Errors
    ///
    /// [`InvalidGroup`](Problem::InvalidGroup), [`InvalidLimit`](Problem::InvalidLimit).
    pub(crate) fn path(&self, uid: u32) -> Result<PathBuf, SharedLimitError> {
        let directory = directory(self.directory.as_deref());
        let is_allowed =
            |byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        if !(1..=64).contains(&self.group.len()) || !self.group.bytes().all(is_allowed) {
            let problem = Problem::InvalidGroup { group: self.group.clone() };
            return Err(SharedLimitError { path: directory, problem });
        }
        if i64::try_from(self.limit).is_err() {
            let problem = Problem::InvalidLimit { limit: self.limit };
            return Err(SharedLimitError { path: directory, problem });
        }
        let uuid: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(directory.join(format!("{}{uuid}.{}", prefix(uid), self.group)))
    }
}

/// Returns how the names of the accounts of a user begin.
pub(crate) fn prefix(uid: u32) -> String {
    format!("dmr-limit.{uid}.")
}

/// Returns the directory of the accounts.
pub(crate) fn directory(configured: Option<&Path>) -> PathBuf {
    let variable =
        || std::env::var_os(SharedLimitConfig::VARIABLE).filter(|value| !value.is_empty());
    match configured {
        Some(directory) => directory.to_owned(),
        None => variable().map_or_else(|| PathBuf::from(SHARED_MEMORY), PathBuf::from),
    }
}

//! The errors of a limit that cannot be joined, and of a charge that is refused.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use dmr_core::error::ProcessHolder;
use dmr_core::size::human_bytes;

/// The error of an account that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shared limit {path:?}: {problem}")]
#[non_exhaustive]
pub struct SharedLimitError {
    /// The file of the account, or the directory where it would be.
    pub path: PathBuf,
    /// The problem, and what to do.
    pub problem: Problem,
}

/// A problem with an account, or with a member.
///
/// Variants are `#[non_exhaustive]`: match on what you need and end with `..`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The platform is not Linux.
    #[error("limits for several processes need Linux: use a budget of this process")]
    Unsupported,

    /// The group has no valid name.
    #[non_exhaustive]
    #[error("{group:?} is no group name: use 1 to 64 ASCII letters, digits, '.', '_' and '-'")]
    InvalidGroup {
        /// The name.
        group: String,
    },

    /// The limit is larger than 2^63 - 1 bytes.
    #[non_exhaustive]
    #[error("a limit of {limit} bytes is too large: use at most {}", i64::MAX)]
    InvalidLimit {
        /// The limit, in bytes.
        limit: u64,
    },

    /// The directory is not in memory.
    #[error(
        "not on a tmpfs, so accounts could survive a reboot or be shared with another host: name a directory \
         in shared memory in DMR_SHARED_LIMIT_DIR"
    )]
    NotInMemory,

    /// The process has been forked since it joined.
    #[error("joined before this process was forked: start the child as a new process")]
    Forked,

    /// Another limit is in force.
    #[non_exhaustive]
    #[error(
        "the limit is {}, set by process {set_by} ({set_by_name}), and {} were requested: use the same limit or another \
         group, or end the processes that share this one", human_bytes(*.limit), human_bytes(*.requested)
    )]
    LimitDiffers {
        /// The limit of the account, in bytes.
        limit: u64,
        /// The limit that this member requested, in bytes.
        requested: u64,
        /// The pid of the process that set the limit; it may have ended.
        set_by: u32,
        /// The name of that process.
        set_by_name: String,
    },

    /// The file is not one that this library has made for this user.
    #[non_exhaustive]
    #[error("{what}: remove the file, or name another directory in DMR_SHARED_LIMIT_DIR")]
    Foreign {
        /// The difference from a file of this library.
        what: String,
    },

    /// The file has another format.
    #[non_exhaustive]
    #[error(
        "the account has format {found}, this library has format {expected}: use one version in all \
         processes, or another group, or remove the file if no process uses it"
    )]
    Version {
        /// The version of the file's format.
        found: u32,
        /// The version that this library reads.
        expected: u32,
    },

    /// The contents of the file are damaged.
    #[non_exhaustive]
    #[error(
        "the account is damaged ({what}): end the processes that share it, then remove the file"
    )]
    Corrupt {
        /// The damage.
        what: &'static str,
    },

    /// The file was removed, moved, truncated or changed by another program while this member used
    /// it.
    #[non_exhaustive]
    #[error(
        "the account was {what} by another program while in use: restart the processes that share it"
    )]
    Changed {
        /// The change.
        what: &'static str,
    },

    /// The account is of another pid or time namespace.
    #[error(
        "the account is of another pid or time namespace, whose processes cannot be seen from here: start all \
         containers with the same pid namespace (--pid=host), use another group or directory, or remove the file if \
         no process uses it any more"
    )]
    Namespace,

    /// The system does not show this process.
    #[non_exhaustive]
    #[error("{what}: mount the proc file system of this pid namespace at /proc")]
    NoProcesses {
        /// The part that is missing.
        what: String,
    },

    /// There is no free record.
    #[non_exhaustive]
    #[error(
        "all {members} records are in use by living processes: share one limit in each process, or end some"
    )]
    Full {
        /// The number of records.
        members: usize,
    },

    /// The account was locked by another process for too long.
    #[non_exhaustive]
    #[error("locked for {waited:?}{}: continue or end that process if it is stopped; use a longer lock timeout if many join or charge at once", Held(.holder))]
    Busy {
        /// The time for which the call waited.
        waited: Duration,
        /// The pid of the process that holds the lock, where the system says.
        holder: Option<u32>,
    },

    /// The operating system refused a call.
    #[non_exhaustive]
    #[error("{call} failed: {problem}")]
    System {
        /// The call.
        call: &'static str,
        /// The error as the operating system describes it.
        problem: String,
    },
}

struct Held<'a>(&'a Option<u32>);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, " by process {pid}"),
            None => f.write_str(" by another process"),
        }
    }
}

/// The error of bytes that were not charged; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// The limit has no room.
    #[error(transparent)]
    OverLimit(Box<OverLimit>),
    /// The account cannot be used.
    #[error(transparent)]
    Account(#[from] SharedLimitError),
}

/// A refusal: the limit has no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "over the shared limit: {} requested, {} of {} left{}", human_bytes(*.requested), human_bytes(self.remaining()),
    human_bytes(*.limit), Processes(.processes)
)]
#[non_exhaustive]
pub struct OverLimit {
    /// Bytes requested.
    pub requested: u64,
    /// The limit, in bytes.
    pub limit: u64,
    /// Bytes charged by all living processes.
    pub used: u64,
    /// The processes, most bytes first.
    pub processes: Vec<ProcessHolder>,
}

impl OverLimit {
    /// Returns the bytes that are left.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Shows processes as `; 3 GiB held by process 42 (python3); ...`.
struct Processes<'a>(&'a [ProcessHolder]);

impl fmt::Display for Processes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|process| write!(f, "; {process}"))
    }
}

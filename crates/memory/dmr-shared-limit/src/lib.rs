//! One hard limit in bytes for each GPU, shared by the processes of a user.
//!
//! A [`SharedLimit`] is one member of an account: a file in shared memory with the limit, and a
//! record for each member that says how many bytes it has charged. The sum of all records never
//! exceeds the limit, at any instant. The bytes of a process that has ended, in whatever way, are
//! released when another member needs them.
//!
//! ```
//! use dmr_shared_limit::{ChargeError, Largest, SharedLimit, SharedLimitConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let uuid = [7; 16]; // of the GPU
//! # let folder = tempfile::tempdir_in("/dev/shm")?;
//! let config = SharedLimitConfig::new(uuid, 8 << 30).with_group("tests");
//! # let config = config.with_directory(folder.path());
//! let limit = SharedLimit::join(&config)?;
//! limit.charge(6 << 30, Largest { tag: "kv-cache", bytes: 6 << 30 })?;
//!
//! // In this process or another one:
//! let other = SharedLimit::join(&config)?;
//! match other.charge(3 << 30, Largest::default()) {
//!     Err(ChargeError::OverLimit(refusal)) => {
//!         assert_eq!(refusal.remaining(), 2 << 30);
//!         assert_eq!(refusal.processes[0].pid, std::process::id());
//!         assert_eq!(&*refusal.processes[0].tag, "kv-cache");
//!     }
//!     other => panic!("{other:?}"),
//! }
//! limit.release(6 << 30, Largest::default());
//! other.charge(3 << 30, Largest::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! Linux only; elsewhere [`SharedLimit::join`] returns [`Problem::Unsupported`].
//!
//! | module | what it holds |
//! | --- | --- |
//! | `config` | [`SharedLimitConfig`]: limit, GPU, group, directory |
//! | `limit` | [`SharedLimit`]: the threads of this process, one at a time |
//! | `member` | the protocol: join, charge, release, leave, over a storage |
//! | `table`, `layout` | what is read from the file under the lock; its bytes |
//! | `file` | the storage that is a file; its owner and mode |
//! | `processes` | pids, start times, namespaces |
//! | `accounts` | [`accounts`](accounts()): the accounts of this user, for display |

#![forbid(unsafe_code)]

mod accounts;
mod config;
mod error;
#[cfg(target_os = "linux")]
mod file;
#[cfg(not(target_os = "linux"))]
#[path = "unsupported.rs"]
mod file;
mod layout;
mod limit;
mod member;
#[cfg(test)]
mod model;
#[cfg(target_os = "linux")]
mod processes;
mod storage;
mod table;

pub use accounts::{AccountUsage, accounts};
pub use config::SharedLimitConfig;
pub use error::{ChargeError, OverLimit, Problem, SharedLimitError};
pub use limit::SharedLimit;
pub use member::Largest;

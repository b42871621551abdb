//! [`Storage`]: the place where an account is stored, as the protocol needs it.

use std::time::Duration;

use crate::error::Problem;
use crate::layout::ProcessId;

/// The bytes of an account, a lock that the end of a process releases, and the processes that may
/// have changed them.
///
/// A file implements it, and the model, which stops at each of its steps.
pub(crate) trait Storage {
    /// Locks the account for this member, waiting for at most `patience`.
    ///
    /// # Errors
    ///
    /// [`Busy`](Problem::Busy) after that; then nothing is locked.
    fn lock(&mut self, patience: Duration) -> Result<(), Problem>;

    /// Unlocks it.
    fn unlock(&mut self);

    /// Reads all of it.
    fn read(&mut self) -> Result<Vec<u8>, Problem>;

    /// Writes bytes at an offset. No signal interrupts it if they do not cross a page.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Problem>;

    /// Removes the account, which has no members: the next one begins a new account.
    fn remove(&mut self) -> Result<(), Problem>;

    /// Returns whether a process may still have memory.
    fn is_alive(&mut self, process: &ProcessId) -> bool;
}

//! [`OuterLimit`]: a limit around the root of a budget, such as one that processes share.

use std::fmt::Debug;
use std::time::Instant;

use dmr_core::AllocTag;
use dmr_core::error::SharedShortage;

/// A limit that bounds what is charged to the root of a tree of accounts.
///
/// A tree calls it after it has charged or released its root, and does not hold its lock: a method
/// may wait for other processes. No method may call the driver, a resource or the budget, and none
/// is called in a forked child.
///
/// Releases add up to the charges. Tags need not: what a block takes of a reservation was charged
/// as `(reserved)` before.
pub(super) trait OuterLimit: Debug + Send + Sync {
    /// Returns the limit, in bytes.
    fn limit(&self) -> u64;

    /// Charges `bytes`, if they fit, and waits for other processes until the deadline, or for as
    /// long as it is configured to.
    ///
    /// # Errors
    ///
    /// The refusal; nothing has changed.
    fn try_charge(
        &self,
        bytes: u64,
        tag: AllocTag,
        deadline: Option<Instant>,
    ) -> Result<(), OuterRefusal>;

    /// Charges bytes that are in use already, even if that exceeds the limit; releases them if they
    /// are negative.
    fn adjust(&self, bytes: i64, tag: AllocTag);

    /// Returns the bytes that fit now. Waits for at most a moment; 0 if they are not known then.
    fn remaining(&self) -> u64;
}

/// A refusal of a limit around the root.
#[derive(Debug)]
pub(super) struct OuterRefusal {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) shared: SharedShortage,
}

//! The treatment of memory whose uses are not tracked.

/// The treatment of memory whose uses are not tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchMode {
    /// The launch is refused before anything is enqueued.
    Strict,
    /// The memory is skipped and counted; the caller orders its uses.
    Permissive,
}

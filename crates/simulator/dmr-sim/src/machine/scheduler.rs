//! Counts of queued work and of the threads that wait for it.

/// The state of the scheduler.
#[derive(Default)]
pub(crate) struct Scheduler {
    /// Operations submitted and not yet executed.
    pub(super) queued: usize,
    /// The part of them by which the host can learn something without a driver call.
    pub(super) host_may_wait: usize,
    /// Waits for words that are submitted and have not ended.
    pub(super) word_waits: usize,
    /// The number of times that the thread that runs such operations has looked for them.
    pub(super) ticks: u64,
    /// The driver calls so far.
    pub(super) calls: u64,
    /// Threads that have unlocked the machine to wait.
    pub(super) waiting: usize,
    /// `true` while a thread runs the work that the host may wait for, between driver calls.
    pub(super) runs_for_host: bool,
    pub(super) host_calls_returned: u64,
    /// `true` while a kernel runs: it has the memory, and no other operation runs.
    pub(super) runs_kernel: bool,
    /// Threads that wait for the end of the kernel.
    pub(super) held_up: usize,
}

//! The steps of the ladder, in their order, and the counts of what each has found.

/// The memory that the pool may reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// A little more than what is live, or was at its peak.
    Slack,
    /// Its maximum, or as much as upstream has. Pages are moved before the pool reserves that.
    Limit,
}

/// A step of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LadderStep {
    /// A page of its own, for a stream that has borrowed many chunks.
    OwnPage,
    /// A chunk of the own arena that other streams have used, or of another arena, which the stream
    /// may use at once.
    LendReady,
    /// Such a chunk that the stream is made to wait for.
    LendWaiting,
    /// Memory from upstream, which saves waits and costs memory: over pages, `compact` reserves
    /// only a few before its streams wait, unless threads contend for arenas.
    Grow(Share),
    /// Memory that was pending and the host has waited for, or that went back to upstream and was
    /// reserved again.
    Reclaim,
}

impl LadderStep {
    /// Returns whether the stream may have been made to wait.
    pub(crate) fn may_wait(self) -> bool {
        self != Self::LendReady
    }
}

/// The number of chunks that each step of the search for memory has found, since the pool was made.
/// Allocations that find a free chunk in the arena of their own stream are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepCounts {
    /// Chunks that other streams had used, or of other arenas, that could be used at once.
    pub lent_ready: u64,
    /// Chunks that the stream was made to wait for.
    pub lent_waiting: u64,
    /// Chunks of new memory, within the pool's slack.
    pub grown_within_slack: u64,
    /// Chunks of new memory or of moved pages, up to the pool's maximum.
    pub grown: u64,
    /// Chunks that were found after the host had waited, or memory had gone back to upstream.
    pub reclaimed: u64,
    /// Pages that were moved to other addresses. Counts pages, not chunks.
    pub pages_moved: u64,
}

impl StepCounts {
    pub(crate) fn count(&mut self, step: LadderStep) {
        *match step {
            LadderStep::LendReady => &mut self.lent_ready,
            LadderStep::LendWaiting => &mut self.lent_waiting,
            LadderStep::Grow(Share::Slack) => &mut self.grown_within_slack,
            LadderStep::OwnPage | LadderStep::Grow(Share::Limit) => &mut self.grown,
            LadderStep::Reclaim => &mut self.reclaimed,
        } += 1;
    }

    /// Adds the counts of one arena.
    pub(crate) fn add(&mut self, other: &Self) {
        self.lent_ready += other.lent_ready;
        self.lent_waiting += other.lent_waiting;
        self.grown_within_slack += other.grown_within_slack;
        self.grown += other.grown;
        self.reclaimed += other.reclaimed;
    }
}

/// The steps of both modes, which differ in the slack only.
pub(crate) const LADDER: [LadderStep; 6] = [
    LadderStep::OwnPage,
    LadderStep::LendReady,
    LadderStep::Grow(Share::Slack),
    LadderStep::LendWaiting,
    LadderStep::Grow(Share::Limit),
    LadderStep::Reclaim,
];

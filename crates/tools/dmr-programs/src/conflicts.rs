//! Named conflicts, and counts of how often programs have reached each.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! conflicts {
    ($($name:ident: $text:literal,)*) => {
        /// A situation that a run of many programs must have reached.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "each has a text")]
        pub enum Conflict { $($name,)* }

        impl Conflict {
            /// Every conflict.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns its description.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

conflicts! {
    ReadAfterWrite: "read after a write on another stream",
    WriteAfterRead: "write after a read on another stream",
    WriteAfterTwoReaders: "write after reads on two other streams",
    WriteAfterWrite: "write after a write on another stream",
    FreeAfterOtherStream: "free after a use on another stream",
    FreeInWindow: "free inside an open window",
    NestedWindow: "window inside a window of the same stream",
    WindowRefused: "conflicting window refused",
    PartUsed: "use of a part of a block",
    DisjointWindows: "windows of two streams on disjoint parts of a block",
    StaleId: "use of a block that was freed meanwhile refused",
    ReuseByOtherStream: "memory of a freed block reused by another stream",
    ReuseByOwnStream: "memory of a freed block reused by its stream",
    HomeWork: "work on the home stream that was not declared",
    CopyBetweenBlocks: "copy between two blocks",
    GrowGranted: "growth in place granted",
    GrowRefused: "growth in place refused",
    Narrowed: "block narrowed to a part",
    NarrowedAtOffset: "block narrowed to a part that starts later",
    OutOfMemory: "allocation refused because there is too little memory",
    CallbackAllocated: "allocation by a failure callback, under an allocation that found no memory",
    OutOfBudget: "allocation refused by the budget",
    Ladder: "allocation that first waited for memory or returned some",
    Trimmed: "trim that returned memory",
    Reaped: "reap that freed memory",
    StreamReplaced: "lease dropped while blocks of the stream are held",
    StreamAdopted: "stream adopted while work is in progress",
    StreamRetired: "adopted stream retired while blocks are held",
    RetiredWithBlocks: "adopted stream retired that is the home of blocks",
    RetireWhileHeld: "retirement tried while a thread is held in a driver call",
    RetireInWindow: "retirement tried under an open window",
    RetireUnderCall: "retirement tried under a call on the stream",
    RetireRefused: "retirement refused",
    CaptureWhileReaping: "reap or trim while another stream captures",
    CaptureWhileAllocating: "allocation while another stream captures",
    CaptureGlobal: "call during a capture that forbids synchronising calls",
    StreamCaptured: "capture begun on a stream of the program",
    CaptureInWindow: "capture begun under an open window of its stream",
    CaptureUnderCall: "capture begun under a call on its stream",
    CaptureRefused: "call refused because a stream captures",
    PinnedCopied: "copy between pinned memory and the device",
    PinnedRead: "pinned memory read by the host while a copy may be in progress",
    PinnedRetired: "pinned memory dropped while a copy may be in progress",
    WaitedForHeldThread: "thread that waited for a held thread",
    ForkUnderHeldThread: "fork while a thread is held in a driver call",
    Fork: "fork",
}

/// The relation of a step of one thread to a thread that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// It uses a block that the held thread uses.
    SameBlock,
    /// It frees such a block.
    Frees,
    /// It uses the same stream.
    SameStream,
    /// It retires that stream.
    Retires,
    /// It does something else.
    Other,
}

/// Counts of many programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Programs that were played.
    pub programs: u64,
    /// Lines that were executed and had an effect.
    pub steps: u64,
    /// Allocations that succeeded.
    pub allocated: u64,
    /// The number of times that each conflict was reached.
    pub conflicts: BTreeMap<Conflict, u64>,
    /// The number of steps of this relation that another thread made while a thread was held in
    /// this call.
    pub held: BTreeMap<(&'static str, Relation), u64>,
    /// The number of times that each call was made to fail.
    pub failed: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub(crate) fn count(&mut self, conflict: Conflict) {
        *self.conflicts.entry(conflict).or_default() += 1;
    }

    /// Returns how often the conflict was reached.
    #[must_use]
    pub fn of(&self, conflict: Conflict) -> u64 {
        self.conflicts.get(&conflict).copied().unwrap_or(0)
    }

    /// Adds the counts of other programs.
    pub fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.steps += other.steps;
        self.allocated += other.allocated;
        other.conflicts.iter().for_each(|(key, n)| *self.conflicts.entry(*key).or_default() += n);
        other.held.iter().for_each(|(key, n)| *self.held.entry(*key).or_default() += n);
        other.failed.iter().for_each(|(key, n)| *self.failed.entry(*key).or_default() += n);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, steps, allocated, .. } = self;
        writeln!(f, "{programs} programs, {steps} steps, {allocated} blocks")?;
        for conflict in Conflict::ALL {
            writeln!(f, "{:>12}  {}", self.of(*conflict), conflict.text())?;
        }
        writeln!(f, "a thread held in a driver call, and what another thread did meanwhile:")?;
        let relations = [
            Relation::SameBlock,
            Relation::Frees,
            Relation::SameStream,
            Relation::Retires,
            Relation::Other,
        ];
        let heads = ["same block", "frees it", "same stream", "retires it", "other"];
        write!(f, "{:>32}", "")?;
        heads.iter().try_for_each(|head| write!(f, "{head:>13}"))?;
        writeln!(f)?;
        let mut calls: Vec<_> = self.held.keys().map(|(call, _)| *call).collect();
        calls.dedup();
        for call in calls {
            write!(f, "{call:>32}")?;
            for relation in relations {
                let count = self.held.get(&(call, relation)).copied().unwrap_or(0);
                write!(f, "{count:>13}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "calls that were made to fail:")?;
        self.failed.iter().try_for_each(|(call, count)| writeln!(f, "{count:>12}  {call}"))
    }
}

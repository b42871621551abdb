//! What can be wrong with a resource.

/// One thing that is wrong with a [`FakeResource`](super::FakeResource).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Trimming returns more bytes than it has given back.
    ReturnsTooMuchOnTrim,
    /// Reaping answers the reserved bytes instead of those asked.
    AnswersReservedBytesOnReap,
    /// Every block is untagged.
    BlocksForgetTheirTag,
    /// `is_retired` is true of live blocks.
    CallsLiveBlocksRetired,
    /// A cancelled window stays open.
    CancelKeepsTheWindow,
    /// A size beyond the device is cut to the device's.
    ClampsToTheDevice,
    /// Threads overwrite each other's accounting.
    CountersRace,
    /// A refused allocation is counted as live.
    CountsRefusedAllocations,
    /// A refused block is counted as retired.
    CountsRefusedBlocks,
    /// A growth that is refused is counted as live.
    CountsRefusedGrowth,
    /// Usage is in reserved bytes instead of those asked.
    CountsRoundedBytes,
    /// A finished read is not remembered.
    ForgetsReads,
    /// An allocation is no write on its home stream.
    ForgetsTheAllocation,
    /// A free waits for the home stream only.
    FreeIgnoresUses,
    /// A block is freed while a window on it is open.
    FreesInsideAWindow,
    /// A free waits for nothing.
    FreesWithoutWaiting,
    /// A refused block comes back with another generation.
    GivesBackAnotherBlock,
    /// A block grows over the blocks behind it.
    GrowsOverNeighbours,
    /// A part of a block grows like a block.
    GrowsParts,
    /// The bytes by which a block has grown are not counted.
    GrowsUncounted,
    /// Every block's home is the default stream.
    HomeIsAlwaysTheFirstStream,
    /// Conflicting windows are opened.
    IgnoresConflicts,
    /// A read replaces all reads of other streams.
    KeepsOneReader,
    /// Every sixteenth call's `deallocate` is not subtracted from the live bytes.
    LosesAFreeNowAndThen,
    /// Blocks are aligned to 64 bytes.
    Misaligns,
    /// `stream_pool` names a new pool each time.
    NamesAnotherPool,
    /// `bytes_outstanding` is without the retired bytes.
    OutstandingIsLiveOnly,
    /// Live blocks share memory.
    Overlaps,
    /// A refused `prepare_uses` leaves the windows before the refused one open.
    PreparesInPart,
    /// Reaping counts nothing as freed.
    ReapLosesAccounting,
    /// `reap_pending` frees only what is complete.
    ReapPendingDoesNotWait,
    /// Reaping frees live blocks too.
    ReapsLiveBlocks,
    /// A second read window on another stream is refused.
    RefusesASecondReader,
    /// A second window on the same stream is refused.
    RefusesNesting,
    /// `prepare_uses` of no uses is refused.
    RefusesNoUses,
    /// It says that it tracks uses, and refuses them.
    RefusesWhatItClaims,
    /// `usage` has fewer bytes reserved than live.
    ReservesLessThanIsLive,
    /// The generations of freed blocks are given out again.
    ReusesGenerations,
    /// `deallocate` answers `Freed` for what is only retired.
    SaysFreedTooEarly,
    /// Reaping writes into live blocks.
    ScribblesOnReap,
    /// Preparing a use waits for nothing.
    SkipsWaits,
    /// A block's home stream may be `StreamId::DEFAULT`.
    StoresDefault,
    /// `deallocate` takes blocks of other resources.
    TakesForeignBlocks,
    /// Streams of other pools are accepted.
    TakesForeignStreams,
    /// Streams of returned leases are accepted.
    TakesReturnedStreams,
    /// Uses of blocks that are gone are prepared.
    TakesStaleIds,
    /// Zero bytes are rounded up to a block.
    TakesZeroBytes,
    /// A token on the default stream says `StreamId::DEFAULT`.
    TokensKeepDefault,
    /// A free is subtracted from `total_allocated`.
    TotalsGoBack,
    /// Uses on streams of other pools are accepted.
    TracksOnForeignStreams,
    /// `deallocate` takes a part of a block.
    TakesParts,
    /// Trimming frees live blocks too.
    TrimsLiveBlocks,
    /// A size that overflows becomes a small one.
    WrapsOversize,
}

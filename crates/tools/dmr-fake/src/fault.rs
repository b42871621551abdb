//! Faults of a resource.

/// A fault of a [`FakeResource`](super::FakeResource).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Trimming reports more bytes than it has returned to the device.
    ReturnsTooMuchOnTrim,
    /// Reaping returns the reserved bytes instead of the requested ones.
    ReturnsReservedBytesOnReap,
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
    /// Usage is in reserved bytes instead of requested ones.
    CountsRoundedBytes,
    /// A finished read is not recorded.
    ForgetsReads,
    /// An allocation does not count as a write on its home stream.
    ForgetsTheAllocation,
    /// A free waits for the home stream only.
    FreeIgnoresUses,
    /// A block is freed while a window on it is open.
    FreesInsideAWindow,
    /// A free waits for nothing.
    FreesWithoutWaiting,
    /// The error contains the refused block with another generation.
    ReturnsAnotherBlock,
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
    /// Every sixteenth `deallocate` is not subtracted from the live bytes.
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
    /// A window on one part of a block refuses uses of the other parts.
    RefusesDisjointParts,
    /// A second window on the same stream is refused.
    RefusesNesting,
    /// `prepare_uses` of no uses is refused.
    RefusesNoUses,
    /// It has use tracking, which refuses every use.
    RefusesWhatItClaims,
    /// `usage` has fewer bytes reserved than live.
    ReservesLessThanIsLive,
    /// The generations of freed blocks are used again.
    ReusesGenerations,
    /// `deallocate` returns `Freed` for blocks that are retired.
    ReturnsFreedTooEarly,
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
    /// Uses of deallocated blocks are prepared.
    TakesStaleIds,
    /// Zero bytes are rounded up to a block.
    TakesZeroBytes,
    /// Tokens for the default stream keep `StreamId::DEFAULT`.
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

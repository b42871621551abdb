//! Adopted memory of one kind as a resource, for crates that adopt memory.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, StreamPoolId, Usage, UseTracking,
};
use dmr_streams::uses::{Dependencies, FreeSlot, Patience};
use dmr_streams::{StreamGuard, StreamPool};

use crate::table::Table;

/// A kind of memory that another owner has allocated.
///
/// # Safety
///
/// [`ptr`](Self::ptr) and [`bytes`](Self::bytes) always return the same. The memory that
/// [`allocate`](Self::allocate) returns has these bytes at this address, which no other block
/// covers, which no work uses but that of its home stream before the call returns, and which stay
/// allocated until it is dropped or [freed](Self::free_in_order): blocks of it are allocated by
/// safe code.
///
/// ```compile_fail
/// # use dmr_external::AdoptedMemory;
/// struct Anywhere;
///
/// impl AdoptedMemory for Anywhere {
///     const NAME: &'static str = "Anywhere";
///     const IS_FREED_IN_ORDER: bool = true;
///
///     fn ptr(&self) -> u64 {
///         0xdead_beef
///     }
///
///     fn bytes(&self) -> usize {
///         64
///     }
/// }
/// ```
pub unsafe trait AdoptedMemory: Send + Sized + 'static {
    /// The name of its resource in messages.
    const NAME: &'static str;

    /// `true` for memory that is freed in the order of a stream, as soon as its block is
    /// deallocated ([`free_in_order`](Self::free_in_order)), and dropped then. `false` for memory
    /// that is dropped once the device has completed the last use.
    const IS_FREED_IN_ORDER: bool;

    /// Returns the device address.
    fn ptr(&self) -> u64;

    /// Returns the size in bytes.
    fn bytes(&self) -> usize;

    /// Allocates memory on `home`, which captures no graph.
    ///
    /// # Errors
    ///
    /// Those of the allocation. [`InvalidSize`](ResourceError::InvalidSize) by default, for memory
    /// that is only adopted.
    fn allocate(
        bytes: usize,
        home: &StreamGuard<'_>,
        usage: impl FnOnce() -> Usage,
    ) -> ResourceResult<Self> {
        let _ = (home, usage);
        Err(ResourceError::adopts_only(bytes))
    }

    /// Frees the memory in the order of a stream that comes after all of `after`.
    ///
    /// # Errors
    ///
    /// The memory is as it was.
    ///
    /// # Safety
    ///
    /// No window uses the memory. Once this has returned `Ok` nothing but its drop follows.
    unsafe fn free_in_order(
        &self,
        streams: &StreamPool,
        after: &Dependencies,
    ) -> ResourceResult<()> {
        let _ = (streams, after);
        Ok(())
    }

    /// Ends the memory on a device that is lost. Drops it by default.
    fn end_on_lost_device(self) {
        drop(self);
    }
}

/// The memory of one kind that was adopted by a stream pool, as a resource.
///
/// All values for one stream pool are the same resource, which lives as long as the pool.
///
/// # The end of memory that is not freed in order
///
/// It is dropped once, when its block was deallocated, its windows are closed, and the device has
/// completed the last recorded use and the work that was submitted to the home stream until then:
/// by the call that deallocates it if that is so already, otherwise by a thread of this library, or
/// by a reap that comes first. No lock is held meanwhile, and a panic is caught. It is not dropped
/// in a forked child, nor when the process ends before, nor if its block is leaked. After the end
/// of the stream pool it is dropped as before. On a lost device it is dropped at once.
pub struct AdoptedBlocks<M> {
    streams: Arc<StreamPool>,
    memory: PhantomData<fn() -> M>,
}

/// A place in the use table for a block that is about to be made.
#[must_use = "dropping it leaks the place: pass it to `AdoptedBlocks::hold` or `unreserve`"]
pub struct ReservedSlot(pub(crate) FreeSlot);

/// A block that was taken out, with its memory.
#[must_use = "dropping it leaks the memory's place"]
pub struct TakenBlock<M> {
    /// The memory.
    pub memory: M,
    /// The uses that come first.
    pub after: Dependencies,
    pub(crate) slot: FreeSlot,
    pub(crate) id: BlockId,
}

impl<M: AdoptedMemory> AdoptedBlocks<M> {
    /// Returns the memory of this kind that the streams have adopted.
    #[must_use]
    pub fn new(streams: Arc<StreamPool>) -> Self {
        Self { streams, memory: PhantomData }
    }

    /// Returns the streams.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Returns the blocks; refuses a forked child, in which another thread may hold a lock.
    fn table(&self) -> ResourceResult<Table<'_, M>> {
        self.streams.device().refuse_fork()?;
        Ok(Table::of(&self.streams))
    }

    /// Reserves a place for a block. First, because it may fail.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`Capacity`](ResourceError::Capacity).
    pub fn reserve(&self, home: &StreamGuard<'_>) -> ResourceResult<ReservedSlot> {
        let table = self.table()?;
        if !M::IS_FREED_IN_ORDER {
            table.watch_windows(&self.streams);
        }
        table.reserve(home)
    }

    /// Returns a place that is not needed.
    pub fn unreserve(&self, ReservedSlot(slot): ReservedSlot) {
        self.streams.uses().vacate(slot);
    }

    /// Makes a block of memory. Work on other streams comes after the work of `home` so far.
    ///
    /// # Safety
    ///
    /// The memory has its bytes at its address, which no other block covers and which stay
    /// allocated until it is dropped, or [freed](AdoptedMemory::free_in_order). The work that uses
    /// it so far comes before the next work on `home`. The place was reserved here.
    pub unsafe fn hold(
        &self,
        slot: ReservedSlot,
        home: &StreamGuard<'_>,
        memory: M,
        tag: AllocTag,
    ) -> DeviceBlock {
        // SAFETY: the caller's obligation.
        unsafe { Table::of(&self.streams).hold(slot, home, memory, tag) }
    }

    /// Takes a block out whose windows are closed, with its memory. End with
    /// [`give_up`](Self::give_up) or [`restore`](Self::restore).
    ///
    /// # Errors
    ///
    /// [`ForeignBlock`](ResourceError::ForeignBlock) for a block of another resource;
    /// [`UseAfterFree`](ResourceError::UseAfterFree);
    /// [`PartOfBlock`](ResourceError::PartOfBlock);
    /// [`WindowConflict`](ResourceError::WindowConflict) while a window is open;
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn take(&self, block: &DeviceBlock) -> ResourceResult<TakenBlock<M>> {
        self.table()?.take(block)
    }

    /// Restores a block that was taken out, as it was.
    pub fn restore(&self, taken: TakenBlock<M>) {
        Table::of(&self.streams).restore(taken);
    }

    /// Returns the memory of a block that was taken out, which is not this resource's any more.
    pub fn give_up(&self, taken: TakenBlock<M>) -> M {
        Table::of(&self.streams).give_up(taken)
    }
}

impl<M: AdoptedMemory> DeviceMemoryResource for AdoptedBlocks<M> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        checked_round_up(bytes, BLOCK_ALIGNMENT)?;
        let total = self.streams.device().total_memory();
        if bytes as u64 > total {
            return Err(ResourceError::beyond_device(bytes, total));
        }
        let home = self.streams.enter(stream)?;
        home.refuse_capture()?;
        let table = self.table()?;
        // What cannot be ended stays retired: this may be allocated all the same.
        let _ = table.end_closed(Patience::Poll);
        let slot = self.reserve(&home)?;
        match M::allocate(bytes, &home, || table.usage()) {
            // SAFETY: just allocated on `home`, by the obligation of the trait.
            Ok(memory) => Ok(unsafe { table.hold(slot, &home, memory, tag) }),
            Err(error) => {
                self.unreserve(slot);
                home.record_refusal(bytes, tag, &error);
                Err(error)
            }
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let deallocated = self.table().and_then(|table| table.deallocate(&block));
        deallocated.map_err(|error| DeallocateError::new(error, block))
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.table()?.refuse_part(block)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.streams.uses().is_retired(block)
            || self.table().is_ok_and(|table| table.is_waiting(block))
    }

    fn device_ordinal(&self) -> usize {
        self.streams.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    /// Returns zeros in a forked child.
    fn usage(&self) -> Usage {
        self.table().map_or_else(|_| Usage::default(), |table| table.usage())
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.table()?.reap(Patience::Poll)
    }

    /// Waits for the device where memory is not freed in order. Memory that another thread is
    /// dropping is not waited for.
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.table()?.reap(Patience::Wait)
    }

    /// Returns what has left the reserved bytes: none of memory that is not freed in order, which
    /// leaves them when its block is deallocated.
    fn trim_to(&self, _: u64) -> ResourceResult<u64> {
        let before = self.usage().reserved;
        self.try_reap()?;
        Ok(before.saturating_sub(self.usage().reserved))
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(&*self.streams)
    }
}

/// `ForeignBlocks(device 0)`.
impl<M: AdoptedMemory> fmt::Display for AdoptedBlocks<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(device {})", M::NAME, self.device_ordinal())
    }
}

impl<M: AdoptedMemory> fmt::Debug for AdoptedBlocks<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for ReservedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedSlot").finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for TakenBlock<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenBlock").field("id", &self.id).finish_non_exhaustive()
    }
}

//! The resource: what happens on every allocation and every free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use dmr_core::error::StreamProblem;
use dmr_core::process::LeakedInChild;
use dmr_core::waits::wait_without_limit;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, BlockUse, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DriverAllocation, Generation, PeerAccess, ResourceError, ResourceResult,
    StreamId, StreamPoolId, Usage, UseTokens, UseTracking, VirtualMemory,
};
use dmr_streams::uses::{BlocksInUse, Dependencies, Released, UseTable};
use dmr_streams::{BlockOwner, Device, EnteredStream, HomeStream, StreamPool};

use crate::PoolConfig;
use crate::arena::{Arena, ChunkLocation, FreedChunk, Locked, Placement, Request, RetiredChunk};
use crate::claim::Refusals;
use crate::heap::{AcquiredChunk, MAX_CHUNK, UNIT};
use crate::idle::IdleMemory;
use crate::look::SharedLook;
use crate::pages::{Pages, Paging};
use crate::recorded;
use crate::regions::Observed;
use crate::slack::Slack;
use crate::stats::PoolReport;
use crate::transit::Transit;

/// Cuts blocks from memory of an upstream resource, with use tracking. An allocation or a free that
/// finds what it needs makes no driver call.
///
/// # Where memory comes from
///
/// Every stream has an arena: the memory that it was the first to have. An allocation takes, in
/// this order,
///
/// 1. a free chunk of its stream's arena: there is nothing to wait for;
/// 2. a chunk that other streams have used, if they are known to be done with it, or its stream is
///    ordered after them;
/// 3. a free chunk of another stream's arena, likewise;
/// 4. memory from upstream, within the pool's slack;
/// 5. a chunk that its stream has to wait for, for which an event is recorded on the other stream;
/// 6. more memory from upstream;
/// 7. if upstream has no more: memory that went back to it, and chunks that the host waits for.
///
/// # When memory is free
///
/// The memory of a deallocated block is in the pool at once, with its dependencies: the home stream
/// may have it again when it is ordered after all uses on other streams. No user's stream is made
/// to wait because of a free. Whether other streams are done is polled for many blocks at a time. A
/// block with an open window is *retired* until that closes.
///
/// # Upstream
///
/// Need not track uses. Memory goes back to it only when the stream that it was allocated on is
/// ordered after all uses: in [`trim_to`](DeviceMemoryResource::trim_to), in a reap above the
/// release threshold, when upstream has no more, and when the pool is dropped. Dropping a pool over
/// pages waits for the work that uses them.
pub struct PoolResource<U: DeviceMemoryResource> {
    pub(crate) upstream: U,
    pub(crate) streams: Arc<StreamPool>,
    pub(crate) owner: BlockOwner,
    pub(crate) config: PoolConfig,
    /// The most bytes of a block.
    pub(crate) max_block: usize,
    /// The most bytes of a block on the fast path; 0 in an observed pool.
    fast_path_max: usize,
    pub(crate) slack: Slack,
    /// The memory checker that blocks are reported to.
    pub(crate) observed: Option<Observed>,
    /// `None` over an upstream that has blocks only, or if the configuration asks for blocks.
    pub(crate) pages: Option<Pages>,
    /// By slot of the stream.
    arenas: LeakedInChild<Box<[OnceLock<Box<Arena>>]>>,
    /// Bytes that the pool has from upstream.
    pub(crate) reserved: AtomicU64,
    /// The most bytes that it ever had.
    pub(crate) reserved_high: AtomicU64,
    /// Blocks that were released while a window was open.
    pub(crate) in_use: LeakedInChild<BlocksInUse<RetiredChunk>>,
    /// `reserved`, and what is being taken from upstream.
    pub(crate) claimed: AtomicU64,
    /// The bytes that upstream has for the pool, as far as it has refused more.
    pub(crate) upstream_has: AtomicU64,
    /// The refusals of upstream.
    pub(crate) refusals: LeakedInChild<Mutex<Refusals>>,
    /// The latest look at the idle memory, for threads that are short of memory.
    pub(crate) idle: LeakedInChild<SharedLook<Arc<IdleMemory>>>,
    /// The latest report for errors.
    pub(crate) reports: LeakedInChild<SharedLook<PoolReport>>,
    /// Memory in the hands of threads.
    pub(crate) transit: LeakedInChild<Transit>,
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Makes a pool on the streams of a stream pool.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) if `upstream` works on another stream pool;
    /// [`ForkedProcess`](ResourceError::ForkedProcess); upstream's, if there is an initial size.
    pub fn new(
        upstream: U,
        streams: Arc<StreamPool>,
        mut config: PoolConfig,
    ) -> ResourceResult<Self> {
        // First: another thread may have held a lock when the process was forked.
        streams.device().refuse_fork()?;
        if upstream.stream_pool() != streams.id() {
            let stream = streams.default_stream();
            return Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool));
        }
        // The field may have been set to any number.
        config = config.with_alignment(config.alignment);
        let pages = Pages::of(&upstream, &config, streams.device().total_memory());
        if pages.is_some() {
            // Any block can be anywhere.
            config.dedicated_from = u64::MAX;
        }
        let max_block = streams.device().total_memory().min(MAX_CHUNK) as usize;
        let owner = streams.register();
        let arenas = (0..streams.max_slots()).map(|_| OnceLock::new()).collect();
        let pool = Self {
            max_block,
            fast_path_max: max_block,
            observed: None,
            pages,
            upstream,
            in_use: LeakedInChild::new(BlocksInUse::new(&owner)),
            owner,
            config,
            slack: Slack::new(config.slack_divisor),
            arenas: LeakedInChild::new(arenas),
            reserved: AtomicU64::new(0),
            reserved_high: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            upstream_has: AtomicU64::new(u64::MAX),
            refusals: LeakedInChild::default(),
            idle: LeakedInChild::default(),
            reports: LeakedInChild::default(),
            transit: LeakedInChild::default(),
            streams,
        };
        if config.initial_size > 0 {
            let arena = pool.arena(pool.streams.default_stream());
            pool.reserve(arena, config.initial_size)?;
        }
        Ok(pool)
    }

    /// Returns the resource that the memory comes from.
    #[must_use]
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// Returns the most bytes that were ever reserved.
    #[must_use]
    pub fn reserved_high(&self) -> u64 {
        self.reserved_high.load(Ordering::Relaxed)
    }

    /// Returns the pool of the streams that it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    pub(crate) fn device(&self) -> &Device {
        self.streams.device()
    }

    #[inline]
    pub(crate) fn uses(&self) -> UseTable<'_> {
        self.streams.uses()
    }

    /// Returns the arena of a stream. The first call for a stream makes it.
    #[inline]
    pub(crate) fn arena(&self, home: StreamId) -> &Arena {
        self.arenas[home.slot()].get_or_init(|| {
            // A lease ends, and the next one of the stream finds the arena.
            let permanent = self.streams.permanent(home).unwrap_or(home);
            // Compact mode needs more exact live counts.
            let exactness = if self.config.waits_first { 8 } else { 5 };
            let page = self.pages.as_ref().map_or(0, |pages| pages.size);
            Box::new(Arena::new(permanent, exactness, page))
        })
    }

    /// Returns the arenas that have been made.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        self.arenas.iter().filter_map(OnceLock::get).map(|arena| &**arena)
    }

    /// Returns the request for `bytes` bytes in a chunk of at least `capacity`.
    #[inline]
    pub(crate) fn request(&self, bytes: usize, capacity: usize, tag: AllocTag) -> Request {
        let mask = self.config.alignment - 1;
        let units = (((capacity + mask) & !mask) as u64 / UNIT) as u32;
        Request { units, bytes: bytes as u64, tag }
    }

    /// Returns the pool's pages and what maps them; `None` if it takes blocks.
    pub(crate) fn paging(&self) -> Option<Paging<'_>> {
        let (pages, memory) = self.pages.as_ref().zip(self.upstream.virtual_memory())?;
        Some(Paging { pages, memory })
    }

    /// Routes every allocation through the slow path.
    pub(crate) fn disable_fast_path(&mut self) {
        self.fast_path_max = 0;
    }

    /// Allocates a block of `bytes` bytes in a chunk of at least `capacity`. The caller has checked
    /// the maximum.
    #[inline(never)]
    pub(crate) fn allocate_chunk(
        &self,
        bytes: usize,
        capacity: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let stream = self.streams.enter(stream)?;
        stream.refuse_capture()?;
        if self.fast_path_max > 0
            && let Some(home) = stream.entered()
        {
            return self.allocate_warm(bytes, home, tag);
        }
        let request = self.request(bytes, capacity, tag);
        let home = stream.id();
        let Placement { chunk, slot } = self.acquire(home, request)?;
        let generation = Generation::next();
        // A chunk's slot is of the use table of these streams.
        let slot = stream.occupy(slot, generation).unwrap_or(BlockSlot::NONE);
        let request = Request { units: chunk.units, ..request };
        Ok(self.block(chunk.address, request, home, generation, slot))
    }

    /// Makes a block in an acquired chunk of the request's units.
    #[inline(always)]
    pub(crate) fn block(
        &self,
        address: u64,
        request: Request,
        home: StreamId,
        generation: Generation,
        slot: BlockSlot,
    ) -> DeviceBlock {
        recorded::allocated(address, request, home, generation);
        // SAFETY: the chunk is in memory of upstream that the pool keeps until all of it is free;
        // it is this block's alone until `deallocate` frees it; the generation is new.
        #[allow(unsafe_code, reason = "making blocks is what a resource does")]
        unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr: address,
                bytes: request.bytes as usize,
                reserved_bytes: request.needed() as usize,
                alignment: self.config.alignment,
                device_ordinal: self.device_ordinal(),
                alloc_stream: home,
                tag: request.tag,
                generation,
                slot,
                state: BlockState::Live,
                part_depth: 0,
            })
        }
    }

    /// Acquires a free chunk that `home` may use at once, and the use slot of its block.
    fn acquire(&self, home: StreamId, request: Request) -> ResourceResult<Placement> {
        let arena = self.arena(home);
        let mut state = arena.lock_for_block();
        let chunk = state.heap.acquire(request.units);
        self.place(arena, state, chunk, request)
    }

    /// Returns a chunk that was acquired in the locked arena, and the use slot of its block;
    /// acquires another one if there is none.
    #[inline(always)]
    pub(crate) fn place(
        &self,
        arena: &Arena,
        mut state: Locked<'_>,
        chunk: Option<AcquiredChunk>,
        request: Request,
    ) -> ResourceResult<Placement> {
        if let Some(chunk) = chunk
            && let Some(slot) = state.heap.take_slot(chunk.id, request.tag)
        {
            state.count_block(request.bytes);
            return Ok(Placement { chunk, slot });
        }
        drop(state);
        self.acquire_slowly(arena, chunk, request)
    }

    /// Frees a block. On an error nothing has changed. The caller has found that the home stream
    /// captures no graph if it has `looked`.
    #[inline(never)]
    fn free(&self, block: &DeviceBlock, looked: bool) -> ResourceResult<BlockState> {
        let id = block.id();
        let home = block.alloc_stream();
        let bytes = block.bytes() as u64;
        block.require_part_depth(0)?;
        if !looked && self.free_on_guarded(block, home)? {
            return Ok(BlockState::Freed);
        }
        let mut after = Dependencies::default();
        match self.uses().release(&self.owner, id, &mut after) {
            Released::Free { payload, slot } => {
                if let Some(location) = ChunkLocation::from_payload(payload) {
                    let is_borrowed = location.arena != home.slot();
                    recorded::freed(block, is_borrowed || !after.is_empty());
                    let deallocated = bytes;
                    let slot = Some(slot);
                    let freed =
                        FreedChunk { location, home, after, slot, deallocated, freed: bytes };
                    self.free_used(freed);
                }
                Ok(BlockState::Freed)
            }
            Released::InUse { payload, .. } => {
                recorded::freed(block, true);
                self.retire(RetiredChunk { id, payload, bytes });
                Ok(BlockState::Retired)
            }
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    /// Refuses a forked child, in which another thread may hold a lock, and a home stream that
    /// captures a graph. Frees the block on the regular path, if it is on that, and returns whether
    /// it did.
    fn free_on_guarded(&self, block: &DeviceBlock, home: StreamId) -> ResourceResult<bool> {
        match self.streams.enter_home(home) {
            Ok(HomeStream::Live(home)) => {
                home.refuse_capture()?;
                let is_regular = self.fast_path_max > 0;
                let home = home.entered().filter(|_| is_regular);
                Ok(home.is_some_and(|home| self.free_warm(block, home)))
            }
            // A block of another pool is refused by its slot, and the memory of a lost device is
            // freed.
            Ok(HomeStream::Retired)
            | Err(ResourceError::StreamMisuse { .. } | ResourceError::DeviceLost { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn arena_at(&self, slot: usize) -> Option<&Arena> {
        self.arenas.get(slot)?.get().map(|arena| &**arena)
    }

    /// Frees the retired blocks whose last window has closed. Every call that may have closed a
    /// window calls it; a preparation that fails closes those that it has opened.
    #[inline]
    fn free_if_closed(&self) {
        // Another thread may have held a lock when the process was forked.
        if self.in_use.any_closed() && !self.device().is_forked() {
            self.free_closed();
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<U: DeviceMemoryResource> DeviceMemoryResource for PoolResource<U> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // Zero is refused on the slow path, too.
        if bytes.wrapping_sub(1) >= self.fast_path_max {
            return self.allocate_observed(bytes, stream, tag);
        }
        match self.streams.enter_own(stream).filter(EnteredStream::is_not_capturing) {
            Some(home) => self.allocate_warm(bytes, home, tag),
            None => self.allocate_chunk(bytes, bytes, stream, tag),
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let home = self.streams.enter_own_home(block.alloc_stream());
        let is_refused = home.is_none_or(|home| !home.is_not_capturing());
        if !is_refused
            && let Some(home) = home
            && block.part_depth() == 0
            && self.fast_path_max > 0
            && self.free_warm(&block, home)
        {
            return Ok(BlockState::Freed);
        }
        self.free(&block, !is_refused).map_err(|error| DeallocateError::new(error, block))
    }

    /// Gives no block away: the driver's allocation is the pool's.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let refused = ResourceError::not_given_away(&block, "the pool");
        Err(DeallocateError::new(refused, block))
    }

    /// Adds free memory behind the block to it, if its home stream need not wait for that. Where
    /// the pool maps pages, it maps some at addresses behind the block that have no memory, if it
    /// may reserve more: a block at the end of its stream's memory always grows then. Returns
    /// `false` for a dedicated block, and for every block of a pool with an
    /// [observer](PoolResource::with_observer).
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.grow_in_place(block, bytes)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.uses().is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn bytes_outstanding(&self) -> u64 {
        self.own_usage().outstanding()
    }

    /// Returns the usage; `reserved` is that of upstream: what the pool has reserved, and what
    /// upstream keeps besides.
    fn usage(&self) -> Usage {
        let mut usage = self.own_usage();
        usage.reserved = self.upstream.usage().reserved;
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap(U::try_reap)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap(|upstream| {
            if !self.device().is_lost() {
                self.wait_for_pending()?;
            }
            upstream.reap_pending()
        })
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let before = self.upstream.usage().reserved;
        self.free_closed();
        if !self.device().is_lost() {
            let own = self.trim_own_to(keep_bytes);
            own.and(self.upstream.trim_to(keep_bytes))?;
        }
        Ok(before.saturating_sub(self.upstream.usage().reserved))
    }

    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        self.upstream.allow_access(device_ordinal)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(self)
    }

    /// Returns `None`: the blocks have no pages of their own.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

impl<U: DeviceMemoryResource> UseTracking for PoolResource<U> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.uses().prepare_in(uses, tokens, || self.free_if_closed())?;
        if dmr_recorder::is_on() {
            self.describe_awaited(uses);
        }
        Ok(())
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let outcome = self.uses().finish_in(tokens);
        self.free_if_closed();
        outcome
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let outcome = self.uses().cancel_in(tokens);
        self.free_if_closed();
        outcome
    }
}

impl<U: DeviceMemoryResource> Drop for PoolResource<U> {
    fn drop(&mut self) {
        wait_without_limit(|| self.release_all());
    }
}

//! A first-fit resource on the fake device, with an optional ledger per block.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use dmr_core::error::StreamProblem;
use dmr_core::ledger::PartLedger;
use dmr_core::sync::lock;
use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, BlockUse, ByteRange,
    DeallocateError, DeviceBlock, DeviceMemoryResource, Generation, ResourceError, ResourceResult,
    StreamId, StreamPoolId, Usage, UseTokens, UseTracking,
};

use super::device::{Device, Event};
use super::{BASE, DEVICE_BYTES, Fault, SharedDevice, leased};

const ORDINAL: usize = 0;

/// The innermost resource of a [`FakeHarness`](super::FakeHarness): correct, or with one fault.
pub struct FakeResource {
    device: SharedDevice,
    pub(super) pool: StreamPoolId,
    pub(super) tracks: bool,
    fault: Option<Fault>,
    state: Mutex<FakeState>,
}

#[derive(Debug, Default)]
pub(super) struct FakeState {
    pub(super) blocks: HashMap<Generation, HeldBlock>,
    pub(super) usage: Usage,
    pub(super) calls: u64,
    pub(super) spare_generations: Vec<Generation>,
}

/// A block that is live or retired.
#[derive(Debug)]
pub(super) struct HeldBlock {
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) reserved: usize,
    pub(super) home: StreamId,
    /// The event on the home stream at which it was deallocated.
    pub(super) retired: Option<Event>,
    pub(super) ledger: PartLedger,
    pub(super) windows: Vec<OpenWindow>,
}

#[derive(Debug)]
pub(super) struct OpenWindow {
    pub(super) ticket: u32,
    pub(super) stream: StreamId,
    pub(super) access: Access,
    pub(super) bytes: ByteRange,
}

/// Shows the innermost name of a stack.
impl fmt::Debug for FakeResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

impl FakeResource {
    pub(super) fn new(
        device: SharedDevice,
        pool: StreamPoolId,
        tracks: bool,
        fault: Option<Fault>,
    ) -> Self {
        Self { device, pool, tracks, fault, state: Mutex::default() }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.state)
    }

    pub(super) fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.device)
    }

    pub(super) fn resolve(&self, stream: StreamId) -> ResourceResult<StreamId> {
        if stream.is_default() {
            return Ok(leased(self.pool, 0));
        }
        let problem = if stream.pool() != Some(self.pool) {
            if self.has(Fault::TakesForeignStreams) {
                return Ok(leased(self.pool, stream.slot()));
            }
            StreamProblem::OtherPool
        } else if stream.lease() != 1 {
            if self.has(Fault::TakesReturnedStreams) {
                return Ok(leased(self.pool, stream.slot()));
            }
            StreamProblem::ReturnedLease
        } else {
            return Ok(stream);
        };
        Err(ResourceError::stream_misuse(stream, problem))
    }

    /// Returns the offset of memory for a new block: that of a retired block that `home` is ordered
    /// after anyway, else the first gap that is large enough.
    fn place(&self, state: &mut FakeState, reserved: usize, home: StreamId) -> Option<usize> {
        let taken_over = state.blocks.iter().find(|(_, held)| {
            held.retired.is_some()
                && held.home == home
                && held.reserved == reserved
                && held.windows.is_empty()
                && held.waits(ByteRange::WHOLE, home.slot(), Access::Write).is_empty()
        });
        if let Some(generation) = taken_over.map(|(generation, _)| *generation) {
            return self.free(state, generation).map(|held| held.at);
        }
        if let Some(at) = self.first_fit(state, reserved) {
            return Some(at);
        }
        self.reap(state, true);
        self.first_fit(state, reserved)
    }

    fn first_fit(&self, state: &FakeState, reserved: usize) -> Option<usize> {
        let mut taken: Vec<_> = state.blocks.values().map(|h| (h.at, h.reserved)).collect();
        taken.sort_unstable();
        if self.has(Fault::Overlaps) && taken.len() > 2 {
            taken.remove(1);
        }
        let mut at = 0;
        for (start, len) in taken {
            if at + reserved <= start {
                break;
            }
            at = at.max(start + len);
        }
        (at + reserved <= DEVICE_BYTES).then_some(at)
    }

    /// Frees a block.
    pub(super) fn free(&self, state: &mut FakeState, generation: Generation) -> Option<HeldBlock> {
        let held = state.blocks.remove(&generation)?;
        let bytes = self.counted(held.bytes, held.reserved);
        match held.retired {
            Some(_) => state.usage.retired -= bytes,
            None => state.usage.live = state.usage.live.saturating_sub(bytes),
        }
        state.usage.reserved -= held.reserved as u64;
        if self.has(Fault::TotalsGoBack) {
            state.usage.total_allocated -= bytes;
        } else if !self.has(Fault::ReapLosesAccounting) {
            state.usage.total_freed += bytes;
        }
        state.spare_generations.push(generation);
        Some(held)
    }

    pub(super) fn reap(&self, state: &mut FakeState, wait: bool) -> u64 {
        let mut device = self.device();
        let mut done: Vec<_> = Vec::new();
        for (generation, held) in &state.blocks {
            let Some(home) = held.retired else {
                done.extend(self.has(Fault::ReapsLiveBlocks).then_some(*generation));
                continue;
            };
            if !held.windows.is_empty() && !self.has(Fault::FreesInsideAWindow) {
                continue;
            }
            let uses = held.free_waits().into_iter().map(Event::of);
            let uses = uses.filter(|_| !self.has(Fault::FreeIgnoresUses));
            let mut needed: Vec<_> = uses.chain([home]).collect();
            if self.has(Fault::FreesWithoutWaiting) {
                needed.clear();
            }
            if wait && !self.has(Fault::ReapPendingDoesNotWait) {
                needed.iter().for_each(|event| device.run_until(*event));
            }
            if needed.iter().all(|event| device.is_complete(*event)) {
                done.push(*generation);
            }
        }
        if self.has(Fault::ScribblesOnReap) {
            state.blocks.values().for_each(|held| device.memory()[held.at] = 0x5c);
        }
        let mut freed = 0;
        for generation in done {
            if let Some(held) = self.free(state, generation) {
                let rounded = self.has(Fault::ReturnsReservedBytesOnReap);
                freed += if rounded { held.reserved } else { held.bytes } as u64;
            }
        }
        freed
    }

    /// Reads the accounting, lets other threads run, and writes it, so that their changes are lost.
    fn count_with_a_race(&self, bytes: u64) {
        let live = self.state().usage.live;
        std::thread::sleep(std::time::Duration::from_micros(50));
        self.state().usage.live = live + bytes;
    }
}

impl DeviceMemoryResource for FakeResource {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let mut home = self.resolve(stream)?;
        if self.has(Fault::HomeIsAlwaysTheFirstStream) {
            home = leased(self.pool, 0);
        }
        let reserved = self.checked_size(bytes)?;
        let counted = self.counted(bytes, reserved);
        let mut state = self.state();
        let Some(at) = self.place(&mut state, reserved, home) else {
            if self.has(Fault::CountsRefusedAllocations) {
                state.usage.live += counted;
                state.usage.total_allocated += counted;
            }
            let total = DEVICE_BYTES as u64;
            let memory = (total - state.usage.reserved, total);
            return Err(ResourceError::out_of_memory(bytes, ORDINAL, memory, &state.usage));
        };
        let spare = state.spare_generations.pop().filter(|_| self.has(Fault::ReusesGenerations));
        let generation = spare.unwrap_or_else(Generation::next);
        let event = self.device().record(home.slot());
        let forgets = self.has(Fault::ForgetsTheAllocation);
        let ledger =
            if forgets { PartLedger::default() } else { PartLedger::allocated(event.id()) };
        let windows = Vec::new();
        let held = HeldBlock { at, bytes, reserved, home, retired: None, ledger, windows };
        state.blocks.insert(generation, held);
        state.usage.reserved += reserved as u64;
        state.usage.total_allocated += counted;
        if self.has(Fault::CountersRace) {
            drop(state);
            self.count_with_a_race(counted);
        } else {
            state.usage.live += counted;
        }
        let parts = BlockParts {
            ptr: BASE + at as u64,
            bytes,
            reserved_bytes: reserved,
            alignment: 256,
            device_ordinal: ORDINAL,
            alloc_stream: if self.has(Fault::StoresDefault) { stream } else { home },
            tag: if self.has(Fault::BlocksForgetTheirTag) { AllocTag::UNTAGGED } else { tag },
            generation,
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: the range was free and is held until `deallocate`; it is an index into the
        // fake's byte array, which is never dereferenced. Broken fakes break this on purpose.
        #[allow(unsafe_code, reason = "making blocks is what a resource does")]
        Ok(unsafe { DeviceBlock::from_parts(parts) })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(part) = block.require_part_depth(0)
            && !self.has(Fault::TakesParts)
        {
            return Err(DeallocateError::new(part, block));
        }
        let mut state = self.state();
        state.calls += 1;
        let loses = self.has(Fault::LosesAFreeNowAndThen) && state.calls.is_multiple_of(16);
        let Some(held) = state.blocks.get_mut(&block.generation()) else {
            if self.has(Fault::TakesForeignBlocks) {
                return Ok(BlockState::Freed);
            }
            if self.has(Fault::CountsRefusedBlocks) {
                state.usage.retired += block.bytes() as u64;
                state.usage.total_allocated += block.bytes() as u64;
            }
            let refusal = ResourceError::foreign_block(&block, ORDINAL);
            if self.has(Fault::ReturnsAnotherBlock) {
                let mut parts = block.into_parts();
                parts.generation = Generation::next();
                // SAFETY: it is the same memory. The new generation is the fault.
                #[allow(unsafe_code, reason = "making blocks is what a resource does")]
                let block = unsafe { DeviceBlock::from_parts(parts) };
                return Err(DeallocateError::new(refusal, block));
            }
            return Err(DeallocateError::new(refusal, block));
        };
        let counted = self.counted(held.bytes, held.reserved);
        held.retired = Some(self.device().record(held.home.slot()));
        if !loses {
            state.usage.live = state.usage.live.saturating_sub(counted);
        }
        state.usage.retired += counted;
        Ok(if self.has(Fault::ReturnsFreedTooEarly) {
            BlockState::Freed
        } else {
            BlockState::Retired
        })
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.grow(block, bytes)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        let state = self.state();
        let held = state.blocks.get(&block.generation());
        held.is_some_and(|held| held.retired.is_some() || self.has(Fault::CallsLiveBlocksRetired))
    }

    fn device_ordinal(&self) -> usize {
        ORDINAL
    }

    fn stream_pool(&self) -> StreamPoolId {
        if self.has(Fault::NamesAnotherPool) {
            return StreamPoolId::next().expect("a stream pool's id");
        }
        self.pool
    }

    fn bytes_outstanding(&self) -> u64 {
        let usage = self.usage();
        if self.has(Fault::OutstandingIsLiveOnly) { usage.live } else { usage.outstanding() }
    }

    fn usage(&self) -> Usage {
        let mut usage = self.state().usage;
        if self.has(Fault::ReservesLessThanIsLive) {
            usage.reserved = usage.live.saturating_sub(1);
        }
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        Ok(self.reap(&mut self.state(), false))
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        Ok(self.reap(&mut self.state(), true))
    }

    /// Trims: only retired blocks keep memory.
    fn trim_to(&self, _: u64) -> ResourceResult<u64> {
        Ok(self.trim())
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.tracks.then_some(self as _)
    }
}

impl UseTracking for FakeResource {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        if uses.is_empty() && !self.has(Fault::RefusesNoUses) {
            return Ok(());
        }
        let stream = tokens.stream();
        let resolved = self.tracked(stream)?;
        let mut state = self.state();
        let admit = |state: &FakeState, used: &BlockUse| {
            let admitted = self.admit(state, used, resolved);
            if self.has(Fault::TakesStaleIds) { Ok(()) } else { admitted }
        };
        if !self.has(Fault::PreparesInPart) {
            uses.iter().try_for_each(|used| admit(&state, used))?;
        }
        if !self.has(Fault::TokensKeepDefault) && !tokens.resolve(resolved) {
            return Err(ResourceError::not_tracked(stream));
        }
        for used in uses {
            admit(&state, used)?;
            let ticket = self.open(&mut state, used, resolved);
            #[allow(unsafe_code, reason = "opening windows is what a resource does")]
            // SAFETY: the window was opened just now.
            unsafe {
                tokens.push(used.block, used.access, ticket);
            }
        }
        if tokens.is_empty() {
            return Err(ResourceError::not_tracked(stream));
        }
        Ok(())
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let stream = self.tracked(tokens.stream())?;
        let outcome = tokens.iter().try_for_each(|token| self.close(token, Some(stream)));
        tokens.clear();
        outcome
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.tracked(tokens.stream())?;
        let outcome = tokens.iter().try_for_each(|token| self.close(token, None));
        tokens.clear();
        outcome
    }
}

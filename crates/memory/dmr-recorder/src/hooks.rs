//! The calls by which the crates of the memory report events. Each of them costs a load and a
//! branch while nothing is recorded.

use std::cell::Cell;

use dmr_core::{AllocTag, StreamId};
use dmr_recording::StreamChange;

use crate::gate::is_on;
use crate::notes::{Refused, What, forget_name};
use crate::raw::{Kind, Raw};
use crate::recorder;
use crate::thread::{self, push, push_coarse};

/// A block, as an event has it.
#[derive(Clone, Copy, Debug)]
pub struct RecordedBlock {
    /// Address of its first byte.
    pub address: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// The number of the allocation.
    pub generation: u64,
    /// Its home stream.
    pub stream: StreamId,
    /// Its tag.
    pub tag: AllocTag,
}

impl From<&dmr_core::DeviceBlock> for RecordedBlock {
    #[inline(always)]
    fn from(block: &dmr_core::DeviceBlock) -> Self {
        Self {
            address: block.ptr(),
            bytes: block.bytes() as u64,
            generation: block.generation().get(),
            stream: block.alloc_stream(),
            tag: block.tag(),
        }
    }
}

impl RecordedBlock {
    #[inline(always)]
    fn raw(self, kind: Kind) -> Raw {
        let Self { address, bytes, generation, stream, tag } = self;
        Raw::new(kind, address, bytes, generation, stream.as_u64()).tagged(tag)
    }
}

#[inline(always)]
fn push_block(kind: Kind, block: RecordedBlock) {
    push(block.raw(kind));
}

/// Records an allocation: when the block is the caller's.
#[inline(always)]
pub fn allocated(block: impl FnOnce() -> RecordedBlock) {
    if is_on() {
        push_block(Kind::Allocate, block());
    }
}

/// Records an allocation as [`allocated`] does. Its time may be that of an event of the thread
/// before it, by [`take_over`]'s leave: at most a millisecond earlier, if the recorder's thread is
/// scheduled in time, which the recording states.
#[inline(always)]
pub fn allocated_coarse(block: impl FnOnce() -> RecordedBlock) {
    if is_on() {
        push_coarse(block().raw(Kind::Allocate));
    }
}

/// Records a free of memory that is ready at once, as [`freed`] does. If this thread has allocated
/// the block, as `is_own` returns, its time may be that of an event of the thread before it.
#[inline(always)]
pub fn freed_coarse(is_own: impl FnOnce() -> bool, block: impl FnOnce() -> RecordedBlock) {
    if is_on() {
        let raw = block().raw(Kind::Free);
        if is_own() { push_coarse(raw) } else { push(raw) }
    }
}

/// Called with the lock of memory held, before an allocation from it is recorded with
/// [`allocated_coarse`]. `owner`, at first 0, is behind the lock, and names the thread that called
/// this last. If that was another one, the next event of this thread reads the clock: it is not
/// before those of the other thread.
#[inline(always)]
pub fn take_over(owner: &mut u64) {
    if is_on() {
        thread::take_over(owner);
    }
}

/// Records a free, before another thread can have the memory. If it `retires`, device work may
/// still use it: [`ready`] follows, unless it is allocated again before.
#[inline(always)]
pub fn freed(retires: bool, block: impl FnOnce() -> RecordedBlock) {
    if is_on() {
        push_block(if retires { Kind::Retire } else { Kind::Free }, block());
    }
}

/// Records that a block has become larger; its bytes are the new ones.
#[inline]
pub fn grown(block: impl FnOnce() -> RecordedBlock) {
    if is_on() {
        push_block(Kind::Grow, block());
    }
}

/// Describes a live block that [`waited`] has named.
#[inline]
pub fn described(block: RecordedBlock) {
    if is_on() {
        push_block(Kind::Describe, block);
    }
}

/// Memory that a resource has or had.
#[derive(Clone, Copy, Debug)]
pub struct RecordedSpan {
    /// Address of its first byte; 0 for pages without one.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The stream whose memory it is.
    pub stream: StreamId,
}

#[inline]
fn push_span(kind: Kind, span: RecordedSpan, from: u64) {
    if is_on() {
        push(Raw::new(kind, span.address, span.bytes, from, span.stream.as_u64()));
    }
}

/// Records that memory that was retired may be allocated again.
#[inline]
pub fn ready(memory: impl FnOnce() -> RecordedSpan) {
    if is_on() {
        push_span(Kind::Ready, memory(), 0);
    }
}

/// Records that bytes were reserved from upstream.
#[inline]
pub fn reserved(bytes: u64, stream: StreamId) {
    push_span(Kind::Reserve, RecordedSpan { address: 0, bytes, stream }, 0);
}

/// Records that bytes were returned to upstream.
#[inline]
pub fn released(bytes: u64, stream: StreamId) {
    push_span(Kind::Release, RecordedSpan { address: 0, bytes, stream }, 0);
}

/// Records that reserved memory is at these addresses now.
#[inline]
pub fn mapped(span: RecordedSpan) {
    push_span(Kind::Map, span, 0);
}

/// Records that there is no memory at these addresses any more.
#[inline]
pub fn unmapped(span: RecordedSpan) {
    push_span(Kind::Unmap, span, 0);
}

/// Records that the memory of address `from` is at these addresses now.
#[inline]
pub fn moved(span: RecordedSpan, from: u64) {
    push_span(Kind::Move, span, from);
}

/// A wait of one stream for another.
#[derive(Clone, Copy, Debug)]
pub struct RecordedWait {
    /// The stream that waits.
    pub stream: StreamId,
    /// The stream that it waits for.
    pub awaited: StreamId,
    /// The generation of the block that it waits for; 0 for none.
    pub block: u64,
    /// The number of the launch that waits; 0 if it is not known.
    pub launch: u64,
    /// The number of the awaited work on its stream.
    pub work: u64,
}

/// Records that a stream was made to wait.
#[inline]
pub fn waited(wait: impl FnOnce() -> RecordedWait) {
    if is_on() {
        let RecordedWait { stream, awaited, block, launch, work } = wait();
        if block != 0 {
            note_awaited(block);
        }
        let raw = Raw::new(Kind::Wait, awaited.as_u64(), launch, block, stream.as_u64());
        push(Raw { text: work, ..raw });
    }
}

/// The most blocks that [`take_awaited_blocks`] returns.
pub const MAX_AWAITED: usize = 8;

thread_local! {
    static AWAITED: Cell<Awaited> = const { Cell::new(Awaited { blocks: [0; MAX_AWAITED], len: 0 }) };
}

#[derive(Clone, Copy)]
struct Awaited {
    blocks: [u64; MAX_AWAITED],
    len: usize,
}

fn note_awaited(block: u64) {
    let mut awaited = AWAITED.get();
    if let Some(place) = awaited.blocks.get_mut(awaited.len) {
        *place = block;
        awaited.len += 1;
        AWAITED.set(awaited);
    }
}

/// Returns the generations of the blocks for which this thread has made streams wait since the last
/// call: a resource [describes](described) those that are its own.
#[inline]
pub fn take_awaited_blocks() -> impl Iterator<Item = u64> {
    let awaited = AWAITED.get();
    if awaited.len > 0 {
        AWAITED.set(Awaited { len: 0, ..awaited });
    }
    awaited.blocks.into_iter().take(awaited.len)
}

/// Records that a buffer was moved to the host, or back if it `returns`.
#[inline]
pub fn spilled(returns: bool, block: impl FnOnce() -> RecordedBlock) {
    if is_on() {
        push_block(if returns { Kind::SpillIn } else { Kind::SpillOut }, block());
    }
}

/// Records the launch of a graph.
#[inline]
pub fn graph_launched(stream: StreamId, graph: u64, tag: AllocTag) {
    if is_on() {
        push(Raw::new(Kind::GraphLaunch, graph, 0, 0, stream.as_u64()).tagged(tag));
    }
}

/// Records a new high mark of a budget.
#[inline]
pub fn budget_peak(budget: AllocTag, bytes: u64, limit: u64) {
    if is_on() {
        recorder::note(What::BudgetPeak { budget, bytes, limit });
    }
}

/// Records that a stream was made.
pub fn stream_created(stream: StreamId) {
    if is_on() {
        recorder::note(What::Stream { change: StreamChange::Created, stream });
    }
}

/// Records that a stream is not used any more. Its name is forgotten.
pub fn stream_retired(stream: StreamId) {
    if is_on() {
        recorder::note(What::Stream { change: StreamChange::Retired, stream });
    }
    forget_name(stream);
}

/// Records that an allocation finds too little memory, and describes the heaps: before memory is
/// waited for, returned to upstream or spilled. Heaps are described ten times a second at most.
#[cold]
pub fn short_of_memory() {
    if is_on() {
        recorder::note_heaps_before();
    }
}

/// Records a refused allocation. Writes a recording to the folder, unless the thread is in a scope
/// of [`Retrying`](crate::Retrying).
#[cold]
pub fn refused(refused: impl FnOnce() -> Refused) {
    if is_on() {
        recorder::refuse(refused());
    }
}

/// Records the loss of a device, and writes a recording to the folder.
#[cold]
pub fn device_lost(device: usize, message: &str) {
    if is_on() {
        recorder::lose(device, message);
    }
}

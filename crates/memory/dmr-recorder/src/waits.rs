//! Waits, as events have them: of a stream for another one, of one that is measured on the device,
//! and of a thread of the host.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dmr_core::StreamId;

use crate::gate::is_on;
use crate::notes::{By, What};
use crate::raw::{Kind, Raw};
use crate::recorder;
use crate::thread::{push, thread_number, unmuted};

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

/// Records that a stream was made to wait: also in a scope of [`Unrecorded`](crate::Unrecorded),
/// which is about blocks.
#[inline]
pub fn waited(wait: &RecordedWait) {
    if is_on() {
        let RecordedWait { stream, awaited, block, launch, work } = *wait;
        if block != 0 {
            note_awaited(block);
        }
        let raw = Raw::new(Kind::Wait, awaited.as_u64(), launch, block, stream.as_u64());
        unmuted(|| push(Raw { text: work, ..raw }));
    }
}

/// The most blocks that [`take_awaited_blocks`] returns.
pub const MAX_AWAITED: usize = 8;

thread_local! {
    static AWAITED: Cell<Awaited> = const { Cell::new(Awaited { blocks: [0; MAX_AWAITED], len: 0 }) };
    /// The state of the numbers by which waits are chosen; 0 before the first.
    static CHOICE: Cell<u64> = const { Cell::new(0) };
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
/// call: a resource [describes](crate::hooks::described) those that are its own.
#[inline]
pub fn take_awaited_blocks() -> impl Iterator<Item = u64> {
    let awaited = AWAITED.get();
    if awaited.len > 0 {
        AWAITED.set(Awaited { len: 0, ..awaited });
    }
    awaited.blocks.into_iter().take(awaited.len)
}

/// One in this many waits is measured on the device; 0 for none.
static ONE_IN: AtomicU32 = AtomicU32::new(0);

pub(crate) fn set_one_in(one_in: Option<NonZeroU32>) {
    ONE_IN.store(one_in.map_or(0, NonZeroU32::get), Ordering::Relaxed);
}

/// Returns whether the next wait of this thread is to be measured: one in
/// [N](crate::RecorderConfig::time_waits), chosen at random, so that waits of each place in a loop
/// are measured.
#[inline]
pub fn chooses_wait() -> bool {
    let one_in = ONE_IN.load(Ordering::Relaxed);
    is_on() && one_in > 0 && choose(one_in)
}

fn choose(one_in: u32) -> bool {
    // SplitMix64.
    let before = match CHOICE.get() {
        0 => thread_number(),
        before => before,
    };
    let state = before.wrapping_add(0x9e37_79b9_7f4a_7c15);
    CHOICE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // A number below `one_in`.
    ((mixed >> 32) * u64::from(one_in)) >> 32 == 0
}

/// A wait that is measured on the device, since it was queued.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredWait {
    wait: RecordedWait,
    by: By,
    queued: Instant,
}

impl MeasuredWait {
    /// Notes a wait that the calling thread has just queued.
    #[must_use]
    pub fn new(wait: RecordedWait) -> Self {
        Self { wait, by: By::current(), queued: Instant::now() }
    }

    /// Records for how long the wait has held up its stream, on the device: for the thread that has
    /// queued it.
    pub fn record(self, length: Duration) {
        if is_on() {
            let Self { wait, by, queued } = self;
            let age_ns = ns(queued.elapsed());
            let what = What::WaitLength { wait, length_ns: ns(length), age_ns };
            recorder::note_of(by, what);
        }
    }
}

/// A wait of the calling thread for the device, which is recorded when this is dropped.
#[derive(Debug)]
#[must_use = "the wait ends where this is dropped"]
pub struct HostWait {
    /// `None` while nothing is recorded.
    began: Option<Instant>,
    /// 0 for all of the device.
    stream: u64,
    device: usize,
}

impl HostWait {
    /// Begins a wait for a stream.
    #[inline]
    pub fn for_stream(stream: StreamId) -> Self {
        Self { began: is_on().then(Instant::now), stream: stream.as_u64(), device: 0 }
    }

    /// Begins a wait for all streams of a device.
    #[inline]
    pub fn for_device(device: usize) -> Self {
        Self { began: is_on().then(Instant::now), stream: 0, device }
    }
}

impl Drop for HostWait {
    #[inline]
    fn drop(&mut self) {
        if let Some(began) = self.began
            && is_on()
        {
            let length = ns(began.elapsed());
            let raw = Raw::new(Kind::HostWait, length, self.device as u64, 0, self.stream);
            unmuted(|| push(raw));
        }
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn one_wait_in_n_is_chosen_and_in_no_fixed_step() {
        let chosen: Vec<_> = (0..100_000).filter(|_| choose(50)).collect();
        assert!((1_800..2_200).contains(&chosen.len()), "{}", chosen.len());
        let odd = chosen.iter().filter(|nth| *nth % 2 == 1).count();
        assert!((800..1_200).contains(&odd), "{odd}");
        assert!((0..100).all(|_| choose(1)));
    }
}

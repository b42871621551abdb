//! Models of the slots: what holds in every order of the threads' steps.

use dmr_core::{
    Access, AllocTag, BlockParts, BlockSlot, BlockState, ByteRange, DeviceBlock, Generation,
    StreamPoolId, UseTokens,
};
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;

use super::*;
use crate::timeline::Timeline;
use crate::uses::slot_state::Occupant;
use crate::uses::{FreeSlot, Released};

fn stream(pool: StreamPoolId, slot: usize) -> StreamId {
    StreamId::from_parts(pool, slot, 0).unwrap()
}

fn id(slot: BlockSlot, generation: Generation, alloc_stream: StreamId) -> BlockId {
    let parts = BlockParts {
        ptr: 256,
        bytes: 1,
        reserved_bytes: 1,
        alignment: 256,
        device_ordinal: 0,
        alloc_stream,
        tag: AllocTag::UNTAGGED,
        generation,
        slot,
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: the address is never used.
    unsafe { DeviceBlock::from_parts(parts) }.id()
}

/// The streams of a model, by slot.
struct Streams([Timeline<()>; 3]);

impl Streams {
    fn new() -> Arc<Self> {
        Arc::new(Self(std::array::from_fn(|_| Timeline::new())))
    }
}

impl Launches for Streams {
    fn is_over(&self, launch: UseId) -> bool {
        self.0[launch.slot()].is_over(launch.seq())
    }

    fn watch(&self, launch: UseId) {
        self.0[launch.slot()].watch(launch.seq());
    }

    fn is_done(&self, _: UseId) -> bool {
        false
    }

    fn holds_up(&self, slot: usize, used: UseId) -> bool {
        slot != used.slot()
    }
}

/// A table, and the streams of its pool.
#[derive(Clone)]
struct Table {
    slots: Arc<Slots>,
    streams: Arc<Streams>,
    pool: StreamPoolId,
}

impl Table {
    fn new() -> Self {
        let pool = StreamPoolId::next().unwrap();
        Self { slots: Arc::new(Slots::new(pool, 3)), streams: Streams::new(), pool }
    }

    fn stream(&self, slot: usize) -> StreamId {
        stream(self.pool, slot)
    }

    /// Begins a launch that uses the block.
    fn prepare(&self, used: BlockUse, slot: usize) -> ResourceResult<UseTokens> {
        let mut tokens = UseTokens::new(self.stream(slot));
        // SAFETY: its windows are opened here.
        unsafe { tokens.set_launch(self.streams.0[slot].begin_launch()) };
        let ended = EndedLaunches::new(slot, self.streams.0[slot].all_over());
        if self.slots.open_regular(&[used], &mut tokens, ended, &*self.streams).windows == 0
            && let Err(error) = self.slots.open(&[used], &mut tokens, &*self.streams, |_| {})
        {
            self.streams.0[slot].end_unused(tokens.launch());
            return Err(error);
        }
        Ok(tokens)
    }

    /// Ends a launch as a thread does that touches no slot unless it must. Returns whether it has
    /// found that the block is retired.
    fn finish(&self, tokens: &UseTokens) -> bool {
        let timeline = &self.streams.0[tokens.stream().slot()];
        let end = timeline.end_launch(&mut timeline.lock(), tokens.launch());
        let mut retired = false;
        if end.closes_windows {
            retired =
                self.close(tokens, WindowEnd::Used(UseId::new(tokens.stream().slot(), end.seq)));
            if end.seq != tokens.launch() {
                timeline.forget_overtaken(tokens.launch());
            }
        }
        retired
    }

    /// Ends a launch whose work was not submitted.
    fn cancel(&self, tokens: &UseTokens) -> bool {
        let retired = self.close(tokens, WindowEnd::Unused);
        self.streams.0[tokens.stream().slot()].end_unused(tokens.launch());
        retired
    }

    fn close(&self, tokens: &UseTokens, end: WindowEnd) -> bool {
        let launch = UseId::new(tokens.stream().slot(), tokens.launch());
        self.slots.close(tokens.as_slice(), launch, end, &*self.streams).retired.is_some()
    }

    fn release(&self, block: BlockId, owner: OwnerNumber) -> Released {
        self.slots.release(block, owner, &*self.streams, |_| ())
    }

    fn insert(&self, owner: OwnerNumber, home: StreamId) -> BlockId {
        let occupant = Occupant { owner: Some(owner), payload: 0 };
        occupy(&self.slots, self.slots.reserve(home.slot(), occupant).unwrap(), home)
    }

    /// Returns the streams whose uses of the block the host would have to wait for.
    fn used_on(&self, block: BlockId) -> Vec<usize> {
        let mut needs = Vec::new();
        let whole = ByteRange::WHOLE;
        let need = |used: UseId| needs.push(used.slot());
        let is_closed = self.slots.visit_host_waits(block, whole, &*self.streams, need).unwrap();
        assert!(is_closed);
        needs.sort_unstable();
        needs.dedup();
        needs
    }
}

fn allocation(stream: StreamId) -> UseId {
    UseId::new(stream.slot(), 1)
}

/// Puts a new block of this owner into the slot.
fn occupy(slots: &Slots, slot: FreeSlot, home: StreamId) -> BlockId {
    let generation = Generation::next();
    id(slots.occupy(slot, generation, allocation(home)).unwrap(), generation, home)
}

/// U6: two conflicting windows are never open at once, in whichever order they are opened, and a
/// launch whose end touched no slot is found over with its use.
#[test]
fn conflicting_windows_exclude_each_other() {
    loom::model(|| {
        let table = Table::new();
        let block = table.insert(OwnerNumber::new(), table.stream(0));
        let inside = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = [1, 2]
            .map(|slot| {
                let table = table.clone();
                let inside = Arc::clone(&inside);
                loom::thread::spawn(move || {
                    let write = BlockUse::new(block, Access::Write);
                    let Ok(tokens) = table.prepare(write, slot) else { return false };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two writers at once");
                    inside.store(false, Ordering::SeqCst);
                    table.finish(&tokens);
                    true
                })
            })
            .into();
        let wrote: Vec<bool> = writers.into_iter().map(|it| it.join().unwrap()).collect();
        let used_on = table.used_on(block);
        assert_eq!(used_on.len(), 1, "the last writer has waited for the first");
        assert!(wrote[used_on[0] - 1]);
    });
}

/// U1, U6: of two launches of one stream that end in any order, each is recorded, and neither is
/// found over before it has ended.
#[test]
fn launches_of_one_stream_end_in_any_order() {
    loom::model(|| {
        let table = Table::new();
        let owner = OwnerNumber::new();
        let blocks = [0, 1].map(|_| table.insert(owner, table.stream(0)));
        let write = |block| BlockUse::new(block, Access::Write);
        let first = table.prepare(write(blocks[0]), 1).unwrap();
        let second = table.prepare(write(blocks[1]), 1).unwrap();
        let other = {
            let table = table.clone();
            loom::thread::spawn(move || table.finish(&second))
        };
        assert!(table.prepare(write(blocks[0]), 2).is_err(), "its launch has not ended");
        table.finish(&first);
        assert_eq!(table.used_on(blocks[0]), [1]);
        other.join().unwrap();
        assert_eq!(table.used_on(blocks[1]), [1]);
    });
}

/// U15: windows on disjoint parts of a block are open at once, and both uses are recorded, in
/// whichever order they are opened and closed.
#[test]
fn windows_on_disjoint_parts_do_not_exclude_each_other() {
    loom::model(|| {
        let table = Table::new();
        let block = table.insert(OwnerNumber::new(), table.stream(0));
        let users: Vec<_> = [1, 2]
            .map(|slot| {
                let table = table.clone();
                loom::thread::spawn(move || {
                    let part = ByteRange::new(256 * slot as u64, 256);
                    let used = BlockUse::of_bytes(block, Access::Write, part);
                    table.finish(&table.prepare(used, slot).unwrap());
                })
            })
            .into();
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(table.used_on(block), [0, 1, 2]);
    });
}

/// Opens and closes a window of another stream on the block, unless it is refused; `is_gone`
/// returns whether the block has left its slot.
fn use_block(table: &Table, block: BlockId, is_gone: impl Fn() -> bool) {
    if let Ok(tokens) = table.prepare(BlockUse::new(block, Access::Read), 1) {
        assert!(!is_gone(), "used after it left");
        table.cancel(&tokens);
    }
}

/// U7, U12: a block that is being used does not leave its slot, and a stale id neither waits for
/// the free slot nor reaches its next block.
#[test]
fn a_block_leaves_only_while_no_window_is_open() {
    loom::model(|| {
        let table = Table::new();
        let home = table.stream(0);
        let owner = OwnerNumber::new();
        let block = table.insert(owner, home);
        let gone = Arc::new(AtomicBool::new(false));
        let user = {
            let table = table.clone();
            let gone = Arc::clone(&gone);
            let is_gone = move || gone.load(Ordering::SeqCst);
            loom::thread::spawn(move || use_block(&table, block, is_gone))
        };
        if let Released::Free { slot, .. } = table.release(block, owner) {
            gone.store(true, Ordering::SeqCst);
            let next = occupy(&table.slots, slot, home);
            assert_eq!(next.slot(), block.slot());
            assert!(!table.slots.has_open_window(next, &*table.streams));
        }
        user.join().unwrap();
    });
}

/// U12: a block whose free fails is live again, under the same id.
#[test]
fn a_block_that_is_restored_is_used_again() {
    loom::model(|| {
        let table = Table::new();
        let owner = OwnerNumber::new();
        let block = table.insert(owner, table.stream(0));
        let user = {
            let table = table.clone();
            loom::thread::spawn(move || use_block(&table, block, || false))
        };
        let released = table.release(block, owner);
        if let Released::Free { slot, .. } = released {
            table.slots.reinsert(slot, false);
            user.join().unwrap();
            assert!(table.prepare(BlockUse::new(block, Access::Write), 0).is_ok());
        } else {
            user.join().unwrap();
            let streams = &*table.streams;
            assert!(table.slots.release_retired(block, owner, false, streams, |_| ()).is_some());
        }
    });
}

/// U7: a block that is released in a window leaves its slot exactly once: the thread that ends the
/// last launch finds that it is retired, or the release finds the launch over, or does itself what
/// the launch has left.
#[test]
fn the_last_window_of_a_retired_block_is_reported_once() {
    loom::model(|| {
        let table = Table::new();
        let owner = OwnerNumber::new();
        let block = table.insert(owner, table.stream(0));
        let read = BlockUse::new(block, Access::Read);
        let launches = [1, 2].map(|slot| table.prepare(read, slot).unwrap());
        let closer = {
            let table = table.clone();
            loom::thread::spawn(move || launches.map(|tokens| table.finish(&tokens)))
        };
        let left = matches!(table.release(block, owner), Released::Free { .. });
        let reports = closer.join().unwrap();
        let times = u32::from(left) + u32::from(reports[0]) + u32::from(reports[1]);
        assert_eq!(times, 1);
    });
}

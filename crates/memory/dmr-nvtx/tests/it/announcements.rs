//! The calls that announce heaps, blocks and permissions to an attached tool. No driver is needed.

#![allow(unsafe_code, reason = "attaches a tool, and makes blocks of no memory")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockParts, BlockSlot, BlockState, BlockUse, ByteRange, DeviceBlock,
    Generation, MemoryObserver, StreamId,
};
use dmr_testkit::fake_tool::{self, Call, NOTHING, READ, READ_WRITE, Session};

const HEAP: u64 = 0x10_0000;
const BYTES: usize = 1 << 16;

fn attach() -> (Session, Arc<dyn MemoryObserver>) {
    let session = fake_tool::session();
    // SAFETY: the initializer of a tool.
    assert!(unsafe { dmr_nvtx::attach(fake_tool::initialize) });
    (session, dmr_nvtx::memory_observer().expect("a tool"))
}

/// A block at an address that is never accessed.
struct Block(std::mem::ManuallyDrop<DeviceBlock>);

impl Block {
    fn at(ptr: u64) -> Self {
        Self::new(ptr, Generation::next())
    }

    fn new(ptr: u64, generation: Generation) -> Self {
        let parts = BlockParts {
            ptr,
            bytes: 1000,
            reserved_bytes: 1000,
            alignment: 1,
            device_ordinal: 0,
            alloc_stream: StreamId::DEFAULT,
            tag: AllocTag::UNTAGGED,
            generation,
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: the memory is never accessed.
        Self(std::mem::ManuallyDrop::new(unsafe { DeviceBlock::from_parts(parts) }))
    }

    /// Returns a part as an adaptor makes it: a later address, and the same generation.
    fn part(&self, offset: u64) -> Self {
        Self::new(self.ptr() + offset, self.0.generation())
    }

    fn ptr(&self) -> u64 {
        self.0.ptr()
    }

    fn used(&self, access: Access) -> BlockUse {
        BlockUse::new(self.0.id(), access)
    }
}

fn begin(observer: &dyn MemoryObserver, block: &Block) {
    observer.region_allocated(block.ptr(), 1000, AllocTag::UNTAGGED, block.0.generation());
}

fn end(observer: &dyn MemoryObserver, block: &Block) {
    observer.region_freed(block.ptr(), block.0.generation());
}

#[test]
fn a_heap_and_its_blocks_are_registered_and_unregistered() {
    let (session, observer) = attach();
    let block = Block::at(HEAP + 512);
    observer.heap_created(HEAP, BYTES);
    observer.region_allocated(block.ptr(), 1000, AllocTag::new("weights"), block.0.generation());
    end(&*observer, &block);
    observer.heap_destroyed(HEAP);
    let ptr = HEAP + 512;
    let bytes = 1000;
    let calls = [
        Call::HeapRegister { ptr: HEAP, bytes: BYTES as u64 },
        Call::Register { heap: HEAP, ptr, bytes },
        Call::Name { ptr, name: "weights".into() },
        Call::Unregister(ptr),
        Call::HeapUnregister(HEAP),
    ];
    assert_eq!(session.take_calls(), calls);
    assert_eq!(session.wrong(), [""; 0]);
}

#[test]
fn a_name_becomes_one_that_a_tool_accepts() {
    let (session, observer) = attach();
    observer.heap_created(HEAP, BYTES);
    for tag in [AllocTag::new("tab\there, grün\0"), AllocTag::intern(&"n".repeat(60))] {
        let generation = Generation::next();
        observer.region_allocated(HEAP, 100, tag, generation);
        observer.region_freed(HEAP, generation);
    }
    let calls = session.take_calls().into_iter();
    let names: Vec<_> = calls
        .filter_map(|call| match call {
            Call::Name { name, .. } => Some(name),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["tab?here, gr?n?".to_owned(), "n".repeat(49)]);
    observer.heap_destroyed(HEAP);
    assert_eq!(session.wrong(), [""; 0]);
}

/// The next block at the address stays announced.
#[test]
fn a_stale_generation_ends_no_region() {
    let (session, observer) = attach();
    observer.heap_created(HEAP, BYTES);
    let old = Block::at(HEAP);
    let new = Block::at(HEAP);
    begin(&*observer, &old);
    end(&*observer, &old);
    begin(&*observer, &new);
    end(&*observer, &old);
    assert_eq!(session.regions(), [(HEAP, 1000)]);
    observer.heap_destroyed(HEAP);
    end(&*observer, &new);
    assert_eq!((session.regions(), session.wrong()), (vec![], vec![]));
}

/// A tool that has refused the heap would count each announcement of a block inside as an error.
#[test]
fn blocks_of_a_refused_heap_are_not_announced() {
    let (session, observer) = attach();
    session.refuse_heaps();
    observer.heap_created(HEAP, BYTES);
    let block = Block::at(HEAP);
    begin(&*observer, &block);
    dmr_nvtx::restricted(&[block.used(Access::Write)], || {});
    end(&*observer, &block);
    observer.heap_destroyed(HEAP);
    let calls = session.take_calls();
    assert_eq!(calls, [Call::Create(1), Call::Bind(1), Call::Unbind, Call::Destroy(1)]);
    assert_eq!(session.wrong(), [format!("heap: refused at {HEAP:#x}")]);
}

#[test]
fn work_may_read_what_is_read_use_what_is_written_and_touch_nothing_else() {
    let (session, observer) = attach();
    observer.heap_created(HEAP, BYTES);
    let blocks = [0, 1024, 2048, 3072].map(|offset| Block::at(HEAP + offset));
    // An allocation of the driver, in no heap.
    let direct = Block::at(0x9000);
    blocks.iter().chain([&direct]).for_each(|block| begin(&*observer, block));
    let [read, written, both, other] = &blocks;
    let stale = Block::at(other.ptr());
    session.take_calls();
    let uses = [
        read.used(Access::Read),
        written.used(Access::Write),
        both.used(Access::ReadWrite),
        stale.used(Access::Write),
    ];
    let seen = dmr_nvtx::restricted(&uses, || session.take_calls());
    let regions = vec![
        (direct.ptr(), NOTHING),
        (read.ptr(), READ),
        (written.ptr(), READ_WRITE),
        (both.ptr(), READ_WRITE),
        (other.ptr(), NOTHING),
    ];
    let assign = Call::Assign { permissions: 1, regions };
    assert_eq!(seen, [Call::Create(1), assign, Call::Bind(1)]);
    assert_eq!(session.take_calls(), [Call::Unbind, Call::Destroy(1)]);
    blocks.iter().chain([&direct]).for_each(|block| end(&*observer, block));
    observer.heap_destroyed(HEAP);
    assert_eq!((session.wrong(), session.permissions()), (vec![], (0, 0)));
}

/// An adaptor returns a part of the block that it allocates, with the generation of the whole.
#[test]
fn a_use_of_a_part_is_a_use_of_the_announced_whole() {
    let (session, observer) = attach();
    let whole = Block::at(0x9000);
    let other = Block::at(0xA000);
    [&whole, &other].iter().for_each(|block| begin(&*observer, block));
    let part = |offset| whole.part(offset);
    session.take_calls();
    for (accesses, allowed) in [
        ([Access::Read, Access::Read], READ),
        ([Access::Read, Access::Write], READ_WRITE),
        ([Access::Write, Access::Read], READ_WRITE),
    ] {
        let uses = [part(256).used(accesses[0]), part(512).used(accesses[1])];
        let seen = dmr_nvtx::restricted(&uses, || session.take_calls());
        let regions = vec![(whole.ptr(), allowed), (other.ptr(), NOTHING)];
        assert!(
            matches!(&seen[1], Call::Assign { regions: found, .. } if *found == regions),
            "{accesses:?}: {seen:?}"
        );
        session.take_calls();
    }
    [&whole, &other].iter().for_each(|block| end(&*observer, block));
    assert_eq!((session.wrong(), session.permissions()), (vec![], (0, 0)));
}

/// Of a block one part is read and another written: there are no permissions for parts.
#[test]
fn a_block_of_which_some_bytes_are_written_may_be_read_and_written() {
    let (session, observer) = attach();
    let block = Block::at(0x9000);
    begin(&*observer, &block);
    let of = |access, start: u64| {
        let bytes = ByteRange::new(block.ptr() + start, 256);
        BlockUse::of_bytes(block.0.id(), access, bytes)
    };
    for (uses, allowed) in [
        ([of(Access::Read, 0), of(Access::Read, 256)], READ),
        ([of(Access::Read, 0), of(Access::Write, 256)], READ_WRITE),
        ([of(Access::Write, 256), of(Access::Read, 0)], READ_WRITE),
    ] {
        session.take_calls();
        let seen = dmr_nvtx::restricted(&uses, || session.take_calls());
        assert!(
            matches!(&seen[1], Call::Assign { regions, .. } if *regions == [(block.ptr(), allowed)]),
            "{seen:?}"
        );
    }
    end(&*observer, &block);
    assert_eq!((session.wrong(), session.permissions()), (vec![], (0, 0)));
}

#[test]
fn a_panic_unbinds() {
    let (session, _observer) = attach();
    let work = || dmr_nvtx::restricted(&[], || panic!("planned"));
    assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    assert_eq!(session.permissions(), (0, 0));
    let calls = session.take_calls();
    assert_eq!(calls, [Call::Create(1), Call::Bind(1), Call::Unbind, Call::Destroy(1)]);
}

#[test]
fn nested_work_has_its_own_permissions_and_the_outer_ones_are_bound_again() {
    let (session, _observer) = attach();
    dmr_nvtx::restricted(&[], || {
        session.take_calls();
        dmr_nvtx::restricted(&[], || {
            assert_eq!(session.take_calls(), [Call::Create(2), Call::Bind(2)]);
        });
        assert_eq!(session.take_calls(), [Call::Unbind, Call::Destroy(2), Call::Bind(1)]);
        dmr_nvtx::unrestricted(|| {
            assert_eq!(session.take_calls(), [Call::Unbind]);
            dmr_nvtx::unrestricted(|| assert_eq!(session.take_calls(), []));
            assert_eq!(session.take_calls(), []);
        });
        assert_eq!(session.take_calls(), [Call::Bind(1)]);
    });
    assert_eq!(session.take_calls(), [Call::Unbind, Call::Destroy(1)]);
    assert_eq!((session.wrong(), session.permissions()), (vec![], (0, 0)));
}

/// Permissions belong to a thread.
#[test]
fn the_work_of_another_thread_is_not_restricted_by_this_one() {
    let (session, _observer) = attach();
    dmr_nvtx::restricted(&[], || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                dmr_nvtx::unrestricted(|| assert_eq!(session.take_own_calls(), []));
            });
        });
        assert_eq!(session.permissions(), (1, 1));
    });
    assert_eq!(session.permissions(), (0, 0));
}

/// A pool over a resource that announces its blocks: the blocks in that memory are the pool's.
#[test]
fn memory_that_becomes_a_heap_is_no_block_any_more() {
    let (session, observer) = attach();
    let whole = Block::at(HEAP);
    let part = Block::at(HEAP + 4096);
    observer.region_allocated(HEAP, BYTES, AllocTag::UNTAGGED, whole.0.generation());
    observer.heap_created(HEAP, BYTES);
    observer.region_allocated(part.ptr(), 1000, AllocTag::UNTAGGED, part.0.generation());
    session.take_calls();
    dmr_nvtx::restricted(&[part.used(Access::Read)], || ());
    let calls = session.take_calls();
    let assigned = calls.iter().find_map(|call| match call {
        Call::Assign { regions, .. } => Some(regions.clone()),
        _ => None,
    });
    assert_eq!(assigned, Some(vec![(part.ptr(), READ)]));
    observer.region_freed(part.ptr(), part.0.generation());
    observer.heap_destroyed(HEAP);
    observer.region_freed(HEAP, whole.0.generation());
    assert_eq!(session.wrong(), [""; 0]);
}

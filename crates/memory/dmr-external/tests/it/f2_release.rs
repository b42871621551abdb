//! F2: the owner of adopted memory is dropped once, after the last use.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dmr_core::{Access, BlockState, BlockUse, DeviceMemoryResource, UseTrackingExt};
use dmr_external::{ForeignBlocks, ForeignMemory, Ready};
use dmr_streams::{DeviceContext, StreamLease};
use dmr_testkit::{HeldStream, Rig};

use crate::support::{BYTES, TAG, Theirs, blocks, drops, fill, memory, producer, wait_for_drops};

const A_MOMENT: Duration = Duration::from_millis(5);

fn adopt(
    blocks: &ForeignBlocks,
    memory: ForeignMemory,
    home: &StreamLease,
) -> dmr_core::DeviceBlock {
    // SAFETY: the memory is the owner's, and not in use.
    unsafe { blocks.adopt(memory, home.id(), Ready::Done, TAG) }.expect("adopted")
}

#[test]
fn not_before_the_last_use_on_another_stream_is_done() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let drops = drops();
    let block = adopt(&blocks, memory(&rig, &drops), &home);
    let id = block.id();
    let held = HeldStream::hold(rig.streams(), &other);
    fill(&rig, &blocks, &block, 1, &other);
    let resource = blocks.resource();
    assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
    thread::sleep(A_MOMENT);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert!(resource.is_retired(id));
    assert_eq!((resource.usage().live, resource.usage().retired), (0, BYTES as u64));
    assert_eq!(resource.try_reap(), Ok(0));
    held.release();
    wait_for_drops(&drops, 1);
    assert!(!resource.is_retired(id));
    assert_eq!(resource.usage().outstanding(), 0);
    drop((blocks, home, other, held));
    rig.assert_clean();
}

#[test]
fn at_once_where_the_device_is_done() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    let block = adopt(&blocks, memory(&rig, &drops), &home);
    fill(&rig, &blocks, &block, 1, &home);
    rig.streams().synchronize(home.id()).unwrap();
    assert_eq!(blocks.resource().deallocate(block).unwrap(), BlockState::Freed);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    drop((blocks, home));
    rig.assert_clean();
}

#[test]
fn a_reap_that_waits_drops_it_on_its_own_thread() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    let block = adopt(&blocks, memory(&rig, &drops), &home);
    rig.delay(&home);
    fill(&rig, &blocks, &block, 1, &home);
    blocks.resource().deallocate(block).unwrap();
    blocks.resource().reap_pending().unwrap();
    assert_eq!(blocks.resource().usage().outstanding(), 0);
    wait_for_drops(&drops, 1);
    drop((blocks, home));
    rig.assert_clean();
}

#[test]
fn a_block_that_is_dropped_in_a_launch_is_released_when_its_window_closes() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let drops = drops();
    let resource = blocks.resource();
    let block = adopt(&blocks, memory(&rig, &drops), &home);
    let ptr = block.ptr();
    let used = [BlockUse::new(block.id(), Access::Write)];
    let open = resource.prepare_uses(&used, other.id()).unwrap();
    assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
    let stream = rig.streams().enter(other.id()).unwrap();
    crate::support::write(stream.stream(), ptr, 3, BYTES);
    drop(stream);
    thread::sleep(A_MOMENT);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    resource.finish_uses(open).unwrap();
    // No other call of the resource.
    wait_for_drops(&drops, 1);
    drop((blocks, home, other));
    rig.assert_clean();
}

#[test]
fn also_after_the_end_of_the_stream_pool_and_of_the_home_stream() {
    let rig = Rig::new();
    let drops = drops();
    let own = producer(&rig);
    let home = rig.streams().adopt(Arc::clone(&own)).unwrap();
    let blocks = blocks(&rig);
    let gate = rig.stream();
    let held = HeldStream::hold(rig.streams(), &gate);
    let [first, second] = [0, 1].map(|_| adopt(&blocks, memory(&rig, &drops), &home));
    for block in [&first, &second] {
        fill(&rig, &blocks, block, 1, &gate);
    }
    blocks.resource().deallocate(first).unwrap();
    rig.streams().retire_stream(&home).unwrap();
    blocks.resource().deallocate(second).unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    held.release();
    wait_for_drops(&drops, 2);
    drop((blocks, home, gate, held, own));
    rig.assert_clean();
}

#[test]
fn an_owner_that_panics_blocks_or_calls_the_library_disturbs_no_other() {
    struct Does(Option<Box<dyn FnOnce() + Send>>, #[allow(dead_code)] Theirs);

    impl Drop for Does {
        fn drop(&mut self) {
            (self.0.take().expect("dropped once"))();
        }
    }

    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    let (go_on, waits) = mpsc::channel::<()>();
    let inner = adopt(&blocks, memory(&rig, &drops), &home);
    let resource = Arc::clone(blocks.resource());
    let again = Arc::clone(blocks.resource());
    let does: [Box<dyn FnOnce() + Send>; 3] = [
        Box::new(|| panic!("as the code of another library may")),
        Box::new(move || {
            let _ = waits.recv();
        }),
        Box::new(move || {
            resource.deallocate(inner).expect("a free inside of a release");
            resource.reap_pending().expect("a reap inside of a release");
            assert!(resource.usage().live < 1 << 20);
        }),
    ];
    let held = HeldStream::hold(rig.streams(), &home);
    for act in does {
        let theirs = Theirs::new(&rig, BYTES, &drops);
        let ptr = theirs.ptr();
        let memory = ForeignMemory::new(ptr, BYTES, Does(Some(act), theirs));
        let block = adopt(&blocks, memory, &home);
        assert_eq!(again.deallocate(block).unwrap(), BlockState::Retired);
    }
    held.release();
    // One owner blocks: a reap releases what is behind it, unless it comes upon that owner itself.
    let reaping = {
        let again = Arc::clone(&again);
        thread::spawn(move || again.reap_pending())
    };
    thread::sleep(A_MOMENT);
    assert!(drops.load(Ordering::SeqCst) < 4);
    // No lock is held meanwhile.
    assert!(again.usage().outstanding() < 1 << 20);
    go_on.send(()).expect("an owner that waits");
    wait_for_drops(&drops, 4);
    reaping.join().expect("a reap").expect("a reap");
    assert_eq!(again.usage().outstanding(), 0);
    drop((blocks, again, home, held));
    rig.assert_clean();
}

#[test]
fn of_many_threads_each_owner_once() {
    const THREADS: usize = 4;
    const EACH: usize = 50;
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let drops = drops();
    let streams: Vec<_> = (0..THREADS).map(|_| rig.stream()).collect();
    thread::scope(|scope| {
        for (index, home) in streams.iter().enumerate() {
            let other = &streams[(index + 1) % THREADS];
            let rig = &rig;
            let blocks = &blocks;
            let drops = &drops;
            scope.spawn(move || {
                for step in 0..EACH {
                    let block = adopt(blocks, memory(rig, drops), home);
                    let on = if step % 2 == 0 { other } else { home };
                    fill(rig, blocks, &block, step as u8, on);
                    blocks.resource().deallocate(block).unwrap();
                    if step % 7 == 0 {
                        blocks.resource().reap_pending().unwrap();
                    }
                }
            });
        }
    });
    wait_for_drops(&drops, THREADS * EACH);
    assert_eq!(blocks.resource().usage().outstanding(), 0);
    drop((blocks, streams));
    rig.assert_clean();
}

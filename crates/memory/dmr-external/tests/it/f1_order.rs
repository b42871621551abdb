//! F1: uses of adopted memory come after the work of its producer, on any stream.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_core::ResourceError;
use dmr_core::error::{AddressProblem, SizeProblem};
use dmr_external::{ForeignBlocks, ForeignMemory, Ready};
use dmr_streams::{DeviceContext, StreamLease};
use dmr_testkit::{HeldStream, Rig};

use crate::support::{
    BYTES, TAG, Theirs, blocks, check, drops, fill, handle, memory, producer, wait_for_drops, write,
};

/// A producer whose work does not begin before this is released.
struct SlowProducer {
    stream: Arc<CudaStream>,
    held: HeldStream,
}

impl SlowProducer {
    fn new(rig: &Rig) -> Self {
        let gate = rig.stream();
        let held = HeldStream::hold(rig.streams(), &gate);
        let stream = producer(rig);
        stream.wait(&gate.stream().record_event(None).unwrap()).unwrap();
        Self { stream, held }
    }
}

/// Fills and checks memory once: the driver loads kernels then, which waits for the device.
fn load_kernels(rig: &Rig, blocks: &ForeignBlocks, home: &StreamLease) {
    let drops = drops();
    // SAFETY: the memory is the owner's, and not in use.
    let adopted = unsafe { blocks.adopt(memory(rig, &drops), home.id(), Ready::Done, TAG) };
    let block = adopted.unwrap();
    fill(rig, blocks, &block, 1, home);
    check(rig, blocks, &block, 1, home);
    blocks.resource().deallocate(block).unwrap();
    wait_for_drops(&drops, 1);
}

#[test]
fn a_use_on_any_stream_finds_the_bytes_of_a_slow_producer() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let other = rig.stream();
    load_kernels(&rig, &blocks, &home);
    for by_event in [false, true] {
        let drops = drops();
        let slow = SlowProducer::new(&rig);
        let theirs = Theirs::new(&rig, BYTES, &drops);
        write(&slow.stream, theirs.ptr(), 7, BYTES);
        let event = slow.stream.record_event(None).unwrap();
        let ready = match by_event {
            true => Ready::Event(event.cu_event().cast()),
            false => Ready::Stream(handle(&slow.stream)),
        };
        // SAFETY: the memory is the owner's, and the producer's work is on this stream.
        let block = unsafe { blocks.adopt(theirs.memory(BYTES), home.id(), ready, TAG) }.unwrap();
        // The handles are not used any more.
        drop(event);
        check(&rig, &blocks, &block, 7, &other);
        fill(&rig, &blocks, &block, 8, &home);
        check(&rig, &blocks, &block, 8, &other);
        blocks.resource().deallocate(block).unwrap();
        slow.held.release();
        wait_for_drops(&drops, 1);
    }
    drop((blocks, home, other));
    rig.assert_clean();
}

#[test]
fn an_address_may_be_unaligned_and_a_block_may_be_a_part_of_an_allocation() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    let theirs = Arc::new(Theirs::new(&rig, BYTES, &drops));
    let ptr = theirs.ptr();
    // Two buffers of one array share its owner.
    let parts = [(ptr + 3, 61), (ptr + 1024, 1024)].map(|(ptr, bytes)| {
        let memory = ForeignMemory::new(ptr, bytes, Arc::clone(&theirs));
        // SAFETY: the memory is the owner's, and not in use.
        unsafe { blocks.adopt(memory, home.id(), Ready::Done, TAG) }.unwrap()
    });
    drop(theirs);
    assert_eq!(parts[0].alignment(), 1);
    assert!(parts[1].alignment() >= 256);
    let [odd, even] = parts;
    fill(&rig, &blocks, &even, 9, &home);
    for block in [even, odd] {
        assert_eq!(drops.load(std::sync::atomic::Ordering::SeqCst), 0);
        blocks.resource().deallocate(block).unwrap();
    }
    wait_for_drops(&drops, 1);
    drop((blocks, home));
    rig.assert_clean();
}

#[test]
fn memory_that_cannot_be_adopted_is_in_the_error() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    let refuse = |memory: ForeignMemory| {
        // SAFETY: what is not the owner's is refused.
        unsafe { blocks.adopt(memory, home.id(), Ready::Done, TAG) }.unwrap_err()
    };
    let mut refused = refuse(Theirs::new(&rig, BYTES, &drops).memory(0));
    assert!(
        matches!(refused.error, ResourceError::InvalidSize { problem: SizeProblem::Zero, .. }),
        "{refused}"
    );
    let host = [0_u8; 64];
    let here = host.as_ptr() as u64;
    for (ptr, bytes, expected) in [
        (here, 64, AddressProblem::unknown(0)),
        (0, 64, AddressProblem::unknown(0)),
        (refused.memory.ptr(), 1 << 44, AddressProblem::unknown((1 << 44) - 1)),
        (refused.memory.ptr(), usize::MAX, AddressProblem::Overflow),
    ] {
        refused = refuse(ForeignMemory::new(ptr, bytes, refused.memory.into_owner()));
        match refused.error {
            ResourceError::NotAdopted { problem, .. } => assert_eq!(problem, expected),
            ref other => panic!("{other}"),
        }
        refused.memory =
            ForeignMemory::new(home_of(&rig, &drops), BYTES, refused.memory.into_owner());
    }
    assert_eq!(drops.load(std::sync::atomic::Ordering::SeqCst), 4, "those of `home_of`");
    drop(refused);
    assert_eq!(drops.load(std::sync::atomic::Ordering::SeqCst), 5, "the refused one, once");
    assert_eq!(blocks.resource().usage().total_allocated, 0);
    drop((blocks, home));
    rig.assert_clean();
}

/// Returns an address whose memory was freed again.
fn home_of(rig: &Rig, drops: &Arc<std::sync::atomic::AtomicUsize>) -> u64 {
    Theirs::new(rig, BYTES, drops).ptr()
}

#[test]
fn the_resource_allocates_nothing_and_grows_nothing() {
    let rig = Rig::new();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    let resource = blocks.resource();
    let refused = resource.allocate(BYTES, home.id(), TAG).unwrap_err();
    assert!(refused.to_string().contains("only adopts"), "{refused}");
    // SAFETY: the memory is the owner's, and not in use.
    let adopt = unsafe { blocks.adopt(memory(&rig, &drops), home.id(), Ready::Done, TAG) };
    let mut block = adopt.unwrap();
    assert_eq!(resource.try_grow(&mut block, BYTES), Ok(true));
    assert_eq!(resource.try_grow(&mut block, BYTES + 1), Ok(false));
    resource.deallocate(block).unwrap();
    wait_for_drops(&drops, 1);
    drop((blocks, home));
    rig.assert_clean();
}

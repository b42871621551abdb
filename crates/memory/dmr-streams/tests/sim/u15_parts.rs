//! U15: uses of disjoint parts of a block neither conflict nor wait; uses of overlapping parts are
//! ordered.

#![allow(unsafe_code, reason = "captures")]

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
use dmr_core::Access::{self, Read, ReadWrite, Write};
use dmr_core::{
    AllocTag, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTokens, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamLease, Tracked};
use dmr_testkit::Rig;

const BYTES: usize = 4096;
const HALF: usize = BYTES / 2;

/// Tracked memory, four streams, and a block of the first that was written there.
struct Scene {
    rig: Rig,
    resource: Tracked<DirectCudaResource>,
    streams: [StreamLease; 4],
    block: DeviceBlock,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::simulated();
        let streams = Arc::clone(rig.streams());
        let resource =
            Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
        let streams = [(); 4].map(|()| rig.stream());
        let block = resource.allocate(BYTES, streams[0].id(), AllocTag::UNTAGGED).unwrap();
        let scene = Self { rig, resource, streams, block };
        // The kernels are loaded now, which the simulated host waits for.
        scene.launch(0, Write, 0..BYTES);
        scene.launch(0, Read, 0..BYTES);
        scene
    }

    fn on(&self, stream: usize) -> StreamId {
        self.streams[stream].id()
    }

    fn used(&self, access: Access, part: &Range<usize>) -> BlockUse {
        let bytes = ByteRange::new(self.block.ptr() + part.start as u64, part.len());
        BlockUse::of_bytes(self.block.id(), access, bytes)
    }

    fn open(&self, stream: usize, access: Access, part: Range<usize>) -> ResourceResult<UseTokens> {
        self.resource.prepare_uses(&[self.used(access, &part)], self.on(stream))
    }

    /// Submits work with these bytes and no others: fills for a write, checks for a read.
    fn work(&self, stream: usize, access: Access, part: Range<usize>) {
        let ops = self.rig.ops();
        let on = self.on(stream);
        match access.writes() {
            true => ops.fill_pattern(&self.block, part, 7, on).unwrap(),
            false => ops.check_pattern(&self.block, part, 7, on, 0).unwrap(),
        }
    }

    /// Uses these bytes on a stream; returns the number of waits.
    fn launch(&self, stream: usize, access: Access, part: Range<usize>) -> u64 {
        self.rig.universe().reset_calls();
        let tokens = self.open(stream, access, part.clone()).unwrap();
        let waits = self.rig.universe().calls().count("cuStreamWaitEvent");
        self.work(stream, access, part);
        self.resource.finish_uses(tokens).unwrap();
        waits
    }

    /// Uses the whole block on a stream; returns the number of waits.
    fn launch_whole(&self, stream: usize, access: Access) -> u64 {
        self.rig.universe().reset_calls();
        let on = self.on(stream);
        let tokens = self.resource.prepare_block_use(self.block.id(), on, access).unwrap();
        let waits = self.rig.universe().calls().count("cuStreamWaitEvent");
        self.work(stream, access, 0..BYTES);
        self.resource.finish_uses(tokens).unwrap();
        waits
    }

    /// Frees the block, and allocates and uses its memory again.
    fn assert_clean(self) {
        let Self { rig, resource, streams, block } = self;
        let address = block.ptr();
        resource.deallocate(block).unwrap();
        resource.reap_pending().unwrap();
        let next = resource.allocate(BYTES, streams[3].id(), AllocTag::UNTAGGED).unwrap();
        assert_eq!(next.ptr(), address);
        rig.ops().fill_pattern(&next, 0..BYTES, 1, streams[3].id()).unwrap();
        resource.deallocate(next).unwrap();
        resource.reap_pending().unwrap();
        drop((resource, streams));
        rig.assert_clean();
    }
}

#[test]
fn uses_of_disjoint_parts_do_not_wait_for_each_other() {
    let scene = Scene::new();
    assert_eq!(scene.launch(1, Write, 0..HALF), 1, "for the write of the whole");
    assert_eq!(scene.launch(2, Write, HALF..BYTES), 1, "for the write of the whole");
    for _ in 0..3 {
        assert_eq!(scene.launch(1, Write, 0..HALF), 0);
        assert_eq!(scene.launch(2, ReadWrite, HALF..BYTES), 0);
        assert_eq!(scene.launch(1, Read, 4..8), 0);
    }
    assert_eq!(scene.launch(3, Read, 0..4), 1, "for the write of the left half");
    assert_eq!(scene.launch(1, Write, 4..HALF), 0, "nothing else was read");
    assert_eq!(scene.launch(1, Write, 0..4), 1, "for the read of these bytes");
    scene.assert_clean();
}

#[test]
fn a_use_waits_for_each_part_that_it_overlaps() {
    let scene = Scene::new();
    let quarter = HALF / 2;
    for (stream, start) in [(0, 0), (1, quarter), (2, HALF)] {
        scene.launch(stream, Write, start..start + quarter);
    }
    assert_eq!(scene.launch(3, Read, quarter - 4..HALF + 4), 3, "for each of three streams");
    assert_eq!(scene.launch(3, Read, 0..quarter), 0, "it has waited for a later use");
    scene.launch(1, Write, quarter..HALF);
    assert_eq!(scene.launch(3, Read, quarter + 4..quarter + 8), 1, "for a use in the middle");
    scene.assert_clean();
}

#[test]
fn a_use_of_the_whole_waits_for_all_parts_and_parts_wait_for_it() {
    let scene = Scene::new();
    for (stream, start) in [(1, 0), (2, HALF)] {
        scene.launch(stream, Write, start..start + HALF);
    }
    assert_eq!(scene.launch_whole(3, Write), 2);
    assert_eq!(scene.launch(1, Read, 0..4), 1);
    assert_eq!(scene.launch(2, Write, HALF - 8..HALF), 1);
    assert_eq!(scene.launch_whole(0, ReadWrite), 2, "for the reader and the writer");
    scene.assert_clean();
}

#[test]
fn a_window_on_a_part_refuses_overlapping_uses_of_other_streams_only() {
    let scene = Scene::new();
    let part = 256..512;
    for held in [Write, ReadWrite, Read] {
        let window = scene.open(1, held, part.clone()).unwrap();
        let free = [0..256, 512..BYTES, 300..300];
        let one_byte_each = [255..257, 511..513, 511..512, 400..401];
        let all = 0..BYTES;
        for other in free {
            scene.resource.cancel_uses(scene.open(2, Write, other).unwrap()).unwrap();
        }
        for other in one_byte_each.into_iter().chain([all, part.clone()]) {
            let refused = scene.open(2, Write, other.clone());
            let Err(ResourceError::WindowConflict { holder, requested, .. }) = refused else {
                panic!("{held:?}, {other:?}: {refused:?}");
            };
            assert_eq!((holder, requested), (scene.on(1), scene.on(2)));
            let nested = scene.open(1, Write, other.clone()).unwrap();
            scene.resource.cancel_uses(nested).unwrap();
            let read = scene.open(2, Read, other);
            assert_eq!(read.is_ok(), held == Read, "{read:?}");
            read.map(|tokens| scene.resource.cancel_uses(tokens).unwrap()).ok();
        }
        let whole = |access| {
            let id = scene.block.id();
            let on = scene.on(2);
            scene.resource.prepare_block_use(id, on, access).map(drop)
        };
        assert!(matches!(whole(Write), Err(ResourceError::WindowConflict { .. })));
        scene.resource.finish_uses(window).unwrap();
    }
    scene.assert_clean();
}

#[test]
fn a_window_on_the_whole_that_is_open_when_the_first_part_is_used_is_on_the_whole() {
    let scene = Scene::new();
    let whole = scene.resource.prepare_block_use(scene.block.id(), scene.on(1), Read).unwrap();
    let part = scene.open(2, Read, 0..4).unwrap();
    assert!(matches!(scene.open(3, Write, 8..12), Err(ResourceError::WindowConflict { .. })));
    scene.resource.finish_uses(whole).unwrap();
    let write = scene.open(3, Write, 8..12).unwrap();
    scene.work(3, Write, 8..12);
    scene.resource.finish_uses(write).unwrap();
    assert!(matches!(scene.open(3, Write, 0..1), Err(ResourceError::WindowConflict { .. })));
    scene.resource.finish_uses(part).unwrap();
    drop(scene);
}

/// Windows are closed in any order: each leaves those of the others on their parts.
#[test]
fn a_window_that_closes_leaves_the_other_windows_on_their_parts() {
    let parts = [0..256, 256..512, 512..768];
    for first in 0..3 {
        let scene = Scene::new();
        let mut windows: Vec<_> = (1..4)
            .map(|stream| (stream, scene.open(stream, Write, parts[stream - 1].clone()).unwrap()))
            .collect();
        let (closed, tokens) = windows.remove(first);
        scene.work(closed, Write, parts[closed - 1].clone());
        scene.resource.finish_uses(tokens).unwrap();
        scene
            .resource
            .cancel_uses(scene.open(0, Read, parts[closed - 1].clone()).unwrap())
            .unwrap();
        for (stream, tokens) in windows {
            let refused = scene.open(0, Read, parts[stream - 1].clone());
            let Err(ResourceError::WindowConflict { holder, .. }) = refused else {
                panic!("{stream}: {refused:?}");
            };
            assert_eq!(holder, scene.on(stream));
            scene.work(stream, Write, parts[stream - 1].clone());
            scene.resource.finish_uses(tokens).unwrap();
        }
        assert_eq!(scene.launch(0, Read, 0..768), 2, "it has waited for the first");
        scene.assert_clean();
    }
}

/// U9: a free waits for the uses of all parts, also if it is retired while a window on one is open.
#[test]
fn a_block_is_freed_after_the_uses_of_all_its_parts() {
    for in_window in [false, true] {
        let scene = Scene::new();
        scene.launch(1, Write, 0..4);
        scene.launch(2, Read, HALF..BYTES);
        scene.rig.delay(scene.on(3));
        let last = scene.open(3, Write, 8..16).unwrap();
        scene.work(3, Write, 8..16);
        let Scene { rig, resource, streams, block } = scene;
        let id = block.id();
        if in_window {
            resource.deallocate(block).unwrap();
            resource.reap_pending().unwrap();
            assert!(resource.is_retired(id), "a window is open");
            resource.finish_uses(last).unwrap();
        } else {
            resource.finish_uses(last).unwrap();
            resource.deallocate(block).unwrap();
        }
        let next = resource.allocate(BYTES, streams[0].id(), AllocTag::UNTAGGED).unwrap();
        rig.ops().fill_pattern(&next, 0..BYTES, 1, streams[0].id()).unwrap();
        resource.deallocate(next).unwrap();
        resource.reap_pending().unwrap();
        assert!(!resource.is_retired(id));
        drop((resource, streams));
        rig.assert_clean();
    }
}

/// Many parts of many sizes: everything that overlaps is ordered.
#[test]
fn a_block_in_many_parts_is_ordered() {
    let scene = Scene::new();
    let mut random = 1_u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x9e37);
        (random >> 33) % end
    };
    let words = BYTES as u64 / 4;
    for _ in 0..4_000 {
        let start = below(words) as usize;
        let longest = if below(8) == 0 { 64 } else { 4 };
        let len = 1 + below(longest) as usize;
        let part = start * 4..((start + len) * 4).min(BYTES);
        let access = if below(3) == 0 { Write } else { Read };
        scene.launch(below(4) as usize, access, part);
    }
    assert!(scene.launch_whole(0, Write) <= 3);
    scene.assert_clean();
}

/// U13: a use of a part whose event cannot be recorded is synchronised instead. What other streams
/// do with other parts is still waited for.
#[test]
fn a_use_that_was_synchronised_removes_no_use_of_another_part() {
    let scene = Scene::new();
    scene.launch(1, Write, 0..HALF);
    scene.rig.delay(scene.on(2));
    scene.launch(2, Write, HALF..BYTES);
    let tokens = scene.open(3, Write, 0..HALF).unwrap();
    scene.work(3, Write, 0..HALF);
    scene.rig.universe().fail_nth("cuEventRecord", 1, 2);
    scene.resource.finish_uses(tokens).unwrap();
    assert_eq!(scene.launch(0, Read, 0..HALF), 0, "it is done");
    assert_eq!(scene.launch(0, Read, HALF..BYTES), 1, "it is not");
    scene.assert_clean();
}

/// U14: a part cannot be used on a stream that captures, and no window is left open there.
#[test]
fn a_part_is_not_used_on_a_stream_that_captures() {
    let scene = Scene::new();
    scene.launch(1, Write, 0..HALF);
    let handle = scene.streams[2].stream().cu_stream();
    // SAFETY: the stream is alive, and its capture ends below.
    unsafe { result::stream::begin_capture(handle, CU_STREAM_CAPTURE_MODE_RELAXED) }.unwrap();
    let refused = scene.open(2, Write, 0..4);
    // SAFETY: as above.
    unsafe { result::stream::end_capture(handle) }.unwrap();
    assert!(matches!(refused, Err(ResourceError::StreamCapturing { .. })), "{refused:?}");
    assert_eq!(scene.launch(2, Write, 0..4), 1);
    scene.assert_clean();
}

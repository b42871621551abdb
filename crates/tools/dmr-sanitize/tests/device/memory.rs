//! A resource that reserves memory from the driver and returns it: many sizes at once, reaps and
//! trims.

use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceOps;
use dmr_sanitize::Outcome;

use crate::stage::Stage;
use crate::{SIZES, Test};

pub(crate) const TESTS: &[Test] = &[
    ("blocks_of_many_sizes_are_written_to_the_last_byte", grows),
    ("memory_that_was_freed_serves_the_next_block_of_another_stream", recycles),
    ("a_trim_frees_what_no_block_needs_and_the_next_block_is_sound", trims),
];

/// Bytes of blocks that make a resource reserve memory several times.
const LARGE: [usize; 4] = [(1 << 20) + 1, (5 << 20) + 3, (17 << 20) + 5, (40 << 20) + 7];

fn grows(stage: &Stage) -> Outcome {
    let streams = [stage.rig.stream(), stage.rig.stream()];
    let mut blocks = Vec::new();
    for (index, &bytes) in SIZES.iter().chain(&LARGE).enumerate() {
        let stream = streams[index % 2].id();
        let block = stage.allocate(bytes, stream)?;
        stage.rig.ops().fill_pattern(&block, 0..bytes, index as u32, stream)?;
        blocks.push(block);
    }
    for (index, block) in blocks.into_iter().enumerate() {
        let bytes = block.bytes();
        let stream = block.alloc_stream();
        stage.rig.ops().check_pattern(&block, 0..bytes, index as u32, stream, 0)?;
        stage.free(block)?;
    }
    Ok(())
}

fn recycles(stage: &Stage) -> Outcome {
    let streams = [stage.rig.stream(), stage.rig.stream(), stage.rig.stream()];
    for round in 0..12 {
        for (index, &bytes) in SIZES.iter().enumerate() {
            let stream = streams[(round + index) % 3].id();
            let block = stage.allocate(bytes, stream)?;
            stage.rig.ops().fill_pattern(&block, 0..bytes, round as u32, stream)?;
            stage.rig.ops().check_pattern(&block, 0..bytes, round as u32, stream, 0)?;
            stage.free(block)?;
        }
        if round % 4 == 3 {
            stage.resource().try_reap()?;
        }
    }
    Ok(())
}

fn trims(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    let kept = DeviceBuffer::from_host(&stage.ctx, &a, &[4_u8; 1001])?;
    for bytes in LARGE {
        for stream in [&a, &b] {
            let mut buffer = DeviceBuffer::<u8>::uninit(&stage.ctx, stream, bytes)?;
            buffer.fill_bytes(1, stream)?;
        }
        stage.resource().trim_to(0)?;
        assert_eq!(kept.to_host(&b)?, [4; 1001]);
    }
    stage.resource().reap_pending()?;
    stage.resource().trim_to(0)?;
    let buffer = DeviceBuffer::from_host(&stage.ctx, &b, &[6_u8; 1001])?;
    assert_eq!(buffer.to_host(&a)?, [6; 1001]);
    Ok(())
}

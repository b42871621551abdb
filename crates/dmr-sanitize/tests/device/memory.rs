//! Memory that grows, shrinks and comes back: many sizes at once, reaps, trims, and threads.

use std::thread;

use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceOps;
use dmr_sanitize::Outcome;

use crate::stage::Stage;
use crate::{SIZES, Test};

pub(crate) const TESTS: &[Test] = &[
    ("blocks_of_many_sizes_are_written_to_the_last_byte", grows),
    ("memory_that_was_freed_serves_the_next_block_of_another_stream", recycles),
    ("a_trim_gives_back_what_no_block_needs_and_the_next_block_is_sound", trims),
    ("threads_on_streams_of_their_own_allocate_launch_and_free_at_once", threads),
    ("threads_free_what_other_threads_have_allocated", handed_over),
];

/// Bytes of blocks that make a resource take more from the driver several times.
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
        let (bytes, stream) = (block.bytes(), block.alloc_stream());
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
    let (a, b) = (stage.rig.stream(), stage.rig.stream());
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

fn threads(stage: &Stage) -> Outcome {
    const THREADS: u8 = 8;
    thread::scope(|scope| {
        let run = |number: u8| -> Outcome {
            let stream = stage.rig.stream();
            for round in 0..4_u8 {
                for &len in SIZES {
                    let source = vec![number; len];
                    let source = DeviceBuffer::from_host(&stage.ctx, &stream, &source)?;
                    let mut target = DeviceBuffer::<u8>::uninit(&stage.ctx, &stream, len)?;
                    stage.add(&stream, &source, &mut target, round)?;
                    drop(source);
                    assert_eq!(target.to_host(&stream)?, vec![number + round; len]);
                }
            }
            Ok(())
        };
        let running: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || run(number))).collect();
        running.into_iter().try_for_each(|it| it.join().expect("a thread that did not panic"))
    })
}

fn handed_over(stage: &Stage) -> Outcome {
    const BLOCKS: usize = 64;
    let (a, b) = (stage.rig.stream(), stage.rig.stream());
    let (sender, receiver) = std::sync::mpsc::channel::<DeviceBuffer<u8>>();
    thread::scope(|scope| {
        let producer = scope.spawn(|| -> Outcome {
            let sender = sender;
            for number in 0..BLOCKS {
                let len = SIZES[number % SIZES.len()];
                let made = DeviceBuffer::from_host(&stage.ctx, &a, &vec![number as u8; len])?;
                sender.send(made)?;
            }
            Ok(())
        });
        for (number, received) in receiver.iter().enumerate() {
            let mut target = DeviceBuffer::<u8>::uninit(&stage.ctx, &b, received.len())?;
            stage.add(&b, &received, &mut target, 1)?;
            let expected = vec![number as u8 + 1; received.len()];
            drop(received);
            assert_eq!(target.to_host(&b)?, expected);
        }
        producer.join().expect("a thread that did not panic")
    })
}

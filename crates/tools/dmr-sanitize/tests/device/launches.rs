//! Launches through the recorder: kernels on several streams, at sizes where an overrun by one byte
//! leaves the block.

#![allow(unsafe_code, reason = "kernel launches")]

use dmr_buffer::DeviceBuffer;
use dmr_launch::LaunchRecorder;
use dmr_sanitize::Outcome;

use crate::kernels::BLOCK;
use crate::stage::Stage;
use crate::{SIZES, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_chain_of_kernels_over_three_streams_is_ordered", chain),
    ("two_readers_on_two_streams_are_waited_for_by_a_writer", readers),
    ("a_reduction_in_shared_memory_reads_what_another_stream_wrote", reduction),
    ("a_kernel_in_place_reads_and_writes_one_buffer", in_place),
    ("work_of_a_launch_that_was_dropped_is_waited_for", dropped),
];

fn chain(stage: &Stage) -> Outcome {
    let streams = [stage.rig.stream(), stage.rig.stream(), stage.rig.stream()];
    for &len in SIZES {
        let host: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut last = DeviceBuffer::from_host(&stage.ctx, &streams[0], &host)?;
        for stream in streams.iter().cycle().skip(1).take(4) {
            let mut next = DeviceBuffer::<u8>::uninit(&stage.ctx, stream, len)?;
            stage.add(stream, &last, &mut next, 1)?;
            last = next;
        }
        let expected: Vec<u8> = host.iter().map(|byte| byte.wrapping_add(4)).collect();
        assert_eq!(last.to_host(&streams[2])?, expected);
    }
    Ok(())
}

fn readers(stage: &Stage) -> Outcome {
    let [a, b, c] = [stage.rig.stream(), stage.rig.stream(), stage.rig.stream()];
    for &len in SIZES {
        let mut source = DeviceBuffer::from_host(&stage.ctx, &a, &vec![1_u8; len])?;
        let mut slow = DeviceBuffer::<u8>::uninit(&stage.ctx, &b, len)?;
        let mut quick = DeviceBuffer::<u8>::uninit(&stage.ctx, &c, len)?;
        stage.rig.delay(&b);
        stage.add(&b, &source, &mut slow, 1)?;
        stage.add(&c, &source, &mut quick, 2)?;
        source.fill(100, &a)?;
        assert_eq!(slow.to_host(&a)?, vec![2; len]);
        assert_eq!(quick.to_host(&a)?, vec![3; len]);
    }
    Ok(())
}

fn reduction(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    for &len in SIZES {
        let host: Vec<u32> = (0..len as u32).collect();
        let buffer = DeviceBuffer::from_host(&stage.ctx, &a, &host)?;
        let sums = stage.sums(&b, &buffer)?;
        drop(buffer);
        let expected: Vec<u32> =
            host.chunks(BLOCK as usize).map(|part| part.iter().sum()).collect();
        assert_eq!(sums.to_host(&a)?, expected);
    }
    Ok(())
}

fn in_place(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    for &len in SIZES {
        let mut buffer = DeviceBuffer::<u8>::zeroed(&stage.ctx, &a, len)?;
        for stream in [&b, &a, &b] {
            let mut launch = LaunchRecorder::new_strict(stream);
            let memory = launch.read_write(&mut buffer);
            // SAFETY: the buffer is this long; the recorder orders the work.
            launch.launch(&stage.ctx, |stream| unsafe {
                stage.kernels.add(stream, (memory, memory), len, 5)
            })?;
        }
        assert_eq!(buffer.to_host(&a)?, vec![15; len]);
    }
    Ok(())
}

fn dropped(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    let mut buffer = DeviceBuffer::<u8>::zeroed(&stage.ctx, &a, 1001)?;
    let mut launch = LaunchRecorder::new_strict(&a);
    let memory = launch.read_write(&mut buffer);
    let launch = launch.prepare(&stage.ctx)?;
    stage.rig.delay(&a);
    // SAFETY: the buffer is this long; the window of the launch is open.
    unsafe { stage.kernels.add(a.stream(), (memory, memory), 1001, 5)? };
    drop(launch);
    assert_eq!(buffer.to_host(&b)?, vec![5; 1001]);
    Ok(())
}

//! Buffers: fills, copies in every direction, views and columns, at sizes of every kind.

use dmr_buffer::{Column, DeviceBuffer, PinnedBuffer};
use dmr_core::{AllocTag, DeviceOps};
use dmr_launch::LaunchRecorder;
use dmr_sanitize::Outcome;
use dmr_streams::StreamGuard;

use crate::stage::Stage;
use crate::{SIZES, Test};

pub(crate) const TESTS: &[Test] = &[
    ("fills_of_every_width_end_where_they_should", fills),
    ("host_copies_of_odd_sizes_go_there_and_back", host_copies),
    ("pinned_copies_of_odd_sizes_go_there_and_back", pinned_copies),
    ("copies_between_the_buffers_of_two_streams_are_ordered", device_copies),
    ("views_read_and_write_their_part_and_no_other", views),
    ("columns_are_launched_as_the_buffers_that_they_are", columns),
];

fn fills(stage: &Stage) -> Outcome {
    let stream = stage.rig.stream();
    for &len in SIZES {
        let mut bytes = DeviceBuffer::<u8>::zeroed(&stage.ctx, &stream, len)?;
        assert_eq!(bytes.to_host(&stream)?, vec![0; len]);
        bytes.fill(7, &stream)?;
        assert_eq!(bytes.to_host(&stream)?, vec![7; len]);
        let mut words = DeviceBuffer::<u64>::uninit(&stage.ctx, &stream, len)?;
        words.fill(0x0102_0304_0506_0708, &stream)?;
        assert_eq!(words.to_host(&stream)?, vec![0x0102_0304_0506_0708; len]);
        let mut triples = DeviceBuffer::<[u8; 3]>::uninit(&stage.ctx, &stream, len)?;
        triples.fill([1, 2, 3], &stream)?;
        assert_eq!(triples.to_host(&stream)?, vec![[1, 2, 3]; len]);
    }
    Ok(())
}

fn host_copies(stage: &Stage) -> Outcome {
    let up = stage.rig.stream();
    let down = stage.rig.stream();
    for &len in SIZES {
        let host: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut buffer = DeviceBuffer::from_host(&stage.ctx, &up, &host)?;
        assert_eq!(buffer.to_host(&down)?, host);
        let reversed: Vec<u8> = host.iter().rev().copied().collect();
        buffer.copy_from_host(&reversed, &down)?;
        let mut back = vec![0; len];
        buffer.copy_to_host(&mut back, &up)?;
        assert_eq!(back, reversed);
    }
    Ok(())
}

fn pinned_copies(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    for &len in SIZES {
        let host: Vec<u16> = (0..len).map(|i| i as u16).collect();
        let up = PinnedBuffer::from_slice(&stage.ctx, &a, &host)?;
        let mut down = PinnedBuffer::<u16>::zeroed(&stage.ctx, &b, len)?;
        let mut buffer = DeviceBuffer::<u16>::uninit(&stage.ctx, &a, len)?;
        stage.rig.delay(&a);
        up.copy_to_device(&mut buffer, &a)?;
        down.copy_from_device(&buffer, &b)?;
        drop((up, buffer));
        assert_eq!(down.as_slice()?, host);
    }
    Ok(())
}

fn device_copies(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    for &len in SIZES {
        stage.rig.delay(&a);
        let source = DeviceBuffer::from_host(&stage.ctx, &a, &vec![3_u8; len])?;
        let mut target = DeviceBuffer::<u8>::uninit(&stage.ctx, &b, len)?;
        target.copy_from(&source, &b)?;
        drop(source);
        let mut next = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, len)?;
        next.fill_bytes(9, &a)?;
        assert_eq!(target.to_host(&a)?, vec![3; len]);
        assert_eq!(next.to_host(&b)?, vec![9; len]);
    }
    Ok(())
}

fn views(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    let source = DeviceBuffer::from_host(&stage.ctx, &a, &[1_u16, 2, 3, 4])?;
    let mut target = DeviceBuffer::<u16>::zeroed(&stage.ctx, &b, 7)?;
    target.slice_mut(1..3)?.copy_from(source.slice(2..)?, &a)?;
    target.slice_mut(4..=4)?.copy_from_host(&[9], &b)?;
    target.slice_mut(6..)?.fill_bytes(0xff, &a)?;
    assert_eq!(target.to_host(&b)?, [0, 3, 4, 0, 9, 0, 0xffff]);
    assert_eq!(target.slice(1..3)?.to_host(&a)?, [3, 4]);
    Ok(())
}

fn columns(stage: &Stage) -> Outcome {
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    let column = Column::from(DeviceBuffer::from_host(&stage.ctx, &a, &[5_u8; 333])?);
    let mut launch = LaunchRecorder::new_strict(&b);
    launch.read_column(AllocTag::new("fives"), &column);
    let check = |_: &StreamGuard<'_>| {
        let block = column.as_buffer().and_then(DeviceBuffer::block).expect("a buffer");
        stage.rig.ops().check_pattern(block, 0..333, u32::from_le_bytes([5; 4]), b.id(), 0)
    };
    launch.launch(&stage.ctx, check)?;
    drop(column);
    Ok(())
}

//! A fill sets every element of a buffer, or of a part of it, to a value of any element type.

use crate::context::Context;
use bytemuck::Pod;
use dmr_buffer::{BufferError, DeviceBuffer};
use dmr_core::ResourceError;
use dmr_core::error::StreamProblem;
use dmr_testkit::Rig;
use std::fmt::Debug;

/// Fills elements 3..17 of 20, and all of one element, which is as wide as it gets.
fn fills<T: Pod + PartialEq + Debug>(rig: &Rig, ctx: &Context, before: T, value: T) {
    let stream = rig.stream();
    let mut expected = vec![before; 20];
    let mut buffer = DeviceBuffer::from_host(ctx, &stream, &expected).unwrap();
    expected[3..17].fill(value);
    buffer.slice_mut(3..17).unwrap().fill(value, &stream).unwrap();
    assert_eq!(buffer.to_host(&stream).unwrap(), expected);
    buffer.fill(value, &stream).unwrap();
    assert_eq!(buffer.to_host(&stream).unwrap(), [value; 20]);
    buffer.slice_mut(20..).unwrap().fill(before, &stream).unwrap();
    buffer.slice_mut(7..8).unwrap().fill(before, &stream).unwrap();
    let mut expected = [value; 20];
    expected[7] = before;
    assert_eq!(buffer.to_host(&stream).unwrap(), expected);
}

#[test]
fn every_element_gets_the_value_whatever_its_width() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    fills(&rig, &ctx, 1_u8, 0xa5);
    fills(&rig, &ctx, 1_u16, 0xa1b2);
    fills(&rig, &ctx, 1_u32, 0xa1b2_c3d4);
    fills(&rig, &ctx, 1.0_f32, -2.5);
    fills(&rig, &ctx, 1.0_f64, std::f64::consts::PI);
    fills(&rig, &ctx, 1_u64, 0x0102_0304_0506_0708);
    fills(&rig, &ctx, 1_u128, 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    fills(&rig, &ctx, [1_u8; 3], [1, 2, 3]);
    fills(&rig, &ctx, [1_u16; 3], [1, 2, 3]);
    fills(&rig, &ctx, [1_u32; 3], [1, 2, 3]);
    fills(&rig, &ctx, [1_u8; 7], [9; 7]);
    fills(&rig, &ctx, [1_u16; 5], [9; 5]);
    fills(&rig, &ctx, (), ());
    ctx.assert_clean(rig);
}

#[test]
fn lengths_around_powers_of_two_are_filled_to_the_end_and_no_further() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let stream = rig.stream();
    let value = [1_u32, 2, 3];
    for len in [1, 2, 3, 4, 5, 63, 64, 65, 1000] {
        let mut buffer = DeviceBuffer::from_host(&ctx, &stream, &vec![[0; 3]; len + 2]).unwrap();
        buffer.slice_mut(1..=len).unwrap().fill(value, &stream).unwrap();
        let mut expected = vec![value; len + 2];
        expected[0] = [0; 3];
        expected[len + 1] = [0; 3];
        assert_eq!(buffer.to_host(&stream).unwrap(), expected, "{len}");
    }
    drop(stream);
    ctx.assert_clean(rig);
}

#[test]
fn a_fill_is_a_write_that_other_streams_wait_for() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let a = rig.stream();
    let b = rig.stream();
    let mut buffer = DeviceBuffer::<f64>::zeroed(&ctx, &a, 1000).unwrap();
    rig.delay(&a);
    buffer.fill(1.5, &a).unwrap();
    assert_eq!(buffer.to_host(&b).unwrap(), [1.5; 1000]);
    rig.delay(&b);
    buffer.fill(2.5, &b).unwrap();
    assert_eq!(buffer.to_host(&a).unwrap(), [2.5; 1000]);
    drop((buffer, a, b));
    ctx.assert_clean(rig);
}

#[test]
fn without_tracking_only_the_home_stream_will_do() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&ctx, &home, 4).unwrap();
    let refused = buffer.fill(7, &away).unwrap_err();
    let BufferError::Resource(ResourceError::StreamMisuse { problem, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(problem, StreamProblem::NotTracked);
    assert_eq!(buffer.to_host(&home).unwrap(), [0; 4]);
    drop((buffer, home, away));
    ctx.assert_clean(rig);
}

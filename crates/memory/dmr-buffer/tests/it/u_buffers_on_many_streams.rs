//! With tracking, buffer operations on different streams are ordered with each other.

use crate::context::Context;
use dmr_buffer::DeviceBuffer;
use dmr_core::StreamId;
use dmr_testkit::Rig;
use proptest::prelude::*;

const LEN: usize = 512;

#[test]
fn a_reader_on_another_stream_sees_what_was_written_before() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let a = rig.stream();
    let b = rig.stream();
    rig.delay(&a);
    let mut x = DeviceBuffer::from_host(&ctx, &a, &[1u8; LEN]).unwrap();
    x.fill_bytes(2, &a).unwrap();
    assert_eq!(x.to_host(&b).unwrap(), [2; LEN]);
    drop((x, a, b));
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_dropped_while_another_stream_reads_it_is_freed_afterwards() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let a = rig.stream();
    let b = rig.stream();
    let x = DeviceBuffer::from_host(&ctx, &a, &[3u8; LEN]).unwrap();
    let mut y = DeviceBuffer::<u8>::uninit(&ctx, &b, LEN).unwrap();
    rig.delay(&b);
    y.copy_from(&x, &b).unwrap();
    drop(x);
    let mut z = DeviceBuffer::<u8>::uninit(&ctx, &a, LEN).unwrap();
    z.fill_bytes(9, &a).unwrap();
    assert_eq!(y.to_host(&a).unwrap(), [3; LEN]);
    drop((y, z, a, b));
    ctx.assert_clean(rig);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Fill(usize, u8),
    Copy(usize, usize),
    Upload(usize, u8),
    Check(usize),
    Renew(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let buffer = 0..3usize;
    prop_oneof![
        (buffer.clone(), any::<u8>()).prop_map(|(to, byte)| Step::Fill(to, byte)),
        (buffer.clone(), 1..3usize).prop_map(|(to, by)| Step::Copy(to, (to + by) % 3)),
        (buffer.clone(), any::<u8>()).prop_map(|(to, byte)| Step::Upload(to, byte)),
        buffer.clone().prop_map(Step::Check),
        buffer.prop_map(Step::Renew),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn programs_on_three_streams_do_what_they_would_do_on_one(
        steps in prop::collection::vec((step(), 0..3usize), 1..30)
    ) {
        let rig = Rig::new();
        let ctx = Context::tracked(&rig);
        let leases = [rig.stream(), rig.stream(), rig.stream()];
        let streams: Vec<StreamId> = leases.iter().map(StreamId::from).collect();
        let new = |i: usize| DeviceBuffer::<u8>::zeroed(&ctx, streams[i], LEN).unwrap();
        let mut buffers: Vec<_> = (0..3).map(new).collect();
        let mut model = [0u8; 3];
        for (step, on) in steps {
            let stream = streams[on];
            match step {
                Step::Fill(to, byte) => {
                    buffers[to].fill_bytes(byte, stream).unwrap();
                    model[to] = byte;
                }
                Step::Copy(to, from) => {
                    let [to_buffer, from_buffer] = buffers.get_disjoint_mut([to, from]).unwrap();
                    to_buffer.copy_from(&*from_buffer, stream).unwrap();
                    model[to] = model[from];
                }
                Step::Upload(to, byte) => {
                    buffers[to].copy_from_host(&[byte; LEN], stream).unwrap();
                    model[to] = byte;
                }
                Step::Check(of) => {
                    prop_assert_eq!(buffers[of].to_host(stream).unwrap(), [model[of]; LEN]);
                }
                Step::Renew(which) => {
                    buffers[which] = new(on);
                    model[which] = 0;
                }
            }
        }
        for (buffer, byte) in buffers.iter().zip(model) {
            prop_assert_eq!(buffer.to_host(streams[0]).unwrap(), [byte; LEN]);
        }
        drop((buffers, leases));
        ctx.assert_clean(rig);
    }
}

//! F4, F5: whichever driver call fails, a tensor is deleted once; without the wait there is a race.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::result;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dlpark::ffi::{DLDataType, DLManagedTensorVersioned};
use dmr_buffer::DeviceBuffer;
use dmr_core::AllocTag;
use dmr_dlpack::{Consumer, Tensor, dlpark, import};
use dmr_external::Ready;
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, for_each_driver_call};

use crate::support::{context, tensor, wait_for};

const TAG: AllocTag = AllocTag::new("tensor");
const UNKNOWN: i32 = 999;

fn bytes(rig: &Rig, deletions: &Arc<AtomicUsize>) -> (*mut DLManagedTensorVersioned, Ready) {
    let producer = rig.device().context().new_stream().unwrap();
    let slice = producer.clone_htod(&[5_u8; 64]).unwrap();
    let dtype = DLDataType::U8;
    let ordinal = rig.ordinal();
    let made = tensor(Some(slice), &producer, ordinal, dtype, &[64], &[1], deletions);
    (made, Ready::Stream(producer.cu_stream().cast()))
}

#[test]
fn a_driver_call_that_fails_loses_no_tensor_and_deletes_none_twice() {
    let prepare = |rig: &Rig| {
        let deletions = Arc::<AtomicUsize>::default();
        let made = bytes(rig, &deletions);
        (context(rig), rig.stream(), rig.stream(), made, deletions)
    };
    let failed = for_each_driver_call(UNKNOWN, prepare, |rig, all| {
        let (context, home, consumer, (made, ready), deletions) = all;
        // SAFETY: just made; it is the caller's after an error. Its stream lives in its slice.
        let take = || unsafe { import(&context, &home, made, ready, TAG) };
        let found = take().or_else(|_| take()).expect("only one driver call fails");
        let export = || found.export::<DLManagedTensorVersioned>(Consumer::Stream(consumer.id()));
        let exported = export().or_else(|_| export()).expect("only one driver call fails");
        drop(found);
        assert_eq!(deletions.load(Ordering::SeqCst), 0);
        drop(exported);
        // A drop that failed is kept with its block.
        for kept in dmr_buffer::failures::take_drop_failures() {
            let _ = kept.retry();
        }
        wait_for(&deletions, 1);
        rig.universe().clear_faults();
        drop((context, home, consumer));
        rig.verdict().unwrap();
    });
    assert!(failed >= 10, "{failed} calls were failed");
}

/// A deletion that cannot order the consumer's work leaks the memory; it does not end a capture.
#[test]
fn a_tensor_that_is_deleted_during_a_capture_does_not_end_it() {
    for captures_consumer in [true, false] {
        let rig = Rig::simulated();
        let context = context(&rig);
        let home = rig.stream();
        let captured = rig.stream();
        let buffer = DeviceBuffer::<u8>::zeroed(&context, &home, 64).unwrap();
        let ours = Tensor::of(buffer, &[64]).unwrap();
        let consumer = match captures_consumer {
            true => Consumer::Stream(captured.id()),
            false => Consumer::Unknown,
        };
        let exported = ours.export::<DLManagedTensorVersioned>(consumer).unwrap();
        drop(ours);
        let stream = captured.stream();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        drop(exported);
        stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
            .unwrap();
        assert_eq!(context.resource().usage().live, 64, "it is leaked");
    }
}

#[test]
fn only_the_export_orders_the_consumer_after_our_work() {
    for waits in [true, false] {
        let rig = Rig::simulated();
        let context = context(&rig);
        let home = rig.stream();
        let theirs = rig.device().context().new_stream().unwrap();
        let consumer = rig.streams().adopt(Arc::clone(&theirs)).unwrap();
        let mut buffer = DeviceBuffer::<u8>::zeroed(&context, &home, 64).unwrap();
        buffer.fill(7, &home).unwrap();
        let ours = Tensor::of(buffer, &[64]).unwrap();
        let to = if waits { Consumer::Stream(consumer.id()) } else { Consumer::Unknown };
        let exported = ours.export::<DLManagedTensorVersioned>(to).unwrap();
        // SAFETY: it is exported.
        let at = unsafe { exported.tensor.tensor() }.data as u64;
        // SAFETY: the tensor has these bytes.
        unsafe { result::memset_d8_async(at, 1, 64, theirs.cu_stream()) }.unwrap();
        // Without the order of the published stream this is a race.
        assert_eq!(rig.verdict().is_ok(), waits, "{:?}", rig.verdict());
        drop(exported);
        drop(ours);
    }
}

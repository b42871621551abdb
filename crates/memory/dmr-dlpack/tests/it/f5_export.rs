//! F5: an export orders its consumer after all recorded uses, and the free after the consumer.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use cudarc::driver::result;
use dlpark::ManagedTensorBase;
use dlpark::ffi::{DLDataType, DLManagedTensor, DLManagedTensorVersioned};
use dmr_buffer::DeviceBuffer;
use dmr_core::AllocTag;
use dmr_dlpack::{Consumer, ExportError, Tensor, dlpark, import};
use dmr_external::Ready;
use dmr_streams::DeviceContext;
use dmr_testkit::{HeldStream, Rig};

use crate::support::{context, set_flags, tensor, wait_for};

const TAG: AllocTag = AllocTag::new("tensor");

#[test]
fn a_tensor_goes_out_and_comes_back_on_side_streams_with_the_right_bytes() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let slow = rig.stream();
    let theirs = rig.device().context().new_stream().unwrap();
    let consumer = rig.streams().adopt(Arc::clone(&theirs)).unwrap();
    for consumer in [Consumer::Stream(consumer.id()), Consumer::Unknown] {
        let mut buffer = DeviceBuffer::<u32>::zeroed(&context, &home, 8).unwrap();
        // A slow producer on another stream than the home stream.
        let held = HeldStream::hold(rig.streams(), &slow);
        buffer.fill(7, &slow).unwrap();
        let ours = Tensor::of(buffer, &[2, 4]).unwrap();
        let exported = ours.export::<DLManagedTensorVersioned>(consumer).unwrap();
        drop(ours);
        // The consumer adds nothing of its own but the order of the published stream.
        if consumer == Consumer::Unknown {
            let event = rig.device().context().new_event(None).unwrap();
            // SAFETY: both are alive.
            unsafe { result::event::record(event.cu_event(), exported.stream.cast()) }.unwrap();
            theirs.wait(&event).unwrap();
        }
        let raw = exported.tensor.into_raw();
        // SAFETY: it is ours now.
        let at = unsafe { (*raw).tensor() }.data as u64;
        let mut seen = vec![0_u32; 8];
        held.release();
        // SAFETY: the tensor has these bytes, and its consumer's stream is `theirs`.
        unsafe { result::memcpy_dtoh_async(&mut seen, at, theirs.cu_stream()) }.unwrap();
        theirs.synchronize().unwrap();
        assert_eq!(seen, [7; 8]);
        // SAFETY: as above.
        unsafe { result::memset_d8_async(at, 1, 32, theirs.cu_stream()) }.unwrap();
        // And back, as the consumer's tensor, which deletes the first when it is deleted.
        let ready = Ready::Stream(theirs.cu_stream().cast());
        // SAFETY: it is ours, and was written on `theirs`.
        let back = unsafe { import(&context, &home, raw, ready, TAG) }.unwrap();
        assert_eq!(back.layout().shape(), [2, 4]);
        let back = back.into_column::<u32>().unwrap();
        assert_eq!(back.to_host(&slow).unwrap(), [0x0101_0101; 8]);
        drop(back);
        drop(held);
    }
    let start = std::time::Instant::now();
    while context.resource().usage().outstanding() > 0 {
        assert!(start.elapsed().as_secs() < 20, "{:?}", context.resource().usage());
        context.resource().reap_pending().unwrap();
    }
    drop((consumer, home, slow, theirs, context));
    rig.assert_clean();
}

#[test]
fn the_memory_is_freed_after_the_work_of_the_consumer_on_any_thread() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let consumer = rig.stream();
    let buffer = DeviceBuffer::<u32>::zeroed(&context, &home, 1 << 10).unwrap();
    let ours = Tensor::of(buffer, &[1 << 10]).unwrap();
    let exported =
        ours.export::<DLManagedTensorVersioned>(Consumer::Stream(consumer.id())).unwrap();
    let raw = exported.tensor.into_raw();
    // The use that the export has recorded is done.
    rig.streams().synchronize(consumer.id()).unwrap();
    let held = HeldStream::hold(rig.streams(), &consumer);
    // SAFETY: it is ours.
    let at = unsafe { (*raw).tensor() }.data as u64;
    let stream = Arc::clone(consumer.stream());
    // SAFETY: the tensor has these bytes.
    unsafe { result::memset_d8_async(at, 1, 1 << 12, stream.cu_stream()) }.unwrap();
    drop(ours);
    let address = raw as usize;
    std::thread::spawn(move || {
        // SAFETY: it is deleted once, on a thread without a context.
        unsafe { DLManagedTensorVersioned::drop_raw(address as *mut _) };
        assert!(result::ctx::get_current().unwrap().is_none(), "the context is as it was");
    })
    .join()
    .unwrap();
    assert_eq!(context.resource().usage().live, 0);
    context.resource().try_reap().unwrap();
    assert_eq!(context.resource().usage().retired, 1 << 12, "the consumer is not done");
    held.release();
    drop(held);
    context.resource().reap_pending().unwrap();
    assert_eq!(context.resource().usage().outstanding(), 0);
    drop((home, consumer, context, stream));
    rig.assert_clean();
}

#[test]
fn what_may_only_be_read_is_exported_with_its_flag_or_not_at_all() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let stream = Arc::clone(home.stream());
    let deletions = Arc::<AtomicUsize>::default();
    let slice = stream.clone_htod(&[3_u8; 4]).unwrap();
    let made = tensor::<DLManagedTensorVersioned>(
        Some(slice),
        &stream,
        rig.ordinal(),
        DLDataType::U8,
        &[4],
        &[1],
        &deletions,
    );
    set_flags(made, dlpark::DlpackFlags::READ_ONLY);
    let ready = Ready::Stream(stream.cu_stream().cast());
    // SAFETY: just made; its work is on that stream.
    let found = unsafe { import(&context, &home, made, ready, TAG) }.unwrap();
    let refused = found.export::<DLManagedTensor>(Consumer::Unknown).unwrap_err();
    assert_eq!(refused, ExportError::ReadOnly);
    let exported = found.export::<DLManagedTensorVersioned>(Consumer::Unknown).unwrap();
    assert!(exported.tensor.flags().contains(dlpark::DlpackFlags::READ_ONLY));
    let found = found.into_column::<u8>().unwrap_err();
    drop(exported);
    drop(found.into_column::<u8>().unwrap());
    wait_for(&deletions, 1);
    drop((home, context, stream));
    rig.assert_clean();
}

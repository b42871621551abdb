//! F4: a tensor is imported with the work of its producer, and deleted once, after the last use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlpark::DlpackFlags;
use dlpark::ManagedTensorBase;
use dlpark::ffi::{DLDataType, DLManagedTensor, DLManagedTensorVersioned};
use dmr_buffer::AllowedAccess;
use dmr_core::AllocTag;
use dmr_dlpack::{Tensor, dlpark, import};
use dmr_external::Ready;
use dmr_launch::LaunchRecorder;
use dmr_streams::{DeviceContext, StreamLease};
use dmr_testkit::{HeldStream, Rig};

use crate::support::{context, set_flags, tensor, wait_for};

const TAG: AllocTag = AllocTag::new("tensor");

/// Imports bytes that a slow producer writes: `held` holds it up.
fn import_bytes<M: ManagedTensorBase + 'static>(
    rig: &Rig,
    context: &impl DeviceContext,
    home: &StreamLease,
    deletions: &Arc<AtomicUsize>,
) -> Tensor {
    let producer = rig.device().context().new_stream().unwrap();
    let slice = producer.clone_htod(&(0..24).collect::<Vec<u8>>()).unwrap();
    let made = tensor::<M>(
        Some(slice),
        &producer,
        rig.ordinal(),
        DLDataType::I32,
        &[2, 3],
        &[3, 1],
        deletions,
    );
    let ready = Ready::Stream(producer.cu_stream().cast());
    // SAFETY: just made; its work is on that stream.
    unsafe { import(context, home, made, ready, TAG) }.unwrap()
}

#[test]
fn both_kinds_are_imported_used_and_deleted_once_after_the_last_use() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let other = rig.stream();
    for versioned in [false, true] {
        let deletions = Arc::default();
        let mut found = match versioned {
            true => import_bytes::<DLManagedTensorVersioned>(&rig, &context, &home, &deletions),
            false => import_bytes::<DLManagedTensor>(&rig, &context, &home, &deletions),
        };
        assert_eq!((found.layout().shape(), found.layout().strides()), (&[2, 3][..], &[3, 1][..]));
        assert_eq!(found.access(), AllowedAccess::ReadWrite);
        assert_eq!(found.bytes().to_host(&other).unwrap(), (0..24).collect::<Vec<u8>>());
        let held = HeldStream::hold(rig.streams(), &other);
        let mut launch = LaunchRecorder::new_strict(&other);
        launch.read_write(&mut found);
        launch.launch(&context, |_| Ok::<_, ()>(())).unwrap();
        drop(found);
        assert_eq!(deletions.load(Ordering::SeqCst), 0);
        held.release();
        wait_for(&deletions, 1);
    }
    drop((home, other, context));
    rig.assert_clean();
}

#[test]
fn a_tensor_becomes_a_column_of_its_type_and_of_no_other() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let deletions = Arc::default();
    let found = import_bytes::<DLManagedTensor>(&rig, &context, &home, &deletions);
    let found = found.into_column::<f32>().unwrap_err();
    let column = found.into_column::<i32>().unwrap();
    assert_eq!(column.to_host(&home).unwrap()[1], i32::from_le_bytes([4, 5, 6, 7]));
    drop(column);
    wait_for(&deletions, 1);
    drop((home, context));
    rig.assert_clean();
}

#[test]
fn strides_span_bytes_and_null_strides_are_none() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let stream = Arc::clone(home.stream());
    let deletions = Arc::<AtomicUsize>::default();
    let mut count = 0;
    for (shape, strides, offset, first, span, is_contiguous, is_read_only) in [
        // Null strides.
        (&[2_i64, 3][..], &[][..], 0_u64, 0, 6, true, false),
        // A scalar.
        (&[][..], &[][..], 5, 0, 1, true, false),
        // A transposed matrix, a slice of columns, a reversed vector, a broadcast.
        (&[3, 2][..], &[1, 3][..], 0, 0, 6, false, false),
        (&[2, 2][..], &[3, 1][..], 1, 0, 5, false, false),
        (&[6][..], &[-1][..], 5, 5, 6, false, false),
        (&[4, 2][..], &[0, 1][..], 0, 0, 2, false, true),
        // A size of 1 has any stride.
        (&[1, 6][..], &[77, 1][..], 0, 0, 6, true, false),
    ] {
        let slice = stream.clone_htod(&[10_u8, 11, 12, 13, 14, 15]).unwrap();
        let dtype = DLDataType::U8;
        let ordinal = rig.ordinal();
        let made = tensor::<DLManagedTensorVersioned>(
            Some(slice),
            &stream,
            ordinal,
            dtype,
            shape,
            strides,
            &deletions,
        );
        // SAFETY: just made.
        unsafe { (*made).tensor_mut().byte_offset = offset };
        let ready = Ready::Stream(stream.cu_stream().cast());
        // SAFETY: as above; its work is on that stream.
        let found = unsafe { import(&context, &home, made, ready, TAG) }.unwrap();
        let layout = found.layout();
        assert_eq!((layout.first(), layout.span()), (first, span), "{layout:?}");
        assert_eq!(layout.is_contiguous(), is_contiguous, "{layout:?}");
        assert_eq!(found.access() == AllowedAccess::ReadOnly, is_read_only, "{layout:?}");
        let bytes = found.bytes().to_host(&home).unwrap();
        assert_eq!(bytes[first], 10 + offset as u8, "the first element");
        drop(found);
        count += 1;
    }
    wait_for(&deletions, count);
    drop((home, context, stream));
    rig.assert_clean();
}

#[test]
fn a_tensor_without_elements_needs_no_memory_and_is_deleted_at_once() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let deletions = Arc::<AtomicUsize>::default();
    let made = tensor::<DLManagedTensorVersioned>(
        None,
        home.stream(),
        rig.ordinal(),
        DLDataType::F64,
        &[3, 0],
        &[0, 1],
        &deletions,
    );
    // SAFETY: just made.
    let found = unsafe { import(&context, &home, made, Ready::Done, TAG) }.unwrap();
    assert_eq!(deletions.load(Ordering::SeqCst), 1);
    assert!(found.layout().is_empty());
    assert_eq!(found.into_column::<f64>().unwrap().to_host(&home).unwrap(), []);
    drop((home, context));
    rig.assert_clean();
}

#[test]
fn a_read_only_tensor_is_read_only_here() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let stream = Arc::clone(home.stream());
    let deletions = Arc::default();
    let slice = stream.clone_htod(&[1_u8; 4]).unwrap();
    let made = tensor::<DLManagedTensorVersioned>(
        Some(slice),
        &stream,
        rig.ordinal(),
        DLDataType::U8,
        &[4],
        &[1],
        &deletions,
    );
    set_flags(made, DlpackFlags::READ_ONLY);
    let ready = Ready::Stream(stream.cu_stream().cast());
    // SAFETY: just made; its work is on that stream.
    let mut found = unsafe { import(&context, &home, made, ready, TAG) }.unwrap();
    let mut launch = LaunchRecorder::new_strict(&home);
    launch.write(&mut found);
    assert!(launch.launch(&context, |_| -> Result<(), ()> { unreachable!("refused") }).is_err());
    assert_eq!(found.bytes().to_host(&home).unwrap(), [1; 4]);
    drop(found);
    wait_for(&deletions, 1);
    drop((home, context, stream));
    rig.assert_clean();
}

//! T3: sizes that cannot be are clean errors, whatever the element.

use crate::context::Context;
use dmr_buffer::{BufferError, DeviceBuffer, Pod};
use dmr_core::ResourceError;
use dmr_streams::{DeviceContext, TrackedMemory};
use dmr_testkit::Rig;
use proptest::prelude::*;

fn check<T: Pod>(ctx: &Context, len: usize) -> Result<(), TestCaseError> {
    let fits = ctx.streams().device().total_memory();
    let made = DeviceBuffer::<T>::uninit(ctx, ctx.home(), len);
    match (len.checked_mul(size_of::<T>()), made) {
        (None, Err(BufferError::TooLong { .. })) => {}
        (Some(bytes), Ok(buffer)) if bytes as u64 <= fits => {
            prop_assert_eq!(buffer.size_in_bytes(), bytes);
            prop_assert_eq!(buffer.device_ptr() == 0, bytes == 0);
            prop_assert_eq!(ctx.resource().usage().live, bytes as u64);
        }
        (Some(bytes), Err(BufferError::Resource(error))) => {
            let refused = matches!(
                error,
                ResourceError::InvalidSize { .. } | ResourceError::OutOfMemory { .. }
            );
            prop_assert!(refused && bytes > 0, "{bytes} bytes: {error:?}");
        }
        (bytes, made) => prop_assert!(false, "{bytes:?} bytes: {made:?}"),
    }
    prop_assert_eq!(ctx.resource().usage().live, 0);
    ctx.resource().reap_pending().unwrap();
    Ok(())
}

#[test]
fn every_length_is_made_or_refused_and_nothing_is_left() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let lengths = prop_oneof![
        0usize..5000,
        (0u32..64).prop_map(|shift| 1usize << shift),
        (0usize..5000).prop_map(|less| usize::MAX - less),
        (0usize..100, 1usize..64).prop_map(|(more, of)| (usize::MAX / of).saturating_add(more % 3)),
        any::<usize>(),
    ];
    proptest!(ProptestConfig::with_cases(300), |(len in lengths)| {
        check::<u8>(&ctx, len)?;
        check::<u16>(&ctx, len)?;
        check::<[f32; 3]>(&ctx, len)?;
        check::<[u64; 1000]>(&ctx, len)?;
        check::<()>(&ctx, len)?;
    });
    ctx.assert_clean(rig);
}

#[test]
fn what_is_copied_comes_back_whatever_the_range() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = ctx.home();
    let ranges = (0usize..300)
        .prop_flat_map(|len| (Just(len), 0..=len))
        .prop_flat_map(|(len, end)| (Just(len), 0..=end, Just(end)));
    proptest!(ProptestConfig::with_cases(100), |((len, start, end) in ranges)| {
        let mut host: Vec<[u8; 3]> = (0..len).map(|i| [i as u8, 1, 2]).collect();
        let mut buffer = DeviceBuffer::from_host(&ctx, home, &host).unwrap();
        let part = buffer.slice(start..end).unwrap().to_host(home).unwrap();
        prop_assert_eq!(&part[..], &host[start..end]);
        buffer.slice_mut(start..end).unwrap().fill_bytes(7, home).unwrap();
        host[start..end].fill([7; 3]);
        prop_assert_eq!(buffer.to_host(home).unwrap(), host);
    });
    ctx.assert_clean(rig);
}

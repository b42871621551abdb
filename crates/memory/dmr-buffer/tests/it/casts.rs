//! Casts of views: the same bytes as elements of another type, or an error that names length and
//! alignment.

use crate::context::Context;
use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr_core::StreamId;
use dmr_streams::TrackedMemory;
use dmr_testkit::Rig;

fn refused<T: std::fmt::Debug>(cast: Result<T, BufferError>) -> String {
    let error = cast.unwrap_err();
    assert!(matches!(error, BufferError::Cast { .. }), "{error}");
    error.to_string()
}

#[test]
fn bytes_are_seen_as_numbers_and_numbers_as_bytes() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let host: Vec<u8> = [1.0_f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut bytes = DeviceBuffer::from_host(&ctx, home, &host).unwrap();
    let numbers = bytes.view().cast::<f32>().unwrap();
    assert_eq!((numbers.len(), numbers.device_ptr()), (3, bytes.device_ptr()));
    // A use of a whole block stays one, and that of a part a use of its bytes.
    assert_eq!(numbers.byte_range(), bytes.byte_range());
    let part = bytes.slice(4..).unwrap();
    assert_eq!(part.cast::<f32>().unwrap().byte_range(), part.byte_range());
    assert_eq!(numbers.to_host(home).unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(numbers.cast::<u8>().unwrap().to_host(home).unwrap(), host);
    assert_eq!(numbers.cast::<[f32; 3]>().unwrap().to_host(home).unwrap(), [[1.0, 2.0, 3.0]]);

    bytes.view_mut().cast::<f32>().unwrap().fill(7.0, home).unwrap();
    bytes.slice_mut(4..8).unwrap().cast().unwrap().copy_from_host(&[8.0_f32], home).unwrap();
    assert_eq!(bytes.view().cast::<f32>().unwrap().to_host(home).unwrap(), [7.0, 8.0, 7.0]);
    drop(bytes);
    ctx.assert_clean(rig);
}

#[test]
fn a_length_or_an_address_that_does_not_fit_is_an_error_that_names_both() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let mut bytes = DeviceBuffer::<u8>::zeroed(&ctx, home, 31).unwrap();
    let short = refused(bytes.view().cast::<u32>());
    assert!(short.starts_with("31 bytes of u8 at 0x"), "{short}");
    let ending =
        "cannot be seen as u32, of 4 bytes aligned to 4: slice it to a multiple of 4 bytes";
    assert!(short.ends_with(ending), "{short}");
    let odd = refused(bytes.slice(2..10).unwrap().cast::<u32>());
    assert!(
        odd.ends_with("aligned to 4: slice it from an address that is a multiple of 4"),
        "{odd}"
    );
    refused(bytes.slice_mut(1..3).unwrap().cast::<u16>());
    refused(bytes.view().cast::<()>());
    // An alignment of 1 fits everywhere.
    assert_eq!(bytes.slice(1..31).unwrap().cast::<[u8; 3]>().unwrap().len(), 10);
    drop(bytes);
    ctx.assert_clean(rig);
}

#[test]
fn no_bytes_are_no_elements_and_elements_of_no_bytes_stay_as_many() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let bytes = DeviceBuffer::<u8>::zeroed(&ctx, home, 8).unwrap();
    let none = bytes.slice(3..3).unwrap();
    assert_eq!(none.cast::<u64>().unwrap().len(), 0);
    assert_eq!(none.cast::<()>().unwrap().len(), 0);
    let units = DeviceBuffer::<()>::uninit(&ctx, home, 5).unwrap();
    assert_eq!(units.view().cast::<u32>().unwrap().len(), 0);
    assert_eq!(units.view().cast::<[u8; 0]>().unwrap().len(), 5);
    drop((bytes, units));
    ctx.assert_clean(rig);
}

#[test]
fn the_host_sees_pinned_bytes_as_numbers() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let mut bytes = PinnedBuffer::<u8>::zeroed(&ctx, home, 16).unwrap();
    let numbers = bytes.view_mut().cast::<u64>().unwrap().into_mut_slice().unwrap();
    numbers[1] = u64::from_le_bytes(*b"dmr-cast");
    assert_eq!(bytes.as_slice().unwrap()[8..], *b"dmr-cast");
    let mut target = DeviceBuffer::<u64>::zeroed(&ctx, home, 2).unwrap();
    bytes.view().cast::<u64>().unwrap().copy_to_device(&mut target, home).unwrap();
    assert_eq!(target.to_host(home).unwrap(), [0, u64::from_le_bytes(*b"dmr-cast")]);
    refused(bytes.slice(4..12).unwrap().cast::<u64>());
    drop((bytes, target));
    ctx.assert_clean(rig);
}

//! D5: `from_host` and `to_host` on ordinary slices return when the host memory is free again.

#![allow(unsafe_code, reason = "allocates pinned memory itself")]

use crate::context::Context;
use cudarc::driver::result;
use dmr_buffer::DeviceBuffer;
use dmr_testkit::Rig;

#[test]
fn what_is_copied_to_the_device_comes_back() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let host: Vec<u32> = (0..1000).collect();
    let buffer = DeviceBuffer::from_host(&ctx, ctx.home(), &host).unwrap();
    assert_eq!(buffer.to_host(ctx.home()).unwrap(), host);
    let mut into = vec![0; 1000];
    buffer.copy_to_host(&mut into, ctx.home()).unwrap();
    assert_eq!(into, host);
    drop(buffer);
    ctx.assert_clean(rig);
}

#[test]
fn the_slice_can_be_changed_once_from_host_has_returned_also_if_it_is_pinned() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    rig.device().bind().unwrap();
    // SAFETY: 4096 pinned bytes, freed below, after their last use.
    let pinned = unsafe {
        let ptr = result::malloc_host(4096, 0).unwrap().cast::<u8>();
        ptr.write_bytes(1, 4096);
        std::slice::from_raw_parts_mut(ptr, 4096)
    };
    let mut buffer = DeviceBuffer::<u8>::zeroed(&ctx, ctx.home(), 4096).unwrap();
    rig.delay(ctx.home());
    buffer.copy_from_host(pinned, ctx.home()).unwrap();
    pinned.fill(2);
    assert_eq!(buffer.to_host(ctx.home()).unwrap(), [1; 4096]);
    rig.delay(ctx.home());
    buffer.copy_to_host(pinned, ctx.home()).unwrap();
    assert_eq!(pinned, [1; 4096]);
    // SAFETY: allocated above, and no copy is under way.
    unsafe { result::free_host(pinned.as_mut_ptr().cast()) }.unwrap();
    drop(buffer);
    ctx.assert_clean(rig);
}

#[test]
fn a_copy_from_the_device_sees_all_earlier_work_of_its_stream() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let mut buffer = DeviceBuffer::<u64>::uninit(&ctx, ctx.home(), 100).unwrap();
    rig.delay(ctx.home());
    buffer.fill_bytes(0xab, ctx.home()).unwrap();
    assert_eq!(buffer.to_host(ctx.home()).unwrap(), [0xabab_abab_abab_abab; 100]);
    drop(buffer);
    ctx.assert_clean(rig);
}

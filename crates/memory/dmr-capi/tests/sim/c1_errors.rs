//! C1: what a program passes wrongly is an error with advice, and changes nothing.

use std::ffi::CStr;
use std::ptr;

use dmr_capi::*;
use dmr_testkit::Rig;

use crate::support::{Gpu, LEGACY, MIB, create, last_error, raw};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: *mut std::ffi::c_void = ptr::without_provenance_mut(2);

#[track_caller]
fn says(words: &str) {
    assert!(last_error().contains(words), "{}", last_error());
}

#[test]
fn c1_a_handle_that_is_no_runtime_is_refused() {
    let gpu = Gpu::new();
    let handles =
        [ptr::null_mut(), ptr::without_provenance_mut(7), (&raw const gpu).cast_mut().cast()];
    for handle in handles {
        assert_eq!(dmr_free(handle, 256), Status::UnknownRuntime);
        says("dmr_runtime_create");
        assert_eq!(dmr_runtime_destroy(handle), Status::UnknownRuntime);
    }
    let handle = gpu.handle;
    gpu.end();
    assert_eq!(dmr_runtime_destroy(handle), Status::UnknownRuntime);
    says("was destroyed");
    let next = Gpu::new();
    assert_ne!(next.handle, handle, "a handle is never used again");
    next.end();
}

#[test]
fn c1_null_pointers_are_refused() {
    let gpu = Gpu::new();
    let handle = gpu.handle;
    let null = || ptr::null_mut();
    // SAFETY: null pointers are refused.
    unsafe {
        let statuses = [
            dmr_config_init(ptr::null_mut(), size_of::<Config>()),
            dmr_runtime_create(ptr::null(), &mut null()),
            dmr_runtime_create(&crate::support::default_config(), ptr::null_mut()),
            dmr_allocate(handle, 1, LEGACY, ptr::null_mut()),
            dmr_allocate_tagged(handle, 1, LEGACY, c"x".as_ptr(), ptr::null_mut()),
            dmr_runtime_usage(handle, ptr::null_mut()),
            dmr_runtime_snapshot(handle, ptr::null_mut(), size_of::<Block>(), 0, ptr::null_mut()),
            dmr_runtime_snapshot(handle, ptr::null_mut(), size_of::<Block>(), 1, &mut 0),
        ];
        assert_eq!(statuses, [Status::InvalidArgument; 8]);
        says("is null");
        assert_eq!(dmr_runtime_reap(handle, 1, ptr::null_mut()), Status::Ok);
        assert_eq!(dmr_runtime_trim(handle, 0, ptr::null_mut()), Status::Ok);
    }
    assert_eq!(gpu.usage().total_allocated, 0);
    gpu.end();
}

#[test]
fn c1_an_address_that_no_live_block_begins_at_is_refused() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let stream = raw(&stream);
    let address = gpu.allocate(MIB, stream).unwrap();
    let wrong = [1, address + 256, address - 256, u64::MAX];
    for wrong in wrong {
        assert_eq!(gpu.free(wrong), Err(Status::UnknownAddress));
        assert_eq!(gpu.free_on(wrong, stream), Err(Status::UnknownAddress));
        assert_eq!(gpu.record(wrong, stream, DMR_ACCESS_READ), Err(Status::UnknownAddress));
        assert_eq!(gpu.wait(wrong, stream, DMR_ACCESS_READ), Err(Status::UnknownAddress));
        says(&format!("{wrong:#x}"));
    }
    let other = Gpu::new();
    assert_eq!(other.free(address), Err(Status::UnknownAddress));
    other.end();
    assert_eq!(gpu.free(address), Ok(()));
    assert_eq!(gpu.free(address), Err(Status::UnknownAddress));
    says("freed before");
    assert_eq!(gpu.usage().total_freed, MIB as u64);
    gpu.end();
}

#[test]
fn c1_zero_bytes_are_address_zero() {
    let gpu = Gpu::new();
    assert_eq!(gpu.allocate(0, LEGACY), Ok(0));
    assert_eq!(gpu.free(0), Ok(()));
    assert_eq!(gpu.free_on(0, LEGACY), Ok(()));
    assert_eq!(gpu.record(0, LEGACY, DMR_ACCESS_READ), Err(Status::UnknownAddress));
    gpu.end();
}

#[test]
fn c1_an_access_that_is_none_is_refused() {
    let gpu = Gpu::new();
    let address = gpu.allocate(1, LEGACY).unwrap();
    for access in [0, 4, 7, u32::MAX] {
        assert_eq!(gpu.record(address, LEGACY, access), Err(Status::InvalidArgument));
        assert_eq!(gpu.wait(address, LEGACY, access), Err(Status::InvalidArgument));
    }
    gpu.end();
}

#[test]
fn c1_too_much_memory_is_refused() {
    let gpu = Gpu::with(|config| config.budget_bytes = 8 * MIB as u64);
    assert_eq!(gpu.allocate(9 * MIB, LEGACY), Err(Status::OutOfBudget));
    assert_eq!(gpu.allocate(usize::MAX, LEGACY), Err(Status::OutOfMemory));
    let address = gpu.allocate(4 * MIB, LEGACY).unwrap();
    assert_eq!(gpu.allocate(6 * MIB, LEGACY), Err(Status::OutOfBudget));
    says("budget");
    assert_eq!(gpu.live(), [address]);
    gpu.end();
    let small = Gpu::on(Rig::small(), |_| {});
    assert_eq!(small.allocate(64 * MIB, LEGACY), Err(Status::OutOfMemory));
    small.end();
}

#[test]
fn c1_settings_that_are_none_or_exclude_each_other_are_refused() {
    let rig = Rig::simulated();
    let settings: [fn(&mut Config); 9] = [
        |config| config.backend = 5,
        |config| config.log_path = c"".as_ptr(),
        |config| config.max_streams = 1 << 20,
        |config| (config.budget_bytes, config.shared_budget_bytes) = (1 << 30, 1 << 30),
        |config| config.shared_budget_group = c"group".as_ptr(),
        |config| config.shared_budget_group = c"\xff".as_ptr(),
        |config| (config.backend, config.compact) = (DMR_BACKEND_ASYNC, 1),
        |config| config.log_path = c"/no/such/folder/log.csv".as_ptr(),
        |config| config.version = 2,
    ];
    for (index, change) in settings.into_iter().enumerate() {
        let (status, handle) = create(&rig, change);
        assert_eq!(status, Status::InvalidArgument, "{index}: {}", last_error());
        assert!(handle.is_null());
    }
    let (status, _) = create(&rig, |config| config.device = 12_345);
    assert_eq!(status, Status::NoDevice);
    says("12345");
}

#[test]
fn c1_the_direct_backend_refuses_what_it_cannot_do() {
    let gpu = Gpu::with(|config| config.backend = DMR_BACKEND_DIRECT);
    let home = gpu.stream();
    let other = gpu.stream();
    let address = gpu.allocate(MIB, raw(&home)).unwrap();
    assert_eq!(gpu.record(address, raw(&other), DMR_ACCESS_READ), Err(Status::Unsupported));
    assert_eq!(gpu.wait(address, raw(&other), DMR_ACCESS_READ), Err(Status::Unsupported));
    assert_eq!(gpu.free_on(address, raw(&other)), Err(Status::Unsupported));
    assert_eq!(gpu.live(), [address]);
    assert_eq!(gpu.free_on(address, raw(&home)), Ok(()));
    gpu.end();
}

#[test]
fn c1_the_per_thread_default_stream_is_refused_with_advice() {
    let gpu = Gpu::new();
    let address = gpu.allocate(1, LEGACY).unwrap();
    assert_eq!(gpu.allocate(1, PER_THREAD), Err(Status::StreamMisuse));
    says("cuStreamCreate");
    assert_eq!(gpu.record(address, PER_THREAD, DMR_ACCESS_READ), Err(Status::StreamMisuse));
    assert_eq!(gpu.free_on(address, PER_THREAD), Err(Status::StreamMisuse));
    assert_eq!(gpu.retire(PER_THREAD), Err(Status::StreamMisuse));
    assert_eq!(gpu.free(address), Ok(()));
    gpu.end();
}

#[test]
fn c1_a_stream_of_another_context_is_refused() {
    let gpu = Gpu::new();
    let other = Rig::simulated();
    let stream = crate::support::stream_of(other.device().context());
    assert_eq!(gpu.allocate(1, raw(&stream)), Err(Status::StreamMisuse));
    says("another device or CUDA context");
    gpu.end();
}

#[test]
fn c1_a_tag_that_is_no_text_is_refused() {
    let gpu = Gpu::new();
    let mut address = 0;
    let tagged = |tag: &CStr, address: &mut Address| {
        // SAFETY: the tag ends with a NUL.
        unsafe { dmr_allocate_tagged(gpu.handle, 1, LEGACY, tag.as_ptr(), address) }
    };
    assert_eq!(tagged(c"\xff", &mut address), Status::InvalidArgument);
    assert_eq!(address, 0);
    assert_eq!(tagged(c"good", &mut address), Status::Ok);
    gpu.end();
}

#[test]
fn c1_each_status_has_the_number_and_the_name_of_the_header() {
    for (number, name) in
        [(0, c"ok"), (1, c"invalid_argument"), (9, c"forked_process"), (17, c"other")]
    {
        // SAFETY: the text is a constant.
        assert_eq!(unsafe { CStr::from_ptr(dmr_status_name(number)) }, name);
    }
    for number in [-1, 18, i32::MAX] {
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(dmr_status_name(number)) }, c"unknown");
    }
}

//! C2: structs of an older and of a newer header work, as far as they can.

use std::mem::MaybeUninit;
use std::ptr;

use dmr_capi::*;
use dmr_testkit::Rig;

use crate::support::{Gpu, LEGACY, default_config, empty_usage, last_error};

/// A configuration of a later header.
#[repr(C)]
struct LongerConfig {
    known: Config,
    later: [u64; 3],
}

#[test]
fn c2_a_longer_configuration_is_refused_only_if_something_new_is_set() {
    let rig = Rig::simulated();
    let mut longer = LongerConfig { known: default_config(), later: [0; 3] };
    longer.known.device = rig.ordinal() as u32;
    longer.known.size = size_of::<LongerConfig>() as u32;
    let mut handle = ptr::null_mut();
    for at in 0..3 {
        longer.later = [0; 3];
        longer.later[at] = 1 << 56;
        // SAFETY: the struct has the size that it says.
        let status = unsafe { dmr_runtime_create((&raw const longer).cast(), &mut handle) };
        assert_eq!(status, Status::InvalidArgument);
        let byte = size_of::<Config>() + 8 * at + 7;
        assert!(last_error().contains(&format!("byte {byte} ")), "{}", last_error());
    }
    longer.later = [0; 3];
    // SAFETY: as above.
    let status = unsafe { dmr_runtime_create((&raw const longer).cast(), &mut handle) };
    assert_eq!(status, Status::Ok, "{}", last_error());
    assert_eq!(dmr_runtime_destroy(handle), Status::Ok);
}

#[test]
fn c2_a_longer_struct_is_filled_with_zeros() {
    let gpu = Gpu::new();
    let mut longer = [u64::MAX; 10];
    let usage: *mut Usage = longer.as_mut_ptr().cast();
    // SAFETY: the array has the size that the struct says.
    let status = unsafe {
        (*usage).size = size_of_val(&longer) as u32;
        (*usage).version = DMR_USAGE_VERSION;
        dmr_runtime_usage(gpu.handle, usage)
    };
    assert_eq!(status, Status::Ok);
    assert_eq!(longer[1..], [0; 9]);
    assert_eq!(longer[0].to_ne_bytes()[..4], 80_u32.to_ne_bytes());
    let mut config = MaybeUninit::<[u64; 12]>::new([u64::MAX; 12]);
    // SAFETY: the array has that size.
    assert_eq!(unsafe { dmr_config_init(config.as_mut_ptr().cast(), 96) }, Status::Ok);
    // SAFETY: it was filled before.
    assert_eq!(unsafe { config.assume_init() }[1..], [0; 11]);
    gpu.end();
}

#[test]
fn c2_a_size_or_version_that_no_header_has_is_refused() {
    let gpu = Gpu::new();
    let mut usage = empty_usage();
    let mut status_of = |size, version| {
        usage.size = size;
        usage.version = version;
        // SAFETY: the struct is refused, or has the size that it says.
        unsafe { dmr_runtime_usage(gpu.handle, &mut usage) }
    };
    let own = size_of::<Usage>() as u32;
    let refused = [(0, 1), (4, 1), (own - 1, 1), (5000, 1), (own, 0), (own, 2)];
    for (size, version) in refused {
        assert_eq!(status_of(size, version), Status::InvalidArgument, "{size} {version}");
        assert!(last_error().contains("dmr_usage"), "{}", last_error());
    }
    assert_eq!(status_of(own, 1), Status::Ok);
    let mut config = MaybeUninit::<Config>::uninit();
    for size in [0, 8, size_of::<Config>() - 1, 5000] {
        // SAFETY: nothing is written.
        let status = unsafe { dmr_config_init(config.as_mut_ptr(), size) };
        assert_eq!(status, Status::InvalidArgument);
    }
    gpu.end();
}

#[test]
fn c2_the_elements_of_a_longer_block_are_where_the_program_has_them() {
    let gpu = Gpu::new();
    let first = gpu.allocate(256, LEGACY).unwrap();
    let second = gpu.allocate(512, LEGACY).unwrap();
    const WORDS: usize = size_of::<Block>() / 8 + 2;
    let mut blocks = [[u64::MAX; WORDS]; 3];
    let mut count = 0;
    // SAFETY: the array has that number of elements of that size.
    let status = unsafe {
        let at = blocks.as_mut_ptr().cast();
        dmr_runtime_snapshot(gpu.handle, at, WORDS * 8, 3, &mut count)
    };
    assert_eq!(status, Status::Ok);
    assert_eq!(count, 2);
    assert_eq!(blocks[2], [u64::MAX; WORDS], "there is no third block");
    let mut found = [blocks[0][1], blocks[1][1]];
    found.sort_unstable();
    let mut expected = [first, second];
    expected.sort_unstable();
    assert_eq!(found, expected);
    for block in &blocks[..2] {
        assert_eq!(block[WORDS - 2..], [0, 0]);
    }
    assert_eq!(dmr_version(), DMR_VERSION);
    gpu.end();
}

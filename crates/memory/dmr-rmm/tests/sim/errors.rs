//! An exception of RMM is an error with its text, and names the limit that refused.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_rmm::{Rmm, RmmConfig, RmmError, RmmKind, RmmResource};
use dmr_testkit::Rig;

use crate::support::{resource, rmm, small};

#[test]
fn settings_that_rmm_refuses_are_an_error_with_its_message() {
    let rig = Rig::small();
    let config = RmmConfig::new(RmmKind::Pool).with_initial_bytes(100);
    let error = RmmResource::new(rmm(), Arc::clone(rig.streams()), config).unwrap_err();
    assert!(matches!(error, ResourceError::Library { library: "RMM", call: "create", .. }));
    assert!(error.to_string().contains("multiple of 256 bytes"), "{error}");
}

#[test]
fn a_shortage_names_the_limit_of_the_pool() {
    let rig = Rig::small();
    let limited = [
        (RmmConfig::new(RmmKind::Pool).with_maximum_bytes(1 << 20), "maximum_bytes"),
        (small(RmmKind::Arena), "initial_bytes"),
    ];
    for (config, name) in limited {
        let resource = resource(rig.streams(), config);
        let error = resource.allocate(7 << 20, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
        let ResourceError::OutOfMemory { limit: Some(limit), requested, .. } = &error else {
            panic!("{error}");
        };
        assert!(limit.name.ends_with(name), "{error}");
        assert_eq!(*requested, 7 << 20);
    }
}

#[test]
fn a_shortage_of_the_device_names_no_limit() {
    let rig = Rig::small();
    let config = RmmConfig::new(RmmKind::Pool).with_initial_bytes(1 << 30);
    let error = RmmResource::new(rmm(), Arc::clone(rig.streams()), config).unwrap_err();
    assert!(matches!(error, ResourceError::OutOfMemory { limit: None, .. }), "{error}");
    let resource = resource(rig.streams(), RmmConfig::new(RmmKind::Cuda));
    let allocate = || resource.allocate(6 << 20, StreamId::DEFAULT, AllocTag::UNTAGGED);
    let block = allocate().unwrap();
    let full = allocate().unwrap_err();
    assert!(matches!(full, ResourceError::OutOfMemory { limit: None, .. }), "{full}");
    resource.deallocate(block).unwrap();
    resource.deallocate(allocate().unwrap()).unwrap();
}

#[test]
fn a_library_that_is_not_there_is_named() {
    // SAFETY: there is no such file.
    let error = unsafe { Rmm::load("/nowhere/libdmr_rmm.so") }.unwrap_err();
    assert!(matches!(error, RmmError::NotLoaded { .. }));
    assert!(error.to_string().contains("/nowhere/libdmr_rmm.so"), "{error}");
    // SAFETY: a library without the functions, whose initialisers have run in this process.
    let error = unsafe { Rmm::load("libc.so.6") }.unwrap_err();
    assert!(error.to_string().contains("dmr_rmm_interface"), "{error}");
    assert!(rmm().version().major >= 26, "{}", rmm().version());
}

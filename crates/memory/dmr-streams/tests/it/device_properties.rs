//! The properties of a device, and its use by several threads and contexts.

use dmr_streams::Device;
use dmr_testkit::Rig;

#[test]
fn a_device_returns_its_name_its_memory_and_its_driver() {
    let rig = Rig::new();
    let device = rig.device();
    assert!(!device.name().is_empty());
    let (free, total) = device.memory_info().unwrap();
    assert!(free <= total && total <= device.total_memory());
    assert!(device.driver_version() >= dmr_streams::library::MINIMUM_VERSION);
    assert_eq!(format!("{device}"), format!("device {} ({})", device.ordinal(), device.name()));
    let same = Device::from_context(device.context().clone()).unwrap();
    assert!(same.same_context(device));
    assert_eq!(same.uuid().unwrap(), device.uuid().unwrap());
}

#[test]
fn a_thread_that_never_used_cuda_is_bound_by_the_first_call() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = rig.stream();
            rig.streams().synchronize(stream.id()).unwrap();
            rig.device().memory_info().unwrap();
        });
    });
}

#[test]
fn an_error_that_cudarc_remembers_is_neither_returned_nor_swallowed_by_the_pool() {
    use cudarc::driver::{DriverError, sys::CUresult};
    let rig = Rig::new();
    let earlier = DriverError(CUresult::CUDA_ERROR_INVALID_HANDLE);
    rig.device().context().record_err::<()>(Err(earlier));
    let created = rig.streams().next().and(rig.streams().next());
    assert!(created.is_ok(), "{created:?}");
    assert_eq!(rig.device().context().check_err(), Err(earlier));
}

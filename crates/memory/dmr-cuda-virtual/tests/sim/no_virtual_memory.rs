//! A device without virtual memory, or without the requested kind, is an error; and memory is
//! created with the requested properties.

use std::sync::Arc;

use crate::support::TAG;
use dmr_core::{DeviceMemoryResource, ResourceError};
use dmr_cuda_virtual::{ExportHandle, VirtualConfig, VirtualCudaResource, VirtualMemoryError};
use dmr_sim::Universe;
use dmr_testkit::Rig;

const MANAGED: i32 = 102;
const FILE_DESCRIPTOR: i32 = 103;
const RDMA: i32 = 110;
const FABRIC: i32 = 128;

fn rig(attributes: &[(i32, i32)]) -> Rig {
    let builder = attributes
        .iter()
        .fold(Universe::builder(), |builder, &(name, value)| builder.attribute(name, value));
    Rig::in_universe(&builder.build().unwrap())
}

fn make(rig: &Rig, config: VirtualConfig) -> Result<VirtualCudaResource, VirtualMemoryError> {
    VirtualCudaResource::new(Arc::clone(rig.streams()), config)
}

#[test]
fn a_device_without_it_is_a_clear_error() {
    let rig = rig(&[(MANAGED, 0)]);
    let error = make(&rig, VirtualConfig::new()).unwrap_err();
    assert!(matches!(error, VirtualMemoryError::NotSupported { .. }), "{error}");
    assert!(error.to_string().contains("use another backend"), "{error}");
}

#[test]
fn what_the_device_cannot_do_is_a_clear_error() {
    let rig = rig(&[(RDMA, 0), (FILE_DESCRIPTOR, 0), (FABRIC, 0)]);
    let error = make(&rig, VirtualConfig::new().with_gpu_direct_rdma(true)).unwrap_err();
    assert!(matches!(error, VirtualMemoryError::NoGpuDirectRdma { .. }), "{error}");
    for export in [ExportHandle::PosixFileDescriptor, ExportHandle::Fabric] {
        let error = make(&rig, VirtualConfig::new().with_export(export)).unwrap_err();
        assert!(
            matches!(error, VirtualMemoryError::NoExport { export: named, .. } if named == export),
            "{error}"
        );
    }
    drop(make(&rig, VirtualConfig::new()).unwrap());
    rig.assert_clean();
}

#[test]
fn memory_is_exported_if_that_was_requested() {
    let rig = rig(&[(RDMA, 1), (FILE_DESCRIPTOR, 1)]);
    let config = VirtualConfig::new()
        .with_export(ExportHandle::PosixFileDescriptor)
        .with_gpu_direct_rdma(true);
    let with = make(&rig, config).unwrap();
    let without = make(&rig, VirtualConfig::new()).unwrap();
    let memories = [&with, &without].map(|resource| {
        let pages = resource.virtual_memory().unwrap();
        pages.create(pages.granularity(), TAG).unwrap()
    });
    let [first, second] = [(); 2].map(|()| with.export(&memories[0]).unwrap());
    drop((first, second));
    let refused = without.export(&memories[1]).unwrap_err();
    assert!(matches!(refused, ResourceError::Driver { .. }), "{refused}");
    let foreign = with.export(&memories[1]).unwrap_err();
    assert!(matches!(foreign, ResourceError::ForeignMemory { .. }), "{foreign}");
    for (resource, memory) in [&with, &without].into_iter().zip(memories) {
        resource.virtual_memory().unwrap().destroy(memory).unwrap();
    }
    drop((with, without));
    rig.assert_clean();
}

#[test]
fn making_the_resource_fails_cleanly_at_every_call() {
    let config = VirtualConfig::new().with_gpu_direct_rdma(true);
    let mut failed = 0;
    loop {
        let rig = rig(&[(RDMA, 1)]);
        rig.universe().fail_call_number(failed + 1, 999);
        let made = make(&rig, config);
        rig.universe().clear_faults();
        if made.is_ok() {
            break;
        }
        failed += 1;
        drop(make(&rig, config).expect("it can be repeated"));
        rig.assert_clean();
    }
    assert!(failed >= 3, "{failed} calls were failed");
}

//! D1: a builder composes a runtime, and refuses parts that do not fit each other.

#![cfg(feature = "direct")]

use std::sync::Arc;

use dmr::prelude::*;
use dmr_testkit::Rig;

fn pool_of(device: &Device) -> Arc<StreamPool> {
    StreamPool::new(device.clone(), StreamPoolConfig::new()).unwrap()
}

fn mismatch(error: RuntimeError, of: &str) {
    match &error {
        RuntimeError::Mismatch { part, .. } => assert_eq!(*part, of, "{error}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_runtime_allocates_on_its_own_streams() {
    let rig = Rig::new();
    let runtime = DeviceRuntime::builder(rig.ordinal()).max_streams(2).build().unwrap();
    assert_eq!(runtime.streams().max_streams(), 2);
    let stream = runtime.streams().acquire().unwrap();
    let block = runtime.resource().allocate(64, stream.id(), AllocTag::UNTAGGED).unwrap();
    runtime.resource().deallocate(block).unwrap();
    drop((stream, runtime));
    rig.assert_clean();
}

#[test]
fn the_programs_own_context_is_the_one_that_is_used() {
    let rig = Rig::new();
    let context = Arc::clone(rig.device().context());
    let runtime = DeviceRuntime::builder(rig.ordinal()).context(context.clone()).build().unwrap();
    assert!(Arc::ptr_eq(runtime.device().context(), &context));
}

#[test]
fn a_ready_stack_is_taken_as_it_is() {
    let rig = Rig::new();
    let streams = Arc::clone(rig.streams());
    let resource: Arc<dyn DeviceMemoryResource> =
        Arc::new(DirectCudaResource::new(Arc::clone(&streams)));
    let runtime = DeviceRuntime::builder(rig.ordinal())
        .with_streams(Arc::clone(&streams))
        .with_resource(Arc::clone(&resource))
        .build()
        .unwrap();
    assert!(Arc::ptr_eq(runtime.resource(), &resource));
    assert!(Arc::ptr_eq(runtime.streams(), &streams));
}

#[test]
fn a_resource_of_another_pool_is_refused() {
    let rig = Rig::new();
    let resource = Arc::new(DirectCudaResource::new(pool_of(rig.device())));
    let error = DeviceRuntime::builder(rig.ordinal())
        .with_streams(Arc::clone(rig.streams()))
        .with_resource(resource)
        .build()
        .unwrap_err();
    mismatch(error, "resource");
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let rig = Rig::new();
    let builder = || DeviceRuntime::builder(rig.ordinal());
    let streams = Arc::clone(rig.streams());
    let resource = Arc::new(DirectCudaResource::new(Arc::clone(&streams)));
    #[cfg(feature = "pool")]
    for builder in [
        builder().with_streams(streams.clone()).with_resource(resource.clone()),
        builder().backend(Backend::Direct),
    ] {
        let error = builder.pool_config(PoolConfig::compact()).build().unwrap_err();
        assert!(error.to_string().contains("leave `pool_config` out"), "{error}");
    }
    for builder in [
        builder().with_resource(resource.clone()),
        builder().with_streams(streams.clone()).with_resource(resource).backend(Backend::Direct),
        builder().with_streams(streams).max_streams(3),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, RuntimeError::Settings { .. }), "{error}");
    }
}

#[test]
fn each_backend_is_what_it_says() {
    let rig = Rig::new();
    for &backend in Backend::available() {
        let gpu = DeviceRuntime::builder(rig.ordinal()).backend(backend).build().unwrap();
        assert_eq!(
            gpu.resource().supports_block_use_tracking(),
            backend.tracks_uses(),
            "{backend}"
        );
        let ordinal = rig.ordinal();
        let stack = match backend {
            Backend::Direct => format!("Direct(device {ordinal})"),
            Backend::DirectTracked => format!("Tracked(Direct(device {ordinal}))"),
            Backend::Async => format!("Async(device {ordinal})"),
            _ => continue,
        };
        assert_eq!(format!("{:?}", gpu.resource()), stack);
    }
}

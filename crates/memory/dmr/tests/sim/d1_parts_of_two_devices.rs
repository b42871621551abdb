//! D1: parts of different devices are an error when a runtime is built.

#![cfg(feature = "direct")]

use std::sync::Arc;

use dmr::prelude::*;
use dmr_sim::Universe;

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
fn parts_of_another_device_are_refused() {
    let universe = Universe::new().unwrap();
    let [here, there] = [0, 1].map(|device| Device::open(universe.ordinal(device)).unwrap());
    let builder = || DeviceRuntime::builder(here.ordinal());

    let error = builder().context(Arc::clone(there.context())).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the context is of device {}, the runtime is of device {}: build all parts on one \
             device and one stream pool",
            there.ordinal(),
            here.ordinal()
        )
    );
    mismatch(error, "context");
    mismatch(builder().with_streams(pool_of(&there)).build().unwrap_err(), "stream pool");
    let resource = Arc::new(DirectCudaResource::new(pool_of(&there)));
    let stack = builder().with_streams(pool_of(&here)).with_resource(resource);
    mismatch(stack.build().unwrap_err(), "resource");
}

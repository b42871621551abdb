//! `dmr` with one feature: a runtime with it; without a backend, on a resource that is passed to
//! it.

use std::sync::Arc;

use dmr::prelude::*;
use dmr_sim::Universe;

fn main() {
    let universe = Universe::new().unwrap();
    let builder = DeviceRuntime::builder(universe.ordinal(0));
    #[cfg(feature = "budget")]
    let builder = builder.budget(1 << 30);
    #[cfg(feature = "debug-guard")]
    let builder = builder.debug_guard();
    #[cfg(feature = "logging")]
    let builder = builder.log_to(Arc::new(dmr::dmr_adaptors::logging::InMemorySink::default()));
    #[cfg(feature = "statistics")]
    let builder = builder.statistics();
    #[cfg(feature = "callbacks")]
    let builder = builder.on_out_of_memory(|_| Response::Decline);
    #[cfg(feature = "spill")]
    let builder = builder.spill();
    #[cfg(feature = "nvrtc")]
    drop(dmr::cudarc::nvrtc::Ptx::from_src(""));
    let runtime = if Backend::available().is_empty() {
        let error = builder.clone().build().unwrap_err();
        assert!(matches!(error, RuntimeError::NoBackend), "{error}");
        let device = Device::open(universe.ordinal(0)).unwrap();
        let streams = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
        let memory = Arc::new(dmr_cuda_direct::DirectCudaResource::new(Arc::clone(&streams)));
        builder.with_streams(streams).with_resource(memory).build().unwrap()
    } else {
        builder.build().unwrap()
    };
    #[cfg(feature = "cudarc")]
    runtime.streams().acquire().unwrap().stream().synchronize().unwrap();
    let memory = runtime.resource();
    let block = memory.allocate(1000, StreamId::DEFAULT, AllocTag::new("alone")).unwrap();
    assert_eq!((block.bytes(), memory.usage().live), (1000, 1000));
    memory.deallocate(block).unwrap();
    memory.reap_pending().unwrap();
    assert_eq!(memory.usage().live, 0);
}

#[cfg(feature = "derive")]
const _: () = {
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[bytemuck(crate = "dmr::bytemuck")]
    #[repr(C)]
    struct Particle {
        mass: f32,
    }
};

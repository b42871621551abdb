//! `dmr-cuda-async` alone: a block of memory, allocated and freed.

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_sim::Universe;
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let streams = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
    let memory = AsyncCudaResource::new(streams, AsyncConfig::new()).unwrap();
    let block = memory.allocate(1000, StreamId::DEFAULT, AllocTag::new("alone")).unwrap();
    memory.deallocate(block).unwrap();
    memory.reap_pending().unwrap();
    assert_eq!(memory.bytes_outstanding(), 0);
    drop(memory);
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

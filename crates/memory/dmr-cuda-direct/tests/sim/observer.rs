//! Each block is reported to an observer once, and its end once, whatever driver call fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dmr_core::{
    AllocTag, DeviceMemoryResource, Generation, MemoryObserver, ResourceResult, StreamId,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::{Rig, for_each_driver_call};

#[derive(Debug, Default)]
struct Regions(Mutex<HashMap<u64, (usize, Generation)>>);

impl Regions {
    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<_> = self.0.lock().unwrap().values().map(|&(bytes, _)| bytes).collect();
        sizes.sort_unstable();
        sizes
    }
}

impl MemoryObserver for Regions {
    fn heap_created(&self, _: u64, _: usize) {
        panic!("blocks of the driver are in no heap");
    }

    fn heap_destroyed(&self, _: u64) {
        panic!("blocks of the driver are in no heap");
    }

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation) {
        assert_eq!(tag.name(), "block");
        let before = self.0.lock().unwrap().insert(ptr, (bytes, generation));
        assert_eq!(before, None, "the address is another region's");
    }

    fn region_freed(&self, ptr: u64, generation: Generation) {
        let ended = self.0.lock().unwrap().remove(&ptr);
        assert_eq!(ended.map(|(_, known)| known), Some(generation), "ended twice");
    }
}

fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn each_block_is_a_region_until_it_is_about_to_be_freed() {
    let prepare = |rig: &Rig| {
        let regions = Arc::new(Regions::default());
        let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
        (resource.with_observer(Arc::clone(&regions) as _), regions)
    };
    let failed = for_each_driver_call(999, prepare, |_, (resource, regions)| {
        let tag = AllocTag::new("block");
        let allocate = |bytes| insist(|| resource.allocate(bytes, StreamId::DEFAULT, tag));
        let a = allocate(100);
        let b = allocate(200);
        assert_eq!(regions.sizes(), [100, 200]);
        resource.deallocate(a).unwrap();
        assert_eq!(regions.sizes(), [100, 200], "work with it may be in flight");
        insist(|| resource.try_reap());
        let c = allocate(400);
        assert_eq!(regions.sizes(), [200, 400]);
        for block in [b, c] {
            resource.deallocate(block).unwrap();
        }
        insist(|| resource.reap_pending());
        assert_eq!(regions.sizes(), [0; 0]);
        assert_eq!(resource.observer_panics(), 0, "what the observer asserts");
    });
    assert!(failed >= 5, "{failed} calls were failed");
}

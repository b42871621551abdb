//! A6: a runtime that spills, built by the facade.

#![cfg(all(feature = "spill", feature = "pool", feature = "budget"))]

use dmr::dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr::dmr_spill::SpillError;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

#[test]
fn a_runtime_spills_the_blocks_of_its_pool_when_its_budget_refuses_a_page() {
    for backend in [Backend::Pool, Backend::Async, Backend::DirectTracked] {
        let rig = Rig::new();
        let budget = Budget::new(64 * MIB as u64);
        let gpu = DeviceRuntime::builder(rig.ordinal())
            .backend(backend)
            .budget_on(&budget)
            .statistics()
            .spill()
            .build()
            .unwrap();
        let (spill, stream) = (gpu.spill().unwrap(), gpu.streams().acquire().unwrap());
        let tag = AllocTag::new("page");
        let pages: Vec<_> = (0..16_u8)
            .map(|value| {
                let mut page =
                    DeviceBuffer::<u8>::uninit_tagged(&gpu, &stream, 8 * MIB, tag).unwrap();
                page.fill(value, &stream).unwrap();
                spill.insert(page).unwrap()
            })
            .collect();
        assert!(spill.stats().on_host.buffers >= 8, "{backend:?}: {:?}", spill.stats());
        for (page, value) in pages.iter().zip(0..) {
            let page = page.on_device(&stream).unwrap();
            assert_eq!(page.block().unwrap().tag(), tag);
            assert!(page.to_host(&stream).unwrap().iter().all(|byte| *byte == value));
        }
        drop((pages, stream));
        gpu.shutdown().unwrap();
        drop(gpu);
        rig.assert_clean();
    }
}

#[test]
fn callbacks_of_the_program_come_before_spilling() {
    let rig = Rig::new();
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None::<DeviceBuffer<u8>>));
    let cache = std::sync::Arc::clone(&kept);
    let gpu = DeviceRuntime::builder(rig.ordinal())
        .backend(Backend::Async)
        .budget_on(&Budget::new(4 * MIB as u64))
        .spill()
        .on_out_of_memory(move |_| match cache.lock().unwrap().take() {
            Some(_) => Response::Retry,
            None => Response::Decline,
        })
        .build()
        .unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let buffer = || DeviceBuffer::<u8>::zeroed(&gpu, &stream, 2 * MIB);
    let cold = gpu.spill().unwrap().insert(buffer().unwrap()).unwrap();
    *kept.lock().unwrap() = Some(buffer().unwrap());
    let first = buffer().unwrap();
    assert!(!cold.is_spilled() && kept.lock().unwrap().is_none());
    let second = buffer().unwrap();
    assert!(cold.is_spilled());
    drop((first, second, cold, stream, gpu));
    rig.assert_clean();
}

#[test]
fn a_tenants_budget_is_charged_for_what_is_on_the_device_only() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).spill().build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let limit = Budget::new(3 * MIB as u64);
    let tenant = gpu.tenant(|memory| BudgetLayer::on(&limit).layer(memory)).unwrap();
    let buffer = DeviceBuffer::from_host(&tenant, &stream, &vec![7_u8; 2 * MIB]).unwrap();
    let buffer = gpu.spill().unwrap().insert(buffer).unwrap();
    gpu.spill().unwrap().free(1).unwrap();
    tenant.resource().reap_pending().unwrap();
    assert_eq!(limit.reserved_bytes(), 0);

    let other = DeviceBuffer::<u8>::zeroed(&tenant, &stream, 2 * MIB).unwrap();
    let Err(SpillError::NoRoom { source: ResourceError::OutOfBudget { .. }, .. }) =
        buffer.on_device(&stream)
    else {
        panic!("the tenant has no room");
    };
    drop(other);
    assert_eq!(buffer.on_device(&stream).unwrap().to_host(&stream).unwrap(), vec![7; 2 * MIB]);
    drop((buffer, tenant, stream, gpu));
    rig.assert_clean();
}

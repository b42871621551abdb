//! A6: a runtime that spills, built by the facade.

#![cfg(all(feature = "spill", feature = "pool", feature = "budget"))]

use dmr::dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr::dmr_buffer::BufferError;
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
        let spill = gpu.spill().unwrap();
        let stream = gpu.streams().acquire().unwrap();
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
fn a_spill_that_the_pinned_budget_refuses_leaves_the_buffer_on_the_device() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal())
        .backend(Backend::Async)
        .budget(8 * MIB as u64)
        .pinned_budget(4 * MIB as u64)
        .spill()
        .build()
        .unwrap();
    let spill = gpu.spill().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let pinned = gpu.pinned_budget().unwrap();
    let page = |value: u8| {
        let mut page = DeviceBuffer::<u8>::uninit(&gpu, &stream, 2 * MIB)?;
        page.fill(value, &stream)?;
        Ok::<_, BufferError>(page)
    };
    let mut pages: Vec<_> =
        (0..6_u8).map(|value| spill.insert(page(value).unwrap()).unwrap()).collect();
    assert_eq!(spill.stats().on_host.bytes, 4 * MIB as u64);
    assert_eq!((pinned.reserved_bytes(), gpu.pinned_usage().live), (4 << 20, 4 << 20));

    let refused = page(6).unwrap_err();
    assert!(
        matches!(refused, BufferError::Resource(ResourceError::OutOfBudget { .. })),
        "{refused}"
    );
    let SpillError::NotEnough { spilled: 0, problem: Some(problem), .. } =
        spill.free(1).unwrap_err()
    else {
        panic!("the registry does not say what refused the spill");
    };
    assert!(problem.to_string().contains("pinned memory"), "{problem}");
    assert!(pages[2..].iter().all(|page| !page.is_spilled()), "{:?}", spill.stats());

    // What is restored, and spilled again, is charged as before.
    drop(pages.split_off(3));
    let restored = pages[0].on_device(&stream).unwrap();
    let staging = dmr_testkit::block_on(restored.to_host_async(&stream)).unwrap();
    drop(restored);
    assert_eq!(pinned.reserved_bytes(), 4 << 20, "one page, and the copy");
    drop(staging);
    spill.free(4 * MIB as u64).unwrap_err();
    assert_eq!(spill.stats().on_host.bytes, 4 * MIB as u64);
    assert!(gpu.pinned_usage().live <= 4 << 20);
    for (page, value) in pages.iter().zip(0..) {
        let host = page.on_device(&stream).unwrap().to_host(&stream).unwrap();
        assert!(host.iter().all(|byte| *byte == value));
    }
    drop(pages);
    gpu.shutdown().unwrap();
    assert_eq!(pinned.reserved_bytes(), 0);
    drop((stream, gpu));
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

//! The backend `pool` maps pages where the device has virtual memory, and takes blocks where it has
//! none. What it promises, it promises on both: order, a hard budget, drops in any order.

#![cfg(all(feature = "pool", feature = "budget"))]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dmr::DeviceRuntimeBuilder;
use dmr::prelude::*;
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;
use dmr_testkit::scenarios::{SCENARIOS, Stage};

const MIB: usize = 1 << 20;

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: i32 = 102;

/// The attribute that says whether the device supports virtual memory, and the upstream of the pool
/// then.
const DEVICES: [(i32, &str); 2] = [(1, "Virtual"), (0, "Async")];

fn rig(has_virtual_memory: i32) -> Rig {
    rig_with(has_virtual_memory, Policy::Random, 0)
}

fn rig_with(has_virtual_memory: i32, policy: Policy, seed: u64) -> Rig {
    let universe = Universe::builder().attribute(VIRTUAL_MEMORY, has_virtual_memory);
    Rig::in_universe(&universe.policy(policy).seed(seed).build().unwrap())
}

/// On the rig's own streams, on the pool even where the environment says otherwise.
fn builder(rig: &Rig) -> DeviceRuntimeBuilder {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    builder.backend(Backend::Pool)
}

fn stack(builder: DeviceRuntimeBuilder) -> String {
    format!("{:?}", builder.build().unwrap().resource())
}

#[test]
fn the_device_decides_what_the_pool_is_over_and_the_stack_says_so() {
    for (supported, upstream) in DEVICES {
        let rig = rig(supported);
        let device = rig.ordinal();
        let [plain, limited] = [builder(&rig), builder(&rig).budget_on(&Budget::new(1 << 30))];
        let pages = if supported == 1 { "pages of 32 MiB, " } else { "" };
        assert_eq!(stack(plain), format!("Pool({pages}{upstream}(device {device}))"));
        let inner = format!("Budget(1 GiB, {upstream}(device {device}))");
        assert_eq!(stack(limited), format!("Pool({pages}{inner})"));
        rig.assert_clean();
    }
}

#[test]
fn the_configuration_says_how_large_pages_are_and_whether_there_are_any() {
    let rig = rig(1);
    let stack_of = |config: PoolConfig| stack(builder(&rig).pool_config(config));
    assert!(stack_of(PoolConfig::compact()).starts_with("Pool(pages of 8 MiB, Virtual("));
    assert!(stack_of(PoolConfig::fast().with_page_size(1)).starts_with("Pool(pages of 2 MiB, "));
    assert!(stack_of(PoolConfig::compact().with_page_size(0)).starts_with("Pool(Async("));
    rig.assert_clean();
}

#[test]
fn sixteen_pages_fit_into_a_budget_as_far_as_the_device_has_such_small_ones() {
    let rig = rig(1);
    for (limit, page_size) in [(8, 2), (32, 2), (400, 16), (511, 16), (512, 32), (8192, 32)] {
        let budget = Budget::new(limit * MIB as u64);
        let runtime = builder(&rig).budget_on(&budget).build().unwrap();
        let found = runtime.pool().unwrap().stats().page_size;
        assert_eq!(found, page_size * MIB as u64, "{limit} MiB");
    }
    rig.assert_clean();
}

#[test]
fn a_driver_that_fails_is_an_error_and_does_not_choose_the_backend() {
    let mut failed = 0;
    loop {
        let rig = rig(1);
        rig.universe().fail_call_number(failed + 1, 999);
        let built = builder(&rig).build();
        rig.universe().clear_faults();
        match built {
            Ok(runtime) => {
                assert!(format!("{:?}", runtime.resource()).contains("Virtual("));
                break;
            }
            Err(error) => assert!(error.to_string().contains("CUDA_ERROR_UNKNOWN (999)")),
        }
        assert!(stack(builder(&rig)).contains("Virtual("));
        rig.assert_clean();
        failed += 1;
    }
    assert!(failed >= 2, "{failed} calls were failed");
}

#[test]
fn every_dependency_between_streams_is_kept_on_both() {
    for (supported, _) in DEVICES {
        for scenario in SCENARIOS {
            let rig = rig(supported);
            let runtime = builder(&rig).build().unwrap();
            let stage = Stage::new(&rig, Arc::clone(runtime.resource()));
            assert_eq!((scenario.play)(&stage), Ok(()), "{}", scenario.name);
            assert_eq!(stage.wait_and_check(), Ok(()), "{}", scenario.name);
            assert_eq!(stage.resource().usage().outstanding(), 0, "{}", scenario.name);
            drop((stage, runtime));
            rig.assert_clean();
        }
    }
}

/// Returns the bytes of the device that are allocated.
fn taken(device: &Device) -> u64 {
    let (free, total) = device.memory_info().unwrap();
    total - free
}

#[test]
fn a_budget_below_the_pool_bounds_what_it_takes_at_every_moment() {
    const LIMIT: u64 = 48 << 20;
    for (supported, _) in DEVICES {
        for config in [PoolConfig::fast(), PoolConfig::compact()] {
            let rig = rig(supported);
            let before = taken(rig.device());
            let budget = Budget::new(LIMIT);
            let runtime = builder(&rig).pool_config(config).budget_on(&budget).build().unwrap();
            let is_over = AtomicBool::new(false);
            let (most, refusals) = std::thread::scope(|scope| {
                let watch = scope.spawn(|| {
                    let mut most = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        most = taken(rig.device()).max(most);
                    }
                    most - before
                });
                let runtime = &runtime;
                let programs = [1, 2, 3].map(|seed| scope.spawn(move || churn(runtime, seed)));
                let refusals = programs.map(|program| program.join().unwrap()).iter().sum::<u64>();
                is_over.store(true, Ordering::Relaxed);
                (watch.join().unwrap(), refusals)
            });
            let high = runtime.pool().unwrap().reserved_high();
            assert!(high <= LIMIT, "{high} bytes");
            // Pages are all that is taken from the driver; of freed blocks it keeps the memory.
            assert!(supported == 0 || most <= LIMIT, "{most} bytes of the device");
            // The limit was in the way, and most of it was used.
            assert!(refusals > 0 && high > LIMIT / 4 * 3, "{refusals} refusals, {high} bytes");
            drop(runtime);
            assert_eq!(budget.reserved_bytes(), 0);
            assert!(supported == 0 || taken(rig.device()) == before, "pages that are lost");
            rig.assert_clean();
        }
    }
}

/// Keeps more than the budget on a stream of its own, if it can, in blocks of up to 8 MiB; returns
/// the number of refused allocations.
fn churn(runtime: &DeviceRuntime, seed: u64) -> u64 {
    let stream = runtime.streams().acquire().unwrap();
    let mut random = seed;
    let mut refusals = 0;
    let mut held = Vec::new();
    for _ in 0..400 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let bytes = 256 + (random >> 32) as usize % (8 * MIB);
        match runtime.resource().allocate(bytes, stream.id(), AllocTag::new("churn")) {
            Ok(block) => held.push(block),
            Err(ResourceError::OutOfBudget { .. }) => refusals += 1,
            Err(other) => panic!("{other}"),
        }
        if held.len() > 15 {
            let block = held.swap_remove((random >> 40) as usize % held.len());
            runtime.resource().deallocate(block).unwrap();
        }
    }
    for block in held {
        runtime.resource().deallocate(block).unwrap();
    }
    refusals
}

#[test]
fn an_error_for_want_of_budget_names_who_holds_the_pool_s_blocks() {
    for (supported, _) in DEVICES {
        let rig = rig(supported);
        let runtime = builder(&rig).budget_on(&Budget::new(32 << 20)).build().unwrap();
        let stream = rig.stream();
        let ask = |mib: usize, tag| {
            runtime.resource().allocate(mib * MIB, stream.id(), AllocTag::new(tag))
        };
        let held = [ask(4, "rows"), ask(16, "keys"), ask(4, "rows")].map(Result::unwrap);
        let refused = ask(12, "more").unwrap_err();
        let ResourceError::OutOfBudget { limit, holders, .. } = &refused else {
            panic!("{refused}");
        };
        let holders: Vec<_> =
            holders.iter().map(|it| (it.tag.name(), it.bytes >> 20, it.blocks)).collect();
        assert_eq!((*limit, &holders[..]), (32 << 20, &[("keys", 16, 1), ("rows", 8, 2)][..]));
        for block in held {
            runtime.resource().deallocate(block).unwrap();
        }
        drop((stream, runtime));
        rig.assert_clean();
    }
}

/// All orders of four things, whatever the device does meanwhile.
fn orders(policy: Policy) -> impl Iterator<Item = (Policy, usize)> {
    (0..24).map(move |order| (policy, order))
}

#[test]
fn runtime_stack_lease_and_streams_are_dropped_in_any_order_with_work_under_way() {
    for (supported, _) in DEVICES {
        for (policy, order) in [Policy::Lazy, Policy::Random].into_iter().flat_map(orders) {
            let rig = rig_with(supported, policy, order as u64);
            let universe = rig.universe().clone();
            let budget = Budget::new(64 << 20);
            let runtime = builder(&rig).budget_on(&budget).build().unwrap();
            let resource = Arc::clone(runtime.resource());
            let stream = rig.stream();
            let block = resource.allocate(3 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap();
            rig.delay(&stream);
            rig.ops().fill_pattern(&block, 0..3 * MIB, 1, stream.id()).unwrap();
            resource.deallocate(block).unwrap();
            let mut parts: Vec<Box<dyn Any>> =
                vec![Box::new(runtime), Box::new(resource), Box::new(stream), Box::new(rig)];
            let mut choices = order;
            while !parts.is_empty() {
                drop(parts.swap_remove(choices % parts.len()));
                choices /= parts.len() + 1;
            }
            assert_eq!(budget.reserved_bytes(), 0, "order {order}");
            let verdict = universe.finish();
            assert!(verdict.is_clean(), "order {order}: {verdict}");
        }
    }
}

#[test]
fn a_block_goes_back_after_the_runtime_and_the_lease_are_gone() {
    for (supported, _) in DEVICES {
        let rig = rig_with(supported, Policy::Lazy, 0);
        let runtime = builder(&rig).build().unwrap();
        let resource = Arc::clone(runtime.resource());
        let stream = rig.stream();
        let block = resource.allocate(3 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap();
        rig.delay(&stream);
        rig.ops().fill_pattern(&block, 0..3 * MIB, 1, stream.id()).unwrap();
        drop((runtime, stream));
        resource.deallocate(block).unwrap();
        assert_eq!(resource.usage().outstanding(), 0);
        drop(resource);
        rig.assert_clean();
    }
}

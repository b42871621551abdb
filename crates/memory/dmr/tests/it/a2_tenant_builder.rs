//! A2, A6, A4: a tenant with a reservation, spilling and statistics, made in one call.

#![cfg(all(feature = "budget", feature = "pool", feature = "spill", feature = "statistics"))]

use std::time::Duration;

use dmr::dmr_buffer::BufferError;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;
const QUERIES: AllocTag = AllocTag::new("queries");
const QUERY: AllocTag = AllocTag::new("query 7");

fn mib(count: u64) -> u64 {
    count << 20
}

fn out_of_budget<T>(result: Result<T, BufferError>) -> String {
    match result.err() {
        Some(BufferError::Resource(error @ ResourceError::OutOfBudget { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tenant_reserves_and_is_refused_by_its_own_name_and_returns_the_rest() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).build().unwrap();
    let queries = Budget::new(mib(64)).named(QUERIES);
    let reserve =
        |bytes| gpu.tenant_builder(QUERY).reserve(&queries, bytes, Duration::ZERO).build();
    let query = reserve(mib(48)).unwrap();
    assert_eq!(queries.remaining(), mib(16));
    let refused = reserve(mib(48)).unwrap_err();
    assert!(refused.to_string().contains("\"queries\""), "{refused}");
    assert!(dmr::Error::from(refused).is_out_of_memory());

    let stream = query.streams().acquire().unwrap();
    let x = DeviceBuffer::<u8>::zeroed(&query, &stream, 40 * MIB).unwrap();
    let refused = out_of_budget(DeviceBuffer::<u8>::zeroed(&query, &stream, 16 * MIB));
    assert!(
        refused.contains("out of budget \"query 7\": 16 MiB requested, 8 MiB of 48 MiB"),
        "{refused}"
    );
    assert_eq!(query.budget().unwrap().name(), QUERY);

    // What is used stays charged until it is freed, also after the tenant.
    drop(query);
    assert_eq!(queries.remaining(), mib(24));
    drop(x);
    gpu.resource().reap_pending().unwrap();
    assert_eq!(queries.remaining(), mib(64));
    drop((stream, gpu));
    rig.assert_clean();
}

#[test]
fn a_limit_and_a_share_set_nothing_aside() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let queries = Budget::new(mib(8)).named(QUERIES);
    let share = gpu.tenant_builder(QUERY).share_of(&queries, mib(6)).build().unwrap();
    let alone = gpu.tenant_builder(QUERY).limit(mib(6)).build().unwrap();
    assert_eq!(queries.remaining(), mib(8));
    for tenant in [&share, &alone] {
        let refused = out_of_budget(DeviceBuffer::<u8>::zeroed(tenant, &stream, 7 * MIB));
        assert!(refused.contains("\"query 7\""), "{refused}");
    }
    let other =
        gpu.tenant_builder(AllocTag::new("other")).share_of(&queries, mib(8)).build().unwrap();
    let x = DeviceBuffer::<u8>::zeroed(&other, &stream, 4 * MIB).unwrap();
    let refused = out_of_budget(DeviceBuffer::<u8>::zeroed(&share, &stream, 5 * MIB));
    assert!(refused.contains("\"queries\""), "{refused}");
    drop((x, share, alone, other, stream, gpu));
    rig.assert_clean();
}

/// Two tenants on one runtime: each spills its own buffers when its own bytes are used up, and
/// counts its own.
#[test]
fn a_tenant_spills_its_own_buffers_and_counts_its_own_allocations() {
    for runtime_spills in [false, true] {
        let rig = Rig::new();
        let builder = DeviceRuntime::builder(rig.ordinal());
        let builder = if runtime_spills { builder.spill() } else { builder };
        let gpu = builder.build().unwrap();
        let stream = gpu.streams().acquire().unwrap();
        let queries = Budget::new(mib(64)).named(QUERIES);
        let tenant = |name: &'static str| {
            let builder = gpu.tenant_builder(AllocTag::new(name)).spill().statistics();
            builder.reserve(&queries, mib(32), Duration::ZERO).build().unwrap()
        };
        let [first, second] = [tenant("first"), tenant("second")];
        let page = |tenant: &Tenant, value: u8| {
            let mut page = DeviceBuffer::<u8>::uninit(tenant, &stream, 8 * MIB).unwrap();
            page.fill(value, &stream).unwrap();
            tenant.spill().unwrap().insert(page).unwrap()
        };
        let quiet: Vec<_> = (0..4).map(|value| page(&second, value)).collect();
        let pages: Vec<_> = (0..8).map(|value| page(&first, value)).collect();
        assert!(first.spill().unwrap().stats().on_host.buffers >= 4);
        assert_eq!(second.spill().unwrap().stats().on_host.buffers, 0, "another tenant's buffers");
        for (page, value) in pages.iter().zip(0..) {
            let page = page.on_device(&stream).unwrap();
            assert_eq!(page.slice(..3).unwrap().to_host(&stream).unwrap(), [value; 3]);
        }
        let counts = |tenant: &Tenant| tenant.statistics().unwrap().snapshot().allocations;
        assert!(counts(&first).total >= 8, "{:?}", counts(&first));
        assert_eq!(counts(&second).total, 4);
        drop((pages, quiet, first, second, stream));
        gpu.shutdown().unwrap();
        assert_eq!(queries.remaining(), mib(64));
        drop(gpu);
        rig.assert_clean();
    }
}

#[test]
fn tenants_of_a_runtime_that_spills_lease_no_stream_each() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).max_streams(2).spill().build().unwrap();
    let tenants: Vec<_> =
        (0..16).map(|_| gpu.tenant_builder(QUERY).spill().build().unwrap()).collect();
    let lease = gpu.streams().acquire().unwrap();
    drop((tenants, lease, gpu));
    rig.assert_clean();
}

/// The runtime's budget is charged for the pages below the tenants: a tenant that charged it as
/// well would count each byte twice.
#[test]
fn the_runtimes_own_budget_is_no_budget_of_tenants() {
    let rig = Rig::new();
    let own = Budget::new(mib(64));
    let gpu = DeviceRuntime::builder(rig.ordinal()).budget_on(&own).build().unwrap();
    let part = own.sub_budget(QUERIES, mib(32));
    for budget in [&own, &part] {
        let builder = gpu.tenant_builder(QUERY);
        for refused in [
            builder.clone().share_of(budget, mib(1)).build().unwrap_err(),
            builder.reserve(budget, mib(1), Duration::ZERO).build().unwrap_err(),
        ] {
            assert!(matches!(refused, RuntimeError::Settings { .. }), "{refused}");
            assert!(refused.to_string().contains("`Budget::new`"), "{refused}");
        }
    }
    assert_eq!(own.remaining(), mib(64));
    drop(gpu);
    rig.assert_clean();
}

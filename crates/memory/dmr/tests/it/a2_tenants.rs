//! A2: a tenant of a runtime that holds memory already: its budget bounds what passes through it.

#![cfg(all(feature = "budget", any(feature = "async", feature = "direct")))]

use dmr::dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr::dmr_buffer::BufferError;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: u64 = 1 << 20;

fn is_out_of_budget<T>(result: &Result<T, BufferError>) -> bool {
    matches!(result, Err(BufferError::Resource(ResourceError::OutOfBudget { .. })))
}

/// The example of the guide, with memory out.
#[test]
fn a_tenants_budget_charges_what_passes_through_it_and_nothing_else() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let table = DeviceBuffer::<u8>::zeroed(&gpu, &stream, 16 << 20).unwrap();

    let limit = Budget::new(4 * MIB).named(AllocTag::new("tenant"));
    let tenant = gpu.tenant(|memory| BudgetLayer::on(&limit).layer(memory)).unwrap();
    assert_eq!(limit.reserved_bytes(), 0);
    let x = DeviceBuffer::<u8>::zeroed(&tenant, &stream, 3 << 20).unwrap();
    assert_eq!(limit.reserved_bytes(), 3 * MIB);
    assert!(is_out_of_budget(&DeviceBuffer::<u8>::zeroed(&tenant, &stream, 2 << 20)));
    // Another tenant, and the runtime itself, have room.
    let other = Budget::new(4 * MIB);
    let other = gpu.tenant(|memory| BudgetLayer::on(&other).layer(memory)).unwrap();
    drop(DeviceBuffer::<u8>::zeroed(&other, &stream, 4 << 20).unwrap());
    drop((x, table));
    tenant.resource().reap_pending().unwrap();
    assert_eq!((limit.reserved_bytes(), limit.remaining()), (0, 4 * MIB));
    drop((tenant, other, stream, gpu));
    rig.assert_clean();
}

#[test]
fn what_is_out_is_charged_where_that_is_asked_for() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let table = DeviceBuffer::<u8>::zeroed(&gpu, &stream, 16 << 20).unwrap();
    let limit = Budget::new(17 * MIB);
    let layer = BudgetLayer::on(&limit).with_charge_existing(true);
    let tenant = gpu.tenant(|memory| layer.layer(memory)).unwrap();
    assert_eq!(limit.reserved_bytes(), 16 * MIB);
    assert!(is_out_of_budget(&DeviceBuffer::<u8>::zeroed(&tenant, &stream, 2 << 20)));
    drop((table, tenant, stream, gpu));
    rig.assert_clean();
}

#[test]
fn a_stack_on_other_streams_is_no_tenant() {
    let rig = Rig::new();
    let [gpu, other] = [(); 2].map(|()| DeviceRuntime::builder(rig.ordinal()).build().unwrap());
    let elsewhere = std::sync::Arc::clone(other.resource());
    let refused = gpu.tenant(|_| elsewhere).unwrap_err();
    assert!(matches!(refused, RuntimeError::Mismatch { .. }), "{refused}");
    drop((gpu, other));
    rig.assert_clean();
}

//! T6: outstanding is live + retired, in requested bytes, exact whenever no call is under way; and
//! the retired bytes of the streams add up to the total.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceMemoryResource, ResourceError, StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

#[test]
fn retired_bytes_per_stream_add_up_to_the_total() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let homes = [rig.stream(), rig.stream()];
    let retired = |nth: usize| resource.retired_bytes(homes[nth].id()).unwrap();
    let mut open = Vec::new();
    for (home, bytes) in [(0, 100), (1, 1000), (0, 10)] {
        let block = resource.allocate(bytes, homes[home].id(), AllocTag::UNTAGGED).unwrap();
        let uses = [BlockUse::new(block.id(), Access::Write)];
        open.push(resource.prepare_uses(&uses, homes[home].id()).unwrap());
        resource.deallocate(block).unwrap();
        assert_eq!(retired(0) + retired(1), resource.usage().retired);
    }
    assert_eq!((retired(0), retired(1)), (110, 1000));
    assert_eq!(resource.diagnostics().pending_free_bytes, 1110);
    assert_eq!(resource.bytes_outstanding(), 1110);
    for tokens in open {
        resource.finish_uses(tokens).unwrap();
        assert_eq!(retired(0) + retired(1), resource.usage().retired);
    }
    assert_eq!((resource.bytes_outstanding(), resource.usage().total_freed), (0, 1110));
    let other = Rig::new();
    let foreign = resource.retired_bytes(other.streams().default_stream());
    assert!(matches!(foreign, Err(ResourceError::StreamMisuse { .. })));
    drop((resource, homes));
    rig.assert_clean();
}

#[test]
fn threads_leave_the_accounting_exact() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 50;
    let rig = Rig::new();
    let resource = resource(&rig);
    let streams: Vec<_> = (0..4).map(|_| rig.stream()).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let resource = &resource;
            let streams = &streams;
            scope.spawn(move || {
                let [home, other] = [thread, thread + 1].map(|n| streams[n % streams.len()].id());
                let mut held = Vec::new();
                for round in 0..ROUNDS {
                    let bytes = 1 + (thread * ROUNDS + round) * 7;
                    let block = resource.allocate(bytes, home, AllocTag::UNTAGGED).unwrap();
                    let uses = [BlockUse::new(block.id(), Access::Write)];
                    let tokens = resource.prepare_uses(&uses, other).unwrap();
                    if round % 3 == 0 {
                        resource.deallocate(block).unwrap();
                        resource.finish_uses(tokens).unwrap();
                    } else {
                        resource.finish_uses(tokens).unwrap();
                        held.push(block);
                    }
                    if round % 10 == thread {
                        resource.try_reap().unwrap();
                    }
                }
                for block in held {
                    resource.deallocate(block).unwrap();
                }
            });
        }
    });
    // What waits for other streams' uses.
    resource.try_reap().unwrap();
    let asked: usize = (0..THREADS * ROUNDS).map(|i| 1 + i * 7).sum();
    let usage = resource.usage();
    assert_eq!((usage.live, usage.retired), (0, 0), "no window was left behind");
    assert_eq!((usage.total_allocated, usage.total_freed), (asked as u64, asked as u64));
    drop((resource, streams));
    rig.assert_clean();
}

#[test]
fn reserved_is_what_the_driver_reports_and_a_trim_returns_it() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let block = resource.allocate(1 << 20, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let reserved = resource.reserved_bytes().unwrap();
    let used = resource.used_bytes().unwrap();
    assert_eq!(resource.usage().reserved, reserved.current);
    assert!(reserved.current >= 1 << 20, "{reserved:?}");
    assert!(used.current >= 1 << 20 && used.current <= reserved.current, "{used:?}");
    resource.deallocate(block).unwrap();
    rig.device().synchronize().unwrap();
    // The release threshold keeps it, whatever is synchronised.
    assert_eq!(resource.usage().reserved, reserved.current);
    resource.trim_to(0).unwrap();
    assert_eq!(resource.reserved_bytes().unwrap().current, 0);
    assert_eq!(resource.used_bytes().unwrap().current, 0);
    assert_eq!(resource.reserved_bytes().unwrap().high, reserved.high);
    resource.reset_high_water_marks().unwrap();
    assert_eq!(resource.reserved_bytes().unwrap().high, 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn it_prints_as_one_line() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let line = format!("Async(device {})", rig.ordinal());
    assert_eq!((format!("{resource:?}"), format!("{resource}")), (line.clone(), line));
}

//! Sizes of a configuration: what a limit refuses, the error says is refused by it, and no size is
//! too large to be rounded up.

use std::sync::Arc;

use dmr_core::error::SizeProblem;
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

use crate::upstreams::{Make, UPSTREAMS, Upstream};

const MIB: u64 = 1 << 20;
const HOME: StreamId = StreamId::DEFAULT;
const TAG: AllocTag = AllocTag::new("limits");

fn pool(rig: &Rig, upstream: Make, config: PoolConfig) -> ResourceResult<PoolResource<Upstream>> {
    PoolResource::new(upstream(rig), Arc::clone(rig.streams()), config)
}

fn on_every_upstream(test: impl Fn(&Rig, Make)) {
    for upstream in UPSTREAMS {
        let rig = Rig::new();
        test(&rig, upstream);
        rig.assert_clean();
    }
}

fn assert_names_the_maximum(error: &ResourceError, requested: &str) {
    assert!(matches!(error, ResourceError::OutOfMemory { .. }), "{error}");
    let message = error.to_string();
    for part in [requested, "PoolConfig::maximum_size", "64 MiB", "raise"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_refusal_names_the_maximum_its_value_and_what_is_held_against_it() {
    on_every_upstream(|rig, upstream| {
        let config = PoolConfig::fast().with_maximum_size(64 * MIB);
        let pool = pool(rig, upstream, config).unwrap();
        let held = pool.allocate(2 << 20, HOME, TAG).unwrap();
        let error = pool.allocate(100 << 20, HOME, TAG).unwrap_err();
        assert_names_the_maximum(&error, "100 MiB requested");
        pool.deallocate(held).unwrap();
    });
}

#[test]
fn an_initial_size_above_the_maximum_is_refused_by_the_maximum() {
    on_every_upstream(|rig, upstream| {
        let config = PoolConfig::fast().with_maximum_size(64 * MIB).with_initial_size(100 * MIB);
        assert_names_the_maximum(&pool(rig, upstream, config).unwrap_err(), "100 MiB requested");
    });
}

/// A refusal of the device is not blamed on a maximum that would allow it.
#[test]
fn a_refusal_of_the_device_names_no_limit() {
    on_every_upstream(|rig, upstream| {
        let total = rig.device().total_memory();
        let pool = pool(rig, upstream, PoolConfig::fast().with_maximum_size(2 * total)).unwrap();
        let part = (total / 4) as usize;
        let mut held = Vec::new();
        let error = loop {
            match pool.allocate(part, HOME, TAG) {
                Ok(block) => held.push(block),
                Err(error) => break error,
            }
        };
        assert!(!error.to_string().contains("maximum_size"), "{error}");
        for block in held {
            pool.deallocate(block).unwrap();
        }
        pool.reap_pending().unwrap();
    });
}

#[test]
fn an_initial_size_that_no_device_has_is_an_error() {
    on_every_upstream(|rig, upstream| {
        let total = rig.device().total_memory();
        for bytes in [u64::MAX, u64::MAX - 255, 1 << 63, u64::from(u32::MAX) * 256, total + 1] {
            let config = PoolConfig::fast().with_initial_size(bytes);
            let error = pool(rig, upstream, config).unwrap_err();
            let ResourceError::InvalidSize { problem, .. } = error else { panic!("{error}") };
            assert!(matches!(problem, SizeProblem::BeyondDevice { .. }), "{bytes}: {problem}");
        }
    });
}

#[test]
fn sizes_that_cannot_be_rounded_up_are_as_good_as_the_largest() {
    on_every_upstream(|rig, upstream| {
        let mut config = PoolConfig::fast()
            .with_maximum_size(u64::MAX)
            .with_release_threshold(u64::MAX - 1)
            .with_growth(u64::MAX - 1)
            .with_dedicated_from(u64::MAX - 1)
            .with_page_size(u64::MAX - 1)
            .with_alignment(usize::MAX - 1);
        // The fields are public: what the methods round, they may not.
        for alignment in [config.alignment, 0, 3, usize::MAX] {
            config.alignment = alignment;
            let pool = pool(rig, upstream, config).unwrap();
            let block = pool.allocate(1000, HOME, TAG).unwrap();
            assert!(block.alignment().is_power_of_two(), "{alignment}");
            assert_eq!(block.ptr() % block.alignment() as u64, 0, "{alignment}");
            pool.deallocate(block).unwrap();
            pool.reap_pending().unwrap();
        }
    });
}

//! D6: `shutdown` waits, returns memory that no block uses, writes the log out, and names what is
//! still in use; afterwards the runtime works as before.

#![cfg(all(feature = "logging", feature = "pool"))]
#![allow(unsafe_code, reason = "forks")]

use std::sync::Arc;

use dmr::prelude::*;
use dmr::{DeviceRuntimeBuilder, ShutdownError};
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

fn builder(rig: &Rig) -> DeviceRuntimeBuilder {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    builder.backend(Backend::Pool)
}

fn allocate(gpu: &DeviceRuntime, stream: &StreamLease, tag: &'static str) -> DeviceBlock {
    gpu.resource().allocate(MIB, stream.id(), AllocTag::new(tag)).unwrap()
}

#[test]
fn after_a_shutdown_nothing_is_reserved_and_the_runtime_works_again() {
    let rig = Rig::new();
    let gpu = builder(&rig).build().unwrap();
    let stream = rig.stream();
    for _ in 0..2 {
        let block = allocate(&gpu, &stream, "work");
        assert!(gpu.resource().usage().reserved > 0);
        rig.delay(&stream);
        rig.ops().fill_pattern(&block, 0..MIB, 1, stream.id()).unwrap();
        gpu.resource().deallocate(block).unwrap();
        gpu.shutdown().unwrap();
        assert_eq!(gpu.resource().usage().reserved, 0);
    }
    drop((stream, gpu));
    rig.assert_clean();
}

#[test]
fn a_shutdown_names_the_tags_that_still_hold_memory_and_leaves_that_alone() {
    let rig = Rig::new();
    let gpu = builder(&rig).build().unwrap();
    let stream = rig.stream();
    let [weights, keys] = ["weights", "keys"].map(|tag| allocate(&gpu, &stream, tag));
    let error = gpu.shutdown().unwrap_err();
    let text = error.to_string();
    let ShutdownError::InUse { live, retired, holders, .. } = error else { panic!("{text}") };
    assert_eq!((live, retired), (2 * MIB as u64, 0));
    let tags: Vec<_> = holders.iter().map(|holder| holder.tag.name()).collect();
    assert!(tags.contains(&"weights") && tags.contains(&"keys"), "{tags:?}");
    assert!(text.contains("2 MiB live") && text.contains("held by \"weights\""), "{text}");
    rig.ops().fill_pattern(&weights, 0..MIB, 1, stream.id()).unwrap();
    for block in [weights, keys] {
        gpu.resource().deallocate(block).unwrap();
    }
    gpu.shutdown().unwrap();
    drop((stream, gpu));
    rig.assert_clean();
}

#[test]
fn after_a_shutdown_the_log_is_in_its_file() {
    let rig = Rig::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let gpu = builder(&rig).log_csv(&path).build().unwrap();
    let stream = rig.stream();
    let block = allocate(&gpu, &stream, "logged");
    gpu.resource().deallocate(block).unwrap();
    gpu.shutdown().unwrap();
    let rows = std::fs::read_to_string(&path).unwrap();
    let count = |action: &str| rows.lines().filter(|row| row.contains(action)).count();
    assert_eq!((count(",allocate,"), count(",free,")), (1, 1), "{rows}");
    drop((stream, gpu));
    rig.assert_clean();
}

#[test]
fn the_runtimes_of_the_process_are_shut_down_together() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::try_get(rig.ordinal()).unwrap();
    let stream = gpu.streams().acquire().unwrap();
    gpu.resource().deallocate(allocate(gpu, &stream, "work")).unwrap();
    dmr::shutdown().unwrap();
    assert_eq!(gpu.pool().map_or(0, |pool| pool.stats().reserved), 0);
    drop(stream);
    // The runtime lives as long as the process, and so does what it runs on.
    std::mem::forget(rig);
}

#[cfg(unix)]
#[test]
fn in_a_forked_child_a_shutdown_is_refused_and_touches_nothing() {
    let rig = Rig::new();
    let gpu = builder(&rig).build().unwrap();
    let stream = rig.stream();
    gpu.resource().deallocate(allocate(&gpu, &stream, "work")).unwrap();
    // SAFETY: the child makes one call and ends, without its parent's handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(
            gpu.shutdown(),
            Err(ShutdownError::Resource(ResourceError::ForkedProcess { .. }))
        );
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    gpu.shutdown().unwrap();
    drop((stream, gpu));
    rig.assert_clean();
}

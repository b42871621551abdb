//! Words that streams write and wait for: what is written, which streams wait, and what is refused.
#![allow(unsafe_code)] // the driver is called directly

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::gpu::{
    self, Gpu, Pinned, code, fill, free_async, kinds, machine, malloc, malloc_async, order, query,
    sync,
};
use crate::support::virtual_memory::{AND, EQ, GEQ, NOR, batch, wait32, wait64, write32, write64};
use dmr_sim::{Policy, ReportKind, Universe};

const INVALID: Option<i32> = Some(1);
const NOT_SUPPORTED: Option<i32> = Some(801);

fn with(policy: Policy, seed: u64) -> (Universe, Gpu) {
    let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// A word of device memory that holds 0.
fn word() -> u64 {
    let at = malloc(8).unwrap();
    fill(at, 0, 8, gpu::LEGACY).unwrap();
    gpu::sync_context().unwrap();
    at
}

#[test]
fn a_wait_holds_its_stream_up_and_no_other() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let (universe, _gpu) = with(policy, 1);
        let a = gpu::stream();
        let b = gpu::stream();
        let data = malloc(64).unwrap();
        let word = word();
        wait32(a, word, 1, EQ).unwrap();
        fill(data, 1, 32, a).unwrap();
        fill(data + 32, 2, 32, b).unwrap();
        sync(b).unwrap();
        for _ in 0..100 {
            assert!(!query(a));
        }
        write32(b, word, 1).unwrap();
        sync(a).unwrap();
        assert_eq!(gpu::read(data, 64).unwrap()[31..33], [1, 2]);
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn a_write_behind_the_wait_itself_releases_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let word = word();
    wait32(a, word, 1, GEQ).unwrap();
    write32(a, word, 1).unwrap();
    assert!(!query(a) && !query(a));
    assert_eq!(universe.finish().reports[0].kind, ReportKind::EndlessWait);
}

#[test]
fn a_lazy_machine_runs_only_what_the_word_needs() {
    let (_universe, _gpu) = with(Policy::Lazy, 0);
    let a = gpu::stream();
    let b = gpu::stream();
    let word = word();
    let others = [(); 10].map(|()| gpu::stream());
    let data = malloc(64).unwrap();
    for (i, other) in others.into_iter().enumerate() {
        fill(data + i as u64, 1, 1, other).unwrap();
    }
    fill(data + 32, 1, 1, a).unwrap();
    write32(a, word, 1).unwrap();
    wait32(b, word, 1, EQ).unwrap();
    sync(b).unwrap();
    assert!(others.into_iter().all(|other| !query(other)));
}

#[test]
fn the_program_can_let_a_wait_in_pinned_memory_go_on() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let (universe, gpu) = with(policy, 0);
        let pinned = Pinned::new(8);
        let a = gpu::stream();
        let data = malloc(64).unwrap();
        let word = pinned.address();
        wait64(a, word, 1, GEQ).unwrap();
        fill(data, 3, 64, a).unwrap();
        assert!(!query(a));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gpu.bind();
                // The other thread is inside of its synchronisation, and blocks no other thread.
                std::thread::sleep(Duration::from_millis(20));
                malloc(64).unwrap();
                // SAFETY: aligned, pinned, and only looked at atomically.
                unsafe { AtomicU64::from_ptr(word as usize as *mut u64) }
                    .store(1, Ordering::Release);
            });
            sync(a).unwrap();
        });
        assert_eq!(gpu::read(data, 1).unwrap(), [3]);
        assert_eq!(kinds(&universe), []);
        drop(pinned);
    }
}

#[test]
fn the_host_sees_the_word_that_a_stream_writes() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let pinned = Pinned::new(16);
    let wide = pinned.address();
    let narrow = pinned.address() + 8;
    write64(a, wide, 1 << 40 | 5).unwrap();
    write32(a, narrow, 6).unwrap();
    sync(a).unwrap();
    // SAFETY: aligned, pinned.
    let (wide, narrow) = unsafe {
        (
            AtomicU64::from_ptr(wide as usize as *mut u64).load(Ordering::Acquire),
            AtomicU32::from_ptr(narrow as usize as *mut u32).load(Ordering::Acquire),
        )
    };
    assert_eq!((wide, narrow), (1 << 40 | 5, 6));
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_word_is_memory_like_any_other() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let word = word();
    // Beside other work on it.
    fill(word, 0, 8, a).unwrap();
    write32(b, word, 1).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    let report = &universe.reports()[0];
    assert_eq!((report.second.operation.as_ref(), report.bytes), ("write value", 4));
    // Where there is none.
    assert_eq!(code(write64(b, word + 8, 1)), INVALID);
    assert_eq!(code(wait32(b, word + 8, 1, EQ)), INVALID);
    assert_eq!(kinds(&universe)[1..], [ReportKind::OutOfBounds; 2]);
    // Freed under a wait, and under a write.
    let stream = gpu::stream();
    let other = malloc_async(8, stream).unwrap();
    fill(other, 0, 8, stream).unwrap();
    order(stream, a);
    write32(a, other, 1).unwrap();
    free_async(other, stream).unwrap();
    assert_eq!(kinds(&universe)[3..], [ReportKind::FreeBeforeUse]);
}

#[test]
fn all_comparisons_let_go_and_hold_up() {
    for (how, wanted, good, bad) in [
        (GEQ, 5u32, 6u32, 4u32),
        (GEQ, u32::MAX, 0, u32::MAX - 1),
        (EQ, 5, 5, 6),
        (AND, 6, 4, 1),
        (NOR, 0xffff_fff0, 7, 15),
    ] {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let word = word();
        write32(a, word, bad).unwrap();
        sync(a).unwrap();
        wait32(b, word, wanted, how).unwrap();
        assert!(!query(b) && !query(b), "{how} {wanted}");
        write32(a, word, good).unwrap();
        sync(b).unwrap();
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn a_malformed_operation_is_refused_and_does_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let word = word();
    assert_eq!(code(write32(a, word + 2, 1)), INVALID);
    assert_eq!(code(write64(a, word + 4, 1)), INVALID);
    assert_eq!(code(write32(a, 0, 1)), INVALID);
    assert_eq!(code(wait64(a, word + 4, 1, EQ)), INVALID);
    assert_eq!(code(wait32(a, word, 1, 4)), INVALID);
    assert_eq!(code(batch(a, &[(2, word, 1, 0), (7, word, 1, 0)])), INVALID);
    assert_eq!(code(batch(a, &vec![(2, word, 1, 0); 256])), INVALID);
    assert_eq!(code(wait32(a, word, 0, GEQ | 1 << 30)), NOT_SUPPORTED, "no remote writes to flush");
    sync(a).unwrap();
    assert_eq!(gpu::read(word, 8).unwrap(), [0; 8]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn an_empty_batch_does_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let word = word();
    assert_eq!(code(batch(a, &[])), None);
    assert!(query(a));
    assert_eq!(gpu::read(word, 8).unwrap(), [0; 8]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_device_may_not_support_all_of_it() {
    for (attribute, wide, nor) in [(122, false, true), (123, true, false)] {
        let universe = Universe::builder().attribute(attribute, 0).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let word = word();
        let expected = |supported: bool| if supported { None } else { NOT_SUPPORTED };
        assert_eq!(code(write32(a, word, 1)), None);
        assert_eq!(code(write64(a, word, 1)), expected(wide));
        assert_eq!(code(wait64(a, word, 0, GEQ)), expected(wide));
        assert_eq!(code(wait32(a, word, 1, NOR)), expected(nor));
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn a_wait_without_a_write_is_found_at_the_end() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let word = word();
    let data = malloc(64).unwrap();
    {
        let _label = dmr_sim::label("endless");
        wait32(a, word, 1, EQ).unwrap();
    }
    order(a, b);
    fill(data, 4, 64, b).unwrap();
    let verdict = universe.finish();
    let found = &verdict.reports[0];
    assert_eq!((found.kind, found.address, found.bytes), (ReportKind::EndlessWait, word, 4));
    assert_eq!(found.second.label.as_deref(), Some("endless"));
    assert_eq!(gpu::read(data, 1).unwrap(), [4], "what is behind it has run");
}

#[test]
fn failed_operations_do_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let word = word();
    universe.fail_nth("cuStreamWriteValue64_v2", 1, 999);
    assert_eq!(code(write64(a, word, 1)), Some(999));
    universe.fail_nth("cuStreamWaitValue64_v2", 1, 2);
    assert_eq!(code(wait64(a, word, 1, EQ)), Some(2));
    sync(a).unwrap();
    assert_eq!(gpu::read(word, 8).unwrap(), [0; 8]);
}

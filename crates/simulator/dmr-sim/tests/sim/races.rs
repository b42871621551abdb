//! Each kind of finding: the smallest program that causes it, and the smallest change that cures
//! it.

use crate::support::gpu::{
    self, copy, fill, free, free_async, kinds, launch, machine, malloc, malloc_async, order,
};
use cudarc::driver::sys::CUstream;
use dmr_sim::{Footprint, ReportKind, Universe};

/// Two streams and a block of 100 bytes that is written and known to be so.
fn prepared() -> (Universe, gpu::Gpu, CUstream, CUstream, u64) {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(100).unwrap();
    fill(block, 1, 100, a).unwrap();
    gpu::sync_context().unwrap();
    (universe, gpu, a, b, block)
}

/// Reads a block on a stream, without writing it.
fn read_on(block: u64, stream: CUstream) {
    let elsewhere = malloc(100).unwrap();
    copy(elsewhere, block, 100, stream).unwrap();
}

#[test]
fn a_read_must_come_after_the_write() {
    let program = |ordered: bool| {
        let (universe, _gpu, a, b, block) = prepared();
        fill(block, 2, 100, a).unwrap();
        if ordered {
            order(a, b);
        }
        read_on(block, b);
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::ReadAfterWrite]);
    assert_eq!(program(true), []);
}

#[test]
fn a_write_must_come_after_the_read() {
    let program = |ordered: bool| {
        let (universe, _gpu, a, b, block) = prepared();
        read_on(block, a);
        if ordered {
            order(a, b);
        }
        fill(block, 2, 100, b).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::WriteAfterRead]);
    assert_eq!(program(true), []);
}

#[test]
fn a_write_must_come_after_the_write() {
    let program = |ordered: bool| {
        let (universe, _gpu, a, b, block) = prepared();
        fill(block, 2, 100, a).unwrap();
        if ordered {
            order(a, b);
        }
        fill(block, 3, 100, b).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::WriteAfterWrite]);
    assert_eq!(program(true), []);
}

#[test]
fn two_reads_need_no_order() {
    let (universe, _gpu, a, b, block) = prepared();
    read_on(block, a);
    read_on(block, b);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_second_reader_does_not_hide_the_first() {
    let (universe, _gpu, a, b, block) = prepared();
    let c = gpu::stream();
    read_on(block, a);
    read_on(block, b);
    order(b, c);
    fill(block, 2, 100, c).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterRead]);
}

#[test]
fn neighbouring_bytes_do_not_conflict_and_one_shared_byte_does() {
    let (universe, _gpu, a, b, block) = prepared();
    fill(block, 2, 50, a).unwrap();
    fill(block + 50, 3, 50, b).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(block + 49, 3, 1, b).unwrap();
    let reports = universe.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].address, reports[0].bytes), (block + 49, 1));
}

#[test]
fn a_use_must_come_after_the_allocation() {
    let program = |ordered: bool| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let block = malloc_async(100, a).unwrap();
        if ordered {
            order(a, b);
        }
        fill(block, 1, 100, b).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::UseBeforeAllocation]);
    assert_eq!(program(true), []);
}

#[test]
fn a_free_must_come_after_every_use() {
    let program = |ordered: bool| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let block = malloc_async(100, a).unwrap();
        order(a, b);
        fill(block, 1, 100, b).unwrap();
        if ordered {
            order(b, a);
        }
        free_async(block, a).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::FreeBeforeUse]);
    assert_eq!(program(true), []);
}

#[test]
fn cumemfree_of_pool_memory_waits_for_nothing() {
    let program = |synchronised: bool| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let block = malloc_async(100, a).unwrap();
        fill(block, 1, 100, a).unwrap();
        if synchronised {
            gpu::sync(a).unwrap();
        }
        free(block).unwrap();
        kinds(&universe)
    };
    assert!(program(false).contains(&ReportKind::FreeBeforeUse));
    assert_eq!(program(true), []);
}

#[test]
fn cumemfree_of_plain_memory_waits_for_the_device() {
    let (universe, _gpu, a, b, block) = prepared();
    let other = malloc(100).unwrap();
    fill(other, 1, 100, a).unwrap();
    fill(block, 1, 100, a).unwrap();
    free(block).unwrap();
    fill(other, 2, 100, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn freed_memory_may_not_be_used() {
    let program = |freed_first: bool| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let block = malloc_async(100, a).unwrap();
        if freed_first {
            free_async(block, a).unwrap();
        }
        // The driver may refuse it; what counts is the report.
        let _ = fill(block, 1, 100, a);
        if !freed_first {
            free_async(block, a).unwrap();
        }
        kinds(&universe)
    };
    assert_eq!(program(true), [ReportKind::UseAfterFree]);
    assert_eq!(program(false), []);
}

#[test]
fn memory_freed_by_cumemfree_may_not_be_used() {
    let (universe, _gpu, a, _, block) = prepared();
    free(block).unwrap();
    let _ = fill(block, 1, 100, a);
    assert_eq!(kinds(&universe), [ReportKind::UseAfterFree]);
}

#[test]
fn the_report_of_a_use_after_free_names_the_free() {
    let (universe, _gpu, a, _, block) = prepared();
    {
        let _label = dmr_sim::label("freeing it");
        free(block).unwrap();
    }
    let _ = fill(block, 1, 100, a);
    let reports = universe.reports();
    let first = reports[0].first.as_ref().unwrap();
    assert_eq!(first.label.as_deref(), Some("freeing it"));
}

#[test]
fn memory_is_freed_once() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc_async(100, a).unwrap();
    free_async(block, a).unwrap();
    assert_eq!(kinds(&universe), []);
    assert_eq!(gpu::code(free_async(block, a)), Some(1));
    assert_eq!(kinds(&universe), [ReportKind::DoubleFree]);
    let plain = malloc(100).unwrap();
    free(plain).unwrap();
    assert_eq!(gpu::code(free(plain)), Some(1));
    assert_eq!(kinds(&universe), [ReportKind::DoubleFree; 2]);
}

#[test]
fn only_the_start_of_an_allocation_can_be_freed() {
    let (universe, _gpu, _, _, block) = prepared();
    assert_eq!(gpu::code(free(block + 16)), Some(1));
    assert_eq!(gpu::code(free(0x1230)), Some(1));
    assert_eq!(kinds(&universe), [ReportKind::UnknownFree; 2]);
    free(block).unwrap();
    free(0).unwrap();
    assert_eq!(kinds(&universe).len(), 2);
}

#[test]
fn memory_is_written_before_it_is_read() {
    let program = |written: usize| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let block = malloc(100).unwrap();
        fill(block, 1, written, a).unwrap();
        read_on(block, a);
        kinds(&universe)
    };
    assert_eq!(program(99), [ReportKind::Uninitialised]);
    assert_eq!(program(100), []);
}

#[test]
fn reused_memory_is_fresh() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc_async(100, a).unwrap();
    fill(block, 1, 100, a).unwrap();
    free_async(block, a).unwrap();
    let again = malloc_async(100, a).unwrap();
    assert_eq!(again, block, "one stream reuses its memory at once");
    read_on(again, a);
    assert_eq!(kinds(&universe), [ReportKind::Uninitialised]);
}

#[test]
fn one_byte_past_the_end_is_out_of_bounds() {
    let program = |bytes: usize| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let block = malloc(1000).unwrap();
        let _ = fill(block, 1, bytes, a);
        universe.reports()
    };
    let reports = program(1001);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].kind, ReportKind::OutOfBounds);
    assert_eq!(reports[0].bytes, 1);
    assert!(program(1000).is_empty());
}

#[test]
fn a_kernel_stays_in_bounds_too() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let kernel = one_byte_kernel(&universe, 0);
    let block = malloc(1000).unwrap();
    launch(kernel, &[block + 999], a).unwrap();
    assert_eq!(kinds(&universe), []);
    let _ = launch(kernel, &[block + 1000], a);
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
}

#[test]
fn a_kernel_touches_what_it_declared() {
    for (skew, expected) in [(0, &[][..]), (8, &[ReportKind::OutsideFootprint][..])] {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let kernel = one_byte_kernel(&universe, skew);
        let block = malloc(100).unwrap();
        launch(kernel, &[block], a).unwrap();
        gpu::sync(a).unwrap();
        assert_eq!(kinds(&universe), expected);
    }
}

#[test]
fn a_kernel_that_touches_what_it_did_not_declare_changes_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let kernel = one_byte_kernel(&universe, 8);
    let block = malloc(100).unwrap();
    fill(block, 5, 100, a).unwrap();
    launch(kernel, &[block], a).unwrap();
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 100).unwrap(), [5; 100]);
    assert_eq!(kinds(&universe), [ReportKind::OutsideFootprint]);
}

#[test]
fn memory_that_is_still_there_at_the_end_is_a_leak() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let kept = malloc(100).unwrap();
    let freed = malloc(100).unwrap();
    let kept_async = malloc_async(100, a).unwrap();
    free(freed).unwrap();
    assert!(universe.reports().is_empty());
    let verdict = universe.finish();
    assert!(!verdict.is_clean());
    let leaks: Vec<u64> = verdict.reports.iter().map(|leak| leak.address).collect();
    assert_eq!(leaks.len(), 2);
    assert!(leaks.contains(&kept) && leaks.contains(&kept_async));
    assert!(verdict.reports.iter().all(|r| r.kind == ReportKind::Leak));
}

#[test]
fn a_program_without_a_finding_has_a_clean_verdict() {
    let (universe, _gpu, a, _, block) = prepared();
    fill(block, 1, 100, a).unwrap();
    free(block).unwrap();
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn a_report_names_both_sides() {
    let (universe, _gpu, a, b, block) = prepared();
    universe.name_allocation(block, "histogram");
    {
        let _label = dmr_sim::label("clearing");
        fill(block, 2, 100, a).unwrap();
    }
    {
        let _label = dmr_sim::label("reading back");
        read_on(block, b);
    }
    let report = &universe.reports()[0];
    let first = report.first.as_ref().unwrap();
    assert_eq!(&*first.operation, "memset");
    assert_eq!(first.label.as_deref(), Some("clearing"));
    assert_eq!(&*report.second.operation, "copy");
    assert_eq!(report.second.label.as_deref(), Some("reading back"));
    assert_ne!(first.stream, report.second.stream);
    assert_eq!((report.address, report.bytes), (block, 100));
    assert_eq!(report.device, Some(0));
    assert_eq!(report.tag.as_deref(), Some("histogram"));
    let text = report.to_string();
    for part in ["memset", "copy", "clearing", "reading back", "histogram"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

/// A kernel that writes one byte `skew` bytes after the one that it declares.
fn one_byte_kernel(universe: &Universe, skew: u64) -> cudarc::driver::sys::CUfunction {
    universe.register_kernel(
        "one_byte",
        |arguments| Footprint::new().writes(arguments.u64(0), 1),
        move |arguments, memory| memory.write(arguments.u64(0) + skew, &[7]),
    );
    gpu::kernel(&gpu::ptx("one_byte", &["u64"]), "one_byte").unwrap()
}

#[test]
fn the_rest_of_a_freed_block_stays_freed() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let large = malloc(4096).unwrap();
    free(large).unwrap();
    let small = malloc(512).unwrap();
    assert_eq!(small, large, "the address comes back");
    let _ = fill(large + 512, 1, 512, a);
    assert_eq!(kinds(&universe), [ReportKind::UseAfterFree]);
    // What is left of it is no block of its own.
    assert!(free(large + 512).is_err());
    assert_eq!(kinds(&universe)[1..], [ReportKind::UnknownFree]);
}

#[test]
fn freeing_does_not_wait_for_another_device() {
    // A kernel of device 1 still reads what device 0 frees: the driver waits for device 0 only.
    let program = |ordered: bool| {
        let (universe, first) = machine();
        let second = gpu::Gpu::of(&universe, 1);
        let b = gpu::stream();
        first.bind();
        let a = gpu::stream();
        let block = malloc(64).unwrap();
        fill(block, 1, 64, a).unwrap();
        gpu::sync(a).unwrap();
        second.bind();
        let target = malloc(64).unwrap();
        copy(target, block, 64, b).unwrap();
        if ordered {
            gpu::sync(b).unwrap();
        }
        first.bind();
        free(block).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::FreeBeforeUse]);
    assert_eq!(program(true), []);
}

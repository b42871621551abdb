//! A launch whose footprint is recorded while it runs is checked as if it had declared it at its
//! submission, whatever happens to the memory in between. Each program, and the smallest change
//! that cures it, under every policy.

use crate::support::gpu::{self, fill, free_async, launch, malloc, malloc_async, order};
use crate::support::late::{findings, kinds, machine, recorded, schedules};
use crate::support::virtual_memory::{
    GEQ, PAGE, READ, READ_WRITE, mapped, set_access, unmap, wait32, write32,
};
use dmr_sim::{Policy, ReportKind};

#[test]
fn an_access_that_is_known_late_races_with_an_earlier_one_and_with_a_later_one() {
    let earlier = |ordered: bool| {
        findings(|m| {
            fill(m.block, 2, 64, m.a).unwrap();
            if ordered {
                order(m.a, m.b);
            }
            launch(m.kernel, &[m.block, 0], m.b).unwrap();
        })
    };
    assert_eq!(earlier(false), [ReportKind::ReadAfterWrite]);
    assert_eq!(earlier(true), []);
    let later = |ordered: bool| {
        findings(|m| {
            launch(m.kernel, &[m.block, 0], m.b).unwrap();
            if ordered {
                order(m.b, m.a);
            }
            fill(m.block, 2, 64, m.a).unwrap();
        })
    };
    assert_eq!(later(false), [ReportKind::WriteAfterRead]);
    assert_eq!(later(true), []);
}

#[test]
fn two_launches_that_are_known_late_race_with_each_other() {
    let program = |ordered: bool| {
        findings(|m| {
            launch(m.kernel, &[0, m.block], m.a).unwrap();
            if ordered {
                order(m.a, m.b);
            }
            launch(m.kernel, &[m.block, 0], m.b).unwrap();
        })
    };
    assert_eq!(program(false), [ReportKind::ReadAfterWrite]);
    assert_eq!(program(true), []);
}

#[test]
fn a_free_behind_the_launch_must_come_after_it() {
    let program = |ordered: bool| {
        findings(|m| {
            let block = malloc_async(64, m.a).unwrap();
            order(m.a, m.b);
            launch(m.kernel, &[0, block], m.b).unwrap();
            if ordered {
                order(m.b, m.a);
            }
            free_async(block, m.a).unwrap();
        })
    };
    assert_eq!(program(false), [ReportKind::FreeBeforeUse]);
    assert_eq!(program(true), []);
}

#[test]
fn memory_that_is_freed_behind_the_launch_is_still_there_when_it_runs() {
    for schedule in schedules() {
        let m = machine(schedule);
        let block = malloc_async(64, m.a).unwrap();
        launch(m.kernel, &[m.block, block], m.a).unwrap();
        launch(m.kernel, &[block, m.block], m.a).unwrap();
        free_async(block, m.a).unwrap();
        let again = malloc_async(16, m.a).unwrap();
        assert_eq!(again, block, "one stream reuses its memory at once");
        gpu::sync(m.a).unwrap();
        assert_eq!(gpu::read(m.block, 64).unwrap(), [1; 64], "{schedule:?}");
        assert_eq!(kinds(&m), [], "{schedule:?}");
    }
}

#[test]
fn a_launch_before_a_free_is_not_charged_to_the_next_owner_of_the_address() {
    // The launch is ordered before the free, and not before the next owner's use, which the driver
    // orders.
    assert_eq!(
        findings(|m| {
            let block = malloc_async(64, m.a).unwrap();
            launch(m.kernel, &[m.block, block], m.a).unwrap();
            free_async(block, m.a).unwrap();
            let again = malloc_async(64, m.a).unwrap();
            assert_eq!(again, block);
            launch(m.kernel, &[m.block, again], m.a).unwrap();
            launch(m.kernel, &[again, 0], m.a).unwrap();
        }),
        []
    );
}

#[test]
fn a_launch_behind_a_free_uses_freed_memory_even_if_it_is_allocated_again_before_it_runs() {
    assert_eq!(
        findings(|m| {
            let block = malloc_async(64, m.a).unwrap();
            free_async(block, m.a).unwrap();
            launch(m.kernel, &[0, block], m.a).unwrap();
            assert_eq!(malloc_async(64, m.a).unwrap(), block);
        }),
        [ReportKind::UseAfterFree]
    );
}

#[test]
fn a_region_of_a_pool_is_that_of_the_launch_s_submission() {
    let program = |freed_first: bool| {
        findings(|m| {
            let heap = malloc(4096).unwrap();
            m.universe.heap_created(heap, 4096);
            m.universe.region_allocated(heap, 64, "keys");
            if freed_first {
                m.universe.region_freed(heap);
            }
            launch(m.kernel, &[0, heap], m.a).unwrap();
            if !freed_first {
                m.universe.region_freed(heap);
            }
            m.universe.region_allocated(heap, 32, "values");
        })
    };
    assert_eq!(program(true), [ReportKind::UseAfterFree]);
    assert_eq!(program(false), []);
}

#[test]
fn a_word_orders_a_launch_that_is_known_late() {
    let program = |written: bool| {
        findings(|m| {
            let word = malloc(8).unwrap();
            fill(word, 0, 8, m.a).unwrap();
            gpu::sync(m.a).unwrap();
            launch(m.kernel, &[0, m.block], m.a).unwrap();
            if written {
                write32(m.a, word, 1).unwrap();
            }
            // Open until the write behind it, in the other program.
            wait32(m.b, word, 1, GEQ).unwrap();
            launch(m.kernel, &[m.block, 0], m.b).unwrap();
            if !written {
                write32(m.a, word, 1).unwrap();
            }
            fill(m.block, 3, 64, m.b).unwrap();
        })
    };
    assert_eq!(program(true), []);
    assert_eq!(program(false), []);
}

#[test]
fn a_launch_that_overwrites_a_word_hides_the_write_before_it() {
    // The wait is ended by the second write; the order of the first is not enough for the read.
    let program = |overwritten: bool| {
        findings(|m| {
            let c = gpu::stream();
            let word = malloc(64).unwrap();
            fill(word, 0, 64, m.a).unwrap();
            gpu::sync(m.a).unwrap();
            write32(m.a, word, 1).unwrap();
            let reset = if overwritten { word } else { 0 };
            launch(m.kernel, &[0, reset], m.a).unwrap();
            order(m.a, m.b);
            wait32(m.b, word, 1, GEQ).unwrap();
            order(m.a, c);
            fill(m.block, 3, 64, c).unwrap();
            write32(c, word, 1).unwrap();
            launch(m.kernel, &[m.block, 0], m.b).unwrap();
        })
    };
    assert_eq!(program(true), []);
    assert_eq!(program(false), [ReportKind::ReadAfterWrite]);
}

#[test]
fn a_mapping_that_the_launch_uses_may_not_be_removed_before_the_host_has_waited() {
    let program = |waited: bool| {
        let machine = machine((Policy::Lazy, 0));
        let m = &machine;
        let (at, _) = mapped(PAGE, m.gpu.device);
        launch(m.kernel, &[m.block, at], m.a).unwrap();
        if waited {
            gpu::sync(m.a).unwrap();
        }
        unmap(at, PAGE).unwrap();
        let returned = gpu::code(gpu::sync(m.a));
        (returned, kinds(m))
    };
    assert_eq!(program(true), (None, vec![]));
    // The launch runs without the mapping: the device faults.
    assert_eq!(program(false), (Some(700), vec![ReportKind::UnmapBeforeUse]));
}

#[test]
fn a_launch_without_the_right_to_a_mapping_makes_the_device_fault() {
    for schedule in schedules() {
        let m = machine(schedule);
        let (at, _) = mapped(PAGE, m.gpu.device);
        set_access(at, PAGE, m.gpu.device, READ).unwrap();
        launch(m.kernel, &[0, at], m.a).unwrap();
        assert_eq!(gpu::code(gpu::sync(m.a)), Some(700), "{schedule:?}");
        assert_eq!(gpu::code(malloc(64)), Some(700), "{schedule:?}");
        assert_eq!(kinds(&m), [ReportKind::NoAccess], "{schedule:?}");
    }
    let m = machine((Policy::Lazy, 0));
    let (at, _) = mapped(PAGE, m.gpu.device);
    set_access(at, PAGE, m.gpu.device, READ_WRITE).unwrap();
    launch(m.kernel, &[0, at], m.a).unwrap();
    gpu::sync(m.a).unwrap();
    assert_eq!(kinds(&m), []);
}

#[test]
fn an_address_that_the_kernel_reads_from_memory_is_checked() {
    // An index array, copied on another stream, says which element the kernel writes.
    let program = |copied_in_order: bool, element: u8| {
        findings(|m| {
            let scatter = recorded(&m.universe, "scatter", |args, memory| {
                let mut index = [0];
                memory.read(args.u64(0), &mut index);
                memory.write(args.u64(1) + u64::from(index[0]), &[9]);
            });
            let index = malloc(1).unwrap();
            let target = malloc(64).unwrap();
            fill(index, 0, 1, m.a).unwrap();
            fill(target, 0, 64, m.a).unwrap();
            gpu::sync(m.a).unwrap();
            gpu::upload(index, &[element], m.a).unwrap();
            if copied_in_order {
                order(m.a, m.b);
            }
            launch(scatter, &[index, target], m.b).unwrap();
            fill(target + 32, 1, 1, m.a).unwrap();
        })
    };
    assert_eq!(program(true, 31), []);
    assert_eq!(program(true, 32), [ReportKind::WriteAfterWrite]);
    assert_eq!(program(true, 64), [ReportKind::OutOfBounds]);
    // The kernel may read 0 or 31: what races is the index.
    assert_eq!(program(false, 31), [ReportKind::ReadAfterWrite]);
}

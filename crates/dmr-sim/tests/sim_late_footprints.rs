//! A launch whose footprint is recorded while it runs is checked as if it had declared it at its submission,
//! whatever happens to the memory in between. Each program, and the smallest change that cures it, under every policy.
#![allow(unsafe_code)] // the driver is called directly

mod support;

use cudarc::driver::sys::{CUfunction, CUstream};
use dmr_sim::{
    Footprint, KernelArgs, KernelMemory, KernelSite, Policy, Report, ReportKind, Universe,
};
use support::gpu::{self, Gpu, copy, fill, free, free_async, launch, malloc, malloc_async, order};
use support::virtual_memory::{
    GEQ, PAGE, READ, READ_WRITE, mapped, set_access, unmap, wait32, write32,
};

/// Each policy, the random one with some seeds.
fn schedules() -> impl Iterator<Item = (Policy, u64)> {
    let random = (0..20).map(|seed| (Policy::Random, seed));
    [(Policy::Eager, 0), (Policy::Lazy, 0)].into_iter().chain(random)
}

struct Machine {
    universe: Universe,
    gpu: Gpu,
    a: CUstream,
    b: CUstream,
    /// 64 bytes that are written and known to be so.
    block: u64,
    /// Reads 64 bytes at the first argument, and writes 64 bytes at the second; 0 for none.
    kernel: CUfunction,
}

fn read_and_write(args: &KernelArgs, memory: &mut KernelMemory<'_>) {
    let mut bytes = [0; 64];
    if args.u64(0) != 0 {
        memory.read(args.u64(0), &mut bytes);
    }
    if args.u64(1) != 0 {
        memory.write(args.u64(1), &bytes);
    }
}

fn machine((policy, seed): (Policy, u64)) -> Machine {
    let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
    let gpu = Gpu::new(&universe);
    let (a, b) = (gpu::stream(), gpu::stream());
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    gpu::sync_context().unwrap();
    let kernel = recorded(&universe, "read_and_write", read_and_write);
    Machine { universe, gpu, a, b, block, kernel }
}

/// Registers a kernel with two arguments, whose footprint is recorded.
fn recorded(
    universe: &Universe,
    name: &str,
    body: impl Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync + 'static,
) -> CUfunction {
    universe.register_kernel(name, |_| Footprint::recorded(), body);
    gpu::kernel(&gpu::ptx(name, &["u64"; 2]), name).unwrap()
}

/// Runs a program under every policy, and returns its findings, which are the same each time. Without leaks.
fn findings(program: impl Fn(&Machine)) -> Vec<ReportKind> {
    let mut all: Vec<Vec<ReportKind>> = schedules()
        .map(|schedule| {
            let machine = machine(schedule);
            program(&machine);
            kinds(&machine)
        })
        .collect();
    all.dedup();
    assert_eq!(all.len(), 1, "differs by policy: {all:?}");
    all.remove(0)
}

fn reports(machine: &Machine) -> Vec<Report> {
    let mut reports = machine.universe.finish().reports;
    reports.retain(|report| report.kind != ReportKind::Leak);
    reports
}

fn kinds(machine: &Machine) -> Vec<ReportKind> {
    reports(machine).iter().map(|report| report.kind).collect()
}

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
    // The launch is ordered before the free, and not before the next owner's use, which the driver orders.
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
            let (index, target) = (malloc(1).unwrap(), malloc(64).unwrap());
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

/// A kernel that adds 1 to a word by an atomic operation.
fn count(universe: &Universe) -> CUfunction {
    recorded(universe, "count", |args, memory| {
        memory.update(args.u64(0), &mut [0; 4], |word| word[0] += 1);
    })
}

#[test]
fn atomic_operations_of_two_launches_do_not_race_and_plain_accesses_do() {
    let program = |reader_waits_for: &[usize]| {
        findings(|m| {
            let count = count(&m.universe);
            let c = gpu::stream();
            launch(count, &[m.block, 0], m.a).unwrap();
            launch(count, &[m.block, 0], m.b).unwrap();
            for &stream in reader_waits_for {
                order([m.a, m.b][stream], c);
            }
            let target = malloc(64).unwrap();
            copy(target, m.block, 64, c).unwrap();
        })
    };
    assert_eq!(program(&[0, 1]), []);
    // The later launch does not hide the earlier one.
    for waited in [&[][..], &[0], &[1]] {
        assert_eq!(program(waited), [ReportKind::ReadAfterWrite], "{waited:?}");
    }
}

#[test]
fn declared_atomic_operations_are_checked_as_recorded_ones() {
    let program = |plain: bool| {
        findings(|m| {
            let count = count(&m.universe);
            m.universe.register_kernel(
                "declared",
                move |args| match plain {
                    true => Footprint::new().reads(args.u64(0), 4).writes(args.u64(0), 4),
                    false => Footprint::new().atomics(args.u64(0), 4),
                },
                |args, memory| {
                    assert!(memory.update(args.u64(0), &mut [0; 4], |word| word[0] += 1));
                },
            );
            let declared = gpu::kernel(&gpu::ptx("declared", &["u64"; 2]), "declared").unwrap();
            launch(declared, &[m.block, 0], m.a).unwrap();
            launch(count, &[m.block, 0], m.b).unwrap();
            gpu::sync_context().unwrap();
            assert_eq!(gpu::read(m.block, 1).unwrap(), [3]);
        })
    };
    assert_eq!(program(false), []);
    assert_eq!(program(true), [ReportKind::ReadAfterWrite, ReportKind::WriteAfterWrite]);
}

#[test]
fn an_atomic_operation_needs_written_memory_and_a_read_of_its_result_does_not() {
    let program = |store_first: bool| {
        findings(|m| {
            let kernel = recorded(&m.universe, "store", move |args, memory| {
                if store_first {
                    memory.write_atomic(args.u64(0), &[5; 4]);
                }
                memory.update(args.u64(0), &mut [0; 4], |word| word[0] += 1);
                let mut read = [0; 4];
                memory.read(args.u64(0), &mut read);
                memory.write(args.u64(1), &read);
            });
            let word = malloc(4).unwrap();
            launch(kernel, &[word, m.block], m.a).unwrap();
        })
    };
    assert_eq!(program(true), []);
    assert_eq!(program(false), [ReportKind::Uninitialised]);
}

#[test]
fn a_plain_read_of_bytes_that_the_launch_has_changed_by_atomics_races_with_atomics() {
    let program = |reads: bool| {
        findings(|m| {
            let kernel = recorded(&m.universe, "last_block", move |args, memory| {
                memory.update(args.u64(0), &mut [0; 4], |word| word[0] += 1);
                if reads {
                    memory.read(args.u64(0), &mut [0; 4]);
                }
            });
            launch(kernel, &[m.block, 0], m.a).unwrap();
            launch(kernel, &[m.block, 0], m.b).unwrap();
        })
    };
    assert_eq!(program(false), []);
    assert_eq!(program(true)[0], ReportKind::WriteAfterRead);
}

#[test]
fn a_kernel_reads_what_it_has_written_itself() {
    assert_eq!(
        findings(|m| {
            let kernel = recorded(&m.universe, "scratch", |args, memory| {
                memory.fill(args.u64(0), 100_000, 7);
                memory.write(args.u64(0) + 100_000, &[7; 10]);
                let mut all = vec![0; 100_010];
                memory.read(args.u64(0), &mut all);
                assert!(all.iter().all(|byte| *byte == 7));
                memory.read(args.u64(0) + 3, &mut [0; 2]);
            });
            let scratch = malloc(100_010).unwrap();
            launch(kernel, &[scratch, 0], m.a).unwrap();
        }),
        []
    );
    assert_eq!(
        findings(|m| {
            let kernel = recorded(&m.universe, "scratch", |args, memory| {
                memory.fill(args.u64(0), 100_000, 7);
                memory.read(args.u64(0), &mut vec![0; 100_001]);
            });
            let scratch = malloc(100_010).unwrap();
            launch(kernel, &[scratch, 0], m.a).unwrap();
        }),
        [ReportKind::Uninitialised]
    );
}

#[test]
fn scattered_accesses_are_exact() {
    // Every second word, and the others on another stream.
    let program = |second: u64| {
        findings(|m| {
            let kernel = recorded(&m.universe, "stride", |args, memory| {
                for word in 0..1024 {
                    memory.write(args.u64(0) + args.u64(1) + 8 * word, &[1; 4]);
                }
            });
            let block = malloc(8192).unwrap();
            launch(kernel, &[block, 0], m.a).unwrap();
            launch(kernel, &[block, second], m.b).unwrap();
        })
    };
    assert_eq!(program(4), []);
    assert_eq!(program(3), [ReportKind::WriteAfterWrite]);
}

#[test]
fn one_range_over_two_blocks_is_two_accesses_unless_one_access_crosses_the_border() {
    let program = |step: u64| {
        findings(|m| {
            let kernel = recorded(&m.universe, "sweep", move |args, memory| {
                for at in (0..1024).step_by(step as usize) {
                    memory.write(args.u64(0) + at, &vec![1; step as usize]);
                }
            });
            let (first, second) = (malloc(512).unwrap(), malloc(512).unwrap());
            assert_eq!(second, first + 512, "side by side");
            launch(kernel, &[first, 0], m.a).unwrap();
        })
    };
    assert_eq!(program(4), []);
    assert_eq!(program(1024), [ReportKind::OutOfBounds]);
}

#[test]
fn a_finding_names_the_thread_and_the_line_of_the_later_access() {
    for schedule in schedules() {
        let m = machine(schedule);
        let kernel = recorded(&m.universe, "threads", |args, memory| {
            for thread in 0..16u64 {
                memory.at(KernelSite::new(3, thread as u32, 12));
                memory.write(args.u64(0) + 4 * thread, &[1; 4]);
            }
        });
        launch(kernel, &[m.block, 0], m.a).unwrap();
        launch(kernel, &[m.block + 20, 0], m.b).unwrap();
        let reports = reports(&m);
        // Beyond the block: the first thread that leaves it.
        assert_eq!(reports[0].kind, ReportKind::OutOfBounds);
        assert_eq!(reports[0].address, m.block + 64);
        assert_eq!(reports[0].second.place, Some(KernelSite::new(3, 11, 12)), "{schedule:?}");
        assert_eq!(reports[1].kind, ReportKind::WriteAfterWrite);
        assert_eq!(reports[1].address, m.block + 20);
        let (first, second) = (reports[1].first.as_ref().unwrap(), &reports[1].second);
        assert_eq!((&*first.operation, first.place), ("kernel threads", None));
        assert_eq!(second.place, Some(KernelSite::new(3, 0, 12)), "{schedule:?}");
        assert!(second.to_string().contains("line 12, block 3, thread 0"), "{second}");
    }
}

#[test]
fn findings_behind_a_launch_that_has_not_run_come_when_it_has() {
    let m = machine((Policy::Lazy, 0));
    let c = gpu::stream();
    launch(m.kernel, &[0, m.block], m.a).unwrap();
    let other = malloc(64).unwrap();
    fill(other, 1, 64, m.b).unwrap();
    fill(other, 2, 64, c).unwrap();
    assert!(m.universe.reports().is_empty());
    gpu::sync(m.a).unwrap();
    assert_eq!(gpu::kinds(&m.universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn a_panic_of_a_recorded_kernel_is_a_report_and_what_it_touched_counts() {
    let program = || {
        findings(|m| {
            let kernel = recorded(&m.universe, "faulty", |args, memory| {
                memory.write(args.u64(0), &[1]);
                panic!("as planned");
            });
            launch(kernel, &[m.block, 0], m.a).unwrap();
            fill(m.block, 2, 1, m.b).unwrap();
        })
    };
    assert_eq!(program(), [ReportKind::KernelPanicked, ReportKind::WriteAfterWrite]);
}

#[test]
fn a_launch_that_too_many_checks_wait_for_runs() {
    let m = machine((Policy::Lazy, 0));
    launch(m.kernel, &[0, m.block], m.a).unwrap();
    let others = malloc(64).unwrap();
    fill(m.block, 3, 64, m.b).unwrap();
    for _ in 0..70_000 {
        fill(others, 1, 64, m.b).unwrap();
    }
    assert_eq!(gpu::kinds(&m.universe), [ReportKind::WriteAfterWrite]);
    free(others).unwrap();
}

#[test]
fn a_kernel_that_cannot_run_as_ptx_runs_the_fallback_whose_footprint_is_recorded() {
    for schedule in schedules() {
        let m = machine(schedule);
        let text = gpu::ptx("unknown", &["u64"; 2]).replace("ret;", "frobnicate;");
        let unknown = gpu::kernel(&text, "unknown").unwrap();
        assert_eq!(gpu::code(launch(unknown, &[0, m.block], m.a)), Some(801));
        m.universe.register_fallback(|name, args, memory| {
            assert_eq!(name, "unknown");
            memory.write(args.u64(1), &[4; 64]);
        });
        launch(unknown, &[0, m.block], m.a).unwrap();
        // A registered body comes first.
        launch(m.kernel, &[m.block, 0], m.a).unwrap();
        gpu::sync(m.a).unwrap();
        assert_eq!(gpu::read(m.block, 64).unwrap(), [4; 64]);
        assert_eq!(kinds(&m), []);
        launch(unknown, &[0, m.block], m.a).unwrap();
        fill(m.block, 1, 64, m.b).unwrap();
        assert_eq!(kinds(&m), [ReportKind::WriteAfterWrite], "{schedule:?}");
    }
}

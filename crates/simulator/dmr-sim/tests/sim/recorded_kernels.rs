//! Kernels whose accesses the simulator records: plain and atomic ones, single bytes, places; and
//! when findings appear.

use crate::support::gpu::{self, copy, fill, free, launch, malloc, malloc_async, order};
use crate::support::late::{findings, kinds, machine, recorded, reports, schedules};
use cudarc::driver::sys::CUfunction;
use dmr_sim::{Footprint, KernelSite, Policy, ReportKind, Universe};

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
fn an_atomic_operation_on_more_bytes_than_the_one_before_is_recorded_whole() {
    let program = |waits: bool| {
        findings(|m| {
            let kernel = recorded(&m.universe, "wider", |args, memory| {
                memory.update(args.u64(0), &mut [0; 4], |word| word[0] += 1);
                memory.update(args.u64(0), &mut [0; 8], |words| words[4] += 1);
            });
            launch(kernel, &[m.block, 0], m.a).unwrap();
            if waits {
                order(m.a, m.b);
            }
            let target = malloc(4).unwrap();
            copy(target, m.block + 4, 4, m.b).unwrap();
        })
    };
    assert_eq!(program(true), []);
    assert_eq!(program(false), [ReportKind::ReadAfterWrite]);
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
            let [first, second] = [(); 2].map(|()| malloc_async(512, m.a).unwrap());
            assert_eq!(second, first + 512, "side by side in a pool");
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
        let first = reports[1].first.as_ref().unwrap();
        let second = &reports[1].second;
        assert_eq!((&*first.operation, first.place), ("kernel threads", None));
        assert_eq!(second.place, Some(KernelSite::new(3, 0, 12)), "{schedule:?}");
        assert!(second.to_string().contains("line 12, block 3, thread 0"), "{second}");
    }
}

#[test]
fn the_reports_run_a_launch_that_findings_wait_for_and_no_other_work() {
    let m = machine((Policy::Lazy, 0));
    let c = gpu::stream();
    launch(m.kernel, &[0, m.block], m.a).unwrap();
    let other = malloc(64).unwrap();
    fill(other, 1, 64, m.b).unwrap();
    fill(other, 2, 64, c).unwrap();
    assert_eq!(gpu::kinds(&m.universe), [ReportKind::WriteAfterWrite]);
    assert!(gpu::query(m.a), "the launch has run");
    assert!(!gpu::query(m.b) && !gpu::query(c), "the fills have not");
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

//! Kernels without a registered body run as PTX: their bytes, races to the byte with thread and
//! line, accesses out of bounds.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{self, Gpu, copy, fill, launch_threads, malloc, malloc_async, order};
use cudarc::driver::sys::CUfunction;
use dmr_sim::{Policy, Report, ReportKind, Universe};

/// `out[i] = in[i] + 1` for each thread of a grid, and `count += 1` by an atomic operation.
const TEXT: &str = r#".version 8.0
.target sm_80
.address_size 64

.file 1 "increment.cu"
.global .align 4 .u32 step = 1;

.visible .entry increment(.param .u64 out, .param .u64 in, .param .u64 n)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [in];
    ld.param.u64 %d6, [n];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    cvt.u64.u32 %d7, %r4;
    setp.ge.u64 %p, %d7, %d6;
    @%p bra DONE;
    mul.wide.u32 %d3, %r4, 4;
    add.s64 %d4, %d2, %d3;
    add.s64 %d5, %d1, %d3;
    ld.global.u32 %r5, [%d4];
    ld.global.u32 %r6, [step];
    add.s32 %r5, %r5, %r6;
    .loc 1 42 7
    st.global.u32 [%d5], %r5;
DONE:
    ret;
}

.visible .entry count(.param .u64 word)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [word];
    red.global.add.u32 [%d1], 1;
    ret;
}
"#;

/// The line of the store in the text.
const STORE: u32 = 30;
const N: u64 = 100;

fn schedules() -> impl Iterator<Item = (Policy, u64)> {
    let random = (0..10).map(|seed| (Policy::Random, seed));
    [(Policy::Eager, 0), (Policy::Lazy, 0)].into_iter().chain(random)
}

fn machine((policy, seed): (Policy, u64)) -> (Universe, Gpu) {
    let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// Launches 4 blocks of 32 threads.
fn launch(kernel: CUfunction, arguments: &[u64], stream: cudarc::driver::sys::CUstream) {
    launch_threads(kernel, 4, 32, arguments, stream).unwrap();
}

fn reports(universe: &Universe) -> Vec<Report> {
    let mut reports = universe.finish().reports;
    reports.retain(|report| report.kind != ReportKind::Leak);
    reports
}

#[test]
fn a_kernel_without_a_body_runs_as_ptx() {
    for schedule in schedules() {
        let (universe, _gpu) = machine(schedule);
        let increment = gpu::kernel(TEXT, "increment").unwrap();
        let count = gpu::kernel(TEXT, "count").unwrap();
        let stream = gpu::stream();
        let out = malloc(400).unwrap();
        let input = malloc(400).unwrap();
        let word = malloc(4).unwrap();
        fill(input, 1, 400, stream).unwrap();
        fill(word, 0, 4, stream).unwrap();
        launch(increment, &[out, input, N], stream);
        launch(count, &[word], stream);
        gpu::sync(stream).unwrap();
        let values = gpu::read(out, 400).unwrap();
        assert!(values.chunks(4).all(|value| value == [2, 1, 1, 1]), "{values:?}");
        assert_eq!(gpu::read(word, 4).unwrap(), [128, 0, 0, 0]);
        assert_eq!(reports(&universe).len(), 0, "{schedule:?}");
    }
}

#[test]
fn a_race_of_two_kernels_names_the_thread_and_the_line() {
    for schedule in schedules() {
        for ordered in [false, true] {
            let (universe, _gpu) = machine(schedule);
            let increment = gpu::kernel(TEXT, "increment").unwrap();
            let a = gpu::stream();
            let b = gpu::stream();
            let x = malloc(400).unwrap();
            let y = malloc(400).unwrap();
            fill(x, 1, 400, a).unwrap();
            fill(y, 1, 400, a).unwrap();
            gpu::sync(a).unwrap();
            launch(increment, &[y, x, N], a);
            if ordered {
                order(a, b);
            }
            // Writes from the 40th element on what the other reads.
            launch(increment, &[x + 160, y, 60], b);
            let reports = reports(&universe);
            if ordered {
                assert!(reports.is_empty(), "{schedule:?}: {reports:?}");
                continue;
            }
            let kinds: Vec<_> = reports.iter().map(|report| report.kind).collect();
            assert_eq!(kinds, [ReportKind::ReadAfterWrite, ReportKind::WriteAfterRead]);
            let second = &reports[1].second;
            let place = second.place.unwrap();
            assert_eq!((place.block(), place.thread(), place.line()), (0, 0, STORE));
            assert_eq!(second.source.as_deref(), Some("increment.cu:42"), "{second}");
            assert_eq!(reports[1].address, x + 160);
        }
    }
}

#[test]
fn an_overrun_by_one_element_is_found_with_thread_and_line() {
    for n in [100, 101] {
        let (universe, _gpu) = machine((Policy::Random, 1));
        let increment = gpu::kernel(TEXT, "increment").unwrap();
        let stream = gpu::stream();
        let out = malloc(400).unwrap();
        let input = malloc(404).unwrap();
        fill(input, 1, 404, stream).unwrap();
        launch(increment, &[out, input, n], stream);
        gpu::sync(stream).unwrap();
        let reports = reports(&universe);
        assert_eq!(reports.len(), (n - 100) as usize, "{reports:?}");
        for report in reports {
            assert_eq!((report.kind, report.address), (ReportKind::OutOfBounds, out + 400));
            let place = report.second.place.unwrap();
            assert_eq!((place.block(), place.thread(), place.line()), (3, 4, STORE));
        }
        let values = gpu::read(out, 400).unwrap();
        assert!(values.chunks(4).all(|value| value == [2, 1, 1, 1]), "the other threads go on");
    }
}

/// Allocations whose sizes are multiples of the alignment have a gap between them, too.
#[test]
fn an_overrun_of_a_full_allocation_is_not_one_of_its_neighbour() {
    let bytes = 512; // 128 elements
    for (first, found) in [(0, 0), (-4, 1), (4, 1)] {
        let (universe, _gpu) = machine((Policy::Random, 1));
        let increment = gpu::kernel(TEXT, "increment").unwrap();
        let stream = gpu::stream();
        let [_before, out, _after] = [(); 3].map(|()| malloc(bytes).unwrap());
        let input = malloc(bytes).unwrap();
        fill(input, 1, bytes, stream).unwrap();
        launch(increment, &[out.wrapping_add_signed(first), input, 128], stream);
        gpu::sync(stream).unwrap();
        let reports = reports(&universe);
        assert_eq!(reports.len(), found, "{first}: {reports:?}");
        assert!(reports.iter().all(|report| report.kind == ReportKind::OutOfBounds), "{reports:?}");
    }
}

#[test]
fn atomic_operations_of_two_kernels_do_not_race() {
    for schedule in schedules() {
        let (universe, _gpu) = machine(schedule);
        let count = gpu::kernel(TEXT, "count").unwrap();
        let a = gpu::stream();
        let b = gpu::stream();
        let word = malloc(4).unwrap();
        let target = malloc(4).unwrap();
        fill(word, 0, 4, a).unwrap();
        gpu::sync(a).unwrap();
        launch(count, &[word], a);
        launch(count, &[word], b);
        order(b, a);
        copy(target, word, 4, a).unwrap();
        gpu::sync(a).unwrap();
        assert_eq!(gpu::read(target, 4).unwrap(), [0, 1, 0, 0]);
        assert!(reports(&universe).is_empty());
    }
}

#[test]
fn relaxed_stores_of_two_kernels_do_not_race_and_plain_ones_do() {
    for (store, races) in [("st.relaxed.gpu", false), ("st.volatile", false), ("st", true)] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry publish(.param .u64 word)\n{{\n\
             .reg .b64 %d;\nld.param.u64 %d, [word];\n{store}.global.u32 [%d], 1;\nret;\n}}\n"
        );
        let (universe, _gpu) = machine((Policy::Random, 2));
        let publish = gpu::kernel(&text, "publish").unwrap();
        let word = malloc(4).unwrap();
        for stream in [gpu::stream(), gpu::stream()] {
            launch_threads(publish, 1, 1, &[word], stream).unwrap();
        }
        let kinds: Vec<_> = reports(&universe).iter().map(|report| report.kind).collect();
        let expected = if races { &[ReportKind::WriteAfterWrite][..] } else { &[] };
        assert_eq!(kinds, expected, "{store}");
    }
}

#[test]
fn a_kernel_that_traps_makes_the_device_fault_and_is_reported() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry stop() { trap; }\n";
    let (universe, _gpu) = machine((Policy::Lazy, 0));
    let stop = gpu::kernel(text, "stop").unwrap();
    let stream = gpu::stream();
    launch(stop, &[], stream);
    assert_eq!(gpu::code(gpu::sync(stream)), Some(719));
    assert_eq!(gpu::code(malloc(4)), Some(719));
    let reports = reports(&universe);
    assert_eq!(reports[0].kind, ReportKind::KernelFault);
    assert!(reports[0].second.operation.contains("trap"), "{}", reports[0]);
}

#[test]
fn accesses_at_the_end_of_all_addresses_are_findings() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry end(.param .u64 n) {\n\
         .reg .b32 %r;\n.reg .b64 %d;\nmov.u32 %r, %tid.x;\nmad.wide.u32 %d, %r, 5000, -4;\n\
         st.global.u32 [%d], 1;\nret;\n}\n";
    let (universe, _gpu) = machine((Policy::Lazy, 0));
    let end = gpu::kernel(text, "end").unwrap();
    let stream = gpu::stream();
    launch_threads(end, 1, 64, &[0], stream).unwrap();
    let _ = gpu::sync(stream);
    let reports = reports(&universe);
    assert!(!reports.is_empty());
    assert!(reports.iter().all(|it| it.kind == ReportKind::OutOfBounds), "{reports:?}");
}

/// Copies 64 bytes from shared to global memory, or back, as one access of one thread.
const BULK: &str = r#".version 8.4
.target sm_90
.address_size 64
.visible .entry save(.param .u64 at)
{
    .shared .align 16 .b8 all[64];
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    mov.u32 %r1, all;
    mov.u32 %r2, 0;
fill:
    st.shared.u32 [%r1], 7;
    add.s32 %r1, %r1, 4;
    add.s32 %r2, %r2, 4;
    .reg .pred %p;
    setp.lt.s32 %p, %r2, 64;
    @%p bra fill;
    mov.u32 %r1, all;
    cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 64;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    ret;
}
"#;

#[test]
fn a_copy_of_a_lane_that_reaches_from_one_block_into_the_next_is_out_of_bounds() {
    for (offset, expected) in [(448, 0), (480, 1)] {
        let (universe, _gpu) = machine((Policy::Eager, 0));
        let save = gpu::kernel(BULK, "save").unwrap();
        let stream = gpu::stream();
        let [first, second] = [(); 2].map(|()| malloc_async(512, stream).unwrap());
        assert_eq!(first + 512, second, "neighbours in a pool");
        launch_threads(save, 1, 1, &[first + offset], stream).unwrap();
        gpu::sync(stream).unwrap();
        let found = reports(&universe);
        assert_eq!(found.len(), expected, "{found:?}");
        assert!(found.iter().all(|report| report.kind == ReportKind::OutOfBounds), "{found:?}");
    }
}

#[test]
fn a_kernel_at_the_end_of_the_address_space_is_a_finding() {
    let (universe, _gpu) = machine((Policy::Eager, 0));
    let increment = gpu::kernel(TEXT, "increment").unwrap();
    let stream = gpu::stream();
    let block = malloc(400).unwrap();
    fill(block, 1, 400, stream).unwrap();
    // The last of the lanes are at the beginning.
    launch(increment, &[u64::MAX - 63, block, 100], stream);
    launch(increment, &[block, u64::MAX - 63, 100], stream);
    let _ = gpu::sync(stream);
    let found = reports(&universe);
    assert!(!found.is_empty());
    assert!(found.iter().all(|report| report.kind == ReportKind::OutOfBounds), "{found:?}");
}

/// Kernels that store an unwritten word of shared memory in `out[0]`; `own` copies `out[0]` to
/// `out[2]`.
const UNDEFINED: &str = ".version 8.0\n.target sm_80\n.address_size 64
    .visible .entry store(.param .u64 out) {
        .reg .b32 %r<4>; .reg .b64 %d; .shared .u32 tile[2]; ld.param.u64 %d, [out];
        ld.shared.u32 %r1, [tile]; st.global.u32 [%d], %r1; st.global.u32 [%d+4], 7; ret; }
    .visible .entry again(.param .u64 out) {
        .reg .b32 %r<4>; .reg .b64 %d; .shared .u32 tile[2]; ld.param.u64 %d, [out];
        ld.shared.u32 %r1, [tile]; st.global.u32 [%d], %r1; st.global.u32 [%d], 8; ret; }
    .visible .entry own(.param .u64 out) {
        .reg .b32 %r<4>; .reg .b64 %d; .shared .u32 tile[2]; ld.param.u64 %d, [out];
        ld.shared.u32 %r1, [tile]; st.global.u32 [%d], %r1; ld.global.u32 %r2, [%d]; st.global.u32 [%d+8], %r2; ret; }
    .visible .entry read(.param .u64 out) {
        .reg .b32 %r<4>; .reg .b64 %d; ld.param.u64 %d, [out]; ld.global.u32 %r1, [%d]; ret; }";

#[test]
fn a_store_of_a_value_that_no_thread_has_written_is_found_when_it_is_read() {
    let kinds = |kernels: &[&str], offset: u64, schedule| {
        let (universe, _gpu) = machine(schedule);
        let stream = gpu::stream();
        let out = malloc(16).unwrap();
        for name in kernels {
            let kernel = gpu::kernel(UNDEFINED, name).unwrap();
            launch_threads(kernel, 1, 1, &[out], stream).unwrap();
        }
        gpu::sync(stream).unwrap();
        let _ = gpu::read(out + offset, 4).unwrap();
        reports(&universe).iter().map(|report| report.kind).collect::<Vec<_>>()
    };
    for schedule in schedules() {
        let found = [ReportKind::Uninitialised];
        assert_eq!(kinds(&["store"], 0, schedule), found);
        assert_eq!(kinds(&["store", "read"], 4, schedule), found);
        assert_eq!(kinds(&["own"], 8, schedule), found);
        for clean in [kinds(&["store"], 4, schedule), kinds(&["again", "read"], 0, schedule)] {
            assert_eq!(clean, []);
        }
        assert_eq!(kinds(&["store", "again", "read"], 0, schedule), []);
    }
}

#[test]
fn a_read_of_a_value_that_no_thread_has_written_names_the_store() {
    for schedule in schedules() {
        let (universe, _gpu) = machine(schedule);
        let stream = gpu::stream();
        let out = malloc(16).unwrap();
        let store = gpu::kernel(UNDEFINED, "store").unwrap();
        fill(out, 1, 16, stream).unwrap();
        launch_threads(store, 1, 1, &[out], stream).unwrap();
        gpu::sync(stream).unwrap();
        let _ = gpu::read(out, 16).unwrap();
        let _ = gpu::read(out + 2, 2).unwrap();
        let found = reports(&universe);
        let first = |report: &Report| report.first.clone().unwrap();
        let [whole, part] = &found[..] else { panic!("{found:?}") };
        let line =
            UNDEFINED.lines().position(|line| line.contains("[%d], %r1")).unwrap() as u32 + 1;
        assert_eq!(*first(whole).operation, *"kernel store");
        assert_eq!((first(whole).stream, first(whole).op), (Some(1), 2));
        assert_eq!(first(whole).place.unwrap().line(), line);
        assert_eq!((whole.address, whole.bytes), (out, 4));
        assert!(whole.to_string().contains("stored, but never written"), "{whole}");
        // The store of these bytes is that of the first byte of the word, which is not known any
        // more.
        assert_eq!((&*first(part).operation, first(part).place), ("kernel store", None));
    }
}

//! Access to mapped memory: rights, holes, and unmapping while work uses it.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{
    self, Gpu, code, copy, fill, kernel, kinds, launch, machine, order, ptx, sync,
};
use crate::support::virtual_memory::{
    NONE, PAGE, READ, READ_WRITE, access, create, map, mapped, reserve, set_access, take_back,
    unmap,
};
use cudarc::driver::sys;
use dmr_sim::{Footprint, Policy, ReportKind, Universe};

const INVALID: Option<i32> = Some(1);
const ILLEGAL_ADDRESS: Option<i32> = Some(700);

fn lazy() -> (Universe, Gpu) {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// Registers a kernel that reads, and one that writes, `arg 1` bytes at `arg 0`.
fn kernels(
    universe: &Universe,
) -> (cudarc::driver::sys::CUfunction, cudarc::driver::sys::CUfunction) {
    universe.register_kernel(
        "reader",
        |args| Footprint::new().reads(args.u64(0), args.u64(1)),
        |args, memory| {
            let mut bytes = vec![0; args.u64(1) as usize];
            memory.read(args.u64(0), &mut bytes);
        },
    );
    universe.register_kernel(
        "writer",
        |args| Footprint::new().writes(args.u64(0), args.u64(1)),
        |args, memory| memory.fill(args.u64(0), args.u64(1), 9),
    );
    let find = |name| kernel(&ptx(name, &["u64", "u64"]), name).unwrap();
    (find("reader"), find("writer"))
}

#[test]
fn unmapping_under_work_is_found_and_names_both_sides() {
    let (universe, gpu) = lazy();
    let a = gpu::stream();
    let (at, _) = mapped(2 * PAGE, gpu.device);
    {
        let _label = dmr_sim::label("the fill");
        fill(at + 100, 1, 50, a).unwrap();
    }
    let _label = dmr_sim::label("the unmap");
    unmap(at, 2 * PAGE).unwrap();
    let reports = universe.reports();
    assert_eq!(kinds(&universe), [ReportKind::UnmapBeforeUse]);
    assert!(reports[0].kind.is_race());
    assert_eq!((reports[0].address, reports[0].bytes), (at + 100, 50));
    let first = reports[0].first.as_ref().unwrap();
    assert_eq!((&*first.operation, first.label.as_deref()), ("memset", Some("the fill")));
    let second = &reports[0].second;
    assert_eq!((&*second.operation, second.label.as_deref()), ("unmap", Some("the unmap")));
    // The fill has not run: when it runs, there is no mapping.
    assert_eq!(code(sync(a)), ILLEGAL_ADDRESS);
    assert_eq!(code(sync(gpu::LEGACY)), ILLEGAL_ADDRESS, "for good");
}

#[test]
fn unmapping_is_correct_once_the_host_has_found_the_work_complete() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let block = mapped(PAGE, gpu.device);
    fill(block.0, 1, PAGE, a).unwrap();
    order(a, b);
    gpu::record(event, b).unwrap();
    while !gpu::query_event(event) {}
    take_back(block, PAGE);
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn each_streams_latest_use_counts() {
    for forgotten in 0..3 {
        let (universe, gpu) = lazy();
        let streams = [(); 3].map(|()| gpu::stream());
        let (at, _) = mapped(PAGE, gpu.device);
        fill(at, 1, PAGE, streams[0]).unwrap();
        order(streams[0], streams[1]);
        order(streams[0], streams[2]);
        let target = gpu::malloc(64).unwrap();
        for stream in [streams[1], streams[2]] {
            copy(target, at, 32, stream).unwrap();
            order(streams[1], streams[2]);
        }
        fill(target, 1, 64, streams[2]).unwrap();
        order(streams[2], streams[0]);
        fill(at, 1, 1, streams[0]).unwrap();
        let waited: Vec<_> = (0..3).filter(|i| *i != forgotten).map(|i| streams[i]).collect();
        for stream in waited {
            sync(stream).unwrap();
        }
        unmap(at, PAGE).unwrap();
        // Stream 0 comes after the others: it alone must be waited for.
        let expected: &[ReportKind] =
            if forgotten == 0 { &[ReportKind::UnmapBeforeUse] } else { &[] };
        assert_eq!(kinds(&universe), expected, "{forgotten}");
    }
}

#[test]
fn a_mapping_may_end_while_the_same_memory_is_used_through_another() {
    let (universe, gpu) = lazy();
    let a = gpu::stream();
    let (first, memory) = mapped(PAGE, gpu.device);
    let second = reserve(PAGE).unwrap();
    map(second, PAGE, memory).unwrap();
    set_access(second, PAGE, gpu.device, READ_WRITE).unwrap();
    fill(second, 6, PAGE, a).unwrap();
    unmap(first, PAGE).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(second, 1).unwrap(), [6]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn rights_are_not_taken_from_work_either() {
    for (left, writing, found) in
        [(NONE, false, true), (NONE, true, true), (READ, true, true), (READ, false, false)]
    {
        let (universe, gpu) = lazy();
        let a = gpu::stream();
        let (at, _) = mapped(PAGE, gpu.device);
        fill(at, 1, PAGE, a).unwrap();
        sync(a).unwrap();
        let target = gpu::malloc(64).unwrap();
        if writing {
            fill(at, 2, 64, a).unwrap();
        }
        copy(target, at, 64, a).unwrap(); // a read after a write does not hide it
        set_access(at, PAGE, gpu.device, left).unwrap();
        let expected: &[ReportKind] = if found { &[ReportKind::UnmapBeforeUse] } else { &[] };
        assert_eq!(kinds(&universe), expected, "{left} {writing}");
        assert_eq!(code(sync(a)), if found { ILLEGAL_ADDRESS } else { None });
    }
}

#[test]
fn memory_without_rights_is_not_touched() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let (reader, writer) = kernels(&universe);
    let (at, _) = mapped(PAGE, gpu.device);
    assert_eq!(access(at, gpu.device).unwrap(), u64::from(READ_WRITE));
    fill(at, 1, PAGE, a).unwrap();
    sync(a).unwrap();
    set_access(at, PAGE, gpu.device, READ).unwrap();
    assert_eq!(access(at + 7, gpu.device).unwrap(), u64::from(READ));
    launch(reader, &[at, 64], a).unwrap();
    sync(a).unwrap();
    assert_eq!(code(fill(at, 1, 64, a)), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::NoAccess]);
    set_access(at, PAGE, gpu.device, NONE).unwrap();
    assert_eq!(access(at, gpu.device).unwrap(), 0);
    assert_eq!(code(gpu::read(at, 64)), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::NoAccess; 2]);
    assert_eq!(universe.reports()[1].first.as_ref().unwrap().operation.as_ref(), "map");
    launch(writer, &[at, 64], a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::NoAccess; 3]);
    assert_eq!(code(sync(a)), ILLEGAL_ADDRESS);
    assert_eq!(code(gpu::malloc(64)), ILLEGAL_ADDRESS);
}

#[test]
fn a_fresh_mapping_has_no_rights() {
    let (universe, gpu) = machine();
    let at = reserve(PAGE).unwrap();
    map(at, PAGE, create(PAGE, gpu.device).unwrap()).unwrap();
    assert_eq!(access(at, gpu.device).unwrap(), 0);
    assert_eq!(code(fill(at, 1, 64, gpu::LEGACY)), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::NoAccess]);
}

#[test]
fn a_kernel_in_a_hole_faults_the_device_when_it_runs() {
    for hole in ["never mapped", "unmapped", "behind", "in between"] {
        let (universe, gpu) = lazy();
        let a = gpu::stream();
        let (_, writer) = kernels(&universe);
        let at = reserve(3 * PAGE).unwrap();
        let page = PAGE as u64;
        for start in [at, at + 2 * page] {
            map(start, PAGE, create(PAGE, gpu.device).unwrap()).unwrap();
            set_access(start, PAGE, gpu.device, READ_WRITE).unwrap();
        }
        let (from, bytes, expected) = match hole {
            "never mapped" => (at + page, 64, ReportKind::OutOfBounds),
            "unmapped" => {
                unmap(at, PAGE).unwrap();
                (at, 64, ReportKind::UseAfterFree)
            }
            "behind" => (at + 3 * page - 32, 64, ReportKind::OutOfBounds),
            _ => (at, 3 * page, ReportKind::OutOfBounds),
        };
        launch(writer, &[from, bytes], a).unwrap();
        assert_eq!(kinds(&universe), [expected], "{hole}");
        let report = &universe.reports()[0];
        match hole {
            "unmapped" => {
                assert_eq!(report.first.as_ref().unwrap().operation.as_ref(), "unmap");
                assert!(report.to_string().contains("reserved addresses"), "{report}");
            }
            "behind" => assert_eq!((report.address, report.bytes), (at + 3 * page, 32)),
            "in between" => assert_eq!(report.address, at + page),
            _ => assert_eq!((report.address, report.bytes), (at + page, 64)),
        }
        assert!(!gpu::query(a), "it has not run yet");
        assert_eq!(code(sync(a)), ILLEGAL_ADDRESS, "{hole}");
        assert_eq!(code(fill(at, 1, 1, a)), ILLEGAL_ADDRESS, "{hole}: for good");
        let _ = universe.finish();
    }
}

#[test]
fn a_fault_is_its_own_devices() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    let (_, writer) = kernels(&universe);
    let a = gpu::stream();
    let hole = reserve(PAGE).unwrap();
    launch(writer, &[hole, 64], a).unwrap();
    assert_eq!(code(sync(a)), ILLEGAL_ADDRESS);
    second.bind();
    gpu::free(gpu::malloc(64).unwrap()).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
}

#[test]
fn a_copy_into_a_hole_is_refused_and_does_nothing() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let at = reserve(2 * PAGE).unwrap();
    map(at, PAGE, create(PAGE, gpu.device).unwrap()).unwrap();
    set_access(at, PAGE, gpu.device, READ_WRITE).unwrap();
    fill(at, 1, PAGE, a).unwrap();
    assert_eq!(code(fill(at + PAGE as u64 - 1, 2, 2, a)), INVALID);
    assert_eq!(code(gpu::upload(at + PAGE as u64, &[1; 8], a)), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds; 2]);
    sync(a).unwrap();
    assert_eq!(gpu::read(at + PAGE as u64 - 1, 1).unwrap(), [1]);
}

#[test]
fn a_peer_needs_rights_of_its_own() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    let (at, _) = mapped(PAGE, first.device);
    second.bind();
    let (reader, writer) = kernels(&universe);
    let b = gpu::stream();
    // SAFETY: the context is live.
    unsafe { cudarc::driver::sys::cuCtxEnablePeerAccess(first.context, 0) }.result().unwrap();
    set_access(at, PAGE, second.device, READ_WRITE).unwrap();
    launch(writer, &[at, 64], b).unwrap();
    sync(b).unwrap();
    set_access(at, PAGE, second.device, READ).unwrap();
    launch(reader, &[at, 64], b).unwrap();
    sync(b).unwrap();
    assert_eq!(access(at, first.device).unwrap(), u64::from(READ_WRITE));
    assert_eq!(kinds(&universe), []);
    set_access(at, PAGE, second.device, NONE).unwrap();
    launch(reader, &[at, 64], b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::NoAccess], "enabling peer access is not enough");
    assert_eq!(universe.reports()[0].device, Some(0));
    assert_eq!(code(sync(b)), ILLEGAL_ADDRESS);
    first.bind();
    let a = gpu::stream();
    fill(at, 1, 64, a).unwrap();
    sync(a).unwrap();
}

#[test]
fn a_copy_between_devices_reaches_what_the_memorys_own_device_may_touch() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    let (at, _) = mapped(PAGE, first.device);
    second.bind();
    let b = gpu::stream();
    let there = gpu::malloc(64).unwrap();
    fill(there, 1, 64, b).unwrap();
    // SAFETY: the simulated driver checks its arguments.
    let copy_to_peer = || unsafe {
        sys::cuMemcpyPeerAsync(at, first.context, there, second.context, 64, b).result()
    };
    copy_to_peer().unwrap();
    sync(b).unwrap();
    assert_eq!(gpu::read(at, 64).unwrap(), [1; 64]);
    set_access(at, PAGE, first.device, NONE).unwrap();
    assert_eq!(code(copy_to_peer()), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::NoAccess]);
}

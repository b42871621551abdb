//! Waits for words that are submitted before the write, or that the host, a kernel or a reused
//! address ends: what they order.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{
    self, Gpu, Pinned, copy, fill, free, kernel, kinds, launch, machine, malloc, order, ptx,
    record, sync, wait,
};
use crate::support::virtual_memory::{
    EQ, GEQ, PAGE, READ_WRITE, batch, map, mapped, reserve, set_access, wait32, write32,
};
use crate::support::words::{RACE, program, schedules, with, word};
use dmr_sim::{Footprint, HostOrder, Policy, ReportKind, Universe};

#[test]
fn a_wait_may_be_submitted_before_the_write() {
    for schedule in schedules() {
        let (universe, _gpu) = with(schedule.0, schedule.1);
        let a = gpu::stream();
        let b = gpu::stream();
        let c = gpu::stream();
        let data = malloc(64).unwrap();
        let target = malloc(64).unwrap();
        let word = word();
        let event = gpu::event();
        let other = malloc(64).unwrap();
        wait32(b, word, 1, GEQ).unwrap();
        copy(target, data, 64, b).unwrap(); // of what is not written yet
        record(event, b).unwrap();
        wait(c, event).unwrap();
        copy(other, data, 64, c).unwrap(); // nor here
        fill(data, 7, 64, a).unwrap();
        write32(a, word, 1).unwrap();
        // The event of before, and what follows, are known to come after it now.
        let late = gpu::stream();
        wait(late, event).unwrap();
        copy(other, data, 32, c).unwrap();
        fill(data, 8, 1, late).unwrap();
        sync(c).unwrap();
        sync(late).unwrap();
        let found = kinds(&universe);
        assert_eq!(found, [ReportKind::WriteAfterRead], "{schedule:?}: only the last fill");
        assert_eq!(universe.reports()[0].bytes, 1);
        assert_eq!(gpu::read(target, 64).unwrap(), [7; 64], "{schedule:?}");
    }
}

#[test]
fn work_behind_a_resolved_wait_is_judged_again() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    let word = word();
    wait32(b, word, 1, GEQ).unwrap();
    write32(a, word, 1).unwrap();
    fill(data, 7, 64, a).unwrap(); // after the write
    copy(target, data, 64, b).unwrap();
    assert_eq!(kinds(&universe), RACE);
}

#[test]
fn what_the_wait_itself_holds_up_is_not_what_it_comes_after() {
    let (universe, _gpu) = with(Policy::Lazy, 0);
    let a = gpu::stream();
    let b = gpu::stream();
    let c = gpu::stream();
    let data = malloc(64).unwrap();
    let word = word();
    let event = gpu::event();
    wait32(a, word, 1, GEQ).unwrap();
    record(event, a).unwrap();
    fill(data, 1, 64, a).unwrap();
    write32(a, word, 1).unwrap();
    write32(b, word, 1).unwrap();
    wait(c, event).unwrap();
    fill(data, 2, 64, c).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn a_word_passes_on_what_its_writer_came_to_know_later() {
    let (universe, _gpu) = with(Policy::Lazy, 0);
    let a = gpu::stream();
    let b = gpu::stream();
    let c = gpu::stream();
    let data = malloc(64).unwrap();
    let first = word();
    let second = word();
    wait32(b, first, 1, GEQ).unwrap();
    write32(b, second, 1).unwrap();
    fill(data, 1, 64, a).unwrap();
    write32(a, first, 1).unwrap();
    wait32(c, second, 1, GEQ).unwrap();
    fill(data, 2, 64, c).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_host_wait_includes_the_work_that_the_stream_wait_came_after() {
    for late in [false, true] {
        let (universe, _gpu) = with(Policy::Lazy, 0);
        let a = gpu::stream();
        let b = gpu::stream();
        let data = malloc(64).unwrap();
        let word = word();
        if late {
            wait32(b, word, 1, GEQ).unwrap();
        }
        fill(data, 7, 64, a).unwrap();
        write32(a, word, 1).unwrap();
        if !late {
            wait32(b, word, 1, GEQ).unwrap();
        }
        sync(b).unwrap();
        fill(data, 8, 64, gpu::stream()).unwrap();
        assert_eq!(kinds(&universe), [], "{late}");
    }
}

#[test]
fn a_pinned_flag_that_the_host_resets_is_used_again() {
    let (universe, _gpu) = with(Policy::Lazy, 0);
    let a = gpu::stream();
    let b = gpu::stream();
    let mut pinned = Pinned::new(8);
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    for (round, writer, reader) in [(1, a, b), (2, b, a)] {
        fill(data, round, 64, writer).unwrap();
        write32(writer, pinned.address(), 1).unwrap();
        wait32(reader, pinned.address(), 1, EQ).unwrap();
        copy(target, data, 64, reader).unwrap();
        sync(reader).unwrap();
        pinned.bytes().fill(0);
    }
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_kernel_can_let_a_wait_go_on() {
    for (policy, first) in [(Policy::Lazy, true), (Policy::Eager, false), (Policy::Random, false)] {
        let (universe, _gpu) = with(policy, 0);
        let a = gpu::stream();
        let b = gpu::stream();
        let data = malloc(64).unwrap();
        let target = malloc(64).unwrap();
        let word = word();
        universe.register_kernel(
            "signal",
            |args| Footprint::new().writes(args.u64(0), 4),
            |args, memory| memory.write(args.u64(0), &1u32.to_le_bytes()),
        );
        let signal = kernel(&ptx("signal", &["u64"]), "signal").unwrap();
        let work = || {
            fill(data, 7, 64, a).unwrap();
            launch(signal, &[word], a).unwrap();
        };
        if first {
            work();
        }
        wait32(b, word, 1, GEQ).unwrap();
        copy(target, data, 64, b).unwrap();
        if !first {
            work();
        }
        sync(b).unwrap();
        assert_eq!(gpu::read(target, 64).unwrap(), [7; 64]);
        fill(data, 8, 64, gpu::stream()).unwrap();
        assert_eq!(kinds(&universe), [], "the host has waited for all of it");
        fill(data, 9, 64, gpu::stream()).unwrap();
        assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite], "and what it has not counts");
    }
}

#[test]
fn a_word_in_mapped_memory_is_one_word_at_all_its_addresses() {
    for schedule in schedules() {
        let (universe, gpu) = with(schedule.0, schedule.1);
        let a = gpu::stream();
        let b = gpu::stream();
        let (first, memory) = mapped(PAGE, gpu.device);
        let second = reserve(PAGE).unwrap();
        map(second, PAGE, memory).unwrap();
        set_access(second, PAGE, gpu.device, READ_WRITE).unwrap();
        fill(first, 0, PAGE, a).unwrap();
        sync(a).unwrap();
        fill(first + 4096, 1, 64, a).unwrap();
        write32(a, first, 1).unwrap();
        wait32(b, second, 1, EQ).unwrap();
        fill(second + 4096, 2, 64, b).unwrap();
        sync(b).unwrap();
        assert_eq!(gpu::read(first + 4096, 1).unwrap(), [2], "{schedule:?}");
        assert_eq!(kinds(&universe), [], "{schedule:?}");
        write32(a, first, 2).unwrap();
        fill(first + 8192, 1, 64, a).unwrap(); // after the write
        wait32(b, second, 2, EQ).unwrap();
        fill(second + 8192, 2, 64, b).unwrap();
        assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite], "{schedule:?}");
    }
}

#[test]
fn a_reused_address_has_forgotten_what_was_written_there() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let old = word();
    write32(a, old, 1).unwrap();
    free(old).unwrap();
    let new = malloc(8).unwrap();
    assert_eq!(old, new);
    wait32(b, new, 1, EQ).unwrap();
    fill(data, 1, 64, a).unwrap();
    write32(a, new, 1).unwrap();
    fill(data, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_batch_is_its_operations_in_order() {
    for schedule in schedules() {
        let found = program(schedule, |a, b, word| {
            // A barrier; then writes of 32 and 64 bits; then waits for both.
            batch(a, &[(6, 0, 0, 0), (2, word, 1, 0), (5, word, 1 << 32 | 2, 0)]).unwrap();
            batch(b, &[(4, word, 1 << 32, GEQ), (1, word, 2, EQ)]).unwrap();
        });
        assert_eq!(found, [], "{schedule:?}");
    }
}

#[test]
fn a_swallowed_write_or_wait_orders_nothing() {
    for call in ["cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"] {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let data = malloc(64).unwrap();
        let word = word();
        universe.swallow_nth(call, 2);
        for round in 1..=2 {
            fill(data, 7, 64, a).unwrap();
            write32(a, word, round).unwrap();
            wait32(b, word, round, GEQ).unwrap();
            if call.contains("Write") && round == 2 {
                write32(gpu::stream(), word, round).unwrap(); // of another stream
            }
            fill(data, 8, 64, b).unwrap();
            order(b, a);
        }
        assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite], "{call}");
        assert_eq!(universe.calls().count(call), 2 + u64::from(call.contains("Write")));
    }
}

#[test]
fn threads_learn_of_a_wait_as_of_any_work() {
    let universe = Universe::builder().host_order(HostOrder::PerThread).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let word = word();
    wait32(b, word, 1, GEQ).unwrap();
    fill(data, 7, 64, a).unwrap();
    write32(a, word, 1).unwrap();
    sync(b).unwrap();
    fill(data, 8, 64, gpu::stream()).unwrap();
    assert_eq!(kinds(&universe), []);
}

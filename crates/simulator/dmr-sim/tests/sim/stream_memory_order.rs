//! The order that words make between streams: which work comes after which once a wait has ended,
//! and what is a race still.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{
    self, Gpu, Pinned, copy, fill, free, kernel, kinds, launch, machine, malloc, order, ptx,
    record, sync, wait,
};
use crate::support::virtual_memory::{
    EQ, GEQ, PAGE, READ_WRITE, batch, map, mapped, reserve, set_access, wait32, wait64, write32,
    write64,
};
use cudarc::driver::sys::CUstream;
use dmr_sim::{Footprint, HostOrder, Policy, ReportKind, Universe};

fn with(policy: Policy, seed: u64) -> (Universe, Gpu) {
    let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// Each policy, the random one with some seeds.
fn schedules() -> impl Iterator<Item = (Policy, u64)> {
    [(Policy::Eager, 0), (Policy::Lazy, 0)]
        .into_iter()
        .chain((0..20).map(|seed| (Policy::Random, seed)))
}

/// A word of device memory that holds 0.
fn word() -> u64 {
    let at = malloc(8).unwrap();
    fill(at, 0, 8, gpu::LEGACY).unwrap();
    gpu::sync_context().unwrap();
    at
}

/// A program: a fill on one stream, a read on another, with a word in between as it says.
fn program(
    (policy, seed): (Policy, u64),
    between: impl FnOnce(CUstream, CUstream, u64),
) -> Vec<ReportKind> {
    let (universe, _gpu) = with(policy, seed);
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    let word = word();
    fill(data, 7, 64, a).unwrap();
    between(a, b, word);
    copy(target, data, 64, b).unwrap();
    sync(b).unwrap();
    let found = kinds(&universe);
    if found.is_empty() {
        assert_eq!(gpu::read(target, 64).unwrap(), [7; 64], "{policy:?} {seed}");
    }
    let _ = universe.finish();
    found
}

const RACE: &[ReportKind] = &[ReportKind::ReadAfterWrite];

#[test]
fn a_wait_for_a_written_word_orders_two_streams() {
    for schedule in schedules() {
        let found = program(schedule, |a, b, word| {
            write32(a, word, 1).unwrap();
            wait32(b, word, 1, GEQ).unwrap();
        });
        assert_eq!(found, [], "{schedule:?}");
        let found = program(schedule, |a, b, word| {
            write64(a, word, 5).unwrap();
            wait64(b, word, 5, EQ).unwrap();
        });
        assert_eq!(found, [], "{schedule:?}");
    }
}

#[test]
fn without_the_wait_or_with_another_word_there_is_a_race() {
    for schedule in schedules() {
        assert_eq!(program(schedule, |a, _, word| write32(a, word, 1).unwrap()), RACE);
        let found = program(schedule, |a, b, word| {
            write32(a, word, 1).unwrap();
            write32(gpu::stream(), word + 4, 1).unwrap();
            wait32(b, word + 4, 1, GEQ).unwrap();
        });
        assert_eq!(found, RACE, "{schedule:?}");
    }
}

#[test]
fn a_word_that_was_right_before_orders_nothing() {
    // Written before the work, so that the wait goes on without it.
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    let word = word();
    write32(a, word, 1).unwrap();
    fill(data, 7, 64, a).unwrap();
    wait32(b, word, 1, GEQ).unwrap();
    copy(target, data, 64, b).unwrap();
    assert_eq!(kinds(&universe), RACE);
}

#[test]
fn the_first_write_that_lets_the_wait_go_on_is_what_counts() {
    for (wanted, how, clean) in
        [(2, GEQ, true), (3, GEQ, true), (1, GEQ, false), (2, EQ, true), (1, EQ, false)]
    {
        let (universe, _gpu) = with(Policy::Eager, 0);
        let a = gpu::stream();
        let b = gpu::stream();
        let data = malloc(64).unwrap();
        let target = malloc(64).unwrap();
        let word = word();
        write64(a, word, 1).unwrap();
        fill(data, 7, 64, a).unwrap();
        for value in 2..=3 {
            write64(a, word, value).unwrap();
        }
        wait64(b, word, wanted, how).unwrap();
        copy(target, data, 64, b).unwrap();
        let expected: &[ReportKind] = if clean { &[] } else { RACE };
        assert_eq!(kinds(&universe), expected, "{wanted} {how}");
        let _ = universe.finish();
    }
}

#[test]
fn of_two_writers_neither_is_certain() {
    // Each of two streams fills its half and writes the same flag; the wait may go on after one.
    let (universe, _gpu) = machine();
    let streams = [(); 3].map(|()| gpu::stream());
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    let word = word();
    for (half, stream) in streams[..2].iter().enumerate() {
        fill(data + 32 * half as u64, 7, 32, *stream).unwrap();
        write32(*stream, word, 1).unwrap();
    }
    assert_eq!(kinds(&universe), [], "two writes of one word are no race");
    wait32(streams[2], word, 1, EQ).unwrap();
    copy(target, data, 64, streams[2]).unwrap();
    assert_eq!(kinds(&universe), RACE);
}

#[test]
fn a_flag_can_be_reset_and_used_again() {
    for schedule in schedules() {
        let (universe, _gpu) = with(schedule.0, schedule.1);
        let a = gpu::stream();
        let b = gpu::stream();
        let data = malloc(64).unwrap();
        let target = malloc(64).unwrap();
        let there = word();
        let back = word();
        for round in 0..4 {
            fill(data, round, 64, a).unwrap();
            write32(a, there, 1).unwrap();
            wait32(b, there, 1, EQ).unwrap();
            write32(b, there, 0).unwrap();
            copy(target, data, 64, b).unwrap();
            write32(b, back, u32::from(round) + 1).unwrap();
            wait32(a, back, u32::from(round) + 1, GEQ).unwrap();
        }
        sync(a).unwrap();
        assert_eq!(kinds(&universe), [], "{schedule:?}");
        assert_eq!(gpu::read(target, 64).unwrap(), [3; 64]);
    }
}

#[test]
fn a_flag_may_be_reset_by_a_memset() {
    for known in [true, false] {
        let (universe, _gpu) = with(Policy::Lazy, 0);
        let a = gpu::stream();
        let b = gpu::stream();
        let c = gpu::stream();
        let data = malloc(64).unwrap();
        let target = malloc(64).unwrap();
        let word = word();
        write32(a, word, 1).unwrap();
        wait32(b, word, 1, EQ).unwrap();
        fill(word, 0, 4, b).unwrap();
        order(b, a);
        if known {
            order(b, c);
        }
        fill(data, 7, 64, a).unwrap();
        write32(a, word, 1).unwrap();
        // Without knowing of the reset this may go on because of the first write.
        wait32(c, word, 1, EQ).unwrap();
        copy(target, data, 64, c).unwrap();
        if known {
            assert_eq!(kinds(&universe), []);
        } else {
            assert!(kinds(&universe).contains(&RACE[0]));
        }
        let _ = universe.finish();
    }
}

#[test]
fn a_forgotten_reply_in_the_ping_pong_is_found() {
    let (universe, _gpu) = with(Policy::Eager, 0);
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    let there = word();
    fill(data, 1, 64, a).unwrap();
    write32(a, there, 1).unwrap();
    wait32(b, there, 1, EQ).unwrap();
    copy(target, data, 64, b).unwrap();
    fill(data, 2, 64, a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterRead]);
}

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

//! The order that words make between streams: which work comes after which once a wait has ended,
//! and what is a race still.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{self, copy, fill, kinds, machine, malloc, order, sync};
use crate::support::virtual_memory::{EQ, GEQ, wait32, wait64, write32, write64};
use crate::support::words::{RACE, program, schedules, with, word};
use dmr_sim::{Policy, ReportKind};

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

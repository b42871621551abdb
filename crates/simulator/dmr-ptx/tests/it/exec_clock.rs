//! The clock that threads read: instructions, sleep and polls move it ahead.

use crate::exec_memory::{BASE, Buffer, run};

/// Returns the time that `body` takes, in nanoseconds.
fn time_of(body: &str) -> u32 {
    between_two_reads(body) - between_two_reads("")
}

fn between_two_reads(body: &str) -> u32 {
    let text = format!(
        ".visible .entry k(.param .u64 out) {{
        .reg .b32 %r<8>; .reg .b64 %out, %from, %to; .reg .pred %p;
        ld.param.u64 %out, [out];
        mov.u64 %from, %globaltimer;
        {body}
        mov.u64 %to, %globaltimer;
        sub.u64 %to, %to, %from; cvt.u32.u64 %r0, %to; st.global.u32 [%out], %r0; ret; }}"
    );
    let mut memory = Buffer::zeroed(1);
    run(&text, 1, 1, &[BASE], &mut memory).unwrap();
    memory.words()[0]
}

#[test]
fn an_instruction_takes_a_nanosecond() {
    assert_eq!(time_of("mov.u32 %r1, 5; add.u32 %r1, %r1, %r1;"), 2);
}

#[test]
fn a_sleep_takes_as_long_as_it_says_and_at_most_a_millisecond() {
    assert_eq!(time_of("nanosleep.u32 5000;"), 5001);
    assert_eq!(time_of("mov.u32 %r1, 70000; nanosleep.u32 %r1;"), 70_002);
    assert_eq!(time_of("nanosleep.u32 4000000000;"), 1_000_001);
}

#[test]
fn a_thread_that_sleeps_in_a_loop_until_a_time_goes_on_then() {
    let text = SPIN
        .replace("mov.u64 %to, %globaltimer;", "nanosleep.u32 1000; mov.u64 %to, %globaltimer;");
    let mut memory = Buffer::zeroed(1);
    run(&text, 1, 1, &[BASE], &mut memory).unwrap();
    assert!((20_000_000..20_200_000).contains(&memory.words()[0]), "{:?}", memory.words());
}

#[test]
fn a_thread_may_sleep_five_thousand_times() {
    let sleeps = "mov.u32 %r1, 0; again: nanosleep.u32 100; add.u32 %r1, %r1, 1;
        setp.lt.u32 %p, %r1, 5000; @%p bra again;";
    assert!(time_of(sleeps) > 500_000);
}

/// Spins for 20 ms.
const SPIN: &str = "
    .visible .entry k(.param .u64 out) {
        .reg .b32 %r<8>; .reg .b64 %out, %from, %to; .reg .pred %p;
        mov.u64 %from, %globaltimer;
        spin:
        mov.u64 %to, %globaltimer; sub.u64 %to, %to, %from;
        setp.lt.u64 %p, %to, 20000000; @%p bra spin;
        ld.param.u64 %out, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %out, %r1, 4, %out;
        cvt.u32.u64 %r0, %to; st.global.u32 [%out], %r0; ret;
    }";

#[test]
fn a_thread_that_polls_the_clock_waits_for_few_instructions() {
    let mut memory = Buffer::zeroed(1);
    let done = run(SPIN, 1, 1, &[BASE], &mut memory).unwrap();
    assert!((20_000_000..23_000_000).contains(&memory.words()[0]), "{:?}", memory.words());
    assert!(done.instructions < 2000, "{done:?}");
    assert!(done.nanoseconds >= 20_000_000, "{done:?}");
}

#[test]
fn each_of_several_warps_waits_by_itself() {
    let mut memory = Buffer::zeroed(128);
    let done = run(SPIN, 1, 128, &[BASE], &mut memory).unwrap();
    let waited = memory.words();
    assert!(waited.iter().all(|ns| (20_000_000..100_000_000).contains(ns)), "{waited:?}");
    assert!(done.instructions < 8000, "{done:?}");
}

#[test]
fn a_loop_that_works_between_two_reads_is_no_poll() {
    let body = "mov.u32 %r1, 0; again: mov.u64 %to, %globaltimer;".to_owned()
        + &"add.u32 %r2, %r2, 1;".repeat(40)
        + "add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 100; @%p bra again;";
    let time = time_of(&body);
    assert!((100 * 44..100 * 50).contains(&time), "{time}");
}

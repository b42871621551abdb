//! Barrier objects in shared memory, and copies that they wait for.

use crate::exec_memory::{BASE, Buffer, run};
use dmr_ptx::FaultKind;

/// A kernel of one block with an object at the start of shared memory and words behind it. `%r1` is
/// the thread, `%r2` the number of threads, `%r3` the address of the thread's word in shared
/// memory, `%rd1` that in global memory.
fn kernel(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 out) {{
            .shared .align 16 .b8 all[2048];
            .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
            ld.param.u64 %rd0, [out];
            mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r0, all;
            mul.lo.s32 %r4, %r1, 4; add.s32 %r3, %r0, %r4; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
            setp.ne.s32 %p1, %r1, 0;
            {body}
            ret; }}"
    )
}

const INIT: &str =
    "st.shared.u32 [%r3+16], 0; @!%p1 mbarrier.init.shared::cta.b64 [%r0], %r2; bar.sync 0;";
const WAIT: &str = "wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0], 0; @!%p2 bra wait;";
/// The word of the last thread but the thread's number.
const EXCHANGE: &str = "sub.s32 %r5, %r2, %r1; mul.lo.s32 %r5, %r5, 4; add.s32 %r5, %r0, %r5;
    ld.shared.u32 %r6, [%r5+12]; st.global.u32 [%rd1], %r6;";

#[test]
fn threads_that_wait_for_an_object_see_what_all_others_wrote() {
    let body = format!(
        "{INIT} st.shared.u32 [%r3+16], %r1; mbarrier.arrive.shared::cta.b64 %rd4, [%r0];
         spin: mbarrier.test_wait.shared::cta.b64 %p2, [%r0], %rd4; @!%p2 bra spin; {EXCHANGE}"
    );
    let mut memory = Buffer::zeroed(100);
    run(&kernel(&body), 1, 100, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), (0..100).rev().collect::<Vec<_>>());
}

#[test]
fn without_the_wait_it_is_a_race() {
    let body = format!(
        "{INIT} st.shared.u32 [%r3+16], %r1; mbarrier.arrive.shared::cta.b64 _, [%r0]; {EXCHANGE}"
    );
    let fault = run(&kernel(&body), 1, 100, &[BASE], &mut Buffer::zeroed(100)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn a_relaxed_arrival_publishes_nothing() {
    let body = format!(
        "{INIT} st.shared.u32 [%r3+16], %r1; mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r0]; {WAIT} {EXCHANGE}"
    );
    let fault = run(&kernel(&body), 1, 100, &[BASE], &mut Buffer::zeroed(100)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn a_bulk_copy_completes_the_phase_that_expects_its_bytes() {
    let body = format!(
        "@!%p1 mbarrier.init.shared::cta.b64 [%r0], 1; bar.sync 0;
         @%p1 bra wait;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 1600;
         add.s32 %r7, %r0, 16;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd0], 1600, [%r0];
         {WAIT} ld.shared.u32 %r6, [%r3+16]; add.u32 %r6, %r6, 1; st.shared.u32 [%r3+16], %r6; bar.sync 0;
         @%p1 bra end; fence.proxy.async.shared::cta;
         cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r7], 1600;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; end:"
    );
    let mut memory = Buffer::of_words(&(0..400).map(|n| 7 * n).collect::<Vec<_>>());
    run(&kernel(&body), 1, 400, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), (0..400).map(|n| 7 * n + 1).collect::<Vec<_>>());
}

#[test]
fn a_copy_whose_bytes_nothing_waits_for_is_a_race() {
    let body = "@!%p1 mbarrier.init.shared::cta.b64 [%r0], 1; bar.sync 0;
         add.s32 %r7, %r0, 16;
         @!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd0], 400, [%r0];
         ld.shared.u32 %r6, [%r3+16]; st.global.u32 [%rd1], %r6;";
    let fault = run(&kernel(body), 1, 100, &[BASE], &mut Buffer::zeroed(100)).unwrap_err();
    let is_expected =
        matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised { .. });
    assert!(is_expected, "{fault}");
}

#[test]
fn asynchronous_copies_arrive_at_an_object() {
    let body = format!(
        "{INIT} cp.async.ca.shared.global [%r3+16], [%rd1], 4;
         cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r0]; {WAIT} {EXCHANGE}"
    );
    let mut memory = Buffer::of_words(&(0..64).collect::<Vec<_>>());
    let fault = run(&kernel(&body), 1, 64, &[BASE], &mut memory);
    assert!(fault.is_ok(), "{fault:?}");
    assert_eq!(memory.words(), (0..64).rev().collect::<Vec<_>>());
}

#[test]
fn undefined_uses_end_the_launch() {
    let table = [
        ("mbarrier.arrive.shared::cta.b64 _, [%r0];", "not initialised"),
        (
            "@!%p1 mbarrier.init.shared::cta.b64 [%r0], 1; bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [%r0], 2;",
            "2 arrivals",
        ),
        ("mbarrier.init.shared::cta.b64 [%r0], 0;", "a count of 0"),
        ("mbarrier.init.shared::cta.b64 [%r0+4], 1;", "misaligned"),
        ("mbarrier.init.b64 [%rd0], 1;", "mbarrier object in global memory"),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 12, [%r0];",
            "12 bytes",
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0+4], 16, [%r0];",
            "misaligned",
        ),
    ];
    for (body, expected) in table {
        let fault = run(&kernel(body), 1, 32, &[BASE], &mut Buffer::zeroed(32)).unwrap_err();
        assert!(fault.to_string().contains(expected), "{body}: {fault}");
    }
}

#[test]
fn a_wait_that_nothing_ends_is_reported() {
    let body = format!("{INIT} {WAIT}");
    let fault = run(&kernel(&body), 1, 32, &[BASE], &mut Buffer::zeroed(32)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::NoProgress(_)), "{fault}");
}

//! The sanitizer: each planted fault is found, with thread and line, and the repaired kernel runs
//! clean.

use crate::exec_memory::{BASE, Buffer, load, run, run_with};
use dmr_ptx::{Checks, Fault, FaultKind, SpaceName};

/// Thread number in `%r1`, address of its word in shared memory in `%r2`, and of its word of the
/// output in `%rd1`.
fn kernel(body: &str) -> String {
    format!(
        ".file 1 \"sum.cu\"
.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .f32 %f<4>;
    .shared .align 16 .b8 tile[256]; .local .align 8 .b8 depot[32];
    ld.param.u64 %rd0, [out]; mov.u32 %r1, %tid.x; mov.u32 %r3, tile;
    shl.b32 %r2, %r1, 2; add.u32 %r2, %r3, %r2;
    mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
    {body}
    ret;
}}"
    )
}

fn fault_of(body: &str, threads: u32) -> Box<Fault> {
    run(&kernel(body), 1, threads, &[BASE], &mut Buffer::zeroed(64)).unwrap_err()
}

fn runs_clean(body: &str, threads: u32) -> Vec<u32> {
    let mut memory = Buffer::zeroed(64);
    run(&kernel(body), 1, threads, &[BASE], &mut memory).unwrap_or_else(|fault| panic!("{fault}"));
    memory.words()
}

/// Each thread stores its number, and reads that of a thread of the other warp.
const EXCHANGE: &str = "st.shared.u32 [%r2], %r1;
    BARRIER
    .loc 1 42 3
    xor.b32 %r5, %r1, 32; shl.b32 %r6, %r5, 2; add.u32 %r6, %r3, %r6;
    ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd1], %r7;";

#[test]
fn a_missing_barrier_is_a_race_with_threads_and_lines() {
    let checks = |body: &str, change: fn(&mut Checks)| {
        let program = load(&kernel(body));
        run_with(&program, 1, 64, &[BASE], &mut Buffer::zeroed(64), |launch| {
            change(&mut launch.checks)
        })
    };
    let planted = EXCHANGE.replace("BARRIER", "st.shared.u32 [%r2], %r1;");
    let fault = checks(&planted, |checks| checks.uninitialised = false).unwrap_err();
    let FaultKind::Race { space, ref other, equal, ref earlier, .. } = fault.kind else {
        panic!("{fault}")
    };
    assert_eq!((space, equal), (SpaceName::Shared, false));
    assert_eq!(fault.thread.thread[0] ^ 32, other.thread[0]);
    assert!(fault.place.function == "k" && fault.place.line > 3, "{fault}");
    assert!(earlier.contains("read") && earlier.contains("sum.cu:42"), "{fault}");
    checks(&planted, |checks| (checks.shared_races, checks.uninitialised) = (false, false))
        .unwrap();
    let words = runs_clean(&EXCHANGE.replace("BARRIER", "bar.sync 0;"), 64);
    assert_eq!(words, (0..64).map(|n| n ^ 32).collect::<Vec<_>>());
}

#[test]
fn lanes_of_a_warp_race_without_a_warp_barrier() {
    let body = |barrier: &str| EXCHANGE.replace("BARRIER", barrier).replace("%r1, 32", "%r1, 1");
    let fault = fault_of(&body(""), 32);
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
    runs_clean(&body("bar.warp.sync -1;"), 32);
}

#[test]
fn bytes_race_each_on_its_own_and_with_their_word_in_each_part_between_barriers() {
    let bytes = "st.shared.u8 [%r4], %r1; ld.shared.u8 %r6, [%r4];";
    let ordered = format!(
        "add.u32 %r4, %r3, %r1; setp.lt.u32 %p1, %r1, 32; xor.b32 %r5, %r1, 32;
        and.b32 %r6, %r5, -4; add.u32 %r7, %r3, %r6; shl.b32 %r6, %r5, 2; add.u32 %r8, %r3, %r6;
        {bytes} bar.sync 0; @%p1 ld.shared.u32 %r9, [%r7]; bar.sync 0;
        {bytes} bar.sync 0; st.shared.u32 [%r2], %r1; bar.sync 0;
        @!%p1 ld.shared.u8 %r9, [%r8]; bar.sync 0; {bytes} st.global.u32 [%rd1], %r9;"
    );
    let words = runs_clean(&ordered, 64);
    assert_eq!([words[0], words[33]], [u32::from_le_bytes([32, 33, 34, 35]), 1]);
    for (index, barrier) in ordered.match_indices("bar.sync 0;") {
        let planted = format!("{}{}", &ordered[..index], &ordered[index + barrier.len()..]);
        let fault = fault_of(&planted, 64);
        assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}: {planted}");
    }
}

#[test]
fn a_write_after_the_reads_of_others_is_a_race() {
    let body = |barrier: &str| {
        format!(
            "st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r5, [%r3]; {barrier} st.shared.u32 [%r2], %r5;"
        )
    };
    assert!(matches!(fault_of(&body(""), 64).kind, FaultKind::Race { .. }));
    runs_clean(&body("bar.sync 0;"), 64);
}

#[test]
fn equal_writes_are_a_class_of_their_own() {
    let body = "mov.u32 %r5, 7; st.shared.u32 [%r3], %r5;";
    runs_clean(body, 64);
    let program = load(&kernel(body));
    let fault = run_with(&program, 1, 64, &[BASE], &mut Buffer::zeroed(64), |launch| {
        launch.checks.equal_writes = true
    });
    assert!(matches!(fault.unwrap_err().kind, FaultKind::Race { equal: true, .. }));
    assert!(matches!(
        fault_of("st.shared.u32 [%r3], %r1;", 64).kind,
        FaultKind::Race { equal: false, .. }
    ));
}

#[test]
fn atomics_and_fences_order_the_warps_of_a_block() {
    let body = |fence: &str| {
        format!(
            "setp.ne.s32 %p1, %r1, 0; @%p1 bra others;
             mov.u32 %r5, 0; st.shared.u32 [%r3+128], %r5; bar.sync 0;
             st.shared.u32 [%r3], 77; {fence} atom.shared.exch.b32 %r6, [%r3+128], 1; bra end;
             others: bar.sync 0; setp.ne.s32 %p2, %r1, 32; @%p2 bra end;
             spin: atom.shared.or.b32 %r7, [%r3+128], 0; setp.eq.s32 %p3, %r7, 0; @%p3 bra spin;
             {fence} ld.shared.u32 %r8, [%r3]; st.global.u32 [%rd1], %r8; end:"
        )
    };
    let program = |fence| load(&kernel(&body(fence)));
    let run = |fence| {
        let mut memory = Buffer::zeroed(64);
        run_with(&program(fence), 1, 64, &[BASE], &mut memory, |launch| {
            launch.checks.divergence = false
        })
        .map(|_| memory.words()[32])
    };
    assert_eq!(run("membar.cta;").unwrap(), 77);
    assert!(matches!(run("").unwrap_err().kind, FaultKind::Race { .. }));
}

#[test]
fn a_read_of_what_no_thread_has_written_is_found() {
    const USE: &str = "setp.eq.u32 %p1, %r5, 0; @%p1 bra end; end:";
    runs_clean("ld.shared.u32 %r5, [%r2];", 8);
    let fault = fault_of(&format!("ld.shared.u32 %r5, [%r2]; {USE}"), 8);
    assert!(matches!(
        fault.kind,
        FaultKind::Uninitialised { space: SpaceName::Shared, address: 0, bytes: 4, .. }
    ));
    let body = format!(
        "mov.u64 %rd2, depot; st.local.u32 [%rd2], %r1; ld.local.u64 %rd3, [%rd2+8]; cvt.u32.u64 %r5, %rd3; {USE}"
    );
    let fault = fault_of(&body, 8);
    assert!(matches!(
        fault.kind,
        FaultKind::Uninitialised { space: SpaceName::Local, address: 8, bytes: 8, .. }
    ));
    let padded = body.replace("[%rd2+8]", "[%rd2]");
    runs_clean(&padded, 8);
}

#[test]
fn an_overrun_by_one_element_is_found_in_every_space() {
    let shared = fault_of("st.shared.u32 [%r2+4], %r1;", 64);
    assert!(matches!(
        shared.kind,
        FaultKind::OutOfBounds { space: SpaceName::Shared, address: 256, bytes: 4, len: 256, .. }
    ));
    assert_eq!(shared.thread.thread, [63, 0, 0]);
    let global = fault_of("st.global.u32 [%rd1+4], %r1;", 64);
    assert!(matches!(global.kind, FaultKind::Memory { .. }), "{global}");
    assert_eq!(global.thread.thread, [63, 0, 0]);
    assert!(global.place.line > 3);
    let generic = fault_of(
        "cvta.shared.u64 %rd2, 0; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd2, %rd2, %rd3; st.u32 [%rd2+4], %r1;",
        64,
    );
    assert!(
        matches!(generic.kind, FaultKind::OutOfBounds { space: SpaceName::Shared, .. }),
        "{generic}"
    );
    let param = fault_of("ld.param.u32 %r5, [out+8];", 1);
    assert!(
        matches!(param.kind, FaultKind::OutOfBounds { space: SpaceName::Param, .. }),
        "{param}"
    );
    let local = fault_of("mov.u64 %rd2, depot; st.local.u32 [%rd2+32], %r1;", 1);
    assert!(
        matches!(local.kind, FaultKind::OutOfBounds { space: SpaceName::Local, .. }),
        "{local}"
    );
}

#[test]
fn a_misaligned_access_is_found() {
    let fault = fault_of("st.global.v2.u32 [%rd1], {%r1, %r1};", 32);
    assert!(
        matches!(fault.kind, FaultKind::Misaligned { space: SpaceName::Global, address, bytes: 8, .. } if address == BASE + 4)
    );
    assert_eq!(fault.thread.thread, [1, 0, 0]);
}

#[test]
fn a_barrier_that_some_threads_leave_out_is_found() {
    let left_out =
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra done; bar.sync 0; done: st.global.u32 [%rd1], %r1;";
    let fault = fault_of(left_out, 64);
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier(_)), "{fault}");
    let program = load(&kernel(left_out));
    run_with(&program, 1, 64, &[BASE], &mut Buffer::zeroed(64), |launch| {
        launch.checks.divergence = false
    })
    .unwrap();

    let other = "setp.lt.u32 %p1, %r1, 32; @%p1 bra go; bar.sync 1; bra end; go: bar.sync 0; end:";
    let fault = fault_of(other, 64);
    assert!(
        matches!(fault.kind, FaultKind::DivergentBarrier(ref text) if text.contains("[0, 1]")),
        "{fault}"
    );

    let halves = "setp.lt.u32 %p1, %r1, 16; @%p1 bra go; bar.sync 0; bra end; go: bar.sync 0; end:";
    let fault = fault_of(halves, 32);
    assert!(
        matches!(fault.kind, FaultKind::DivergentBarrier(ref text) if text.contains("different instructions")),
        "{fault}"
    );
}

#[test]
fn a_barrier_does_not_wait_for_threads_that_have_exited() {
    for exit in ["@!%p1 bra end;", "@!%p1 ret;", "@%p1 bra go; exit; go:"] {
        let body = format!(
            "st.shared.u32 [%r2], %r1; setp.lt.u32 %p1, %r1, 4; {exit} bar.sync 0;
            ld.shared.u32 %r6, [%r2+240]; st.global.u32 [%rd1], %r6; end:"
        );
        assert_eq!(runs_clean(&body, 64)[..5], [60, 61, 62, 63, 0], "{exit}");
    }
}

#[test]
fn a_thread_may_end_before_a_barrier_wherever_its_instructions_stand() {
    for (early, behind) in [
        ("@!%p1 bra early;", "early: st.global.u32 [%rd1], 7; ret;"),
        ("@%p1 bra go; st.global.u32 [%rd1], 7; ret; go:", ""),
    ] {
        let body = format!(
            "st.shared.u32 [%r2], %r1; setp.lt.u32 %p1, %r1, 4; {early} bar.sync 0;
            ld.shared.u32 %r6, [%r2+240]; st.global.u32 [%rd1], %r6; ret; {behind}"
        );
        assert_eq!(runs_clean(&body, 64)[..6], [60, 61, 62, 63, 7, 7], "{early}");
    }
}

#[test]
fn named_barriers_let_a_part_of_a_block_meet() {
    let body = "setp.lt.u32 %p1, %r1, 64; @%p1 bra consumer;
        sub.u32 %r5, %r2, 256; st.shared.u32 [%r5], %r1; bar.arrive 3, 128; bra end;
        consumer: bar.sync 3, 128; ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd1], %r6; end:";
    assert_eq!(runs_clean(body, 128), (64..128).collect::<Vec<_>>());
}

#[test]
fn a_barrier_reduces_a_predicate() {
    let body =
        "setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r5, 0, %p1; bar.red.and.pred %p2, 0, !%p1;
        bar.red.or.pred %p3, 0, %p1; selp.u32 %r6, 100, 0, %p2; add.u32 %r5, %r5, %r6;
        selp.u32 %r6, 1000, 0, %p3; add.u32 %r5, %r5, %r6; st.global.u32 [%rd1], %r5;";
    assert_eq!(runs_clean(body, 64), [1040; 64]);
}

/// One thread of each of two blocks runs this on the first words of global memory.
fn between_blocks(body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let mut memory = Buffer::zeroed(4);
    let body = format!("mov.u32 %r10, %ctaid.x; {body}");
    run(&kernel(&body), 2, 1, &[BASE], &mut memory).map(|_| memory.words())
}

#[test]
fn the_first_lane_races_with_the_others_that_have_read_what_it_writes() {
    let body = |barrier: &str| {
        format!(
            "ld.global.u32 %r5, [%rd0]; {barrier} setp.ne.u32 %p1, %r1, 0; @%p1 bra end;
            add.u32 %r5, %r5, 1; st.global.u32 [%rd0], %r5; end:"
        )
    };
    let fault = fault_of(&body(""), 32);
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
    assert_eq!(runs_clean(&body("bar.warp.sync -1;"), 32)[0], 1);
    assert_eq!(runs_clean(&body(""), 1)[0], 1);
}

#[test]
fn blocks_that_touch_a_byte_without_order_race() {
    let fault = between_blocks(
        "ld.global.u32 %r5, [%rd0]; add.u32 %r5, %r5, 1; st.global.u32 [%rd0], %r5;",
    )
    .unwrap_err();
    let FaultKind::Race { space, ref other, .. } = fault.kind else { panic!("{fault}") };
    assert_eq!((space, other.block, fault.thread.block), (SpaceName::Global, [0; 3], [1, 0, 0]));
    let fault = between_blocks("add.u32 %r5, %r10, 7; st.global.u32 [%rd0], %r5;").unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { equal: false, .. }), "{fault}");
    assert_eq!(between_blocks("atom.global.add.u32 %r5, [%rd0], 1;").unwrap()[0], 2);
    assert_eq!(
        between_blocks("st.global.u32 [%rd0], 9;").unwrap()[0],
        9,
        "equal writes are not reported by default"
    );
}

#[test]
fn a_flag_behind_a_fence_orders_blocks() {
    let body = |fence: &str| {
        format!(
            "setp.ne.u32 %p1, %r10, 0; @%p1 bra reader;
             st.global.u32 [%rd0], 77; {fence} st.volatile.global.u32 [%rd0+4], 1; bra end;
             reader: spin: ld.volatile.global.u32 %r5, [%rd0+4]; setp.eq.u32 %p2, %r5, 0; @%p2 bra spin;
             {fence} ld.global.u32 %r6, [%rd0]; st.global.u32 [%rd0+8], %r6; end:"
        )
    };
    assert_eq!(between_blocks(&body("membar.gl;")).unwrap(), [77, 1, 77, 0]);
    assert!(matches!(between_blocks(&body("")).unwrap_err().kind, FaultKind::Race { .. }));
}

#[test]
fn lanes_that_a_partial_barrier_leaves_out_race_with_those_it_orders() {
    // Lane 5 writes a word, lanes of the mask meet, and all lanes read the word at once.
    let body = |mask: &str, first: &str| {
        format!(
            "setp.eq.u32 %p1, %r1, 5; mov.b32 %r8, 1; shl.b32 %r8, %r8, %r1; and.b32 %r8, %r8, {mask};
             setp.ne.u32 %p2, %r8, 0; @%p1 {first}; @%p2 bar.warp.sync {mask};"
        )
    };
    for (write, read) in [
        ("st.global.u32 [%rd0], 7", "ld.global.u32 %r7, [%rd0];"),
        ("st.shared.u32 [%r3], 7", "ld.shared.u32 %r7, [%r3];"),
    ] {
        runs_clean(&format!("{} {read}", body("-1", write)), 32);
        // Lanes 0, 5 and 31.
        let fault = fault_of(&format!("{} {read}", body("0x80000021", write)), 32);
        let FaultKind::Race { ref other, .. } = fault.kind else { panic!("{fault}") };
        assert_eq!((fault.thread.thread[0], other.thread[0]), (1, 5), "{fault}");
        // A barrier of all lanes orders what the partial one has not.
        runs_clean(&format!("{} bar.warp.sync -1; {read}", body("0x80000021", write)), 32);
    }
}

#[test]
fn a_barrier_that_no_block_has_is_a_finding_and_with_the_check_off_another_one() {
    let fault = fault_of("mov.u32 %r5, 16; bar.sync %r5;", 32);
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier(_)), "{fault}");
    let program = load(&kernel("mov.u32 %r5, 17; bar.sync %r5;"));
    run_with(&program, 1, 32, &[BASE], &mut Buffer::zeroed(64), |launch| {
        launch.checks.divergence = false;
    })
    .unwrap();
}

#[test]
fn a_barrier_for_a_part_of_a_warp_is_an_illegal_instruction() {
    let fault = fault_of("mov.u32 %r5, 48; bar.sync 1, %r5;", 64);
    assert!(matches!(fault.kind, FaultKind::IllegalInstruction(_)), "{fault}");
}

#[test]
fn a_launch_goes_on_after_a_race_and_its_results_are_those_of_a_device() {
    let mut memory = Buffer::zeroed(64);
    let body =
        "st.shared.u32 [%r3], %r1; bar.sync 0; add.u32 %r7, %r1, 7; st.global.u32 [%rd1], %r7;";
    let fault = run(&kernel(body), 1, 64, &[BASE], &mut memory).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }) && fault.end.is_none(), "{fault}");
    assert_eq!(memory.words(), (7..71).collect::<Vec<_>>());
}

#[test]
fn an_error_after_a_race_is_reported_with_it() {
    let body = "st.shared.u32 [%r3], %r1; bar.sync 0; trap;";
    let fault = fault_of(body, 64);
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
    assert!(matches!(fault.end, Some(end) if end.kind == FaultKind::Trap), "the trap is kept");
}

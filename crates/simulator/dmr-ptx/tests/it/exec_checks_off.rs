//! Each check can be switched off alone: then the launch goes on, and the other checks find what
//! they find.

use crate::exec_memory::{BASE, Buffer, load, run_with};
use dmr_ptx::{Checks, Fault, FaultKind, SpaceName};

/// Thread number in `%r1`, the address of shared memory in `%r3` and that of the thread's word in
/// `%r2`; the addresses of global memory in `%rd0` and `%rd1`.
fn kernel(body: &str) -> String {
    format!(
        ".file 1 \"off.cu\"
.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .b128 %q<2>;
    .shared .align 16 .b8 tile[256]; .local .align 8 .b8 depot[32];
    ld.param.u64 %rd0, [out]; mov.u32 %r1, %tid.x; mov.u32 %r3, tile;
    shl.b32 %r2, %r1, 2; add.u32 %r2, %r3, %r2;
    mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
    {body}
    ret;
}}"
    )
}

/// Runs a kernel on 64 words: the first is 0x44332211, the next 0x88776655. Returns them.
fn run(body: &str, threads: u32, change: impl FnOnce(&mut Checks)) -> Result<Vec<u32>, Box<Fault>> {
    let mut memory = Buffer::zeroed(64);
    memory.0[..8].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    run_with(&load(&kernel(body)), 1, threads, &[BASE], &mut memory, |launch| {
        change(&mut launch.checks);
    })?;
    Ok(memory.words())
}

/// Stores `%r9` in word 8, behind a line of the source.
fn result(body: &str) -> String {
    format!(".loc 1 7 1\n{body} st.global.u32 [%rd0+32], %r9;")
}

#[test]
fn a_misaligned_access_is_reported_with_thread_and_line_and_made_as_it_is_without_the_check() {
    const FILL: &str = "st.shared.u32 [tile], 0x44332211; st.shared.u32 [tile+4], 0x88776655;
        st.shared.v4.u32 [tile+16], {%r1, %r1, %r1, %r1};
        st.local.u32 [depot], 0x44332211; st.local.u32 [depot+4], 0x88776655;";
    let cases = [
        (SpaceName::Shared, "ld.shared.u32 %r9, [tile+1];", 0x5544_3322),
        (SpaceName::Shared, "ld.shared.v2.u16 {%r8, %r9}, [tile+2];", 0x6655),
        (SpaceName::Shared, "st.shared.u16 [tile+1], 0; ld.shared.u32 %r9, [tile];", 0x4400_0011),
        (SpaceName::Shared, "atom.shared.add.u32 %r9, [tile+1], 1;", 0x5544_3322),
        (
            SpaceName::Shared,
            "red.shared.add.u32 [tile+1], 0x100; ld.shared.u32 %r9, [tile];",
            0x4434_2211,
        ),
        (SpaceName::Shared, "cvta.shared.u64 %rd2, tile; ld.u32 %r9, [%rd2+3];", 0x7766_5544),
        (
            SpaceName::Shared,
            "mbarrier.init.shared.b64 [tile+12], 1; mbarrier.arrive.shared.b64 %rd2, [tile+12];
            mbarrier.test_wait.shared.b64 %p1, [tile+12], %rd2; selp.u32 %r9, 5, 6, %p1;",
            5,
        ),
        (
            SpaceName::Shared,
            "cp.async.ca.shared.global [tile+1], [%rd0], 4; cp.async.wait_all; ld.shared.u8 %r9, [tile+1];",
            0x11,
        ),
        (
            SpaceName::Shared,
            "cp.async.bulk.global.shared::cta.bulk_group [%rd0+64], [tile+4], 16; mov.u32 %r9, 4;",
            4,
        ),
        (
            SpaceName::Global,
            "cp.async.ca.shared.global [tile], [%rd0+1], 4; cp.async.wait_all; ld.shared.u32 %r9, [tile];",
            0x5544_3322,
        ),
        (SpaceName::Local, "ld.local.u32 %r9, [depot+1];", 0x5544_3322),
        (SpaceName::Local, "st.local.u16 [depot+3], 0; ld.local.u32 %r9, [depot+4];", 0x8877_6600),
        (SpaceName::Param, "ld.param.u32 %r9, [out+1];", (BASE >> 8) as u32),
        (SpaceName::Global, "ld.global.u32 %r9, [%rd0+1];", 0x5544_3322),
        (SpaceName::Global, "st.global.u32 [%rd0+1], 0; ld.global.u32 %r9, [%rd0+4];", 0x8877_6600),
        (SpaceName::Global, "atom.global.exch.b32 %r9, [%rd0+1], 1;", 0x5544_3322),
        (
            SpaceName::Global,
            "atom.global.add.u64 %rd2, [%rd0+4], 1; cvt.u32.u64 %r9, %rd2;",
            0x8877_6655,
        ),
    ];
    for (space, body, expected) in cases {
        let body = FILL.to_owned() + &result(body);
        let fault = run(&body, 1, |_| {}).unwrap_err();
        let FaultKind::Misaligned { space: found, .. } = fault.kind else {
            panic!("{body}: {fault}")
        };
        assert_eq!(found, space, "{body}: {fault}");
        assert_eq!(fault.thread.thread, [0; 3]);
        assert_eq!(fault.place.source.as_ref().map(|source| source.line), Some(7), "{fault}");
        let words = run(&body, 1, |checks| checks.misaligned = false);
        let words = words.unwrap_or_else(|fault| panic!("{body}: {fault}"));
        assert_eq!(words[8], expected, "{body}");
    }
}

#[test]
fn rows_of_a_matrix_are_misaligned_like_other_accesses() {
    // Row n has the number n + 100 in every place; lane n reads from the second number of row n on.
    let body = "and.b32 %r5, %r1, 15; shl.b32 %r6, %r5, 4; add.u32 %r6, %r6, %r3;
        mad.lo.u32 %r7, %r5, 0x10001, 0x640064; st.shared.v4.u32 [%r6], {%r7, %r7, %r7, %r7};
        bar.warp.sync -1;
        .loc 1 7 1
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r6+2]; st.global.u32 [%rd1], %r9;";
    let quiet = |checks: &mut Checks| checks.shared_races = false;
    let fault = run(body, 32, quiet).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { bytes: 16, .. }), "{fault}");
    assert_eq!(fault.place.source.map(|source| source.line), Some(7));
    let words = run(body, 32, |checks| (checks.misaligned, checks.shared_races) = (false, false));
    assert_eq!(words.unwrap()[..4], [0x64_0064, 0x64_0064, 0x64_0064, 0x65_0064]);
}

#[test]
fn an_access_beyond_memory_is_reported_and_reads_zeros_and_writes_nothing_without_the_check() {
    let cases = [
        (SpaceName::Shared, "mov.u32 %r9, 7; ld.shared.u32 %r9, [tile+256];"),
        (SpaceName::Shared, "mov.u32 %r9, 7; ld.shared.u32 %r9, [tile+253];"),
        (SpaceName::Shared, "st.shared.u32 [tile+0x10000], 7; mov.u32 %r9, 0;"),
        (SpaceName::Shared, "atom.shared.exch.b32 %r9, [tile+256], 7;"),
        (SpaceName::Shared, "atom.shared.exch.b128 %q1, [tile+256], %q0; mov.u32 %r9, 0;"),
        (SpaceName::Shared, "cvta.shared.u64 %rd2, tile; ld.u32 %r9, [%rd2+256];"),
        (
            SpaceName::Shared,
            "cp.async.ca.shared.global [tile+256], [%rd0], 4; cp.async.wait_all; mov.u32 %r9, 0;",
        ),
        (
            SpaceName::Shared,
            "mbarrier.init.shared.b64 [tile+256], 1; mov.u64 %rd3, 0;
            mbarrier.test_wait.shared.b64 %p1, [tile+256], %rd3; selp.u32 %r9, 1, 0, %p1;",
        ),
        (SpaceName::Local, "ld.local.u32 %r9, [depot+32];"),
        (SpaceName::Local, "st.local.v2.u32 [depot+32], {7, 7}; ld.local.u32 %r9, [depot+36];"),
        (SpaceName::Param, "mov.u32 %r9, 7; ld.param.u32 %r9, [out+8];"),
    ];
    for (space, body) in cases {
        // A misaligned address is another finding.
        let aligned = |checks: &mut Checks| checks.misaligned = false;
        let body = result(body);
        let fault = run(&body, 1, aligned).unwrap_err();
        let FaultKind::OutOfBounds { space: found, .. } = fault.kind else {
            panic!("{body}: {fault}")
        };
        assert_eq!(found, space, "{body}: {fault}");
        assert_eq!(fault.place.source.as_ref().map(|source| source.line), Some(7), "{fault}");
        let words = run(&body, 1, |checks| {
            checks.out_of_bounds = false;
            checks.misaligned = false;
        });
        let words = words.unwrap_or_else(|fault| panic!("{body}: {fault}"));
        assert_eq!(words[8], 0, "{body}");
    }
}

#[test]
fn of_the_lanes_of_a_warp_only_those_beyond_memory_access_nothing() {
    let body = "st.shared.u32 [%r2+4], %r1; bar.sync 0; ld.shared.u32 %r9, [%r2+4]; st.global.u32 [%rd1], %r9;";
    let fault = run(body, 64, |_| {}).unwrap_err();
    assert_eq!(fault.thread.thread, [63, 0, 0]);
    let words = run(body, 64, |checks| checks.out_of_bounds = false).unwrap();
    assert_eq!(words, (0..63).chain([0]).collect::<Vec<_>>());
}

#[test]
fn what_a_thread_stores_beyond_its_frame_is_not_in_the_frame_of_a_function_that_it_calls() {
    let callee = ".func (.param .b32 sum) callee() { .reg .b32 %r<6>; .local .align 16 .b32 own[4];
        ld.local.v4.u32 {%r1, %r2, %r3, %r4}, [own]; or.b32 %r1, %r1, %r2; or.b32 %r3, %r3, %r4;
        or.b32 %r1, %r1, %r3; st.param.b32 [sum], %r1; ret; }\n";
    let body = ".local .b8 used[16]; { .param .b32 sum; call (sum), callee; ld.param.b32 %r9, [sum]; }
        mov.u32 %r8, 0; again: mad.lo.u32 %r7, %r8, 4, 16; mov.u32 %r6, used; add.u32 %r7, %r7, %r6;
        st.local.u32 [%r7], 9; add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 16; @%p1 bra again;
        { .param .b32 sum; call (sum), callee; ld.param.b32 %r9, [sum]; } st.global.u32 [%rd0], %r9;";
    let program = load(&format!("{callee}{}", kernel(body)));
    let mut memory = Buffer::zeroed(1);
    let launched = run_with(&program, 1, 1, &[BASE], &mut memory, |launch| {
        launch.checks.out_of_bounds = false;
        launch.checks.uninitialised = false;
    });
    launched.unwrap();
    assert_eq!(memory.words(), [0]);
}

#[test]
fn every_check_is_switched_off_alone() {
    type Switch = fn(&mut Checks) -> &mut bool;
    let faults: [(&str, Switch, &str); 7] = [
        ("out of bounds", |checks| &mut checks.out_of_bounds, "ld.shared.u32 %r5, [tile+256];"),
        ("misaligned", |checks| &mut checks.misaligned, "ld.global.u32 %r5, [%rd0+2];"),
        ("uninitialised", |checks| &mut checks.uninitialised, UNINITIALISED),
        (
            "race",
            |checks| &mut checks.shared_races,
            "and.b32 %r5, %r1, 31; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r3; st.shared.u32 [%r5], %r1;",
        ),
        (
            "race",
            |checks| &mut checks.global_races,
            "st.global.u32 [%rd1], %r1; xor.b32 %r5, %r1, 32; mad.wide.u32 %rd2, %r5, 4, %rd0;
            ld.global.u32 %r6, [%rd2];",
        ),
        ("race", |checks| &mut checks.equal_writes, "st.shared.u32 [tile], 1;"),
        (
            "divergent barrier",
            |checks| &mut checks.divergence,
            "setp.lt.u32 %p1, %r1, 40; @%p1 bar.sync 0;",
        ),
    ];
    for (index, (text, _, body)) in faults.iter().enumerate() {
        for (other, (_, switch, _)) in faults.iter().enumerate() {
            let outcome = run(body, 64, |checks| {
                checks.equal_writes = true;
                *switch(checks) = false;
            });
            // Equal writes of shared memory are part of its races.
            let is_off = index == other || (index, other) == (5, 3);
            match outcome {
                Ok(_) => assert!(is_off, "{body} is not found without check {other}"),
                Err(fault) => {
                    assert!(!is_off, "{body}: {fault}");
                    assert!(fault.to_string().contains(text), "{fault}");
                }
            }
        }
    }
}

/// A use of a byte of shared memory that no thread has written.
const UNINITIALISED: &str = "ld.shared.u32 %r5, [%r2]; setp.eq.u32 %p1, %r5, 0; @%p1 bra end; end:";

#[test]
fn reads_of_unwritten_memory_into_no_register_or_beyond_the_end_take_nothing_else() {
    // A matrix with half of its rows beyond shared memory, and a destination that is no register.
    let rows = "mad.lo.u32 %r4, %r1, 16, %r3; add.u32 %r4, %r4, 192;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r4]; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r9, _}, [%r3];";
    run(rows, 32, |checks| checks.out_of_bounds = false).unwrap();
    let copy =
        "mov.u64 %rd1, -16; cp.async.ca.shared.global [%rd1], [%rd0], 16; cp.async.wait_all;";
    run(copy, 1, |checks| checks.out_of_bounds = false).unwrap();
    let sizes = "setp.lt.u32 %p1, %r1, 32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 1, 96;";
    let ended = run(sizes, 64, |checks| checks.divergence = false);
    assert!(ended.is_ok(), "{ended:?}");
}

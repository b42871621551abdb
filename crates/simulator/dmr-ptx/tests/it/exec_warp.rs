//! Operations between lanes, and what a kernel prints.

use crate::exec_memory::{BASE, Buffer, load, run, run_with};
use dmr_ptx::FaultKind;

fn kernel(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
    ld.param.u64 %rd0, [out]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
    {body}
    ret;
}}"
    )
}

fn words_of(body: &str) -> Vec<u32> {
    let mut memory = Buffer::zeroed(32);
    run(&kernel(body), 1, 32, &[BASE], &mut memory).unwrap_or_else(|fault| panic!("{fault}"));
    memory.words()
}

#[test]
fn a_warp_sums_by_shuffles() {
    let steps: String = [16, 8, 4, 2, 1]
        .map(|step| format!("shfl.sync.bfly.b32 %r3, %r2, {step}, 31, -1; add.u32 %r2, %r2, %r3;"))
        .concat();
    assert_eq!(
        words_of(&format!("mov.u32 %r2, %r1; {steps} st.global.u32 [%rd1], %r2;")),
        [496; 32]
    );
}

#[test]
fn lanes_meet_by_their_mask_wherever_they_are() {
    let body =
        "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; mul.lo.u32 %r4, %r1, 3; @%p1 bra even;
        shfl.sync.idx.b32 %r5, %r4, 0, 31, -1; add.u32 %r5, %r5, 1000; bra done;
        even: add.u32 %r4, %r4, 7; shfl.sync.idx.b32 %r5, %r4, 1, 31, -1;
        done: st.global.u32 [%rd1], %r5;";
    assert_eq!(
        words_of(body),
        (0..32).map(|n| if n % 2 == 0 { 3 } else { 1007 }).collect::<Vec<_>>()
    );
}

#[test]
fn a_lane_that_never_comes_is_found() {
    let body = "setp.eq.u32 %p1, %r1, 5; @%p1 bra done; shfl.sync.idx.b32 %r5, %r1, 0, 31, -1; done: bar.sync 0;";
    let fault = run(&kernel(body), 1, 32, &[BASE], &mut Buffer::zeroed(32)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::DivergentWarp(_)), "{fault}");
    let body = "setp.eq.u32 %p1, %r1, 5; @%p1 bra done; shfl.sync.idx.b32 %r5, %r1, 0, 31, 15; done: bar.sync 0;";
    let fault = run(&kernel(body), 1, 32, &[BASE], &mut Buffer::zeroed(32)).unwrap_err();
    assert!(fault.to_string().contains("not in the member mask"), "{fault}");
    assert_eq!(fault.thread.thread[0], 4);
}

#[test]
fn a_lane_that_has_exited_is_not_waited_for() {
    let body = "setp.eq.u32 %p1, %r1, 5; @%p1 bra done; shfl.sync.idx.b32 %r5, %r1, 7, 31, -1;
        vote.sync.ballot.b32 %r6, 1, -1; bar.warp.sync -1; add.u32 %r5, %r5, %r6; st.global.u32 [%rd1], %r5; done:";
    let expected = (0..32).map(|n| if n == 5 { 0 } else { !(1 << 5) + 7 });
    assert_eq!(words_of(body), expected.collect::<Vec<u32>>());
}

#[test]
fn votes_and_the_active_mask() {
    let body = "setp.lt.u32 %p1, %r1, 12; vote.sync.ballot.b32 %r2, %p1, -1; @!%p1 bra other;
        activemask.b32 %r3; bra done; other: mov.u32 %r3, 1; done: add.u32 %r2, %r2, %r3; st.global.u32 [%rd1], %r2;";
    assert_eq!(
        words_of(body),
        (0..32).map(|n| if n < 12 { 0xfff * 2 } else { 0x1000 }).collect::<Vec<_>>()
    );
}

const PRINT: &str = ".extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);
    .extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
    .global .align 1 .b8 text[64];";

fn prints(format: &str, body: &str) -> Result<String, Box<dmr_ptx::Fault>> {
    let text = kernel(&format!(
        ".local .align 8 .b8 arguments[32]; mov.u64 %rd2, arguments; cvta.local.u64 %rd3, %rd2;
         mov.u64 %rd4, text; cvta.global.u64 %rd4, %rd4; {body}"
    ));
    let program = load(&format!("{PRINT} {text}"));
    let mut memory = Buffer(vec![0; 64]);
    memory.0[..format.len()].copy_from_slice(format.as_bytes());
    let run = run_with(&program, 1, 2, &[BASE], &mut memory, |launch| launch.globals = &[BASE]);
    run.map(|finished| String::from_utf8(finished.printed).unwrap())
}

#[test]
fn a_kernel_prints_with_the_conversions_of_c() {
    let body = "st.local.u32 [%rd2], %r1; mov.u64 %rd5, 0xC00921FB54442D18; st.local.u64 [%rd2+8], %rd5;
        mov.u32 %r4, -7; st.local.u32 [%rd2+16], %r4; st.local.u64 [%rd2+24], 0xabc;
        { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %rd4; st.param.b64 [b], %rd3;
          call (c), vprintf, (a, b); ld.param.b32 %r5, [c]; }";
    let text = body.replace("[%rd2+24], 0xabc", "[%rd2], %rd4");
    assert_eq!(prints("%6.2s|%%", &text).unwrap(), "    %6|%    %6|%");
    let printed = prints("%d%% %8.3f|%-4d|%#llx\n", body).unwrap();
    assert_eq!(printed, "0%   -3.142|-7  |0xabc\n1%   -3.142|-7  |0xabc\n");
}

#[test]
fn a_failed_assertion_names_itself() {
    let body = "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
        st.param.b64 [a], %rd4; st.param.b64 [b], %rd4; st.param.b32 [c], 12; st.param.b64 [d], %rd4; st.param.b64 [e], 1;
        call __assertfail, (a, b, c, d, e); }";
    let fault = prints("n > 0", body).unwrap_err();
    assert_eq!(
        fault.kind,
        FaultKind::Assertion("n > 0:12: n > 0: Assertion `n > 0` failed".to_owned())
    );
}

#[test]
fn a_shuffle_may_read_a_lane_that_does_not_execute_it() {
    let body = "setp.ge.u32 %p1, %r1, 8; mov.u32 %r2, %r1; @%p1 bra done;
        shfl.sync.down.b32 %r3, %r2, 4, 31, 255; setp.lt.u32 %p2, %r1, 4; @%p2 add.u32 %r2, %r2, %r3;
        done: st.global.u32 [%rd1], %r2;";
    let words = words_of(body);
    assert_eq!(words[..5], [4, 6, 8, 10, 4]);
}

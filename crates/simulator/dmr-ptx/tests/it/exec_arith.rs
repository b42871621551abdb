//! Arithmetic as a kernel sees it: the carry flag, and the lanes that do not execute an
//! instruction.

use crate::exec_memory::{BASE, Buffer, run};

/// A kernel that stores `%r9` of each thread. `%r1` is the thread.
fn kernel(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 out) {{
            .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .b16 %h<4>;
            ld.param.u64 %rd0, [out];
            mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
            {body}
            st.global.u32 [%rd1], %r9;
            ret; }}"
    )
}

fn words(body: &str, threads: u32) -> Vec<u32> {
    let mut memory = Buffer::zeroed(threads as usize);
    run(&kernel(body), 1, threads, &[BASE], &mut memory).unwrap();
    memory.words()
}

#[test]
fn a_constant_can_be_added_to_an_operand() {
    assert_eq!(words("mov.u32 %r9, %r1+8;", 4), [8, 9, 10, 11]);
    assert_eq!(words("mov.u32 %r2, -2; add.u32 %r9, %r2+3, %r1+-1;", 2), [0, 1]);
    assert_eq!(
        words("mov.u32 %r2, 0xffffffff; mul.wide.u32 %rd2, %r2+1, 7; cvt.u32.u64 %r9, %rd2;", 1),
        [0]
    );
    assert_eq!(
        words(
            "cvt.u64.u32 %rd2, %r1; mov.u64 %rd2, %rd2+4+0x100000000; shr.u64 %rd3, %rd2, 32; mov.b64 {%r2, %r3}, %rd2; add.u32 %r9, %r2, %r3+1;",
            2
        ),
        [6, 7]
    );
    assert_eq!(words("mov.u16 %h1, 0xffff; cvt.u32.u16 %r9, %h1+2;", 1), [1]);
    assert_eq!(
        words("mov.u32 %r9, 0; st.global.u32 [%rd1], %r1+5; ld.global.u32 %r9, [%rd1];", 2),
        [5, 6]
    );
}

#[test]
fn a_subtraction_sets_the_carry_flag_unless_it_borrows() {
    // 5 - thread borrows from thread 6 on.
    let read = |how: &str| format!("sub.cc.u32 %r2, 5, %r1; {how}");
    let by_addc = words(&read("addc.u32 %r9, 0, 0;"), 8);
    assert_eq!(by_addc, [1, 1, 1, 1, 1, 1, 0, 0]);
    let by_subc = words(&read("subc.u32 %r9, 0, 0;"), 8);
    assert_eq!(by_subc, [0, 0, 0, 0, 0, 0, u32::MAX, u32::MAX]);
    let after_addition = words("add.cc.u32 %r2, %r1, -4; subc.u32 %r9, 7, 0;", 8);
    assert_eq!(after_addition, [6, 6, 6, 6, 7, 7, 7, 7]);
}

#[test]
fn a_narrow_result_leaves_the_lanes_alone_that_do_not_execute_it() {
    // The two halves of the warp keep their values in the same register.
    let body = "and.b32 %r2, %r1, 1; setp.eq.s32 %p1, %r2, 0; @%p1 bra even;
        cvt.u64.u32 %rd5, %r1; shl.b64 %rd5, %rd5, 40; bar.warp.sync 0xffffffff;
        shr.u64 %rd5, %rd5, 40; st.global.u32 [%rd1], %rd5; ret;
        even: cvt.u16.u32 %h1, %r1; cvt.u32.u16 %r9, %h1; bar.warp.sync 0xffffffff;";
    assert_eq!(words(body, 32), (0..32).collect::<Vec<_>>());
}

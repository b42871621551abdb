//! Grids: what blocks of one launch have in common.

use crate::exec_memory::{BASE, Buffer, load, run_with};
use dmr_ptx::{Fault, FaultKind};

/// A kernel that adds what is in the workspace of the grid to a word.
const MEETING: &str = ".visible .entry k(.param .u64 out) {
    .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %rd1, {%r2, %r1};
    setp.eq.s64 %p1, %rd1, 0; @%p1 trap;
    ld.u32 %r9, [%rd1]; setp.ne.s32 %p1, %r9, 8; @%p1 trap;
    mov.u32 %r3, %ctaid.x; mul.wide.u32 %rd2, %r3, 4; add.s64 %rd2, %rd0, %rd2;
    add.s32 %r4, %r3, 10; st.global.u32 [%rd2], %r4;
    mov.u32 %r5, %nctaid.x; setp.eq.s32 %p2, %r3, 0; add.s32 %r6, %r5, -1; sub.s32 %r6, 0x80000000, %r6;
    selp.b32 %r6, %r6, 1, %p2;
    atom.add.release.gpu.u32 %r7, [%rd1+4], %r6;
    spin: ld.acquire.gpu.u32 %r8, [%rd1+4]; xor.b32 %r8, %r8, %r7; setp.ge.s32 %p3, %r8, 0; @%p3 bra spin;
    add.s32 %r3, %r3, 1; rem.u32 %r3, %r3, %r5; mul.wide.u32 %rd3, %r3, 4; add.s64 %rd3, %rd0, %rd3;
    ld.global.u32 %r4, [%rd3]; mul.wide.u32 %rd4, %r5, 4; add.s64 %rd2, %rd2, %rd4; st.global.u32 [%rd2], %r4;
    ret; }";

fn meet(is_cooperative: bool) -> Result<Vec<u32>, Box<Fault>> {
    let mut memory = Buffer::zeroed(80);
    run_with(&load(MEETING), 40, 1, &[BASE], &mut memory, |launch| {
        launch.is_cooperative = is_cooperative;
    })
    .map(|_| memory.words()[40..].to_vec())
}

#[test]
fn the_blocks_of_a_cooperative_launch_meet_in_its_workspace() {
    let expected: Vec<u32> = (11..50).chain([10]).collect();
    assert_eq!(meet(true).unwrap(), expected);
}

#[test]
fn another_launch_has_no_workspace() {
    assert_eq!(meet(false).unwrap_err().kind, FaultKind::Trap);
}

//! Branches, loops, calls and the progress of threads.

use crate::exec_memory::{BASE, Buffer, load, run, run_with};
use dmr_ptx::FaultKind;

/// The number of the thread in its grid in `%r0`, and the address of its word of the first
/// parameter in `%rd1`.
const THREAD: &str = "
    .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r0, %r1, %r2, %r3;
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
";

fn kernel(body: &str) -> String {
    format!(".visible .entry k(.param .u64 out) {{ {THREAD} {body} }}")
}

#[test]
fn each_thread_writes_its_number() {
    let mut memory = Buffer::zeroed(100);
    let done =
        run(&kernel("st.global.u32 [%rd1], %r0; ret;"), 2, 50, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), (0..100).collect::<Vec<_>>());
    assert_eq!(done.thread_instructions, 100 * 9);
}

#[test]
fn lanes_loop_as_often_as_their_own_bound_says() {
    let body = "
        mov.u32 %r4, 0; mov.u32 %r5, 0;
        loop: setp.ge.u32 %p1, %r4, %r0; @%p1 bra done;
        add.u32 %r5, %r5, %r4; add.u32 %r4, %r4, 1; bra loop;
        done: st.global.u32 [%rd1], %r5; ret;";
    let mut memory = Buffer::zeroed(64);
    run(&kernel(body), 1, 64, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), (0..64u32).map(|n| n * n.saturating_sub(1) / 2).collect::<Vec<_>>());
}

#[test]
fn a_spin_lock_between_the_lanes_of_a_warp_and_between_blocks_makes_progress() {
    let body = "
        spin: atom.acquire.gpu.global.cas.b32 %r4, [%rd0], 0, 1;
        setp.ne.s32 %p1, %r4, 0; @%p1 bra spin;
        ld.global.u32 %r5, [%rd0+4]; add.u32 %r5, %r5, 1; st.global.u32 [%rd0+4], %r5;
        membar.gl;
        atom.global.exch.b32 %r6, [%rd0], 0;
        ret;";
    let mut memory = Buffer::zeroed(2);
    run(&kernel(body), 3, 70, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), [0, 210]);
}

/// Every block counts itself in, and waits until all have.
const GRID_BARRIER: &str = "
    bar.sync 0;
    setp.ne.s32 %p1, %r3, 0; @%p1 bra wait;
    membar.gl;
    atom.global.add.u32 %r4, [%rd0+1024], 1;
    mov.u32 %r6, %nctaid.x;
    spin: ld.volatile.global.u32 %r5, [%rd0+1024];
    setp.lt.u32 %p2, %r5, %r6; @%p2 bra spin;
    membar.gl;
    wait: bar.sync 0;";

#[test]
fn a_grid_barrier_makes_every_block_resident() {
    let body = format!(
        "setp.ne.s32 %p3, %r3, 0; @%p3 bra inside; mul.wide.u32 %rd5, %r1, 4; add.s64 %rd5, %rd0, %rd5;
         st.global.u32 [%rd5], %r1; inside: {GRID_BARRIER}
         setp.ne.s32 %p3, %r3, 0; @%p3 bra end;
         add.u32 %r7, %r1, 1; rem.u32 %r7, %r7, %r6; mul.wide.u32 %rd2, %r7, 4; add.s64 %rd2, %rd0, %rd2;
         ld.global.u32 %r8, [%rd2]; st.global.u32 [%rd5+512], %r8; end: ret;"
    );
    let mut memory = Buffer::zeroed(257);
    run(&kernel(&body), 100, 64, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words()[128..228], (0..100u32).map(|n| (n + 1) % 100).collect::<Vec<_>>());
}

#[test]
fn a_grid_barrier_of_more_blocks_than_are_resident_is_no_progress() {
    let program = load(&kernel(&format!("{GRID_BARRIER} ret;")));
    let mut memory = Buffer::zeroed(257);
    let fault =
        run_with(&program, 5, 32, &[BASE], &mut memory, |launch| launch.limits.resident_blocks = 4);
    let fault = fault.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::NoProgress(_)), "{fault}");
    assert!(fault.to_string().contains("1 blocks have not started"), "{fault}");
}

#[test]
fn an_endless_loop_ends_at_the_limit() {
    let program = load(&kernel("loop: bra loop;"));
    let fault = run_with(&program, 1, 1, &[BASE], &mut Buffer::zeroed(1), |launch| {
        launch.limits.instructions = 10_000
    });
    assert_eq!(fault.unwrap_err().kind, FaultKind::InstructionLimit(10_000));
}

#[test]
fn a_switch_branches_by_index() {
    let body = "
        and.b32 %r4, %r0, 3; mov.u32 %r5, 0;
        list: .branchtargets a, b, c, d;
        brx.idx %r4, list;
        a: add.u32 %r5, %r5, 100; bra done;
        b: add.u32 %r5, %r5, 200;
        c: add.u32 %r5, %r5, 300; bra done;
        d: add.u32 %r5, %r5, 400;
        done: st.global.u32 [%rd1], %r5; ret;";
    let mut memory = Buffer::zeroed(8);
    run(&kernel(body), 1, 8, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), [100, 500, 300, 400, 100, 500, 300, 400]);
}

#[test]
fn a_function_takes_and_returns_structs() {
    let text = format!(
        ".func (.param .align 4 .b8 r[8]) swap(.param .align 4 .b8 s[8], .param .b32 add) {{
            .reg .b32 %r<5>;
            ld.param.u32 %r1, [s]; ld.param.u32 %r2, [s+4]; ld.param.u32 %r3, [add];
            add.u32 %r1, %r1, %r3;
            st.param.b32 [r], %r2; st.param.b32 [r+4], %r1; ret;
        }}
        {}",
        kernel(
            "setp.ge.u32 %p1, %r0, 4; @%p1 bra done;
             {{ .param .align 4 .b8 arg[8]; .param .b32 more; .param .align 4 .b8 result[8];
                mul.lo.u32 %r5, %r0, 10;
                st.param.b32 [arg], %r0; st.param.b32 [arg+4], %r5; st.param.b32 [more], 7;
                call (result), swap, (arg, more);
                ld.param.b32 %r6, [result]; ld.param.b32 %r7, [result+4]; }}
             shl.b32 %r8, %r6, 16; or.b32 %r8, %r8, %r7; st.global.u32 [%rd1], %r8;
             done: ret;"
        )
        .replace("{{", "{")
        .replace("}}", "}")
    );
    let mut memory = Buffer::zeroed(8);
    run(&text, 1, 8, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words()[..5], [7, 10 << 16 | 8, 20 << 16 | 9, 30 << 16 | 10, 0]);
}

const FACTORIAL: &str = "
    .func (.reg .u32 result) factorial(.reg .u32 n) {
        .reg .pred %p; .reg .u32 %r<4>; .local .u32 saved;
        setp.le.u32 %p, n, 1; @%p bra one;
        st.local.u32 [saved], n;
        sub.u32 %r1, n, 1;
        call (%r2), factorial, (%r1);
        ld.local.u32 %r3, [saved];
        mul.lo.u32 result, %r2, %r3; ret;
        one: mov.u32 result, 1; ret;
    }";

#[test]
fn recursion_keeps_registers_and_local_memory_of_each_depth() {
    let text = format!(
        "{FACTORIAL} {}",
        kernel("call (%r4), factorial, (%r0); st.global.u32 [%rd1], %r4; ret;")
    );
    let mut memory = Buffer::zeroed(10);
    run(&text, 1, 10, &[BASE], &mut memory).unwrap();
    assert_eq!(memory.words(), [1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880]);
}

#[test]
fn endless_recursion_is_a_stack_overflow() {
    let text = format!("{FACTORIAL} {}", kernel("call (%r4), factorial, (5000); ret;"));
    let fault = run(&text, 1, 1, &[BASE], &mut Buffer::zeroed(1)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::StackOverflow(_)), "{fault}");
    assert_eq!(fault.place.function, "factorial");
}

#[test]
fn lanes_call_different_functions_through_a_table() {
    let text = format!(
        ".func (.param .b32 r) one(.param .b32 a);
         .func (.param .b32 r) two(.param .b32 a);
         .global .align 8 .u64 table[2] = {{one, two}};
         .func (.param .b32 r) one(.param .b32 a) {{ .reg .b32 %r; ld.param.b32 %r, [a]; add.u32 %r, %r, 100; st.param.b32 [r], %r; ret; }}
         .func (.param .b32 r) two(.param .b32 a) {{ .reg .b32 %r; ld.param.b32 %r, [a]; add.u32 %r, %r, 200; st.param.b32 [r], %r; ret; }}
         {}",
        kernel(
            "mov.u64 %rd2, one; mov.u64 %rd3, two; and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 0;
             selp.b64 %rd4, %rd2, %rd3, %p1;
             { .param .b32 a; .param .b32 r; st.param.b32 [a], %r0;
               proto: .callprototype (.param .b32 _) _ (.param .b32 _);
               call (r), %rd4, (a), proto; ld.param.b32 %r5, [r]; }
             st.global.u32 [%rd1], %r5; ret;"
        )
    );
    let program = load(&text);
    assert_eq!(program.globals()[0].initial.len(), 2);
    let mut memory = Buffer::zeroed(4);
    run_with(&program, 1, 4, &[BASE], &mut memory, |launch| launch.globals = &[BASE]).unwrap();
    assert_eq!(memory.words(), [100, 201, 102, 203]);
}

/// `y[i] += 2 * x[i]` for `i < n`: parameters `x`, `y`, `n`.
const AXPY: &str = ".visible .entry axpy(.param .u64 x, .param .u64 y, .param .u64 n) {
    .reg .b32 %r<6>; .reg .b64 %rd<8>; .reg .f32 %f<4>; .reg .pred %p;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1; @%p bra end;
    cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2; mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5; add.s64 %rd7, %rd4, %rd5; ld.global.f32 %f1, [%rd6]; ld.global.f32 %f2, [%rd7];
    fma.rn.f32 %f3, %f1, 0f40000000, %f2; st.global.f32 [%rd7], %f3; end: ret; }";

#[test]
fn axpy_stops_at_its_length() {
    let numbers: Vec<u32> = (0..200).map(|n| (n as f32).to_bits()).collect();
    let mut memory = Buffer::of_words(&numbers);
    run(AXPY, 2, 64, &[BASE, BASE + 400, 90], &mut memory).unwrap();
    let expected = (0..200).map(|n| if (100..190).contains(&n) { 3 * n - 200 } else { n } as f32);
    assert_eq!(memory.words(), expected.map(f32::to_bits).collect::<Vec<_>>());
}

#[test]
fn a_value_that_is_set_in_one_round_of_a_loop_is_kept_for_the_next() {
    // %r6 is set in the first round only; %r7 and %r8 are set and read between, and may not share
    // its register.
    let body = "mov.u32 %r5, 0; mov.u32 %r9, 0;
        loop: setp.ne.u32 %p1, %r5, 0; @%p1 bra keep; mul.lo.u32 %r6, %r0, 3; keep:
        add.u32 %r7, %r5, 5; mul.lo.u32 %r8, %r7, %r7; add.u32 %r9, %r9, %r8; add.u32 %r9, %r9, %r6;
        @!%p1 mov.u32 %r10, %r9; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 3; @%p2 bra loop;
        sub.u32 %r9, %r9, %r10; st.global.u32 [%rd1], %r9; ret;";
    let program = load(&kernel(body));
    assert!(program.kernels()[0].registers < 14, "{} registers", program.kernels()[0].registers);
    let mut memory = Buffer::zeroed(32);
    run_with(&program, 1, 32, &[BASE], &mut memory, |_| {}).unwrap();
    assert_eq!(memory.words(), (0..32).map(|n| 36 + 49 + 6 * n).collect::<Vec<_>>());
}

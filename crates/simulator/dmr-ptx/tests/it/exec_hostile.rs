//! Programs that are wrong end with a fault, never with a panic, and never touch memory outside of
//! the buffer.

use crate::exec_memory;
use crate::exec_memory::{BASE, Buffer, HEADER, load, run, run_with};
use crate::support;
use dmr_ptx::{Access, AccessError, FaultKind, GlobalMemory, Launch, Program};

/// A kernel with something of everything.
const KERNEL: &str = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 8 .b8 table[64] = {1, 2, 3}; .const .align 4 .u32 scale = 5; .extern .shared .align 16 .b8 more[];
.func (.param .b32 r) twice(.param .align 4 .b8 s[12], .reg .u32 x) { .reg .b32 %r<4>; .local .u32 l[4]; .reg .pred %p;
    ld.param.u32 %r1, [s+4]; st.local.u32 [l+4], %r1; setp.gt.u32 %p, x, 3; @%p bra deep; add.u32 %r1, %r1, x;
    st.param.b32 [r], %r1; ret;
    deep: { .param .b32 q; .param .align 4 .b8 t[12]; sub.u32 %r2, x, 1; st.param.b32 [t+4], %r2;
    call (q), twice, (t, %r2); ld.param.b32 %r3, [q]; } st.param.b32 [r], %r3; ret; }
.visible .entry k(.param .u64 out, .param .u64 n) {
    .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<8>; .reg .f64 %d<4>; .reg .pred %p<8>;
    .reg .v4 .b32 %v; .shared .align 16 .b8 tile[512]; .local .align 16 .b8 depot[64];
    ld.param.u64 %rd0, [out]; ld.param.u64 %rd9, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1; and.b32 %r4, %r4, 127; mul.wide.u32 %rd1, %r4, 4; add.s64 %rd1, %rd0, %rd1;
    mov.u32 %r5, tile; shl.b32 %r6, %r1, 2; add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r4; bar.sync 0;
    ld.shared.v2.u32 {%r7, %r8}, [tile+8]; shfl.sync.bfly.b32 %r9|%p1, %r7, 3, 31, -1; vote.sync.ballot.b32 %r10, %p1, -1;
    mov.u64 %rd2, depot; cvta.local.u64 %rd3, %rd2; st.u32 [%rd3+4], %r9; ld.local.u32 %r11, [%rd2+4];
    atom.global.add.u32 %r12, [%rd1], 3; red.shared.or.b32 [tile+16], %r12; cvt.rn.f32.u32 %f1, %r12; fma.rn.f32 %f2, %f1, %f1, 0f3F800000;
    div.rn.f32 %f3, %f2, %f1; cvt.f64.f32 %d1, %f3; sqrt.rn.f64 %d2, %d1; cvt.rzi.s32.f64 %r13, %d2; mov.b32 {%h1, %h2}, %r13;
    loop: setp.ge.u32 %p2, %r14, 5; @%p2 bra out1; add.u32 %r14, %r14, 1; bra loop;
    out1: and.b32 %r15, %r1, 3; list: .branchtargets a, b, c, d; brx.idx %r15, list; a: b: add.u32 %r14, %r14, 1; c: d:
    { .param .b32 q; .param .align 4 .b8 t[12]; st.param.b32 [t+4], %r1; call (q), twice, (t, 6); ld.param.b32 %r16, [q]; }
    bar.red.popc.u32 %r17, 0, %p1; bar.warp.sync -1; redux.sync.add.s32 %r18, %r16, -1; isspacep.shared %p3, %rd3;
    { .param .b64 f; .param .b64 g; .param .b32 q; mov.u64 %rd4, table; st.param.b64 [f], %rd4; st.param.b64 [g], %rd3;
    call (q), vprintf, (f, g); } ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r19}, [tile]; membar.gl; nanosleep.u32 20;
    ld.const.u32 %r7, [scale]; cp.async.ca.shared.global [tile+32], [%rd0], 16; cp.async.wait_all; mov.u32 %r8, %clock;
    st.global.v2.u32 [%rd0], {%r7, %r8}; selp.b32 %r9, %r7, %r8, %p3; st.global.u32 [%rd1], %r9; ret; }";

/// Refuses what is outside of the buffer, and counts what would have been touched elsewhere.
struct Guarded(Buffer);

impl GlobalMemory for Guarded {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        assert_eq!(into.len(), access.bytes as usize);
        self.0.read(access, into)
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        assert_eq!(bytes.len(), access.bytes as usize);
        self.0.write(access, bytes)
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        assert!(access.bytes <= 16 && access.address.is_multiple_of(u64::from(access.bytes)));
        self.0.atomic(access, change)
    }
}

fn launch(program: &Program, random: &mut fastrand::Rng) {
    let globals = vec![BASE; program.globals().len()];
    for kernel in program.kernels() {
        let mut params = vec![0; kernel.param_bytes.min(1 << 16)];
        params.chunks_mut(8).for_each(|param| {
            let value = if random.bool() {
                BASE + random.u64(..4096)
            } else {
                random.u64(..) >> random.u32(..64)
            };
            param.copy_from_slice(&value.to_le_bytes()[..param.len()]);
        });
        if let [first, ..] = params.as_chunks_mut::<8>().0 {
            *first = BASE.to_le_bytes();
        }
        let mut launch =
            Launch::new(program, kernel, [random.u32(1..4), 1, 1], [random.u32(1..100), 1, 1]);
        launch.params = &params;
        launch.globals = &globals;
        launch.shared_bytes = random.u32(..64);
        launch.limits.instructions = 20_000;
        launch.checks =
            if random.bool() { dmr_ptx::Checks::all() } else { dmr_ptx::Checks::none() };
        let _ = launch.run(&mut Guarded(Buffer::zeroed(1024)));
    }
}

#[test]
fn the_kernel_itself_runs() {
    let program = exec_memory::load(KERNEL);
    let params = exec_memory::params(&[BASE, 8]);
    let mut launch = Launch::new(&program, program.kernel("k").unwrap(), [1, 1, 1], [64, 1, 1]);
    let globals = [BASE + 2048, BASE + 3072];
    launch.params = &params;
    launch.globals = &globals;
    launch.checks = dmr_ptx::Checks::none();
    launch.run(&mut Guarded(Buffer::zeroed(1024))).unwrap_or_else(|fault| panic!("{fault}"));
}

/// Replaces words, numbers and whole statements of the kernel by others of it.
fn mutate(text: &str, random: &mut fastrand::Rng) -> String {
    const NUMBERS: [&str; 12] = [
        "0",
        "1",
        "-1",
        "31",
        "32",
        "4",
        "255",
        "65536",
        "0x7fffffff",
        "0xffffffffffffffff",
        "1000000",
        "16",
    ];
    let mut statements: Vec<String> = text.split_inclusive(';').map(str::to_owned).collect();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..statements.len());
        let other = statements[random.usize(..statements.len())].clone();
        match random.u8(..6) {
            0 => statements[at] = other,
            1 => statements.insert(at, other),
            2 => drop(statements.remove(at)),
            _ => {
                let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '%' | '.');
                let words: Vec<&str> =
                    statements[at].split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
                let others: Vec<&str> =
                    other.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
                if let (false, false) = (words.is_empty(), others.is_empty()) {
                    let word = words[random.usize(..words.len())];
                    let digits = word.trim_start_matches(|c: char| !c.is_ascii_digit());
                    let by = if digits == word {
                        NUMBERS[random.usize(..NUMBERS.len())]
                    } else {
                        others[random.usize(..others.len())]
                    };
                    statements[at] = statements[at].replacen(word, by, 1);
                }
            }
        }
    }
    statements.concat()
}

#[test]
fn mutated_kernels_end_with_faults() {
    let programs: u64 =
        std::env::var("DMR_PTX_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(1500);
    let mut loaded = 0;
    for seed in 0..programs {
        let mut random = fastrand::Rng::with_seed(seed);
        let text = mutate(KERNEL, &mut random);
        let Ok(program) = Program::load(&format!("{HEADER}{text}")) else { continue };
        if program.kernels().iter().any(|kernel| kernel.refusal.is_none()) {
            loaded += 1;
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            launch(&program, &mut random)
        }));
        assert!(result.is_ok(), "program {seed} panics:\n{text}");
    }
    assert!(loaded > programs / 10, "only {loaded} of {programs} programs can run");
}

#[test]
fn random_programs_of_a_few_statements_end_with_faults() {
    let pool = support::programs::Pool::new();
    assert!(pool.len() > 400, "{}", pool.len());
    let programs = 3000;
    let mut ran = 0;
    for number in 0..programs {
        let text = pool.program(number);
        let run =
            || Program::load(&text).is_ok_and(|program| support::programs::run(&program, number));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        assert!(result.is_ok(), "program {number} panics:\n{text}");
        ran += u64::from(result.unwrap_or(false));
    }
    assert!(ran > programs / 3, "only {ran} of {programs} programs ran");
}

#[test]
fn an_access_at_the_end_of_all_addresses_is_refused() {
    for access in
        ["ld.global.v4.u32 {%r1, _, %r3, %r4}, [%rd1+-16]", "st.global.u32 [%rd1+-4], %r1"]
    {
        let body = format!(
            ".reg .b32 %r<8>; .reg .b64 %rd<4>; mov.u32 %r1, 0; mov.u64 %rd1, 0; {access}; ret;"
        );
        let text = format!("{HEADER}.visible .entry k() {{ {body} }}");
        let program = Program::load(&text).unwrap();
        let launch = Launch::new(&program, program.kernel("k").unwrap(), [1; 3], [64, 1, 1]);
        let fault = launch.run(&mut Guarded(Buffer::zeroed(16))).unwrap_err();
        assert!(matches!(fault.kind, dmr_ptx::FaultKind::Memory { .. }), "{fault}");
    }
}

#[test]
fn a_reduction_at_a_barrier_may_drop_its_result() {
    let text = format!(
        "{HEADER}.visible .entry k() {{ .reg .pred %p; setp.eq.u32 %p, 0, 0; bar.red.popc.u32 _, 0, %p; ret; }}"
    );
    let program = Program::load(&text).unwrap();
    let launch = Launch::new(&program, program.kernel("k").unwrap(), [1; 3], [64, 1, 1]);
    launch.run(&mut Guarded(Buffer::zeroed(16))).unwrap();
}

#[test]
fn volatile_accesses_at_the_end_of_the_address_space_are_refused() {
    for access in [
        "ld.volatile.shared.u32 %r1, [%rd1]",
        "st.volatile.shared.u32 [%rd1], 1",
        "ld.volatile.global.u32 %r1, [%rd1]",
        "atom.shared.add.u32 %r1, [%rd1], 1",
        "ld.volatile.u32 %r1, [%rd1]",
    ] {
        let text = format!(
            ".visible .entry k() {{ .shared .align 4 .b8 all[64]; .reg .b32 %r<4>; .reg .b64 %rd<4>;
                 mov.u32 %r2, all; mov.u64 %rd1, -4; {access}; ret; }}"
        );
        let fault = run(&text, 1, 1, &[], &mut Buffer::zeroed(1)).unwrap_err();
        // Above shared memory are the addresses of other blocks of a cluster.
        let is_refused = matches!(fault.kind, FaultKind::Invalid(_) | FaultKind::Memory { .. });
        assert!(is_refused, "{access}: {fault}");
    }
}

#[test]
fn a_block_has_less_shared_memory_than_addresses_have_room_for() {
    let program = load(
        ".extern .shared .align 4 .b8 all[]; .visible .entry k() { .reg .b32 %r<2>; mov.u32 %r1, all; ret; }",
    );
    let mut memory = Buffer::zeroed(1);
    let launched = run_with(&program, 1, 1, &[], &mut memory, |launch| {
        launch.limits.shared_bytes = u32::MAX;
        launch.shared_bytes = (1 << 24) + 1;
    });
    let fault = launched.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::InvalidLaunch(_)), "{fault}");
}

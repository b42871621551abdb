//! Values that were read where no thread has written: found where they matter, and nowhere else.

use crate::exec_memory::{BASE, Buffer, load, run, run_with};
use dmr_ptx::{
    Access, AccessError, Checks, Fault, FaultKind, GlobalMemory, Launch, Program, SpaceName,
};

/// Word 0 of `tile` is 5, and the rest of shared memory and `depot` is unwritten; the first
/// unwritten word is in `%r5`, read in line 40 of the source. Thread number in `%r1`, the address
/// of shared memory in `%r3`.
fn kernel(body: &str) -> String {
    format!(
        ".file 1 \"use.cu\"
.func (.param .b32 back) same(.param .b32 value) {{ .reg .b32 %r; ld.param.b32 %r, [value];
    st.param.b32 [back], %r; ret; }}
.func (.reg .b32 back) passed(.reg .b32 value) {{ mov.b32 back, value; ret; }}
.func drop(.param .b32 value) {{ ret; }}
.visible .entry k(.param .u64 out) {{
    .reg .b16 %h<8>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .f32 %f<4>;
    .shared .align 16 .b8 tile[256]; .local .align 16 .b8 depot[64];
    ld.param.u64 %rd0, [out]; mov.u32 %r1, %tid.x; mov.u32 %r3, tile;
    setp.ne.u32 %p0, %r1, 0; @%p0 bra go; st.shared.u32 [tile], 5; go: bar.sync 0;
    .loc 1 40 1
    ld.shared.u32 %r5, [tile+4];
    .loc 1 50 1
    {body}
    ret;
}}"
    )
}

fn run_one(body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let mut memory = Buffer::zeroed(64);
    run(&kernel(body), 1, 1, &[BASE], &mut memory).map(|_| memory.words())
}

/// Uses of the value, and what is reported.
const USES: [(&str, &str); 25] = [
    ("setp.eq.u32 %p1, %r5, 0; @%p1 bra end; end:", "a branch"),
    ("setp.eq.u32 %p1, %r5, 1; @%p1 bra end; end:", "a branch"),
    ("setp.eq.u32 %p1, %r5, 0; @!%p1 st.global.u32 [%rd0], 1;", "the predicate of an instruction"),
    ("setp.eq.u32 %p1, %r5, 1; @%p1 exit;", "the predicate of an instruction"),
    ("mad.wide.u32 %rd1, %r5, 4, %rd0; ld.global.u32 %r6, [%rd1];", "an address"),
    ("mad.wide.u32 %rd1, %r5, 4, %rd0; st.global.u32 [%rd1], 1;", "an address"),
    ("add.u32 %r6, %r5, %r3; ld.shared.u32 %r7, [%r6];", "an address"),
    ("atom.global.add.u32 %r6, [%rd0], %r5;", "an atomic operation"),
    ("red.global.add.u32 [%rd0], %r5;", "an atomic operation"),
    ("atom.global.cas.b32 %r6, [%rd0], 0, %r5;", "an atomic operation"),
    ("shfl.sync.idx.b32 %r6, %r1, %r5, 31, 1;", "the source lane of a shuffle"),
    (
        "shfl.sync.idx.b32 %r6, %r5, 0, 31, 1; setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:",
        "a branch",
    ),
    (
        "vote.sync.any.pred %p1, %p2, 1; setp.eq.u32 %p2, %r5, 0; vote.sync.any.pred %p1, %p2, 1; @%p1 bra end; end:",
        "a branch",
    ),
    ("bar.sync %r5;", "an operand"),
    ("nanosleep.u32 %r5;", "an operand"),
    // Through instructions, memory and calls.
    (
        "add.u32 %r6, %r5, 1; xor.b32 %r6, %r6, %r1; not.b32 %r6, %r6; setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:",
        "a branch",
    ),
    (
        "cvt.rn.f32.u32 %f1, %r5; fma.rn.f32 %f1, %f1, %f1, %f1; setp.gt.f32 %p1, %f1, %f1; @%p1 bra end; end:",
        "a branch",
    ),
    (
        "setp.eq.u32 %p1, %r5, 0; selp.u32 %r6, 1, 2, %p1; setp.eq.u32 %p2, %r6, 1; @%p2 bra end; end:",
        "a branch",
    ),
    (
        "setp.eq.u32 %p1, %r5, 7; @%p1 mov.u32 %r1, 9; setp.eq.u32 %p2, %r1, 9; @%p2 bra end; end:",
        "a branch",
    ),
    (
        "mov.b64 %rd2, {%r1, %r5}; mov.b64 {%r6, %r7}, %rd2; setp.eq.u32 %p1, %r7, 0; @%p1 bra end; end:",
        "a branch",
    ),
    ("prmt.b32 %r6, %r1, %r5, 0x4210; setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:", "a branch"),
    (
        "mov.u32 %r6, 3; and.b32 %r6, %r6, %r5; setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:",
        "a branch",
    ),
    ("call (%r6), passed, (%r5); setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:", "a branch"),
    (
        "{ .param .b32 v; st.param.b32 [v], %r5; call drop, (v); } setp.eq.u32 %p1, %r5, 0; @%p1 bra end; end:",
        "a branch",
    ),
    (
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [tile+128]; setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:",
        "a branch",
    ),
];

#[test]
fn an_undefined_value_is_found_where_it_matters_with_the_thread_and_line_of_read_and_use() {
    for (body, expected) in USES {
        let program = load(&kernel(body));
        let run = |checks: fn(&mut Checks)| {
            run_with(&program, 1, 32, &[BASE], &mut Buffer::zeroed(64), |launch| {
                launch.checks.shared_races = false;
                launch.checks.global_races = false;
                launch.checks.divergence = false;
                checks(&mut launch.checks);
            })
        };
        let Err(fault) = run(|_| {}) else { panic!("{body}: nothing is found") };
        let FaultKind::Uninitialised { space, address, ref reader, ref read, used, .. } =
            fault.kind
        else {
            panic!("{body}: {fault}")
        };
        let line = |place: &dmr_ptx::Place| place.source.as_ref().map(|source| source.line);
        let (at, of_read) = if body.contains("ldmatrix") { (128, 50) } else { (4, 40) };
        assert_eq!((space, address), (SpaceName::Shared, at), "{body}: {fault}");
        assert_eq!(used, expected, "{body}: {fault}");
        assert_eq!((line(read), line(&fault.place)), (Some(of_read), Some(50)), "{body}: {fault}");
        assert_eq!((reader.thread, fault.thread.thread), ([0; 3], [0; 3]), "{body}: {fault}");
        let off = run(|checks| checks.uninitialised = false);
        off.unwrap_or_else(|fault| panic!("{body}: {fault}"));
    }
}

#[test]
fn what_goes_through_memory_is_found_at_its_use_and_names_the_last_read() {
    let through = [
        (SpaceName::Shared, "st.shared.u32 [tile], %r5; ld.shared.u32 %r6, [tile];"),
        (
            SpaceName::Shared,
            "st.shared.v2.u32 [tile+8], {%r1, %r5}; ld.shared.v2.u32 {%r7, %r6}, [tile+8];",
        ),
        (
            SpaceName::Local,
            "{ .param .b32 v; .param .b32 b; st.param.b32 [v], %r5; call (b), same, (v);
            ld.param.b32 %r6, [b]; }",
        ),
        (SpaceName::Local, "st.local.u32 [depot], %r5; ld.local.u32 %r6, [depot];"),
        (
            SpaceName::Local,
            "st.local.u64 [depot], 0; st.local.u8 [depot+1], %r5; ld.local.u8 %r6, [depot+1];",
        ),
    ];
    for (space, body) in through {
        let used = format!("{body} .loc 1 60 1\nsetp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:");
        let fault = run_one(&used).unwrap_err();
        let FaultKind::Uninitialised { space: found, ref read, .. } = fault.kind else {
            panic!("{body}: {fault}")
        };
        assert_eq!(found, space, "{body}: {fault}");
        assert_eq!(read.source.as_ref().map(|source| source.line), Some(50), "{fault}");
        assert_eq!(fault.place.source.as_ref().map(|source| source.line), Some(60), "{fault}");
        run_one(body).unwrap_or_else(|fault| panic!("{body}: {fault}"));
    }
}

/// Instructions that use the value without an effect, or make a defined value of it, and the word
/// that they store.
const HARMLESS: [(&str, u32); 18] = [
    ("mov.u32 %r6, 1;", 1),
    ("add.u32 %r7, %r5, 1; mov.u32 %r6, 2;", 2),
    (
        "setp.eq.u32 %p1, %r5, 0; setp.eq.u32 %p2, %r1, 9; and.pred %p1, %p1, %p2; selp.u32 %r6, 1, 2, %p1;",
        2,
    ),
    (
        "setp.eq.u32 %p1, %r5, 0; setp.ne.u32 %p2, %r1, 9; or.pred %p1, %p1, %p2; selp.u32 %r6, 1, 2, %p1;",
        1,
    ),
    ("setp.ne.u32 %p1, %r1, 9; selp.u32 %r6, 7, %r5, %p1;", 7),
    ("and.b32 %r6, %r5, 0;", 0),
    ("or.b32 %r6, %r5, -1;", u32::MAX),
    ("xor.b32 %r6, %r5, %r5;", 0),
    ("shl.b32 %r6, %r5, 16; and.b32 %r6, %r6, 0xffff;", 0),
    ("mov.b64 %rd2, {%r1, %r5}; mov.b64 {%r6, %r7}, %rd2;", 0),
    ("mov.b64 %rd2, {%r1, %r5}; cvt.u32.u64 %r6, %rd2;", 0),
    ("mov.b64 %rd2, {%r5, %r1}; shr.u64 %rd2, %rd2, 32; cvt.u32.u64 %r6, %rd2;", 0),
    ("prmt.b32 %r6, %r1, %r5, 0x3210;", 0),
    ("mov.u32 %r5, 4; add.u32 %r6, %r5, 1;", 5),
    // The other register of a vector, and the other bytes of a word.
    ("ld.shared.v2.u32 {%r6, %r7}, [tile];", 5),
    ("st.local.u16 [depot], 9; ld.local.u32 %r6, [depot]; and.b32 %r6, %r6, 0xffff;", 9),
    // Memory that is written after all.
    ("st.shared.u32 [tile+4], %r5; st.shared.u32 [tile+4], 6; ld.shared.u32 %r6, [tile+4];", 6),
    (
        "{ .param .b32 v; .param .b32 b; st.param.b32 [v], 8; call (b), same, (v); ld.param.b32 %r6, [b]; }",
        8,
    ),
];

#[test]
fn an_undefined_value_that_does_not_matter_is_no_fault() {
    for (body, expected) in HARMLESS {
        // A branch, so that the value matters.
        let used = format!(
            "{body} setp.eq.u32 %p6, %r6, {expected}; @!%p6 bra end; st.global.u32 [%rd0], 77; end:"
        );
        let words = run_one(&used).unwrap_or_else(|fault| panic!("{body}: {fault}"));
        assert_eq!(words[0], 77, "{body}");
    }
}

#[test]
fn only_the_lanes_that_have_an_undefined_value_are_found() {
    // The even lanes have written a word. Each lane reads its own, or that of the lane before it.
    let body = |shift: u32| {
        format!(
            "and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 0; mad.lo.u32 %r7, %r1, 4, %r3;
            @%p1 st.shared.u32 [%r7+8], %r1; ld.shared.u32 %r8, [%r7+8];
            shfl.sync.up.b32 %r9, %r8, {shift}, 0, -1;
            @!%p1 bra odd; setp.eq.u32 %p2, %r9, 1000; @%p2 bra odd; odd:"
        )
    };
    let run = |body: &str| run(&kernel(body), 1, 32, &[BASE], &mut Buffer::zeroed(64));
    run(&body(0)).unwrap();
    run(&body(2)).unwrap();
    let fault = run(&body(1)).unwrap_err();
    let FaultKind::Uninitialised { ref reader, .. } = fault.kind else { panic!("{fault}") };
    assert_eq!((reader.thread, fault.thread.thread), ([1, 0, 0], [2, 0, 0]), "{fault}");
}

/// Global memory that has the addresses of the stores whose bytes are undefined.
struct Noting(Buffer, Vec<u64>);

impl GlobalMemory for Noting {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        self.0.read(access, into)
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        self.0.write(access, bytes)
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        self.0.atomic(access, change)
    }

    fn undefine(&mut self, access: &Access) {
        assert_eq!(access.bytes, access.lane_bytes);
        self.1.extend((access.address - BASE)..(access.address - BASE) + u64::from(access.bytes));
    }
}

#[test]
fn an_element_of_a_product_is_undefined_by_its_row_its_column_and_its_sum_only() {
    const PRODUCT: &str =
        "mov.f32 %f0, 0f00000000; mov.b32 %r6, 0; and.b32 %r9, %r1, 3; setp.lt.u32 %p2, %r9, 2;
        setp.lt.u32 %p3, %r1, 16; selp.b32 %r7, 0, %r5, %p3; mov.b32 %f1, %r5;";
    const MMA: &str = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}";
    // Rows from 8 on; columns from 4 on, which lanes 2 and 3 of each four have; the second element
    // of C.
    for (sources, use_of, is_found) in [
        ("{%r6, %r5}, {%r6}, {%f0, %f0, %f0, %f0}", "setp.eq.f32 %p1, %f3, %f0; @%p1", false),
        ("{%r6, %r5}, {%r6}, {%f0, %f0, %f0, %f0}", "setp.eq.f32 %p1, %f4, %f0; @%p1", true),
        (
            "{%r6, %r6}, {%r7}, {%f0, %f0, %f0, %f0}",
            "setp.eq.f32 %p1, %f2, %f0; selp.b32 %r8, 1, 0, %p1; selp.b32 %r8, %r8, 0, %p2; setp.ne.u32 %p1, %r8, 0; @%p1",
            false,
        ),
        ("{%r6, %r6}, {%r7}, {%f0, %f0, %f0, %f0}", "setp.eq.f32 %p1, %f2, %f0; @%p1", true),
        ("{%r6, %r6}, {%r6}, {%f0, %f1, %f0, %f0}", "setp.eq.f32 %p1, %f2, %f0; @%p1", false),
        ("{%r6, %r6}, {%r6}, {%f0, %f1, %f0, %f0}", "setp.eq.f32 %p1, %f3, %f0; @%p1", true),
    ] {
        let body = format!("{PRODUCT} {MMA}, {sources}; {use_of} bra end; end:");
        let text = kernel(&body).replace("%f<4>", "%f<8>");
        let ended = run(&text, 1, 32, &[BASE], &mut Buffer::zeroed(64));
        match ended {
            Ok(_) => assert!(!is_found, "{sources} {use_of}"),
            Err(fault) => assert!(
                is_found && matches!(fault.kind, FaultKind::Uninitialised { used: "a branch", .. }),
                "{sources} {use_of}: {fault}"
            ),
        }
    }
}

#[test]
fn a_store_of_an_undefined_value_to_global_memory_is_noted_but_for_the_padding_of_a_vector() {
    let program = load(&kernel(
        "st.global.u32 [%rd0], %r1; st.global.u32 [%rd0+8], %r5;
        st.global.v2.u32 [%rd0+16], {%r5, %r1}; st.global.v2.u32 [%rd0+24], {%r5, %r5};",
    ));
    let params = BASE.to_le_bytes();
    let mut launch = Launch::new(&program, &program.kernels()[0], [1; 3], [1; 3]);
    launch.params = &params;
    let mut memory = Noting(Buffer::zeroed(16), Vec::new());
    launch.run(&mut memory).unwrap();
    assert_eq!(memory.1, (8..12).chain(24..32).collect::<Vec<_>>());
}

const MERGES: &str = include_str!("../fixtures/merges.ptx");

fn sort(kernel: &str, memory: &mut Buffer, params: &[u64], text: &str) -> Result<(), Box<Fault>> {
    let program = Program::load(text).unwrap();
    let mut bytes: Vec<u8> = params.iter().flat_map(|param| param.to_le_bytes()).collect();
    let kernel = program.kernel(kernel).unwrap();
    bytes.resize(kernel.param_bytes.max(bytes.len()), 0);
    let mut launch = Launch::new(&program, kernel, [1; 3], [64, 1, 1]);
    launch.params = &bytes;
    launch.run(memory).map(|_| ())
}

#[test]
fn the_merge_sorts_of_cub_are_right_and_clean() {
    let keys: Vec<u32> = (0..256u32).map(|n| n.wrapping_mul(0x9e37_79b9) >> 16).collect();
    let mut memory = Buffer::of_words(&keys);
    sort("sort_warps", &mut memory, &[BASE], MERGES).unwrap();
    let mut expected = keys.clone();
    expected.chunks_mut(64).for_each(<[u32]>::sort_unstable);
    assert_eq!(memory.words(), expected);

    let mut memory = Buffer::of_words(&keys[..192]);
    sort("sort_ints", &mut memory, &[BASE], MERGES).unwrap();
    let mut expected = keys[..192].to_vec();
    expected.sort_unstable();
    assert_eq!(memory.words(), expected);

    // Numbers of 8 bytes with a word behind each, and a word of padding.
    let pairs = |keys: &[u32]| -> Vec<u32> {
        let one = |&key: &u32| {
            let bits = f64::from(key).to_bits();
            [bits as u32, (bits >> 32) as u32, key ^ 0xff, 0]
        };
        keys.iter().flat_map(one).collect()
    };
    let mut memory = Buffer::of_words(&pairs(&keys[..128]));
    sort("sort_pairs", &mut memory, &[BASE], MERGES).unwrap();
    let mut expected = keys[..128].to_vec();
    expected.sort_unstable();
    assert_eq!(memory.words(), pairs(&expected));

    for count in [1, 100, 191, 192] {
        let mut memory = Buffer::of_words(&[&keys[..192], &[0; 192]].concat());
        sort("sort_part", &mut memory, &[BASE, BASE + 768, count], MERGES).unwrap();
        let mut expected: Vec<(u32, u32)> = keys[..192].iter().copied().zip(0..).collect();
        expected.truncate(count as usize);
        expected.sort_unstable();
        let words = memory.words();
        let found: Vec<(u32, u32)> =
            words.iter().copied().zip(words[192..].iter().copied()).take(count as usize).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_merge_sort_that_uses_the_key_beyond_its_part_is_found() {
    // A loop that does not stop at the end of the second part.
    let end = "and.pred  	%p8, %p4, %p7;";
    assert!(MERGES.contains(end));
    let planted = MERGES.replacen(end, "mov.pred %p8, %p7;", 1);
    let mut memory = Buffer::of_words(&(0..192u32).rev().collect::<Vec<_>>());
    let fault = sort("sort_ints", &mut memory, &[BASE], &planted).unwrap_err();
    assert!(
        matches!(fault.kind, FaultKind::Uninitialised { used: "a branch", address: 768, .. }),
        "{fault}"
    );
}

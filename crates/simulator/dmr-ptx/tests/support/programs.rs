//! Random programs for the interpreter: a few statements of the fixtures and tests, with words
//! changed, in a small kernel.
#![allow(dead_code, reason = "each user needs a part of it")]

use dmr_ptx::{Access, AccessError, Checks, GlobalMemory, Launch, Program};

/// The address of the first byte of global memory.
pub(crate) const BASE: u64 = 0x1000_0000_0000;
/// The bytes of global memory.
const BYTES: usize = 4096;

const HEAD: &str = ".version 8.6\n.target sm_90a\n.address_size 64\n";

/// Declarations outside of the kernel, each with the name that needs it.
const DECLARATIONS: [(&str, &str); 6] = [
    ("vprintf", ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"),
    (
        "__assertfail",
        ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);\n",
    ),
    ("table", ".global .align 8 .b8 table[64] = {37, 100, 10, 37, 115, 0, 1, 2, 3};\n"),
    ("scale", ".const .align 4 .u32 scale = 5;\n"),
    ("more", ".extern .shared .align 16 .b8 more[];\n"),
    (
        "twice",
        ".func (.param .b32 r) twice(.param .align 4 .b8 s[12], .reg .u32 x) { .reg .b32 %r<4>; .local .u32 l[4];
        .reg .pred %p; ld.param.u32 %r1, [s+4]; st.local.u32 [l+4], %r1; setp.gt.u32 %p, x, 3; @%p bra deep;
        add.u32 %r1, %r1, x; st.param.b32 [r], %r1; ret;
        deep: { .param .b32 q; .param .align 4 .b8 t[12]; sub.u32 %r2, x, 1; st.param.b32 [t+4], %r2;
        call (q), twice, (t, %r2); ld.param.b32 %r3, [q]; } st.param.b32 [r], %r3; ret; }\n",
    ),
];

/// The beginning of the kernel: registers with values, and addresses of every space in the first of
/// `%rd`.
const START: &str = ".visible .entry k(.param .u64 out, .param .u64 n) {
.reg .b16 %h<8>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<8>; .reg .f64 %d<8>; .reg .pred %p<8>; .reg .b128 %q<2>;
.reg .v4 .b32 %v; .shared .align 16 .b8 tile[512]; .local .align 16 .b8 depot[64];
ld.param.u64 %rd0, [out]; ld.param.u64 %rd9, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u64 %rd2, depot;
mad.wide.u32 %rd1, %r1, 4, %rd0; shl.b32 %r6, %r1, 2; add.u32 %r5, %r2, %r6; setp.gt.u32 %p1, %r1, 5;
cvta.local.u64 %rd3, %rd2; cvta.shared.u64 %rd4, tile; cvt.rn.f32.u32 %f1, %r1; cvt.rn.f64.u32 %d1, %r1;
";

/// The texts whose statements are in the pool. What is no statement is left out when the pool is
/// made.
const SOURCES: [&str; 15] = [
    include_str!("../fixtures/vectors.ptx"),
    include_str!("../fixtures/blocks.ptx"),
    include_str!("../fixtures/calls.ptx"),
    include_str!("../fixtures/matrices.ptx"),
    include_str!("../fixtures/forms.ptx"),
    include_str!("../it/exec_hostile.rs"),
    include_str!("../it/exec_flow.rs"),
    include_str!("../it/exec_warp.rs"),
    include_str!("../it/exec_mbarrier.rs"),
    include_str!("../it/exec_checks.rs"),
    include_str!("../it/exec_arith.rs"),
    include_str!("../it/exec_copies.rs"),
    include_str!("../it/exec_grid.rs"),
    include_str!("../it/exec_tensors.rs"),
    include_str!("../it/exec_uniform.rs"),
];

/// Statements of several parts.
const BLOCKS: [&str; 10] = [
    "{ .param .b32 q; .param .align 4 .b8 t[12]; st.param.b32 [t+4], %r1; call (q), twice, (t, 6); ld.param.b32 %r16, [q]; }",
    "{ .param .b32 q; .param .align 4 .b8 t[12]; st.param.b32 [t+4], %r1; call (q), twice, (t, %r1); ld.param.b32 %r16, [q]; }",
    "{ .param .b32 q; .param .align 4 .b8 t[12]; mov.u64 %rd8, twice; st.param.b32 [t+4], %r1;
    proto: .callprototype (.param .b32 _) _ (.param .align 4 .b8 _[12], .reg .u32 _); call (q), %rd8, (t, 2), proto; ld.param.b32 %r16, [q]; }",
    "{ .param .b64 f; .param .b64 g; .param .b32 q; mov.u64 %rd8, table; cvta.global.u64 %rd8, %rd8; st.param.b64 [f], %rd8;
    st.param.b64 [g], %rd3; call (q), vprintf, (f, g); }",
    "{ .param .b64 a; .param .b32 l; mov.u64 %rd8, table; st.param.b64 [a], %rd8; st.param.b32 [l], 7;
    call __assertfail, (a, a, l, a, a); }",
    "and.b32 %r15, %r1, 3; list: .branchtargets la, lb, lc; @%p1 brx.idx %r15, list; la: lb: add.u32 %r14, %r14, 1; lc:",
    "mbarrier.init.shared.b64 [tile+64], 4; mbarrier.arrive.shared.b64 %rd7, [tile+64]; mbarrier.test_wait.shared.b64 %p3, [tile+64], %rd7",
    "st.shared.u32 [%r5], %r1; bar.sync 0; ld.shared.v2.u32 {%r7, %r8}, [tile+8]",
    "cp.async.ca.shared.global [tile+32], [%rd0], 16; cp.async.commit_group; cp.async.wait_group 0",
    "spin: atom.global.cas.b32 %r4, [%rd0], 0, 1; setp.ne.s32 %p4, %r4, 0; @%p4 bra spin; atom.global.exch.b32 %r4, [%rd0], 0",
];

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "31",
    "32",
    "4",
    "16",
    "255",
    "4096",
    "65536",
    "0x7fffffff",
    "0xffffffffffffffff",
    "0f7F800000",
    "0d7FF8000000000000",
];

/// The statements that programs are made of, and their words.
pub(crate) struct Pool {
    statements: Vec<String>,
    words: Vec<String>,
}

impl Pool {
    /// Collects the statements that the interpreter supports in the kernel.
    pub(crate) fn new() -> Self {
        let mut statements = Vec::new();
        let pieces = SOURCES.iter().flat_map(|source| source.split([';', '\n', '"']));
        let pieces = pieces.chain(BLOCKS);
        for piece in pieces {
            let statement = renamed(piece.trim());
            let starts =
                statement.starts_with(|c: char| c.is_ascii_lowercase() || "@{".contains(c));
            if !starts || statements.contains(&statement) {
                continue;
            }
            let text = program_of(&[format!("{statement};")]);
            let runs = Program::load(&text)
                .is_ok_and(|program| program.kernels().iter().all(|it| it.refusal.is_none()));
            if runs {
                statements.push(statement);
            }
        }
        let mut words: Vec<String> = Vec::new();
        for word in statements.iter().flat_map(|statement| words_of(statement)) {
            if !words.iter().any(|known| known == word) {
                words.push(word.to_owned());
            }
        }
        Self { statements, words }
    }

    /// Returns the number of statements.
    pub(crate) fn len(&self) -> usize {
        self.statements.len()
    }

    /// Returns the number of statements of several parts.
    pub(crate) fn blocks(&self) -> usize {
        self.statements.iter().filter(|statement| statement.contains(';')).count()
    }

    /// Returns program number `number`: the same one at each call.
    pub(crate) fn program(&self, number: u64) -> String {
        let mut random = fastrand::Rng::with_seed(number);
        let mut body = Vec::new();
        let mut open = None;
        for at in 0..random.usize(1..10) {
            // The last ones are blocks, which come more often than others.
            let last = self.statements.len() - BLOCKS.len();
            let from = if random.u8(..16) == 0 { last } else { 0 };
            let mut statement = self.statements[random.usize(from..self.statements.len())].clone();
            if random.u8(..6) == 0 {
                statement = self.mutated(&statement, &mut random);
            }
            match (random.u8(..16), open) {
                // A loop, or a branch over statements.
                (0, None) => {
                    body.push(format!("l{at}:"));
                    open = Some((at, false));
                }
                (1, None) => {
                    body.push(format!("@%p{} bra l{at};", random.u8(..8)));
                    open = Some((at, true));
                }
                (2..6, Some((label, forward))) => {
                    let end =
                        if forward { format!("l{label}:") } else { format!("@%p1 bra l{label};") };
                    body.push(end);
                    open = None;
                }
                _ => {}
            }
            if random.u8(..8) == 0 && !statement.starts_with('@') {
                statement = format!("@%p{} {statement}", random.u8(..8));
            }
            body.push(format!("{statement};"));
        }
        if let Some((label, _)) = open.filter(|(_, forward)| *forward) {
            body.push(format!("l{label}:"));
        }
        program_of(&body)
    }

    fn mutated(&self, statement: &str, random: &mut fastrand::Rng) -> String {
        let words: Vec<&str> = words_of(statement).collect();
        let Some(word) = random.choice(words) else { return statement.to_owned() };
        let by = match (word.split_once('.'), random.u8(..3)) {
            (_, 0) => NUMBERS[random.usize(..NUMBERS.len())].to_owned(),
            // One modifier of an instruction by one of another.
            (Some((name, _)), 1) if !word.starts_with('%') => {
                let mut parts: Vec<&str> = word.split('.').skip(1).collect();
                let others: Vec<&str> =
                    self.words[random.usize(..self.words.len())].split('.').collect();
                let at = random.usize(..parts.len());
                parts[at] = others[random.usize(..others.len())];
                std::iter::once(name).chain(parts).collect::<Vec<_>>().join(".")
            }
            _ => self.words[random.usize(..self.words.len())].clone(),
        };
        statement.replacen(word, &by, 1)
    }
}

/// Returns a program with a kernel of these statements.
fn program_of(body: &[String]) -> String {
    let body = body.concat();
    let mut text = HEAD.to_owned();
    for (name, declaration) in DECLARATIONS {
        if body.contains(name) {
            text.push_str(declaration);
        }
    }
    text + START + &body + "\nret; }\n"
}

fn words_of(statement: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '%' | '.' | '$');
    statement.split(move |c| !is_word(c)).filter(|word| !word.is_empty())
}

/// Replaces the registers of a statement by those of the kernel, by prefix.
fn renamed(statement: &str) -> String {
    const KNOWN: [(&str, &str, u64); 9] = [
        ("rs", "h", 8),
        ("rd", "rd", 20),
        ("fd", "d", 8),
        ("h", "h", 8),
        ("r", "r", 20),
        ("f", "f", 8),
        ("d", "d", 8),
        ("p", "p", 8),
        ("rq", "q", 2),
    ];
    let mut parts = statement.split('%');
    let mut renamed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_alphanumeric()).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let (prefix, number) = name.split_at(digits);
        let known = KNOWN.iter().find(|(known, _, _)| *known == prefix);
        match (known, number.parse::<u64>()) {
            (Some((_, prefix, count)), Ok(number)) => {
                renamed.push_str(&format!("%{prefix}{}", number % count));
            }
            _ => renamed.push_str(&format!("%{name}")),
        }
        renamed.push_str(rest);
    }
    renamed
}

/// Global memory that refuses what is outside of its bytes, and checks what it is asked for.
struct Guarded(Vec<u8>);

impl Guarded {
    fn part(&mut self, access: &Access, bytes: usize) -> Result<&mut [u8], AccessError> {
        assert_eq!(bytes, access.bytes as usize);
        let start = access.address.wrapping_sub(BASE);
        let end = start.saturating_add(u64::from(access.bytes));
        if end > self.0.len() as u64 {
            return Err(AccessError::new(0, "out of bounds"));
        }
        Ok(&mut self.0[start as usize..end as usize])
    }
}

impl GlobalMemory for Guarded {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(self.part(access, into.len())?);
        Ok(())
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        self.part(access, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        assert!(access.bytes <= 16);
        change(self.part(access, access.bytes as usize)?);
        Ok(())
    }
}

/// Runs the kernels of a program in a few threads, with random parameters. Returns whether one
/// could be run.
pub(crate) fn run(program: &Program, number: u64) -> bool {
    let random = &mut fastrand::Rng::with_seed(!number);
    let globals = vec![BASE; program.globals().len()];
    let mut ran = false;
    for kernel in program.kernels().iter().filter(|kernel| kernel.refusal.is_none()) {
        let mut params = vec![0; kernel.param_bytes.min(1 << 16)];
        for (index, param) in params.chunks_mut(8).enumerate() {
            let value = match random.u8(..4) {
                _ if index == 0 => BASE,
                0 => BASE + random.u64(..4096),
                1 => random.u64(..16),
                _ => random.u64(..) >> random.u32(..64),
            };
            param.copy_from_slice(&value.to_le_bytes()[..param.len()]);
        }
        let blocks = random.u32(1..3);
        let threads = random.u32(1..40);
        let mut launch = Launch::new(program, kernel, [blocks, 1, 1], [threads, 1, 1]);
        launch.params = &params;
        launch.globals = &globals;
        launch.shared_bytes = random.u32(..64);
        launch.limits.instructions = 500;
        launch.checks = if random.bool() { Checks::all() } else { Checks::none() };
        let _ = launch.run(&mut Guarded(vec![0; BYTES]));
        ran = true;
    }
    ran
}

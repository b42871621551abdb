//! Instructions whose sources are the same in all lanes are computed once: random programs give
//! what they give lane by lane.

use std::fmt::Write;

use crate::exec_memory::{BASE, Buffer, run};

/// The registers of a program, which stores them all at its end.
const REGISTERS: u32 = 8;
const PREDICATES: u32 = 4;
/// The threads of two blocks with a warp in part.
const THREADS: u32 = 80;
const PROGRAMS: u64 = 400;

/// A program in the making.
struct Writer {
    random: fastrand::Rng,
    text: String,
    labels: u32,
    counters: u32,
}

impl Writer {
    fn line(&mut self, line: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "    {line}");
    }

    fn register(&mut self) -> String {
        format!("%r{}", self.random.u32(..REGISTERS))
    }

    fn source(&mut self) -> String {
        match self.random.u32(..6) {
            0 => self.random.u32(..40).to_string(),
            1 => "%tid.x".to_owned(),
            2 => "%ctaid.x".to_owned(),
            _ => self.register(),
        }
    }

    fn predicate(&mut self) -> String {
        format!("%p{}", self.random.u32(..PREDICATES))
    }

    fn guard(&mut self) -> String {
        match self.random.u32(..8) {
            0 => format!("@{} ", self.predicate()),
            1 => format!("@!{} ", self.predicate()),
            _ => String::new(),
        }
    }

    fn instruction(&mut self) {
        let guard = self.guard();
        let d = self.register();
        let [a, b, c] = [(); 3].map(|()| self.source());
        let p = self.predicate();
        let q = self.predicate();
        let line = match self.random.u32(..16) {
            0 => format!("mov.u32 {d}, {a};"),
            1 => format!("sub.s32 {d}, {a}, {b};"),
            2 => format!("mul.lo.u32 {d}, {a}, {b};"),
            3 => format!("mad.lo.u32 {d}, {a}, {b}, {c};"),
            4 => format!("shl.b32 {d}, {a}, {b};"),
            5 => format!("rem.u32 {d}, {a}, {b};"),
            6 => format!("selp.b32 {d}, {a}, {b}, {p};"),
            7 | 8 => format!("setp.lt.u32 {p}|{q}, {a}, {b};"),
            9 => format!("xor.pred {p}, {p}, {q};"),
            10 => format!("fma.rn.f32 {d}, {d}, {d}, {d};"),
            11 => format!("add.cc.u32 {d}, {a}, {b}; {guard}addc.u32 {d}, {d}, {c};"),
            12 => format!("activemask.b32 {d};"),
            13 => format!("mov.b64 %d2, {{{d}, {d}}}; {guard}mov.b64 {{_, {d}}}, %d2;"),
            14 => format!("cvta.shared.u64 %d2, 64; {guard}cvt.u32.u64 {d}, %d2;"),
            _ => format!("add.u32 {d}, {a}, {b};"),
        };
        self.line(&format!("{guard}{line}"));
    }

    /// Writes some instructions, with branches and loops among them; `depth` bounds how far they
    /// contain each other.
    fn block(&mut self, depth: u32) {
        for _ in 0..self.random.u32(1..8) {
            match if depth == 0 { 0 } else { self.random.u32(..8) } {
                6 => {
                    let label = self.labels;
                    let p = self.predicate();
                    self.labels += 1;
                    self.line(&format!("@{p} bra L{label};"));
                    self.block(depth - 1);
                    self.line(&format!("L{label}:"));
                }
                7 => {
                    let label = self.labels;
                    let counter = self.counters;
                    let times = self.source();
                    self.labels = label + 1;
                    self.counters = counter + 1;
                    self.line(&format!("mov.u32 %c{counter}, 0; and.b32 %t{counter}, {times}, 3;"));
                    self.line(&format!("L{label}:"));
                    self.block(depth - 1);
                    self.line(&format!("add.u32 %c{counter}, %c{counter}, 1;"));
                    self.line(&format!(
                        "setp.lt.u32 %q, %c{counter}, %t{counter}; @%q bra L{label};"
                    ));
                }
                _ => self.instruction(),
            }
        }
    }
}

/// Returns the body of a random program.
fn body(seed: u64) -> String {
    let random = fastrand::Rng::with_seed(seed);
    let mut writer = Writer { random, text: String::new(), labels: 0, counters: 0 };
    writer.block(3);
    // Some lanes store and exit early.
    let p = writer.predicate();
    writer.line(&format!("@{p} bra store;"));
    writer.block(2);
    writer.text
}

/// Returns a kernel that gives each register a value, the same in all lanes: where `by_lane`, each
/// lane loads it from an address of its own, so that nothing shows that they are equal.
fn kernel(seed: u64, by_lane: bool) -> String {
    let mut start = String::new();
    let mut end = String::new();
    for register in 0..REGISTERS {
        let at = 4 * THREADS * register;
        let first = if by_lane { "%d1" } else { "%d0" };
        let _ = writeln!(start, "    ld.global.u32 %r{register}, [{first}+{at}];");
        let _ = writeln!(
            end,
            "    st.global.u32 [%d1+{}], %r{register};",
            at + 4 * THREADS * REGISTERS
        );
    }
    for predicate in 0..PREDICATES {
        let _ =
            writeln!(start, "    setp.eq.u32 %p{predicate}, %r{predicate}, %r{};", predicate + 1);
    }
    let body = body(seed);
    format!(
        ".visible .entry k(.param .u64 memory) {{
    .reg .b32 %r<8>, %s; .reg .b32 %c<99>, %t<99>; .reg .b64 %d<4>; .reg .pred %p<4>, %q;
    ld.param.u64 %d0, [memory];
    mad.lo.u32 %s, %ctaid.x, %ntid.x, %tid.x;
    mul.wide.u32 %d1, %s, 4; add.u64 %d1, %d1, %d0;
{start}{body}store:
{end}    ret;
}}"
    )
}

fn result(seed: u64, by_lane: bool, values: &[u32]) -> Vec<u32> {
    let text = kernel(seed, by_lane);
    let mut words: Vec<u32> = values.iter().flat_map(|&value| [value; THREADS as usize]).collect();
    words.resize(2 * words.len(), 0);
    let mut memory = Buffer::of_words(&words);
    run(&text, 2, THREADS / 2, &[BASE], &mut memory)
        .unwrap_or_else(|fault| panic!("{fault}: {text}"));
    memory.words()
}

#[test]
fn what_is_computed_once_is_what_each_lane_computes() {
    let mut differs = 0;
    for seed in 0..PROGRAMS {
        let mut random = fastrand::Rng::with_seed(seed);
        let values: Vec<u32> = (0..REGISTERS)
            .map(|_| if random.bool() { random.u32(..3) } else { random.u32(..) })
            .collect();
        let once = result(seed, false, &values);
        assert!(once == result(seed, true, &values), "seed {seed}: {}", kernel(seed, false));
        let stored = &once[values.len() * THREADS as usize..];
        differs += usize::from(stored[..THREADS as usize].iter().any(|&word| word != stored[0]));
    }
    // The programs have both kinds of registers.
    assert!(differs > PROGRAMS as usize / 8 && differs < PROGRAMS as usize, "{differs}");
}

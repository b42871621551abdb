//! Draws programs from seeds.

use dmr_core::Access;
use dmr_sim::Policy;

use crate::program::{CaptureMode, Fail, Hold, Line, Program, Step};
use crate::random::Random;
use crate::stack::{MIB, Stack, draw_config};

/// What programs are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many lines a program has.
    pub lines: usize,
    /// Whether several threads work, some of them held in driver calls.
    pub threads: bool,
    /// Whether driver calls fail, streams are adopted, other streams capture.
    pub disturbs: bool,
    /// Whether some programs do what is known to fail, and fork.
    pub risks: bool,
}

impl Shape {
    /// Everything.
    pub const FULL: Self = Self { lines: 40, threads: true, disturbs: true, risks: true };
    /// One thread, and nothing that disturbs it: what a GPU can play, too.
    pub const PLAIN: Self = Self { lines: 40, threads: false, disturbs: false, risks: false };
}

/// Draws the program of this number.
#[must_use]
pub fn program(number: u64, stack: Stack, policy: Policy, shape: Shape) -> Program {
    let seed = number;
    let mut random = Random::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xd1ce);
    let streams = 2 + random.below(4) as usize;
    let threads = if shape.threads && random.one_in(2) { 2 + random.below(3) as usize } else { 1 };
    let disturbs = |random: &mut Random, n| shape.disturbs && random.one_in(n);
    let draw = Draw {
        threads,
        streams,
        scale: draw_config(seed).1,
        fails: disturbs(&mut random, 6),
        adopts: disturbs(&mut random, 3),
        captures: disturbs(&mut random, 8),
        risks: shape.risks && random.one_in(24),
        forks: shape.risks && random.one_in(2000),
        blocks: Vec::new(),
        windows: Vec::new(),
        named: 0,
        adopted: Vec::new(),
        is_capturing: false,
        random,
    };
    Program { stack, policy, seed, streams, lines: draw.lines(shape.lines) }
}

struct Draw {
    random: Random,
    threads: usize,
    streams: usize,
    scale: u64,
    fails: bool,
    adopts: bool,
    captures: bool,
    risks: bool,
    forks: bool,
    /// Blocks that were allocated, if that succeeded, and not freed: number, bytes, is a part.
    blocks: Vec<(u32, usize, bool)>,
    windows: Vec<u32>,
    /// How many blocks and windows have got a number.
    named: u32,
    adopted: Vec<usize>,
    is_capturing: bool,
}

impl Draw {
    fn lines(mut self, count: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::with_capacity(count + 4);
        while lines.len() < count {
            let thread = self.random.below(self.threads as u64) as usize;
            for step in self.steps() {
                let mut line = Line::new(thread, step);
                if self.threads > 1 && self.random.one_in(5) {
                    let call = 1 + self.random.below(2) * self.random.below(8);
                    let held = 1 + self.random.below(5);
                    line.hold = Some(Hold { call: call as u32, lines: held as usize });
                }
                if self.fails && self.random.one_in(12) {
                    let call = 1 + self.random.below(2) * self.random.below(4);
                    let code = if self.random.one_in(3) { 2 } else { 999 };
                    line.fail = Some(Fail { call: call as u32, code });
                }
                lines.push(line);
            }
        }
        lines
    }

    fn steps(&mut self) -> Vec<Step> {
        match self.random.below(100) {
            0..30 => self.allocate(),
            30..54 => self.launch(),
            54..58 => self.copy(),
            58..62 => self.home(),
            62..65 => self.grow(),
            65..67 => self.narrow(),
            67..84 => self.free(),
            84..89 => self.close(),
            89..91 => vec![Step::Delay { stream: self.stream() }],
            91 => vec![Step::Synchronize { stream: self.stream() }],
            92 => vec![Step::Reap],
            93 => vec![Step::ReapPending],
            94 => vec![Step::Trim { keep: self.random.below(4) * MIB * self.scale }],
            95 => vec![Step::Replace { stream: self.stream() }],
            96 => self.record(),
            _ => self.disturb(),
        }
    }

    fn stream(&mut self) -> usize {
        self.random.below(self.streams as u64) as usize
    }

    fn name(&mut self) -> u32 {
        self.named += 1;
        self.named - 1
    }

    fn block(&mut self) -> Option<(u32, usize, bool)> {
        (!self.blocks.is_empty()).then(|| self.random.pick(&self.blocks))
    }

    fn access(&mut self) -> Access {
        self.random.pick(&[Access::Read, Access::Write, Access::ReadWrite])
    }

    fn allocate(&mut self) -> Vec<Step> {
        const CLASSES: [u64; 5] = [256, 20_000, 65_536, 300_000, 600_000];
        let class = self.random.pick(&CLASSES);
        let jitter = if self.random.one_in(2) { 4 * self.random.below(class / 8) } else { 0 };
        let bytes = ((class + jitter) * self.scale) as usize;
        let (block, stream) = (self.name(), self.stream());
        self.blocks.push((block, bytes, false));
        let mut steps = vec![Step::Allocate { block, bytes, stream }];
        match self.random.below(8) {
            0..4 => steps.push(Step::Home { block, access: Access::Write }),
            4..7 => {
                let stream = if self.random.one_in(2) { stream } else { self.stream() };
                steps.push(Step::Launch { stream, uses: vec![(block, Access::Write)] });
            }
            _ => {}
        }
        steps
    }

    fn launch(&mut self) -> Vec<Step> {
        let stream = self.stream();
        let mut uses: Vec<(u32, Access)> = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let Some((block, ..)) = self.block() else { continue };
            if uses.iter().all(|(known, _)| *known != block) {
                uses.push((block, self.access()));
            }
        }
        if uses.is_empty() {
            return Vec::new();
        }
        if !self.random.one_in(4) {
            return vec![Step::Launch { stream, uses }];
        }
        let window = self.name();
        self.windows.push(window);
        match self.random.one_in(3) {
            true => vec![Step::OpenIdle { window, stream, uses }],
            false => vec![Step::Open { window, stream, uses }],
        }
    }

    fn close(&mut self) -> Vec<Step> {
        if self.windows.is_empty() {
            return Vec::new();
        }
        let at = self.random.below(self.windows.len() as u64) as usize;
        let window = self.windows.swap_remove(at);
        match self.random.one_in(2) {
            true => vec![Step::Cancel { window }],
            false => vec![Step::Close { window }],
        }
    }

    fn copy(&mut self) -> Vec<Step> {
        let (Some((from, ..)), Some((to, ..))) = (self.block(), self.block()) else {
            return Vec::new();
        };
        if from == to { Vec::new() } else { vec![Step::Copy { from, to, stream: self.stream() }] }
    }

    fn home(&mut self) -> Vec<Step> {
        let access = self.access();
        self.block().map(|(block, ..)| Step::Home { block, access }).into_iter().collect()
    }

    fn record(&mut self) -> Vec<Step> {
        self.block().map(|(block, ..)| Step::Record { block }).into_iter().collect()
    }

    fn grow(&mut self) -> Vec<Step> {
        let Some((block, bytes, is_part)) = self.block() else { return Vec::new() };
        let is_large = bytes as u64 > MIB / 2 * self.scale;
        if is_large || (is_part && !self.risks) {
            return Vec::new();
        }
        let bytes = bytes + 4 * self.random.below(bytes as u64 / 2) as usize;
        vec![Step::Grow { block, bytes }]
    }

    fn narrow(&mut self) -> Vec<Step> {
        if self.blocks.is_empty() {
            return Vec::new();
        }
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let (block, bytes, is_part) = &mut self.blocks[at];
        if *is_part || *bytes < 1024 {
            return Vec::new();
        }
        let start =
            if self.random.one_in(2) { 0 } else { 256 * self.random.below(*bytes as u64 / 512) };
        let start = start as usize;
        let end = start + 4 * (1 + self.random.below((*bytes - start) as u64 / 4) as usize);
        let end = end.min(*bytes);
        (*bytes, *is_part) = (end - start, true);
        vec![Step::Narrow { block: *block, start, end }]
    }

    fn free(&mut self) -> Vec<Step> {
        if self.blocks.is_empty() {
            return Vec::new();
        }
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let (block, _, is_part) = self.blocks.swap_remove(at);
        if is_part && self.risks && self.random.one_in(4) {
            return vec![Step::FreePart { block }];
        }
        vec![Step::Free { block }]
    }

    fn disturb(&mut self) -> Vec<Step> {
        match self.random.below(4) {
            0 if self.adopts => {
                let stream = self.stream();
                self.adopted.push(stream);
                vec![Step::Adopt { stream }]
            }
            1 if !self.adopted.is_empty() => {
                let at = self.random.below(self.adopted.len() as u64) as usize;
                let stream = self.adopted.swap_remove(at);
                match self.risks {
                    true => vec![Step::RetireAtOnce { stream }],
                    false => vec![Step::Retire { stream }],
                }
            }
            2 if self.captures && !self.is_capturing => {
                self.is_capturing = true;
                let mode = match self.risks {
                    true => self.random.pick(&[CaptureMode::Global, CaptureMode::ThreadLocal]),
                    false => CaptureMode::Relaxed,
                };
                vec![Step::Capture { mode }]
            }
            3 if self.captures && self.is_capturing => {
                self.is_capturing = false;
                vec![Step::EndCapture]
            }
            _ if self.forks => {
                self.forks = false;
                vec![Step::Fork]
            }
            _ if self.adopts => {
                let stream = self.stream();
                self.adopted.push(stream);
                vec![Step::Adopt { stream }]
            }
            _ => vec![Step::Replace { stream: self.stream() }],
        }
    }
}

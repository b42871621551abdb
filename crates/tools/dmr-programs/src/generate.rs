//! Draws programs from seeds.

mod fragments;
mod parts;
mod script;

use dmr_core::Access;
use dmr_sim::Policy;

use crate::calls;
use crate::program::{Call, CaptureMode, Fail, Hold, Line, Program, Step, Used};
use crate::random::Random;
use crate::stack::{MIB, Stack, draw_config};

/// The kinds of programs to draw.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of lines of a program.
    pub lines: usize,
    /// `true` if several threads work, some of them held in driver calls.
    pub threads: bool,
    /// `true` if driver calls fail, streams are adopted and retired, streams capture, and the host
    /// copies through pinned memory.
    pub disturbs: bool,
    /// `true` if some programs try to deallocate and grow parts of blocks.
    pub risks: bool,
    /// One program in this number forks; 0: none.
    pub forks: u64,
}

impl Shape {
    /// Makes the options of programs with all kinds of steps.
    pub const FULL: Self =
        Self { lines: 40, threads: true, disturbs: true, risks: true, forks: 2000 };
    /// Makes the options of programs that fork while a thread is held in a driver call.
    pub const FORKS: Self =
        Self { lines: 12, threads: true, disturbs: false, risks: false, forks: 1 };
    /// Makes the options of programs of one thread without faults, which a GPU can run, too.
    pub const PLAIN: Self =
        Self { lines: 40, threads: false, disturbs: false, risks: false, forks: 0 };
}

/// A block that the program has allocated and not freed.
#[derive(Clone, Copy)]
struct LiveBlock {
    name: u32,
    bytes: usize,
    is_part: bool,
}

impl LiveBlock {
    fn whole(name: u32, bytes: usize) -> Self {
        Self { name, bytes, is_part: false }
    }
}

/// Draws the program of this number.
#[must_use]
pub fn program(number: u64, stack: Stack, policy: Policy, shape: Shape) -> Program {
    let seed = number;
    let mut random = Random::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xd1ce);
    let streams = 2 + random.below(4) as usize;
    let has_threads = shape.threads && (shape.forks == 1 || random.one_in(2));
    let threads = if has_threads { 2 + random.below(3) as usize } else { 1 };
    let disturbs = |random: &mut Random, n| shape.disturbs && random.one_in(n);
    let draw = Draw {
        stack,
        threads,
        streams,
        near: None,
        // Large blocks use up the slack of a pool. A guard without a pool checks each byte of them
        // in a kernel.
        scale: if stack == Stack::GuardAsync { 1 } else { draw_config(seed).scale },
        fails: disturbs(&mut random, 6),
        adopts: disturbs(&mut random, 3),
        captures: disturbs(&mut random, 8),
        fragments: shape.disturbs,
        risks: shape.risks && random.one_in(24),
        forks: shape.forks > 0 && random.one_in(shape.forks),
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
    stack: Stack,
    threads: usize,
    streams: usize,
    /// The target of the held thread, if there is one. Other threads prefer it.
    near: Option<Near>,
    scale: u64,
    fails: bool,
    adopts: bool,
    captures: bool,
    /// `true` if it has directed fragments.
    fragments: bool,
    risks: bool,
    forks: bool,
    /// The blocks that are allocated and not freed, if the allocation succeeds.
    blocks: Vec<LiveBlock>,
    windows: Vec<u32>,
    /// The last numbers of blocks and of windows.
    named: u32,
    adopted: Vec<usize>,
    is_capturing: bool,
}

/// The target of a held thread: its stream and blocks.
struct Near {
    thread: usize,
    /// The number of the line before which it continues.
    until: usize,
    stream: Option<usize>,
    blocks: Vec<u32>,
}

impl Near {
    fn new(thread: usize, until: usize, step: &Step) -> Self {
        let (stream, blocks) = match step {
            Step::Launch { stream, uses }
            | Step::Open { stream, uses, .. }
            | Step::OpenIdle { stream, uses, .. } => {
                (Some(*stream), uses.iter().map(|used| used.block).collect())
            }
            Step::Copy { from, to, stream } => (Some(*stream), vec![*from, *to]),
            Step::Allocate { block, stream, .. } => (Some(*stream), vec![*block]),
            Step::Home { block, .. } | Step::Record { block } | Step::Grow { block, .. } => {
                (None, vec![*block])
            }
            _ => (None, Vec::new()),
        };
        Self { thread, until, stream, blocks }
    }
}

impl Draw {
    fn lines(mut self, count: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::with_capacity(count + 4);
        let fork_at = if self.forks { self.random.below(count as u64) as usize } else { count };
        while lines.len() < count {
            if self.forks && lines.len() >= fork_at {
                self.forks = false;
                lines.extend(self.fork());
            }
            self.near = self.near.take().filter(|near| near.until > lines.len());
            if let Some(fragment) = self.fragment() {
                lines.extend(fragment);
                continue;
            }
            let mut thread = self.random.below(self.threads as u64) as usize;
            if self.near.as_ref().is_some_and(|near| near.thread == thread) {
                // A line of the held thread would make it continue.
                thread = (thread + 1) % self.threads;
            }
            for step in self.steps() {
                let mut line = Line::new(thread, step);
                let is_rare = calls::are_rare(&line.step);
                if self.threads > 1 && self.random.one_in(if is_rare { 2 } else { 4 }) {
                    line.hold = self.hold(&line.step);
                    if let (Some(hold), None) = (line.hold, &self.near) {
                        let until = lines.len() + 1 + hold.lines;
                        self.near = Some(Near::new(thread, until, &line.step));
                    }
                }
                if self.fails && self.random.one_in(if is_rare { 3 } else { 8 }) {
                    line.fail = self.fail(&line.step);
                }
                let passed = line.hold.and_then(|hold| self.passed(&line, hold));
                lines.push(line);
                lines.extend(passed.into_iter().flatten());
            }
        }
        lines
    }

    fn hold(&mut self, step: &Step) -> Option<Hold> {
        let call = self.call(step)?;
        Some(Hold { call, lines: 1 + self.random.below(6) as usize })
    }

    /// Sometimes draws launches that overtake a held one: on its stream and two others, with its
    /// blocks and two others, while it is held and directly afterwards.
    fn passed(&mut self, line: &Line, hold: Hold) -> Option<Vec<Line>> {
        let Step::Launch { stream, uses } = &line.step else { return None };
        if self.blocks.len() < 2 || !self.random.one_in(3) {
            return None;
        }
        let streams = [*stream, *stream, self.stream(), self.stream()];
        let mut blocks: Vec<u32> = uses.iter().map(|used| used.block).take(2).collect();
        for _ in 0..2 {
            blocks.push(self.random.pick(&self.blocks).name);
        }
        let count = hold.lines + 1 + self.random.below(2) as usize;
        let thread = (line.thread + 1) % self.threads;
        let launches = (0..count).map(|_| {
            let mut uses: Vec<Used> = Vec::new();
            for _ in 0..1 + self.random.below(2) {
                let block = self.random.pick(&blocks);
                if uses.iter().all(|known| known.block != block) {
                    let access = self.random.pick(&[Access::Read, Access::Write]);
                    uses.push(Used::whole(block, access));
                }
            }
            Line::new(thread, Step::Launch { stream: self.random.pick(&streams), uses })
        });
        Some(launches.collect())
    }

    fn fail(&mut self, step: &Step) -> Option<Fail> {
        let call = self.call(step)?;
        let code = if self.random.one_in(3) { 2 } else { 999 };
        Some(Fail { call, code })
    }

    /// Draws which call of a driver function: mostly the first one.
    fn call(&mut self, step: &Step) -> Option<Call> {
        let name = calls::draw(&mut self.random, self.stack, step)?;
        let nth = 1 + u32::from(self.random.one_in(3)) * self.random.below(3) as u32;
        Some(Call { name, nth })
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
        if let Some(stream) = self.near.as_ref().and_then(|near| near.stream)
            && self.random.one_in(3)
        {
            return stream;
        }
        self.random.below(self.streams as u64) as usize
    }

    fn name(&mut self) -> u32 {
        self.named += 1;
        self.named - 1
    }

    fn block(&mut self) -> Option<LiveBlock> {
        if self.blocks.is_empty() {
            return None;
        }
        let is_near = |block: &LiveBlock| {
            self.near.as_ref().is_some_and(|near| near.blocks.contains(&block.name))
        };
        let near: Vec<_> = self.blocks.iter().copied().filter(is_near).collect();
        if !near.is_empty() && self.random.one_in(3) {
            return Some(self.random.pick(&near));
        }
        Some(self.random.pick(&self.blocks))
    }

    fn access(&mut self) -> Access {
        self.random.pick(&[Access::Read, Access::Write, Access::ReadWrite])
    }

    fn allocate(&mut self) -> Vec<Step> {
        const CLASSES: [u64; 5] = [256, 20_000, 65_536, 300_000, 600_000];
        let class = self.random.pick(&CLASSES);
        let jitter = if self.random.one_in(2) { 4 * self.random.below(class / 8) } else { 0 };
        let bytes = ((class + jitter) * self.scale) as usize;
        let block = self.name();
        let stream = self.stream();
        self.blocks.push(LiveBlock::whole(block, bytes));
        let mut steps = vec![Step::Allocate { block, bytes, stream }];
        match self.random.below(8) {
            0..4 => steps.push(Step::Home { block, access: Access::Write }),
            4..7 => {
                let stream = if self.random.one_in(2) { stream } else { self.stream() };
                steps.push(Step::Launch { stream, uses: vec![Used::whole(block, Access::Write)] });
            }
            _ => {}
        }
        steps
    }

    fn launch(&mut self) -> Vec<Step> {
        let stream = self.stream();
        let mut uses: Vec<Used> = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let Some(LiveBlock { name: block, bytes, .. }) = self.block() else { continue };
            let part = self.part(bytes);
            if part.is_some() || uses.iter().all(|known| known.block != block) {
                uses.push(Used { block, access: self.access(), part });
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
        let (Some(from), Some(to)) = (self.block(), self.block()) else { return Vec::new() };
        let from = from.name;
        let to = to.name;
        if from == to { Vec::new() } else { vec![Step::Copy { from, to, stream: self.stream() }] }
    }

    fn home(&mut self) -> Vec<Step> {
        let access = self.access();
        self.block().map(|it| Step::Home { block: it.name, access }).into_iter().collect()
    }

    fn record(&mut self) -> Vec<Step> {
        self.block().map(|it| Step::Record { block: it.name }).into_iter().collect()
    }

    fn grow(&mut self) -> Vec<Step> {
        let Some(LiveBlock { name, bytes, is_part }) = self.block() else { return Vec::new() };
        let is_large = bytes as u64 > MIB / 2 * self.scale;
        if is_large || (is_part && !self.risks) {
            return Vec::new();
        }
        let bytes = bytes + 4 * self.random.below(bytes as u64 / 2) as usize;
        vec![Step::Grow { block: name, bytes }]
    }

    fn narrow(&mut self) -> Vec<Step> {
        if self.blocks.is_empty() {
            return Vec::new();
        }
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let LiveBlock { name, bytes, is_part } = &mut self.blocks[at];
        if *is_part || *bytes < 1024 {
            return Vec::new();
        }
        let start =
            if self.random.one_in(2) { 0 } else { 256 * self.random.below(*bytes as u64 / 512) };
        let start = start as usize;
        let end = start + 4 * (1 + self.random.below((*bytes - start) as u64 / 4) as usize);
        let end = end.min(*bytes);
        *bytes = end - start;
        *is_part = true;
        vec![Step::Narrow { block: *name, start, end }]
    }

    fn free(&mut self) -> Vec<Step> {
        if self.blocks.is_empty() {
            return Vec::new();
        }
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let LiveBlock { name: block, is_part, .. } = self.blocks.swap_remove(at);
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
                vec![Step::Capture { mode: CaptureMode::Relaxed }]
            }
            3 if self.captures && self.is_capturing => {
                self.is_capturing = false;
                vec![Step::EndCapture]
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

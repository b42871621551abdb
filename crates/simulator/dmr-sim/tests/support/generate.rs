//! Random programs: correct by construction, with missing orderings, or with any mistakes.

use super::oracle::Oracle;
use super::order::Node;
use super::program::{Buf, Host, How, Outcome, Program, Span, Step, Stream, StreamKind};
use super::rng::Rng;

/// The rate of mistakes in a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Care {
    /// Needed orderings that are left out, in percent.
    pub(crate) forgets: usize,
    /// Records, waits, synchronisations and queries that are not needed, in percent of the steps.
    pub(crate) superfluous: usize,
    /// Programs with one mistake of memory (out of bounds, use after free, double free, ...), in
    /// percent.
    pub(crate) mischief: usize,
}

impl Care {
    /// Every needed ordering, and a few more.
    pub(crate) const CORRECT: Care = Care { forgets: 0, superfluous: 15, mischief: 0 };
}

/// Draws a program of the mix on which the simulator is compared: about half of them are clean.
pub(crate) fn any(seed: u64) -> Program {
    let mut rng = Rng::new(seed ^ 0x6d69_7874);
    let care = match rng.below(20) {
        0..=6 => Care { superfluous: rng.between(0, 40), ..Care::CORRECT },
        7..=15 => {
            Care { forgets: rng.between(5, 40), superfluous: rng.between(0, 40), mischief: 15 }
        }
        _ => Care { forgets: 100, superfluous: rng.between(20, 70), mischief: 20 },
    };
    with(seed, care)
}

/// Draws a program in which no ordering is missing.
pub(crate) fn correct(seed: u64) -> Program {
    with(seed, Care::CORRECT)
}

pub(crate) fn with(seed: u64, care: Care) -> Program {
    let mut rng = Rng::new(seed);
    let program = Program {
        seed,
        streams: streams(&mut rng),
        events: rng.between(1, 4),
        buffers: 0,
        steps: Vec::new(),
    };
    let length = rng.between(20, 60);
    let mischief = rng.chance(care.mischief).then(|| rng.below(length));
    let mut generator = Generator {
        oracle: Oracle::new(&program),
        care,
        most_live: rng.between(1, 6),
        live: Vec::new(),
        dead: Vec::new(),
        program,
        rng,
    };
    generator.allocate();
    let free_at_end = generator.rng.chance(60);
    let mut mischief_left = mischief;
    while generator.program.steps.len() < length {
        if mischief_left.is_some_and(|at| generator.program.steps.len() >= at) {
            mischief_left = None;
            generator.misbehave();
        } else {
            generator.step();
        }
    }
    if free_at_end {
        while !generator.live.is_empty() {
            generator.free();
        }
    }
    generator.program
}

fn streams(rng: &mut Rng) -> Vec<StreamKind> {
    let mut streams = vec![StreamKind::NonBlocking; rng.between(1, 6)];
    if rng.chance(30) {
        for kind in &mut streams {
            if rng.chance(50) {
                *kind = StreamKind::Blocking;
            }
        }
        streams[0] = StreamKind::Legacy;
    }
    streams
}

#[derive(Clone, Copy)]
struct Buffer {
    buf: Buf,
    bytes: u64,
    how: How,
}

struct Generator {
    rng: Rng,
    care: Care,
    program: Program,
    oracle: Oracle,
    most_live: usize,
    live: Vec<Buffer>,
    dead: Vec<Buffer>,
}

impl Generator {
    fn step(&mut self) {
        if self.rng.chance(self.care.superfluous) {
            let step = self.superfluous();
            self.emit(step);
            return;
        }
        match self.rng.below(24) {
            _ if self.live.is_empty() => self.allocate(),
            0..=2 if self.live.len() < self.most_live => self.allocate(),
            3..=4 if self.live.len() > 1 || self.rng.chance(30) => self.free(),
            _ => self.operate(),
        }
    }

    fn emit(&mut self, step: Step) {
        // Addresses that are never reused: in a run, reuse adds order and takes none away.
        let address = match step {
            Step::Alloc { buf, .. } => Some((buf as u64 + 1) << 20),
            _ => None,
        };
        let outcome = Outcome { address, ..Outcome::default() };
        let index = self.program.steps.len();
        self.oracle.submit(index, &step, &outcome);
        self.program.steps.push(step);
    }

    /// Emits a step, after the orderings that it needs.
    fn emit_in_order(&mut self, step: Step) {
        let mut forgotten = Vec::new();
        while let Some(node) = self.missing(&step, &forgotten) {
            if self.rng.chance(self.care.forgets) {
                forgotten.push(node);
            } else {
                self.order_after(node, target(&step));
            }
        }
        self.emit(step);
    }

    fn missing(&self, step: &Step, forgotten: &[Node]) -> Option<Node> {
        self.oracle
            .check(self.program.steps.len(), step)
            .iter()
            .filter_map(|finding| finding.missing)
            .find(|node| !forgotten.contains(node))
    }

    /// Orders the next work of `stream` (or of the host, if `None`) after an operation, in one of
    /// CUDA's ways.
    fn order_after(&mut self, node: Node, stream: Option<Stream>) {
        let from = self.oracle.time().stream_of(node).expect("only device work can be unordered");
        let event = match self.oracle.time().event_after(node) {
            Some(event) if self.rng.chance(50) => event,
            _ => {
                let event = self.rng.below(self.program.events);
                match self.rng.below(10) {
                    0 => return self.emit(Step::SyncContext),
                    1..=2 => return self.emit(Step::SyncStream(from)),
                    _ => self.emit(Step::Record { event, stream: from }),
                }
                event
            }
        };
        match stream {
            Some(stream) if !self.rng.chance(10) => self.emit(Step::Wait { event, stream }),
            _ => self.emit(Step::SyncEvent(event)),
        }
    }

    fn superfluous(&mut self) -> Step {
        let stream = self.stream();
        let event = self.rng.below(self.program.events);
        match self.rng.below(16) {
            0..=4 => Step::Record { event, stream },
            5..=9 => Step::Wait { event, stream },
            10 => Step::SyncStream(stream),
            11 => Step::SyncEvent(event),
            12 => Step::QueryStream(stream),
            13..=14 => Step::QueryEvent(event),
            _ if self.rng.chance(30) => Step::SyncContext,
            _ => Step::QueryStream(stream),
        }
    }

    fn allocate(&mut self) {
        let buffer = Buffer {
            buf: self.program.buffers,
            bytes: *self.rng.pick(&[1, 16, 100, 256, 257, 512, 1000, 1024, 2048]),
            how: match self.rng.below(10) {
                0..=2 => How::Sync,
                3..=6 => How::Async(self.stream()),
                _ => How::Pool(self.stream()),
            },
        };
        self.program.buffers += 1;
        self.oracle.expect_buffers(self.program.buffers);
        self.live.push(buffer);
        let Buffer { buf, bytes, how } = buffer;
        self.emit(Step::Alloc { buf, bytes, how });
    }

    fn free(&mut self) {
        let victim = self.rng.below(self.live.len());
        let buffer = self.live.swap_remove(victim);
        self.dead.push(buffer);
        let how = self.how_to_free(buffer);
        self.emit_in_order(Step::Free { buf: buffer.buf, skew: 0, how });
    }

    fn how_to_free(&mut self, buffer: Buffer) -> How {
        match buffer.how {
            How::Sync => How::Sync,
            _ if self.rng.chance(15) => How::Sync,
            _ => How::Async(self.stream()),
        }
    }

    fn operate(&mut self) {
        let stream = self.stream();
        let host = *self.rng.pick(&[Host::Pageable, Host::Pinned]);
        let byte = self.rng.byte();
        let (a, b, out) = self.three_spans();
        let step = match self.rng.below(10) {
            0..=1 => Step::Fill { stream, dst: out, byte },
            2 => Step::Upload { stream, dst: out, byte, host },
            3 => Step::Download {
                stream,
                src: a,
                host: if self.rng.chance(70) { Host::Pinned } else { host },
            },
            4..=5 if a.buf != out.buf => Step::Copy { stream, dst: out, src: a },
            6..=7 if a == out || a.buf != out.buf => Step::Accumulate { stream, src: a, out },
            _ if [a, b].iter().all(|&x| x == out || x.buf != out.buf) => {
                Step::Blend { stream, a, b, out }
            }
            _ => Step::Fill { stream, dst: out, byte },
        };
        for span in step.reads() {
            if !self.oracle.is_written(span) {
                let stream = if self.rng.chance(50) { stream } else { self.stream() };
                self.emit_in_order(Step::Fill { stream, dst: span, byte });
            }
        }
        self.emit_in_order(step);
    }

    /// Emits one mistake that no ordering repairs.
    fn misbehave(&mut self) {
        if self.live.is_empty() {
            self.allocate();
        }
        let stream = self.stream();
        let byte = self.rng.byte();
        let buffer = *self.rng.pick(&self.live);
        let how = self.how_to_free(buffer);
        let buf = buffer.buf;
        let bytes = buffer.bytes;
        let dead = (!self.dead.is_empty()).then(|| *self.rng.pick(&self.dead));
        let step = match (self.rng.below(6), dead) {
            (0, Some(dead)) => Step::Free { buf: dead.buf, skew: 0, how: self.how_to_free(dead) },
            (1 | 2, Some(dead)) => Step::Fill { stream, dst: whole(dead), byte },
            (3, _) if bytes > 1 => {
                Step::Free { buf, skew: 1 + self.rng.below(bytes as usize - 1) as u64, how }
            }
            (4, _) => Step::Download { stream, src: whole(buffer), host: Host::Pinned },
            _ => {
                let len = self.rng.between(1, 8) as u64;
                let offset = bytes - 1;
                let dst = Span { buf, offset, len: len + 1 };
                Step::Fill { stream, dst, byte }
            }
        };
        self.emit_in_order(step);
    }

    fn stream(&mut self) -> Stream {
        self.rng.below(self.program.streams.len())
    }

    /// Draws three spans of one length in live buffers; the third often is one of the others.
    fn three_spans(&mut self) -> (Span, Span, Span) {
        let [a, b, out] = [(); 3].map(|()| *self.rng.pick(&self.live));
        let most = a.bytes.min(b.bytes).min(out.bytes) as usize;
        let len = if self.rng.chance(50) { most } else { self.rng.between(1, most) };
        let [a, b, out] = [a, b, out].map(|buffer| Span {
            buf: buffer.buf,
            offset: self.rng.between(0, buffer.bytes as usize - len) as u64,
            len: len as u64,
        });
        (a, b, out)
    }
}

/// Returns the stream that a step runs on; `None` if the host does it.
fn target(step: &Step) -> Option<Stream> {
    match *step {
        Step::Free { how: How::Async(stream) | How::Pool(stream), .. }
        | Step::Fill { stream, .. }
        | Step::Copy { stream, .. }
        | Step::Upload { stream, .. }
        | Step::Download { stream, .. }
        | Step::Blend { stream, .. }
        | Step::Accumulate { stream, .. } => Some(stream),
        _ => None,
    }
}

fn whole(buffer: Buffer) -> Span {
    Span { buf: buffer.buf, offset: 0, len: buffer.bytes }
}

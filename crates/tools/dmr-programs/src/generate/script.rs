//! Builds the lines of a fragment: of one thread, or of one that is held and another that overtakes
//! it.

use dmr_core::Access;

use super::{Draw, LiveBlock};
use crate::program::{Call, Fail, Hold, Line, Step, Used};

impl Draw {
    /// Makes a script, mostly of one thread; the other is the same if the program has one.
    pub(super) fn script(&mut self) -> Script<'_> {
        let thread = self.random.below(self.threads as u64) as usize;
        let other = (thread + 1) % self.threads;
        Script { thread, other, lines: Vec::new(), draw: self }
    }

    /// Makes a script of two threads; `None` if the program has one.
    pub(super) fn script_of_two(&mut self) -> Option<Script<'_>> {
        (self.threads > 1).then(|| self.script())
    }
}

/// The lines of a fragment.
pub(super) struct Script<'a> {
    pub(super) draw: &'a mut Draw,
    /// The thread of the lines, and another, which is the same if the program has one thread.
    thread: usize,
    other: usize,
    lines: Vec<Line>,
}

impl Script<'_> {
    pub(super) fn done(self) -> Option<Vec<Line>> {
        Some(self.lines)
    }

    pub(super) fn step(&mut self, step: Step) {
        self.lines.push(Line::new(self.thread, step));
    }

    /// Adds a step of the other thread.
    pub(super) fn other(&mut self, step: Step) {
        self.lines.push(Line::new(self.other, step));
    }

    pub(super) fn held(&mut self, name: &'static str, nth: u32, lines: usize, step: Step) {
        let hold = Some(Hold { call: Call { name, nth }, lines });
        self.lines.push(Line { hold, ..Line::new(self.thread, step) });
    }

    /// Adds a step that is held in one of the driver calls that it can make.
    pub(super) fn held_somewhere(&mut self, lines: usize, step: Step) {
        let hold = self.draw.call(&step).map(|call| Hold { call, lines });
        self.lines.push(Line { hold, ..Line::new(self.thread, step) });
    }

    /// Makes the last step's first call of this function fail.
    pub(super) fn fail(&mut self, name: &'static str, code: i32) {
        if let Some(line) = self.lines.last_mut() {
            line.fail = Some(Fail { call: Call { name, nth: 1 }, code });
        }
    }

    /// Adds a step that is sometimes held, while the other thread allocates on a stream.
    pub(super) fn maybe_held(&mut self, step: Step, stream: usize) {
        if self.thread == self.other || !self.draw.random.one_in(4) {
            return self.step(step);
        }
        self.held_somewhere(1, step);
        let step = self.new_block(stream);
        self.other(step);
    }

    pub(super) fn launch(&mut self, stream: usize, uses: &[(u32, Access)]) {
        let uses = uses.iter().map(|(block, access)| Used::whole(*block, *access)).collect();
        self.step(Step::Launch { stream, uses });
    }

    pub(super) fn allocate(&mut self, stream: usize) -> u32 {
        let bytes = self.draw.random.pick(&[4096, 20_000, 65_536]) * self.draw.scale as usize;
        self.allocate_bytes(stream, bytes)
    }

    pub(super) fn allocate_bytes(&mut self, stream: usize, bytes: usize) -> u32 {
        let block = self.draw.name();
        self.draw.blocks.push(LiveBlock::whole(block, bytes));
        self.step(Step::Allocate { block, bytes, stream });
        block
    }

    pub(super) fn new_block(&mut self, stream: usize) -> Step {
        let block = self.draw.name();
        let bytes = 4096 * self.draw.scale as usize;
        self.draw.blocks.push(LiveBlock::whole(block, bytes));
        Step::Allocate { block, bytes, stream }
    }

    pub(super) fn pin(&mut self, stream: usize) -> u32 {
        let pinned = self.draw.name();
        let bytes = self.draw.random.pick(&[256, 4096, 20_000]);
        self.maybe_held(Step::Pin { pinned, bytes, stream }, stream);
        pinned
    }

    pub(super) fn maybe_free(&mut self, block: u32) {
        if self.draw.random.one_in(3) {
            self.draw.blocks.retain(|held| held.name != block);
            self.step(Step::Free { block });
        }
    }

    /// Retires a stream: at once, or within a time.
    pub(super) fn retire(&mut self, stream: usize, in_time: bool) {
        self.step(match in_time {
            true => Step::RetireWithin { stream },
            false => Step::RetireAtOnce { stream },
        });
    }

    pub(super) fn retire_by_other(&mut self, stream: usize) {
        let thread = self.thread;
        let other = self.other;
        self.thread = other;
        let in_time = !self.draw.random.one_in(3);
        self.retire(stream, in_time);
        self.thread = thread;
    }

    /// Returns a call that uses the stream.
    pub(super) fn call_on(&mut self, stream: usize, block: u32) -> Step {
        let access = self.draw.access();
        match self.draw.random.below(6) {
            0 | 1 => Step::Launch { stream, uses: vec![Used::whole(block, access)] },
            2 => self.new_block(stream),
            3 => {
                self.draw.blocks.retain(|held| held.name != block);
                Step::Free { block }
            }
            4 => Step::Home { block, access },
            _ => Step::Grow { block, bytes: 70_000 * self.draw.scale as usize },
        }
    }
}

//! Short sequences of lines that reach a conflict which single random steps seldom reach.

use dmr_core::Access;

use super::{Draw, LiveBlock};
use crate::calls;
use crate::program::{CaptureMode, Line, Step, Used};
use crate::stack::Stack;

/// The conflict that a fragment reaches.
#[derive(Clone, Copy)]
enum Kind {
    TwoReaders,
    StaleId,
    Budget,
    Retire,
    RetireInWindow,
    RetireUnderCall,
    CaptureStream,
    CaptureUnderCall,
    CaptureInWindow,
    ForeignCapture,
    OvertakenUse,
    Pinned,
    Trim,
    HeldMemory,
    Callback,
    Parts,
}

/// The weight of each kind.
const WEIGHTS: [(Kind, u64); 16] = [
    (Kind::TwoReaders, 4),
    (Kind::StaleId, 5),
    (Kind::Budget, 3),
    (Kind::Retire, 4),
    (Kind::RetireInWindow, 4),
    (Kind::RetireUnderCall, 14),
    (Kind::CaptureStream, 4),
    (Kind::CaptureUnderCall, 12),
    (Kind::CaptureInWindow, 3),
    (Kind::ForeignCapture, 4),
    (Kind::OvertakenUse, 6),
    (Kind::Pinned, 4),
    (Kind::Trim, 4),
    (Kind::HeldMemory, 10),
    (Kind::Callback, 13),
    (Kind::Parts, 8),
];
/// One in this many places in a program has a fragment.
const ONE_IN: u64 = 12;

impl Draw {
    /// Sometimes draws a fragment.
    pub(super) fn fragment(&mut self) -> Option<Vec<Line>> {
        if !self.fragments || !self.random.one_in(ONE_IN) {
            return None;
        }
        let mut drawn = self.random.below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        let (kind, _) = WEIGHTS.iter().find(|(_, weight)| match drawn.checked_sub(*weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        })?;
        match kind {
            Kind::TwoReaders => self.two_readers(),
            Kind::StaleId => self.stale_id(),
            Kind::Budget => self.budget(),
            Kind::Retire => self.retire_with_blocks(),
            Kind::RetireInWindow => self.retire_in_window(),
            Kind::RetireUnderCall => self.retire_under_call(),
            Kind::CaptureStream => self.capture_stream(),
            Kind::CaptureUnderCall => self.capture_under_call(),
            Kind::CaptureInWindow => self.capture_in_window(),
            Kind::ForeignCapture => self.foreign_capture(),
            Kind::OvertakenUse => self.overtaken_use(),
            Kind::Pinned => self.pinned(),
            Kind::Trim => self.trim(),
            Kind::HeldMemory => self.held_memory(),
            Kind::Callback => self.callback(),
            Kind::Parts => self.parts(),
        }
    }

    /// Two streams read a block that a third has written, and are waited for.
    fn two_readers(&mut self) -> Option<Vec<Line>> {
        let [home, a, b] = self.distinct_streams()?;
        let mut script = self.script();
        let block = script.allocate(home);
        script.launch(home, &[(block, Access::Write)]);
        script.launch(a, &[(block, Access::Read)]);
        script.launch(b, &[(block, Access::Read)]);
        let last = script.draw.random.pick(&[home, a, b]);
        let access = script.draw.random.pick(&[Access::Write, Access::ReadWrite]);
        script.launch(last, &[(block, access)]);
        script.done()
    }

    /// A block is freed while another thread is about to open a window on it.
    fn stale_id(&mut self) -> Option<Vec<Line>> {
        let [home, other] = self.distinct_streams()?;
        let mut script = self.script_of_two()?;
        let block = script.allocate(home);
        let uses = vec![Used::whole(block, script.draw.access())];
        let stream = script.draw.random.pick(&[home, other]);
        script.held("cuStreamIsCapturing", 1, 1, Step::Launch { stream, uses });
        script.other(Step::Free { block });
        script.draw.blocks.retain(|held| held.name != block);
        script.done()
    }

    /// A program requests more memory than its budget.
    fn budget(&mut self) -> Option<Vec<Line>> {
        if self.stack != Stack::BudgetPool {
            return self.two_readers();
        }
        let stream = self.stream();
        let bytes = (700_000 * self.scale) as usize;
        let mut script = self.script();
        for _ in 0..4 {
            script.allocate_bytes(stream, bytes);
        }
        script.done()
    }

    /// An adopted stream is retired, and its blocks stay.
    fn retire_with_blocks(&mut self) -> Option<Vec<Line>> {
        let [adopted, other] = self.distinct_streams()?;
        let mut script = self.script();
        script.step(Step::Adopt { stream: adopted });
        let block = script.allocate(adopted);
        script.launch(adopted, &[(block, Access::Write)]);
        if script.draw.random.one_in(2) {
            script.launch(other, &[(block, Access::Read)]);
        }
        let in_time = script.draw.random.one_in(3);
        script.step(match in_time {
            true => Step::RetireWithin { stream: adopted },
            false => Step::Retire { stream: adopted },
        });
        script.launch(other, &[(block, Access::ReadWrite)]);
        script.maybe_free(block);
        script.done()
    }

    /// A stream is retired while a window is open on it, and once more when it is closed.
    fn retire_in_window(&mut self) -> Option<Vec<Line>> {
        let [adopted, other] = self.distinct_streams()?;
        let mut script = self.script();
        script.step(Step::Adopt { stream: adopted });
        let home = script.draw.random.pick(&[adopted, other]);
        let block = script.allocate(home);
        let window = script.draw.name();
        let uses = vec![Used::whole(block, script.draw.access())];
        script.step(Step::Open { window, stream: adopted, uses });
        let in_time = script.draw.random.one_in(4);
        script.retire(adopted, in_time);
        script.maybe_free(block);
        script.step(Step::Close { window });
        script.launch(adopted, &[(block, Access::ReadWrite)]);
        script.step(Step::Retire { stream: adopted });
        script.launch(other, &[(block, Access::Read)]);
        script.done()
    }

    /// A stream is retired while a call that uses it is held.
    fn retire_under_call(&mut self) -> Option<Vec<Line>> {
        let [adopted, other] = self.distinct_streams()?;
        let mut script = self.script_of_two()?;
        script.step(Step::Adopt { stream: adopted });
        let home = script.draw.random.pick(&[adopted, other]);
        let block = script.allocate(home);
        script.launch(home, &[(block, Access::Write)]);
        if script.draw.random.one_in(4) {
            let pinned = script.pin(other);
            script.step(Step::FillCounterpart { pinned, stream: other });
            let copy = Step::CopyToHost { pinned, stream: adopted };
            script.held("cuMemcpyDtoHAsync_v2", 1, 1, copy);
            script.retire_by_other(adopted);
            script.step(Step::HostReads { pinned });
            return script.done();
        }
        let step = script.call_on(adopted, block);
        let lines = 1 + script.draw.random.below(2) as usize;
        script.held_somewhere(lines, step);
        script.retire_by_other(adopted);
        script.other(Step::Launch {
            stream: other,
            uses: vec![Used::whole(block, Access::ReadWrite)],
        });
        script.done()
    }

    /// A stream of the program captures, and is used meanwhile.
    fn capture_stream(&mut self) -> Option<Vec<Line>> {
        let [captured, other] = self.distinct_streams()?;
        let mode = self.mode();
        let mut script = self.script();
        let block = script.allocate(captured);
        script.launch(other, &[(block, Access::Write)]);
        script.step(Step::CaptureStream { stream: captured, mode });
        for _ in 0..2 + script.draw.random.below(3) {
            let step = match script.draw.random.below(8) {
                0..4 => script.call_on(captured, block),
                4 => Step::Launch { stream: other, uses: vec![Used::whole(block, Access::Read)] },
                5 => script.new_block(other),
                6 => Step::Reap,
                _ => Step::Trim { keep: 0 },
            };
            script.step(step);
        }
        script.step(Step::EndCaptureStream { stream: captured });
        script.launch(captured, &[(block, Access::Write)]);
        script.launch(other, &[(block, Access::Read)]);
        script.done()
    }

    /// A stream begins to capture after a call has queried whether it does.
    fn capture_under_call(&mut self) -> Option<Vec<Line>> {
        const CALLS: [&str; 4] =
            ["cuEventRecord", "cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"];
        let [captured, other] = self.distinct_streams()?;
        let mode = self.mode();
        let mut script = self.script_of_two()?;
        let home = script.draw.random.pick(&[captured, other]);
        let block = script.allocate(home);
        script.launch(other, &[(block, Access::Write)]);
        let lines = 1 + script.draw.random.below(2) as usize;
        if script.draw.random.one_in(3) {
            let step = script.call_on(captured, block);
            script.held_somewhere(lines, step);
        } else {
            let call = script.draw.random.pick(&CALLS);
            let nth = 1 + script.draw.random.below(2) as u32;
            let uses = vec![Used::whole(block, script.draw.access())];
            script.held(call, nth, lines, Step::Launch { stream: captured, uses });
        }
        script.other(Step::CaptureStream { stream: captured, mode });
        script.other(Step::Launch { stream: other, uses: vec![Used::whole(block, Access::Write)] });
        script.other(Step::EndCaptureStream { stream: captured });
        script.launch(captured, &[(block, Access::Read)]);
        script.done()
    }

    /// A stream begins to capture while a window is open on it.
    fn capture_in_window(&mut self) -> Option<Vec<Line>> {
        let [captured, other] = self.distinct_streams()?;
        let mode = self.mode();
        let mut script = self.script();
        let home = script.draw.random.pick(&[captured, other]);
        let block = script.allocate(home);
        let window = script.draw.name();
        let uses = vec![Used::whole(block, script.draw.access())];
        let is_idle = script.draw.random.one_in(3);
        script.step(match is_idle {
            true => Step::OpenIdle { window, stream: captured, uses },
            false => Step::Open { window, stream: captured, uses },
        });
        script.step(Step::CaptureStream { stream: captured, mode });
        script.maybe_free(block);
        script.step(if is_idle { Step::Cancel { window } } else { Step::Close { window } });
        script.step(Step::EndCaptureStream { stream: captured });
        script.launch(other, &[(block, Access::Write)]);
        script.done()
    }

    /// A stream of another owner captures while memory is freed, reaped and trimmed.
    fn foreign_capture(&mut self) -> Option<Vec<Line>> {
        let [home, other] = self.distinct_streams()?;
        let mode = self.mode();
        let mut script = self.script();
        let block = script.allocate(home);
        script.launch(other, &[(block, Access::Write)]);
        script.step(Step::Capture { mode });
        script.step(Step::Free { block });
        script.draw.blocks.retain(|held| held.name != block);
        for _ in 0..2 + script.draw.random.below(2) {
            let step = match script.draw.random.below(4) {
                0 => Step::Reap,
                1 => Step::ReapPending,
                2 => Step::Trim { keep: 0 },
                _ => script.new_block(home),
            };
            script.step(step);
        }
        script.step(Step::EndCapture);
        script.done()
    }

    /// A use is held between its number and its record. Its stream continues meanwhile, and waits
    /// for another stream: each of the two events then covers the other.
    fn overtaken_use(&mut self) -> Option<Vec<Line>> {
        let [home, other, last] = self.distinct_streams()?;
        let mut script = self.script_of_two()?;
        let [held, first, second] = [(); 3].map(|()| script.allocate(home));
        let call = script.draw.random.pick(&["cuEventCreate", "cuEventRecord"]);
        let uses = vec![Used::whole(held, Access::Write)];
        script.held(call, 1, 3, Step::Launch { stream: home, uses });
        let read = script.draw.random.pick(&[Access::Read, Access::ReadWrite]);
        let written = script.draw.random.pick(&[Access::Write, Access::ReadWrite]);
        let meanwhile = [
            (home, vec![Used::whole(first, Access::Write)]),
            (other, vec![Used::whole(first, read), Used::whole(second, written)]),
            (home, vec![Used::whole(second, script.draw.access())]),
            (last, [held, second].map(|it| Used::whole(it, script.draw.access())).into()),
        ];
        for (stream, uses) in meanwhile {
            script.other(Step::Launch { stream, uses });
        }
        script.done()
    }

    /// Pinned memory is copied on several streams, and the host reads and writes it between.
    fn pinned(&mut self) -> Option<Vec<Line>> {
        let [a, b] = self.distinct_streams()?;
        let mut script = self.script();
        let pinned = script.pin(a);
        script.step(Step::FillCounterpart { pinned, stream: a });
        for _ in 0..3 + script.draw.random.below(3) {
            let stream = script.draw.random.pick(&[a, b]);
            let step = match script.draw.random.below(6) {
                0 => Step::HostWrites { pinned },
                1 => Step::CopyToDevice { pinned, stream },
                2 => Step::FillCounterpart { pinned, stream },
                3 => Step::Delay { stream },
                _ => Step::CopyToHost { pinned, stream },
            };
            script.maybe_held(step, b);
        }
        script.step(Step::HostReads { pinned });
        if script.draw.random.one_in(2) {
            script.step(Step::CopyToDevice { pinned, stream: b });
        }
        if !script.draw.random.one_in(4) {
            script.step(Step::Unpin { pinned });
        }
        if script.draw.random.one_in(2) {
            script.step(Step::ReapPinned);
        }
        script.done()
    }

    /// Memory is freed, and returned to the driver.
    fn trim(&mut self) -> Option<Vec<Line>> {
        let [home, other] = self.distinct_streams()?;
        let bytes = (600_000 * self.scale) as usize;
        let mut script = self.script();
        let block = script.allocate_bytes(home, bytes);
        script.launch(other, &[(block, Access::Write)]);
        script.step(Step::Free { block });
        script.draw.blocks.retain(|held| held.name != block);
        script.step(Step::ReapPending);
        script.step(Step::Trim { keep: 0 });
        script.done()
    }

    /// A thread is held while its stack reserves memory from the driver or returns it.
    fn held_memory(&mut self) -> Option<Vec<Line>> {
        let [home, other] = self.distinct_streams()?;
        let bytes = (1_300_000 * self.scale) as usize;
        let mut script = self.script_of_two()?;
        let (call, frees) = calls::draw_memory(&mut script.draw.random, script.draw.stack);
        let lines = 1 + script.draw.random.below(3) as usize;
        let block = script.draw.name();
        let allocate = Step::Allocate { block, bytes, stream: home };
        if frees {
            script.step(allocate);
            let step = script.draw.random.pick(&[true, false]);
            if step {
                script.held(call, 1, lines, Step::Free { block });
            } else {
                script.step(Step::Free { block });
                script.step(Step::ReapPending);
                script.held(call, 1, lines, Step::Trim { keep: 0 });
            }
        } else {
            script.step(Step::Trim { keep: 0 });
            script.held(call, 1, lines, allocate);
            script.draw.blocks.push(LiveBlock::whole(block, bytes));
        }
        for _ in 0..lines {
            let stream = script.draw.random.pick(&[home, other]);
            let step = script.new_block(stream);
            script.other(step);
        }
        script.done()
    }

    /// The upstream has no memory, and its failure callback allocates.
    fn callback(&mut self) -> Option<Vec<Line>> {
        if self.stack != Stack::CallbackPool {
            return None;
        }
        let [home, other] = self.distinct_streams()?;
        let bytes = (1_300_000 * self.scale) as usize;
        let mut script = self.script();
        script.allocate(other);
        script.step(Step::ReapPending);
        script.step(Step::Trim { keep: 0 });
        script.allocate_bytes(home, bytes);
        for _ in 0..6 {
            script.fail("cuMemAlloc_v2", 2);
            script.allocate_bytes(other, bytes);
        }
        script.fail("cuMemAlloc_v2", 2);
        script.done()
    }

    /// A fork while a thread is held, if the program has two.
    pub(super) fn fork(&mut self) -> Vec<Line> {
        let stream = self.stream();
        let Some(mut script) = self.script_of_two() else {
            return vec![Line::new(0, Step::Fork)];
        };
        let block = script.allocate(stream);
        let step = script.call_on(stream, block);
        script.held("cuStreamIsCapturing", 1, 1, step);
        script.other(Step::Fork);
        script.done().unwrap_or_default()
    }

    fn mode(&mut self) -> CaptureMode {
        self.random.pick(&[CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed])
    }

    /// Draws different streams; `None` if the program has too few.
    pub(super) fn distinct_streams<const N: usize>(&mut self) -> Option<[usize; N]> {
        if self.streams < N {
            return None;
        }
        let first = self.random.below(self.streams as u64) as usize;
        let step = 1 + self.random.below(self.streams as u64 / N as u64) as usize;
        Some(std::array::from_fn(|nth| (first + nth * step) % self.streams))
    }
}

//! Uses of parts of blocks.

use dmr_core::Access;

use super::Draw;
use crate::program::{Line, Part, Step, Used};

impl Draw {
    /// Draws a part of a block of this size, or the whole: quarters, which are neighbours and
    /// disjoint, halves, which overlap them, single bytes at their ends, and ranges that end
    /// anywhere.
    pub(super) fn part(&mut self, bytes: usize) -> Option<Part> {
        if !self.random.one_in(3) || bytes < 16 {
            return None;
        }
        let quarter = bytes / 4;
        let below =
            |random: &mut crate::random::Random, end: usize| random.below(end as u64) as usize;
        let (start, len) = match self.random.below(8) {
            0..4 => (quarter * below(&mut self.random, 4), quarter),
            4 => (2 * quarter * below(&mut self.random, 2), 2 * quarter),
            5 => (quarter * (1 + below(&mut self.random, 3)) - below(&mut self.random, 2), 1),
            _ => {
                let start = below(&mut self.random, bytes);
                (start, 1 + below(&mut self.random, bytes - start))
            }
        };
        Some(Part { start, end: start + len })
    }

    /// Two streams have windows on disjoint parts of a block; a third one uses parts of both, the
    /// whole is used, and the block may be freed meanwhile.
    pub(super) fn parts(&mut self) -> Option<Vec<Line>> {
        let [home, a, b] = self.distinct_streams()?;
        let mut script = self.script();
        let block = script.allocate(home);
        if script.draw.random.one_in(2) {
            script.launch(home, &[(block, Access::Write)]);
        }
        let middle = 512 + 4 * script.draw.random.below(256) as usize;
        let [left, right] = [Part { start: 0, end: middle }, Part { start: middle, end: 4096 }];
        let windows = [(a, left), (b, right)].map(|(stream, part)| {
            let window = script.draw.name();
            let uses = vec![Used { block, access: script.draw.access(), part: Some(part) }];
            script.step(Step::Open { window, stream, uses });
            window
        });
        let across = Part { start: middle - 4, end: middle + 1 };
        let step = |script: &mut super::script::Script<'_>, stream| {
            let part = script.draw.random.pick(&[Some(left), Some(right), Some(across), None]);
            let uses = vec![Used { block, access: script.draw.access(), part }];
            script.other(Step::Launch { stream, uses });
        };
        step(&mut script, a);
        step(&mut script, home);
        if script.draw.random.one_in(3) {
            let bytes = 70_000 * script.draw.scale as usize;
            script.step(Step::Grow { block, bytes });
        }
        script.maybe_free(block);
        for window in windows {
            script.step(Step::Close { window });
            let stream = script.draw.random.pick(&[home, a, b]);
            step(&mut script, stream);
        }
        step(&mut script, home);
        script.done()
    }
}

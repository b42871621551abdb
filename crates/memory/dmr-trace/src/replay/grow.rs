//! The rows of blocks that grew in place.

use std::time::Instant;

use super::ReplayError;
use super::blocks::{Entry, Held};
use super::engine::{Engine, Op};
use crate::summary::CallFailure;

impl Engine<'_> {
    /// Grows a block in place. A resource that does not grow it allocates another one and frees the
    /// first, so that as many bytes are live afterwards as in the trace.
    pub(super) fn grow(&mut self, op: &Op) -> Result<(), ReplayError> {
        let mut held = match self.blocks.take(op.key) {
            Some(Entry::Held(held)) => held,
            absent => {
                self.summary.skipped_grows += 1;
                if let Some(entry) = absent {
                    self.blocks.insert(op.key, entry);
                }
                return Ok(());
            }
        };
        // The resource refuses a size beyond the address space.
        let bytes = usize::try_from(op.bytes).unwrap_or(usize::MAX);
        self.blocks.release(&held);
        let before = held.block.bytes();
        let start = Instant::now();
        let grown = self.resource.try_grow(&mut held.block, bytes);
        let took = start.elapsed();
        let Held { block, line, stream, pattern, .. } = held;
        match grown {
            Ok(true) => {
                self.growing.record(took);
                let mut held = self.hold(op, block, line, stream);
                held.pattern = pattern;
                if let Some(verifier) = &self.verifier
                    && let Err(error) = verifier.fill_grown(&held, before)
                {
                    let message = format!("the new bytes could not be filled: {error}");
                    self.summary.failures.note(CallFailure { line: Some(op.line), message });
                    held.pattern = None;
                }
                self.update_peaks();
                self.blocks.insert(op.key, Entry::Held(held));
            }
            not_grown => {
                let mut held = self.blocks.hold(block, line, stream);
                held.pattern = pattern;
                match not_grown {
                    Ok(_) => self.replace(op, held)?,
                    Err(error) => {
                        self.record_failed_growth(op, error.to_string());
                        self.blocks.insert(op.key, Entry::Held(held));
                    }
                }
            }
        }
        Ok(())
    }

    /// Allocates a block of the bytes to which `held` should grow, and frees `held`.
    fn replace(&mut self, op: &Op, held: Held) -> Result<(), ReplayError> {
        let stream = held.stream;
        let home = held.block.alloc_stream();
        match self.allocate_timed(op, home) {
            Ok(block) => {
                self.summary.moved_blocks += 1;
                let larger = self.hold_and_fill(&Op { stream, ..*op }, block);
                self.blocks.insert(op.key, Entry::Held(larger));
                self.free_timed(op.line, held)
            }
            Err(message) => {
                self.record_failed_growth(op, message);
                self.blocks.insert(op.key, Entry::Held(held));
                Ok(())
            }
        }
    }

    fn record_failed_growth(&mut self, op: &Op, message: String) {
        self.summary.failed_grows += 1;
        self.summary.failures.note(CallFailure { line: Some(op.line), message });
    }
}

//! The effects of stream memory operations: write a word, and wait for one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::abi::*;
use crate::access::{AccessKind, AccessedRanges, AddressRange, Clock, Epoch, Operation};
use crate::check::{Report, ReportKind, Value};
use crate::machine::{Action, Machine, WordOperation};
use crate::memory::address::is_on_device;

impl Machine {
    /// Queues a write of, or a wait for, the word at `at`. One that leaves an allocation is
    /// reported, refused, and does nothing.
    pub(crate) fn word(&mut self, stream: u32, at: u64, operation: WordOperation) -> Outcome {
        let (name, value) = match operation {
            WordOperation::Write(value) => ("write value", value),
            WordOperation::Wait(test) => ("wait value", test.value),
        };
        let (epoch, deps) = self.begin(stream);
        let origin = self.origin(name);
        let by = Operation { epoch, origin: self.declared(stream, origin) };
        let word = [AddressRange::new(at, value.bytes())];
        let (kind, is_illegal) = match operation {
            WordOperation::Write(_) => {
                (AccessKind::WordWrite, self.is_illegal(stream, &[], &word, None))
            }
            WordOperation::Wait(_) => {
                (AccessKind::WordRead, self.is_illegal(stream, &word, &[], None))
            }
        };
        let ranges = [AccessedRanges::new(kind, &word)];
        if is_illegal {
            self.access(&by, &ranges, None, false);
            self.push(epoch, deps, Action::Order);
            return Err(ERROR_INVALID_VALUE);
        }
        // A word is aligned, so it is contiguous in physical memory.
        let piece = self.memory.present.mappings.pieces(at, value.bytes());
        let physical = piece.first().map_or(at, |piece| piece.physical);
        let clock = self.streams[stream as usize].clock.clone();
        match operation {
            WordOperation::Write(value) => {
                self.access(&by, &ranges, None, true);
                self.push(epoch, deps, Action::WriteWord { at, value });
                self.check(move |machine| machine.word_written(physical, epoch, clock, value));
            }
            WordOperation::Wait(test) => {
                let is_host = !is_on_device(at);
                // Later operations have clocks by the time that a logged check runs.
                let is_logged = !self.checks.log.is_empty();
                self.check(move |machine| {
                    let words = &mut machine.checks.shadow.words;
                    let clock = words.up_to_date(clock);
                    match words.waited(physical, epoch, &clock, test, is_host) {
                        Some(gained) if is_logged => machine.close(epoch, &gained),
                        Some(gained) => machine.streams[stream as usize].clock.join(&gained),
                        None => {}
                    }
                });
                self.access(&by, &ranges, None, true);
                let origin = by.origin;
                self.scheduler.word_waits += 1;
                self.push(epoch, deps, Action::WaitWord { at, test, origin });
            }
        }
        Ok(())
    }

    /// Adds a write of the word to the checks; open waits end that it ends.
    fn word_written(&mut self, at: u64, epoch: Epoch, clock: Clock, value: Value) {
        let clock = self.checks.shadow.words.up_to_date(clock);
        for wait in self.checks.shadow.words.written(at, epoch, &clock, value) {
            self.close(wait, &clock);
        }
    }

    /// Returns whether the stream is blocked at a wait for a word.
    pub(crate) fn waits_for_word(&self, stream: u32) -> bool {
        match self.streams[stream as usize].queue.front().map(|op| &op.action) {
            // Without memory for the word, the device faults.
            Some(Action::WaitWord { at, test, .. }) => {
                self.load_word(*at, test.value.wide).is_some_and(|word| !test.holds(word))
            }
            _ => false,
        }
    }

    /// Returns a stream that will write the word that this one waits for.
    pub(crate) fn writer_for(&self, stream: u32) -> Option<u32> {
        let front = self.streams[stream as usize].queue.front()?;
        let Action::WaitWord { at, test, .. } = &front.action else { return None };
        let physical = |at| self.memory.present.mappings.pieces(at, 1).first().map(|p| p.physical);
        let writes = |action: &Action| match action {
            Action::WriteWord { at: other, value } => {
                physical(*other) == physical(*at) && test.holds(value.bits)
            }
            _ => false,
        };
        let streams = self.streams.iter();
        let found = streams.into_iter().position(|s| s.queue.iter().any(|op| writes(&op.action)));
        found.map(|stream| stream as u32)
    }

    /// Ends a wait that has executed. If there is no write of a stream that ends it, the program or
    /// other work has written the word: the order of that is not known, so the wait counts as
    /// ordered after all executed work.
    pub(crate) fn wait_ended(&mut self, wait: Epoch) {
        self.scheduler.word_waits = self.scheduler.word_waits.saturating_sub(1);
        if self.checks.log.is_empty() && !self.checks.shadow.words.is_open(wait) {
            return;
        }
        let mut all = self.host.of_this_thread();
        for stream in 0..self.streams.len() as u32 {
            let seq = self.streams[stream as usize].executed;
            all.raise(Epoch { stream, seq });
        }
        self.check(move |machine| {
            if machine.checks.shadow.words.is_open(wait) {
                let all = machine.checks.shadow.words.up_to_date(all);
                machine.close(wait, &all);
            }
        });
    }

    /// Makes a stream continue that waits for a word that was not written, and reports that.
    pub(crate) fn end_an_endless_wait(&mut self) -> bool {
        let waiting = |&stream: &u32| self.waits_for_word(stream);
        let Some(stream) = (0..self.streams.len() as u32).find(waiting) else { return false };
        let this = &mut self.streams[stream as usize];
        let epoch = Epoch { stream, seq: this.executed + 1 };
        let Some(op) = this.queue.front_mut() else { return false };
        let action = std::mem::replace(&mut op.action, Action::Order);
        let Action::WaitWord { at, test, origin } = action else { return false };
        let device = self.memory.present.device_at(at);
        let found = Report::new(ReportKind::EndlessWait, origin.site(Some(epoch)));
        self.report(found.about(device, AddressRange::new(at, test.value.bytes())));
        self.wait_ended(epoch);
        true
    }

    pub(crate) fn store_word(&mut self, at: u64, value: Value) {
        let bytes = value.bits.to_le_bytes();
        if is_on_device(at) {
            self.memory.bytes().write(at, &bytes[..value.bytes() as usize]);
        } else if value.wide {
            // SAFETY: aligned, as was checked, and inside of pinned host memory (see `Memory`).
            // The program may read the word at any time; a correct program reads it atomically.
            unsafe { AtomicU64::from_ptr(at as usize as *mut u64) }
                .store(value.bits, Ordering::Release);
        } else {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(at as usize as *mut u32) }
                .store(value.bits as u32, Ordering::Release);
        }
    }

    fn load_word(&self, at: u64, wide: bool) -> Option<u64> {
        if is_on_device(at) {
            let piece = *self.memory.present.mappings.pieces(at, 4).first()?;
            let mut bytes = [0; 8];
            self.memory.store.read(piece.physical, &mut bytes[..if wide { 8 } else { 4 }]);
            return Some(u64::from_le_bytes(bytes));
        }
        // SAFETY: as in `store_word`.
        Some(unsafe {
            if wide {
                AtomicU64::from_ptr(at as usize as *mut u64).load(Ordering::Acquire)
            } else {
                u64::from(AtomicU32::from_ptr(at as usize as *mut u32).load(Ordering::Acquire))
            }
        })
    }

    /// Orders a wait, and all operations that come after it, after all of `gained`.
    fn close(&mut self, wait: Epoch, gained: &Clock) {
        self.checks.shadow.words.close(wait, gained, self.checks.log.is_empty());
        self.join_behind(wait, gained);
    }
}

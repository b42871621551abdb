//! Streams of operations over a byte array. An operation runs only when it is waited for.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use dmr_core::ledger::UseId;

/// The offset, from the range's start, of the first byte that a check found wrong; unset until the
/// check has run.
pub(super) type Verdict = Arc<OnceLock<Option<usize>>>;

#[derive(Debug)]
pub(super) struct Device {
    memory: Vec<u8>,
    streams: Vec<Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    queue: VecDeque<Op>,
    submitted: u64,
    done: u64,
}

#[derive(Debug)]
pub(super) enum Op {
    Fill(Pattern),
    Check(Pattern, Verdict),
    Wait(Event),
    Delay,
}

/// A range of the device's bytes and its pattern: byte `i` is byte `(phase + i) % 4` of the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) word: u32,
    pub(super) phase: usize,
}

/// A point on a stream: complete when everything submitted before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    stream: usize,
    pub(super) position: u64,
}

impl Event {
    /// Returns the use in a ledger that stands for the event.
    pub(super) fn id(self) -> UseId {
        UseId::new(self.stream, self.position)
    }

    /// Returns the event of a use in a ledger.
    pub(super) fn of(used: UseId) -> Self {
        Self { stream: used.slot(), position: used.seq() }
    }
}

impl Device {
    pub(super) fn new(bytes: usize, streams: usize) -> Self {
        let streams = (0..streams).map(|_| Stream::default()).collect();
        Self { memory: vec![0; bytes], streams }
    }

    pub(super) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    pub(super) fn submit(&mut self, stream: usize, op: Op) {
        self.streams[stream].queue.push_back(op);
        self.streams[stream].submitted += 1;
    }

    pub(super) fn record(&self, stream: usize) -> Event {
        Event { stream, position: self.streams[stream].submitted }
    }

    pub(super) fn is_complete(&self, event: Event) -> bool {
        self.streams[event.stream].done >= event.position
    }

    /// Runs what `event` needs, and nothing else.
    pub(super) fn run_until(&mut self, event: Event) {
        while !self.is_complete(event) {
            let stream = &mut self.streams[event.stream];
            stream.done += 1;
            match stream.queue.pop_front() {
                Some(Op::Fill(pattern)) => pattern.fill(&mut self.memory),
                Some(Op::Check(pattern, verdict)) => {
                    verdict.get_or_init(|| pattern.first_wrong(&self.memory));
                }
                Some(Op::Wait(other)) => self.run_until(other),
                Some(Op::Delay) | None => {}
            }
        }
    }

    pub(super) fn run_all(&mut self) {
        // The last stream first, which is not the order of submission.
        for stream in (0..self.streams.len()).rev() {
            self.run_until(self.record(stream));
        }
    }
}

impl Pattern {
    /// Makes the pattern of a range whose bytes are all the same.
    pub(super) fn of_byte(at: usize, len: usize, byte: u8) -> Self {
        Self { at, len, word: u32::from_le_bytes([byte; 4]), phase: 0 }
    }

    /// Returns the bytes of the word, rotated so that the first one is the first of the range.
    fn rotated(self) -> [u8; 4] {
        let mut word = self.word.to_le_bytes();
        word.rotate_left(self.phase % 4);
        word
    }

    fn fill(self, memory: &mut [u8]) {
        let word = self.rotated();
        for part in memory[self.at..self.at + self.len].chunks_mut(4) {
            part.copy_from_slice(&word[..part.len()]);
        }
    }

    /// Returns the index of the first byte of the range that differs from the pattern.
    pub(super) fn first_wrong(self, memory: &[u8]) -> Option<usize> {
        let word = self.rotated();
        let mut parts = memory[self.at..self.at + self.len].chunks(4).enumerate();
        parts.find_map(|(index, part)| {
            let wrong = part.iter().zip(word).position(|(byte, right)| *byte != right)?;
            Some(4 * index + wrong)
        })
    }
}

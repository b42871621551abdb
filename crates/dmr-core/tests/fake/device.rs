//! Streams of operations over a byte array. Nothing runs before somebody waits for it.

use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Device {
    memory: Vec<u8>,
    streams: Vec<Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    queue: VecDeque<Op>,
    submitted: u64,
    done: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Fill { at: usize, len: usize, byte: u8 },
    Wait(Event),
    Delay,
}

/// A point on a stream: complete when everything submitted before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    stream: usize,
    pub(crate) position: u64,
}

impl Device {
    pub(crate) fn new(bytes: usize, streams: usize) -> Self {
        let streams = (0..streams).map(|_| Stream::default()).collect();
        Self { memory: vec![0; bytes], streams }
    }

    pub(crate) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    pub(crate) fn submit(&mut self, stream: usize, op: Op) {
        self.streams[stream].queue.push_back(op);
        self.streams[stream].submitted += 1;
    }

    pub(crate) fn record(&self, stream: usize) -> Event {
        Event { stream, position: self.streams[stream].submitted }
    }

    pub(crate) fn is_complete(&self, event: Event) -> bool {
        self.streams[event.stream].done >= event.position
    }

    /// Runs what `event` needs, and nothing else.
    pub(crate) fn run_until(&mut self, event: Event) {
        while !self.is_complete(event) {
            let stream = &mut self.streams[event.stream];
            stream.done += 1;
            match stream.queue.pop_front() {
                Some(Op::Fill { at, len, byte }) => self.memory[at..at + len].fill(byte),
                Some(Op::Wait(other)) => self.run_until(other),
                Some(Op::Delay) | None => {}
            }
        }
    }

    pub(crate) fn run_all(&mut self) {
        // The last stream first: not the order of submission.
        for stream in (0..self.streams.len()).rev() {
            self.run_until(self.record(stream));
        }
    }
}

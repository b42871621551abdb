//! G1 to G4: random programs that capture, replay, write, read late, free and drop, on several
//! streams and threads, with graphs that share a pool. A model has the byte of each buffer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dmr_core::{AllocTag, DeviceBlock, DeviceOps, ResourceError};
use dmr_graphs::{Capture, CaptureMode, CaptureOptions, Fork, Graph, GraphMemory, GraphPool};
use dmr_launch::{LaunchError, LaunchRecorder, PrepareError};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

use crate::scene::{BYTES, Context, alone, copy_bytes, fill_bytes};

const THREADS: usize = 3;
const STEPS: usize = 40;
/// The buffers and the streams of a thread.
const BUFFERS: usize = 5;
const STREAMS: usize = 3;

/// The byte that memory has, where a replay has it from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Byte(u8),
    Buffer(usize),
}

/// A buffer, and the byte that all work so far leaves in it.
struct Buffer {
    block: DeviceBlock,
    byte: u8,
    /// Counts the buffers that were here before.
    generation: usize,
}

/// A graph, and what a replay does.
struct Known {
    graph: Graph,
    /// The buffers that it uses, with their generations.
    uses: Vec<(usize, usize)>,
    outputs: Vec<(usize, Source)>,
}

/// One thread of a program: its own buffers, streams and graphs, and pools of all threads.
struct Player<'r> {
    rig: &'r Rig,
    ctx: &'r Context,
    pools: &'r [GraphPool],
    random: fastrand::Rng,
    streams: Vec<StreamLease>,
    buffers: Vec<Buffer>,
    graphs: Vec<Known>,
}

/// Work that is captured on one stream, and the memory that it may read.
#[derive(Default)]
struct Lane<'c> {
    fork: Option<Fork<'c>>,
    visible: Vec<u64>,
}

/// The memory of a capture, and its byte.
struct Filled<'c> {
    memory: GraphMemory<'c>,
    source: Source,
}

impl<'r> Player<'r> {
    fn new(rig: &'r Rig, ctx: &'r Context, pools: &'r [GraphPool], seed: u64) -> Self {
        let streams: Vec<_> = (0..STREAMS).map(|_| rig.stream()).collect();
        let random = fastrand::Rng::with_seed(seed);
        let mut player =
            Self { rig, ctx, pools, random, streams, buffers: Vec::new(), graphs: Vec::new() };
        for _ in 0..BUFFERS {
            let buffer = player.buffer(0);
            player.buffers.push(buffer);
        }
        player
    }

    /// Allocates a buffer, which a launch fills.
    fn buffer(&mut self, generation: usize) -> Buffer {
        let home = self.random.usize(..STREAMS);
        let block = self.ctx.block(&self.streams[home]);
        let mut buffer = Buffer { block, byte: 0, generation };
        self.fill(&mut buffer);
        buffer
    }

    fn fill(&mut self, buffer: &mut Buffer) {
        let on = &self.streams[self.random.usize(..STREAMS)];
        let is_slow = self.random.u32(..4) == 0;
        buffer.byte = self.random.u8(..);
        let mut launch = LaunchRecorder::new_strict(on);
        launch.write(&mut buffer.block);
        let filled = launch.launch(self.ctx, |stream| {
            if is_slow {
                self.rig.delay(on);
            }
            fill_bytes(stream, buffer.block.ptr(), buffer.byte)
        });
        filled.unwrap();
    }

    /// Checks a buffer, in a launch on any stream.
    fn check(&mut self, at: usize) {
        let on = &self.streams[self.random.usize(..STREAMS)];
        let Buffer { block, byte, .. } = &self.buffers[at];
        let pattern = u32::from_le_bytes([*byte; 4]);
        let mut launch = LaunchRecorder::new_strict(on);
        launch.read(block);
        let checked = launch.launch(self.ctx, |_| {
            self.rig.ops().check_pattern(block, 0..BYTES, pattern, on.id(), 0)
        });
        checked.unwrap();
    }

    fn step(&mut self) {
        match self.random.u32(..20) {
            0..=2 => self.capture(),
            3 if !self.graphs.is_empty() => self.update(),
            4 if !self.graphs.is_empty() => {
                let at = self.random.usize(..self.graphs.len());
                drop(self.graphs.swap_remove(at));
            }
            5..=11 if !self.graphs.is_empty() => self.replay(),
            12..=14 => {
                let at = self.random.usize(..BUFFERS);
                let generation = self.buffers[at].generation;
                let mut taken = self.buffers.swap_remove(at);
                self.fill(&mut taken);
                self.buffers.push(taken);
                let last = self.buffers.len() - 1;
                self.buffers.swap(at, last);
                assert_eq!(self.buffers[at].generation, generation);
            }
            15 => {
                let at = self.random.usize(..BUFFERS);
                let new = self.buffer(self.buffers[at].generation + 1);
                let old = std::mem::replace(&mut self.buffers[at], new);
                self.ctx.resource.deallocate(old.block).unwrap();
            }
            16 => {
                // Memory that was freed goes to others at once.
                let on = self.random.usize(..STREAMS);
                let mut noise =
                    Buffer { block: self.ctx.block(&self.streams[on]), byte: 0, generation: 0 };
                self.fill(&mut noise);
                self.ctx.resource.deallocate(noise.block).unwrap();
            }
            17 => drop(self.ctx.resource.try_reap().unwrap()),
            _ => {
                let at = self.random.usize(..BUFFERS);
                self.check(at);
            }
        }
    }

    fn capture(&mut self) {
        let pool = match self.random.usize(..=self.pools.len()) {
            own if own == self.pools.len() => CaptureOptions::new(),
            shared => CaptureOptions::new().with_pool(&self.pools[shared]),
        };
        let seed = self.random.u64(..);
        let origin = self.random.usize(..STREAMS);
        let Self { ctx, streams, buffers, .. } = self;
        let mut work = Work::new(seed, origin, streams, buffers);
        // SAFETY: the work uses the blocks that it records, and memory of the capture.
        let graph =
            unsafe { Graph::capture(*ctx, &streams[origin], pool, |capture| work.make(capture)) };
        let Work { uses, outputs, .. } = work;
        let graph = graph.unwrap().with_timeout(Duration::from_secs(60));
        self.graphs.push(Known { graph, uses, outputs });
    }

    fn update(&mut self) {
        let at = self.random.usize(..self.graphs.len());
        let seed = self.random.u64(..);
        let origin = self.random.usize(..STREAMS);
        let Self { graphs, streams, buffers, .. } = self;
        let mut work = Work::new(seed, origin, streams, buffers);
        let known = &mut graphs[at];
        let mode = CaptureMode::default();
        // SAFETY: as above.
        unsafe { known.graph.update(&streams[origin], mode, |capture| work.make(capture)) }
            .unwrap();
        let Work { uses, outputs, .. } = work;
        known.uses = uses;
        known.outputs = outputs;
    }

    fn replay(&mut self) {
        let Known { graph, uses, outputs } = &self.graphs[self.random.usize(..self.graphs.len())];
        let on = &self.streams[self.random.usize(..STREAMS)];
        let is_alive =
            |&(at, generation): &(usize, usize)| self.buffers[at].generation == generation;
        let launched = graph.launch(on);
        if !uses.iter().all(is_alive) {
            let refused = launched.unwrap_err();
            let is_named = matches!(
                &refused,
                LaunchError::Prepare(PrepareError::Resource {
                    source: ResourceError::UseAfterFree { .. },
                    ..
                })
            );
            assert!(is_named, "{refused}");
            return;
        }
        launched.unwrap();
        for &(at, source) in outputs {
            self.buffers[at].byte = match source {
                Source::Byte(byte) => byte,
                Source::Buffer(from) => self.buffers[from].byte,
            };
        }
    }

    /// Checks all buffers, and frees everything.
    fn end(mut self) {
        (0..BUFFERS).for_each(|at| self.check(at));
        self.graphs.clear();
        for buffer in self.buffers.drain(..) {
            self.ctx.resource.deallocate(buffer.block).unwrap();
        }
    }
}

/// The random work of one capture: copies between memory of the capture and buffers, in several
/// lanes. The first buffers are read, the others are written.
struct Work<'p> {
    random: fastrand::Rng,
    /// The streams that may join.
    others: Vec<&'p StreamLease>,
    buffers: &'p mut [Buffer],
    uses: Vec<(usize, usize)>,
    outputs: Vec<(usize, Source)>,
}

impl<'p> Work<'p> {
    fn new(
        seed: u64,
        origin: usize,
        streams: &'p [StreamLease],
        buffers: &'p mut [Buffer],
    ) -> Self {
        let others = (0..STREAMS).filter(|at| *at != origin).map(|at| &streams[at]).collect();
        let random = fastrand::Rng::with_seed(seed);
        Self { random, others, buffers, uses: Vec::new(), outputs: Vec::new() }
    }

    fn make(&mut self, capture: &mut Capture<'_>) -> Result<(), ResourceError> {
        let read = self.random.usize(1..BUFFERS);
        for at in 0..BUFFERS {
            let is_used = self.random.u32(..3) > 0;
            let Buffer { block, generation, .. } = &mut self.buffers[at];
            match is_used {
                true if at < read => capture.read(&*block),
                true => capture.write(block),
                false => continue,
            };
            self.uses.push((at, *generation));
        }
        let uses = self.uses.clone();
        let inputs: Vec<_> = uses.iter().map(|used| used.0).filter(|at| *at < read).collect();
        let outputs: Vec<_> = uses.iter().map(|used| used.0).filter(|at| *at >= read).collect();
        let mut memory = BTreeMap::<u64, Filled<'_>>::new();
        let mut lanes = vec![Lane::default()];
        for number in 0..self.random.u64(4..40) {
            let at = self.random.usize(..lanes.len());
            match self.random.u32(..10) {
                0 if lanes.len() <= self.others.len() => {
                    let fork = capture.fork(self.others[lanes.len() - 1])?;
                    let visible = lanes[0].visible.clone();
                    lanes.push(Lane { fork: Some(fork), visible });
                }
                1 if lanes.len() > 1 => {
                    let Lane { fork: Some(fork), visible } = lanes.pop().unwrap() else { continue };
                    capture.join(fork)?;
                    lanes[0].visible.extend(visible);
                }
                2..=4 if !memory.is_empty() => {
                    let mut numbers: Vec<_> = memory.keys().copied().collect();
                    numbers.sort_unstable();
                    let freed = numbers[self.random.usize(..numbers.len())];
                    capture.free(memory.remove(&freed).unwrap().memory);
                }
                _ => {
                    let lane = &mut lanes[at];
                    lane.visible.retain(|number| memory.contains_key(number));
                    let filled = self.filled(capture, lane, &inputs, &memory)?;
                    memory.insert(number, filled);
                    lane.visible.push(number);
                }
            }
        }
        if outputs.is_empty() {
            // The end joins what is left.
            return Ok(());
        }
        while let Some(Lane { fork: Some(fork), visible }) =
            lanes.pop_if(|lane| lane.fork.is_some())
        {
            capture.join(fork)?;
            lanes[0].visible.extend(visible);
        }
        for to in outputs {
            let left: Vec<_> = memory.values().collect();
            let stream = Arc::clone(capture.stream());
            let to_ptr = self.buffers[to].block.ptr();
            let source = match self.random.choice(&left) {
                Some(from) => {
                    copy_bytes(&stream, from.memory.device_ptr(), to_ptr).unwrap();
                    from.source
                }
                None => {
                    fill_bytes(&stream, to_ptr, 3).unwrap();
                    Source::Byte(3)
                }
            };
            self.outputs.push((to, source));
        }
        Ok(())
    }

    /// Allocates memory, and captures work that fills it.
    fn filled<'c>(
        &mut self,
        capture: &mut Capture<'c>,
        lane: &Lane<'c>,
        inputs: &[usize],
        memory: &BTreeMap<u64, Filled<'c>>,
    ) -> Result<Filled<'c>, ResourceError> {
        let fork = lane.fork.as_ref();
        let stream =
            Arc::clone(fork.map_or_else(|| capture.stream().stream(), |fork| fork.stream()));
        let new = match fork {
            Some(fork) => capture.allocate_on(fork, BYTES)?,
            None => capture.allocate(BYTES)?,
        };
        let to = new.device_ptr();
        let source = match (self.random.u32(..3), self.random.choice(&lane.visible)) {
            (0, Some(from)) => {
                copy_bytes(&stream, memory[from].memory.device_ptr(), to).unwrap();
                memory[from].source
            }
            (1, _) if !inputs.is_empty() => {
                let from = inputs[self.random.usize(..inputs.len())];
                copy_bytes(&stream, self.buffers[from].block.ptr(), to).unwrap();
                Source::Buffer(from)
            }
            _ => {
                let byte = self.random.u8(..);
                fill_bytes(&stream, to, byte).unwrap();
                Source::Byte(byte)
            }
        };
        Ok(Filled { memory: new, source })
    }
}

fn play(seed: u64) {
    let rig = Rig::new();
    let ctx = Context::new(&rig);
    let pools = ["first", "second"].map(|tag| GraphPool::new(&ctx, AllocTag::new(tag)));
    let threads = 1 + seed as usize % THREADS;
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let rig = &rig;
            let ctx = &ctx;
            let pools = &pools;
            scope.spawn(move || {
                rig.device().bind().unwrap();
                let mut player = Player::new(rig, ctx, pools, seed * 16 + thread);
                (0..STEPS).for_each(|_| player.step());
                player.end();
            });
        }
    });
    drop(pools);
    ctx.resource.reap_pending().unwrap();
    assert_eq!(ctx.resource.bytes_outstanding(), 0, "seed {seed}");
    drop(ctx);
    if let Err(findings) = rig.verdict() {
        panic!("seed {seed}: {findings}");
    }
    rig.assert_clean();
}

#[test]
fn random_programs_have_the_bytes_of_the_model_and_no_race() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("DMR_GRAPHS_FROM").unwrap_or(0);
    let _alone = alone();
    for seed in first..first + number("DMR_GRAPHS").unwrap_or(100) {
        play(seed);
    }
}

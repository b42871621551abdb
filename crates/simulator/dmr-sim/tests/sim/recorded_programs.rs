//! Random programs with words that streams wait for, blocks of a pool, virtual memory and atomic
//! operations have the same findings whether their kernels declare what they touch or the simulator
//! records it.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{self, Gpu};
use crate::support::judge::verdict;
use crate::support::rng::Rng;
use crate::support::virtual_memory::{
    GEQ, PAGE, READ, READ_WRITE, create, map, reserve, set_access, unmap, wait32, write32,
};
use cudarc::driver::sys::{CUevent, CUfunction, CUmemPool_attribute as Attribute, CUstream};
use dmr_sim::{Footprint, KernelArgs, KernelMemory, Policy, ReportKind, Universe};

const PROGRAMS: u64 = 2_000;
const STREAMS: usize = 3;
/// The bytes of each block that kernels use.
const BYTES: u64 = 64;
/// Blocks of the pool. Each can be live or freed.
const REGIONS: usize = 4;
/// Mappings side by side.
const MAPPINGS: usize = 2;
/// Blocks of the driver's own pool.
const BLOCKS: usize = 3;

/// A range of bytes in one of the places that a program uses.
#[derive(Clone, Copy, Debug)]
struct Range {
    place: Place,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Plain,
    Words,
    Region(usize),
    Mapping(usize),
    Block(usize),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Launch { stream: usize, reads: Range, writes: Range, atomics: Range },
    Fill { stream: usize, range: Range },
    Order { earlier: usize, later: usize },
    Sync { stream: usize },
    WriteWord { stream: usize, word: u64, value: u32 },
    WaitWord { stream: usize, word: u64, value: u32 },
    RegionAllocated(usize),
    RegionFreed(usize),
    Map(usize),
    Unmap(usize),
    Access { mapping: usize, rights: u32 },
    Allocate { block: usize, stream: usize },
    Free { block: usize, stream: usize },
}

#[test]
fn a_recorded_footprint_is_judged_as_a_declared_one_beside_words_regions_and_mappings() {
    let mut found = 0;
    for seed in 0..PROGRAMS {
        let program = program(seed);
        for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
            let declared = run(&program, policy, seed, 0);
            for recorded_percent in [100, 50] {
                let recorded = run(&program, policy, seed, recorded_percent);
                if recorded != declared {
                    shrink(&program, policy, seed, recorded_percent);
                }
            }
            found += usize::from(!declared.findings.is_empty());
        }
    }
    // Three runs of each.
    let programs = PROGRAMS as usize * 3;
    assert!((programs / 4..programs * 9 / 10).contains(&found), "{found} are no fair mix");
}

fn shrink(program: &[Step], policy: Policy, seed: u64, percent: usize) -> ! {
    let differs = |steps: &[Step]| run(steps, policy, seed, 0) != run(steps, policy, seed, percent);
    let mut small = program.to_vec();
    let mut index = small.len();
    while index > 0 {
        index -= 1;
        let mut shorter = small.clone();
        shorter.remove(index);
        if differs(&shorter) {
            small = shorter;
            index = index.min(small.len());
        }
    }
    let listed: String =
        small.iter().enumerate().map(|(index, step)| format!("  {index} {step:?}\n")).collect();
    panic!(
        "{policy:?}, seed {seed}, {percent} % recorded\n{listed}declared: {:?}\nrecorded: {:?}",
        run(&small, policy, seed, 0),
        run(&small, policy, seed, percent)
    );
}

fn program(seed: u64) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0x1a7e);
    // The host waits for no stream that waits for a word, which may never be written.
    let has_words = rng.chance(60);
    let care = *rng.pick(&[0, 50, 90, 100]);
    let mut steps: Vec<Step> =
        (0..BLOCKS).map(|block| Step::Allocate { block, stream: 0 }).collect();
    steps.extend((0..BLOCKS).map(|block| {
        let range = Range { place: Place::Block(block), offset: 0, bytes: BYTES };
        Step::Fill { stream: 0, range }
    }));
    let mut last = 0;
    for _ in 0..rng.between(2, 25) {
        let step = step(&mut rng, has_words);
        if care == 100 && step.is_fatal() {
            continue;
        }
        if let Some(stream) = step.stream() {
            if rng.chance(care) {
                steps.push(Step::Order { earlier: last, later: stream });
            }
            last = stream;
        }
        steps.push(step);
    }
    steps
}

impl Step {
    /// Returns the stream whose work the step is.
    fn stream(self) -> Option<usize> {
        match self {
            Step::Launch { stream, .. }
            | Step::Fill { stream, .. }
            | Step::Allocate { stream, .. }
            | Step::Free { stream, .. }
            | Step::WriteWord { stream, .. }
            | Step::WaitWord { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// Returns whether the step takes memory away, or may be a finding wherever it stands.
    fn is_fatal(self) -> bool {
        match self {
            Step::Launch { reads, writes, atomics, .. } => {
                [reads, writes, atomics].iter().any(|range| range.is_outside())
            }
            Step::Fill { range, .. } => range.is_outside(),
            Step::Unmap(_)
            | Step::Free { .. }
            | Step::Allocate { .. }
            | Step::RegionFreed(_)
            | Step::RegionAllocated(_)
            | Step::Access { .. } => true,
            _ => false,
        }
    }
}

impl Range {
    fn is_outside(self) -> bool {
        self.offset + self.bytes > BYTES
    }
}

fn step(rng: &mut Rng, has_words: bool) -> Step {
    let stream = rng.below(STREAMS);
    let word = rng.below(2) as u64 * 4;
    let value = rng.between(1, 3) as u32;
    match rng.below(30) {
        0..=8 => {
            // A launch that faults has written a part of its memory, or nothing if that was
            // declared. So none that can fault writes words.
            let can_fault = rng.chance(50);
            let [reads, writes, atomics] = [(); 3].map(|()| {
                let drawn = range(rng, has_words);
                match (drawn.place, can_fault) {
                    (Place::Words, true) | (Place::Mapping(_), false) => {
                        Range { place: Place::Plain, ..drawn }
                    }
                    _ => drawn,
                }
            });
            Step::Launch { stream, reads, writes, atomics }
        }
        9..=11 => Step::Fill { stream, range: range(rng, has_words) },
        12..=17 => Step::Order { earlier: stream, later: rng.below(STREAMS) },
        18..=21 if has_words && rng.chance(50) => Step::WriteWord { stream, word, value },
        18..=21 if has_words => Step::WaitWord { stream, word, value },
        18..=21 => Step::Sync { stream },
        22 => Step::RegionAllocated(rng.below(REGIONS)),
        23 => Step::RegionFreed(rng.below(REGIONS)),
        24 => Step::Map(rng.below(MAPPINGS)),
        25 if rng.chance(30) => Step::Unmap(rng.below(MAPPINGS)),
        26 => Step::Access {
            mapping: rng.below(MAPPINGS),
            rights: if rng.chance(30) { READ } else { READ_WRITE },
        },
        27..=28 => Step::Allocate { block: rng.below(BLOCKS), stream },
        _ => Step::Free { block: rng.below(BLOCKS), stream },
    }
}

fn range(rng: &mut Rng, has_words: bool) -> Range {
    let place = match rng.below(20) {
        0..=5 => Place::Plain,
        6 if has_words => Place::Words,
        6..=10 => Place::Region(rng.below(REGIONS)),
        11..=14 => Place::Mapping(rng.below(MAPPINGS)),
        _ => Place::Block(rng.below(BLOCKS)),
    };
    // Some ranges leave their block, and some are empty.
    let offset = rng.between(0, BYTES as usize) as u64;
    let most = BYTES - offset + u64::from(rng.chance(5)) * 8;
    Range { place, offset, bytes: rng.between(0, most as usize) as u64 }
}

/// The findings, and the codes that the steps returned.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    findings: Vec<(Option<usize>, std::collections::BTreeSet<String>)>,
    codes: Vec<Option<i32>>,
}

struct Machine {
    streams: Vec<CUstream>,
    events: Vec<CUevent>,
    kernel: CUfunction,
    plain: u64,
    words: u64,
    heap: u64,
    reserved: u64,
    memories: Vec<u64>,
    blocks: [u64; BLOCKS],
    gpu: Gpu,
}

/// Runs a program of whose launches a percentage is recorded.
fn run(program: &[Step], policy: Policy, seed: u64, recorded_percent: usize) -> Outcome {
    let universe = Universe::builder().devices(1).policy(policy).seed(seed).build().unwrap();
    let mut machine = Machine::new(&universe, seed, recorded_percent);
    let step = |(index, step): (usize, &Step)| {
        let _label = dmr_sim::label(format!("step {index}"));
        gpu::code(machine.perform(&universe, *step))
    };
    let codes = program.iter().enumerate().map(step).collect();
    let mut reports = universe.finish().reports;
    reports.retain(|report| report.kind != ReportKind::Leak);
    let findings = verdict(&reports);
    Outcome { findings, codes }
}

impl Machine {
    fn new(universe: &Universe, seed: u64, recorded_percent: usize) -> Machine {
        let gpu = Gpu::new(universe);
        let pool = gpu::default_pool(gpu.device);
        // The driver's pool takes memory of its own stream only, so that addresses depend on the
        // program alone.
        for attribute in [
            Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ] {
            gpu::pool_set(pool, attribute, 0);
        }
        let [plain, words, heap] = [(); 3].map(|()| gpu::malloc(4096).unwrap());
        for block in [plain, words, heap] {
            gpu::fill(block, 0, 4096, gpu::LEGACY).unwrap();
        }
        gpu::sync_context().unwrap();
        universe.heap_created(heap, 4096);
        for region in 0..REGIONS as u64 {
            universe.region_allocated(heap + region * 256, BYTES as usize, "region");
            gpu::fill(heap + region * 256, 0, BYTES as usize, gpu::LEGACY).unwrap();
        }
        let reserved = reserve(MAPPINGS * PAGE).unwrap();
        let map_one = |mapping| {
            let memory = create(PAGE, gpu.device).unwrap();
            let at = reserved + (mapping * PAGE) as u64;
            map(at, PAGE, memory).unwrap();
            set_access(at, PAGE, gpu.device, READ_WRITE).unwrap();
            gpu::fill(at, 0, PAGE, gpu::LEGACY).unwrap();
            memory
        };
        let memories = (0..MAPPINGS).map(map_one).collect();
        gpu::sync_context().unwrap();
        Machine {
            streams: (0..STREAMS).map(|_| gpu::stream()).collect(),
            events: (0..STREAMS).map(|_| gpu::event()).collect(),
            kernel: touch(universe, seed, recorded_percent),
            plain,
            words,
            heap,
            reserved,
            memories,
            blocks: [0; BLOCKS],
            gpu,
        }
    }

    fn perform(&mut self, universe: &Universe, step: Step) -> gpu::Driver<()> {
        match step {
            Step::Launch { stream, reads, writes, atomics } => {
                let ranges = [reads, writes, atomics];
                let arguments = ranges.map(|range| [self.at(range), range.bytes]);
                gpu::launch(self.kernel, arguments.as_flattened(), self.streams[stream])
            }
            Step::Fill { stream, range } => {
                gpu::fill(self.at(range), 1, range.bytes as usize, self.streams[stream])
            }
            Step::Order { earlier, later } => {
                gpu::record(self.events[earlier], self.streams[earlier])?;
                gpu::wait(self.streams[later], self.events[earlier])
            }
            Step::Sync { stream } => gpu::sync(self.streams[stream]),
            Step::WriteWord { stream, word, value } => {
                write32(self.streams[stream], self.words + word, value)
            }
            Step::WaitWord { stream, word, value } => {
                wait32(self.streams[stream], self.words + word, value, GEQ)
            }
            Step::RegionAllocated(region) => {
                universe.region_allocated(self.region(region), BYTES as usize, "region");
                Ok(())
            }
            Step::RegionFreed(region) => {
                universe.region_freed(self.region(region));
                Ok(())
            }
            Step::Map(mapping) => map(self.mapping(mapping), PAGE, self.memories[mapping]),
            Step::Unmap(mapping) => unmap(self.mapping(mapping), PAGE),
            Step::Access { mapping, rights } => {
                set_access(self.mapping(mapping), PAGE, self.gpu.device, rights)
            }
            Step::Allocate { block, stream } => {
                let allocated = gpu::malloc_async(BYTES as usize, self.streams[stream])?;
                self.blocks[block] = allocated;
                Ok(())
            }
            Step::Free { block, stream } => {
                gpu::free_async(self.blocks[block], self.streams[stream])
            }
        }
    }

    fn at(&self, range: Range) -> u64 {
        let start = match range.place {
            Place::Plain => self.plain,
            Place::Words => self.words,
            Place::Region(region) => self.region(region),
            Place::Mapping(mapping) => self.mapping(mapping),
            Place::Block(block) => self.blocks[block],
        };
        start + range.offset
    }

    /// Regions do not touch: a recorded range would go on in the next one.
    fn region(&self, region: usize) -> u64 {
        self.heap + region as u64 * 256
    }

    fn mapping(&self, mapping: usize) -> u64 {
        self.reserved + (mapping * PAGE) as u64
    }
}

/// A kernel that reads a range, writes one, and changes one by atomic operations.
fn touch(universe: &Universe, seed: u64, recorded_percent: usize) -> CUfunction {
    let of = |args: &KernelArgs, index: usize| (args.u64(2 * index), args.u64(2 * index + 1));
    let launches = std::sync::atomic::AtomicU64::new(0);
    let footprint = move |args: &KernelArgs| {
        let launch = launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if Rng::new(seed ^ launch << 32).chance(recorded_percent) {
            return Footprint::recorded();
        }
        let [(read, bytes), write, atomic] = [0, 1, 2].map(|index| of(args, index));
        Footprint::new().reads(read, bytes).writes(write.0, write.1).atomics(atomic.0, atomic.1)
    };
    let body = move |args: &KernelArgs, memory: &mut KernelMemory<'_>| {
        let [(read, bytes), write, atomic] = [0, 1, 2].map(|index| of(args, index));
        // The old value is needed before the write, as the declaration says.
        let mut old = vec![0; atomic.1 as usize];
        memory.read(read, &mut vec![0; bytes as usize]);
        memory.read_atomic(atomic.0, &mut old);
        memory.write(write.0, &vec![1; write.1 as usize]);
        memory.update(atomic.0, &mut old, |bytes| bytes.fill(2));
    };
    universe.register_kernel("touch", footprint, body);
    gpu::kernel(&gpu::ptx("touch", &["u64"; 6]), "touch").unwrap()
}

//! Runs a program through cudarc on a universe of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{
    CUevent, CUfunction, CUmemPool_attribute as Attribute, CUmemoryPool, CUstream,
};
use dmr_sim::{Footprint, KernelArgs, KernelMemory, Policy, Report, Universe};

use super::gpu::{self, Gpu, Pinned};
use super::model;
use super::program::{Host, How, Outcome, Program, Span, Step, StreamKind};
use super::rng::Rng;

/// A run of a program.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcomes: Vec<Outcome>,
    /// The reports of the steps.
    pub(crate) reports: Vec<Report>,
    /// The content of the buffers that were never freed, at the end.
    pub(crate) buffers: Vec<Option<Vec<u8>>>,
    /// The steps whose memory was reported as leaked.
    pub(crate) leaks: Vec<Option<usize>>,
}

impl Run {
    /// Renumbers the findings as if step `index`, which the driver never saw, were not in the
    /// program.
    pub(crate) fn forget_step(&mut self, index: usize) {
        let renumber = |label: &mut Option<Arc<str>>| {
            if let Some(step) = step_of(label.as_deref()).filter(|&step| step > index) {
                *label = Some(format!("step {}", step - 1).into());
            }
        };
        for report in &mut self.reports {
            renumber(&mut report.second.label);
            if let Some(first) = &mut report.first {
                renumber(&mut first.label);
            }
        }
        for step in self.leaks.iter_mut().flatten() {
            *step -= usize::from(*step > index);
        }
    }
}

/// The step that a label names.
pub(crate) fn step_of(label: Option<&str>) -> Option<usize> {
    label?.strip_prefix("step ")?.parse().ok()
}

/// The source of the footprints of a program's kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Footprints {
    Declared,
    Recorded,
    /// Of each launch one or the other, by this seed.
    Mixed(u64),
}

pub(crate) fn run(program: &Program, policy: Policy, seed: u64) -> Run {
    run_with(program, policy, seed, Footprints::Declared, |_| ())
}

/// Runs a program; `meddle` may arrange for faults after the streams and events are made and before
/// the first step.
pub(crate) fn run_with(
    program: &Program,
    policy: Policy,
    seed: u64,
    footprints: Footprints,
    meddle: impl FnOnce(&Universe),
) -> Run {
    let universe = Universe::builder()
        .devices(1)
        .policy(policy)
        .seed(seed)
        .build()
        .expect("the simulator installs");
    let mut machine = Machine::new(program, &universe, footprints);
    meddle(&universe);
    let mut outcomes: Vec<Outcome> = program
        .steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let _label = dmr_sim::label(format!("step {index}"));
            machine.perform(index, step)
        })
        .collect();
    universe.clear_faults();
    gpu::sync_context().expect("cuCtxSynchronize");
    // A launch whose footprint is recorded is checked when it has run.
    let reports = universe.reports();
    machine.collect_pinned(program, &mut outcomes);
    let buffers = machine.contents(program, &outcomes);
    drop(machine);
    let leaks = universe
        .finish()
        .reports
        .iter()
        .filter(|report| report.kind == dmr_sim::ReportKind::Leak)
        .map(|report| step_of(report.second.label.as_deref()))
        .collect();
    Run { outcomes, reports, buffers, leaks }
}

const NONE: Outcome = Outcome { address: None, ready: false, bytes: None, error: None };

struct Machine {
    streams: Vec<CUstream>,
    events: Vec<CUevent>,
    pool: Option<CUmemoryPool>,
    kernels: Option<(CUfunction, CUfunction)>,
    /// Per step, its place in the page-locked memory.
    slots: Vec<Option<usize>>,
    pinned: Option<Pinned>,
    addresses: Vec<Option<(u64, u64)>>,
    gpu: Gpu,
}

impl Machine {
    fn new(program: &Program, universe: &Universe, footprints: Footprints) -> Machine {
        let gpu = Gpu::new(universe);
        let uses = |wanted: fn(&Step) -> bool| program.steps.iter().any(wanted);
        let pool = uses(|step| matches!(step, Step::Alloc { how: How::Pool(_), .. }))
            .then(|| strict_pool(&gpu));
        let kernels = uses(|step| matches!(step, Step::Blend { .. } | Step::Accumulate { .. }))
            .then(|| register_kernels(universe, footprints));
        let (slots, pinned_bytes) = pinned_slots(program);
        let mut pinned = (pinned_bytes > 0).then(|| Pinned::new(pinned_bytes));
        for (step, slot) in program.steps.iter().zip(&slots) {
            if let (Step::Upload { dst, byte, .. }, Some(slot), Some(pinned)) =
                (step, slot, &mut pinned)
            {
                let content = model::upload(*byte, dst.len);
                pinned.bytes()[*slot..][..content.len()].copy_from_slice(&content);
            }
        }
        let streams = program.streams.iter().map(|kind| match kind {
            StreamKind::NonBlocking => gpu::stream(),
            StreamKind::Blocking => gpu::blocking_stream(),
            StreamKind::Legacy => gpu::LEGACY,
        });
        Machine {
            streams: streams.collect(),
            events: (0..program.events).map(|_| gpu::event()).collect(),
            pool,
            kernels,
            slots,
            pinned,
            addresses: vec![None; program.buffers],
            gpu,
        }
    }

    fn perform(&mut self, index: usize, step: &Step) -> Outcome {
        let known = step.reads().iter().chain(&step.writes()).all(|span| {
            // A step that lost its buffer to the shrinker is left out.
            self.addresses[span.buf].is_some()
        });
        if !known {
            return NONE;
        }
        let returned = match *step {
            Step::Alloc { buf, bytes, how } => return self.allocate(buf, bytes, how),
            Step::Free { buf, skew, how } => match (self.addresses[buf], how) {
                (None, _) => Ok(()),
                (Some((base, _)), How::Sync) => gpu::free(base + skew),
                (Some((base, _)), How::Async(stream) | How::Pool(stream)) => {
                    gpu::free_async(base + skew, self.streams[stream])
                }
            },
            Step::Fill { stream, dst, byte } => {
                gpu::fill(self.at(dst), byte, dst.len as usize, self.streams[stream])
            }
            Step::Copy { stream, dst, src } => {
                gpu::copy(self.at(dst), self.at(src), src.len as usize, self.streams[stream])
            }
            Step::Upload { stream, dst, byte, .. } => {
                let at = self.at(dst);
                let stream = self.streams[stream];
                match (self.slots[index], &self.pinned) {
                    (Some(slot), Some(pinned)) => pinned.upload(at, slot, dst.len as usize, stream),
                    _ => gpu::upload(at, &model::upload(byte, dst.len), stream),
                }
            }
            Step::Download { stream, src, .. } => {
                let at = self.at(src);
                let stream = self.streams[stream];
                match (self.slots[index], &self.pinned) {
                    (Some(slot), Some(pinned)) => {
                        pinned.download(slot, src.len as usize, at, stream)
                    }
                    _ => return download_pageable(at, src.len, stream),
                }
            }
            Step::Blend { stream, a, b, out } => {
                let kernel = self.kernels.expect("registered").0;
                let arguments = [self.at(a), self.at(b), self.at(out), out.len];
                gpu::launch(kernel, &arguments, self.streams[stream])
            }
            Step::Accumulate { stream, src, out } => {
                let kernel = self.kernels.expect("registered").1;
                let arguments = [self.at(src), self.at(out), out.len];
                gpu::launch(kernel, &arguments, self.streams[stream])
            }
            Step::Record { event, stream } => gpu::record(self.events[event], self.streams[stream]),
            Step::Wait { event, stream } => gpu::wait(self.streams[stream], self.events[event]),
            Step::SyncStream(stream) => gpu::sync(self.streams[stream]),
            Step::SyncEvent(event) => gpu::sync_event(self.events[event]),
            Step::SyncContext => gpu::sync_context(),
            Step::QueryStream(stream) => {
                let ready = gpu::query(self.streams[stream]);
                return Outcome { ready, ..NONE };
            }
            Step::QueryEvent(event) => {
                let ready = gpu::query_event(self.events[event]);
                return Outcome { ready, ..NONE };
            }
        };
        Outcome { error: gpu::code(returned), ..NONE }
    }

    fn allocate(&mut self, buf: usize, bytes: u64, how: How) -> Outcome {
        let returned = match how {
            How::Sync => gpu::malloc(bytes as usize),
            How::Async(stream) => gpu::malloc_async(bytes as usize, self.streams[stream]),
            How::Pool(stream) => {
                let pool = self.pool.expect("made");
                gpu::malloc_from(pool, bytes as usize, self.streams[stream])
            }
        };
        match returned {
            Ok(address) => {
                self.addresses[buf] = Some((address, bytes));
                Outcome { address: Some(address), ..NONE }
            }
            Err(error) => Outcome { error: Some(error.0 as i32), ..NONE },
        }
    }

    fn at(&self, span: Span) -> u64 {
        self.addresses[span.buf].expect("checked before").0 + span.offset
    }

    /// Adds the bytes of pinned downloads to the outcomes; all work must have completed.
    fn collect_pinned(&mut self, program: &Program, outcomes: &mut [Outcome]) {
        for ((step, slot), outcome) in program.steps.iter().zip(&self.slots).zip(outcomes) {
            if let (Step::Download { src, .. }, Some(slot), Some(pinned)) =
                (step, slot, &mut self.pinned)
            {
                outcome.bytes = Some(pinned.bytes()[*slot..][..src.len as usize].to_vec());
            }
        }
    }

    /// The content of the buffers whose free was never called; all work must have completed.
    fn contents(&self, program: &Program, outcomes: &[Outcome]) -> Vec<Option<Vec<u8>>> {
        let mut live = self.addresses.clone();
        for (step, outcome) in program.steps.iter().zip(outcomes) {
            if let (Step::Free { buf, skew: 0, .. }, None) = (step, outcome.error) {
                live[*buf] = None;
            }
        }
        live.into_iter()
            .map(|place| {
                let (address, bytes) = place?;
                gpu::read(address, bytes as usize).ok()
            })
            .collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = &self.gpu;
        for &event in &self.events {
            gpu::destroy_event(event).expect("cuEventDestroy");
        }
        for &stream in self.streams.iter().filter(|stream| !stream.is_null()) {
            gpu::destroy_stream(stream).expect("cuStreamDestroy");
        }
    }
}

/// A pool that reuses only what the program itself has ordered, and takes no detour through the
/// device to do it.
fn strict_pool(gpu: &Gpu) -> CUmemoryPool {
    let pool = gpu::pool(gpu.device);
    for attribute in [
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        gpu::pool_set(pool, attribute, 0);
    }
    let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    gpu::pool_set(pool, threshold, u64::MAX);
    pool
}

fn download_pageable(at: u64, len: u64, stream: CUstream) -> Outcome {
    let mut bytes = vec![0; len as usize];
    let returned = gpu::download(&mut bytes, at, stream);
    Outcome { bytes: Some(bytes), error: gpu::code(returned), ..NONE }
}

fn pinned_slots(program: &Program) -> (Vec<Option<usize>>, usize) {
    let mut end = 0;
    let slots = program.steps.iter().map(|step| match *step {
        Step::Upload { dst: span, host: Host::Pinned, .. }
        | Step::Download { src: span, host: Host::Pinned, .. } => {
            end += span.len as usize;
            Some(end - span.len as usize)
        }
        _ => None,
    });
    (slots.collect(), end)
}

/// The two kernels of the programs, as a module and as what they do.
fn register_kernels(universe: &Universe, footprints: Footprints) -> (CUfunction, CUfunction) {
    let launches = Arc::new(AtomicU64::new(0));
    let choice = move |declared: Footprint| {
        let launch = launches.fetch_add(1, Ordering::Relaxed);
        match footprints {
            Footprints::Declared => declared,
            Footprints::Recorded => Footprint::recorded(),
            Footprints::Mixed(seed) if Rng::new(seed ^ launch << 32).chance(50) => declared,
            Footprints::Mixed(_) => Footprint::recorded(),
        }
    };
    let of_blend = choice.clone();
    universe.register_kernel(
        "blend",
        move |arguments| {
            let [a, b, out, len] = words(arguments);
            of_blend(Footprint::new().reads(a, len).reads(b, len).writes(out, len))
        },
        |arguments, memory| {
            let [a, b, out, len] = words(arguments);
            let a = load(memory, a, len);
            let b = load(memory, b, len);
            let bytes: Vec<u8> = a.iter().zip(b).map(|(&a, b)| model::blend(a, b)).collect();
            memory.write(out, &bytes);
        },
    );
    universe.register_kernel(
        "accumulate",
        move |arguments| {
            let [src, out, len] = words(arguments);
            choice(Footprint::new().reads(src, len).reads(out, len).writes(out, len))
        },
        |arguments, memory| {
            let [src, out, len] = words(arguments);
            let src = load(memory, src, len);
            let old = load(memory, out, len);
            let bytes: Vec<u8> =
                old.iter().zip(src).map(|(&old, src)| model::accumulate(old, src)).collect();
            memory.write(out, &bytes);
        },
    );
    let find = |name, parameters: &[&str]| {
        gpu::kernel(&gpu::ptx(name, parameters), name).expect("the module loads")
    };
    (find("blend", &["u64"; 4]), find("accumulate", &["u64"; 3]))
}

fn words<const N: usize>(arguments: &KernelArgs) -> [u64; N] {
    std::array::from_fn(|index| arguments.u64(index))
}

fn load(memory: &mut KernelMemory<'_>, address: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    memory.read(address, &mut bytes);
    bytes
}

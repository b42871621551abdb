//! The server on `dmr`.
//!
//! | memory | use | order of its work |
//! | --- | --- | --- |
//! | weights | one buffer, which all streams read | reads of different streams do not wait for each other |
//! | cache | one buffer, whose pages are mutable views that requests own for a while | parts of a buffer: disjoint ones neither conflict nor wait; a page waits for its last request |
//! | tokens | a buffer of each request, charged to its budget | each token is a part: `decode` reads one and writes the next |
//! | parked cache | a spillable buffer of each idle request, charged to its budget | moved to the host when the GPU's budget refuses |
//! | staging | two pinned buffers of each worker | the host gets them back when the copies are done |
//!
//! Copies run on one stream, prefills on a second, and each worker decodes on a third: no line of
//! this file records an event or waits for one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::PushKernelArg;
use cudarc::driver::result::memcpy_dtod_async;
use dmr::dmr_buffer::DeviceViewMut;
use dmr::dmr_graphs::Replay;
use dmr::dmr_launch::{LaunchError, PrepareError};
use dmr::dmr_streams::{KernelArg, TrackedMemory};
use dmr::prelude::*;

use crate::Error;
use crate::kernels::{BATCH, Batch, Kernels, Slot, grid};
use crate::model::{self, COLUMNS, PAGE_LEN, PAGE_TOKENS};
use crate::report::Totals;
use crate::schedule::{Config, Job, Live, Outcome, Runtime, serve};

/// Runs the server, and shuts its runtime down.
///
/// # Errors
///
/// The first error of a worker; memory that is left at the end.
pub fn run(config: &Config) -> Result<Outcome, Error> {
    run_with(config, "dmr")
}

/// Runs the server with a captured graph for the steps of each worker, and shuts its runtime down.
///
/// # Errors
///
/// As [`run`].
pub fn run_with_graphs(config: &Config) -> Result<Outcome, Error> {
    run_with(config, WITH_GRAPHS)
}

/// The name of the server whose steps are replays.
const WITH_GRAPHS: &str = "dmr, graphs";

fn run_with(config: &Config, name: &'static str) -> Result<Outcome, Error> {
    let mut builder = DeviceRuntime::builder(config.ordinal).statistics().spill();
    if let Some(bytes) = config.budget {
        builder = builder.budget_on(&Budget::new(bytes));
    }
    if let Some(path) = &config.log {
        builder = builder.log_csv(path);
    }
    let gpu = builder.build()?;
    let outcome = serve_on(&gpu, config, name)?;
    gpu.shutdown()?; // an error if anything is left
    Ok(outcome)
}

fn serve_on(gpu: &DeviceRuntime, config: &Config, name: &'static str) -> Result<Outcome, Error> {
    let [copies, prefills] = [gpu.streams().acquire()?, gpu.streams().acquire()?];
    let tag = AllocTag::new("weights");
    let weights = DeviceBuffer::from_host_tagged(gpu, &copies, &model::weights(), tag)?;
    let tag = AllocTag::new("cache");
    let len = config.pages() * PAGE_LEN;
    let mut cache = DeviceBuffer::<u32>::uninit_tagged(gpu, &copies, len, tag)?;
    let mut cache = cache.view_mut();
    let server = Server {
        gpu,
        kernels: Kernels::load(gpu.device().context())?,
        weights,
        free_pages: Mutex::new(cache.chunks_mut(PAGE_LEN)?.collect()),
        copies,
        prefills,
        config,
        has_graphs: name == WITH_GRAPHS,
        conflicts: AtomicU64::new(0),
    };
    serve(&server, name, config)
}

/// A page of the cache. The owner of the view has it alone.
type Page<'c> = DeviceViewMut<'c, u32>;

struct Server<'c> {
    gpu: &'c DeviceRuntime,
    kernels: Kernels,
    weights: DeviceBuffer<u32>,
    free_pages: Mutex<Vec<Page<'c>>>,
    copies: StreamLease,
    prefills: StreamLease,
    config: &'c Config,
    has_graphs: bool,
    conflicts: AtomicU64,
}

/// A worker thread's stream and staging memory.
struct Worker {
    stream: StreamLease,
    prompt: PinnedBuffer<u32>,
    tokens: PinnedBuffer<u32>,
    steps: Option<Steps>,
}

/// The captured step of a worker. It copies its slots to the device and decodes them. The addresses
/// in the slots change from step to step, so each replay records what they stand for.
struct Steps {
    graph: Graph,
    slots: PinnedBuffer<u64>,
    /// On the device, for as long as the graph.
    _copied: DeviceBuffer<u64>,
}

/// A recorder of the uses of a step: of a launch, or of a replay.
trait Uses {
    fn read(&mut self, memory: &impl TrackedMemory) -> KernelArg;
    fn write(&mut self, memory: &mut impl TrackedMemory) -> KernelArg;
    fn read_write(&mut self, memory: &mut impl TrackedMemory) -> KernelArg;
}

macro_rules! uses {
    ($($recorder:ty),*) => {$(
        impl Uses for $recorder {
            fn read(&mut self, memory: &impl TrackedMemory) -> KernelArg {
                self.read(memory)
            }

            fn write(&mut self, memory: &mut impl TrackedMemory) -> KernelArg {
                self.write(memory)
            }

            fn read_write(&mut self, memory: &mut impl TrackedMemory) -> KernelArg {
                self.read_write(memory)
            }
        }
    )*};
}

uses!(LaunchRecorder, Replay<'_>);

/// The number of names of requests. The process keeps each for ever, so a server has a fixed number
/// of them and gives them in turn: more than it has requests at once.
const NAMES: usize = 1 << 10;

/// The memory of one request.
struct Request<'c> {
    /// The runtime's memory, behind the request's budget.
    tenant: Tenant,
    tokens: DeviceBuffer<u32>,
    pages: Vec<Page<'c>>,
    parked: Option<Spillable<u32>>,
}

impl<'c> Runtime for Server<'c> {
    type Worker = Worker;
    type Request = Request<'c>;

    fn worker(&self) -> Result<Worker, Error> {
        let prompt = PinnedBuffer::zeroed(self.gpu, &self.copies, self.config.prompt)?;
        let tokens = PinnedBuffer::zeroed(self.gpu, &self.copies, self.config.len())?;
        let stream = self.gpu.streams().acquire()?;
        let steps = self.has_graphs.then(|| self.capture(&stream)).transpose()?;
        Ok(Worker { stream, prompt, tokens, steps })
    }

    fn admit(&self, worker: &mut Worker, job: &Job) -> Result<Request<'c>, Error> {
        let name = AllocTag::intern(&format!("request {}", job.number % NAMES));
        let budget = Budget::new(self.config.request_budget).named(name);
        let tenant = self.gpu.tenant(|memory| BudgetLayer::on(&budget).layer(memory))?;
        let tokens = DeviceBuffer::uninit_tagged(&tenant, &self.copies, job.room, name)?;
        let mut request = Request { tenant, tokens, pages: Vec::new(), parked: None };

        worker.prompt.as_mut_slice()?.copy_from_slice(&job.prompt);
        let prompt = request.tokens.slice_mut(..job.prompt.len())?;
        worker.prompt.copy_to_device(prompt, &self.copies)?;
        self.prefill(&mut request, job.prompt.len() - 1)?;
        Ok(request)
    }

    fn decode(&self, worker: &mut Worker, batch: &mut [Live<Request<'c>>]) -> Result<(), Error> {
        for Live { position, device, .. } in batch.iter_mut() {
            self.take_pages(device, *position + 1)?;
        }
        if let Some(steps) = &mut worker.steps {
            return self.replay(&worker.stream, steps, batch);
        }
        self.insist(|| {
            let mut launch = LaunchRecorder::new_strict(&worker.stream);
            let weights = launch.read(&self.weights);
            let mut slots = Batch::default();
            for (slot, request) in slots.0.iter_mut().zip(batch.iter_mut()) {
                *slot = self.record_step(&mut launch, request)?;
            }
            // SAFETY: the kernel takes these two, uses the tokens and entries that are recorded,
            // and no others.
            let launched = launch.launch(self.gpu, |stream| unsafe {
                let mut kernel = stream.launch_builder(&self.kernels.decode);
                kernel.arg(&weights).arg(&slots).launch(grid(batch.len()))
            });
            Ok(launched.map(drop))
        })
    }

    fn wait(&self, worker: &mut Worker) -> Result<(), Error> {
        Ok(worker.stream.stream().synchronize()?)
    }

    fn park(&self, worker: &mut Worker, request: &mut Live<Request<'c>>) -> Result<(), Error> {
        let Live { position, device, .. } = request;
        let Request { tenant, pages, parked, .. } = device;
        let tag = AllocTag::new("parked cache");
        let len = *position * COLUMNS;
        let mut copy = DeviceBuffer::uninit_tagged(tenant, &worker.stream, len, tag)?;
        for (page, mut to) in pages.iter().zip(copy.view_mut().chunks_mut(PAGE_LEN)?) {
            let written = page.as_view().slice(..to.len())?;
            to.copy_from(written, &worker.stream)?;
        }
        *parked = Some(self.spill()?.insert(copy)?);
        self.return_pages(pages);
        Ok(())
    }

    fn resume(&self, worker: &mut Worker, request: &mut Live<Request<'c>>) -> Result<(), Error> {
        let device = &mut request.device;
        self.take_pages(device, request.position)?;
        let Some(parked) = device.parked.take() else { return Ok(()) };
        let cache = parked.on_device(&worker.stream)?;
        for (page, from) in device.pages.iter_mut().zip(cache.view().chunks(PAGE_LEN)?) {
            page.slice_mut(..from.len())?.copy_from(from, &worker.stream)?;
        }
        Ok(())
    }

    fn output(&self, worker: &mut Worker, request: Live<Request<'c>>) -> Result<Vec<u32>, Error> {
        let mut device = request.device;
        self.return_pages(&mut device.pages);
        worker.tokens.copy_from_device(device.tokens.slice(..self.config.len())?, &self.copies)?;
        Ok(worker.tokens.as_slice()?.to_vec())
    }

    fn totals(&self) -> Totals {
        let counted = self.gpu.statistics().map(|statistics| statistics.snapshot());
        let (allocations, peak_bytes) =
            counted.map_or((0, 0), |counted| (counted.allocations.total, counted.bytes.peak));
        let spilled = self.gpu.spill().map_or(0, |spill| spill.stats().spilled.buffers);
        let conflicts = self.conflicts.load(Ordering::Relaxed);
        Totals { allocations, peak_bytes, conflicts, spilled }
    }
}

impl<'c> Server<'c> {
    /// Fills the cache of a new request for its first `count` tokens, on the stream for prefills.
    fn prefill(&self, request: &mut Request<'c>, count: usize) -> Result<(), Error> {
        self.take_pages(request, count)?;
        self.insist(|| {
            let mut launch = LaunchRecorder::new_strict(&self.prefills);
            let weights = launch.read(&self.weights);
            let tokens = launch.read(&request.tokens.slice(..count)?);
            let mut slot = Slot { tokens: tokens.device_ptr(), ..Slot::default() };
            for (address, page) in slot.pages.iter_mut().zip(&mut request.pages) {
                *address = launch.write(page).device_ptr();
            }
            let count = count as u32;
            // SAFETY: the kernel takes these three, and uses the tokens and pages that are
            // recorded.
            let launched = launch.launch(self.gpu, |stream| unsafe {
                let mut kernel = stream.launch_builder(&self.kernels.prefill);
                kernel.arg(&weights).arg(&slot).arg(&count).launch(grid(1))
            });
            Ok(launched.map(drop))
        })
    }

    /// Captures the step of a worker.
    fn capture(&self, stream: &StreamLease) -> Result<Steps, Error> {
        let slots = PinnedBuffer::<u64>::zeroed(self.gpu, stream, Batch::WORDS)?;
        let tag = AllocTag::new("slots");
        let mut copied = DeviceBuffer::uninit_tagged(self.gpu, stream, Batch::WORDS, tag)?;
        let work = |capture: &mut Capture<'_>| {
            let weights = capture.read(&self.weights);
            let from = capture.read(&slots).device_ptr();
            let batch = capture.write(&mut copied);
            let stream = capture.stream();
            // SAFETY: both have the bytes of a batch, and the address of pinned memory is the same
            // on the device. The kernel takes these two, and uses what each replay records.
            unsafe {
                let to = batch.device_ptr();
                memcpy_dtod_async(to, from, size_of::<Batch>(), stream.cu_stream())?;
                let mut kernel = stream.launch_builder(&self.kernels.decode_slots);
                kernel.arg(&weights).arg(&batch).launch(grid(BATCH))?;
            }
            Ok::<_, dmr::Error>(())
        };
        // SAFETY: the work uses what it records, and what each replay records: all of them are made
        // in `replay`.
        let graph = unsafe { Graph::capture(self.gpu, stream, CaptureMode::default(), work)? };
        Ok(Steps { graph, slots, _copied: copied })
    }

    /// Makes one step of each request, as a replay.
    fn replay(
        &self,
        stream: &StreamLease,
        steps: &mut Steps,
        batch: &mut [Live<Request<'c>>],
    ) -> Result<(), Error> {
        self.insist(|| {
            let mut replay = steps.graph.replay(stream);
            let mut slots = Batch::default();
            for (slot, request) in slots.0.iter_mut().zip(batch.iter_mut()) {
                *slot = self.record_step(&mut replay, request)?;
            }
            let written = steps.slots.as_mut_slice()?.iter_mut();
            written.zip(slots.words()).for_each(|(to, word)| *to = word);
            Ok(replay.launch())
        })
    }

    /// Records what one step of a request uses: it reads a token and the full pages, appends to the
    /// last page, and writes the next token.
    fn record_step(
        &self,
        launch: &mut impl Uses,
        request: &mut Live<Request<'c>>,
    ) -> Result<Slot, Error> {
        let Live { position, device, .. } = request;
        let mut slot = Slot { position: *position as u32, ..Slot::default() };
        launch.read(&device.tokens.slice(*position..=*position)?);
        launch.write(&mut device.tokens.slice_mut(*position + 1..*position + 2)?);
        slot.tokens = KernelArg::of(&device.tokens).device_ptr();
        let last = *position / PAGE_TOKENS;
        for (index, (address, page)) in slot.pages.iter_mut().zip(&mut device.pages).enumerate() {
            let page = match index == last {
                true => launch.read_write(page),
                false if self.config.forget_a_read => KernelArg::of(page),
                false => launch.read(page),
            };
            *address = page.device_ptr();
        }
        Ok(slot)
    }

    /// Repeats a launch that was refused because of a window of another stream, and counts that.
    fn insist<E: std::error::Error + Send + Sync + 'static>(
        &self,
        mut launch: impl FnMut() -> Result<Result<(), LaunchError<E>>, Error>,
    ) -> Result<(), Error> {
        loop {
            match launch()? {
                Err(LaunchError::Prepare(PrepareError::Resource {
                    source: ResourceError::WindowConflict { .. },
                    ..
                })) => {
                    self.conflicts.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                launched => return Ok(launched?),
            }
        }
    }

    /// Makes sure that a request has pages for this number of tokens.
    fn take_pages(&self, request: &mut Request<'c>, tokens: usize) -> Result<(), Error> {
        while request.pages.len() < tokens.div_ceil(PAGE_TOKENS) {
            let page = self.free_pages.lock().ok().and_then(|mut free| free.pop());
            request.pages.push(page.ok_or("no page of the cache is free")?);
        }
        Ok(())
    }

    /// Returns pages. Their next user's work waits for the work that was recorded on them.
    fn return_pages(&self, pages: &mut Vec<Page<'c>>) {
        if let Ok(mut free) = self.free_pages.lock() {
            free.append(pages);
        }
    }

    fn spill(&self) -> Result<&Spill, Error> {
        Ok(self.gpu.spill().ok_or("the runtime was built without spilling")?)
    }
}

//! The server on cudarc's own slices: each carries two events, and cudarc waits for and records
//! them.
//!
//! The schedule, the kernels, the streams and the staging are the same. The cache is one slice, as
//! on `dmr`, whose pages are views: views share the events of their slice, so work on different
//! pages waits for each other. Or each page is a slice of its own, with two events of its own.
//! There are no budgets, and parked caches stay on the GPU.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
    PinnedHostSlice, PushKernelArg,
};

use crate::Error;
use crate::kernels::{Batch, Kernels, Slot, grid};
use crate::model::{self, COLUMNS, PAGE_LEN, PAGE_TOKENS};
use crate::report::Totals;
use crate::schedule::{Config, Job, Live, Outcome, Runtime, serve};

/// Runs the server with one slice as the cache.
///
/// # Errors
///
/// The first error of a worker.
pub fn run(config: &Config) -> Result<Outcome, Error> {
    let machine = Machine::new(config)?;
    let mut cache = machine.page(config.pages() * PAGE_LEN)?;
    let pages = cache.as_view_mut().chunks_exact_mut(PAGE_LEN).collect();
    serve(&machine.server(pages, config)?, "cudarc", config)
}

/// Runs the server with one slice for each page.
///
/// # Errors
///
/// The first error of a worker.
pub fn run_with_a_slice_for_each_page(config: &Config) -> Result<Outcome, Error> {
    let machine = Machine::new(config)?;
    let pages = (0..config.pages()).map(|_| machine.page(PAGE_LEN));
    let pages = pages.collect::<Result<Vec<_>, Error>>()?;
    serve(&machine.server(pages, config)?, "cudarc, page slices", config)
}

/// The context, the streams that all workers use, and the counts.
struct Machine {
    context: Arc<CudaContext>,
    copies: Arc<CudaStream>,
    prefills: Arc<CudaStream>,
    counts: Counts,
}

impl Machine {
    fn new(config: &Config) -> Result<Self, Error> {
        let context = CudaContext::new(config.ordinal)?;
        let [copies, prefills] = [context.new_stream()?, context.new_stream()?];
        Ok(Self { context, copies, prefills, counts: Counts::default() })
    }

    fn page(&self, len: usize) -> Result<CudaSlice<u32>, Error> {
        // SAFETY: each entry is written before it is read.
        let page = unsafe { self.copies.alloc::<u32>(len) }?;
        self.counts.add(page.num_bytes());
        Ok(page)
    }

    fn server<'c, P>(&'c self, pages: Vec<P>, config: &'c Config) -> Result<Server<'c, P>, Error> {
        let weights = self.copies.clone_htod(&model::weights())?;
        self.counts.add(weights.num_bytes());
        let kernels = Kernels::load(&self.context)?;
        Ok(Server { machine: self, kernels, weights, free_pages: Mutex::new(pages), config })
    }
}

/// A page of the cache.
trait Page: Send {
    fn view(&self) -> CudaView<'_, u32>;
    fn view_mut(&mut self) -> CudaViewMut<'_, u32>;
}

impl Page for CudaSlice<u32> {
    fn view(&self) -> CudaView<'_, u32> {
        self.as_view()
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, u32> {
        self.as_view_mut()
    }
}

impl Page for CudaViewMut<'_, u32> {
    fn view(&self) -> CudaView<'_, u32> {
        self.as_view()
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, u32> {
        self.slice_mut(..)
    }
}

struct Server<'c, P> {
    machine: &'c Machine,
    kernels: Kernels,
    weights: CudaSlice<u32>,
    free_pages: Mutex<Vec<P>>,
    config: &'c Config,
}

/// Allocations, as the statistics of `dmr` count them.
#[derive(Default)]
struct Counts {
    allocations: AtomicU64,
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Counts {
    fn add(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let now = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak_bytes.fetch_max(now, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

struct Worker {
    stream: Arc<CudaStream>,
    prompt: PinnedHostSlice<u32>,
    tokens: PinnedHostSlice<u32>,
}

struct Request<P> {
    tokens: CudaSlice<u32>,
    pages: Vec<P>,
    parked: Option<CudaSlice<u32>>,
}

impl<P: Page> Runtime for Server<'_, P> {
    type Worker = Worker;
    type Request = Request<P>;

    fn worker(&self) -> Result<Worker, Error> {
        // SAFETY: both are written before they are read. No flags: the host reads the second.
        let pinned = |len| unsafe { self.machine.context.alloc_pinned_with_flags::<u32>(len, 0) };
        let prompt = pinned(self.config.prompt)?;
        let tokens = pinned(self.config.len())?;
        Ok(Worker { stream: self.machine.context.new_stream()?, prompt, tokens })
    }

    fn admit(&self, worker: &mut Worker, job: &Job) -> Result<Request<P>, Error> {
        // SAFETY: each token is written before it is read.
        let mut tokens = unsafe { self.machine.copies.alloc::<u32>(job.room) }?;
        self.machine.counts.add(tokens.num_bytes());
        worker.prompt.as_mut_slice()?.copy_from_slice(&job.prompt);
        let mut prompt = tokens.slice_mut(..job.prompt.len());
        self.machine.copies.memcpy_htod(&worker.prompt, &mut prompt)?;
        let mut request = Request { tokens, pages: Vec::new(), parked: None };
        self.prefill(&mut request, job.prompt.len() - 1)?;
        Ok(request)
    }

    fn decode(&self, worker: &mut Worker, batch: &mut [Live<Request<P>>]) -> Result<(), Error> {
        let requests = batch.len();
        for Live { position, device, .. } in batch.iter_mut() {
            self.take_pages(device, *position + 1)?;
        }
        let stream = &worker.stream;
        let mut slots = Batch::default();
        // Their drops record the events, behind the launch.
        let mut records = Vec::new();
        for (slot, Live { position, device, .. }) in slots.0.iter_mut().zip(batch) {
            slot.position = *position as u32;
            let (tokens, record) = device.tokens.device_ptr_mut(stream);
            slot.tokens = tokens;
            records.push(record);
            for (index, page) in device.pages.iter_mut().enumerate() {
                let (address, record) = match index == *position / PAGE_TOKENS {
                    true => page.view_mut().view_ptr_mut(stream),
                    false => page.view().view_ptr(stream),
                };
                slot.pages[index] = address;
                records.push(record);
            }
        }
        // SAFETY: the kernel takes these two, and uses the memory whose events were waited for.
        unsafe {
            let mut kernel = stream.launch_builder(&self.kernels.decode);
            kernel.arg(&self.weights).arg(&slots).launch(grid(requests))?;
        }
        drop(records);
        Ok(())
    }

    fn wait(&self, worker: &mut Worker) -> Result<(), Error> {
        Ok(worker.stream.synchronize()?)
    }

    fn park(&self, worker: &mut Worker, request: &mut Live<Request<P>>) -> Result<(), Error> {
        let Live { position, device: Request { pages, parked, .. }, .. } = request;
        // SAFETY: all of it is written below.
        let mut copy = unsafe { worker.stream.alloc::<u32>(*position * COLUMNS) }?;
        self.machine.counts.add(copy.num_bytes());
        for (index, page) in pages.iter().enumerate() {
            let end = copy.len().min((index + 1) * PAGE_LEN);
            let mut to = copy.slice_mut(index * PAGE_LEN..end);
            worker.stream.memcpy_dtod(&page.view().slice(..end - index * PAGE_LEN), &mut to)?;
        }
        *parked = Some(copy);
        self.return_pages(pages);
        Ok(())
    }

    fn resume(&self, worker: &mut Worker, request: &mut Live<Request<P>>) -> Result<(), Error> {
        let device = &mut request.device;
        self.take_pages(device, request.position)?;
        let Some(parked) = device.parked.take() else { return Ok(()) };
        for (index, page) in device.pages.iter_mut().enumerate() {
            let end = parked.len().min((index + 1) * PAGE_LEN);
            let from = parked.slice(index * PAGE_LEN..end);
            worker.stream.memcpy_dtod(&from, &mut page.view_mut().slice_mut(..from.len()))?;
        }
        self.machine.counts.remove(parked.num_bytes());
        Ok(())
    }

    fn output(&self, worker: &mut Worker, request: Live<Request<P>>) -> Result<Vec<u32>, Error> {
        let mut device = request.device;
        self.return_pages(&mut device.pages);
        let tokens = device.tokens.slice(..self.config.len());
        self.machine.copies.memcpy_dtoh(&tokens, &mut worker.tokens)?;
        let output = worker.tokens.as_slice()?.to_vec();
        self.machine.counts.remove(device.tokens.num_bytes());
        Ok(output)
    }

    fn totals(&self) -> Totals {
        let [allocations, peak_bytes] =
            [&self.machine.counts.allocations, &self.machine.counts.peak_bytes]
                .map(|count| count.load(Ordering::Relaxed));
        Totals { allocations, peak_bytes, ..Totals::default() }
    }
}

impl<P: Page> Server<'_, P> {
    fn prefill(&self, request: &mut Request<P>, count: usize) -> Result<(), Error> {
        self.take_pages(request, count)?;
        let stream = &self.machine.prefills;
        let mut slot = Slot::default();
        let (tokens, record) = request.tokens.device_ptr(stream);
        let mut records = vec![record];
        slot.tokens = tokens;
        for (address, page) in slot.pages.iter_mut().zip(&mut request.pages) {
            let (page, record) = page.view_mut().view_ptr_mut(stream);
            *address = page;
            records.push(record);
        }
        let count = count as u32;
        // SAFETY: the kernel takes these three, and uses the memory whose events were waited for.
        unsafe {
            let mut kernel = stream.launch_builder(&self.kernels.prefill);
            kernel.arg(&self.weights).arg(&slot).arg(&count).launch(grid(1))?;
        }
        drop(records);
        Ok(())
    }

    fn take_pages(&self, request: &mut Request<P>, tokens: usize) -> Result<(), Error> {
        while request.pages.len() < tokens.div_ceil(PAGE_TOKENS) {
            let page = self.free_pages.lock().ok().and_then(|mut free| free.pop());
            request.pages.push(page.ok_or("no page of the cache is free")?);
        }
        Ok(())
    }

    fn return_pages(&self, pages: &mut Vec<P>) {
        if let Ok(mut free) = self.free_pages.lock() {
            free.append(pages);
        }
    }
}

//! The requests and the worker threads: one schedule for every runtime.
//!
//! Each worker has the requests of its own, in batches. A request has turns: in the first it is
//! admitted, its prompt is copied in and its cache filled; then each step generates a token.
//! Between two turns it is parked: its pages go to other requests. After its last turn its tokens
//! are copied out.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kernels::BATCH;
use crate::model::{self, PAGE_TOKENS};
use crate::report::{Report, Totals};
use crate::{Error, on_cudarc, on_dmr};

/// The server and its load.
#[derive(Clone, Debug)]
pub struct Config {
    /// CUDA device ordinal.
    pub ordinal: usize,
    /// Worker threads, each with a stream.
    pub workers: usize,
    /// The number of requests.
    pub requests: usize,
    /// Tokens of each prompt, 2 at least.
    pub prompt: usize,
    /// Tokens that each turn generates.
    pub new_tokens: usize,
    /// Turns of each request.
    pub turns: usize,
    /// Bytes that the server may take from the GPU; `None` for no limit. `dmr` only.
    pub budget: Option<u64>,
    /// Bytes that one request may allocate: its tokens and its parked cache. `dmr` only.
    pub request_budget: u64,
    /// A request that asks for room for a million tokens.
    pub greedy: Option<usize>,
    /// A log of all allocations. `dmr` only.
    pub log: Option<PathBuf>,
    /// For tests: `decode` does not record that it reads the full pages.
    #[doc(hidden)]
    pub forget_a_read: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ordinal: 0,
            workers: 4,
            requests: 32,
            prompt: 17,
            new_tokens: 16,
            turns: 2,
            budget: None,
            request_budget: 128 << 10,
            greedy: None,
            log: None,
            forget_a_read: false,
        }
    }
}

impl Config {
    /// Returns the tokens of a whole request.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prompt + self.turns * self.new_tokens
    }

    /// Returns whether a request has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pages that the requests of all workers need at a time.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.workers * BATCH * self.len().div_ceil(PAGE_TOKENS)
    }

    fn check(&self) -> Result<(), Error> {
        if self.prompt < 2 || self.len() > model::MAX_TOKENS || self.workers == 0 {
            let most = model::MAX_TOKENS;
            return Err(format!(
                "a request has 2 tokens of prompt at least, and {most} in all at most"
            )
            .into());
        }
        Ok(())
    }
}

/// One request, as it arrives.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub number: usize,
    /// Its prompt.
    pub prompt: Vec<u32>,
    /// The number of tokens that it requests room for.
    pub room: usize,
}

/// A request that is being served.
#[derive(Debug)]
pub struct Live<R> {
    /// Its number.
    pub number: usize,
    /// The position of its current token.
    pub position: usize,
    /// Its memory.
    pub device: R,
}

/// The operations of a runtime. Work is enqueued, and only `wait` and `output` wait for it.
pub trait Runtime: Sync {
    /// The stream and the staging memory of a worker thread.
    type Worker;
    /// The device memory of a request.
    type Request;

    /// Makes a worker.
    ///
    /// # Errors
    ///
    /// Those of the runtime.
    fn worker(&self) -> Result<Self::Worker, Error>;

    /// Allocates the memory of a request, copies its prompt in, and fills its cache for all tokens
    /// of the prompt but the last.
    ///
    /// # Errors
    ///
    /// The request is refused, and the server goes on.
    fn admit(&self, worker: &mut Self::Worker, job: &Job) -> Result<Self::Request, Error>;

    /// Makes one step of each request, in one launch.
    ///
    /// # Errors
    ///
    /// Those of the runtime.
    fn decode(
        &self,
        worker: &mut Self::Worker,
        batch: &mut [Live<Self::Request>],
    ) -> Result<(), Error>;

    /// Waits for the steps of the worker.
    ///
    /// # Errors
    ///
    /// Those of the runtime.
    fn wait(&self, worker: &mut Self::Worker) -> Result<(), Error>;

    /// Copies the cache of a request out of its pages, and returns these.
    ///
    /// # Errors
    ///
    /// Those of the runtime.
    fn park(
        &self,
        worker: &mut Self::Worker,
        request: &mut Live<Self::Request>,
    ) -> Result<(), Error>;

    /// Copies the cache of a parked request to new pages.
    ///
    /// # Errors
    ///
    /// Those of the runtime.
    fn resume(
        &self,
        worker: &mut Self::Worker,
        request: &mut Live<Self::Request>,
    ) -> Result<(), Error>;

    /// Copies the tokens of a request to the host, and ends it.
    ///
    /// # Errors
    ///
    /// Those of the runtime.
    fn output(
        &self,
        worker: &mut Self::Worker,
        request: Live<Self::Request>,
    ) -> Result<Vec<u32>, Error>;

    /// Returns what was counted.
    fn totals(&self) -> Totals;
}

/// The tokens of each request, or its refusal; and the measurements.
#[derive(Debug)]
pub struct Outcome {
    /// By the number of the request.
    pub outputs: Vec<Result<Vec<u32>, String>>,
    /// The measurements.
    pub report: Report,
}

/// Runs the server on `dmr`.
///
/// # Errors
///
/// The first error of a worker. Refused requests are no error.
pub fn run_on_dmr(config: &Config) -> Result<Outcome, Error> {
    config.check()?;
    on_dmr::run(config)
}

/// Runs the server on `dmr`, with a captured graph for the steps of each worker.
///
/// # Errors
///
/// As [`run_on_dmr`].
pub fn run_on_dmr_graphs(config: &Config) -> Result<Outcome, Error> {
    config.check()?;
    on_dmr::run_with_graphs(config)
}

/// Runs the server on cudarc's own slices.
///
/// # Errors
///
/// As [`run_on_dmr`].
pub fn run_on_cudarc(config: &Config) -> Result<Outcome, Error> {
    config.check()?;
    on_cudarc::run(config)
}

/// Runs the server on cudarc's own slices, with one for each page.
///
/// # Errors
///
/// As [`run_on_dmr`].
pub fn run_on_cudarc_pages(config: &Config) -> Result<Outcome, Error> {
    config.check()?;
    on_cudarc::run_with_a_slice_for_each_page(config)
}

/// Serves all requests of a configuration.
pub(crate) fn serve<R: Runtime>(
    runtime: &R,
    name: &'static str,
    config: &Config,
) -> Result<Outcome, Error> {
    let workers: Vec<_> = (0..config.workers)
        .map(|first| {
            let numbers = (first..config.requests).step_by(config.workers).collect();
            Ok(Serving { runtime, config, numbers, ..Serving::new(runtime, config) })
        })
        .collect::<Result<_, Error>>()?;
    let ready = AtomicUsize::new(0);
    let served: Vec<Result<Served, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|serving| {
                let ready = &ready;
                scope.spawn(move || serving.run(ready))
            })
            .collect();
        let failed = |_| Err("a worker has panicked".into());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
    });
    let served = served.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let first = served.iter().map(|served| served.began).min();
    let last = served.iter().map(|served| served.ended).max();
    let elapsed = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    let mut outputs = Vec::new();
    let mut steps = Vec::new();
    for mut of_worker in served {
        outputs.append(&mut of_worker.outputs);
        steps.append(&mut of_worker.steps);
    }
    outputs.sort_by_key(|(number, _)| *number);
    steps.sort();
    let outputs: Vec<_> = outputs.into_iter().map(|(_, output)| output).collect();
    let report = judge(&outputs, name, config, elapsed, steps, runtime.totals());
    Ok(Outcome { outputs, report })
}

/// Compares the outputs with the model's, and makes the report.
fn judge(
    outputs: &[Result<Vec<u32>, String>],
    runtime: &'static str,
    config: &Config,
    elapsed: Duration,
    steps: Vec<Duration>,
    totals: Totals,
) -> Report {
    let weights = model::weights();
    let served = outputs.iter().filter(|output| output.is_ok()).count();
    let wrong = outputs.iter().enumerate().filter(|(number, output)| {
        let prompt = model::prompt(*number, config.prompt);
        output
            .as_ref()
            .is_ok_and(|tokens| *tokens != model::continued(&weights, &prompt, config.len()))
    });
    let wrong = wrong.count();
    let refused = outputs.len() - served;
    let tokens = served * config.turns * config.new_tokens;
    Report { runtime, served, refused, wrong, tokens, elapsed, steps, totals }
}

/// The requests of one worker thread.
struct Serving<'a, R: Runtime> {
    runtime: &'a R,
    config: &'a Config,
    numbers: Vec<usize>,
    outputs: Vec<(usize, Result<Vec<u32>, String>)>,
    steps: Vec<Duration>,
}

/// The work of one worker thread.
struct Served {
    outputs: Vec<(usize, Result<Vec<u32>, String>)>,
    steps: Vec<Duration>,
    began: Instant,
    ended: Instant,
}

impl<'a, R: Runtime> Serving<'a, R> {
    fn new(runtime: &'a R, config: &'a Config) -> Self {
        Self { runtime, config, numbers: Vec::new(), outputs: Vec::new(), steps: Vec::new() }
    }

    fn run(mut self, ready: &AtomicUsize) -> Result<Served, Error> {
        let worker = self.runtime.worker();
        // All begin at once, also if one cannot.
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < self.config.workers {
            std::thread::yield_now();
        }
        let mut worker = worker?;
        let began = Instant::now();
        let numbers = std::mem::take(&mut self.numbers);
        let mut batches = Vec::new();
        for batch in numbers.chunks(BATCH) {
            let mut batch = self.admit(&mut worker, batch);
            self.turn(&mut worker, &mut batch)?;
            batches.push(self.end_turn(&mut worker, batch, 1)?);
        }
        for turn in 2..=self.config.turns {
            for batch in &mut batches {
                for request in batch.iter_mut() {
                    self.runtime.resume(&mut worker, request)?;
                }
                self.turn(&mut worker, batch)?;
                *batch = self.end_turn(&mut worker, std::mem::take(batch), turn)?;
            }
        }
        let Self { outputs, steps, .. } = self;
        Ok(Served { outputs, steps, began, ended: Instant::now() })
    }

    /// Admits requests; records the error of each that is refused.
    fn admit(&mut self, worker: &mut R::Worker, numbers: &[usize]) -> Vec<Live<R::Request>> {
        let mut batch = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let is_greedy = self.config.greedy == Some(number);
            let room = if is_greedy { 1 << 20 } else { self.config.len() };
            let prompt = model::prompt(number, self.config.prompt);
            let position = prompt.len() - 1;
            match self.runtime.admit(worker, &Job { number, prompt, room }) {
                Ok(device) => batch.push(Live { number, position, device }),
                Err(error) => self.outputs.push((number, Err(error.to_string()))),
            }
        }
        batch
    }

    /// Makes the steps of one turn.
    fn turn(
        &mut self,
        worker: &mut R::Worker,
        batch: &mut [Live<R::Request>],
    ) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        for _ in 0..self.config.new_tokens {
            let start = Instant::now();
            self.runtime.decode(worker, batch)?;
            self.runtime.wait(worker)?;
            self.steps.push(start.elapsed());
            batch.iter_mut().for_each(|request| request.position += 1);
        }
        Ok(())
    }

    /// Parks the requests of a batch; after their last turn, copies their tokens out.
    fn end_turn(
        &mut self,
        worker: &mut R::Worker,
        mut batch: Vec<Live<R::Request>>,
        turn: usize,
    ) -> Result<Vec<Live<R::Request>>, Error> {
        if turn < self.config.turns {
            batch.iter_mut().try_for_each(|request| self.runtime.park(worker, request))?;
            return Ok(batch);
        }
        for request in batch {
            let number = request.number;
            let tokens = self.runtime.output(worker, request)?;
            self.outputs.push((number, Ok(tokens)));
        }
        Ok(Vec::new())
    }
}

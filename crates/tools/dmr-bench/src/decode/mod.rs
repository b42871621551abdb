//! A decode loop: one step of a small transformer for each token, launch by launch and as a
//! captured graph.
//!
//! A step is 9 operations in each layer, and 3 more: matrix products by cuBLAS (a kernel where
//! there is none), attention over a cache, and the choice of the next token. It is measured for
//! several batch sizes. Each has a graph, and the intermediate results of all graphs are in one
//! [`GraphPool`].
//!
//! The state of a batch is reset and read on another stream than the steps run on.

mod kernels;
mod model;
mod submit;
#[cfg(test)]
mod tests;

use std::time::Instant;

use dmr_core::AllocTag;
use dmr_graphs::{CaptureOptions, Graph, GraphPool};
use dmr_streams::StreamLease;
use serde_json::json;

use crate::line::hundredths;
use crate::percentiles::Percentiles;
use crate::{BenchError, Line, Machine, stacks};
use model::{Model, Outputs, State};
use submit::{Captured, Context, Eager};

/// The sizes of the model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The number of layers.
    pub layers: usize,
    /// Columns of a row: a multiple of `head`.
    pub hidden: usize,
    /// Columns of a head of the attention: 1024 at most.
    pub head: usize,
    /// The number of different tokens: 128 at least.
    pub vocabulary: usize,
    /// The maximum number of tokens of a row: 256 at most.
    pub context: usize,
}

/// A measurement to make.
#[derive(Clone, Debug)]
pub struct Decode {
    /// The name of the stack that the blocks come from.
    pub resource: String,
    /// The batch sizes.
    pub batches: Vec<usize>,
    /// Tokens that each row generates: `context` at most.
    pub tokens: usize,
    /// The sizes of the model.
    pub sizes: Sizes,
}

const POOL: AllocTag = AllocTag::new("decode graphs");

impl Sizes {
    /// Returns sizes for a GPU: 0.5 GiB of weights.
    #[must_use]
    pub fn of_gpu() -> Self {
        Self { layers: 4, hidden: 1024, head: 64, vocabulary: 32768, context: 256 }
    }

    /// Returns sizes for the simulated driver, which interprets each instruction.
    #[must_use]
    pub fn of_simulator() -> Self {
        Self { layers: 2, hidden: 32, head: 16, vocabulary: 128, context: 16 }
    }
}

/// The times of the steps of one variant.
struct Times {
    /// Nanoseconds in which the host submits each step to an idle stream.
    host: Percentiles,
    /// Microseconds of each token where the host waits once, at the end.
    total_us: f64,
}

/// Measures each batch size, and compares the results of the two variants byte by byte. Returns the
/// number of batch sizes whose results differ.
///
/// # Errors
///
/// Those of the resource and of the driver; sizes that the kernels do not have.
pub fn run(
    machine: &Machine,
    plan: &Decode,
    emit: &mut dyn FnMut(Line),
) -> Result<usize, BenchError> {
    let streams = machine.streams()?;
    let resource = stacks::make(&plan.resource, &streams)?.resource;
    run_on(Context { resource, streams }, plan, emit)
}

fn run_on(ctx: Context, plan: &Decode, emit: &mut dyn FnMut(Line)) -> Result<usize, BenchError> {
    let Sizes { hidden, head, vocabulary, context, .. } = plan.sizes;
    let fits = plan.tokens <= context && context <= 256 && vocabulary >= 128;
    if !fits || !hidden.is_multiple_of(head) || head > 1024 {
        return Err(BenchError(format!("{plan:?}: the kernels do not have these sizes")));
    }
    let bench = Bench {
        plan,
        compute: ctx.streams.acquire()?,
        load: ctx.streams.acquire()?,
        pool: GraphPool::new(&ctx, POOL),
        ctx,
    };
    let model = Model::new(&bench.ctx, &bench.compute, plan.sizes)?;
    let states = plan
        .batches
        .iter()
        .map(|&rows| Ok((rows, State::new(&bench.ctx, &bench.load, plan.sizes, rows)?)));
    let states = states.collect::<Result<Vec<_>, BenchError>>()?;
    let mut different = 0;
    let mut alone = Vec::new();
    let mut graphs = Vec::new();
    let mut expected = Vec::new();
    for (rows, state) in &states {
        // The first step of each batch size loads kernels, which a capture does not allow.
        let measured = bench
            .measure(state, || model.step(state, &mut Eager::new(&bench.ctx, &bench.compute)))?;
        emit(bench.line(&model, "eager", *rows, &measured.times));
        let mut logits = measured.outputs[1].chunks_exact(4).map(|bytes| bytes.try_into());
        if !logits.all(|bytes| bytes.is_ok_and(|bytes| f32::from_le_bytes(bytes).is_finite())) {
            return Err(BenchError("a logit is not a number".to_owned()));
        }
        expected.push(measured.outputs);
        let own = GraphPool::new(&bench.ctx, POOL);
        bench.capture(&model, state, &own)?;
        alone.push(own.reserved_bytes());
        graphs.push(bench.capture(&model, state, &bench.pool)?);
    }
    for (((rows, state), graph), expected) in states.iter().zip(&graphs).zip(&expected) {
        let replay = || graph.launch(&bench.compute).map_err(BenchError::new);
        let measured = bench.measure(state, replay)?;
        let is_equal = measured.outputs == *expected;
        different += usize::from(!is_equal);
        let line = bench.line(&model, "captured", *rows, &measured.times);
        emit(line.with("same_bytes_as_eager", is_equal));
    }
    let pools = Line::new(&plan.resource, "decode_pool", json!({ "batches": plan.batches }))
        .with("shared_reserved_bytes", bench.pool.reserved_bytes())
        .with("alone_reserved_bytes", alone);
    emit(pools);
    Ok(different)
}

struct Bench<'b> {
    plan: &'b Decode,
    /// Steps run here.
    compute: StreamLease,
    /// State is written and read here.
    load: StreamLease,
    pool: GraphPool,
    ctx: Context,
}

struct Measured {
    times: Times,
    outputs: Outputs,
}

impl Bench<'_> {
    fn capture(&self, model: &Model, state: &State, pool: &GraphPool) -> Result<Graph, BenchError> {
        let options = CaptureOptions::new().with_pool(pool);
        // SAFETY: a step records the blocks that it uses, and allocates the rest in the capture.
        unsafe {
            Graph::capture(&self.ctx, &self.compute, options, |capture| {
                model.step(state, &mut Captured::new(capture))
            })
        }
        .map_err(BenchError::new)
    }

    /// Runs all steps three times from the first token on: unmeasured, with a wait after each step,
    /// and with one at the end.
    fn measure(
        &self,
        state: &State,
        mut step: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<Measured, BenchError> {
        let tokens = self.plan.tokens;
        let wait = || self.compute.stream().synchronize().map_err(BenchError::new);
        let reset = || {
            state.reset(&self.ctx, &self.load)?;
            self.load.stream().synchronize().map_err(BenchError::new)
        };
        state.reset(&self.ctx, &self.load)?;
        (0..tokens).try_for_each(|_| step())?;
        let outputs = state.outputs(&self.ctx, &self.load)?;
        reset()?;
        let mut host = Vec::with_capacity(tokens);
        for _ in 0..tokens {
            let start = Instant::now();
            step()?;
            host.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
            wait()?;
        }
        reset()?;
        let start = Instant::now();
        (0..tokens).try_for_each(|_| step())?;
        wait()?;
        let total_us = start.elapsed().as_secs_f64() * 1e6 / tokens as f64;
        if outputs != state.outputs(&self.ctx, &self.load)? {
            return Err(BenchError("two runs of one variant have different results".to_owned()));
        }
        Ok(Measured { times: Times { host: Percentiles::of(&mut host), total_us }, outputs })
    }

    fn line(&self, model: &Model, variant: &str, rows: usize, times: &Times) -> Line {
        let Decode { resource, tokens, sizes, .. } = self.plan;
        let Sizes { layers, hidden, vocabulary, .. } = sizes;
        let params = json!({
            "batch": rows, "tokens": tokens, "layers": layers, "hidden": hidden,
            "vocabulary": vocabulary,
        });
        let host_us = |nanoseconds: f64| hundredths(nanoseconds / 1e3);
        Line::new(resource, "decode", params)
            .with("variant", variant)
            .with("product", model.kernels.product_name())
            .with("kernels", model.kernels.compiled_by)
            .with("host_us_per_token_p50", host_us(f64::from(times.host.p50)))
            .with("host_us_per_token_p99", host_us(f64::from(times.host.p99)))
            .with("total_us_per_token", hundredths(times.total_us))
    }
}

//! The decode loop of `dmr-bench decode` as CUDA graphs of NVIDIA's cuda-async: one JSON line for
//! each result.

mod blas;
mod model;
mod operation;
mod options;
mod submit;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_async::cuda_graph::CudaGraph;
use cuda_async::device_context::{clear_device_pool, set_device_pool};
use cuda_async::device_operation::DeviceOp;
use cuda_async::error::DeviceError;
use cuda_core::{Context, IntoResult, MemPool, Stream, sys};
use serde_json::{Value, json};

use model::{Model, Outputs, State};
use operation::Operation;
use options::Options;
use submit::{Arena, Boxes, Nodes, Plan, Reuse};

type Failure = Box<dyn Error>;

/// A graph whose output is of no use.
type Graph = CudaGraph<()>;

struct Bench {
    options: Options,
    context: Arc<Context>,
    stream: Arc<Stream>,
    model: Model,
    states: Vec<State>,
}

/// The times of one variant.
struct Times {
    /// Nanoseconds in which the host submits each step to an idle stream.
    host: Vec<u64>,
    /// Microseconds of each token where the host waits once, at the end.
    total_us: f64,
    /// Nanoseconds of each step with cuda-async's own wait (`sync_on`).
    waited: Vec<u64>,
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).map_err(Failure::from).and_then(run);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cuda_async_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), Failure> {
    let context = Context::new(options.device)?;
    let stream = context.new_stream()?;
    let sizes = options.sizes;
    let model = Model::new(&stream, sizes)?;
    // The largest first: the buffers that are shared are its own, and the others take parts of
    // them.
    let mut batches = options.batches.clone();
    batches.sort_unstable_by_key(|&rows| std::cmp::Reverse(rows));
    let states = batches.iter().map(|&rows| State::new(&stream, sizes, rows));
    let states = states.collect::<Result<Vec<_>, _>>()?;
    let bench = Bench { options, context, stream, model, states };
    let expected = bench.eager()?;
    bench.scopes("scope_each", Reuse::Never, false, &expected)?;
    bench.scopes("scope_reused", Reuse::Freed, false, &expected)?;
    bench.scopes("scope_shared", Reuse::Freed, true, &expected)?;
    bench.nodes(&expected)?;
    bench.boxes()?;
    Ok(())
}

impl Bench {
    /// Measures the operations one by one, on buffers that were allocated before.
    fn eager(&self) -> Result<Vec<Outputs>, Failure> {
        let mut expected = Vec::new();
        for state in &self.states {
            let pool = self.own_pool()?;
            let operations = self.plan(state, &mut Arena::new(&self.stream, Reuse::Never))?;
            let step = || Steps(&operations);
            let (times, outputs) = self.measure(state, step)?;
            self.emit(self.decode_line("none", "eager", state.rows, &times, None));
            let mut logits = outputs[1].chunks_exact(4).filter_map(|bytes| bytes.try_into().ok());
            if !logits.all(|bytes| f32::from_le_bytes(bytes).is_finite()) {
                return Err("a logit is not a number".into());
            }
            expected.push(outputs);
            drop(operations);
            self.give_up(&pool)?;
        }
        Ok(expected)
    }

    /// Measures graphs of `CudaGraph::scope`, which does not allow allocations: the buffers are
    /// made before.
    fn scopes(
        &self,
        name: &str,
        reuse: Reuse,
        is_shared: bool,
        expected: &[Outputs],
    ) -> Result<(), Failure> {
        let mut alone = Vec::new();
        for state in &self.states {
            let pool = self.own_pool()?;
            let mut arena = Arena::new(&self.stream, reuse);
            drop(self.plan(state, &mut arena)?);
            alone.push(pool.mem_stats()?.reserved_current);
            drop(arena);
            self.give_up(&pool)?;
        }
        let free_before = self.free_bytes()?;
        let pool = self.own_pool()?;
        let mut arenas = vec![Arena::new(&self.stream, reuse)];
        let mut graphs = Vec::new();
        for state in &self.states {
            if !is_shared {
                arenas.push(Arena::new(&self.stream, reuse));
            }
            let arena = arenas.last_mut().ok_or("no arena")?;
            let operations = self.plan(state, arena)?;
            graphs.push(CudaGraph::scope(&self.stream, |scope| {
                operations.iter().try_for_each(|operation| scope.record(operation.clone()))
            })?);
        }
        let used: usize = arenas.iter().map(Arena::bytes).sum();
        let reserved = pool.mem_stats()?.reserved_current;
        self.replays(name, &graphs, expected)?;
        let device = free_before.saturating_sub(self.free_bytes()?);
        self.emit(self.pool_line(name, used as u64, reserved, alone, device));
        drop((graphs, arenas));
        self.give_up(&pool)
    }

    /// Measures graphs of `CudaGraph::capture` with memory nodes: each step allocates and frees its
    /// intermediate results by cuda-async's and cuda-core's `unsafe` functions.
    fn nodes(&self, expected: &[Outputs]) -> Result<(), Failure> {
        let capture = |state: &State| -> Result<Graph, DeviceError> {
            CudaGraph::capture(Arc::clone(&self.stream), Nodes { model: &self.model, state })
        };
        let mut alone = Vec::new();
        for state in &self.states {
            let graph = capture(state)?;
            self.reset(state)?;
            graph.launch().sync_on(&self.stream)?;
            alone.push(self.graph_memory(RESERVED)?);
            drop(graph);
            self.trim_graph_memory()?;
        }
        let free_before = self.free_bytes()?;
        let graphs = self.states.iter().map(capture).collect::<Result<Vec<_>, _>>()?;
        self.replays("capture_nodes", &graphs, expected)?;
        let device = free_before.saturating_sub(self.free_bytes()?);
        let used = self.graph_memory(USED_HIGH)?;
        let reserved = self.graph_memory(RESERVED)?;
        self.emit(self.pool_line("capture_nodes", used, reserved, alone, device));
        drop(graphs);
        self.trim_graph_memory()
    }

    /// Counts the launches of graphs of `CudaGraph::capture` whose intermediate results are
    /// cuda-async's owned memory.
    fn boxes(&self) -> Result<(), Failure> {
        for state in &self.states {
            self.reset(state)?;
            let step = Boxes { model: &self.model, state };
            let graph = CudaGraph::capture(Arc::clone(&self.stream), step)?;
            let launches: Vec<_> = (0..4).map(|_| graph.launch().sync_on(&self.stream)).collect();
            let error = launches.iter().find_map(|launch| launch.as_ref().err());
            let line = json!({
                "bench": "cuda_async", "resource": "capture_boxes", "workload": "decode_launches",
                "params": self.params(state.rows), "launches": launches.len(),
                "failed_launches": launches.iter().filter(|launch| launch.is_err()).count(),
                "error": error.map(ToString::to_string),
                "reserved_bytes": self.graph_memory(RESERVED)?,
            });
            self.emit(line);
            drop(graph);
            // cuda-core's worker frees the memory on this stream: as a node of the next capture, if
            // that has begun. It looks at its queue each millisecond.
            std::thread::sleep(Duration::from_millis(50));
            self.stream.synchronize()?;
            self.trim_graph_memory()?;
        }
        Ok(())
    }

    /// Measures the replays of a graph for each state, and compares their results with those of
    /// single launches.
    fn replays(&self, name: &str, graphs: &[Graph], expected: &[Outputs]) -> Result<(), Failure> {
        for ((state, graph), expected) in self.states.iter().zip(graphs).zip(expected) {
            let (times, outputs) = self.measure(state, || graph.launch())?;
            let is_equal = outputs == *expected;
            self.emit(self.decode_line(name, "captured", state.rows, &times, Some(is_equal)));
            if !is_equal {
                return Err(
                    format!("{name}: the graph has other results than single launches").into()
                );
            }
        }
        Ok(())
    }

    /// Returns the operations of a step, whose intermediate results are in the arena.
    fn plan(&self, state: &State, arena: &mut Arena) -> Result<Vec<Operation>, DeviceError> {
        let mut plan = Plan::new(arena);
        self.model.step(state, &mut plan)?;
        Ok(plan.operations)
    }

    fn reset(&self, state: &State) -> Result<(), Failure> {
        state.reset(&self.stream)?;
        Ok(self.stream.synchronize()?)
    }

    /// Runs all steps four times from the first token on: unmeasured, with a wait after each step,
    /// with one at the end, and with the crate's own waits.
    fn measure<O: DeviceOp<Output = ()>>(
        &self,
        state: &State,
        step: impl Fn() -> O,
    ) -> Result<(Times, Outputs), Failure> {
        let tokens = self.options.tokens;
        let submit = || {
            // SAFETY: the caller keeps what the step uses until the stream was waited for, below,
            // and the stream orders the steps.
            unsafe { step().async_on(&self.stream) }
        };
        self.reset(state)?;
        (0..tokens).try_for_each(|_| submit())?;
        let outputs = state.outputs(&self.stream)?;
        self.reset(state)?;
        let mut host = Vec::with_capacity(tokens);
        for _ in 0..tokens {
            let start = Instant::now();
            submit()?;
            host.push(start.elapsed().as_nanos() as u64);
            self.stream.synchronize()?;
        }
        self.reset(state)?;
        let start = Instant::now();
        (0..tokens).try_for_each(|_| submit())?;
        self.stream.synchronize()?;
        let total_us = start.elapsed().as_secs_f64() * 1e6 / tokens as f64;
        self.reset(state)?;
        let mut waited = Vec::with_capacity(tokens);
        for _ in 0..tokens {
            let start = Instant::now();
            step().sync_on(&self.stream)?;
            waited.push(start.elapsed().as_nanos() as u64);
        }
        if outputs != state.outputs(&self.stream)? {
            return Err("two runs of one variant have different results".into());
        }
        host.sort_unstable();
        waited.sort_unstable();
        Ok((Times { host, total_us, waited }, outputs))
    }

    /// Makes a pool of the driver and lets cuda-async allocate from it on this thread.
    fn own_pool(&self) -> Result<Arc<MemPool>, Failure> {
        let pool = self.context.new_mem_pool()?;
        set_device_pool(self.options.device, Arc::clone(&pool))?;
        Ok(pool)
    }

    /// Takes the pool away again, after cuda-core's worker has freed its memory.
    fn give_up(&self, pool: &MemPool) -> Result<(), Failure> {
        clear_device_pool(self.options.device)?;
        let start = Instant::now();
        while pool.mem_stats()?.used_current > 0 {
            if start.elapsed() > Duration::from_secs(5) {
                return Err("cuda-core does not free the memory".into());
            }
            std::thread::sleep(Duration::from_millis(1));
            self.stream.synchronize()?;
        }
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, Failure> {
        self.stream.synchronize()?;
        let mut free = 0;
        let mut total = 0;
        // SAFETY: two places for results; the context is this thread's.
        unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }.result()?;
        Ok(free as u64)
    }

    fn graph_memory(&self, attribute: sys::CUgraphMem_attribute) -> Result<u64, Failure> {
        let mut value = 0_u64;
        let place = (&raw mut value).cast();
        // SAFETY: the attribute is a number of 64 bits.
        unsafe { sys::cuDeviceGetGraphMemAttribute(self.context.cu_device(), attribute, place) }
            .result()?;
        Ok(value)
    }

    /// Gives the memory of graphs that are gone back to the device.
    fn trim_graph_memory(&self) -> Result<(), Failure> {
        // SAFETY: takes memory only from graphs that do not run.
        unsafe { sys::cuDeviceGraphMemTrim(self.context.cu_device()) }.result()?;
        Ok(())
    }

    fn params(&self, rows: usize) -> Value {
        let model::Sizes { layers, hidden, vocabulary, .. } = self.options.sizes;
        json!({
            "batch": rows, "tokens": self.options.tokens, "layers": layers, "hidden": hidden,
            "vocabulary": vocabulary,
        })
    }

    fn decode_line(
        &self,
        name: &str,
        variant: &str,
        rows: usize,
        times: &Times,
        is_equal: Option<bool>,
    ) -> Value {
        let mut line = json!({
            "bench": "cuda_async", "resource": name, "workload": "decode", "params": self.params(rows),
            "variant": variant, "product": self.model.product_name(), "kernels": "ptx",
            "host_us_per_token_p50": percentile_us(&times.host, 50),
            "host_us_per_token_p99": percentile_us(&times.host, 99),
            "total_us_per_token": hundredths(times.total_us),
            "sync_on_us_per_token_p50": percentile_us(&times.waited, 50),
        });
        if let Some(is_equal) = is_equal {
            line["same_bytes_as_eager"] = is_equal.into();
        }
        line
    }

    fn pool_line(
        &self,
        name: &str,
        used: u64,
        reserved: u64,
        alone: Vec<u64>,
        device: u64,
    ) -> Value {
        let batches: Vec<_> = self.states.iter().map(|state| state.rows).collect();
        json!({
            "bench": "cuda_async", "resource": name, "workload": "decode_pool",
            "params": { "batches": batches }, "used_bytes": used, "reserved_bytes": reserved,
            "alone_reserved_bytes": alone, "device_bytes": device,
        })
    }

    fn emit(&self, line: Value) {
        println!("{line}");
    }
}

const RESERVED: sys::CUgraphMem_attribute =
    sys::CUgraphMem_attribute_enum_CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
const USED_HIGH: sys::CUgraphMem_attribute =
    sys::CUgraphMem_attribute_enum_CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;

/// One step, operation by operation.
struct Steps<'s>(&'s [Operation]);

operation::no_future!(Steps<'_>);

impl DeviceOp for Steps<'_> {
    type Output = ();

    unsafe fn execute(
        self,
        context: &cuda_async::device_operation::ExecutionContext,
    ) -> Result<(), DeviceError> {
        self.0.iter().try_for_each(|operation| {
            // SAFETY: as the caller's.
            unsafe { operation.clone().execute(context) }
        })
    }
}

/// Returns the smallest time that this many percent do not exceed, in microseconds.
fn percentile_us(sorted: &[u64], percent: usize) -> f64 {
    let at = (percent * sorted.len()).div_ceil(100).max(1) - 1;
    sorted.get(at).map_or(0.0, |&nanoseconds| hundredths(nanoseconds as f64 / 1e3))
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

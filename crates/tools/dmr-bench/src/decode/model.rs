//! The model: its weights, the state of a batch, and one step.

use cudarc::driver::result::{memcpy_dtoh_async, memset_d8_async};
use dmr_launch::LaunchRecorder;
use dmr_streams::StreamLease;

use super::Sizes;
use super::kernels::{Addresses, Kernels, Matrices};
use super::submit::{Context, Memory, Owned, Submit};
use crate::BenchError;

const FLOAT: usize = size_of::<f32>();
/// The bytes that cuBLAS recommends for an H100.
const WORKSPACE: usize = 32 << 20;

/// The kernels and the weights.
pub(super) struct Model {
    pub(super) kernels: Kernels,
    sizes: Sizes,
    workspace: Owned,
    table: Owned,
    head: Owned,
    layers: Vec<Layer>,
}

struct Layer {
    qkv: Owned,
    output: Owned,
    up: Owned,
    down: Owned,
}

/// The memory of a batch that outlives a step.
pub(super) struct State {
    rows: usize,
    tokens: Owned,
    positions: Owned,
    history: Owned,
    scores: Owned,
    caches: Vec<Owned>,
}

/// The results of all steps of a batch: the tokens, their logits, and the caches.
pub(super) type Outputs = Vec<Vec<u8>>;

impl Model {
    pub(super) fn new(
        ctx: &Context,
        stream: &StreamLease,
        sizes: Sizes,
    ) -> Result<Self, BenchError> {
        let workspace = Owned::new(ctx, stream, WORKSPACE)?;
        let address = workspace.memory.address;
        let kernels = Kernels::load(stream.stream(), sizes, address, WORKSPACE)?;
        let mut seed = 0;
        let mut matrix = |inputs: usize, outputs: usize| -> Result<Owned, BenchError> {
            let floats = inputs * outputs;
            let owned = Owned::new(ctx, stream, floats * FLOAT)?;
            let mut launch = LaunchRecorder::new_strict(stream);
            launch.write(&mut { owned.memory });
            seed += 0x9e37;
            let to = owned.memory.address;
            let filled = launch.launch(ctx, |on| kernels.weights(on, to, floats, seed));
            filled.map_err(BenchError::new)?;
            Ok(owned)
        };
        let Sizes { hidden, vocabulary, .. } = sizes;
        let table = matrix(vocabulary, hidden)?;
        let head = matrix(hidden, vocabulary)?;
        let mut layer = || {
            Ok::<_, BenchError>(Layer {
                qkv: matrix(hidden, 3 * hidden)?,
                output: matrix(hidden, hidden)?,
                up: matrix(hidden, 4 * hidden)?,
                down: matrix(4 * hidden, hidden)?,
            })
        };
        let layers = (0..sizes.layers).map(|_| layer()).collect::<Result<_, _>>()?;
        Ok(Self { kernels, sizes, workspace, table, head, layers })
    }

    /// Submits one step: the next token of each row.
    pub(super) fn step(&self, state: &State, on: &mut dyn Submit) -> Result<(), BenchError> {
        let Sizes { hidden, vocabulary, .. } = self.sizes;
        let kernels = &self.kernels;
        let rows = state.rows;
        let [tokens, positions] = [state.tokens.memory, state.positions.memory];
        let x = on.allocate(rows * hidden * FLOAT)?;
        let table = self.table.memory;
        on.submit(&[table, tokens], &[x], &mut |stream| {
            kernels.embed(stream, table.address, tokens.address, x.address, rows)
        })?;
        for (layer, cache) in self.layers.iter().zip(&state.caches) {
            let cache = cache.memory;
            let qkv = self.product(on, &layer.qkv, x, [rows, hidden, 3 * hidden])?;
            let attended = on.allocate(rows * hidden * FLOAT)?;
            on.submit(&[qkv, positions], &[cache, attended], &mut |stream| {
                let [qkv, out] = [qkv.address, attended.address];
                kernels.attend(stream, qkv, positions.address, cache.address, out, rows)
            })?;
            on.free(qkv)?;
            let output = self.product(on, &layer.output, attended, [rows, hidden, hidden])?;
            on.free(attended)?;
            self.add_norm(on, output, x, rows)?;
            let up = self.product(on, &layer.up, x, [rows, hidden, 4 * hidden])?;
            on.submit(&[], &[up], &mut |stream| {
                kernels.silu(stream, up.address, rows * 4 * hidden)
            })?;
            let down = self.product(on, &layer.down, up, [rows, 4 * hidden, hidden])?;
            on.free(up)?;
            self.add_norm(on, down, x, rows)?;
        }
        let logits = self.product(on, &self.head, x, [rows, hidden, vocabulary])?;
        on.free(x)?;
        let [history, scores] = [state.history.memory, state.scores.memory];
        on.submit(&[logits], &[tokens, positions, history, scores], &mut |stream| {
            kernels.argmax(stream, logits.address, state.addresses(), rows)
        })?;
        on.free(logits)
    }

    /// Allocates the product of `x` and a matrix, and submits the operation.
    fn product(
        &self,
        on: &mut dyn Submit,
        matrix: &Owned,
        x: Memory,
        [rows, inputs, outputs]: [usize; 3],
    ) -> Result<Memory, BenchError> {
        let w = matrix.memory;
        let y = on.allocate(rows * outputs * FLOAT)?;
        let [from, by, to] = [x.address, w.address, y.address];
        let matrices = Matrices { w: by, x: from, y: to, inputs, outputs, rows };
        on.submit(&[w, x], &[y, self.workspace.memory], &mut |stream| {
            self.kernels.multiply(stream, matrices)
        })?;
        Ok(y)
    }

    /// Adds `y` to `x`, and frees it.
    fn add_norm(
        &self,
        on: &mut dyn Submit,
        y: Memory,
        x: Memory,
        rows: usize,
    ) -> Result<(), BenchError> {
        on.submit(&[y], &[x], &mut |stream| {
            self.kernels.add_norm(stream, y.address, x.address, rows)
        })?;
        on.free(y)
    }
}

impl State {
    pub(super) fn new(
        ctx: &Context,
        home: &StreamLease,
        sizes: Sizes,
        rows: usize,
    ) -> Result<Self, BenchError> {
        let block = |words: usize| Owned::new(ctx, home, words * FLOAT);
        let Sizes { layers, hidden, context, .. } = sizes;
        let cache = |_| block(rows * 2 * context * hidden);
        Ok(Self {
            rows,
            tokens: block(rows)?,
            positions: block(rows)?,
            history: block(rows * context)?,
            scores: block(rows * context)?,
            caches: (0..layers).map(cache).collect::<Result<_, _>>()?,
        })
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            tokens: self.tokens.memory.address,
            positions: self.positions.memory.address,
            history: self.history.memory.address,
            scores: self.scores.memory.address,
        }
    }

    fn memory(&self) -> impl Iterator<Item = Memory> {
        let state = [&self.tokens, &self.positions, &self.history, &self.scores];
        state.into_iter().chain(&self.caches).map(|owned| owned.memory)
    }

    /// Begins at the first position, with another token in each row, in a launch on this stream.
    pub(super) fn reset(&self, ctx: &Context, stream: &StreamLease) -> Result<(), BenchError> {
        let mut launch = LaunchRecorder::new_strict(stream);
        for mut memory in self.memory() {
            launch.write(&mut memory);
        }
        let zeroed = launch.launch(ctx, |on| {
            self.memory().try_for_each(|Memory { address, bytes, .. }| {
                // SAFETY: the memory is recorded, and has this number of bytes.
                unsafe { memset_d8_async(address, 0, bytes, on.cu_stream()) }
            })?;
            (0..self.rows).try_for_each(|row| {
                let token = self.tokens.memory.address + (row * FLOAT) as u64;
                // SAFETY: the lowest byte of the row's token.
                unsafe { memset_d8_async(token, (row % 128) as u8, 1, on.cu_stream()) }
            })
        });
        zeroed.map_err(BenchError::new)
    }

    /// Copies the results to the host, in a launch on this stream, and waits for them.
    pub(super) fn outputs(
        &self,
        ctx: &Context,
        stream: &StreamLease,
    ) -> Result<Outputs, BenchError> {
        let results = || self.memory().skip(2);
        let mut launch = LaunchRecorder::new_strict(stream);
        for memory in results() {
            launch.read(&memory);
        }
        let mut outputs: Outputs = results().map(|memory| vec![0; memory.bytes]).collect();
        let copied = launch.launch(ctx, |on| {
            let copies = results().zip(&mut outputs);
            copies.into_iter().try_for_each(|(memory, to)| {
                // SAFETY: the memory is recorded, and has the bytes of the vector, which lives
                // until the stream was waited for.
                unsafe { memcpy_dtoh_async(to, memory.address, on.cu_stream()) }
            })
        });
        // Also where a copy has failed: others may be in flight.
        let waited = stream.stream().synchronize();
        copied.map_err(BenchError::new)?;
        waited.map_err(BenchError::new)?;
        Ok(outputs)
    }
}

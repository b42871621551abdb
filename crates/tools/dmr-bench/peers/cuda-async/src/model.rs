//! The model of `dmr-bench decode`: its weights, the state of a batch, and one step. The kernels
//! are those of dmr-bench.

use std::sync::Arc;

use cuda_async::device_operation::DeviceOp;
use cuda_async::error::DeviceError;
use cuda_core::memory::memcpy_dtoh_async;
use cuda_core::{Function, LaunchConfig, Module, Stream, memset_d8_async};

use crate::blas::{Blas, Matrices};
use crate::operation::{Argument, Memory, Operation, Work};
use crate::submit::{Submit, allocate};

use Argument::{Address, Float, Word};

const PTX: &str = include_str!("../../../src/decode/kernels.ptx");
const FLOAT: usize = size_of::<f32>();
/// The bytes that cuBLAS recommends for an H100.
const WORKSPACE: usize = 32 << 20;
/// Threads of a block in the kernels with one block for each row.
const ROW: u32 = 128;

/// The sizes of the model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
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

/// The kernels and the weights.
pub struct Model {
    sizes: Sizes,
    embed: Arc<Function>,
    product: Arc<Function>,
    attend: Arc<Function>,
    add_norm: Arc<Function>,
    silu: Arc<Function>,
    argmax: Arc<Function>,
    blas: Option<Arc<Blas>>,
    workspace: Memory,
    table: Memory,
    head: Memory,
    layers: Vec<Layer>,
}

struct Layer {
    qkv: Memory,
    output: Memory,
    up: Memory,
    down: Memory,
}

/// The memory of a batch that outlives a step.
pub struct State {
    pub rows: usize,
    tokens: Memory,
    positions: Memory,
    history: Memory,
    scores: Memory,
    caches: Vec<Memory>,
}

/// The results of all steps of a batch: the tokens, their logits, and the caches.
pub type Outputs = Vec<Vec<u8>>;

impl Model {
    /// Loads the kernels, and fills the weights. cuBLAS multiplies where its library is found.
    pub fn new(stream: &Arc<Stream>, sizes: Sizes) -> Result<Self, DeviceError> {
        let module: Arc<Module> = stream.context().load_module_from_ptx_src(PTX)?;
        let function = |name: &str| module.load_function(&format!("decode_{name}")).map(Arc::new);
        let weights = function("weights")?;
        let workspace = Memory::of(allocate(stream, WORKSPACE)?);
        let blas = Blas::open(stream, workspace.address, WORKSPACE)?.map(Arc::new);
        let scale = 1.0 / (sizes.hidden as f32).sqrt();
        let mut seed = 0;
        let mut matrix = |inputs: usize, outputs: usize| -> Result<Memory, DeviceError> {
            let floats = inputs * outputs;
            let memory = Memory::of(allocate(stream, floats * FLOAT)?);
            seed += 0x9e37;
            let arguments =
                vec![Address(memory.address), Word(floats as u32), Word(seed), Float(scale)];
            let uses = vec![(memory.clone(), true)];
            kernel(&weights, arguments, of_elements(floats), uses).sync_on(stream)?;
            Ok(memory)
        };
        let Sizes { hidden, vocabulary, .. } = sizes;
        let table = matrix(vocabulary, hidden)?;
        let head = matrix(hidden, vocabulary)?;
        let mut layer = || {
            Ok::<_, DeviceError>(Layer {
                qkv: matrix(hidden, 3 * hidden)?,
                output: matrix(hidden, hidden)?,
                up: matrix(hidden, 4 * hidden)?,
                down: matrix(4 * hidden, hidden)?,
            })
        };
        let layers = (0..sizes.layers).map(|_| layer()).collect::<Result<_, _>>()?;
        Ok(Self {
            sizes,
            embed: function("embed")?,
            product: function("product")?,
            attend: function("attend")?,
            add_norm: function("add_norm")?,
            silu: function("silu")?,
            argmax: function("argmax")?,
            blas,
            workspace,
            table,
            head,
            layers,
        })
    }

    /// Returns the name of what multiplies.
    pub fn product_name(&self) -> &'static str {
        if self.blas.is_some() { "cublas" } else { "kernel" }
    }

    /// Submits one step: the next token of each row.
    pub fn step(&self, state: &State, on: &mut dyn Submit) -> Result<(), DeviceError> {
        let Sizes { hidden, head, vocabulary, context, .. } = self.sizes;
        let rows = state.rows;
        let x = on.allocate(rows * hidden * FLOAT)?;
        on.submit(kernel(
            &self.embed,
            vec![
                Address(self.table.address),
                Address(state.tokens.address),
                Address(x.address),
                Word(hidden as u32),
            ],
            of_rows(rows),
            vec![(self.table.clone(), false), (state.tokens.clone(), false), (x.clone(), true)],
        ))?;
        for (layer, cache) in self.layers.iter().zip(&state.caches) {
            let qkv = self.multiply(on, &layer.qkv, &x, [rows, hidden, 3 * hidden])?;
            let attended = on.allocate(rows * hidden * FLOAT)?;
            let config = LaunchConfig {
                grid_dim: ((hidden / head) as u32, rows as u32, 1),
                block_dim: (head as u32, 1, 1),
                shared_mem_bytes: 0,
            };
            on.submit(kernel(
                &self.attend,
                vec![
                    Address(qkv.address),
                    Address(state.positions.address),
                    Address(cache.address),
                    Address(attended.address),
                    Word(hidden as u32),
                    Word(context as u32),
                ],
                config,
                vec![
                    (qkv.clone(), false),
                    (state.positions.clone(), false),
                    (cache.clone(), true),
                    (attended.clone(), true),
                ],
            ))?;
            on.free(qkv)?;
            let output = self.multiply(on, &layer.output, &attended, [rows, hidden, hidden])?;
            on.free(attended)?;
            self.add_norm(on, output, &x, rows)?;
            let up = self.multiply(on, &layer.up, &x, [rows, hidden, 4 * hidden])?;
            let floats = rows * 4 * hidden;
            on.submit(kernel(
                &self.silu,
                vec![Address(up.address), Word(floats as u32)],
                of_elements(floats),
                vec![(up.clone(), true)],
            ))?;
            let down = self.multiply(on, &layer.down, &up, [rows, 4 * hidden, hidden])?;
            on.free(up)?;
            self.add_norm(on, down, &x, rows)?;
        }
        let logits = self.multiply(on, &self.head, &x, [rows, hidden, vocabulary])?;
        on.free(x)?;
        let written = [&state.tokens, &state.positions, &state.history, &state.scores];
        let mut arguments = vec![Address(logits.address)];
        arguments.extend(written.map(|memory| Address(memory.address)));
        arguments.extend([Word(vocabulary as u32), Word(context as u32)]);
        let mut uses = vec![(logits.clone(), false)];
        uses.extend(written.map(|memory| (memory.clone(), true)));
        on.submit(kernel(&self.argmax, arguments, of_rows(rows), uses))?;
        on.free(logits)
    }

    /// Allocates the product of `x` and a matrix, and submits the operation.
    fn multiply(
        &self,
        on: &mut dyn Submit,
        w: &Memory,
        x: &Memory,
        [rows, inputs, outputs]: [usize; 3],
    ) -> Result<Memory, DeviceError> {
        let y = on.allocate(rows * outputs * FLOAT)?;
        let mut uses = vec![(w.clone(), false), (x.clone(), false), (y.clone(), true)];
        let operation = match &self.blas {
            Some(blas) => {
                let [w, x, y] = [w.address, x.address, y.address];
                uses.push((self.workspace.clone(), true));
                let matrices = Matrices { w, x, y, inputs, outputs, rows };
                Operation { work: Work::Product { blas: Arc::clone(blas), matrices }, uses }
            }
            None => {
                let mut arguments = Vec::from([w, x, &y].map(|memory| Address(memory.address)));
                arguments.extend([inputs, outputs, rows].map(|size| Word(size as u32)));
                kernel(&self.product, arguments, of_elements(rows * outputs), uses)
            }
        };
        on.submit(operation)?;
        Ok(y)
    }

    /// Adds `y` to `x`, and frees it.
    fn add_norm(
        &self,
        on: &mut dyn Submit,
        y: Memory,
        x: &Memory,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let arguments =
            vec![Address(y.address), Address(x.address), Word(self.sizes.hidden as u32)];
        let uses = vec![(y.clone(), false), (x.clone(), true)];
        on.submit(kernel(&self.add_norm, arguments, of_rows(rows), uses))?;
        on.free(y)
    }
}

impl State {
    /// Allocates the memory of a batch with this number of rows.
    pub fn new(stream: &Arc<Stream>, sizes: Sizes, rows: usize) -> Result<Self, DeviceError> {
        let block = |words: usize| allocate(stream, words * FLOAT).map(Memory::of);
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

    fn memory(&self) -> impl Iterator<Item = &Memory> {
        [&self.tokens, &self.positions, &self.history, &self.scores].into_iter().chain(&self.caches)
    }

    /// Begins at the first position, with another token in each row.
    pub fn reset(&self, stream: &Arc<Stream>) -> Result<(), DeviceError> {
        for memory in self.memory() {
            // SAFETY: the memory has this number of bytes; all work is on one stream.
            unsafe { memset_d8_async(memory.address, 0, memory.bytes, stream) }?;
        }
        for row in 0..self.rows {
            let token = self.tokens.address + (row * FLOAT) as u64;
            // SAFETY: the lowest byte of the row's token.
            unsafe { memset_d8_async(token, (row % 128) as u8, 1, stream) }?;
        }
        Ok(())
    }

    /// Copies the results to the host, and waits for them.
    pub fn outputs(&self, stream: &Arc<Stream>) -> Result<Outputs, DeviceError> {
        let mut outputs: Outputs =
            self.memory().skip(2).map(|memory| vec![0; memory.bytes]).collect();
        let copied = self.memory().skip(2).zip(&mut outputs).try_for_each(|(memory, to)| {
            // SAFETY: the memory has the bytes of the vector, which lives until the stream was
            // waited for.
            unsafe {
                memcpy_dtoh_async(to.as_mut_ptr(), memory.address, memory.bytes, stream.cu_stream())
            }
        });
        // Also where a copy has failed: others may be under way.
        stream.synchronize()?;
        copied?;
        Ok(outputs)
    }
}

fn kernel(
    function: &Arc<Function>,
    arguments: Vec<Argument>,
    config: LaunchConfig,
    uses: Vec<(Memory, bool)>,
) -> Operation {
    let function = Arc::clone(function);
    Operation { work: Work::Kernel { function, arguments, config }, uses }
}

fn of_rows(rows: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (ROW, 1, 1), shared_mem_bytes: 0 }
}

/// A thread for each element, in the blocks that cudarc has.
fn of_elements(n: usize) -> LaunchConfig {
    let blocks = n.div_ceil(1024) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (1024, 1, 1), shared_mem_bytes: 0 }
}

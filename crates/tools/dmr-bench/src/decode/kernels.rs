//! The kernels of the decode loop: compiled by NVRTC where there is one, otherwise the PTX in the
//! sources.

use std::sync::Arc;

use cudarc::cublas::{CudaBlas, result as cublas, sys as blas};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{self, CompileOptions, Ptx};

use super::Sizes;
use crate::BenchError;

const SOURCE: &str = include_str!("kernels.cu");
const PTX: &str = include_str!("kernels.ptx");

/// Threads of a block in the kernels with one block for each row.
const ROW: u32 = 128;

/// The kernels, and what multiplies matrices.
pub(super) struct Kernels {
    weights: CudaFunction,
    embed: CudaFunction,
    product: Product,
    attend: CudaFunction,
    add_norm: CudaFunction,
    silu: CudaFunction,
    argmax: CudaFunction,
    sizes: Sizes,
    /// `nvrtc`, or `ptx`.
    pub(super) compiled_by: &'static str,
}

enum Product {
    CuBlas(CudaBlas),
    Kernel(CudaFunction),
}

/// A matrix product `y = x * w`, by the addresses of its matrices.
#[derive(Clone, Copy)]
pub(super) struct Matrices {
    pub(super) w: u64,
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) rows: usize,
}

/// The memory of one step of a batch that the next step reads, by its addresses.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) tokens: u64,
    pub(super) positions: u64,
    pub(super) history: u64,
    pub(super) scores: u64,
}

impl Kernels {
    /// Loads the kernels, for work on a stream of this context. cuBLAS multiplies where its library
    /// is found, in `workspace`, with `workspace_bytes` bytes.
    pub(super) fn load(
        stream: &Arc<CudaStream>,
        sizes: Sizes,
        workspace: u64,
        workspace_bytes: usize,
    ) -> Result<Self, BenchError> {
        let context: &Arc<CudaContext> = stream.context();
        // SAFETY: opens the library, and closes it.
        let has_nvrtc = unsafe { nvrtc::sys::is_culib_present() };
        let ptx = match has_nvrtc {
            true => {
                let options = CompileOptions { arch: Some("compute_80"), ..Default::default() };
                nvrtc::compile_ptx_with_opts(SOURCE, options)
                    .map_err(|error| BenchError(format!("{error:?}")))?
            }
            false => Ptx::from_src(PTX),
        };
        let module = context.load_module(ptx).map_err(BenchError::new)?;
        let function =
            |name: &str| module.load_function(&format!("decode_{name}")).map_err(BenchError::new);
        // SAFETY: opens the library, and closes it.
        let product = match unsafe { blas::is_culib_present() } {
            false => Product::Kernel(function("product")?),
            true => {
                let handle = CudaBlas::new(Arc::clone(stream)).map_err(BenchError::new)?;
                // SAFETY: the workspace is the caller's, and each product records its use. With a
                // workspace of its own, cuBLAS allocates nothing in a capture.
                let set = unsafe {
                    blas::cublasSetWorkspace_v2(*handle.handle(), workspace as _, workspace_bytes)
                };
                set.result().map_err(BenchError::new)?;
                Product::CuBlas(handle)
            }
        };
        Ok(Self {
            weights: function("weights")?,
            embed: function("embed")?,
            product,
            attend: function("attend")?,
            add_norm: function("add_norm")?,
            silu: function("silu")?,
            argmax: function("argmax")?,
            sizes,
            compiled_by: if has_nvrtc { "nvrtc" } else { "ptx" },
        })
    }

    /// The name of what multiplies.
    pub(super) fn product_name(&self) -> &'static str {
        match self.product {
            Product::CuBlas(_) => "cublas",
            Product::Kernel(_) => "kernel",
        }
    }

    pub(super) fn weights(
        &self,
        stream: &Arc<CudaStream>,
        x: u64,
        floats: usize,
        seed: u32,
    ) -> Result<(), BenchError> {
        let n = floats as u32;
        let scale = 1.0 / (self.sizes.hidden as f32).sqrt();
        let mut launch = stream.launch_builder(&self.weights);
        launch.arg(&x).arg(&n).arg(&seed).arg(&scale);
        // SAFETY: the caller has recorded memory of this number of floats.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.map(drop).map_err(BenchError::new)
    }

    pub(super) fn embed(
        &self,
        stream: &Arc<CudaStream>,
        table: u64,
        tokens: u64,
        x: u64,
        rows: usize,
    ) -> Result<(), BenchError> {
        let hidden = self.sizes.hidden as u32;
        let mut launch = stream.launch_builder(&self.embed);
        launch.arg(&table).arg(&tokens).arg(&x).arg(&hidden);
        // SAFETY: the caller has recorded the table, a token for each row, and the rows.
        unsafe { launch.launch(of_rows(rows)) }.map(drop).map_err(BenchError::new)
    }

    pub(super) fn multiply(
        &self,
        stream: &Arc<CudaStream>,
        matrices: Matrices,
    ) -> Result<(), BenchError> {
        let Matrices { w, x, y, inputs, outputs, rows } = matrices;
        match &self.product {
            Product::Kernel(kernel) => {
                let [k, n, m] = [inputs as u32, outputs as u32, rows as u32];
                let mut launch = stream.launch_builder(kernel);
                launch.arg(&w).arg(&x).arg(&y).arg(&k).arg(&n).arg(&m);
                // SAFETY: the caller has recorded matrices of these sizes.
                unsafe { launch.launch(LaunchConfig::for_num_elems(n * m)) }
                    .map(drop)
                    .map_err(BenchError::new)
            }
            Product::CuBlas(handle) => {
                let plain = blas::cublasOperation_t::CUBLAS_OP_N;
                let [k, n, m] = [inputs as i32, outputs as i32, rows as i32];
                let one = 1.0;
                let zero = 0.0;
                let w = w as *const f32;
                let x = x as *const f32;
                let y = y as *mut f32;
                let handle = *handle.handle();
                // A matrix in rows is its transpose in columns.
                // SAFETY: the caller has recorded matrices of these sizes, and the workspace. The
                // handle is of this stream, and its scalars are on the host.
                unsafe {
                    cublas::sgemm(handle, plain, plain, n, m, k, &one, w, n, x, k, &zero, y, n)
                }
                .map_err(BenchError::new)
            }
        }
    }

    pub(super) fn attend(
        &self,
        stream: &Arc<CudaStream>,
        qkv: u64,
        positions: u64,
        cache: u64,
        out: u64,
        rows: usize,
    ) -> Result<(), BenchError> {
        let Sizes { hidden, head, context, .. } = self.sizes;
        let config = LaunchConfig {
            grid_dim: ((hidden / head) as u32, rows as u32, 1),
            block_dim: (head as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        let [hidden, context] = [hidden as u32, context as u32];
        let mut launch = stream.launch_builder(&self.attend);
        launch.arg(&qkv).arg(&positions).arg(&cache).arg(&out).arg(&hidden).arg(&context);
        // SAFETY: the caller has recorded these four, with the rows of this number.
        unsafe { launch.launch(config) }.map(drop).map_err(BenchError::new)
    }

    pub(super) fn add_norm(
        &self,
        stream: &Arc<CudaStream>,
        y: u64,
        x: u64,
        rows: usize,
    ) -> Result<(), BenchError> {
        let hidden = self.sizes.hidden as u32;
        let mut launch = stream.launch_builder(&self.add_norm);
        launch.arg(&y).arg(&x).arg(&hidden);
        // SAFETY: the caller has recorded both, with the rows of this number.
        unsafe { launch.launch(of_rows(rows)) }.map(drop).map_err(BenchError::new)
    }

    pub(super) fn silu(
        &self,
        stream: &Arc<CudaStream>,
        x: u64,
        floats: usize,
    ) -> Result<(), BenchError> {
        let n = floats as u32;
        let mut launch = stream.launch_builder(&self.silu);
        launch.arg(&x).arg(&n);
        // SAFETY: the caller has recorded memory of this number of floats.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.map(drop).map_err(BenchError::new)
    }

    pub(super) fn argmax(
        &self,
        stream: &Arc<CudaStream>,
        logits: u64,
        state: Addresses,
        rows: usize,
    ) -> Result<(), BenchError> {
        let Addresses { tokens, positions, history, scores } = state;
        let [vocabulary, context] = [self.sizes.vocabulary as u32, self.sizes.context as u32];
        let mut launch = stream.launch_builder(&self.argmax);
        launch.arg(&logits).arg(&tokens).arg(&positions).arg(&history).arg(&scores);
        launch.arg(&vocabulary).arg(&context);
        // SAFETY: the caller has recorded these five, with the rows of this number.
        unsafe { launch.launch(of_rows(rows)) }.map(drop).map_err(BenchError::new)
    }
}

fn of_rows(rows: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (ROW, 1, 1), shared_mem_bytes: 0 }
}

//! The kernels of the model, as PTX.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, DeviceRepr, DriverError, LaunchConfig};
use cudarc::nvrtc::Ptx;

use crate::model::{COLUMNS, MAX_PAGES};

const PTX: &str = include_str!("kernels.ptx");

/// The number of requests of one launch of `decode`.
pub const BATCH: usize = 4;

/// The addresses and the position of one request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Slot {
    /// The address of its tokens.
    pub tokens: u64,
    /// The addresses of its pages; 0 behind the last.
    pub pages: [u64; MAX_PAGES],
    /// The position of the current token.
    pub position: u32,
    /// The rest of the 80 bytes.
    pub padding: u32,
}

/// The requests of one launch of `decode`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Batch(pub [Slot; BATCH]);

// SAFETY: plain integers in C's layout, without padding.
unsafe impl DeviceRepr for Slot {}
// SAFETY: as above.
unsafe impl DeviceRepr for Batch {}

/// The loaded kernels.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// `prefill(weights, slot, count)`: writes the cache entries of the first `count` tokens of one
    /// request.
    pub prefill: CudaFunction,
    /// `decode(weights, batch)`: one step of each request, a block each.
    pub decode: CudaFunction,
}

impl Kernels {
    /// Loads the kernels.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn load(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let module = context.load_module(Ptx::from_src(PTX))?;
        let [prefill, decode] = ["prefill", "decode"].map(|name| module.load_function(name));
        Ok(Self { prefill: prefill?, decode: decode? })
    }
}

/// Returns the grid of a launch for this number of requests.
#[must_use]
pub fn grid(requests: usize) -> LaunchConfig {
    let grid_dim = (requests as u32, 1, 1);
    let block_dim = (COLUMNS as u32, 1, 1);
    LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }
}

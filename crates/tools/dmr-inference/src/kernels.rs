//! The kernels of the model, as PTX.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, DeviceRepr, DriverError, LaunchConfig};
use cudarc::nvrtc::Ptx;

use crate::model::{COLUMNS, MAX_PAGES};

const PTX: &str = include_str!("kernels.ptx");
const DECODE: &str = include_str!("decode.ptx");

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
    /// `decode_slots(weights, slots)`: as `decode`, with the slots of a batch in memory.
    pub decode_slots: CudaFunction,
}

impl Kernels {
    /// Loads the kernels.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn load(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let argument = ".param .align 8 .b8 batch[320]";
        let decode = decode("decode", argument, "mov.b64 %slot, batch;", "param");
        let address = "ld.param.u64 %slot, [batch];";
        let decode_slots = self::decode("decode_slots", ".param .u64 batch", address, "global");
        let text = format!("{PTX}\n{decode}\n{decode_slots}");
        let module = context.load_module(Ptx::from_src(text))?;
        Ok(Self {
            prefill: module.load_function("prefill")?,
            decode: module.load_function("decode")?,
            decode_slots: module.load_function("decode_slots")?,
        })
    }
}

/// Returns the text of a kernel that decodes the slots at `address`, in this space.
fn decode(name: &str, batch: &str, address: &str, space: &str) -> String {
    let text = DECODE.replace("NAME", name).replace("BATCH", batch);
    text.replace("ADDRESS", address).replace("SPACE", space)
}

impl Batch {
    /// The number of words of a batch.
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();

    /// Returns the words that the device reads.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|slot| {
            let tokens = std::iter::once(slot.tokens);
            tokens.chain(slot.pages).chain(std::iter::once(u64::from(slot.position)))
        })
    }
}

/// Returns the grid of a launch for this number of requests.
#[must_use]
pub fn grid(requests: usize) -> LaunchConfig {
    let grid_dim = (requests as u32, 1, 1);
    let block_dim = (COLUMNS as u32, 1, 1);
    LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }
}

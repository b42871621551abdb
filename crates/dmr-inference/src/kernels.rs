//! The kernels of the model: PTX for a GPU, closures for the simulated driver.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, DeviceRepr, DriverError, LaunchConfig};
use cudarc::nvrtc::Ptx;
use dmr_sim::{Footprint, KernelArgs, KernelMemory, Universe};

use crate::model::{COLUMNS, MAX_PAGES, PAGE_TOKENS, VOCABULARY};

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
    /// `prefill(weights, slot, count)`: writes the cache entries of the first `count` tokens of one request.
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
    let (grid_dim, block_dim) = ((requests as u32, 1, 1), (COLUMNS as u32, 1, 1));
    LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }
}

/// Makes a simulated machine run the kernels.
pub fn simulate(universe: &Universe) {
    universe.register_kernel(
        "prefill",
        |args| {
            let (slot, count) = (slot_at(args, 0), args.u32(2));
            let reads = Footprint::new()
                .reads(args.u64(0), (VOCABULARY * COLUMNS * 4) as u64)
                .reads(slot.tokens, u64::from(count) * 4);
            entries(&slot, count).fold(reads, |all, (ptr, bytes)| all.writes(ptr, bytes))
        },
        |args, memory| {
            let slot = slot_at(args, 0);
            for position in 0..args.u32(2) {
                let token = read(memory, slot.tokens + u64::from(position) * 4, 1)[0];
                let current = row(args.u64(0), token, memory);
                append(memory, &slot, position, &current);
            }
        },
    );
    universe.register_kernel(
        "decode",
        |args| {
            let reads = Footprint::new().reads(args.u64(0), (VOCABULARY * COLUMNS * 4) as u64);
            (0..args.grid()[0] as usize).fold(reads, |all, index| {
                let slot = slot_at(args, index);
                let token = slot.tokens + u64::from(slot.position) * 4;
                let before = entries(&slot, slot.position);
                let all = before.fold(all, |all, (ptr, bytes)| all.reads(ptr, bytes));
                all.reads(token, 4)
                    .writes(token + 4, 4)
                    .writes(entry(&slot, slot.position), (COLUMNS * 4) as u64)
            })
        },
        |args, memory| {
            for index in 0..args.grid()[0] as usize {
                decode(&slot_at(args, index), args.u64(0), memory);
            }
        },
    );
}

fn decode(slot: &Slot, weights: u64, memory: &mut KernelMemory<'_>) {
    let at = slot.tokens + u64::from(slot.position) * 4;
    let token = read(memory, at, 1)[0];
    let current = row(weights, token, memory);
    append(memory, slot, slot.position, &current);
    let mut mixed = [0_u32; COLUMNS];
    for position in 0..=slot.position {
        let cached = read(memory, entry(slot, position), COLUMNS);
        for (mixed, (cached, w)) in mixed.iter_mut().zip(cached.iter().zip(&current)) {
            *mixed = mixed.wrapping_mul(31).wrapping_add(cached ^ w);
        }
    }
    let sum = mixed
        .iter()
        .zip(0_u32..)
        .fold(0_u32, |sum, (mixed, column)| sum.wrapping_add(mixed.wrapping_mul(2 * column + 1)));
    let next = (sum ^ (sum >> 16)) % VOCABULARY as u32;
    memory.write(at + 4, &next.to_le_bytes());
}

/// Returns the slot of a launch: all parameters behind the first are slots, and numbers that follow them.
fn slot_at(args: &KernelArgs, index: usize) -> Slot {
    let bytes = args.bytes(1).chunks_exact(size_of::<Slot>()).nth(index).unwrap_or_default();
    let word = |at: usize| {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk()).copied();
        u32::from_le_bytes(word.unwrap_or_default())
    };
    let address = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let pages = std::array::from_fn(|page| address(8 + 8 * page));
    Slot { tokens: address(0), pages, position: word(8 + 8 * MAX_PAGES), padding: 0 }
}

/// Returns the address of a cache entry.
fn entry(slot: &Slot, position: u32) -> u64 {
    let position = position as usize;
    let offset = position % PAGE_TOKENS * COLUMNS * 4;
    slot.pages.get(position / PAGE_TOKENS).map_or(0, |page| page + offset as u64)
}

/// Returns the addresses and sizes of the first `count` cache entries, page by page.
fn entries(slot: &Slot, count: u32) -> impl Iterator<Item = (u64, u64)> {
    let slot = *slot;
    (0..count).step_by(PAGE_TOKENS).map(move |first| {
        let tokens = (count - first).min(PAGE_TOKENS as u32);
        (entry(&slot, first), u64::from(tokens) * (COLUMNS * 4) as u64)
    })
}

fn row(weights: u64, token: u32, memory: &mut KernelMemory<'_>) -> Vec<u32> {
    read(memory, weights + u64::from(token) * (COLUMNS * 4) as u64, COLUMNS)
}

fn append(memory: &mut KernelMemory<'_>, slot: &Slot, position: u32, row: &[u32]) {
    let bytes = row.iter().flat_map(|w| w.wrapping_mul(position + 1).to_le_bytes());
    memory.write(entry(slot, position), &bytes.collect::<Vec<_>>());
}

fn read(memory: &mut KernelMemory<'_>, at: u64, len: usize) -> Vec<u32> {
    let mut bytes = vec![0; len * 4];
    memory.read(at, &mut bytes);
    let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    words.map(u32::from_le_bytes).collect()
}

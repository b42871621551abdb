//! Gives random images to the simulated driver, and launches their kernels:
//! `cargo run -p dmr-sim --example fuzz_driver -- 1000000`, from number 0 on.
//!
//! Half of the images are fat binaries of the fixtures with bytes changed; the others are programs
//! of a few statements, as text or in a fat binary. The status is 1 if a call or a kernel panicked.
//! Kernels print to the standard output.
#![allow(unsafe_code, reason = "the driver is called directly")]
#![allow(clippy::print_stderr, reason = "a program that prints its result")]

#[path = "../../dmr-ptx/tests/support/programs.rs"]
mod programs;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUjitInputType, CUresult};
use dmr_sim::{Limits, ReportKind, Universe};

const FIXTURES: [&[u8]; 6] = [
    include_bytes!("../../dmr-ptx/tests/fixtures/fatbin_plain.fatbin"),
    include_bytes!("../../dmr-ptx/tests/fixtures/fatbin_lz4.fatbin"),
    include_bytes!("../../dmr-ptx/tests/fixtures/fatbin_zstd.fatbin"),
    include_bytes!("../../dmr-ptx/tests/fixtures/fatbin_concat.fatbin"),
    include_bytes!("../../dmr-ptx/tests/fixtures/fatbin_cubin.fatbin"),
    include_bytes!("../../dmr-ptx/tests/fixtures/fatbin_lto.fatbin"),
];
/// The bytes of memory that kernels get.
const BYTES: usize = 4096;
/// The number of images that one universe loads.
const IMAGES: u32 = 200;

/// A universe of one device, and memory of it.
struct Machine {
    universe: Universe,
    device: i32,
    memory: u64,
    images: u32,
}

impl Machine {
    fn new() -> Result<Self, CUresult> {
        let mut limits = Limits::default();
        limits.instructions = 500;
        let builder = Universe::builder().devices(1).capacity(64 << 20).limits(limits);
        let universe = builder.build().map_err(|_| CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
        let device = universe.ordinal(0) as i32;
        let mut context = null_mut();
        let mut memory = 0;
        // SAFETY: the pointers are valid; the simulated driver checks handles and addresses. So for
        // all calls here.
        unsafe {
            sys::cuInit(0).result().map_err(|error| error.0)?;
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
                .result()
                .map_err(|error| error.0)?;
            sys::cuCtxSetCurrent(context).result().map_err(|error| error.0)?;
            sys::cuMemAlloc_v2(&mut memory, BYTES).result().map_err(|error| error.0)?;
            sys::cuMemsetD8_v2(memory, 0, BYTES).result().map_err(|error| error.0)?;
        }
        Ok(Self { universe, device, memory, images: 0 })
    }

    /// Returns whether the interpreter has panicked in a kernel.
    fn has_panicked(&self) -> bool {
        let verdict = self.universe.finish();
        verdict.reports.iter().any(|report| report.kind == ReportKind::KernelPanicked)
    }

    /// Links an image, loads the result, and launches its kernels. Returns the number of those that
    /// ran.
    fn run(
        &self,
        kind: CUjitInputType,
        image: &[u8],
        random: &mut fastrand::Rng,
    ) -> Result<u64, CUresult> {
        let mut linker = null_mut();
        let mut linked = null_mut();
        let mut bytes = 0;
        // SAFETY: as above; the image is as long as the call says.
        unsafe {
            check(sys::cuLinkCreate_v2(0, null_mut(), null_mut(), &mut linker))?;
            let data = image.as_ptr().cast_mut().cast();
            let none = null_mut();
            let nothing = null_mut();
            let added = sys::cuLinkAddData_v2(
                linker,
                kind,
                data,
                image.len(),
                c"".as_ptr(),
                0,
                none,
                nothing,
            );
            let completed = check(added)
                .and_then(|()| check(sys::cuLinkComplete(linker, &mut linked, &mut bytes)));
            let mut module = null_mut();
            let loaded = completed.and_then(|()| check(sys::cuModuleLoadData(&mut module, linked)));
            check(sys::cuLinkDestroy(linker))?;
            loaded?;
            let ran = self.launch(module, random);
            let unloaded = check(sys::cuModuleUnload(module));
            let ran = ran?;
            unloaded.map(|()| ran)
        }
    }

    /// # Safety
    ///
    /// None: the simulated driver checks handles.
    unsafe fn launch(
        &self,
        module: sys::CUmodule,
        random: &mut fastrand::Rng,
    ) -> Result<u64, CUresult> {
        let mut count = 0;
        let mut functions = [null_mut(); 8];
        let mut ran = 0;
        // SAFETY: as above; no kernel has more than these parameters, or its launch returns an
        // error.
        unsafe {
            check(sys::cuModuleGetFunctionCount(&mut count, module))?;
            let count = count.min(8);
            check(sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module))?;
            for &function in &functions[..count as usize] {
                let mut offset = 0;
                let mut size = 0;
                let mut total = 0;
                for index in 0.. {
                    if sys::cuFuncGetParamInfo(function, index, &mut offset, &mut size)
                        != CUresult::CUDA_SUCCESS
                    {
                        break;
                    }
                    total = offset + size;
                }
                let mut params: Vec<u8> =
                    std::iter::repeat_with(|| random.u8(..)).take(total.max(8)).collect();
                params[..8].copy_from_slice(&self.memory.to_le_bytes());
                let mut extra: [*mut c_void; 5] = [
                    std::ptr::without_provenance_mut(1),
                    params.as_mut_ptr().cast(),
                    std::ptr::without_provenance_mut(2),
                    (&raw mut total).cast(),
                    null_mut(),
                ];
                let blocks = random.u32(1..3);
                let threads = random.u32(1..40);
                let code = sys::cuLaunchKernel(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    null_mut(),
                    null_mut(),
                    extra.as_mut_ptr(),
                );
                ran += u64::from(code == CUresult::CUDA_SUCCESS);
                check(code).or_else(|code| {
                    if code == CUresult::CUDA_ERROR_NOT_SUPPORTED { Ok(()) } else { Err(code) }
                })?;
            }
            check(sys::cuCtxSynchronize())?;
        }
        Ok(ran)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

fn check(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

/// Returns the image of this number and its kind.
fn image(
    pool: &programs::Pool,
    number: u64,
    random: &mut fastrand::Rng,
) -> (CUjitInputType, Vec<u8>) {
    let fat = CUjitInputType::CU_JIT_INPUT_FATBINARY;
    let mut image = match random.u8(..4) {
        0 | 1 => random.choice(FIXTURES).unwrap_or_default().to_vec(),
        2 => container(pool.program(number).as_bytes()),
        _ => return (CUjitInputType::CU_JIT_INPUT_PTX, pool.program(number).into_bytes()),
    };
    for _ in 0..random.usize(..4) {
        // Half of the changes are in headers.
        let end = if random.bool() { 160.min(image.len()) } else { image.len() };
        let at = random.usize(..end);
        match random.u8(..5) {
            0 => image[at] ^= 1 << random.u8(..8),
            1 => image[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF]).unwrap_or(0),
            2 => image[at] = random.u8(..),
            3 => image.truncate(at.max(1)),
            _ => {
                let copy = image[at..(at + random.usize(..64)).min(image.len())].to_vec();
                image.splice(at..at, copy);
            }
        }
    }
    (fat, image)
}

/// Returns a fat binary with this text.
fn container(text: &[u8]) -> Vec<u8> {
    let stored = text.len().next_multiple_of(8) + 8;
    let mut image = Vec::new();
    image.extend_from_slice(&0xBA55_ED50_u32.to_le_bytes());
    image.extend_from_slice(&[1, 0, 16, 0]);
    image.extend_from_slice(&(64 + stored as u64).to_le_bytes());
    let mut entry = [0; 64];
    entry[..8].copy_from_slice(&[1, 0, 1, 1, 64, 0, 0, 0]);
    entry[8..16].copy_from_slice(&(stored as u64).to_le_bytes());
    entry[28..32].copy_from_slice(&80_u32.to_le_bytes());
    image.extend_from_slice(&entry);
    image.extend_from_slice(text);
    image.resize(16 + 64 + stored, 0);
    image
}

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1).map(|word| word.parse().unwrap_or(0));
    let count = words.next().unwrap_or(100_000);
    let first = words.next().unwrap_or(0);
    let pool = programs::Pool::new();
    let mut machine = None;
    let start = Instant::now();
    let mut loaded = 0u64;
    let mut ran = 0;
    let mut panics = 0u64;
    let mut slowest = (Duration::ZERO, 0);
    for number in first..first + count {
        let begun = Instant::now();
        let mut random = fastrand::Rng::with_seed(number);
        let (kind, image) = image(&pool, number, &mut random);
        let made = match machine.take() {
            Some(machine) => Ok(machine),
            None => Machine::new(),
        };
        let mut current = match made {
            Ok(machine) => machine,
            Err(code) => {
                eprintln!("no universe: {code:?}");
                return 2.into();
            }
        };
        current.images += 1;
        let result = current.run(kind, &image, &mut random);
        match result {
            Ok(kernels) => {
                loaded += 1;
                ran += kernels;
            }
            Err(CUresult::CUDA_ERROR_UNKNOWN) => {
                panics += 1;
                eprintln!("input {number} panics");
            }
            Err(_) => {}
        }
        // A device with a sticky error is gone.
        // SAFETY: as above.
        let is_lost = unsafe { sys::cuCtxSynchronize() } != CUresult::CUDA_SUCCESS;
        if !is_lost && current.images < IMAGES {
            machine = Some(current);
        } else if current.has_panicked() {
            panics += 1;
            eprintln!("one of the {} inputs up to {number} panics in a kernel", current.images);
        }
        if begun.elapsed() > slowest.0 {
            slowest = (begun.elapsed(), number);
        }
        if (number - first + 1).is_multiple_of((count / 10).max(1)) {
            eprintln!("{} images, {}", number - first + 1, peak_memory());
        }
    }
    if machine.is_some_and(|last| last.has_panicked()) {
        panics += 1;
        eprintln!("one of the last inputs panics in a kernel");
    }
    eprintln!(
        "{count} images from {first}, {loaded} ended without an error, {ran} launches in these, {panics} panics, {:?}; the \
         slowest, {}, took {:?}; {}",
        start.elapsed(),
        slowest.1,
        slowest.0,
        peak_memory(),
    );
    u8::from(panics > 0).into()
}

/// Returns the most memory that the process has had, as Linux says.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown").to_owned()
}

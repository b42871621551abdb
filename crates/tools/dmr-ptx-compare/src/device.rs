//! Runs launches through the driver, simulated or not.

#![allow(unsafe_code, reason = "launches kernels")]

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUjit_option, CUmodule};
use cudarc::driver::{CudaContext, DriverError, result};
use dmr_sim::{Driver, InstallError, SelectError, Universe};

use crate::launch::{Argument, Launch};
use crate::plan;
use crate::results::Record;

/// The error of a run as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No driver can be used.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The simulator has not started.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The driver refused a device or a module.
    #[error("the driver refused: {0}")]
    Driver(#[from] DriverError),
    /// A kernel failed on a GPU, which ends the context.
    #[error("kernel {kernel}, {variant}: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The kernel.
        kernel: String,
        /// The launch.
        variant: &'static str,
        /// The driver's message.
        reason: String,
    },
}

/// The kernels of a module, and its image.
#[derive(Clone, Debug)]
pub struct Image {
    /// The names of the kernels.
    pub kernels: Vec<String>,
    /// PTX text with a zero at the end, or a cubin.
    pub bytes: Vec<u8>,
    /// The level at which the driver's compiler optimises PTX, from 0 to 4; its default without
    /// one.
    pub jit_level: Option<u32>,
}

/// Returns the context of the GPU, if there is one: while it is held, runs do not make it again.
///
/// # Errors
///
/// No driver, no device.
pub fn hold() -> Result<Option<Arc<CudaContext>>, RunError> {
    match dmr_sim::select()? {
        Driver::Cuda => Ok(Some(CudaContext::new(0)?)),
        _ => Ok(None),
    }
}

/// Runs every launch of every kernel of `image` for which a family is known. A kernel without one
/// has a record that says so.
///
/// # Errors
///
/// No driver, no device, a module that the driver refuses; a kernel that fails on a GPU.
pub fn run(image: &Image, seed: u64) -> Result<Vec<Record>, RunError> {
    let mut machine = Machine::start(image)?;
    let mut records = Vec::new();
    for kernel in &image.kernels {
        let Some(launches) = plan::launches(kernel, seed) else {
            records.push(Record {
                kernel: kernel.clone(),
                variant: "none".into(),
                outcome: Err("no family has this name".into()),
            });
            continue;
        };
        for launch in launches {
            let outcome = machine.launch(kernel, &launch);
            if let Err(reason) = &outcome {
                if machine.universe.is_none() {
                    let kernel = kernel.clone();
                    let variant = launch.variant;
                    return Err(RunError::Lost { kernel, variant, reason: reason.clone() });
                }
                machine = Machine::start(image)?;
            }
            let variant = launch.variant.into();
            records.push(Record { kernel: kernel.clone(), variant, outcome });
        }
    }
    Ok(records)
}

/// A device with the module loaded.
#[derive(Debug)]
struct Machine {
    module: CUmodule,
    // The context has to outlive the module, and the universe the context.
    context: Arc<CudaContext>,
    universe: Option<Universe>,
}

impl Machine {
    fn start(image: &Image) -> Result<Self, RunError> {
        let universe = match dmr_sim::select()? {
            Driver::Cuda => None,
            _ => Some(Universe::new()?),
        };
        let context =
            CudaContext::new(universe.as_ref().map_or(0, |universe| universe.ordinal(0)))?;
        // SAFETY: the image ends with a zero if it is text; a cubin has its size in its header.
        let module = unsafe { load(image)? };
        Ok(Self { module, context, universe })
    }

    /// Runs one launch, and returns the bytes of its outputs.
    fn launch(&self, kernel: &str, launch: &Launch) -> Result<Vec<Vec<u8>>, String> {
        let before = self.reports();
        // The context of another machine may be current.
        self.context.bind_to_thread().map_err(|error| error.to_string())?;
        let outputs = self.submit(kernel, launch).map_err(|error| error.to_string());
        let found = self.universe.iter().flat_map(Universe::reports).skip(before);
        let found: Vec<_> = found.map(|report| report.to_string()).collect();
        if found.is_empty() { outputs } else { Err(found.join("\n")) }
    }

    fn reports(&self) -> usize {
        self.universe.as_ref().map_or(0, |universe| universe.reports().len())
    }

    fn submit(&self, kernel: &str, launch: &Launch) -> Result<Vec<Vec<u8>>, DriverError> {
        let mut memory = Vec::new();
        let mut values: Vec<u64> = Vec::new();
        for argument in &launch.arguments {
            values.push(match argument {
                Argument::Value(bytes) => {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u64::from_le_bytes(word)
                }
                Argument::Null => 0,
                Argument::Input(bytes) => upload(&mut memory, bytes)?,
                Argument::Output(output) => upload(&mut memory, &output.bytes)?,
            });
        }
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let name = CString::new(kernel).unwrap_or_default();
        let grid = (launch.grid[0], launch.grid[1], launch.grid[2]);
        let block = (launch.block[0], launch.block[1], launch.block[2]);
        // SAFETY: the module is loaded, and each argument is a word as large as the largest
        // parameter.
        unsafe {
            let function = result::module::get_function(self.module, name)?;
            let stream = std::ptr::null_mut();
            result::launch_kernel(function, grid, block, launch.shared, stream, &mut pointers)?;
        }
        self.context.synchronize()?;
        let mut outputs = Vec::new();
        for (address, argument) in values.iter().zip(&launch.arguments) {
            if let Argument::Output(output) = argument {
                let mut bytes = vec![0_u8; output.bytes.len()];
                // SAFETY: the memory has as many bytes.
                unsafe { result::memcpy_dtoh_sync(&mut bytes, *address)? };
                outputs.push(bytes);
            }
        }
        for address in memory {
            // SAFETY: allocated above; the device is idle.
            unsafe { result::free_sync(address)? };
        }
        Ok(outputs)
    }
}

/// Loads an image.
///
/// # Safety
///
/// The image ends with a zero if it is text; a cubin has its size in its header.
unsafe fn load(image: &Image) -> Result<CUmodule, DriverError> {
    let mut names = [CUjit_option::CU_JIT_OPTIMIZATION_LEVEL];
    let mut values = [image.jit_level.unwrap_or_default() as usize as *mut c_void];
    let count = u32::from(image.jit_level.is_some());
    let mut module = std::ptr::null_mut();
    let bytes = image.bytes.as_ptr().cast();
    let names = names.as_mut_ptr();
    let values = values.as_mut_ptr();
    // SAFETY: by this function's contract; there are `count` options, and the module's place is a
    // live local.
    unsafe { sys::cuModuleLoadDataEx(&raw mut module, bytes, count, names, values) }.result()?;
    Ok(module)
}

/// Allocates device memory with these bytes, adds it to `memory`, and returns its address.
fn upload(memory: &mut Vec<CUdeviceptr>, bytes: &[u8]) -> Result<CUdeviceptr, DriverError> {
    // SAFETY: the block has as many bytes as are copied.
    unsafe {
        let address = result::malloc_sync(bytes.len())?;
        memory.push(address);
        result::memcpy_htod_sync(address, bytes)?;
        Ok(address)
    }
}

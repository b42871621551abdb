//! One operation of a step, as an operation of cuda-async.

use std::sync::Arc;

use cuda_async::device_operation::{DeviceOp, ExecutionContext, GraphNode};
use cuda_async::error::DeviceError;
use cuda_async::launch::AsyncKernelLaunchBuilder;
use cuda_core::{Function, LaunchConfig, RawDeviceBuffer};

use crate::blas::{Blas, Matrices};

/// Memory of a step.
#[derive(Clone)]
pub struct Memory {
    pub address: u64,
    pub bytes: usize,
    /// `None` for memory of a graph's node.
    pub storage: Option<RawDeviceBuffer>,
}

impl Memory {
    /// The memory of a buffer.
    pub fn of(storage: RawDeviceBuffer) -> Self {
        let address = storage.cu_deviceptr();
        let bytes = storage.len_bytes();
        Self { address, bytes, storage: Some(storage) }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum Argument {
    Address(u64),
    Word(u32),
    Float(f32),
}

/// The work of an operation.
#[derive(Clone)]
pub enum Work {
    Kernel { function: Arc<Function>, arguments: Vec<Argument>, config: LaunchConfig },
    Product { blas: Arc<Blas>, matrices: Matrices },
}

/// A kernel or a matrix product, with the memory that it uses. cuda-async leases that memory at
/// each execution.
#[derive(Clone)]
pub struct Operation {
    pub work: Work,
    /// Memory, and whether it is written.
    pub uses: Vec<(Memory, bool)>,
}

/// Makes an operation that is never awaited into a future, which [`DeviceOp`] requires.
macro_rules! no_future {
    ($operation:ty) => {
        impl std::future::IntoFuture for $operation {
            type Output = Result<(), cuda_async::error::DeviceError>;
            type IntoFuture = std::future::Ready<Self::Output>;

            fn into_future(self) -> Self::IntoFuture {
                let message = "not an operation to await".to_owned();
                std::future::ready(Err(cuda_async::error::DeviceError::Internal(message)))
            }
        }
    };
}
pub(crate) use no_future;

no_future!(Operation);

impl DeviceOp for Operation {
    type Output = ();

    unsafe fn execute(self, context: &ExecutionContext) -> Result<(), DeviceError> {
        let storages = self
            .uses
            .into_iter()
            .filter_map(|(memory, is_written)| memory.storage.map(|storage| (storage, is_written)));
        match self.work {
            Work::Kernel { function, arguments, config } => {
                let mut launch = AsyncKernelLaunchBuilder::new(function);
                for (storage, is_written) in storages {
                    launch.retain_buffer(storage, is_written);
                }
                for argument in arguments {
                    match argument {
                        Argument::Address(address) => launch.push_arg(address),
                        Argument::Word(word) => launch.push_arg(word),
                        Argument::Float(float) => launch.push_arg(float),
                    };
                }
                // SAFETY: the model has the parameters of its kernels, which stay inside this
                // memory.
                unsafe { launch.finalize_unchecked(config).execute(context) }
            }
            Work::Product { blas, matrices } => {
                context.context().bind_to_thread()?;
                for (storage, is_written) in storages {
                    context.retain_buffer(storage, is_written)?;
                }
                // SAFETY: the model has the sizes of its matrices; all work is on one stream.
                unsafe { blas.multiply(matrices) }
            }
        }
    }
}

/// An operation allocates nothing.
impl GraphNode for Operation {}

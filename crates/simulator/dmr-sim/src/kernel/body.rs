//! A kernel as a closure: its declared footprint, and its body.

use std::sync::Arc;

use crate::kernel::{Footprint, KernelArgs, KernelMemory};

type Declare = dyn Fn(&KernelArgs) -> Footprint + Send + Sync;
type Body = dyn Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync;

/// The body of all kernels without one of their own.
pub(crate) type Fallback = Arc<dyn Fn(&str, &KernelArgs, &mut KernelMemory<'_>) + Send + Sync>;

/// A registered kernel.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) footprint: Arc<Declare>,
    pub(crate) body: Arc<Body>,
}

impl Kernel {
    /// Makes the kernel `name`, which runs the fallback and records its footprint.
    pub(crate) fn of_fallback(fallback: &Fallback, name: &str) -> Self {
        let fallback = fallback.clone();
        let name = name.to_owned();
        let body = move |args: &KernelArgs, memory: &mut KernelMemory<'_>| {
            fallback(&name, args, memory);
        };
        Self { footprint: Arc::new(|_| Footprint::recorded()), body: Arc::new(body) }
    }
}

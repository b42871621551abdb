//! A loaded module: its kernels, and its variables in device memory.

use std::ffi::CString;
use std::sync::Arc;

use crate::kernel::interpreter::Loaded;

/// A module that a program has loaded.
pub(crate) struct Module {
    pub(crate) loaded: Arc<Loaded>,
    /// The names of the kernels, for programs that ask for them.
    pub(crate) names: Vec<CString>,
    pub(crate) variables: Vec<Placed>,
}

impl Module {
    /// Returns the kernels.
    pub(crate) fn kernels(&self) -> &[dmr_ptx::Kernel] {
        self.loaded.program.kernels()
    }
}

/// A variable of a module, in device memory.
pub(crate) struct Placed {
    pub(crate) name: String,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

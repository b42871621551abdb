//! A loaded module: its kernels, and its variables in device memory.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use crate::kernel::{Fallback, Kernel, Loaded};

/// The kernels of a machine: those that tests have registered, and those of modules.
#[derive(Default)]
pub(crate) struct Kernels {
    pub(crate) registered: HashMap<String, Kernel>,
    /// The body of kernels that are not registered.
    pub(crate) fallback: Option<Fallback>,
    pub(crate) modules: HashMap<u32, Module>,
    pub(crate) next_module: u32,
    /// Functions that programs have looked up: module, and index in it.
    pub(crate) functions: Vec<(u32, usize)>,
}

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

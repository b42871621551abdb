//! Calls of the simulated driver's functions by name, for functions whose bindings depend on the
//! version of CUDA.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;

use super::gpu;

/// A handle of the driver.
pub(crate) type Handle = u64;

/// Returns the address of a function of the simulated driver.
pub(crate) fn address(name: &str) -> *const () {
    let mut functions = dmr_sim::driver_functions().into_iter();
    let found = functions.find(|(known, _)| *known == name).unwrap();
    std::ptr::with_exposed_provenance(found.1)
}

/// Calls a function of the simulated driver, which checks its arguments.
macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> i32;
        // SAFETY: the function has this type; the simulator checks handles, and pointers are to
        // live locals.
        unsafe { std::mem::transmute::<*const (), Function>($crate::support::named::address(stringify!($name)))($($argument),*) }
    }};
}
#[allow(unused_imports, reason = "each test file uses a part of this module")]
pub(crate) use call;

/// Makes an empty graph.
pub(crate) fn new_graph() -> Handle {
    let mut graph = 0;
    assert_eq!(call!(cuGraphCreate(&mut graph => *mut Handle, 0 => u32)), 0);
    graph
}

/// Makes an executable graph.
pub(crate) fn instantiate(graph: Handle) -> Handle {
    /// `CUDA_GRAPH_INSTANTIATE_PARAMS`
    #[repr(C)]
    struct Params {
        flags: u64,
        stream: Handle,
        node: Handle,
        result: i32,
    }
    let mut params = Params { flags: 0, stream: 0, node: 9, result: 9 };
    let mut executable = 0;
    let code = call!(cuGraphInstantiateWithParams(
        &mut executable => *mut Handle, graph => Handle, &mut params => *mut Params
    ));
    assert_eq!((code, params.result, params.node), (0, 0, 0));
    executable
}

/// Launches an executable graph, and waits for it.
pub(crate) fn run(executable: Handle) {
    assert_eq!(call!(cuGraphLaunch(executable => Handle, null_mut() => *mut c_void)), 0);
    gpu::sync_context().unwrap();
}

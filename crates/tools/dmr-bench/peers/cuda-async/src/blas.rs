//! The functions of cuBLAS that a matrix product needs, from the library that the loader finds.

use std::ffi::{c_int, c_void};

use cuda_async::error::DeviceError;
use cuda_core::Stream;
use libloading::Library;

/// A matrix product `y = x * w`, by the addresses of its matrices.
#[derive(Clone, Copy)]
pub struct Matrices {
    pub w: u64,
    pub x: u64,
    pub y: u64,
    pub inputs: usize,
    pub outputs: usize,
    pub rows: usize,
}

type Handle = *mut c_void;
type Sgemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    u64,
    c_int,
    u64,
    c_int,
    *const f32,
    u64,
    c_int,
) -> c_int;

/// A handle of cuBLAS for one stream. It is kept until the process ends.
pub struct Blas {
    handle: Handle,
    sgemm: Sgemm,
}

// SAFETY: the program has one thread, and cuBLAS allows its handle to be used from another.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

const NAMES: [&str; 4] = ["libcublas.so", "libcublas.so.13", "libcublas.so.12", "libcublas.so.11"];

impl Blas {
    /// Opens cuBLAS for work on `stream` in this workspace. `None` where there is no such library.
    pub fn open(
        stream: &Stream,
        workspace: u64,
        workspace_bytes: usize,
    ) -> Result<Option<Self>, DeviceError> {
        // SAFETY: cuBLAS's initialisation has no conditions.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let Some(library) = library else { return Ok(None) };
        let library: &'static Library = Box::leak(Box::new(library));
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the types are those of cublas_v2.h, and the workspace is the caller's for as long
        // as the handle.
        unsafe {
            let create =
                symbol::<unsafe extern "C" fn(*mut Handle) -> c_int>(library, "cublasCreate_v2")?;
            let set_stream = symbol::<unsafe extern "C" fn(Handle, *mut c_void) -> c_int>(
                library,
                "cublasSetStream_v2",
            )?;
            let set_workspace = symbol::<unsafe extern "C" fn(Handle, u64, usize) -> c_int>(
                library,
                "cublasSetWorkspace_v2",
            )?;
            check("cublasCreate", create(&raw mut handle))?;
            check("cublasSetStream", set_stream(handle, stream.cu_stream().cast()))?;
            // Setting the stream takes the workspace away.
            check("cublasSetWorkspace", set_workspace(handle, workspace, workspace_bytes))?;
            Ok(Some(Self { handle, sgemm: symbol::<Sgemm>(library, "cublasSgemm_v2")? }))
        }
    }

    /// Enqueues the product on the stream.
    ///
    /// # Safety
    ///
    /// The matrices have these sizes, and nothing else uses them or the workspace at the same time.
    pub unsafe fn multiply(&self, matrices: Matrices) -> Result<(), DeviceError> {
        let Matrices { w, x, y, inputs, outputs, rows } = matrices;
        let [k, n, m] = [inputs as c_int, outputs as c_int, rows as c_int];
        let one = 1.0;
        let zero = 0.0;
        // A matrix in rows is its transpose in columns.
        // SAFETY: the caller's conditions; the scalars are on the host, and are read in the call.
        let status = unsafe {
            (self.sgemm)(
                self.handle,
                0,
                0,
                n,
                m,
                k,
                &raw const one,
                w,
                n,
                x,
                k,
                &raw const zero,
                y,
                n,
            )
        };
        check("cublasSgemm", status)
    }
}

/// Returns the function of this name.
///
/// # Safety
///
/// It has the type `T`.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &str) -> Result<T, DeviceError> {
    // SAFETY: the caller's condition.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|error| DeviceError::Internal(error.to_string()))
}

fn check(name: &str, status: c_int) -> Result<(), DeviceError> {
    match status {
        0 => Ok(()),
        status => Err(DeviceError::Internal(format!("{name} has failed with status {status}"))),
    }
}

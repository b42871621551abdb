//! Operations on vectors, and products of a matrix and a vector.

use std::ffi::{c_int, c_void};

use crate::gemm::{size, transposed};
use crate::handle::{Handle, with};
use crate::kernels::{Operand, ProductArguments, Scalar, Strided, VectorArguments};
use crate::status::{Status, require};

/// A vector argument of elements that each have `bytes` bytes.
#[derive(Clone, Copy)]
struct Vector {
    address: u64,
    increment: c_int,
    bytes: i64,
}

impl Vector {
    /// Returns the vector from its first of `n` elements on: with a negative increment the one at
    /// the highest address.
    fn strided(self, n: u64) -> Strided {
        let step = i64::from(self.increment) * self.bytes;
        let before = (n as i64 - 1).wrapping_mul(step.min(0));
        Strided { address: self.address.wrapping_sub(before as u64), step }
    }

    /// Returns the vector as a matrix of one column.
    fn column(self, n: u64) -> Operand {
        let Strided { address, step } = self.strided(n);
        Operand { address, row: step, column: 0, batch: 0 }
    }
}

/// Launches a kernel with a thread for each element.
fn each(
    handle: &Handle,
    name: &str,
    n: c_int,
    alpha: Scalar,
    x: Vector,
    y: Vector,
) -> Result<(), Status> {
    let Ok(n @ 1..) = u64::try_from(n) else {
        return Ok(());
    };
    let arguments = VectorArguments { threads: n, n, x: x.strided(n), y: y.strided(n), alpha };
    // SAFETY: the arguments are those of the kernel.
    unsafe { handle.launch(name, n, arguments) }
}

/// Launches a kernel of one thread, which computes one value. A vector that is not traversed
/// forwards is empty.
///
/// # Safety
///
/// The result has a place of this many bytes where the handle's mode says.
unsafe fn reduce(
    handle: &Handle,
    name: &str,
    n: c_int,
    x: Vector,
    result: *mut c_void,
    bytes: usize,
) -> Result<(), Status> {
    let n = if x.increment > 0 { n.max(0) as u64 } else { 0 };
    let launch = |address| {
        let x = x.strided(n);
        let y = Strided { address, step: 0 };
        let arguments = VectorArguments { threads: 1, n, x, y, alpha: Scalar::default() };
        // SAFETY: the arguments are those of the kernel.
        unsafe { handle.launch(name, 1, arguments) }
    };
    // SAFETY: the caller's promise.
    unsafe { handle.with_result(result, bytes, launch) }
}

/// A product that the kernel for products of matrices computes; its other fields are those of a
/// call.
struct MatrixVector {
    operation: c_int,
    sizes: [c_int; 2],
    alpha: *const c_void,
    a: u64,
    lda: c_int,
    x: Vector,
    beta: *const c_void,
    y: Vector,
}

/// Launches a product of a matrix and a vector.
///
/// # Safety
///
/// The scalars are where the handle's mode says.
unsafe fn gemv(handle: &Handle, kernel: &str, call: &MatrixVector) -> Result<(), Status> {
    let [m, n] = [size(call.sizes[0])?, size(call.sizes[1])?];
    let transposed = transposed(call.operation)?;
    require(
        i64::from(call.lda) >= m.max(1) as i64 && call.x.increment != 0 && call.y.increment != 0,
    )?;
    // SAFETY: the caller's promise.
    let alpha = unsafe { handle.scalar(call.alpha, call.x.bytes) }?;
    // SAFETY: the caller's promise.
    let beta = unsafe { handle.scalar(call.beta, call.x.bytes) }?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let bytes = call.x.bytes;
    let leading = i64::from(call.lda) * call.x.bytes;
    let (rows, k) = if transposed { (n, m) } else { (m, n) };
    let (row, column) = if transposed { (leading, bytes) } else { (bytes, leading) };
    let a = Operand { address: call.a, row, column, batch: 0 };
    let [b, c] = [call.x.column(k), call.y.column(rows)];
    let arguments =
        ProductArguments { threads: rows, m: rows, n: 1, k, a, b, c, alpha, beta, indirect: 0 };
    // SAFETY: the arguments are those of a product.
    unsafe { handle.launch(kernel, rows, arguments) }
}

/// Launches a scalar product: the product of a row and a column.
///
/// # Safety
///
/// The result has a place where the handle's mode says.
unsafe fn dot(
    handle: &Handle,
    kernel: &str,
    n: c_int,
    vectors: [Vector; 2],
    one: u64,
    result: *mut c_void,
) -> Result<(), Status> {
    let k = n.max(0) as u64;
    let launch = |address| {
        let [x, b] = vectors.map(|vector| vector.column(k));
        let a = Operand { column: x.row, row: 0, ..x };
        let c = Operand { address, ..Operand::default() };
        let alpha = Scalar { bits: one, address: 0 };
        let beta = Scalar::default();
        let arguments =
            ProductArguments { threads: 1, m: 1, n: 1, k, a, b, c, alpha, beta, indirect: 0 };
        // SAFETY: the arguments are those of a product.
        unsafe { handle.launch(kernel, 1, arguments) }
    };
    // SAFETY: the caller's promise.
    unsafe { handle.with_result(result, vectors[0].bytes as usize, launch) }
}

macro_rules! typed {
    (
        $bytes:literal $one:expr;
        $axpy:ident $axpy_kernel:literal $scal:ident $scal_kernel:literal
        $copy:ident $copy_kernel:literal $swap:ident $swap_kernel:literal
        $dot:ident $dot_kernel:literal $gemv:ident $gemv_kernel:literal
        $($reduce:ident $reduce_kernel:literal $result:literal)*
    ) => {
        #[unsafe(no_mangle)]
        extern "C" fn $axpy(
            handle: Option<&Handle>, n: c_int, alpha: *const c_void, x: u64, incx: c_int, y: u64, incy: c_int,
        ) -> c_int {
            with(handle, |handle| {
                // SAFETY: the caller's promise, as documented by cuBLAS.
                let alpha = unsafe { handle.scalar(alpha, $bytes) }?;
                each(handle, $axpy_kernel, n, alpha, vector(x, incx, $bytes), vector(y, incy, $bytes))
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn $scal(handle: Option<&Handle>, n: c_int, alpha: *const c_void, x: u64, incx: c_int) -> c_int {
            with(handle, |handle| {
                // SAFETY: the caller's promise, as documented by cuBLAS.
                let alpha = unsafe { handle.scalar(alpha, $bytes) }?;
                let n = if incx > 0 { n } else { 0 };
                let x = vector(x, incx, $bytes);
                each(handle, $scal_kernel, n, alpha, x, x)
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn $copy(handle: Option<&Handle>, n: c_int, x: u64, incx: c_int, y: u64, incy: c_int) -> c_int {
            let x = vector(x, incx, $bytes);
            let y = vector(y, incy, $bytes);
            with(handle, |handle| each(handle, $copy_kernel, n, Scalar::default(), x, y))
        }

        #[unsafe(no_mangle)]
        extern "C" fn $swap(handle: Option<&Handle>, n: c_int, x: u64, incx: c_int, y: u64, incy: c_int) -> c_int {
            let x = vector(x, incx, $bytes);
            let y = vector(y, incy, $bytes);
            with(handle, |handle| each(handle, $swap_kernel, n, Scalar::default(), x, y))
        }

        #[unsafe(no_mangle)]
        extern "C" fn $dot(
            handle: Option<&Handle>, n: c_int, x: u64, incx: c_int, y: u64, incy: c_int, result: *mut c_void,
        ) -> c_int {
            let vectors = [vector(x, incx, $bytes), vector(y, incy, $bytes)];
            // SAFETY: the caller's promise, as documented by cuBLAS.
            with(handle, |handle| unsafe { dot(handle, $dot_kernel, n, vectors, $one, result) })
        }

        #[unsafe(no_mangle)]
        extern "C" fn $gemv(
            handle: Option<&Handle>, operation: c_int, m: c_int, n: c_int, alpha: *const c_void, a: u64, lda: c_int,
            x: u64, incx: c_int, beta: *const c_void, y: u64, incy: c_int,
        ) -> c_int {
            let x = vector(x, incx, $bytes);
            let y = vector(y, incy, $bytes);
            let call = MatrixVector { operation, sizes: [m, n], alpha, a, lda, x, beta, y };
            // SAFETY: the caller's promise, as documented by cuBLAS.
            with(handle, |handle| unsafe { gemv(handle, $gemv_kernel, &call) })
        }

        $(
            #[unsafe(no_mangle)]
            extern "C" fn $reduce(
                handle: Option<&Handle>, n: c_int, x: u64, incx: c_int, result: *mut c_void,
            ) -> c_int {
                let x = vector(x, incx, $bytes);
                // SAFETY: the caller's promise, as documented by cuBLAS.
                with(handle, |handle| unsafe { reduce(handle, $reduce_kernel, n, x, result, $result) })
            }
        )*
    };
}

fn vector(address: u64, increment: c_int, bytes: i64) -> Vector {
    Vector { address, increment, bytes }
}

typed! {
    4 u64::from(1_f32.to_bits());
    cublasSaxpy_v2 "cublas_axpy_f32" cublasSscal_v2 "cublas_scal_f32"
    cublasScopy_v2 "cublas_copy_f32" cublasSswap_v2 "cublas_swap_f32"
    cublasSdot_v2 "cublas_dot_f32" cublasSgemv_v2 "cublas_gemv_f32"
    cublasSasum_v2 "cublas_asum_f32" 4 cublasSnrm2_v2 "cublas_nrm2_f32" 4
    cublasIsamax_v2 "cublas_iamax_f32" 4 cublasIsamin_v2 "cublas_iamin_f32" 4
}

typed! {
    8 1_f64.to_bits();
    cublasDaxpy_v2 "cublas_axpy_f64" cublasDscal_v2 "cublas_scal_f64"
    cublasDcopy_v2 "cublas_copy_f64" cublasDswap_v2 "cublas_swap_f64"
    cublasDdot_v2 "cublas_dot_f64" cublasDgemv_v2 "cublas_gemv_f64"
    cublasDasum_v2 "cublas_asum_f64" 8 cublasDnrm2_v2 "cublas_nrm2_f64" 8
    cublasIdamax_v2 "cublas_iamax_f64" 4 cublasIdamin_v2 "cublas_iamin_f64" 4
}

//! Products of matrices.

use std::ffi::{c_int, c_void};

use crate::handle::{Handle, with};
use crate::kernels::{Element, Operand, PRODUCTS, Product, ProductArguments};
use crate::status::{Status, not_simulated, require};

/// A matrix argument, in elements.
#[derive(Clone, Copy)]
struct Matrix {
    address: u64,
    leading: c_int,
    /// From one matrix of a batch to the next.
    stride: i64,
}

/// The arguments that all calls have.
struct Call<'handle> {
    handle: &'handle Handle,
    operations: [c_int; 2],
    sizes: [c_int; 3],
    alpha: *const c_void,
    beta: *const c_void,
}

/// The number of products of a call, and where their matrices are.
#[derive(Clone, Copy)]
struct Batch {
    count: c_int,
    /// The addresses are those of arrays of addresses.
    indirect: bool,
}

/// Returns whether a matrix is transposed; a conjugate transpose of real numbers is a transpose.
pub(crate) fn transposed(operation: c_int) -> Result<bool, Status> {
    match operation {
        0 => Ok(false),
        1 | 2 => Ok(true),
        _ => Err(Status::InvalidValue),
    }
}

/// Returns a size as a number of elements.
pub(crate) fn size(value: c_int) -> Result<u64, Status> {
    u64::try_from(value).map_err(|_| Status::InvalidValue)
}

/// Launches the kernel for a call.
///
/// # Safety
///
/// The scalars are where the handle's mode says.
unsafe fn launch(
    kernel: &Product,
    call: &Call<'_>,
    [a, b, c]: [Matrix; 3],
    batch: Batch,
) -> Result<(), Status> {
    let [m, n, k] = [size(call.sizes[0])?, size(call.sizes[1])?, size(call.sizes[2])?];
    let [a_transposed, b_transposed] =
        [transposed(call.operations[0])?, transposed(call.operations[1])?];
    let count = size(batch.count)?;
    require(a.leading as i64 >= if a_transposed { k } else { m }.max(1) as i64)?;
    require(b.leading as i64 >= if b_transposed { n } else { k }.max(1) as i64)?;
    require(c.leading as i64 >= m.max(1) as i64)?;
    // SAFETY: the caller's promise.
    let alpha = unsafe { call.handle.scalar(call.alpha, kernel.scale.bytes()) }?;
    // SAFETY: the caller's promise.
    let beta = unsafe { call.handle.scalar(call.beta, kernel.scale.bytes()) }?;
    let threads = m.checked_mul(n).and_then(|elements| elements.checked_mul(count));
    let threads = threads.ok_or(Status::InvalidValue)?;
    if threads == 0 {
        return Ok(());
    }
    require(c.address != 0)?;
    let operand = |matrix: Matrix, bytes: i64, transposed| {
        let leading = i64::from(matrix.leading) * bytes;
        let (row, column) = if transposed { (leading, bytes) } else { (bytes, leading) };
        let batch = if batch.indirect { 8 } else { matrix.stride.wrapping_mul(bytes) };
        Operand { address: matrix.address, row, column, batch }
    };
    let input = kernel.input.bytes();
    let output = kernel.output.bytes();
    let [a, b] = [operand(a, input, a_transposed), operand(b, input, b_transposed)];
    let c = operand(c, output, false);
    let indirect = u64::from(batch.indirect);
    let arguments = ProductArguments { threads, m, n, k, a, b, c, alpha, beta, indirect };
    // SAFETY: the arguments are those of a product.
    unsafe { call.handle.launch(kernel.name, threads, arguments) }
}

/// Returns the name of a `cudaDataType_t`, and the element of those that are simulated.
fn element(code: c_int) -> (String, Option<Element>) {
    let (name, element) = match code {
        0 => ("CUDA_R_32F", Some(Element::F32)),
        1 => ("CUDA_R_64F", Some(Element::F64)),
        2 => ("CUDA_R_16F", Some(Element::F16)),
        3 => ("CUDA_R_8I", Some(Element::I8)),
        4 => ("CUDA_C_32F", None),
        5 => ("CUDA_C_64F", None),
        10 => ("CUDA_R_32I", Some(Element::I32)),
        14 => ("CUDA_R_16BF", Some(Element::Bf16)),
        28 => ("CUDA_R_8F_E4M3", None),
        29 => ("CUDA_R_8F_E5M2", None),
        _ => return (code.to_string(), None),
    };
    (name.to_owned(), element)
}

/// The types of a call: those of A, B and C, and the compute type.
#[derive(Clone, Copy)]
struct Types {
    matrices: [c_int; 3],
    compute: c_int,
}

impl Types {
    /// Returns the kernel for the combinations that cuBLAS documents.
    fn kernel(self, function: &str) -> Result<&'static Product, Status> {
        let [a, b, c] = self.matrices;
        let scale = match self.compute {
            64 | 65 => Some(Element::F16),
            68 | 69 => Some(Element::F32),
            74 | 75 | 77 if self.matrices == [0; 3] => Some(Element::F32),
            70 | 71 => Some(Element::F64),
            72 | 73 => Some(Element::I32),
            _ => None,
        };
        let elements = [element(a).1, element(c).1, scale];
        let fits = |kernel: &&Product| {
            a == b && elements == [kernel.input, kernel.output, kernel.scale].map(Some)
        };
        PRODUCTS.iter().find(fits).ok_or_else(|| {
            let [a, b, c] = [element(a).0, element(b).0, element(c).0];
            let compute = self.compute;
            not_simulated(&format!(
                "{function} with A, B and C of types {a}, {b}, {c} and compute type {compute}"
            ))
        })
    }
}

/// Launches a call of one of the functions with types.
///
/// # Safety
///
/// That of [`launch`].
unsafe fn launch_typed(
    function: &str,
    types: Types,
    call: &Call<'_>,
    matrices: [Matrix; 3],
    batch: Batch,
) -> Result<(), Status> {
    let kernel = types.kernel(function)?;
    if kernel.scale == Element::I32 {
        let misaligned =
            |matrix: &Matrix| !matrix.address.is_multiple_of(4) || matrix.leading % 4 != 0;
        if matrices[..2].iter().any(misaligned) {
            return Err(not_simulated(&format!(
                "{function} of bytes whose addresses and leading dimensions are not multiples of 4, as cuBLAS requires,"
            )));
        }
    }
    // SAFETY: the caller's promise.
    unsafe { launch(kernel, call, matrices, batch) }
}

const ONE: Batch = Batch { count: 1, indirect: false };
const F32: Types = Types { matrices: [0; 3], compute: 68 };
const F64: Types = Types { matrices: [1; 3], compute: 70 };
const F16: Types = Types { matrices: [2; 3], compute: 64 };

/// Exports functions. In brackets: the arguments for types, for strides and for the number of
/// products, if the function has them, and what they stand for.
macro_rules! products {
    ($(
        $name:ident [$($a_type:ident $b_type:ident $c_type:ident $compute:ident $algorithm:ident)?; $types:expr]
        [$($a_stride:ident $b_stride:ident $c_stride:ident)?; $strides:expr] [$($count:ident)?; $batch:expr]
    )*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            handle: Option<&Handle>, a_operation: c_int, b_operation: c_int, m: c_int, n: c_int, k: c_int,
            alpha: *const c_void,
            a: u64, $($a_type: c_int,)? lda: c_int, $($a_stride: i64,)?
            b: u64, $($b_type: c_int,)? ldb: c_int, $($b_stride: i64,)?
            beta: *const c_void,
            c: u64, $($c_type: c_int,)? ldc: c_int, $($c_stride: i64,)?
            $($count: c_int,)? $($compute: c_int, $algorithm: c_int,)?
        ) -> c_int {
            $(let _ = $algorithm;)?
            with(handle, |handle| {
                let call = Call { handle, operations: [a_operation, b_operation], sizes: [m, n, k], alpha, beta };
                let strides: [i64; 3] = $strides;
                let matrix = |address, leading, index: usize| Matrix { address, leading, stride: strides[index] };
                let matrices = [matrix(a, lda, 0), matrix(b, ldb, 1), matrix(c, ldc, 2)];
                // SAFETY: the caller's promise, as documented by cuBLAS.
                unsafe { launch_typed(stringify!($name), $types, &call, matrices, $batch) }
            })
        }
    )*};
}

products! {
    cublasSgemm_v2 [; F32] [; [0; 3]] [; ONE]
    cublasDgemm_v2 [; F64] [; [0; 3]] [; ONE]
    cublasHgemm [; F16] [; [0; 3]] [; ONE]
    cublasGemmEx [a b c compute algorithm; Types { matrices: [a, b, c], compute }] [; [0; 3]] [; ONE]
    cublasSgemmStridedBatched [; F32] [a b c; [a, b, c]] [count; Batch { count, indirect: false }]
    cublasDgemmStridedBatched [; F64] [a b c; [a, b, c]] [count; Batch { count, indirect: false }]
    cublasHgemmStridedBatched [; F16] [a b c; [a, b, c]] [count; Batch { count, indirect: false }]
    cublasGemmStridedBatchedEx
        [a_type b_type c_type compute algorithm; Types { matrices: [a_type, b_type, c_type], compute }]
        [a b c; [a, b, c]] [count; Batch { count, indirect: false }]
    cublasSgemmBatched [; F32] [; [0; 3]] [count; Batch { count, indirect: true }]
    cublasDgemmBatched [; F64] [; [0; 3]] [count; Batch { count, indirect: true }]
    cublasHgemmBatched [; F16] [; [0; 3]] [count; Batch { count, indirect: true }]
    cublasGemmBatchedEx [a b c compute algorithm; Types { matrices: [a, b, c], compute }] [; [0; 3]]
        [count; Batch { count, indirect: true }]
}

//! Products by every function, compared with the host's, through cudarc's bindings of cuBLAS.
#![allow(unsafe_code)] // the library is called directly

use crate::support;
use crate::support::case::Case;
use crate::support::{Gpu, Type};
use cudarc::cublas::sys::{self, cublasStatus_t as Status};

/// The types of calls with types, and the compute type.
const TYPES: [(Type, Type, u32); 9] = [
    (Type::F32, Type::F32, 68),
    (Type::F32, Type::F32, 77),
    (Type::F64, Type::F64, 70),
    (Type::F16, Type::F16, 64),
    (Type::F16, Type::F16, 68),
    (Type::Bf16, Type::Bf16, 68),
    (Type::F16, Type::F32, 68),
    (Type::Bf16, Type::F32, 68),
    (Type::I8, Type::I32, 72),
];

/// Runs a function for all transposes, with and without C.
fn run_all(
    gpu: &Gpu,
    function: &'static str,
    (input, output, compute): (Type, Type, u32),
    batch: usize,
) {
    for transposed in [[false, false], [true, false], [false, true], [true, true]] {
        for (sizes, beta) in [([5, 3, 7], 0), ([4, 6, 2], 3), ([3, 2, 0], 2), ([13, 11, 1], 1)] {
            Case { function, input, output, compute, transposed, sizes, batch, beta }.run(gpu);
        }
    }
}

#[test]
fn products_have_the_values_of_the_host_for_all_transposes_and_types() {
    let gpu = Gpu::new();
    run_all(&gpu, "cublasSgemm_v2", (Type::F32, Type::F32, 68), 1);
    run_all(&gpu, "cublasDgemm_v2", (Type::F64, Type::F64, 70), 1);
    run_all(&gpu, "cublasHgemm", (Type::F16, Type::F16, 64), 1);
    for types in TYPES.into_iter().chain([(Type::I8, Type::F32, 68)]) {
        run_all(&gpu, "cublasGemmEx", types, 1);
    }
    gpu.finish();
}

#[test]
fn batches_by_strides_and_by_addresses_have_the_values_of_the_host() {
    let gpu = Gpu::new();
    run_all(&gpu, "cublasSgemmStridedBatched", (Type::F32, Type::F32, 68), 3);
    run_all(&gpu, "cublasDgemmStridedBatched", (Type::F64, Type::F64, 70), 3);
    run_all(&gpu, "cublasHgemmStridedBatched", (Type::F16, Type::F16, 64), 3);
    run_all(&gpu, "cublasSgemmBatched", (Type::F32, Type::F32, 68), 3);
    for types in TYPES {
        run_all(&gpu, "cublasGemmStridedBatchedEx", types, 2);
        run_all(&gpu, "cublasGemmBatchedEx", types, 2);
    }
    gpu.finish();
}

#[test]
fn without_beta_c_is_not_read_and_scalars_may_be_in_device_memory() {
    let gpu = Gpu::new();
    let a = gpu.upload(Type::F32, &[1, 2, 3, 4]);
    let scalars = gpu.upload(Type::F32, &[3, 0]);
    let c = gpu.allocate(16);
    gpu.device_scalars(true);
    let none = support::operation(false);
    // SAFETY: the addresses are those of matrices of two rows and columns, and of scalars.
    let status = unsafe {
        sys::cublasSgemm_v2(
            gpu.blas,
            none,
            none,
            2,
            2,
            2,
            scalars as _,
            a as _,
            2,
            a as _,
            2,
            (scalars + 4) as _,
            c as _,
            2,
        )
    };
    assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS);
    assert_eq!(gpu.download(Type::F32, c, 4), [21, 30, 45, 66]);
    gpu.finish(); // C was never written before
}

#[test]
fn wrong_arguments_are_refused_and_empty_results_are_left_alone() {
    let gpu = Gpu::new();
    let [none, other] = [false, true].map(support::operation);
    let one = 1.0_f32;
    let matrix = gpu.upload(Type::F32, &[5; 64]);
    let gemm =
        |handle, operations: [_; 2], sizes: [i32; 3], leading: [i32; 3], alpha: *const f32| {
            // SAFETY: the matrices have room for all the sizes that are accepted.
            unsafe {
                sys::cublasSgemm_v2(
                    handle,
                    operations[0],
                    operations[1],
                    sizes[0],
                    sizes[1],
                    sizes[2],
                    alpha,
                    matrix as _,
                    leading[0],
                    matrix as _,
                    leading[1],
                    &one,
                    matrix as _,
                    leading[2],
                )
            }
        };
    let invalid = Status::CUBLAS_STATUS_INVALID_VALUE;
    assert_eq!(gemm(gpu.blas, [none, none], [-1, 2, 2], [2; 3], &one), invalid);
    assert_eq!(gemm(gpu.blas, [none, none], [4, 2, 2], [3, 4, 4], &one), invalid);
    assert_eq!(gemm(gpu.blas, [other, none], [4, 2, 2], [1, 4, 4], &one), invalid);
    assert_eq!(gemm(gpu.blas, [none, other], [4, 3, 2], [4, 2, 4], &one), invalid);
    assert_eq!(gemm(gpu.blas, [none, none], [4, 2, 2], [4, 2, 3], &one), invalid);
    assert_eq!(gemm(gpu.blas, [none, none], [2; 3], [2; 3], std::ptr::null()), invalid);
    let null = std::ptr::null_mut();
    assert_eq!(gemm(null, [none; 2], [2; 3], [2; 3], &one), Status::CUBLAS_STATUS_NOT_INITIALIZED);
    for empty in [[0, 2, 2], [2, 0, 2]] {
        assert_eq!(gemm(gpu.blas, [none; 2], empty, [2; 3], &one), Status::CUBLAS_STATUS_SUCCESS);
    }
    assert_eq!(gpu.download(Type::F32, matrix, 64), [5; 64]);
    gpu.finish();
}

//! Programs on cudarc's wrappers of cuBLAS: their results, their races, captures, and calls that
//! are not simulated.
#![allow(unsafe_code)] // the library is called directly

use crate::support;
use std::process::Command;

use crate::support::{Gpu, Type, operation};
use cudarc::cublas::sys::{self, cublasStatus_t as Status};
use cudarc::cublas::{Asum, AsumConfig, CudaBlas, Gemm, GemmConfig, Gemv, GemvConfig};
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, result};
use dmr_sim::{Policy, ReportKind, Universe};

#[test]
fn the_wrappers_of_cudarc_run() {
    let _library = support::library();
    let universe = Universe::new().unwrap();
    let context = CudaContext::new(universe.ordinal(0)).unwrap();
    let stream = context.default_stream();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let a = stream.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    let x = stream.clone_htod(&[1.0_f32, -1.0]).unwrap();
    let mut y = stream.alloc_zeros::<f32>(2).unwrap();
    let mut c = stream.alloc_zeros::<f32>(4).unwrap();
    let mut sum = 0.0_f32;
    let transa = operation(false);
    let transb = operation(true);
    let product = GemmConfig {
        transa,
        transb,
        m: 2,
        n: 2,
        k: 2,
        alpha: 1.0,
        lda: 2,
        ldb: 2,
        beta: 0.0,
        ldc: 2,
    };
    let vector =
        GemvConfig { trans: transa, m: 2, n: 2, alpha: 1.0, lda: 2, incx: 1, beta: 0.0, incy: 1 };
    // SAFETY: the matrices and vectors have these sizes.
    unsafe {
        blas.gemm(product, &a, &a, &mut c).unwrap();
        blas.gemv(vector, &a, &x, &mut y).unwrap();
        blas.asum(AsumConfig { n: 2, incx: 1 }, &y, &mut sum).unwrap();
    }
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [10.0, 14.0, 14.0, 20.0]);
    assert_eq!((stream.clone_dtoh(&y).unwrap(), sum), (vec![-2.0, -2.0], 4.0));
    drop((blas, a, x, y, c));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

/// Multiplies matrices that another stream writes, with or without a wait, and returns the
/// findings.
fn multiply_what_another_stream_writes(wait: bool) -> Vec<dmr_sim::Report> {
    let gpu = Gpu::new();
    let writer = gpu.context.new_stream().unwrap();
    let matrices = gpu.upload(Type::F32, &[1; 12]);
    // SAFETY: the block has three matrices of two rows and columns.
    unsafe {
        result::memset_d8_async(matrices, 0, 16, writer.cu_stream()).unwrap();
        if wait {
            gpu.stream.join(&writer).unwrap();
        }
        let [a, b, c] = [matrices, matrices + 16, matrices + 32];
        let none = operation(false);
        let status = sys::cublasSgemm_v2(
            gpu.blas, none, none, 2, 2, 2, &1.0, a as _, 2, b as _, 2, &0.0, c as _, 2,
        );
        assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS);
    }
    gpu.context.synchronize().unwrap();
    gpu.universe.reports()
}

#[test]
fn a_product_of_what_another_stream_writes_is_a_race_with_the_name_of_the_kernel() {
    assert!(multiply_what_another_stream_writes(true).is_empty());
    let reports = multiply_what_another_stream_writes(false);
    let [race] = &reports[..] else {
        panic!("{reports:#?}");
    };
    assert_eq!(race.kind, ReportKind::ReadAfterWrite);
    assert!(race.to_string().contains("kernel cublas_gemm_f32 "), "{race}");
}

#[test]
fn calls_that_do_not_wait_for_the_device_are_captured() {
    let gpu = Gpu::new();
    let [a, c] = [[2; 4], [0; 4]].map(|numbers| gpu.upload(Type::F32, &numbers));
    let none = operation(false);
    gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    // SAFETY: the matrices have two rows and columns.
    unsafe {
        let status = sys::cublasSgemm_v2(
            gpu.blas, none, none, 2, 2, 2, &1.0, a as _, 2, a as _, 2, &1.0, c as _, 2,
        );
        assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS);
        assert_eq!(sys::cublasSaxpy_v2(gpu.blas, 4, &1.0, a as _, 1, c as _, 1), status);
    }
    let flags = cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = gpu.stream.end_capture(flags).unwrap().unwrap();
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(gpu.download(Type::F32, c, 4), [20; 4]);
    drop(graph);
    gpu.finish();
}

#[test]
fn a_result_in_pinned_memory_is_there_when_the_call_returns() {
    let gpu = Gpu::of(Universe::builder().policy(Policy::Lazy).build().unwrap());
    let x = gpu.upload(Type::F32, &[1, -2, 3]);
    // SAFETY: the memory has room for the result, and is freed when the call is done with it.
    unsafe {
        let result: *mut f32 = result::malloc_host(4, 0).unwrap().cast();
        result.write(0.0);
        let status = sys::cublasSasum_v2(gpu.blas, 3, x as _, 1, result);
        assert_eq!((status, result.read()), (Status::CUBLAS_STATUS_SUCCESS, 6.0));
        result::free_host(result.cast()).unwrap();
    }
    gpu.finish();
}

#[test]
#[ignore = "run by calls_that_are_not_simulated_fail_by_name"]
fn child_makes_calls_that_are_not_simulated() {
    let gpu = Gpu::new();
    let none = operation(false);
    let types = sys::cudaDataType::CUDA_R_64F;
    let half = sys::cudaDataType::CUDA_R_16F;
    let algorithm = sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
    let null = std::ptr::null();
    let out = std::ptr::null_mut();
    for _ in 0..2 {
        // SAFETY: the arguments are not used.
        let statuses = unsafe {
            [
                sys::cublasSger_v2(gpu.blas, 2, 2, &1.0, null, 1, null, 1, out, 2),
                sys::cublasGemmEx(
                    gpu.blas,
                    none,
                    none,
                    2,
                    2,
                    2,
                    null.cast(),
                    null.cast(),
                    types,
                    2,
                    null.cast(),
                    half,
                    2,
                    null.cast(),
                    out.cast(),
                    types,
                    2,
                    support::compute_type(70),
                    algorithm,
                ),
            ]
        };
        assert_eq!(statuses, [Status::CUBLAS_STATUS_NOT_SUPPORTED; 2]);
    }
}

#[test]
fn calls_that_are_not_simulated_fail_by_name() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--ignored",
        "--exact",
        "--nocapture",
        "programs::child_makes_calls_that_are_not_simulated",
    ]);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("dmr-sim: ")).collect();
    let typed = "cublasGemmEx with A, B and C of types CUDA_R_64F, CUDA_R_16F, CUDA_R_64F and compute type 70";
    let expected = ["cublasSger_v2", typed].map(|what| format!("dmr-sim: {what} is not simulated"));
    assert_eq!(lines, expected);
}

#[test]
fn every_function_that_cudarc_may_load_is_exported() {
    let library = support::library();
    let names = include_str!("../../src/unsupported.txt").lines();
    for name in
        names.chain(["cublasCreate_v2", "cublasGetStatusName", "cublasGemmStridedBatchedEx"])
    {
        // SAFETY: the symbol is looked up only.
        assert!(unsafe { library.get::<usize>(name) }.is_ok(), "{name}");
    }
}

#[test]
fn a_handle_keeps_its_settings_and_reports_a_version() {
    let gpu = Gpu::new();
    let mut stream = std::ptr::null_mut();
    let mut version = 0;
    let mut math = sys::cublasMath_t::CUBLAS_DEFAULT_MATH;
    // SAFETY: each place has the type of its function.
    unsafe {
        let success = Status::CUBLAS_STATUS_SUCCESS;
        assert_eq!(sys::cublasGetStream_v2(gpu.blas, &mut stream), success);
        assert_eq!(stream, gpu.stream.cu_stream().cast());
        assert_eq!(
            sys::cublasSetMathMode(gpu.blas, sys::cublasMath_t::CUBLAS_TF32_TENSOR_OP_MATH),
            success
        );
        assert_eq!(sys::cublasGetMathMode(gpu.blas, &mut math), success);
        assert_eq!(math, sys::cublasMath_t::CUBLAS_TF32_TENSOR_OP_MATH);
        assert_eq!(sys::cublasGetVersion_v2(gpu.blas, &mut version), success);
        assert_eq!(sys::cublasSetWorkspace_v2(gpu.blas, std::ptr::null_mut(), 0), success);
        let name =
            std::ffi::CStr::from_ptr(sys::cublasGetStatusName(Status::CUBLAS_STATUS_NOT_SUPPORTED));
        assert_eq!(name, c"CUBLAS_STATUS_NOT_SUPPORTED");
    }
    assert_eq!(version, 120_901);
    gpu.finish();
}

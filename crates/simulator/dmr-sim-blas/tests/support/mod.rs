//! A simulated device with a handle of the library, and numbers as the types of its elements.
#![allow(unsafe_code, reason = "the driver and cuBLAS are called directly")]
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod case;

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::cublas::sys;
use cudarc::driver::{CudaContext, CudaStream, result};
use dmr_sim::Universe;

pub(crate) type Hgemm = unsafe extern "C" fn(
    sys::cublasHandle_t,
    sys::cublasOperation_t,
    sys::cublasOperation_t,
    i32,
    i32,
    i32,
    *const u8,
    u64,
    i32,
    u64,
    i32,
    *const u8,
    u64,
    i32,
) -> sys::cublasStatus_t;
pub(crate) type HgemmStrided = unsafe extern "C" fn(
    sys::cublasHandle_t,
    sys::cublasOperation_t,
    sys::cublasOperation_t,
    i32,
    i32,
    i32,
    *const u8,
    u64,
    i32,
    i64,
    u64,
    i32,
    i64,
    *const u8,
    u64,
    i32,
    i64,
    i32,
) -> sys::cublasStatus_t;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I32,
}

impl Type {
    pub(crate) fn code(self) -> sys::cudaDataType {
        match self {
            Type::F16 => sys::cudaDataType::CUDA_R_16F,
            Type::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            Type::F32 => sys::cudaDataType::CUDA_R_32F,
            Type::F64 => sys::cudaDataType::CUDA_R_64F,
            Type::I8 => sys::cudaDataType::CUDA_R_8I,
            Type::I32 => sys::cudaDataType::CUDA_R_32I,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes_of(0).len()
    }

    /// Returns a small number as an element of this type, which represents it exactly.
    pub(crate) fn bytes_of(self, number: i32) -> Vec<u8> {
        let bits = (number as f32).to_bits();
        match self {
            Type::F16 if number == 0 => vec![0; 2],
            Type::F16 => {
                let [sign, exponent, fraction] =
                    [bits >> 31, (bits >> 23 & 0xff) - 112, bits >> 13 & 0x3ff];
                ((sign << 15 | exponent << 10 | fraction) as u16).to_le_bytes().to_vec()
            }
            Type::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
            Type::F32 => bits.to_le_bytes().to_vec(),
            Type::F64 => f64::from(number).to_le_bytes().to_vec(),
            Type::I8 => vec![number as i8 as u8],
            Type::I32 => number.to_le_bytes().to_vec(),
        }
    }

    /// Returns the number of an element.
    fn number(self, bytes: &[u8]) -> i32 {
        (-2000..2000).find(|number| self.bytes_of(*number) == bytes).unwrap_or(i32::MIN)
    }
}

pub(crate) fn operation(transposed: bool) -> sys::cublasOperation_t {
    if transposed {
        sys::cublasOperation_t::CUBLAS_OP_T
    } else {
        sys::cublasOperation_t::CUBLAS_OP_N
    }
}

pub(crate) fn compute_type(code: u32) -> sys::cublasComputeType_t {
    match code {
        64 => sys::cublasComputeType_t::CUBLAS_COMPUTE_16F,
        68 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        70 => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
        72 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32I,
        _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
    }
}

/// Opens the library, so that cudarc finds it by its name.
pub(crate) fn library() -> libloading::Library {
    let path: PathBuf = std::env::current_exe().unwrap().with_file_name("libdmr_sim_blas.so");
    // SAFETY: the library has no initialisers.
    unsafe { libloading::Library::new(path) }.unwrap()
}

/// A simulated device with a stream and a handle that uses it.
pub(crate) struct Gpu {
    pub(crate) universe: Universe,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) blas: sys::cublasHandle_t,
    library: libloading::Library,
}

impl Gpu {
    pub(crate) fn new() -> Gpu {
        Gpu::of(Universe::new().unwrap())
    }

    pub(crate) fn of(universe: Universe) -> Gpu {
        let library = library();
        let context = CudaContext::new(universe.ordinal(0)).unwrap();
        let stream = context.new_stream().unwrap();
        let blas = cudarc::cublas::result::create_handle().unwrap();
        // SAFETY: the handle and the stream are used until `finish`.
        unsafe { cudarc::cublas::result::set_stream(blas, stream.cu_stream().cast()) }.unwrap();
        Gpu { universe, context, stream, blas, library }
    }

    /// Returns a function that cudarc does not have.
    pub(crate) fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller names its type.
        unsafe { *self.library.get::<F>(name.as_bytes()).unwrap() }
    }

    pub(crate) fn allocate(&self, bytes: usize) -> u64 {
        // SAFETY: the device frees it when the universe ends.
        unsafe { result::malloc_async(self.stream.cu_stream(), bytes) }.unwrap()
    }

    pub(crate) fn upload(&self, element: Type, numbers: &[i32]) -> u64 {
        self.upload_bytes(numbers.iter().flat_map(|number| element.bytes_of(*number)).collect())
    }

    pub(crate) fn upload_addresses(&self, addresses: Vec<u64>) -> u64 {
        self.upload_bytes(addresses.iter().flat_map(|address| address.to_le_bytes()).collect())
    }

    fn upload_bytes(&self, bytes: Vec<u8>) -> u64 {
        let to = self.allocate(bytes.len().max(1));
        // SAFETY: the block has as many bytes, and the stream is completed before the source is
        // dropped.
        unsafe { result::memcpy_htod_async(to, &bytes, self.stream.cu_stream()) }.unwrap();
        self.stream.synchronize().unwrap();
        to
    }

    pub(crate) fn download(&self, element: Type, from: u64, count: usize) -> Vec<i32> {
        let mut bytes = vec![0_u8; count * element.bytes()];
        // SAFETY: the block has as many bytes, and the stream is completed before they are read.
        unsafe { result::memcpy_dtoh_async(&mut bytes, from, self.stream.cu_stream()) }.unwrap();
        self.stream.synchronize().unwrap();
        bytes.chunks(element.bytes()).map(|bytes| element.number(bytes)).collect()
    }

    pub(crate) fn device_scalars(&self, on: bool) {
        let mode = if on {
            sys::cublasPointerMode_t::CUBLAS_POINTER_MODE_DEVICE
        } else {
            sys::cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST
        };
        // SAFETY: the handle is in use.
        assert_eq!(unsafe { sys::cublasSetPointerMode_v2(self.blas, mode) } as i32, 0);
    }

    /// Destroys the handle; the simulator has found nothing.
    pub(crate) fn finish(self) {
        // SAFETY: it is not used again.
        unsafe { cudarc::cublas::result::destroy_handle(self.blas) }.unwrap();
        let findings: Vec<_> = self
            .universe
            .reports()
            .into_iter()
            .filter(|report| report.kind != dmr_sim::ReportKind::Leak)
            .collect();
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

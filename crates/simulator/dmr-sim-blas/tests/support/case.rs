//! A product by one of the functions, and its comparison with the host's.

use cudarc::cublas::sys::{self, cublasStatus_t as Status};

use super::{Gpu, Type};

/// A product: its types, sizes and what is transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) function: &'static str,
    pub(crate) input: Type,
    pub(crate) output: Type,
    pub(crate) compute: u32,
    pub(crate) transposed: [bool; 2],
    pub(crate) sizes: [usize; 3],
    pub(crate) batch: usize,
    pub(crate) beta: i32,
}

const ALPHA: i32 = 2;

impl Case {
    fn scale(&self) -> Type {
        match self.compute {
            64 => Type::F16,
            70 => Type::F64,
            72 => Type::I32,
            _ => Type::F32,
        }
    }

    /// Returns the rows and columns of A, B and C in memory.
    fn shapes(&self) -> [[usize; 2]; 3] {
        let [m, n, k] = self.sizes;
        let [a, b] = self.transposed;
        [if a { [k, m] } else { [m, k] }, if b { [n, k] } else { [k, n] }, [m, n]]
    }

    /// Returns leading dimensions with room behind each column; for bytes multiples of four.
    fn leading(&self) -> [usize; 3] {
        self.shapes().map(|[rows, _]| (rows + 1).next_multiple_of(4))
    }

    /// Runs the call, and compares every element of C, those between the columns too.
    pub(crate) fn run(&self, gpu: &Gpu) {
        let leading = self.leading();
        let shapes = self.shapes();
        let strides: [usize; 3] =
            std::array::from_fn(|index| leading[index] * shapes[index][1] + 4);
        let numbers = |index: usize| -> Vec<i32> {
            (0..strides[index] * self.batch)
                .map(|at| ((at * 7 + index * 3) % 9) as i32 - 4)
                .collect()
        };
        let [a, b, c] = [numbers(0), numbers(1), numbers(2)];
        let mut expected = c.clone();
        let [m, n, k] = self.sizes;
        for batch in 0..self.batch {
            for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
                let at = |index: usize, [row, column]: [usize; 2], transposed: bool| {
                    let [row, column] = if transposed { [column, row] } else { [row, column] };
                    batch * strides[index] + column * leading[index] + row
                };
                let product = |inner| {
                    a[at(0, [row, inner], self.transposed[0])]
                        * b[at(1, [inner, column], self.transposed[1])]
                };
                let sum: i32 = (0..k).map(product).sum();
                let place = at(2, [row, column], false);
                expected[place] = ALPHA * sum + self.beta * c[place];
            }
        }
        let device =
            [gpu.upload(self.input, &a), gpu.upload(self.input, &b), gpu.upload(self.output, &c)];
        let status = self.call(gpu, device, leading, strides);
        assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS, "{self:?}");
        assert_eq!(gpu.download(self.output, device[2], c.len()), expected, "{self:?}");
    }

    fn call(
        &self,
        gpu: &Gpu,
        device: [u64; 3],
        leading: [usize; 3],
        strides: [usize; 3],
    ) -> Status {
        let types = [self.input, self.input, self.output];
        let arrays = std::array::from_fn(|index| {
            let step = strides[index] as u64 * types[index].bytes() as u64;
            gpu.upload_addresses(
                (0..self.batch as u64).map(|batch| device[index] + batch * step).collect(),
            )
        });
        let [a, b, c] = if self.function.contains("Batched") && !self.function.contains("Strided") {
            arrays
        } else {
            device
        };
        let [m, n, k] = self.sizes.map(|size| size as i32);
        let [lda, ldb, ldc] = leading.map(|size| size as i32);
        let [sa, sb, sc] = strides.map(|size| size as i64);
        let [ta, tb] = self.transposed.map(super::operation);
        let [alpha, beta] = [ALPHA, self.beta].map(|number| self.scale().bytes_of(number));
        let [alpha, beta] = [alpha.as_ptr(), beta.as_ptr()];
        let [at, ct] = [self.input.code(), self.output.code()];
        let compute = super::compute_type(self.compute);
        let algorithm = sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        let count = self.batch as i32;
        let handle = gpu.blas;
        // SAFETY: the addresses are those of matrices with these sizes; scalars are in host memory.
        unsafe {
            match self.function {
                "cublasSgemm_v2" => sys::cublasSgemm_v2(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    lda,
                    b as _,
                    ldb,
                    beta.cast(),
                    c as _,
                    ldc,
                ),
                "cublasDgemm_v2" => sys::cublasDgemm_v2(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    lda,
                    b as _,
                    ldb,
                    beta.cast(),
                    c as _,
                    ldc,
                ),
                "cublasHgemm" => gpu.function::<super::Hgemm>("cublasHgemm")(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a,
                    lda,
                    b,
                    ldb,
                    beta.cast(),
                    c,
                    ldc,
                ),
                "cublasGemmEx" => sys::cublasGemmEx(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    at,
                    lda,
                    b as _,
                    at,
                    ldb,
                    beta.cast(),
                    c as _,
                    ct,
                    ldc,
                    compute,
                    algorithm,
                ),
                "cublasSgemmStridedBatched" => sys::cublasSgemmStridedBatched(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    lda,
                    sa,
                    b as _,
                    ldb,
                    sb,
                    beta.cast(),
                    c as _,
                    ldc,
                    sc,
                    count,
                ),
                "cublasDgemmStridedBatched" => sys::cublasDgemmStridedBatched(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    lda,
                    sa,
                    b as _,
                    ldb,
                    sb,
                    beta.cast(),
                    c as _,
                    ldc,
                    sc,
                    count,
                ),
                "cublasHgemmStridedBatched" => gpu
                    .function::<super::HgemmStrided>("cublasHgemmStridedBatched")(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a,
                    lda,
                    sa,
                    b,
                    ldb,
                    sb,
                    beta.cast(),
                    c,
                    ldc,
                    sc,
                    count,
                ),
                "cublasGemmStridedBatchedEx" => sys::cublasGemmStridedBatchedEx(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    at,
                    lda,
                    sa,
                    b as _,
                    at,
                    ldb,
                    sb,
                    beta.cast(),
                    c as _,
                    ct,
                    ldc,
                    sc,
                    count,
                    compute,
                    algorithm,
                ),
                "cublasSgemmBatched" => sys::cublasSgemmBatched(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    lda,
                    b as _,
                    ldb,
                    beta.cast(),
                    c as _,
                    ldc,
                    count,
                ),
                _ => sys::cublasGemmBatchedEx(
                    handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as _,
                    at,
                    lda,
                    b as _,
                    at,
                    ldb,
                    beta.cast(),
                    c as _,
                    ct,
                    ldc,
                    count,
                    compute,
                    algorithm,
                ),
            }
        }
    }
}

//! Operations on vectors and products of a matrix and a vector, compared with the host's.
#![allow(unsafe_code)] // the library is called directly

use crate::support;
use crate::support::{Gpu, Type};
use cudarc::cublas::sys::{self, cublasStatus_t as Status};

const X: [i32; 7] = [3, -4, 1, 0, -8, 2, 8];
const Y: [i32; 7] = [1, 2, 3, 4, 5, 6, 7];

/// Returns the elements that a vector of three has with an increment, in its order.
fn elements(numbers: &[i32; 7], increment: i32) -> [i32; 3] {
    let step = increment.unsigned_abs() as usize;
    let forwards: [i32; 3] = std::array::from_fn(|index| numbers[index * step]);
    if increment > 0 { forwards } else { std::array::from_fn(|index| forwards[2 - index]) }
}

fn succeeds(status: Status) {
    assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS);
}

/// Tests of the functions of one type.
macro_rules! vectors {
    (
        $test:ident $element:expr, $number:ty;
        $axpy:ident $scal:ident $copy:ident $swap:ident $dot:ident $gemv:ident $asum:ident $nrm2:ident $iamax:ident $iamin:ident
    ) => {
        #[test]
        fn $test() {
            let gpu = Gpu::new();
            let blas = gpu.blas;
            for (incx, incy) in [(1, 1), (2, 3), (-2, 1), (3, -2), (-1, -1)] {
                let [x, y] = [X, Y].map(|numbers| gpu.upload($element, &numbers));
                let [xs, mut ys] = [elements(&X, incx), elements(&Y, incy)];
                let mut result: $number = 0.0;
                // SAFETY: each vector has seven elements; scalars and results are in host memory.
                unsafe {
                    succeeds(sys::$axpy(blas, 3, &2.0, x as _, incx, y as _, incy));
                    (0..3).for_each(|index| ys[index] += 2 * xs[index]);
                    succeeds(sys::$dot(blas, 3, x as _, incx, y as _, incy, &mut result));
                    let dot: i32 = (0..3).map(|index| xs[index] * ys[index]).sum();
                    assert_eq!(result, dot as $number);
                    succeeds(sys::$swap(blas, 3, x as _, incx, y as _, incy));
                    let seen = |at| gpu.download($element, at, 7).try_into().unwrap();
                    assert_eq!([elements(&seen(x), incx), elements(&seen(y), incy)], [ys, xs]);
                    succeeds(sys::$copy(blas, 3, x as _, incx, y as _, incy));
                    assert_eq!(elements(&seen(y), incy), ys);
                    succeeds(sys::$scal(blas, 3, &3.0, y as _, incy));
                    let scaled = if incy > 0 { ys.map(|number| 3 * number) } else { ys };
                    assert_eq!(elements(&seen(y), incy), scaled);
                }
            }
            let x = gpu.upload($element, &X);
            let mut result: $number = 9.0;
            let mut index: i32 = 9;
            // SAFETY: as above.
            unsafe {
                succeeds(sys::$asum(blas, 7, x as _, 1, &mut result));
                assert_eq!(result, 26.0);
                succeeds(sys::$nrm2(blas, 2, x as _, 1, &mut result));
                assert_eq!(result, 5.0);
                succeeds(sys::$iamax(blas, 7, x as _, 1, &mut index));
                assert_eq!(index, 5); // the first of two
                succeeds(sys::$iamin(blas, 7, x as _, 1, &mut index));
                assert_eq!(index, 4);
                succeeds(sys::$iamax(blas, 0, x as _, 1, &mut index));
                succeeds(sys::$asum(blas, 7, x as _, -1, &mut result));
                assert_eq!((index, result), (0, 0.0));
            }
            for (transposed, expected) in [(false, [19, 26, 7]), (true, [15, 28, 7])] {
                // Two rows and columns, with a leading dimension of three.
                let [a, y] = [[1, 2, 0, 3, 4, 0].as_slice(), &[5, 6, 7]]
                    .map(|numbers| gpu.upload($element, numbers));
                let x = gpu.upload($element, &[1, 0, 2]);
                let operation = support::operation(transposed);
                // SAFETY: as above.
                unsafe {
                    succeeds(sys::$gemv(
                        blas, operation, 2, 2, &2.0, a as _, 3, x as _, 2, &1.0, y as _, 1,
                    ));
                }
                assert_eq!(gpu.download($element, y, 3), expected);
            }
            gpu.device_scalars(true);
            let scalar = gpu.upload($element, &[2]);
            // SAFETY: the scalar and the results are in device memory.
            unsafe {
                succeeds(sys::$scal(blas, 7, scalar as _, x as _, 1));
                succeeds(sys::$asum(blas, 7, x as _, 1, scalar as _));
            }
            assert_eq!(gpu.download($element, scalar, 1), [52]);
            gpu.finish();
        }
    };
}

vectors! {
    vectors_of_f32_have_the_values_of_the_host Type::F32, f32;
    cublasSaxpy_v2 cublasSscal_v2 cublasScopy_v2 cublasSswap_v2 cublasSdot_v2 cublasSgemv_v2
    cublasSasum_v2 cublasSnrm2_v2 cublasIsamax_v2 cublasIsamin_v2
}

vectors! {
    vectors_of_f64_have_the_values_of_the_host Type::F64, f64;
    cublasDaxpy_v2 cublasDscal_v2 cublasDcopy_v2 cublasDswap_v2 cublasDdot_v2 cublasDgemv_v2
    cublasDasum_v2 cublasDnrm2_v2 cublasIdamax_v2 cublasIdamin_v2
}

//! Tensor maps, which kernels give to the copies of boxes of tensors.

use std::ffi::{c_int, c_uint, c_void};

use dmr_ptx::{Swizzle, TENSOR_MAP_BYTES, TensorDimension, TensorElement, TensorMap};

use super::{Scope, chapter, driver_call, required};
use crate::abi::*;

chapter![cuTensorMapEncodeTiled, cuTensorMapReplaceAddress];

/// The alignment of a map, in bytes.
const ALIGN: usize = 64;
/// The alignment of the tensor, its strides and the rows of a box, in bytes.
const UNIT: u64 = 16;

/// Encodes a map. Elements that are rounded when they are copied, and interleaved layouts, are
/// refused.
unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut [u8; TENSOR_MAP_BYTES],
    element: c_int,
    rank: c_uint,
    address: *mut c_void,
    sizes: *const u64,
    strides: *const u64,
    box_sizes: *const c_uint,
    element_strides: *const c_uint,
    interleave: c_int,
    swizzle: c_int,
    _promotion: c_int,
    fill: c_int,
) -> Code {
    driver_call("cuTensorMapEncodeTiled", Scope::Context, |_| {
        required(map)?;
        let is_aligned = (map as usize).is_multiple_of(ALIGN);
        if !is_aligned || !(1..=5).contains(&rank) || !(0..=1).contains(&fill) {
            return Err(ERROR_INVALID_VALUE);
        }
        if interleave != 0 {
            return Err(ERROR_NOT_SUPPORTED);
        }
        let element = element_of(element)?;
        let mut dimensions = Vec::new();
        for index in 0..rank as usize {
            // SAFETY: the caller's arrays have an element for each dimension, `strides` for each
            // but the first.
            let dimension = unsafe {
                TensorDimension {
                    size: value(sizes, index)?,
                    stride: match index.checked_sub(1) {
                        None => element.bytes() as u64,
                        Some(index) => value(strides, index)?,
                    },
                    box_size: value(box_sizes, index)?,
                    element_stride: value(element_strides, index)?,
                }
            };
            dimensions.push(dimension);
        }
        let swizzle = match swizzle {
            0 => Swizzle::None,
            1 => Swizzle::Bytes32,
            2 => Swizzle::Bytes64,
            3 => Swizzle::Bytes128,
            _ => return Err(ERROR_INVALID_VALUE),
        };
        let address = address as u64;
        let encoded = TensorMap { element, address, dimensions, swizzle, fills_nan: fill == 1 };
        check(&encoded)?;
        // SAFETY: not null, so the caller's map.
        unsafe { map.write(encoded.to_bytes()) };
        Ok(())
    })
}

/// Changes the address of a map that [`cuTensorMapEncodeTiled`] has made.
unsafe extern "C" fn cuTensorMapReplaceAddress(
    map: *mut [u8; TENSOR_MAP_BYTES],
    address: *mut c_void,
) -> Code {
    driver_call("cuTensorMapReplaceAddress", Scope::Context, |_| {
        required(map)?;
        // SAFETY: not null, so the caller's map.
        let known = TensorMap::from_bytes(&unsafe { map.read_unaligned() });
        let mut known = known.ok_or(ERROR_INVALID_VALUE)?;
        known.address = address as u64;
        check(&known)?;
        // SAFETY: as above.
        unsafe { map.write_unaligned(known.to_bytes()) };
        Ok(())
    })
}

/// Returns the elements of a number of `CUtensorMapDataType`.
fn element_of(number: c_int) -> Outcome<TensorElement> {
    use TensorElement as E;
    const ALL: [TensorElement; 10] =
        [E::U8, E::U16, E::U32, E::S32, E::U64, E::S64, E::F16, E::F32, E::F64, E::Bf16];
    match usize::try_from(number) {
        Ok(index) if index < ALL.len() => Ok(ALL[index]),
        // Single precision that is flushed or rounded to TF32 when it is copied.
        Ok(10..=12) => Err(ERROR_NOT_SUPPORTED),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

/// # Safety
///
/// `all` is null, or has an element of this index.
unsafe fn value<T: Copy>(all: *const T, index: usize) -> Outcome<T> {
    if all.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so by this function's contract.
    Ok(unsafe { all.add(index).read_unaligned() })
}

/// Refuses a map that the driver refuses.
fn check(map: &TensorMap) -> Outcome {
    let fits = |dimension: &TensorDimension| {
        (1..=1 << 32).contains(&dimension.size)
            && (1..=256).contains(&dimension.box_size)
            && (1..=8).contains(&dimension.element_stride)
    };
    let stride_fits = |dimension: &TensorDimension| {
        dimension.stride.is_multiple_of(UNIT) && dimension.stride < 1 << 40
    };
    let (inner, outer) = map.dimensions.split_first().ok_or(ERROR_INVALID_VALUE)?;
    let row = u64::from(inner.box_size) * map.element.bytes() as u64;
    let widest = match map.swizzle {
        Swizzle::Bytes32 => 32,
        Swizzle::Bytes64 => 64,
        Swizzle::Bytes128 => 128,
        _ => u64::MAX,
    };
    let is_valid = map.address.is_multiple_of(UNIT)
        && map.dimensions.iter().all(fits)
        && outer.iter().all(stride_fits)
        && row.is_multiple_of(UNIT)
        && row <= widest;
    if is_valid { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
}

//! The type, the shape and the strides of a tensor, checked, and the bytes that they span.

use dlpark::ffi::{DLDataType, DLTensor};

use crate::error::{FieldProblem, ImportError};

/// The most dimensions of a tensor.
pub const MOST_DIMENSIONS: usize = 64;

/// The type, shape and strides of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) dtype: DLDataType,
    /// No dimension is negative.
    pub(crate) shape: Box<[i64]>,
    /// In elements; as many as dimensions.
    pub(crate) strides: Box<[i64]>,
    /// Bytes from the lowest address of an element to that of the first element.
    pub(crate) first: usize,
    /// Bytes from the lowest address of an element to the end of the highest one; 0 without
    /// elements.
    pub(crate) span: usize,
}

impl Layout {
    /// Makes the layout of a tensor without gaps, in C order.
    ///
    /// # Errors
    ///
    /// [`Field`](ImportError::Field) for a type without whole bytes, a negative dimension, too many
    /// of them, and sizes that exceed the address space.
    pub fn contiguous(dtype: DLDataType, shape: &[i64]) -> Result<Self, ImportError> {
        Self::new(dtype, shape, None)
    }

    /// Reads and checks the layout of a tensor.
    ///
    /// # Safety
    ///
    /// `shape` is null, or has `ndim` numbers, and so has `strides`, if `ndim` is not negative and
    /// [`MOST_DIMENSIONS`] at most.
    pub(crate) unsafe fn of(tensor: &DLTensor) -> Result<Self, ImportError> {
        let most = MOST_DIMENSIONS as i64;
        let found = i64::from(tensor.ndim);
        let ndim = usize::try_from(tensor.ndim)
            .ok()
            .filter(|ndim| *ndim <= MOST_DIMENSIONS)
            .ok_or(ImportError::field("ndim", FieldProblem::Range { found, from: 0, to: most }))?;
        let numbers = |at: *const i64| match ndim {
            0 => Some(&[][..]),
            _ if at.is_null() || !at.is_aligned() => None,
            // SAFETY: the caller's obligation, and neither null nor unaligned.
            _ => Some(unsafe { std::slice::from_raw_parts(at, ndim) }),
        };
        let Some(shape) = numbers(tensor.shape) else {
            return Err(ImportError::field("shape", FieldProblem::Null));
        };
        Self::new(tensor.dtype, shape, numbers(tensor.strides))
    }

    fn new(dtype: DLDataType, shape: &[i64], strides: Option<&[i64]>) -> Result<Self, ImportError> {
        let element = bytes_of(dtype)?;
        if shape.len() > MOST_DIMENSIONS {
            let found = shape.len() as i64;
            let problem = FieldProblem::Range { found, from: 0, to: MOST_DIMENSIONS as i64 };
            return Err(ImportError::field("ndim", problem));
        }
        if let Some(found) = shape.iter().copied().find(|size| *size < 0) {
            let problem = FieldProblem::Range { found, from: 0, to: i64::MAX };
            return Err(ImportError::field("shape", problem));
        }
        let is_empty = shape.contains(&0);
        let too_large = |field| ImportError::field(field, FieldProblem::Overflow);
        let count = match is_empty {
            true => 0,
            false => shape
                .iter()
                .try_fold(1_i64, |count, size| count.checked_mul(*size))
                .ok_or(too_large("shape"))?,
        };
        let bytes = i128::from(count) * i128::from(element);
        usize::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= isize::MAX as usize)
            .ok_or(too_large("shape"))?;
        let strides = match strides {
            Some(strides) => strides.into(),
            None => compact(shape),
        };
        let mut low = 0_i128;
        let mut high = 0_i128;
        for (size, stride) in shape.iter().zip(&strides) {
            let reach = i128::from((size - 1).max(0)) * i128::from(*stride);
            let end = if reach < 0 { &mut low } else { &mut high };
            *end = end.checked_add(reach).ok_or(too_large("strides"))?;
        }
        let in_bytes = |elements: i128| {
            let bytes = elements.checked_mul(i128::from(element))?;
            usize::try_from(bytes).ok().filter(|bytes| *bytes <= isize::MAX as usize)
        };
        let (first, span) = match is_empty {
            true => (Some(0), Some(0)),
            false => (in_bytes(-low), in_bytes(high - low + 1)),
        };
        let first = first.ok_or(too_large("strides"))?;
        let span = span.ok_or(too_large("strides"))?;
        Ok(Self { dtype, shape: shape.into(), strides, first, span })
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    /// Returns the sizes of the dimensions.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns the strides of the dimensions, in elements.
    #[must_use]
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Returns the bytes from the lowest address of an element to the end of the highest one.
    #[must_use]
    pub fn span(&self) -> usize {
        self.span
    }

    /// Returns the bytes from the lowest address of an element to the first element: 0, unless a
    /// stride is negative.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        // Checked when it was made.
        self.shape.iter().fold(1, |count, size| count.saturating_mul(*size as usize))
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Returns whether the elements are in C order, without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.is_empty()
            || self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
                let fits = *size == 1 || *stride == expected;
                expected = expected.saturating_mul(*size);
                fits
            })
    }

    /// Returns whether an element has two indices: then a write through one is seen through the
    /// other.
    #[must_use]
    pub fn repeats_elements(&self) -> bool {
        self.shape.iter().zip(&self.strides).any(|(size, stride)| *size > 1 && *stride == 0)
    }
}

/// Returns the strides of a tensor without gaps.
fn compact(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![1; shape.len()];
    let mut next = 1_i64;
    for (stride, size) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next = next.saturating_mul((*size).max(1));
    }
    strides.into()
}

/// Returns the bytes of an element.
fn bytes_of(dtype: DLDataType) -> Result<u32, ImportError> {
    if !dtype.code.is_known() {
        return Err(ImportError::field("dtype.code", FieldProblem::TypeCode(dtype.code.0)));
    }
    for (field, found, to) in [
        ("dtype.bits", i64::from(dtype.bits), i64::from(u8::MAX)),
        ("dtype.lanes", i64::from(dtype.lanes), i64::from(u16::MAX)),
    ] {
        if found == 0 {
            return Err(ImportError::field(field, FieldProblem::Range { found, from: 1, to }));
        }
    }
    let bits = u32::from(dtype.bits) * u32::from(dtype.lanes);
    // Elements that are packed, or padded, within bytes have no addresses.
    match bits.is_multiple_of(8) && dtype.bits.is_multiple_of(8) {
        true => Ok(bits / 8),
        false => Err(ImportError::field("dtype.bits", FieldProblem::SubByte(bits))),
    }
}

//! Checks and rounding of sizes, and sizes in messages.

use crate::ResourceError;
pub use crate::human::human_bytes;

/// The minimum alignment of a block, in bytes: that of `cuMemAlloc`.
pub const BLOCK_ALIGNMENT: usize = 256;

/// Rounds `bytes` up to a multiple of `alignment` (a power of two).
///
/// # Errors
///
/// [`ResourceError::InvalidSize`] for zero bytes and for sizes that overflow when rounded up.
#[inline]
pub fn checked_round_up(bytes: usize, alignment: usize) -> Result<usize, ResourceError> {
    if bytes == 0 {
        return Err(ResourceError::zero_size());
    }
    match bytes.checked_add(alignment - 1) {
        Some(sum) => Ok(sum & !(alignment - 1)),
        None => Err(ResourceError::size_overflow(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_errors_and_the_largest_that_fits_is_not() {
        assert!(checked_round_up(0, 256).is_err());
        for k in 0..255 {
            assert!(checked_round_up(usize::MAX - k, 256).is_err(), "MAX - {k}");
        }
        assert_eq!(checked_round_up(usize::MAX - 255, 256).unwrap(), usize::MAX - 255);
        assert_eq!(checked_round_up(1, 256).unwrap(), 256);
    }
}

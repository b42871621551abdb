//! Sizes and alignment: T3.

use super::support::{Outcome, Subject, ensure, ensure_refused};
use crate::ResourceError;
use crate::size::BLOCK_ALIGNMENT;

pub(super) fn zero_bytes_are_refused(s: &Subject<'_>) -> Outcome {
    for stream in [s.a, s.b] {
        let before = s.usage()?;
        ensure_refused!("allocate(0)", s.refused(0, stream), ResourceError::InvalidSize { .. });
        let after = s.usage()?;
        ensure!(before == after, "the refusal changed the usage from {before:?} to {after:?}");
    }
    Ok(())
}

pub(super) fn sizes_that_overflow_are_refused(s: &Subject<'_>) -> Outcome {
    for k in [0, 1, 2, 7, 8, 15, 31, 63, 126, 127, 128, 129, 253, 254, 255] {
        is_too_large(s, usize::MAX - k)?;
    }
    Ok(())
}

pub(super) fn sizes_beyond_the_device_are_refused(s: &Subject<'_>) -> Outcome {
    let device = usize::try_from(s.harness.device_bytes()).unwrap_or(usize::MAX);
    for bytes in [device.saturating_add(1), device.saturating_mul(2), usize::MAX / 2] {
        is_too_large(s, bytes)?;
    }
    Ok(())
}

/// A budget, whose limit is smaller, may refuse the size before the device does.
fn is_too_large(s: &Subject<'_>, bytes: usize) -> Outcome {
    let before = s.usage()?;
    ensure_refused!(
        format!("allocate({bytes})"),
        s.refused(bytes, s.a),
        ResourceError::InvalidSize { .. } | ResourceError::OutOfBudget { .. }
    );
    let after = s.usage()?;
    ensure!(before == after, "the refusal changed the usage from {before:?} to {after:?}");
    Ok(())
}

pub(super) fn blocks_are_aligned(s: &Subject<'_>) -> Outcome {
    let mut blocks = Vec::new();
    for bytes in [1, 2, 255, 256, 257, 511, 513, 4095, 4097, (64 << 10) + 1] {
        let block = s.allocate(bytes, s.a)?;
        let ptr = block.ptr();
        let alignment = block.alignment();
        blocks.push(block);
        ensure!(
            alignment >= BLOCK_ALIGNMENT && alignment.is_power_of_two(),
            "a block of {bytes} bytes claims an alignment of {alignment}"
        );
        ensure!(
            ptr != 0 && ptr % alignment as u64 == 0,
            "a block of {bytes} bytes is at {ptr:#x}, which is not aligned to {alignment}"
        );
    }
    s.deallocate_all(blocks)
}

//! Parts are refused, and growing in place is counted exactly: T10, T11.

use super::blocks::overlap;
use super::support::{Failure, LARGE, ODD, Outcome, Subject, ensure, ensure_refused};
use crate::{DeallocateError, DeviceBlock, ResourceError, Usage};

/// Bytes of the blocks that are narrowed.
const WHOLE: usize = 4 * ODD;

pub(super) fn a_part_is_refused_and_its_whole_can_be_freed(s: &Subject<'_>) -> Outcome {
    for (offset, bytes) in [(0, ODD), (256, ODD), (256, WHOLE - 256), (0, WHOLE)] {
        let block = s.allocate(WHOLE, s.a)?;
        let neighbour = s.allocate(WHOLE, s.a)?;
        s.fill(s.a, &neighbour, 0x22)?;
        let id = block.id();
        let before = s.usage()?;
        let (part, whole) = narrow(block, offset, bytes)?;
        let part = refused_part(s, part, &before)?;
        // A part of the part, of the same size.
        let (inner, outer) = narrow(part, 0, bytes)?;
        let inner = refused_part(s, inner, &before)?;
        let part = outer.restore(inner).map_err(|_| Failure::new("a refused part has changed"))?;
        let block = whole.restore(part).map_err(|_| Failure::new("a refused part has changed"))?;
        ensure!(
            (block.id(), block.bytes()) == (id, WHOLE),
            "{id:?} of {WHOLE} bytes was restored as {block:?}"
        );
        s.fill(s.a, &block, 0x11)?;
        s.expect(s.a, &block, 0x11)?;
        s.expect(s.a, &neighbour, 0x22)?;
        s.deallocate_all([block, neighbour])?;
        s.reap_pending()?;
        let usage = s.usage()?;
        ensure!(usage.outstanding() == 0, "every whole was freed and reaped: {usage:?}");
    }
    Ok(())
}

/// Narrows a block, which is large enough for the part.
fn narrow(
    block: DeviceBlock,
    offset: usize,
    bytes: usize,
) -> Outcome<(DeviceBlock, crate::WholeBlock)> {
    block.narrow(offset, bytes).map_err(|block| {
        Failure::new(format!("{block:?} has no part of {bytes} bytes at offset {offset}"))
    })
}

/// Checks that a part is neither deallocated nor made larger, and that nothing changes.
fn refused_part(s: &Subject<'_>, mut part: DeviceBlock, before: &Usage) -> Outcome<DeviceBlock> {
    let unchanged = format!("{part:?}");
    let Err(refusal) = s.resource.deallocate(part) else {
        return Err(Failure::new("a part of a block was deallocated, and the rest is lost"));
    };
    let DeallocateError { error, block } = *refusal;
    part = block;
    ensure_refused!("a part", Err::<(), _>(error), ResourceError::PartOfBlock { .. });
    for wanted in [part.bytes() + 1, 2 * WHOLE] {
        let grown = s.resource.try_grow(&mut part, wanted);
        ensure!(
            matches!(grown, Ok(false) | Err(ResourceError::PartOfBlock { .. })),
            "growing a part to {wanted} bytes returns {grown:?}"
        );
    }
    let after = s.usage()?;
    ensure!(after == *before, "a refused part changed the usage from {before:?} to {after:?}");
    ensure!(format!("{part:?}") == unchanged, "a refused part was {unchanged} and is {part:?}");
    Ok(part)
}

pub(super) fn growing_is_counted_exactly_or_changes_nothing(s: &Subject<'_>) -> Outcome {
    let beyond_device = usize::try_from(s.harness.device_bytes()).unwrap_or(usize::MAX - 1) + 1;
    for bytes in [1, ODD, LARGE] {
        let mut block = s.allocate(bytes, s.a)?;
        s.fill(s.a, &block, 0x11)?;
        // With free memory behind the block, and without.
        grow(s, &mut block, bytes)?;
        grow(s, &mut block, bytes + 256)?;
        let neighbour = s.allocate(bytes, s.a)?;
        s.fill(s.a, &neighbour, 0x22)?;
        for wanted in [1, bytes + 257, 2 * bytes + 512, beyond_device] {
            grow(s, &mut block, wanted)?;
            ensure!(!overlap(&block, &neighbour), "{block:?} grew over {neighbour:?}");
        }
        let (part, whole) = narrow(block, 0, bytes)?;
        s.expect(s.a, &part, 0x11)?;
        let restored = whole.restore(part);
        let block = restored.map_err(|_| Failure::new("a part has changed by a check"))?;
        s.fill(s.a, &block, 0x33)?;
        s.expect(s.a, &block, 0x33)?;
        s.expect(s.a, &neighbour, 0x22)?;
        s.deallocate_all([block, neighbour])?;
        s.reap_pending()?;
        let usage = s.usage()?;
        ensure!(usage.outstanding() == 0, "everything was freed and reaped: {usage:?}");
    }
    Ok(())
}

/// Grows a block, and checks what `try_grow` returns against the block and the accounting.
fn grow(s: &Subject<'_>, block: &mut DeviceBlock, wanted: usize) -> Outcome {
    let id = block.id();
    let bytes = block.bytes();
    let before = s.usage()?;
    let result = s.resource.try_grow(block, wanted);
    let after = s.usage()?;
    let grown = match result {
        Ok(grown) => grown,
        Err(ResourceError::InvalidSize { .. }) if wanted > bytes => false,
        Err(error) => {
            return Err(Failure::new(format!("try_grow to {wanted} bytes failed: {error}")));
        }
    };
    let expected = if grown { bytes.max(wanted) } else { bytes };
    ensure!(
        (block.id(), block.bytes()) == (id, expected) && block.reserved_bytes() >= expected,
        "try_grow from {bytes} to {wanted} bytes returns {grown}, and the block is {block:?}"
    );
    ensure!(
        grown || wanted > bytes,
        "a block of {bytes} bytes has {wanted}, and try_grow returns false"
    );
    let mut counted = before;
    counted.live += (expected - bytes) as u64;
    counted.total_allocated += (expected - bytes) as u64;
    counted.reserved = after.reserved;
    ensure!(
        after == counted,
        "try_grow from {bytes} to {wanted} bytes returns {grown}; the usage went from {before:?} to \
         {after:?}"
    );
    Ok(())
}

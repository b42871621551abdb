//! Failed calls change nothing: T4.

use super::support::{Failure, ODD, Outcome, Subject, TAG, ensure, ensure_refused};
use crate::{DeallocateError, ResourceError};

/// The number of blocks that fill the device.
const PARTS: u64 = 8;

pub(super) fn running_out_of_memory_changes_nothing(s: &Subject<'_>) -> Outcome {
    let bytes = usize::try_from(s.harness.device_bytes() / PARTS).unwrap_or(usize::MAX);
    let mut blocks = Vec::new();
    let mut refused = None;
    while refused.is_none() && blocks.len() as u64 <= PARTS {
        match s.resource.allocate(bytes, s.a, TAG) {
            Ok(block) => blocks.push(block),
            Err(error) => refused = Some(error),
        }
    }
    // The device is full: deallocates before any result is judged.
    let count = blocks.len() as u64;
    let full = s.resource.usage();
    let again = s.resource.allocate(bytes, s.b, TAG).map(|block| blocks.push(block));
    let after = s.resource.usage();
    s.deallocate_all(blocks)?;
    s.synchronize()?;
    s.reap_pending()?;
    let empty = s.usage()?;

    let Some(error) = refused else {
        return Err(Failure::new(format!(
            "{count} blocks of {bytes} bytes fit into a device of {} bytes",
            s.harness.device_bytes()
        )));
    };
    ensure!(count > 0, "no block of {bytes} bytes fits, an eighth of the device: {error}");
    for result in [Err(error), again] {
        ensure_refused!(
            format!("a block of {bytes} bytes on a full device"),
            result,
            ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. }
        );
    }
    ensure!(
        full.live == count * bytes as u64,
        "{count} blocks of {bytes} bytes are live, and one was refused: {full:?}"
    );
    ensure!(
        (full.live, full.total_allocated) == (after.live, after.total_allocated),
        "a refused allocation changed the usage from {full:?} to {after:?}"
    );
    ensure!(empty.outstanding() == 0, "all blocks were deallocated: {empty:?}");
    let block = s.allocate(bytes, s.a)?;
    s.deallocate(block)?;
    s.synchronize()?;
    s.reap_pending().map(drop)
}

pub(super) fn a_block_of_another_resource_is_returned_in_the_error(
    owner: &Subject<'_>,
    stranger: &Subject<'_>,
) -> Outcome {
    // The stranger has a block of its own, which differs only in its identity.
    let its_own = stranger.allocate(ODD, stranger.a)?;
    let block = owner.allocate(ODD, owner.a)?;
    let id = block.id();
    let before = stranger.usage()?;
    let Err(refusal) = stranger.resource.deallocate(block) else {
        return Err(Failure::new("a block of another resource was deallocated, and is lost"));
    };
    let DeallocateError { error, block } = *refusal;
    let after = stranger.usage()?;
    ensure_refused!(
        "a block of another resource",
        Err::<(), _>(error),
        ResourceError::ForeignBlock { .. } | ResourceError::StreamMisuse { .. }
    );
    ensure!(block.id() == id, "{id:?} was returned as {:?}", block.id());
    ensure!(before == after, "the refusal changed the usage from {before:?} to {after:?}");
    owner.deallocate(block)?;
    stranger.deallocate(its_own)?;
    for s in [owner, stranger] {
        s.reap_pending()?;
        let usage = s.usage()?;
        ensure!(usage.outstanding() == 0, "all blocks were deallocated: {usage:?}");
    }
    Ok(())
}

pub(super) fn a_dropped_block_leaks_visibly(s: &Subject<'_>) -> Outcome {
    let kept = s.allocate(ODD, s.a)?;
    drop(s.allocate(ODD, s.a)?);
    s.deallocate(kept)?;
    s.synchronize()?;
    s.reap_pending()?;
    let usage = s.usage()?;
    ensure!(usage.live == ODD as u64, "a block of {ODD} bytes was dropped: {usage:?}");
    Ok(())
}

//! Returning unused memory to the driver: T9.

use super::support::{Failure, LARGE, Outcome, Subject, ensure};

pub(super) fn trimming_returns_only_unused_memory(s: &Subject<'_>) -> Outcome {
    let live = s.allocate(LARGE, s.a)?;
    s.fill(s.a, &live, 1)?;
    for stream in [s.a, s.b] {
        let block = s.allocate(4 * LARGE, stream)?;
        s.delay(stream)?;
        s.fill(stream, &block, 2)?;
        s.deallocate(block)?;
    }
    // While work is in progress, and twice when it is done.
    trim(s, 0)?;
    s.synchronize()?;
    s.reap_pending()?;
    ensure!(trim(s, u64::MAX)? == 0, "there is no more reserved than may be kept");
    for _ in 0..2 {
        trim(s, 0)?;
        s.expect(s.a, &live, 1)?;
    }
    s.deallocate(live)?;
    s.synchronize()?;
    s.reap_pending()?;
    trim(s, 0)?;
    let usage = s.usage()?;
    ensure!(usage.reserved == 0, "no block is left, and everything was trimmed: {usage:?}");
    let block = s.allocate(LARGE, s.b)?;
    s.deallocate(block)?;
    s.synchronize()?;
    s.reap_pending().map(drop)
}

/// Trims, and compares the usage before and after.
fn trim(s: &Subject<'_>, keep_bytes: u64) -> Outcome<u64> {
    let before = s.usage()?;
    let trimmed = s.resource.trim_to(keep_bytes);
    let trimmed = trimmed.map_err(|e| Failure::new(format!("trim_to failed: {e}")))?;
    let after = s.usage()?;
    ensure!(
        (before.live, before.total_allocated) == (after.live, after.total_allocated),
        "trimming touched a live block: the usage went from {before:?} to {after:?}"
    );
    ensure!(
        before.reserved.checked_sub(after.reserved) == Some(trimmed),
        "trimming returned {trimmed} bytes; the usage went from {before:?} to {after:?}"
    );
    Ok(trimmed)
}

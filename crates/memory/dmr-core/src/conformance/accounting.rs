//! Accounting and reaping: T6 and T7.

use super::blocks::overlap;
use super::support::{Failure, LARGE, Numbers, ODD, Outcome, Subject, TAG, ensure, message_of};
use crate::{
    Access, BlockId, BlockState, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource,
    StreamId, Usage, UseTrackingExt,
};

pub(super) fn usage_counts_requested_bytes(s: &Subject<'_>) -> Outcome {
    let sizes = [1, 255, ODD, LARGE];
    let mut blocks = Vec::new();
    let mut sum = 0;
    for bytes in sizes {
        blocks.push(s.allocate(bytes, s.a)?);
        sum += bytes as u64;
        let usage = s.usage()?;
        ensure!(
            (usage.live, usage.total_allocated, usage.retired) == (sum, sum, 0),
            "blocks of {sum} bytes in all were allocated: {usage:?}"
        );
    }
    for block in blocks {
        let bytes = block.bytes() as u64;
        s.deallocate(block)?;
        sum -= bytes;
        let usage = s.usage()?;
        ensure!(usage.live == sum, "blocks of {sum} bytes in all are left: {usage:?}");
    }
    s.reap_pending()?;
    let usage = s.usage()?;
    ensure!(usage.outstanding() == 0, "all blocks were deallocated and reaped: {usage:?}");
    Ok(())
}

/// The expected usage after a sequence of calls by one thread.
#[derive(Default)]
struct Expected {
    live: u64,
    allocated: u64,
    last: Usage,
}

impl Expected {
    fn holds(&mut self, s: &Subject<'_>, after: &str) -> Outcome<Usage> {
        let usage = s.usage()?;
        ensure!(
            (usage.live, usage.total_allocated) == (self.live, self.allocated),
            "after {after}: {} bytes are live of {} ever allocated, but {usage:?}",
            self.live,
            self.allocated
        );
        self.last = usage;
        Ok(usage)
    }
}

pub(super) fn usage_is_exact_through_a_random_sequence(s: &Subject<'_>) -> Outcome {
    let mut numbers = Numbers::seeded(6);
    let mut blocks: Vec<DeviceBlock> = Vec::new();
    let mut expected = Expected::default();
    for _ in 0..96 {
        match numbers.below(16) {
            0 => {
                s.try_reap()?;
                expected.holds(s, "try_reap")?;
            }
            1 => {
                s.reap_pending()?;
                expected.holds(s, "reap_pending")?;
            }
            2 => {
                let zero = s.refused(0, s.a);
                ensure!(zero.is_err(), "allocate(0) was accepted");
                expected.holds(s, "a refused allocation")?;
            }
            3..=7 if !blocks.is_empty() => {
                let block = blocks.swap_remove(numbers.below(blocks.len()));
                expected.live -= block.bytes() as u64;
                s.deallocate(block)?;
                expected.holds(s, "deallocate")?;
            }
            _ => {
                let stream = if numbers.below(2) == 0 { s.a } else { s.b };
                let block = s.allocate(1 + numbers.below(4 * ODD), stream)?;
                expected.live += block.bytes() as u64;
                expected.allocated += block.bytes() as u64;
                blocks.push(block);
                expected.holds(s, "allocate")?;
            }
        }
    }
    s.deallocate_all(blocks)?;
    expected.live = 0;
    s.reap_pending()?;
    let usage = expected.holds(s, "the end")?;
    ensure!(usage.retired == 0, "all blocks were deallocated and reaped: {usage:?}");
    Ok(())
}

const THREADS: usize = 8;

/// The result of one thread, with the blocks that it still holds.
struct Done {
    allocated: u64,
    held: Vec<DeviceBlock>,
    failure: Option<String>,
}

pub(super) fn usage_is_exact_after_eight_threads(s: &Subject<'_>) -> Outcome {
    let resource = s.resource;
    let streams = [s.a, s.b];
    let done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| scope.spawn(move || mixed_operations(resource, streams[i % 2], i as u64)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut held = Vec::new();
    let mut allocated = 0;
    for thread in done {
        let thread =
            thread.map_err(|p| Failure::new(format!("a thread panicked: {}", message_of(&*p))))?;
        if let Some(why) = thread.failure {
            return Err(Failure::new(why));
        }
        allocated += thread.allocated;
        held.extend(thread.held);
    }
    let live: u64 = held.iter().map(|block| block.bytes() as u64).sum();
    let usage = s.usage()?;
    ensure!(
        (usage.live, usage.total_allocated) == (live, allocated),
        "{THREADS} threads allocated {allocated} bytes and hold {live} of them: {usage:?}"
    );
    held.sort_by_key(DeviceBlock::ptr);
    for pair in held.windows(2) {
        ensure!(!overlap(&pair[0], &pair[1]), "{:?} overlaps {:?}", pair[0], pair[1]);
    }
    s.deallocate_all(held)?;
    s.reap_pending()?;
    let usage = s.usage()?;
    ensure!(usage.outstanding() == 0, "all blocks were deallocated and reaped: {usage:?}");
    Ok(())
}

pub(super) fn is_retired_reports_retired_blocks(s: &Subject<'_>) -> Outcome {
    let mut numbers = Numbers::seeded(11);
    let mut deallocated: Vec<(BlockId, u64)> = Vec::new();
    for round in 0..24 {
        let (home, other) = if numbers.below(2) == 0 { (s.a, s.b) } else { (s.b, s.a) };
        let block = s.allocate(1 + numbers.below(4 * ODD), home)?;
        let id = block.id();
        let bytes = block.bytes() as u64;
        s.fill(home, &block, 1)?;
        if s.tracks() && numbers.below(2) == 0 {
            let tokens = s.resource.prepare_uses(&[BlockUse::new(id, Access::Read)], other);
            let tokens = tokens.map_err(|e| Failure::new(format!("prepare_uses failed: {e}")))?;
            s.delay(other)?;
            let finished = s.resource.finish_uses(tokens);
            finished.map_err(|e| Failure::new(format!("finish_uses failed: {e}")))?;
        }
        ensure!(!s.resource.is_retired(id), "{block} is live, and is_retired returns true");
        let state = s.resource.deallocate(block).map_err(|e| Failure::new(e.to_string()))?;
        match (state, s.resource.is_retired(id)) {
            (BlockState::Retired | BlockState::Quarantined, _) => deallocated.push((id, bytes)),
            (BlockState::Freed, false) => {}
            contradiction => {
                let why = format!("deallocate and is_retired return {contradiction:?}");
                return Err(Failure::new(why));
            }
        }
        if round % 7 == 6 {
            s.try_reap()?;
        }
        let retired = deallocated.iter().filter(|(id, _)| s.resource.is_retired(*id));
        let sum: u64 = retired.map(|(_, bytes)| bytes).sum();
        let usage = s.usage()?;
        ensure!(usage.retired == sum, "is_retired reports {sum} bytes, but {usage:?}");
    }
    s.reap_pending()?;
    let left = deallocated.iter().filter(|(id, _)| s.resource.is_retired(*id)).count();
    ensure!(left == 0, "everything was reaped, and is_retired still reports {left} blocks");
    Ok(())
}

/// Allocates, frees and reaps, and watches that no total ever decreases.
fn mixed_operations(resource: &dyn DeviceMemoryResource, stream: StreamId, seed: u64) -> Done {
    let mut numbers = Numbers::seeded(seed + 1);
    let mut done = Done { allocated: 0, held: Vec::new(), failure: None };
    let mut last = (0, 0);
    for _ in 0..40 {
        let result = match numbers.below(8) {
            0 => resource.try_reap().map(drop),
            1..=3 if !done.held.is_empty() => {
                let block = done.held.swap_remove(numbers.below(done.held.len()));
                resource.deallocate(block).map(drop).map_err(|e| {
                    let DeallocateError { error, block } = *e;
                    done.held.push(block);
                    error
                })
            }
            _ => resource.allocate(1 + numbers.below(ODD), stream, TAG).map(|block| {
                done.allocated += block.bytes() as u64;
                done.held.push(block);
            }),
        };
        let usage = resource.usage();
        let totals = (usage.total_allocated, usage.total_freed);
        if totals.0 < last.0 || totals.1 < last.1 {
            done.failure = Some(format!("the totals went from {last:?} back to {totals:?}"));
        }
        last = totals;
        if let Err(error) = result {
            done.failure = Some(format!("a call of one of {THREADS} threads failed: {error}"));
        }
    }
    done
}

pub(super) fn totals_never_decrease(s: &Subject<'_>) -> Outcome {
    let mut last = s.usage()?;
    let mut watch = |what: &str| {
        let usage = s.usage()?;
        ensure!(
            usage.total_allocated >= last.total_allocated && usage.total_freed >= last.total_freed,
            "{what} has decreased a total, from {last:?} to {usage:?}"
        );
        last = usage;
        Ok(())
    };
    for round in 0..4 {
        let block = s.allocate(ODD << round, s.a)?;
        watch("allocate")?;
        s.fill(s.a, &block, 1)?;
        s.deallocate(block)?;
        watch("deallocate")?;
        s.try_reap()?;
        watch("try_reap")?;
        s.synchronize()?;
        s.reap_pending()?;
        watch("reap_pending")?;
    }
    Ok(())
}

pub(super) fn reaping_returns_the_bytes_it_freed(s: &Subject<'_>) -> Outcome {
    for waiting in [false, true] {
        let live = s.allocate(ODD, s.b)?;
        for bytes in [ODD, LARGE, 1] {
            let block = s.allocate(bytes, s.a)?;
            s.fill(s.a, &block, 1)?;
            s.deallocate(block)?;
        }
        s.synchronize()?;
        let before = s.usage()?;
        let reaped = if waiting { s.reap_pending()? } else { s.try_reap()? };
        let after = s.usage()?;
        let freed = after.total_freed - before.total_freed.min(after.total_freed);
        ensure!(
            reaped == freed && before.live == after.live,
            "reaping returns {reaped}; the usage went from {before:?} to {after:?}"
        );
        s.deallocate(live)?;
        s.synchronize()?;
        s.reap_pending()?;
    }
    ensure!(s.reap_pending()? == 0, "there was nothing left to reap");
    Ok(())
}

pub(super) fn reap_pending_leaves_only_live_blocks(s: &Subject<'_>) -> Outcome {
    let live = s.allocate(ODD, s.a)?;
    for stream in [s.a, s.b] {
        let block = s.allocate(LARGE, stream)?;
        s.delay(stream)?;
        s.fill(stream, &block, 1)?;
        s.deallocate(block)?;
    }
    s.fill(s.a, &live, 2)?;
    // Not synchronized before: `reap_pending` itself has to wait.
    s.reap_pending()?;
    let usage = s.usage()?;
    ensure!(
        (usage.live, usage.retired) == (ODD as u64, 0),
        "one block of {ODD} bytes is live, and everything else was reaped: {usage:?}"
    );
    s.expect(s.a, &live, 2)?;
    s.deallocate(live)?;
    s.reap_pending()?;
    let usage = s.usage()?;
    ensure!(usage.outstanding() == 0, "all blocks were deallocated and reaped: {usage:?}");
    Ok(())
}

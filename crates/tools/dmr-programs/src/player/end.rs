//! Checks of the accounting while a program runs, and of the state at its end.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, DeviceOps};
use dmr_pinned::PinnedPool;

use super::{Played, Player, text_of};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};
use crate::stack::Pool;
use crate::watch;

/// The number of trims at the end. The first one records an event that shows whether a stream has
/// finished with its borrowed chunks; and a free that an upstream has queued for the second has not
/// executed before the third, where work runs late.
const TRIMS: usize = 3;

impl Player {
    /// Compares `usage` with the blocks of the program. No call may be in progress.
    pub(crate) fn check_accounting(&self, at: usize) -> Played {
        match catch_unwind(AssertUnwindSafe(|| self.compare_usage())) {
            Ok(compared) => {
                compared.map_err(|text| Failure::new(FailureKind::Accounting, at, text))
            }
            Err(panic) => Err(Failure::new(FailureKind::Panic, at, text_of(&*panic))),
        }
    }

    fn compare_usage(&self) -> Result<(), String> {
        let state = self.state();
        if state.calls > 0 {
            return Ok(());
        }
        let usage = self.built.resource.usage();
        let bytes = |held: &super::state::Held| {
            state.facts.get(&held.block.generation()).map_or(0, |facts| facts.bytes)
        };
        let counterparts = state.pinned.values().map(|pinned| pinned.facts.bytes);
        let live: u64 = state.blocks.values().map(bytes).chain(counterparts).sum();
        let mut retired = HashMap::new();
        for used in state.windows.values().flat_map(|open| &open.uses) {
            if let Some(facts) = state.facts.get(&used.generation())
                && facts.is_deallocated
            {
                retired.insert(used.generation(), facts.bytes);
            }
        }
        let retired: u64 = retired.values().sum();
        drop(state);
        let is_exact = self.built.pool.is_some() && self.built.reports_blocks;
        let right = usage.live == live
            && if is_exact { usage.retired == retired } else { usage.retired >= retired }
            && usage.total_allocated - usage.total_freed == usage.live + usage.retired;
        if !right {
            return Err(format!("live {live} and retired {retired} are right: {usage:?}"));
        }
        if let Some(pool) = &self.built.pool {
            let reserved = pool.stats().reserved;
            let taken = taken_from_upstream(pool);
            if reserved != taken {
                return Err(format!("reserved {reserved}, and taken from upstream {taken}"));
            }
        }
        Ok(())
    }

    /// Ends the program. A panic is a failure.
    pub(crate) fn end_caught(&self) -> Played {
        let ended = catch_unwind(AssertUnwindSafe(|| self.end()));
        ended.unwrap_or_else(|panic| Err(Failure::at_end(FailureKind::Panic, text_of(&*panic))))
    }

    /// Ends the program: closes windows, frees blocks, returns streams; then no memory may be left.
    fn end(&self) -> Played {
        let last = self.program.lines.len();
        watch::begin(None, None);
        self.end_all_captures(last.saturating_sub(1))?;
        let mut windows: Vec<u32> = self.state().windows.keys().copied().collect();
        windows.sort_unstable();
        let at = last.saturating_sub(1);
        windows.into_iter().try_for_each(|window| self.close(at, window, false))?;
        let mut blocks: Vec<u32> = self.state().blocks.keys().copied().collect();
        blocks.sort_unstable();
        blocks.into_iter().try_for_each(|block| self.free(at, block, true))?;
        let mut pinned: Vec<u32> = self.state().pinned.keys().copied().collect();
        pinned.sort_unstable();
        pinned.into_iter().try_for_each(|pinned| self.unpin(at, pinned))?;
        self.compare_usage().map_err(|text| Failure::at_end(FailureKind::Accounting, text))?;
        let callbacks = self.built.callbacks.load(Ordering::Relaxed);
        (0..callbacks).for_each(|_| self.count(Conflict::CallbackAllocated));
        self.free_all_memory()?;
        PinnedPool::of(self.rig.streams())
            .reap_pending()
            .map_err(|error| self.unexpected(at, "reap_pinned", &error))?;
        let wrong = self.rig.ops().collect();
        let wrong = wrong.map_err(|error| self.unexpected(at, "collect", &error))?;
        if let Some(first) = wrong.first() {
            let line = usize::try_from(first.key).unwrap_or(0);
            let text = format!("offset {}, {} checks in all", first.offset, wrong.len());
            return Err(Failure::new(FailureKind::WrongByte, line, text));
        }
        let slots = std::mem::take(&mut self.state().streams);
        let adopted = slots.into_iter().filter(|slot| slot.is_adopted);
        let adopted: Vec<_> = adopted.filter_map(|slot| slot.lease).collect();
        for lease in adopted {
            let retired = self.rig.streams().retire_stream(&lease);
            retired.map_err(|error| self.unexpected(at, "retire_stream", &error))?;
        }
        watch::end();
        Ok(())
    }

    fn free_all_memory(&self) -> Played {
        let at = self.program.lines.len().saturating_sub(1);
        let resource = &self.built.resource;
        let failed = |error| self.unexpected(at, "at the end", &error);
        for _ in 0..TRIMS {
            self.rig.device().synchronize().map_err(failed)?;
            resource.reap_pending().map_err(failed)?;
            resource.trim_to(0).map_err(failed)?;
        }
        let usage = resource.usage();
        if usage.outstanding() != 0 || usage.reserved != 0 {
            return Err(Failure::at_end(FailureKind::MemoryLeft, format!("{usage:?}")));
        }
        Ok(())
    }

    /// Returns a failure if the simulator has reported something.
    pub(crate) fn verdict(&self) -> Played {
        let reports = self.universe().map(|universe| universe.reports()).unwrap_or_default();
        // A consequence of a race is not a separate finding.
        let first = reports.iter().find(|it| it.kind.is_race()).or(reports.first());
        match first {
            Some(report) => Err(Failure::at_end(FailureKind::Reported(report.kind), report)),
            None => Ok(()),
        }
    }
}

/// Returns the bytes that a pool has reserved, as its upstream reports them.
fn taken_from_upstream(pool: &Pool) -> u64 {
    let usage = pool.upstream().usage();
    if pool.stats().page_size > 0 { usage.reserved } else { usage.live }
}

//! Steps about uses: launches, windows, work on the home stream, copies.
//!
//! The player decides by itself what the library must return. It keeps the open windows of each
//! block and all earlier uses: while a window of another stream conflicts, a call must be refused,
//! and where no earlier use conflicts, no stream may wait. Both are checked only if no other thread
//! has changed one of the blocks during the call.

use std::sync::Arc;

use dmr_core::{
    Access, BlockUse, DeviceBlock, DeviceOps, ResourceError, UseTokens, UseTrackingExt,
};
use dmr_streams::StreamLease;

use super::content::Filled;
use super::state::{Footprint, Open, State, Use, Window, shadow_of, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};
use crate::program::Used;
use crate::watch;

/// The number of changes of a block's churn by one use of a single thread: a call that opens a
/// window, the window, and a call that closes it.
const CHURN_OF_A_USE: u64 = 5;

impl Player {
    pub(super) fn launch(&self, at: usize, stream: usize, uses: &[Used]) -> Played {
        let Some((lease, uses)) = self.look_up(stream, uses) else { return Ok(()) };
        let Some(open) = self.prepare(at, &lease, uses)? else { return Ok(()) };
        self.work_in(at, &open)?;
        self.finish(at, open)
    }

    pub(super) fn open(
        &self,
        at: usize,
        window: u32,
        stream: usize,
        uses: &[Used],
        is_idle: bool,
    ) -> Played {
        if self.state().windows.contains_key(&window) {
            return Ok(());
        }
        let Some((lease, uses)) = self.look_up(stream, uses) else { return Ok(()) };
        let Some(mut open) = self.prepare(at, &lease, uses)? else { return Ok(()) };
        if !is_idle {
            self.work_in(at, &open)?;
        }
        open.is_idle = is_idle;
        self.state().windows.insert(window, open);
        Ok(())
    }

    pub(super) fn close(&self, at: usize, window: u32, cancels: bool) -> Played {
        let Some(open) = self.state().windows.remove(&window) else { return Ok(()) };
        if cancels && open.is_idle {
            return self.cancel(at, open);
        }
        self.work_in(at, &open)?;
        self.finish(at, open)
    }

    /// Submits work to the home stream without declaring it, which is allowed there.
    pub(super) fn home(&self, at: usize, name: u32, access: Access) -> Played {
        let mut state = self.state();
        let Some(held) = state.blocks.get(&name) else { return Ok(()) };
        let (Some(home), block) = (held.home.clone(), shadow_of(&held.block)) else {
            return Ok(());
        };
        let was_private = held.is_private;
        let captures = state.captures.contains_key(&slot_of(&home));
        let facts = state.fact(block.generation());
        if facts.calls > 0 || !facts.windows.is_empty() || captures {
            return Ok(());
        }
        if !was_private {
            let churn = facts.churn;
            state.set_private(name, true);
            drop(state);
            // From now on the home stream comes after all others.
            let uses = vec![Use::whole(shadow_of(&block), Access::Write)];
            let Some(open) = self.prepare(at, &home, uses)? else {
                self.state().set_private(name, false);
                return Ok(());
            };
            self.work_in(at, &open)?;
            self.finish(at, open)?;
            state = self.state();
            // Another thread may have used the block meanwhile.
            let is_held = state.blocks.get(&name).is_some_and(|it| it.block.id() == block.id());
            if !is_held || state.fact(block.generation()).churn != churn + CHURN_OF_A_USE {
                state.set_private(name, false);
                state.remove_if_over(block.generation());
                return Ok(());
            }
        }
        state.set_private(name, true);
        let filled = state.fact(block.generation()).content.is_in(0..block.bytes());
        let access = if filled { access } else { Access::Write };
        state.counts.count(Conflict::HomeWork);
        self.work(at, &mut state, &home, &Use::whole(block, access))
    }

    /// Declares the undeclared work of the home stream.
    pub(super) fn record(&self, at: usize, name: u32) -> Played {
        let mut state = self.state();
        let Some(held) = state.blocks.get(&name).filter(|held| held.is_private) else {
            return Ok(());
        };
        let (Some(home), block) = (held.home.clone(), shadow_of(&held.block)) else {
            return Ok(());
        };
        let generation = block.generation();
        let facts = state.fact(generation);
        if facts.calls > 0 || !facts.windows.is_empty() {
            return Ok(());
        }
        facts.enter();
        let churn = facts.churn;
        facts.borrows += 1;
        drop(state);
        let stream = Some(slot_of(&home));
        self.touches(at, Footprint { blocks: vec![generation], stream, ..Footprint::default() });
        let recorded = self.library(at, || self.built.resource.record_block_use(&block, home.id()));
        let mut state = self.state();
        let facts = state.fact(generation);
        let is_deallocated = facts.is_deallocated;
        let disturbed = facts.churn != churn;
        facts.leave();
        state.fact(generation).borrows -= 1;
        if matches!(recorded, Ok(Ok(())))
            && let Some(held) = state.blocks.get_mut(&name)
        {
            held.is_private = false;
        }
        state.remove_if_over(generation);
        drop(state);
        match recorded? {
            Ok(()) => self.refused_by_capture(at, slot_of(&home), "record_block_use"),
            Err(ResourceError::UseAfterFree { .. }) if is_deallocated => Ok(()),
            Err(ResourceError::WindowConflict { .. }) if disturbed => Ok(()),
            Err(error) => self.expect_or_retired(at, "record_block_use", &home, &error),
        }
    }

    /// Finds the blocks and their accesses: bytes that were never written are written.
    pub(super) fn look_up(
        &self,
        stream: usize,
        uses: &[Used],
    ) -> Option<(Arc<StreamLease>, Vec<Use>)> {
        let state = self.state();
        let lease = state.lease(stream)?;
        let slot = slot_of(&lease);
        let mut found: Vec<Use> = Vec::new();
        for Used { block, access, part } in uses {
            let Some(held) = state.blocks.get(block) else { continue };
            let is_elsewhere = held.home.as_deref().map(slot_of) != Some(slot);
            if held.is_private && is_elsewhere {
                continue;
            }
            let generation = held.block.generation();
            if part.is_none() && found.iter().any(|used| used.generation() == generation) {
                continue;
            }
            let all = held.block.bytes();
            let part = part.map(|part| part.start.min(all)..part.end.min(all));
            if part.as_ref().is_some_and(std::ops::Range::is_empty) {
                continue;
            }
            let range = part.clone().unwrap_or(0..all);
            let filled = state.facts.get(&generation).is_some_and(|it| it.content.is_in(range));
            let access = if filled { *access } else { Access::Write };
            found.push(Use { block: shadow_of(&held.block), access, part });
        }
        (!found.is_empty()).then_some((lease, found))
    }

    /// Opens windows. `None`: the call was refused, correctly.
    pub(super) fn prepare(
        &self,
        at: usize,
        lease: &Arc<StreamLease>,
        uses: Vec<Use>,
    ) -> Played<Option<Open>> {
        let slot = slot_of(lease);
        let mut generations: Vec<_> = uses.iter().map(Use::generation).collect();
        generations.sort_unstable_by_key(|generation| generation.get());
        generations.dedup();
        let footprint =
            Footprint { blocks: generations.clone(), stream: Some(slot), ..Footprint::default() };
        self.touches(at, footprint);
        let mut state = self.state();
        let conflicts = |state: &mut State| {
            let mut found: Vec<Window> = Vec::new();
            for used in &uses {
                let windows = state.fact(used.generation()).windows.iter();
                found.extend(windows.filter(|it| it.is_before(used, slot)));
            }
            found
        };
        let before = conflicts(&mut state);
        let needs_wait = uses.iter().any(|used| {
            state.fact(used.generation()).past.iter().any(|it| it.is_before(used, slot))
        });
        let mut disturbed = false;
        let churn: Vec<u64> = generations
            .iter()
            .map(|generation| {
                let facts = state.fact(*generation);
                disturbed |= facts.calls > 0;
                facts.enter();
                facts.churn
            })
            .collect();
        drop(state);
        let asked = |used: &Use| BlockUse::of_bytes(used.block.id(), used.access, used.bytes());
        let asked: Vec<_> = uses.iter().map(asked).collect();
        let asked = self.without_undeclared(asked);
        let prepared = self.library(at, || self.built.resource.prepare_uses(&asked, lease.id()));
        let prepared = prepared.and_then(|prepared| self.judge_prepared(at, lease, prepared));
        let mut state = self.state();
        let after = conflicts(&mut state);
        let mut is_deallocated = false;
        for (generation, churn) in generations.iter().zip(churn) {
            let facts = state.fact(*generation);
            disturbed |= facts.churn != churn;
            is_deallocated |= facts.is_deallocated;
            facts.leave();
        }
        let refused = match prepared {
            Ok(Ok(tokens)) => {
                let still: Vec<_> = before.iter().filter(|it| after.contains(it)).collect();
                if !still.is_empty() && asked.len() == uses.len() {
                    let text = format!("another stream's window is open: {still:?}");
                    return Err(Failure::new(FailureKind::NotRefused, at, text));
                }
                if !needs_wait && !disturbed && watch::seen(&["cuStreamWaitEvent"]) {
                    let text = "no earlier use of another stream overlaps and conflicts";
                    return Err(Failure::new(FailureKind::NeedlessWait, at, text));
                }
                return Ok(Some(self.opened(&mut state, lease, tokens, uses)));
            }
            Ok(Err(refused)) => refused,
            Err(failure) => return Err(failure),
        };
        generations.iter().for_each(|generation| state.remove_if_over(*generation));
        match refused {
            ResourceError::WindowConflict { .. } if !before.is_empty() || disturbed => {
                state.counts.count(Conflict::WindowRefused);
                Ok(None)
            }
            ResourceError::UseAfterFree { .. } if is_deallocated => {
                state.counts.count(Conflict::StaleId);
                Ok(None)
            }
            error => {
                drop(state);
                self.expect_or_retired(at, "prepare_uses", lease, &error).map(|()| None)
            }
        }
    }

    fn opened(
        &self,
        state: &mut State,
        lease: &Arc<StreamLease>,
        tokens: UseTokens,
        uses: Vec<Use>,
    ) -> Open {
        state.windows_opened += 1;
        let number = state.windows_opened;
        let stream = slot_of(lease);
        for used in &uses {
            let Use { access, part, .. } = used;
            let facts = state.fact(used.generation());
            let nested = facts.windows.iter().any(|window| window.stream == stream);
            let window = Window { number, stream, access: *access, bytes: used.bytes() };
            let is_disjoint = |it: &Window| {
                it.stream != stream
                    && it.access.conflicts_with(*access)
                    && !it.bytes.overlaps(window.bytes)
            };
            let disjoint = facts.windows.iter().any(is_disjoint);
            facts.windows.push(window);
            facts.past.push(window);
            facts.churn += 1;
            if !facts.is_reported {
                self.report_allocated(facts);
            }
            let others = facts.readers.iter().filter(|reader| **reader != stream).count();
            let written = facts.last_write.is_some_and(|writer| writer != stream);
            let reached = match (access.writes(), others) {
                (false, _) => written.then_some(Conflict::ReadAfterWrite),
                (true, 0) => written.then_some(Conflict::WriteAfterWrite),
                (true, 1) => Some(Conflict::WriteAfterRead),
                (true, _) => Some(Conflict::WriteAfterTwoReaders),
            };
            if access.writes() {
                facts.last_write = Some(stream);
                facts.readers.clear();
            } else if !facts.readers.contains(&stream) {
                facts.readers.push(stream);
            }
            reached.iter().for_each(|conflict| state.counts.count(*conflict));
            let also = [
                (nested, Conflict::NestedWindow),
                (disjoint, Conflict::DisjointWindows),
                (part.is_some(), Conflict::PartUsed),
            ];
            also.iter().filter(|it| it.0).for_each(|it| state.counts.count(it.1));
        }
        Open { tokens, stream: Arc::clone(lease), uses, number, is_idle: false }
    }

    fn work_in(&self, at: usize, open: &Open) -> Played {
        let mut state = self.state();
        open.uses.iter().try_for_each(|used| self.work(at, &mut state, &open.stream, used))
    }

    /// Submits work. The model changes with it: no other thread submits meanwhile.
    fn work(&self, at: usize, state: &mut State, stream: &StreamLease, used: &Use) -> Played {
        let Use { block, access, .. } = used;
        if state.captures.contains_key(&slot_of(stream)) {
            // It would become part of the graph.
            return Ok(());
        }
        let ops = self.rig.ops();
        let failed = |error: ResourceError| self.unexpected(at, "work", &error);
        let filled = match access.reads() {
            true => state.fact(block.generation()).content.inside(used.range()),
            false => Vec::new(),
        };
        if !filled.is_empty() {
            let nth = state.random.below(filled.len() as u64) as usize;
            let Filled { bytes, pattern } = filled[nth].clone();
            let some = bytes.len().min(512);
            let start = if state.random.one_in(2) { bytes.start } else { bytes.end - some };
            ops.check_pattern(block, start..start + some, pattern, stream.id(), at as u64)
                .map_err(failed)?;
        }
        if access.writes() {
            let pattern = state.random.next_u64() as u32;
            ops.fill_pattern(block, used.range(), pattern, stream.id()).map_err(failed)?;
            state.fact(block.generation()).content.write(used.range(), pattern);
        }
        self.submitted(state, stream, block);
        Ok(())
    }

    pub(super) fn submitted(&self, state: &mut State, stream: &StreamLease, block: &DeviceBlock) {
        if let Some(listener) = &self.options.listener {
            listener.submitted(&self.rig, stream.id(), state.fact(block.generation()).ptr);
        }
    }

    pub(super) fn finish(&self, at: usize, open: Open) -> Played {
        self.end_window(at, open, true)
    }

    fn cancel(&self, at: usize, open: Open) -> Played {
        self.end_window(at, open, false)
    }

    fn end_window(&self, at: usize, open: Open, finishes: bool) -> Played {
        let Open { tokens, stream, uses, number, .. } = open;
        let slot = slot_of(&stream);
        let mut state = self.state();
        for used in &uses {
            let Use { block, access, part } = used;
            let facts = state.fact(block.generation());
            facts.windows.retain(|window| window.number != number);
            facts.enter();
            if facts.windows.is_empty() && facts.is_deallocated {
                self.report_freed(facts);
            }
            // This use also declares all earlier work of the home stream.
            if *access == Access::ReadWrite && part.is_none() && finishes {
                let held = state.blocks.values_mut().find(|it| it.block.id() == block.id());
                let at_home = held.filter(|it| it.home.as_deref().map(slot_of) == Some(slot));
                if let Some(held) = at_home {
                    held.is_private = false;
                }
            }
        }
        drop(state);
        let blocks = uses.iter().map(Use::generation).collect();
        self.touches(at, Footprint { blocks, stream: Some(slot), ..Footprint::default() });
        let resource = &self.built.resource;
        let ended = self.library(at, || match finishes {
            true => resource.finish_uses(tokens),
            false => resource.cancel_uses(tokens),
        });
        let mut state = self.state();
        for used in &uses {
            state.fact(used.generation()).leave();
            state.remove_if_over(used.generation());
        }
        drop(state);
        let is_retired = self.is_retired_in_use(&stream);
        match ended? {
            Ok(()) if is_retired => {
                let text = "a window was open on it";
                Err(Failure::new(FailureKind::RetiredInUse, at, text))
            }
            Ok(()) if finishes => self.refused_by_capture(at, slot, "finish_uses"),
            Ok(()) => Ok(()),
            Err(error) => self.expect_injected(at, "finish_uses", &error),
        }
    }

    /// Removes the use whose declaration the options omit.
    fn without_undeclared(&self, asked: Vec<BlockUse>) -> Vec<BlockUse> {
        let Some(undeclared) = self.options.undeclared else { return asked };
        let first = self.state().windows_declared(asked.len());
        let keep = |(nth, _): &(usize, BlockUse)| first + *nth as u64 != undeclared;
        asked.into_iter().enumerate().filter(keep).map(|(_, used)| used).collect()
    }
}

//! Steps about blocks: allocate, grow, narrow, free.
//!
//! A call of the library is made without the lock of the model, because it may be held in the
//! driver while other threads go on. So the model changes before a call that ends the program's
//! right to memory, and after one that gives it: at no time does the simulator permit more than the
//! contract does. What a call returns is compared exactly only if no other call on the block ran
//! meanwhile (`Facts::churn`).

use dmr_core::{Access, AllocTag, BlockState, ByteRange, DeviceMemoryResource, ResourceError};

use super::content::Content;
use super::state::{Facts, Footprint, Held, Window, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};
use crate::watch;

/// Driver calls by which an allocation waits for memory or returns some.
const LADDER: [&str; 7] = [
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemUnmap",
    "cuMemFree_v2",
    "cuMemPoolTrimTo",
    "cuMemFreeAsync",
];

impl Player {
    pub(super) fn allocate(&self, at: usize, name: u32, bytes: usize, stream: usize) -> Played {
        let Some(lease) = self.state().lease(stream) else { return Ok(()) };
        let stream = Some(slot_of(&lease));
        self.touches(at, Footprint { stream, ..Footprint::default() });
        self.count_captures(stream, Conflict::CaptureWhileAllocating);
        let resource = &self.built.resource;
        let allocate = || resource.allocate(bytes, lease.id(), AllocTag::new("block"));
        let allocated = self.library(at, allocate)?;
        if watch::seen(&LADDER) {
            self.count(Conflict::Ladder);
        }
        let block = match allocated {
            Ok(block) => block,
            Err(ResourceError::OutOfMemory { .. }) => {
                self.count(Conflict::OutOfMemory);
                return Ok(());
            }
            Err(ResourceError::OutOfBudget { .. }) => {
                self.count(Conflict::OutOfBudget);
                return Ok(());
            }
            Err(error) => return self.expect_or_retired(at, "allocate", &lease, &error),
        };
        let slot = slot_of(&lease);
        if self.is_retired_in_use(&lease) {
            let text = "an allocation was in progress, and returned a block";
            return Err(Failure::new(FailureKind::RetiredInUse, at, text));
        }
        self.refused_by_capture(at, slot, "allocate")?;
        let mut state = self.state();
        state.counts.allocated += 1;
        match state.freed_at.remove(&block.ptr()) {
            Some(freed_by) if freed_by == slot => state.counts.count(Conflict::ReuseByOwnStream),
            Some(_) => state.counts.count(Conflict::ReuseByOtherStream),
            None => {}
        }
        let ptr = block.ptr();
        let written = Some(slot);
        let past = vec![Window {
            number: 0,
            stream: slot,
            access: Access::Write,
            bytes: ByteRange::WHOLE,
        }];
        let facts =
            Facts { ptr, bytes: bytes as u64, last_write: written, past, ..Facts::default() };
        state.facts.insert(block.generation(), facts);
        self.report_allocated(state.fact(block.generation()));
        let held = Held { block, whole: None, home: Some(lease), is_private: false };
        if let Some(displaced) = state.blocks.insert(name, held) {
            // Each name is used once. In a hand-written program that uses a name twice, the first
            // block is lost, which the accounting reports.
            drop(displaced);
        }
        Ok(())
    }

    /// Reports a block to the simulator, where the stack does not.
    pub(super) fn report_allocated(&self, facts: &mut Facts) {
        if self.built.reports_blocks
            && let Some(universe) = self.universe()
        {
            universe.region_allocated(facts.ptr, facts.bytes as usize, "block");
        }
        facts.is_reported = true;
        facts.content = Content::default();
    }

    /// Reports to the simulator that a block may not be used any more, where the stack does not.
    pub(super) fn report_freed(&self, facts: &mut Facts) {
        if std::mem::take(&mut facts.is_reported)
            && self.built.reports_blocks
            && let Some(universe) = self.universe()
        {
            universe.region_freed(facts.ptr);
        }
    }

    pub(super) fn narrow(&self, name: u32, start: usize, end: usize) -> Played {
        let mut state = self.state();
        let Some(held) = state.blocks.remove(&name) else { return Ok(()) };
        let bytes = end.saturating_sub(start);
        let generation = held.block.generation();
        let is_in_use =
            |facts: &Facts| facts.calls > 0 || !facts.windows.is_empty() || facts.is_deallocated;
        let is_in_use = state.facts.get(&generation).is_some_and(is_in_use);
        if held.whole.is_some() || is_in_use {
            state.blocks.insert(name, held);
            return Ok(());
        }
        let Held { block, home, is_private, .. } = held;
        let (block, whole) = match block.narrow(start, bytes) {
            Ok((part, whole)) => (part, Some(whole)),
            Err(block) => (block, None),
        };
        if whole.is_some() {
            let at_offset = if start > 0 { Conflict::NarrowedAtOffset } else { Conflict::Narrowed };
            state.counts.count(at_offset);
            state.fact(generation).content.narrow(start..end);
        }
        state.blocks.insert(name, Held { block, whole, home, is_private });
        Ok(())
    }

    pub(super) fn grow(&self, at: usize, name: u32, bytes: usize) -> Played {
        let resource = &self.built.resource;
        let mut state = self.state();
        let Some(mut held) = state.blocks.remove(&name) else { return Ok(()) };
        let generation = held.block.generation();
        let facts = state.fact(generation);
        if facts.calls > 0 || !facts.windows.is_empty() || held.home.is_none() {
            state.blocks.insert(name, held);
            return Ok(());
        }
        facts.enter();
        let stream = held.home.as_deref().map(slot_of);
        drop(state);
        self.touches(at, Footprint { blocks: vec![generation], stream, ..Footprint::default() });
        let ptr = held.block.ptr();
        let before = held.block.bytes();
        let grown = self.library(at, || resource.try_grow(&mut held.block, bytes))?;
        let mut state = self.state();
        let facts = state.fact(generation);
        facts.leave();
        let played = match grown {
            Err(ResourceError::PartOfBlock { .. }) if held.whole.is_some() => Ok(()),
            Ok(_) if held.whole.is_some() => {
                let text = format!("a part of {before} bytes was not refused: {:?}", held.block);
                Err(Failure::new(FailureKind::GrewOverNeighbour, at, text))
            }
            Ok(true) if bytes > before => {
                if (held.block.ptr(), held.block.bytes()) == (ptr, bytes) {
                    self.report_freed(facts);
                    facts.bytes += (bytes - before) as u64;
                    self.report_allocated(facts);
                    facts.last_write = held.home.as_deref().map(slot_of);
                    facts.readers.clear();
                    let stream = held.block.alloc_stream().slot();
                    let access = Access::ReadWrite;
                    facts.past.push(Window { number: 0, stream, access, bytes: ByteRange::WHOLE });
                    state.counts.count(Conflict::GrowGranted);
                    Ok(())
                } else {
                    let text = format!("it was {ptr:#x}, {before} bytes: {:?}", held.block);
                    Err(Failure::new(FailureKind::WrongState, at, text))
                }
            }
            Ok(true) => Ok(()),
            Ok(false) => {
                state.counts.count(Conflict::GrowRefused);
                Ok(())
            }
            Err(error) => {
                drop(state);
                let played = match &held.home {
                    Some(home) => self.expect_or_retired(at, "try_grow", home, &error),
                    None => self.expect_injected(at, "try_grow", &error),
                };
                state = self.state();
                played
            }
        };
        state.blocks.insert(name, held);
        played
    }

    /// Frees a block. If the program has narrowed it, the whole is restored and freed; without
    /// `restores` the part itself is passed to the library, which must refuse it.
    pub(super) fn free(&self, at: usize, name: u32, restores: bool) -> Played {
        let mut state = self.state();
        if !restores && state.blocks.get(&name).is_none_or(|held| held.whole.is_none()) {
            return Ok(());
        }
        let generation = state.blocks.get(&name).map(|held| held.block.generation());
        let facts = generation.and_then(|generation| state.facts.get(&generation));
        if facts.is_some_and(|facts| facts.borrows > 0) {
            return Ok(());
        }
        let Some(Held { block, whole, home, is_private }) = state.blocks.remove(&name) else {
            return Ok(());
        };
        let mut part = None;
        let block = match whole {
            Some(whole) if restores => match whole.restore(block) {
                Ok(whole) => whole,
                Err(_) => {
                    let text = "a part is not a part of its whole";
                    return Err(Failure::new(FailureKind::WrongState, at, text));
                }
            },
            Some(whole) => {
                part = Some(whole);
                block
            }
            None => block,
        };
        let id = block.id();
        let ptr = block.ptr();
        let generation = block.generation();
        let facts = state.fact(generation);
        facts.is_deallocated = true;
        facts.enter();
        let is_open = !facts.windows.is_empty();
        // An open window may still submit work with the block: its end reports the block freed.
        if !is_open {
            self.report_freed(facts);
        }
        let home_slot = block.alloc_stream().slot();
        let used_elsewhere = facts.last_write.iter().chain(&facts.readers).any(|s| *s != home_slot);
        let churn = facts.churn;
        let is_alone = facts.calls == 1;
        let conflicts =
            [(is_open, Conflict::FreeInWindow), (used_elsewhere, Conflict::FreeAfterOtherStream)];
        conflicts.iter().filter(|it| it.0).for_each(|it| state.counts.count(it.1));
        state.freed_at.insert(ptr, home_slot);
        drop(state);
        let footprint = Footprint {
            blocks: vec![generation],
            stream: Some(home_slot),
            frees: Some(generation),
            retires: None,
        };
        self.touches(at, footprint);
        // The call is not under the lock: it may be held, and other threads overtake it. Only if it
        // was alone with the block from beginning to end must the block be in the state that the
        // contract names.
        let freed = self.library(at, || self.built.resource.deallocate(block))?;
        let mut state = self.state();
        let facts = state.fact(generation);
        let undisturbed = is_alone && facts.churn == churn;
        facts.leave();
        let now = match freed {
            Ok(now) => now,
            Err(refused) => {
                // A refused free returns the block, so the program may use it again.
                facts.is_deallocated = false;
                if !facts.is_reported {
                    self.report_allocated(facts);
                }
                let is_part = matches!(refused.error, ResourceError::PartOfBlock { .. });
                let held = Held { block: refused.block, whole: part, home, is_private };
                let was_part = held.whole.is_some();
                state.blocks.insert(name, held);
                drop(state);
                return match was_part && is_part {
                    // Nothing was lost: the whole is freed.
                    true => self.free(at, name, true),
                    false => self.expect_injected(at, "deallocate", &refused.error),
                };
            }
        };
        if part.is_some() {
            let text = "a part was deallocated instead of its whole";
            return Err(Failure::new(FailureKind::WrongState, at, text));
        }
        state.remove_if_over(generation);
        drop(state);
        if !is_open && home.is_some() && self.built.refuses_captured_frees() {
            self.refused_by_capture(at, home_slot, "deallocate")?;
        }
        if !undisturbed {
            return Ok(());
        }
        let is_retired = self.built.resource.is_retired(id);
        let wrong = if self.built.pool.is_some() && self.built.reports_blocks {
            now != if is_open { BlockState::Retired } else { BlockState::Freed }
                || is_retired != is_open
        } else {
            is_open && (now != BlockState::Retired || !is_retired)
        };
        if wrong {
            let text = format!("{now:?}, is_retired {is_retired}, window open {is_open}");
            return Err(Failure::new(FailureKind::WrongState, at, text));
        }
        Ok(())
    }
}

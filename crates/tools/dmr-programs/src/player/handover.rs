//! Handovers: two streams use the same memory one after the other, the first of them late. With all
//! declarations they are correct; with one omitted they are a race that shows a wrong byte.

use std::fmt;
use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, UseTrackingExt,
};
use dmr_streams::StreamLease;

use super::state::{Facts, slot_of};
use super::{Played, Player};
use crate::program::Step;

/// Two uses of the same memory, on two streams, that must be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// A late write, then a read: with a race, the read finds the old bytes.
    ReadAfterWrite,
    /// A late read, then a write: with a race, the read finds the new bytes.
    WriteAfterRead,
    /// A late write, then another write: with a race, the bytes of the first write remain.
    WriteAfterWrite,
    /// A late read, then a free, and a write to the next block with the memory: with a race, the
    /// read finds that write.
    UseAfterFree,
    /// A late read of the previous block with the memory on the stream that allocates, then a write
    /// to the new block on another stream: with a race, the read finds that write.
    UseBeforeAllocation,
}

impl Hazard {
    /// Returns whether the second use is of the next block with the memory.
    #[must_use]
    pub const fn needs_reuse(self) -> bool {
        matches!(self, Self::UseAfterFree | Self::UseBeforeAllocation)
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ReadAfterWrite => "read after write",
            Self::WriteAfterRead => "write after read",
            Self::WriteAfterWrite => "write after write",
            Self::UseAfterFree => "use after free",
            Self::UseBeforeAllocation => "use before allocation",
        })
    }
}

/// The ways in which a user declares a handover wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Omission {
    /// The use on the block's other stream is not declared.
    Undeclared,
    /// A write is declared as a read.
    DeclaredAsRead,
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Undeclared => "not declared",
            Self::DeclaredAsRead => "declared as a read",
        })
    }
}

/// A handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The uses that must be ordered.
    pub hazard: Hazard,
    /// The wrong declaration; `None`: all are correct.
    pub omission: Option<Omission>,
    /// The block's home stream.
    pub home: usize,
    /// The stream that uses the block before or after its home stream.
    pub other: usize,
    /// Bytes of the block.
    pub bytes: usize,
    /// The delay of the first use, in nanoseconds.
    pub delay: u64,
    /// The pattern in the memory before.
    pub pattern: u32,
}

/// A handover that was played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// `true` if the second block of a handover has the memory of the first, and where there is
    /// one block only.
    pub same_memory: bool,
}

/// The last block of a handover.
struct Reused {
    block: DeviceBlock,
    same_memory: bool,
}

impl Player {
    /// Keeps the stream that line `at` works on busy for `delay` nanoseconds.
    pub(crate) fn delay_line(&self, at: usize, delay: u64) -> Played {
        let state = self.state();
        let lease = match &self.program.lines[at].step {
            Step::Launch { stream, .. }
            | Step::Open { stream, .. }
            | Step::Copy { stream, .. }
            | Step::Allocate { stream, .. } => state.lease(*stream),
            Step::Home { block, .. } | Step::Free { block } => {
                state.blocks.get(block).and_then(|held| held.home.clone())
            }
            Step::Close { window } => state.windows.get(window).map(|it| Arc::clone(&it.stream)),
            _ => None,
        };
        drop(state);
        lease.map_or(Ok(()), |lease| self.keep_busy(at, &lease, delay))
    }

    /// Returns the address of the block that line `at` has allocated.
    pub(crate) fn address_of(&self, at: usize) -> Option<u64> {
        let Step::Allocate { block, .. } = &self.program.lines[at].step else { return None };
        self.state().blocks.get(block).map(|held| held.block.ptr())
    }

    fn keep_busy(&self, at: usize, stream: &StreamLease, delay: u64) -> Played {
        let delayed = self.rig.ops().delay(stream.id(), delay);
        delayed.map_err(|error| self.unexpected(at, "delay", &error))
    }

    /// Plays a handover after line `at`. Returns `None` if there is too little memory, or if
    /// two streams of the program are the same.
    pub(crate) fn hand_over(&self, at: usize, handover: &Handover) -> Played<Option<HandedOver>> {
        let state = self.state();
        let (Some(home), Some(other)) = (state.lease(handover.home), state.lease(handover.other))
        else {
            return Ok(None);
        };
        drop(state);
        if slot_of(&home) == slot_of(&other) {
            return Ok(None);
        }
        let Some(block) = self.owned(at, handover.bytes, &home)? else { return Ok(None) };
        let scene = Scene { player: self, at, home, other, handover };
        // The delay must be the first work of the late stream.
        scene.fill(&scene.home, &block, Some(Access::Write), 0, false)?;
        scene.synchronize(&scene.home)?;
        let (first, second) = scene.declared();
        let block = match handover.hazard {
            Hazard::ReadAfterWrite => {
                scene.fill(&scene.home, &block, first, 1, true)?;
                scene.check(&scene.other, &block, second, 1, false)?;
                scene.synchronize(&scene.other)?;
                Some(Reused { block, same_memory: true })
            }
            Hazard::WriteAfterRead => {
                scene.check(&scene.home, &block, first, 0, true)?;
                scene.fill(&scene.other, &block, second, 1, false)?;
                scene.synchronize(&scene.other)?;
                Some(Reused { block, same_memory: true })
            }
            Hazard::WriteAfterWrite => {
                scene.fill(&scene.home, &block, first, 1, true)?;
                scene.fill(&scene.other, &block, second, 2, false)?;
                scene.synchronize(&scene.other)?;
                scene.check(&scene.home, &block, Some(Access::Read), 2, false)?;
                Some(Reused { block, same_memory: true })
            }
            Hazard::UseAfterFree => {
                scene.check(&scene.other, &block, second, 0, true)?;
                let next = scene.reuse(block)?;
                if let Some(Reused { block: next, .. }) = &next {
                    scene.fill(&scene.home, next, Some(Access::Write), 1, false)?;
                }
                scene.synchronize(&scene.home)?;
                next
            }
            Hazard::UseBeforeAllocation => {
                scene.check(&scene.home, &block, first, 0, true)?;
                let next = scene.reuse(block)?;
                if let Some(Reused { block: next, .. }) = &next {
                    scene.fill(&scene.other, next, second, 1, false)?;
                }
                scene.synchronize(&scene.other)?;
                // A stack that fills new blocks fills them late, too.
                if let Some(Reused { block: next, .. }) = &next {
                    scene.check(&scene.home, next, Some(Access::Read), 1, false)?;
                }
                next
            }
        };
        let Some(Reused { block, same_memory }) = block else { return Ok(None) };
        self.disown(at, block)?;
        Ok(Some(HandedOver { same_memory }))
    }

    fn owned(&self, at: usize, bytes: usize, home: &StreamLease) -> Played<Option<DeviceBlock>> {
        let resource = &self.built.resource;
        let allocate = || resource.allocate(bytes, home.id(), AllocTag::new("handover"));
        match self.library(at, allocate)? {
            Ok(block) => {
                self.report_allocated(&mut facts_of(&block));
                Ok(Some(block))
            }
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. }) => Ok(None),
            Err(error) => Err(self.unexpected(at, "allocate", &error)),
        }
    }

    fn disown(&self, at: usize, block: DeviceBlock) -> Played {
        self.report_freed(&mut facts_of(&block));
        let freed = self.library(at, || self.built.resource.deallocate(block))?;
        freed.map_err(|refused| self.unexpected(at, "deallocate", &refused.error)).map(|_| ())
    }
}

/// The report of a block to the simulator.
fn facts_of(block: &DeviceBlock) -> Facts {
    let ptr = block.ptr();
    let bytes = block.bytes() as u64;
    Facts { ptr, bytes, is_reported: true, ..Facts::default() }
}

/// A handover in progress.
struct Scene<'a> {
    player: &'a Player,
    at: usize,
    home: Arc<StreamLease>,
    other: Arc<StreamLease>,
    handover: &'a Handover,
}

impl Scene<'_> {
    /// The declared accesses of the use on the home stream, and of the use on the other stream.
    fn declared(&self) -> (Option<Access>, Option<Access>) {
        let (first, second) = match self.handover.hazard {
            Hazard::ReadAfterWrite => (Access::Write, Access::Read),
            Hazard::WriteAfterRead | Hazard::UseBeforeAllocation => (Access::Read, Access::Write),
            Hazard::WriteAfterWrite => (Access::Write, Access::Write),
            Hazard::UseAfterFree => (Access::Write, Access::Read),
        };
        match self.handover.omission {
            None => (Some(first), Some(second)),
            Some(Omission::Undeclared) => (Some(first), None),
            Some(Omission::DeclaredAsRead) => (Some(Access::Read), Some(Access::Read)),
        }
    }

    fn fill(
        &self,
        stream: &StreamLease,
        block: &DeviceBlock,
        declared: Option<Access>,
        nth: u32,
        is_late: bool,
    ) -> Played {
        let bytes = self.handover.bytes;
        let pattern = self.pattern(nth);
        self.access(stream, block, declared, is_late, || {
            self.player.rig.ops().fill_pattern(block, 0..bytes, pattern, stream.id())
        })
    }

    fn check(
        &self,
        stream: &StreamLease,
        block: &DeviceBlock,
        declared: Option<Access>,
        nth: u32,
        is_late: bool,
    ) -> Played {
        let bytes = self.handover.bytes;
        let pattern = self.pattern(nth);
        let key = self.at as u64;
        self.access(stream, block, declared, is_late, || {
            self.player.rig.ops().check_pattern(block, 0..bytes, pattern, stream.id(), key)
        })
    }

    fn access(
        &self,
        stream: &StreamLease,
        block: &DeviceBlock,
        declared: Option<Access>,
        is_late: bool,
        work: impl FnOnce() -> ResourceResult<()>,
    ) -> Played {
        let player = self.player;
        let resource = &self.player.built.resource;
        let failed = |error: ResourceError| player.unexpected(self.at, "handover", &error);
        let tokens = match declared.map(|access| BlockUse::new(block.id(), access)) {
            Some(used) => {
                let prepare = || resource.prepare_uses(&[used], stream.id());
                Some(player.library(self.at, prepare)?.map_err(failed)?)
            }
            None => None,
        };
        if is_late && self.handover.delay > 0 {
            player.keep_busy(self.at, stream, self.handover.delay)?;
        }
        work().map_err(failed)?;
        match tokens {
            Some(tokens) => {
                player.library(self.at, || resource.finish_uses(tokens))?.map_err(failed)
            }
            None => Ok(()),
        }
    }

    /// Frees the block, and allocates one of the same size on the same stream.
    fn reuse(&self, block: DeviceBlock) -> Played<Option<Reused>> {
        let ptr = block.ptr();
        self.player.disown(self.at, block)?;
        let next = self.player.owned(self.at, self.handover.bytes, &self.home)?;
        Ok(next.map(|block| Reused { same_memory: block.ptr() == ptr, block }))
    }

    /// Waits for both streams: first for the one whose work must not be late, so that a simulated
    /// device that executes work only when it is waited for executes it in the wrong order, too.
    fn synchronize(&self, first: &StreamLease) -> Played {
        let failed = |error: ResourceError| self.player.unexpected(self.at, "synchronize", &error);
        let ops = self.player.rig.ops();
        ops.synchronize(first.id()).map_err(failed)?;
        ops.synchronize(self.home.id()).map_err(failed)?;
        ops.synchronize(self.other.id()).map_err(failed)
    }

    fn pattern(&self, nth: u32) -> u32 {
        self.handover.pattern.wrapping_add(nth.wrapping_mul(0x0101_0101))
    }
}

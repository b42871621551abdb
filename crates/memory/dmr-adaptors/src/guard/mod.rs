//! [`DebugGuardResource`]: red zones, poison and quarantine around every block.
//!
//! The guard allocates more than it was asked for, and returns the middle. On both sides of it are
//! *red zones*, filled with a pattern that no work may change. A fresh block is filled with a
//! pattern as well, and so is a deallocated one, which then stays in *quarantine* for a while,
//! where no work may change it.
//!
//! | mistake | found by | returned as |
//! | --- | --- | --- |
//! | a write past the end | the check at `deallocate`; [`check_all`] | [`Overrun`] |
//! | a write before the start | the same | [`Underrun`] |
//! | a write after `deallocate` | the check when the block leaves the quarantine; [`check_all`] | [`WriteAfterFree`] |
//! | a second `deallocate` | the guard's table, at once | [`UseAfterFree`], and the block |
//! | a use prepared after `deallocate` | the guard's table, at once | [`UseAfterFree`] |
//! | a read of a fresh or a deallocated block | nothing; it reads NaNs | |
//!
//! A [`Corruption`] has the offset of the first wrong byte from the block's start, its generation,
//! tag, size and home stream, and where it was allocated if backtraces are captured. Findings
//! stay in [`violations`] until they are taken. Each is also returned as an error once: by the
//! `deallocate` that finds it, or else by the next `try_reap` or `reap_pending`. Each place of a
//! block (before, behind, inside) is reported once. A block that `deallocate` refused for it is
//! still live; the second `deallocate` takes it.
//!
//! A write is found if it changes a byte. A write far beyond a red zone is not found: make the zone
//! as wide as a stride, not as an element.
//!
//! # Streams, and what waits
//!
//! Fills and checks run on *library streams*, which no program captures: none of that work becomes
//! part of a graph, whenever a capture begins. They come after all work submitted to the block's
//! home stream and after every recorded use. The home stream waits for the fills of `allocate` and
//! `deallocate`, so that later work on it needs no recording and a later write is found. A home
//! stream that captures refuses both calls with [`StreamCapturing`]; if it begins to capture
//! between the guard's last look and its wait, the driver ends that capture, and the call returns
//! the driver's error.
//!
//! | call | device work | the host waits for |
//! | --- | --- | --- |
//! | `allocate` | two fills | nothing |
//! | `deallocate`, [`Immediate`] | two checks, a fill; a check of each block that leaves the quarantine | the home stream, and all others with a check under way |
//! | `deallocate`, [`Deferred`] | the same | nothing; once in 4096 blocks, as above |
//! | `try_reap` | the checks of what leaves | nothing |
//! | `reap_pending` | the same, for all of the quarantine | everything |
//! | [`check_all`] | a check or two of every block | all home streams |
//!
//! Only verdicts are copied back, 8 bytes for each. A block that leaves the quarantine is freed
//! once its check is done. Home streams that share a library stream, which those of a program with
//! more than eight may, wait for each other's work when they allocate or free: an order that the
//! program does not have without the guard, so a missing one can hide.
//!
//! On the device each byte is written three times and read once. Each block takes two red zones,
//! rounded up to 256 bytes, and the quarantine takes 64 MiB by default; both are in
//! `usage().reserved`, as upstream counts it. The 512 KiB in which a `PatternOps` has the results
//! of its checks are not: the operations allocate them from the driver at the first check, as they
//! load their kernel, and may serve several guards. Times are in `docs/src/performance.md`.
//!
//! # Growing and parts
//!
//! A block under guard does not grow in place, because its red zone is behind it: `try_grow`
//! returns `false`. A [part](dmr_core::DeviceBlock::narrow) of a block is refused.
//!
//! # Over a resource that does not track uses
//!
//! Only the home stream's order counts. Work on other streams must be *done* when a block is
//! deallocated, or it is taken for a write after free. The host waits for each check of a block
//! that leaves the quarantine. Over the direct backend, put `Tracked` between.
//!
//! # Windows
//!
//! A block that is deallocated while a window is open on it ([`prepare_uses`]) is retired; the
//! first `deallocate` or reap after the window has closed checks and poisons it, and a reap returns
//! what that finds. A window must be closed through the guard that opened it.
//!
//! # Inside and outside of other adaptors
//!
//! Around a budget: the budget bounds red zones and quarantine as well, and the guard empties the
//! quarantine when the budget or the device is full. Inside of a budget: the budget counts blocks
//! in quarantine, as retired, and reaps them when it is full. `reap_pending` empties the
//! quarantine, so a stack that reaps often finds fewer writes after free.
//!
//! # Dropping it
//!
//! Does not wait and does not check: blocks in quarantine are deallocated upstream as they are, and
//! verdicts that were not read back are lost. Call [`check_all`] before. Live blocks are leaked.
//! Dropping the last reference to a `PatternOps` that has made a check waits for the device.
//!
//! [`check_all`]: DebugGuardResource::check_all
//! [`violations`]: DebugGuardResource::violations
//! [`Corruption`]: dmr_core::Corruption
//! [`Overrun`]: dmr_core::CorruptionKind::Overrun
//! [`Underrun`]: dmr_core::CorruptionKind::Underrun
//! [`WriteAfterFree`]: dmr_core::CorruptionKind::WriteAfterFree
//! [`UseAfterFree`]: dmr_core::ResourceError::UseAfterFree
//! [`StreamCapturing`]: dmr_core::ResourceError::StreamCapturing
//! [`Immediate`]: GuardChecks::Immediate
//! [`Deferred`]: GuardChecks::Deferred
//! [`prepare_uses`]: dmr_core::UseTrackingExt::prepare_uses

mod allocation;
mod blocks;
mod checks;
mod findings;
mod layer;
mod quarantine;
mod resource;

pub use layer::{DebugGuardLayer, GuardChecks};
pub use resource::DebugGuardResource;

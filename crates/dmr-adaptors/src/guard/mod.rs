//! [`DebugGuardResource`]: red zones, poison and quarantine around every block.
//!
//! The guard asks the inner resource for more than it was asked for and hands out the middle. What
//! lies on both sides is a *red zone*, filled with a pattern that nobody may change. A fresh block
//! is filled with a pattern, too, and so is one that is given back; that one then stays in
//! *quarantine* for a while, where nobody may change it either.
//!
//! | mistake | found by | answered as |
//! | --- | --- | --- |
//! | a write past the end | the check at `deallocate`; [`check_all`] | [`Overrun`] |
//! | a write before the start | the same | [`Underrun`] |
//! | a write after `deallocate` | the check when the block leaves the quarantine; [`check_all`] | [`WriteAfterFree`] |
//! | a second `deallocate` | the guard's table, at once | [`UseAfterFree`], and the block |
//! | a use prepared after `deallocate` | the guard's table, at once | [`UseAfterFree`] |
//! | a read of a fresh or a freed block | nothing; it reads NaNs | |
//!
//! A [`Corruption`] has the offset of the first bad byte from the block's start, its generation,
//! tag, size and home stream, and where it was allocated if backtraces are captured. What is
//! found stays in [`violations`] until it is taken. It is answered once as an error, too: by the
//! `deallocate` that finds it, or else by the next `try_reap` or `reap_pending`. Each place of a
//! block (before, behind, inside) is reported once. A block that `deallocate` refused for it is
//! still its owner's; the second `deallocate` takes it.
//!
//! A write is seen if it changes a byte: one that writes what was there is not. A write far beyond
//! a red zone is not, either: make the zone as wide as a stride, not as an element.
//!
//! # What waits for the device
//!
//! | call | device work, on the home stream | waits for |
//! | --- | --- | --- |
//! | `allocate` | two fills | nothing |
//! | `deallocate`, [`Immediate`] | two checks, a fill; a check of each block that leaves the quarantine | the home stream, and all others with a check under way |
//! | `deallocate`, [`Deferred`] | the same | nothing; once in 4096 blocks, as above |
//! | `try_reap` | the checks of what leaves | nothing |
//! | `reap_pending` | the same, for all of the quarantine | everything |
//! | [`check_all`] | a check or two of every block | all home streams |
//!
//! Checks run on the device, and only their verdicts come back: 8 bytes for each. They come after
//! every recorded use of the block on other streams; the home stream waits for those. That is
//! an order that the program would not have without the guard, so a missing one can hide.
//!
//! # What it costs
//!
//! An allocation and its `deallocate` over the async backend, on an H200, one thread:
//!
//! | bytes | unguarded | `Immediate` | `Deferred`: host, and with the device |
//! | --- | --- | --- | --- |
//! | 4 KiB | 0.7 µs | 32 µs | 20 µs, 20 µs |
//! | 1 MiB | 0.8 µs | 34 µs | 19 µs, 19 µs |
//! | 64 MiB | 0.9 µs | 105 µs | 19 µs, 91 µs |
//!
//! A backtrace adds 3 µs to an allocation. On the device each byte is written three times and
//! read once. Each block takes two red zones, rounded up to 256 bytes, and the quarantine takes
//! 64 MiB unless told otherwise.
//!
//! # Growing and parts
//!
//! A block under guard does not grow in place, because its red zone is behind it: `try_grow` returns
//! `false`. A [part](dmr_core::DeviceBlock::narrow) of a block is refused.
//!
//! # Over a resource that does not track uses
//!
//! Only the home stream's order counts. Work on other streams must be *done* when a block is given
//! back, or it will be taken for a write after free. Over the direct backend, put
//! `Tracked` between.
//!
//! # Windows
//!
//! A block given back while a window is open on it ([`prepare_uses`]) is retired; it is checked
//! and poisoned by the first `deallocate` or reap after the window has closed, and what that finds
//! is answered by a reap. A window must be closed through the guard that opened it.
//!
//! # Inside and outside of other adaptors
//!
//! Outside of a budget the budget bounds red zones and quarantine as well; the guard empties the
//! quarantine when the budget or the device is full. Inside of a budget they are not counted, but
//! blocks in quarantine are: they are retired, and a budget that is full reaps them.
//! `reap_pending` empties the quarantine, so a stack that reaps often finds fewer writes after
//! free.
//!
//! # Dropping it
//!
//! Waits for nothing and checks nothing: blocks in quarantine go to the inner resource as they
//! are, and verdicts that were not read back are lost. Call [`check_all`] before. Blocks still
//! handed out are leaked. Dropping the last reference to a
//! `PatternOps` that has made a check waits for the device.
//!
//! [`check_all`]: DebugGuardResource::check_all
//! [`violations`]: DebugGuardResource::violations
//! [`Corruption`]: dmr_core::Corruption
//! [`Overrun`]: dmr_core::CorruptionKind::Overrun
//! [`Underrun`]: dmr_core::CorruptionKind::Underrun
//! [`WriteAfterFree`]: dmr_core::CorruptionKind::WriteAfterFree
//! [`UseAfterFree`]: dmr_core::ResourceError::UseAfterFree
//! [`Immediate`]: GuardChecks::Immediate
//! [`Deferred`]: GuardChecks::Deferred
//! [`prepare_uses`]: dmr_core::DeviceMemoryResource::prepare_uses

mod accounts;
mod allocation;
mod calls;
mod checks;
mod findings;
mod layer;
mod quarantine;
mod resource;
mod strays;
mod table;
mod verdicts;

pub use layer::{DebugGuardLayer, GuardChecks};
pub use resource::DebugGuardResource;

//! Page-locked host memory, which the device copies to and from while the host goes on.

mod buffer;
mod view;

use dmr_core::ResourceResult;
use dmr_pinned::PinnedPool;
use dmr_streams::{DeviceContext, PinnedKind};

pub use dmr_pinned::reap_orphaned_pinned;

pub use buffer::{PinnedBuffer, WriteCombinedBuffer};
pub use view::{PinnedView, PinnedViewMut};

/// Frees the pinned memory of the context's streams that was dropped and whose uses are done, so
/// that it can be allocated again; returns its bytes. Polls the uses and does not wait for them.
///
/// # Errors
///
/// The first error. What could not be freed is still retired: call again.
pub fn try_reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    let freed = PinnedPool::of(ctx.streams()).try_reap();
    poll_layers(ctx);
    freed
}

/// Waits for the pinned memory of the context's streams that was dropped, unless a launch that
/// uses it is prepared and not finished, and frees it; returns its bytes.
///
/// # Errors
///
/// As [`try_reap_pinned`].
pub fn reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    let freed = PinnedPool::of(ctx.streams()).reap_pending();
    poll_layers(ctx);
    freed
}

/// Returns pinned memory that no buffer uses to the driver while more than `keep_bytes` bytes of a
/// kind are reserved; returns the bytes. The driver's call may wait for other work of the device.
///
/// # Errors
///
/// The first error. All other memory was returned all the same.
pub fn trim_pinned<C: DeviceContext + ?Sized>(ctx: &C, keep_bytes: u64) -> ResourceResult<u64> {
    let trimmed = PinnedPool::of(ctx.streams()).trim_to(keep_bytes);
    poll_layers(ctx);
    trimmed
}

/// Lets the layers around pinned memory see what was freed below them: a budget releases its bytes.
fn poll_layers<C: DeviceContext + ?Sized>(ctx: &C) {
    let Some(pinned) = ctx.pinned_resources() else { return };
    for resource in PinnedKind::ALL.iter().filter_map(|kind| pinned.of_kind(*kind)) {
        // The error of the reap before was returned.
        let _ = resource.try_reap();
    }
}

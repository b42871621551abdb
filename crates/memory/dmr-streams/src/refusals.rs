//! Refused allocations, for recordings: the backends report what the driver has refused.

use dmr_core::{AllocTag, ResourceError};
use dmr_recorder::Refused;
use dmr_recorder::hooks;

use crate::StreamGuard;

impl StreamGuard<'_> {
    /// Records that an allocation on this stream was refused, if `error` is a shortage of memory.
    /// For the resource that has found the shortage, at the end of its attempts. Does nothing
    /// while nothing is recorded, and for segments of a pool, which records its own refusals.
    #[cold]
    pub fn record_refusal(&self, bytes: usize, tag: AllocTag, error: &ResourceError) {
        if !error.is_out_of_memory() {
            return;
        }
        hooks::refused(|| Refused {
            bytes: bytes as u64,
            stream: Some(self.id()),
            tag,
            ..Refused::by(error)
        });
    }
}

//! Growing in place on the fake device.

use dmr_core::{Access, ByteRange, DeviceBlock, ResourceError, ResourceResult};

use super::{DEVICE_BYTES, FakeResource, Fault};

impl FakeResource {
    /// Makes a block larger if the memory behind it is free. Free memory of the fake is idle, so
    /// nothing has to come after its last owner.
    pub(super) fn grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        if !self.has(Fault::GrowsParts) {
            block.require_part_depth(0)?;
        }
        if bytes <= block.bytes() {
            return Ok(true);
        }
        let reserved = self.checked_size(bytes)?;
        let mut state = self.state();
        let state = &mut *state;
        let Some(held) = state.blocks.get(&block.generation()) else {
            return Err(ResourceError::foreign_block(block, block.device_ordinal()));
        };
        let at = held.at;
        let home = held.home;
        if let Some(window) = held.windows.iter().find(|window| window.stream != home) {
            let generation = block.generation();
            return Err(ResourceError::window_conflict(
                generation,
                window.stream,
                home,
                Access::Write,
            ));
        }
        let behind = state.blocks.values().map(|other| other.at).filter(|&other| other > at);
        let room = behind.min().unwrap_or(DEVICE_BYTES) - at;
        let more = (bytes - block.bytes()) as u64;
        if reserved > room && !self.has(Fault::GrowsOverNeighbours) {
            if self.has(Fault::CountsRefusedGrowth) {
                state.usage.live += more;
                state.usage.total_allocated += more;
            }
            return Ok(false);
        }
        let Some(held) = state.blocks.get_mut(&block.generation()) else { return Ok(false) };
        self.wait(held, home, Access::Write, ByteRange::WHOLE);
        self.commit(held, home, Access::Write, ByteRange::WHOLE);
        state.usage.reserved += (reserved.saturating_sub(held.reserved)) as u64;
        held.bytes = bytes;
        held.reserved = reserved.max(held.reserved);
        if !self.has(Fault::GrowsUncounted) {
            state.usage.live += more;
            state.usage.total_allocated += more;
        }
        // SAFETY: no block starts in the range, which is held until `deallocate`; it is an index
        // into the fake's byte array, which is never dereferenced. Broken fakes break this on
        // purpose.
        #[allow(unsafe_code, reason = "growing blocks is what a resource does")]
        unsafe {
            block.set_sizes(bytes, reserved);
        }
        Ok(true)
    }
}

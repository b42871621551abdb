//! The error of calls in a forked child.

use super::Process;
use crate::{ResourceError, ResourceResult};

impl Process {
    /// Refuses a call in a forked child.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess), with this device ordinal.
    #[inline]
    pub fn check(self, device_ordinal: usize) -> ResourceResult<()> {
        if self.is_current() { Ok(()) } else { Err(ResourceError::forked_process(device_ordinal)) }
    }
}

//! The workspace of a cooperative launch: memory of its own in which the blocks of the grid meet.

use super::global::{Access, AccessError, GlobalMemory};
use super::space::{FUNCTION_STRIDE, FUNCTIONS};

/// The address of the workspace.
pub(super) const WORKSPACE: u64 = FUNCTIONS + (FUNCTION_STRIDE << 32);

/// The size of the workspace in bytes: a word with the size, and the word at which blocks arrive.
pub(super) const BYTES: u64 = 8;

/// The memory of a cooperative launch: the caller's, and the workspace.
pub(super) struct WithWorkspace<'m> {
    memory: &'m mut dyn GlobalMemory,
    workspace: [u8; BYTES as usize],
}

impl<'m> WithWorkspace<'m> {
    pub(super) fn new(memory: &'m mut dyn GlobalMemory) -> Self {
        let mut workspace = [0; BYTES as usize];
        workspace[0] = BYTES as u8;
        Self { memory, workspace }
    }

    /// Returns the accessed bytes of the workspace; `None` for an access to other memory.
    fn part(&mut self, access: &Access) -> Option<Result<&mut [u8], AccessError>> {
        let start = access.address.checked_sub(WORKSPACE).filter(|&start| start < BYTES)?;
        let refused = (BYTES - start) as u32;
        let part = self.workspace.get_mut(start as usize..start as usize + access.bytes as usize);
        Some(part.ok_or_else(|| AccessError::new(refused, "beyond the workspace of the grid")))
    }
}

impl GlobalMemory for WithWorkspace<'_> {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        match self.part(access) {
            Some(part) => {
                into.copy_from_slice(part?);
                Ok(())
            }
            None => self.memory.read(access, into),
        }
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        match self.part(access) {
            Some(part) => {
                part?.copy_from_slice(bytes);
                Ok(())
            }
            None => self.memory.write(access, bytes),
        }
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        match self.part(access) {
            Some(part) => {
                change(part?);
                Ok(())
            }
            None => self.memory.atomic(access, change),
        }
    }

    fn undefine(&mut self, access: &Access) {
        if self.part(access).is_none() {
            self.memory.undefine(access);
        }
    }
}

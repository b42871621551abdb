//! Steps that reap, trim and fork.

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult};

use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};

/// The time after which a child counts as hanging.
const SECONDS: u32 = 20;

impl Player {
    pub(super) fn reap(
        &self,
        at: usize,
        reap: impl FnOnce(&dyn DeviceMemoryResource) -> ResourceResult<u64>,
    ) -> Played {
        self.count_captures(None, Conflict::CaptureWhileReaping);
        match self.library(at, || reap(&*self.built.resource))? {
            Ok(0) => Ok(()),
            Ok(_) => {
                self.count(Conflict::Reaped);
                Ok(())
            }
            Err(error) => self.expect_injected(at, "reap", &error),
        }
    }

    pub(super) fn trim(&self, at: usize, keep: u64) -> Played {
        self.count_captures(None, Conflict::CaptureWhileReaping);
        match self.library(at, || self.built.resource.trim_to(keep))? {
            Ok(0) => Ok(()),
            Ok(_) => {
                self.count(Conflict::Trimmed);
                Ok(())
            }
            Err(error) => self.expect_injected(at, "trim_to", &error),
        }
    }

    /// Forks. All calls of the child must be refused; then it ends.
    pub(super) fn fork(&self, at: usize, _thread: usize) -> Played {
        let state = self.state();
        let lease = state.lease(0);
        let is_held = state.calls > 0;
        drop(state);
        let Some(lease) = lease else { return Ok(()) };
        // SAFETY: the child makes calls that take no lock of this process, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends this process if it hangs.
            unsafe { libc::alarm(SECONDS) };
            let resource = &self.built.resource;
            let refused =
                |error: &ResourceError| matches!(error, ResourceError::ForkedProcess { .. });
            let allocated = resource.allocate(1000, lease.id(), AllocTag::new("child"));
            let reaped = [resource.try_reap(), resource.reap_pending(), resource.trim_to(0)];
            let acquired = self.rig.streams().acquire();
            let right = allocated.as_ref().is_err_and(refused)
                && reaped.iter().take(2).all(|reaped| reaped.as_ref().is_err_and(refused))
                && acquired.as_ref().is_err_and(refused)
                && resource.usage() == dmr_core::Usage::default()
                && dmr_sim::calls_of_forked_child() == 0;
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(i32::from(!right)) }
        }
        if child < 0 {
            return Err(Failure::new(FailureKind::Child, at, "fork failed"));
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        self.count(Conflict::Fork);
        if is_held {
            self.count(Conflict::ForkUnderHeldThread);
        }
        match status {
            0 => Ok(()),
            status => Err(Failure::new(FailureKind::Child, at, format!("status {status:#x}"))),
        }
    }
}

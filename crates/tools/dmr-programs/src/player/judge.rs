//! The errors that a call on a stream may return while the stream is retired or captures.

use dmr_core::{ResourceError, UseTokens};
use dmr_streams::StreamLease;

use super::state::slot_of;
use super::{Played, Player};
use crate::failure::{Failure, FailureKind};

impl Player {
    /// A window that was opened on a stream that is retired by now is a failure.
    pub(super) fn judge_prepared(
        &self,
        at: usize,
        lease: &StreamLease,
        prepared: Result<UseTokens, ResourceError>,
    ) -> Played<Result<UseTokens, ResourceError>> {
        if prepared.is_ok() && self.is_retired_in_use(lease) {
            let text = "a call on it was in progress, and opened a window afterwards";
            return Err(Failure::new(FailureKind::RetiredInUse, at, text));
        }
        if prepared.is_ok() {
            self.refused_by_capture(at, slot_of(lease), "prepare_uses")?;
        }
        Ok(prepared)
    }

    /// Errors unless a call may fail because of a fault, or because its stream is retired.
    pub(super) fn expect_or_retired(
        &self,
        at: usize,
        call: &str,
        lease: &StreamLease,
        error: &ResourceError,
    ) -> Played {
        let is_closing = self.is_retired(lease) || self.state().retiring.contains(&lease.id());
        if is_closing && matches!(error, ResourceError::StreamMisuse { .. }) {
            return Ok(());
        }
        self.expect_injected(at, call, error)
    }

    /// Returns whether the stream of a lease was retired although a call on it had not returned,
    /// without waiting for the call.
    pub(super) fn is_retired_in_use(&self, lease: &StreamLease) -> bool {
        self.is_retired(lease) && !self.state().retired_in_time.contains(&lease.id())
    }

    /// Returns whether the stream of a lease that the program holds was retired.
    pub(super) fn is_retired(&self, lease: &StreamLease) -> bool {
        self.rig.streams().resolve(lease.id()).is_err()
    }
}

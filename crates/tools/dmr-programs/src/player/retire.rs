//! Steps that retire adopted streams.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result;
use dmr_core::ResourceError;
use dmr_streams::StreamLease;

use super::state::{Footprint, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};

/// The time limit for a held call, which continues and returns within it.
const LONG: Duration = Duration::from_secs(5);
/// The time limit for a window that is not closed meanwhile.
const SHORT: Duration = Duration::from_micros(200);

/// The condition under which an adopted stream is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Only while it is not in use.
    Unused,
    /// Even while a window or a call uses it, which is refused.
    AtOnce,
    /// After waiting for the calls that use it, within a time limit.
    InTime,
}

impl Player {
    /// Retires an adopted stream and takes one of the pool's in its place.
    pub(super) fn retire(&self, at: usize, stream: usize, when: When) -> Played {
        let mut state = self.state();
        if state.streams.get(stream).is_none_or(|slot| !slot.is_adopted) {
            return Ok(());
        }
        let Some(lease) = state.lease(stream) else { return Ok(()) };
        let slot = slot_of(&lease);
        let in_window = state.windows.values().any(|open| slot_of(&open.stream) == slot);
        let under_call = state.calls_on.get(&slot).is_some_and(|calls| *calls > 0);
        let homes =
            state.blocks.values().filter(|it| it.home.as_deref().map(slot_of) == Some(slot));
        let of_blocks = homes.clone().count();
        let is_private = homes.clone().any(|held| held.is_private);
        let is_used = in_window || under_call || Arc::strong_count(&lease) > 2 + of_blocks;
        // A call on another stream may need an event of this one.
        let may_be_used = is_used || state.calls > 0;
        if (is_used && when == When::Unused) || is_private {
            return Ok(());
        }
        let tried = [
            (in_window, Conflict::RetireInWindow),
            (under_call, Conflict::RetireUnderCall),
            (state.calls > 0, Conflict::RetireWhileHeld),
        ];
        tried.iter().filter(|it| it.0).for_each(|it| state.counts.count(it.1));
        // A call in progress keeps its stream.
        state.streams[stream].lease = None;
        state.retiring.push(lease.id());
        if when == When::InTime {
            state.retired_in_time.push(lease.id());
        }
        let calls_begun = state.calls_begun;
        drop(state);
        let footprint =
            Footprint { stream: Some(slot), retires: Some(slot), ..Footprint::default() };
        self.touches(at, footprint);
        let streams = self.rig.streams();
        let timeout = if in_window { SHORT } else { LONG };
        let retired = self.library(at, || match when {
            When::Unused | When::AtOnce => streams.retire_stream(&lease),
            When::InTime => streams.retire_stream_timeout(&lease, timeout),
        });
        let mut state = self.state();
        state.retiring.retain(|retiring| *retiring != lease.id());
        let may_be_used = may_be_used || state.calls_begun > calls_begun + 1;
        drop(state);
        match retired {
            Ok(Ok(())) => {
                self.refused_by_capture(at, slot, "retire_stream")?;
                self.retired(at, stream, lease, of_blocks, in_window)
            }
            Ok(Err(error)) => {
                self.put(at, stream, Ok(Arc::clone(&lease)), true)?;
                self.retire_refused(at, &lease, may_be_used, &error)
            }
            Err(failure) => {
                self.put(at, stream, Ok(lease), true)?;
                Err(failure)
            }
        }
    }

    fn retired(
        &self,
        at: usize,
        stream: usize,
        lease: Arc<StreamLease>,
        of_blocks: usize,
        in_window: bool,
    ) -> Played {
        let slot = slot_of(&lease);
        let mut state = self.state();
        state.counts.count(Conflict::StreamRetired);
        if of_blocks > 0 {
            state.counts.count(Conflict::RetiredWithBlocks);
        }
        if in_window {
            let text = "a window is open on it";
            return Err(Failure::new(FailureKind::RetiredInUse, at, text));
        }
        for held in state.blocks.values_mut() {
            held.home = held.home.take().filter(|home| slot_of(home) != slot);
        }
        let is_idle = state.calls == 0;
        drop(state);
        if is_idle {
            // Its owner may destroy it: no later call may use it.
            // SAFETY: the player has made the stream for this, and no window is open on it.
            let destroyed = unsafe { result::stream::destroy(lease.stream().cu_stream()) };
            destroyed.map_err(|error| Failure::new(FailureKind::UnexpectedError, at, error))?;
        }
        drop(lease);
        let lease = self.rig.streams().acquire();
        self.put(at, stream, lease.map(Arc::new), false)
    }

    /// Checks that a stream whose retirement was refused can still be used.
    fn retire_refused(
        &self,
        at: usize,
        lease: &StreamLease,
        may_be_used: bool,
        error: &ResourceError,
    ) -> Played {
        let is_driver = matches!(error, ResourceError::Driver { .. });
        if may_be_used && !is_driver {
            self.count(Conflict::RetireRefused);
        } else {
            self.expect_injected(at, "retire_stream", error)?;
        }
        if self.state().captures.contains_key(&slot_of(lease)) {
            return Ok(());
        }
        let works = self.rig.ops().delay(lease.id(), 1);
        works.map_err(|error| self.unexpected(at, "work after a refused retirement", &error))
    }
}

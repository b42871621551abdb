//! Steps about streams: wait, delay, replace, adopt, retire, capture.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
use dmr_core::ResourceError;

use super::state::{Capture, Footprint, Slot, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};
use crate::program::CaptureMode;

/// How long a delay keeps a stream busy, in nanoseconds.
const DELAY: u64 = 50_000;

/// Whether a capture was invalidated.
pub(super) fn is_invalidated(capture: &Capture) -> bool {
    let invalidated = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    capture.stream.capture_status().is_ok_and(|status| status == invalidated)
}

impl Player {
    pub(super) fn synchronize(&self, at: usize, stream: usize) -> Played {
        let Some(lease) = self.state().lease(stream) else { return Ok(()) };
        if self.captures().is_some() {
            return Ok(());
        }
        let synchronized = self.rig.streams().synchronize(lease.id());
        synchronized.map_err(|error| self.unexpected(at, "synchronize", &error))
    }

    pub(super) fn delay(&self, at: usize, stream: usize) -> Played {
        let Some(lease) = self.state().lease(stream) else { return Ok(()) };
        let delayed = self.rig.ops().delay(lease.id(), DELAY);
        delayed.map_err(|error| self.unexpected(at, "delay", &error))
    }

    /// A lease goes, another comes: the same stream half of the time.
    pub(super) fn replace(&self, at: usize, stream: usize) -> Played {
        if self.state().streams.get(stream).is_none_or(|slot| slot.is_adopted) {
            return Ok(());
        }
        let Some(lease) = self.take_away(stream) else { return Ok(()) };
        self.count(Conflict::StreamReplaced);
        let spare = self.state().random.one_in(2).then(|| self.rig.streams().acquire());
        drop(lease);
        let lease = self.library(at, || self.rig.streams().acquire())?;
        drop(spare);
        self.put(at, stream, lease.map(Arc::new), false)
    }

    /// A lease goes, and a stream that the pool does not own comes in its place.
    pub(super) fn adopt(&self, at: usize, stream: usize) -> Played {
        if self.state().streams.get(stream).is_none_or(|slot| slot.is_adopted) {
            return Ok(());
        }
        if self.captures().is_some() {
            return Ok(());
        }
        let made = self.rig.device().context().new_stream();
        let Ok(made) = made else {
            return Err(Failure::new(FailureKind::UnexpectedError, at, "no stream to adopt"));
        };
        let Some(before) = self.take_away(stream) else { return Ok(()) };
        let lease = self.library(at, || self.rig.streams().adopt(made))?;
        match lease {
            Ok(lease) => {
                drop(before);
                self.count(Conflict::StreamAdopted);
                self.put(at, stream, Ok(Arc::new(lease)), true)
            }
            Err(ResourceError::Capacity { .. }) => self.put(at, stream, Ok(before), false),
            Err(error) => {
                self.put(at, stream, Ok(before), false)?;
                self.expect_injected(at, "adopt", &error)
            }
        }
    }

    /// Retires an adopted stream and takes one of the pool's in its place.
    pub(super) fn retire(&self, at: usize, stream: usize, at_once: bool) -> Played {
        let mut state = self.state();
        if state.streams.get(stream).is_none_or(|slot| !slot.is_adopted) {
            return Ok(());
        }
        let Some(lease) = state.lease(stream) else { return Ok(()) };
        let slot = slot_of(&lease);
        let in_window = state.windows.values().any(|open| slot_of(&open.stream) == slot);
        // What holds the lease beside its slot, this step and blocks: calls and windows.
        let homes =
            state.blocks.values().filter(|it| it.home.as_deref().map(slot_of) == Some(slot));
        let of_blocks = homes.clone().count();
        let is_private = homes.clone().any(|held| held.is_private);
        let is_used = in_window || Arc::strong_count(&lease) > 2 + of_blocks || is_private;
        if (is_used && !at_once) || is_private {
            return Ok(());
        }
        // A call that is under way is given no other stream.
        state.streams[stream].lease = None;
        drop(state);
        let footprint =
            Footprint { stream: Some(slot), retires: Some(slot), ..Footprint::default() };
        self.touches(at, footprint);
        let retired = self.library(at, || self.rig.streams().retire_stream(&lease))?;
        match retired {
            Ok(()) => {
                let mut state = self.state();
                let conflicts = [
                    (true, Conflict::StreamRetired),
                    (of_blocks > 0, Conflict::RetiredWithBlocks),
                    (in_window, Conflict::RetireInWindow),
                    (state.calls > 0, Conflict::RetireWhileHeld),
                ];
                conflicts.iter().filter(|it| it.0).for_each(|it| state.counts.count(it.1));
                if in_window {
                    let text = "a window is open on it";
                    return Err(Failure::new(FailureKind::RetiredInUse, at, text));
                }
                let same = |home: &Arc<_>| slot_of(home) == slot;
                for held in state.blocks.values_mut() {
                    held.home = held.home.take().filter(|home| !same(home));
                }
                drop(state);
                drop(lease);
                let lease = self.rig.streams().acquire();
                self.put(at, stream, lease.map(Arc::new), false)
            }
            Err(error) => {
                self.put(at, stream, Ok(lease), true)?;
                if in_window && matches!(error, ResourceError::WindowConflict { .. }) {
                    self.count(Conflict::RetireRefused);
                    return Ok(());
                }
                self.expect_injected(at, "retire_stream", &error)
            }
        }
    }

    /// Takes a lease away from a stream of the program, unless its home work is not declared.
    fn take_away(&self, stream: usize) -> Option<Arc<dmr_streams::StreamLease>> {
        let mut state = self.state();
        let lease = state.lease(stream)?;
        let is_home = |home: &Arc<dmr_streams::StreamLease>| home.id() == lease.id();
        let mut homes =
            state.blocks.values().filter(|held| held.home.as_ref().is_some_and(is_home));
        if homes.any(|held| held.is_private) {
            return None;
        }
        for held in state.blocks.values_mut() {
            held.home = held.home.take().filter(|home| !is_home(home));
        }
        state.streams[stream].lease = None;
        Some(lease)
    }

    fn put(
        &self,
        at: usize,
        stream: usize,
        lease: Result<Arc<dmr_streams::StreamLease>, ResourceError>,
        is_adopted: bool,
    ) -> Played {
        let lease = match lease {
            Ok(lease) => Some(lease),
            Err(error) => {
                self.expect_injected(at, "acquire", &error)?;
                self.rig.streams().acquire().ok().map(Arc::new)
            }
        };
        self.state().streams[stream] = Slot { lease, is_adopted };
        Ok(())
    }

    pub(super) fn begin_capture(&self, at: usize, mode: CaptureMode) -> Played {
        if self.state().capture.is_some() {
            return Ok(());
        }
        let stream = self.rig.device().context().new_stream();
        let begun = stream.and_then(|stream| {
            let mode = match mode {
                CaptureMode::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
                CaptureMode::ThreadLocal => {
                    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                }
                CaptureMode::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            };
            stream.begin_capture(mode).map(|()| stream)
        });
        let stream =
            begun.map_err(|error| Failure::new(FailureKind::UnexpectedError, at, error))?;
        if mode != CaptureMode::Relaxed {
            self.count(Conflict::CaptureGlobal);
        }
        self.state().capture = Some(Capture { stream, mode });
        Ok(())
    }

    pub(super) fn end_capture(&self, at: usize) -> Played {
        let Some(capture) = self.state().capture.take() else { return Ok(()) };
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        // The simulator makes no graph: what counts is that the capture was valid.
        let was_invalid = is_invalidated(&capture);
        let _ = capture.stream.end_capture(flags);
        if was_invalid {
            return Err(Failure::new(FailureKind::CaptureEnded, at, "before it was ended"));
        }
        Ok(())
    }
}

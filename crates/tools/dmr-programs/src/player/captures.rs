//! Steps about captures: of a stream that is not the pool's, and of the program's own streams.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{CudaStream, result};
use dmr_core::ResourceError;

use super::state::{Capture, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};
use crate::program::CaptureMode;

impl Player {
    /// Begins a capture on a stream that is not the pool's.
    pub(super) fn begin_capture(&self, at: usize, mode: CaptureMode) -> Played {
        if self.state().foreign_capture.is_some() {
            return Ok(());
        }
        let failed = |error| Failure::new(FailureKind::UnexpectedError, at, error);
        let stream = self.rig.device().context().new_stream().map_err(failed)?;
        let capture = self.begin(at, stream, mode)?;
        self.state().foreign_capture = Some(capture);
        Ok(())
    }

    /// Ends that capture, which must be valid.
    pub(super) fn end_capture(&self, at: usize) -> Played {
        let capture = self.state().foreign_capture.take();
        capture.map_or(Ok(()), |capture| end(at, &capture))
    }

    /// Begins a capture on a stream of the program, also while a call on the stream is in progress.
    pub(super) fn capture_stream(&self, at: usize, stream: usize, mode: CaptureMode) -> Played {
        let mut state = self.state();
        let Some(lease) = state.lease(stream) else { return Ok(()) };
        let slot = slot_of(&lease);
        if state.captures.contains_key(&slot) {
            return Ok(());
        }
        let capture = self.begin(at, Arc::clone(lease.stream()), mode)?;
        state.captures_begun += 1;
        let number = state.captures_begun;
        state.captures.insert(slot, Capture { number, ..capture });
        state.counts.count(Conflict::StreamCaptured);
        if state.windows.values().any(|open| slot_of(&open.stream) == slot) {
            state.counts.count(Conflict::CaptureInWindow);
        }
        if state.calls_on.get(&slot).is_some_and(|calls| *calls > 0) {
            state.counts.count(Conflict::CaptureUnderCall);
        }
        Ok(())
    }

    /// Ends that capture, which must be valid unless a call that had queried the stream before it
    /// began has waited on the stream.
    pub(super) fn end_capture_of(&self, at: usize, stream: usize) -> Played {
        let Some(lease) = self.state().lease(stream) else { return Ok(()) };
        self.end_capture_of_slot(at, slot_of(&lease))
    }

    fn end_capture_of_slot(&self, at: usize, slot: usize) -> Played {
        let mut state = self.state();
        let Some(capture) = state.captures.remove(&slot) else { return Ok(()) };
        let number = state.captures_begun;
        state.captures_ended.insert(slot, number);
        drop(state);
        end(at, &capture)
    }

    pub(super) fn end_all_captures(&self, at: usize) -> Played {
        self.end_capture(at)?;
        let mut slots: Vec<usize> = self.state().captures.keys().copied().collect();
        slots.sort_unstable();
        slots.into_iter().try_for_each(|slot| self.end_capture_of_slot(at, slot))
    }

    fn begin(&self, at: usize, stream: Arc<CudaStream>, mode: CaptureMode) -> Played<Capture> {
        let of_driver = match mode {
            CaptureMode::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        let failed = |error| Failure::new(FailureKind::UnexpectedError, at, error);
        stream.begin_capture(of_driver).map_err(failed)?;
        Ok(Capture { stream, mode, number: 0, is_spoiled: false })
    }

    /// Errors if a call of the library, which has just returned, has ended a capture, or has made
    /// another stream join one. A call that was in progress when its stream began to capture may
    /// have ended that capture, if it was refused.
    pub(super) fn check_captures(&self, at: usize, was_refused: bool) -> Played {
        let mut state = self.state();
        let ended = |text: &str| {
            let text = format!("{} {text}", self.program.lines[at]);
            Err(Failure::new(FailureKind::CaptureEnded, at, text))
        };
        if state.foreign_capture.as_ref().is_some_and(|capture| is(INVALIDATED, &capture.stream)) {
            return ended("has ended the capture of a stream of another owner");
        }
        let began = state.captures_before(at);
        let mut is_blamed = false;
        for capture in state.captures.values_mut().filter(|capture| !capture.is_spoiled) {
            if is(INVALIDATED, &capture.stream) {
                capture.is_spoiled = was_refused && capture.number > began;
                is_blamed |= !capture.is_spoiled;
            }
        }
        // Another call that is in progress may have done it.
        if state.captures.is_empty() || state.calls > 0 {
            return Ok(());
        }
        if is_blamed {
            return ended("has ended the capture of a stream of the program");
        }
        for lease in state.streams.iter().filter_map(|slot| slot.lease.as_ref()) {
            let captures = state.captures.contains_key(&slot_of(lease));
            // Not through cudarc's stream: that would lend it.
            let stream = self.rig.streams().enter(lease.id());
            // SAFETY: the stream is alive while there is a guard.
            let look = |on| unsafe { result::stream::is_capturing(on) };
            let is_none = stream.map_or(true, |stream| stream.call(look) == Ok(NONE));
            if !captures && !is_none {
                let text = format!("{} captures after {}", lease.id(), self.program.lines[at]);
                return Err(Failure::new(FailureKind::CaptureJoined, at, text));
            }
        }
        Ok(())
    }

    /// Errors if a call on a stream has succeeded although the stream has captured since before the
    /// step began.
    pub(super) fn refused_by_capture(&self, at: usize, slot: usize, call: &str) -> Played {
        let state = self.state();
        let began = state.captures_before(at);
        if state.captures.get(&slot).is_some_and(|capture| capture.number <= began) {
            let text = format!("{call} on a stream that captures");
            return Err(Failure::new(FailureKind::NotRefused, at, text));
        }
        Ok(())
    }

    /// Returns whether a call may return this error because a stream of the program captures, or
    /// began to capture while the step was in progress.
    pub(super) fn is_capture_refusal(&self, at: usize, error: &ResourceError) -> bool {
        let state = self.state();
        let began = state.captures_before(at);
        let is_refusal = match error {
            ResourceError::StreamCapturing { stream, .. } => {
                state.captures.contains_key(&stream.slot())
                    || state.captures_ended.get(&stream.slot()).is_some_and(|ended| *ended >= began)
            }
            ResourceError::Driver { .. } => state.captures_begun > began,
            _ => false,
        };
        drop(state);
        if is_refusal {
            self.count(Conflict::CaptureRefused);
        }
        is_refusal
    }

    /// Returns whether any stream captures, of the program or of another owner.
    pub(super) fn is_anything_captured(&self) -> bool {
        let state = self.state();
        state.foreign_capture.is_some() || !state.captures.is_empty()
    }

    /// Counts a conflict if another stream than that of the slot captures.
    pub(super) fn count_captures(&self, slot: Option<usize>, conflict: Conflict) {
        let mut state = self.state();
        let other = state.captures.keys().any(|captured| Some(*captured) != slot);
        if other || state.foreign_capture.is_some() {
            state.counts.count(conflict);
        }
        let forbids = |capture: &Capture| capture.mode != CaptureMode::Relaxed;
        if state.captures.values().chain(&state.foreign_capture).any(forbids) {
            state.counts.count(Conflict::CaptureGlobal);
        }
    }
}

const INVALIDATED: CUstreamCaptureStatus =
    CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
const NONE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;

fn is(wanted: CUstreamCaptureStatus, stream: &CudaStream) -> bool {
    stream.capture_status().is_ok_and(|status| status == wanted)
}

fn end(at: usize, capture: &Capture) -> Played {
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    // The simulator makes no graph; only the validity of the capture is checked.
    let was_invalid = is(INVALIDATED, &capture.stream);
    let _ = capture.stream.end_capture(flags);
    if was_invalid && !capture.is_spoiled {
        return Err(Failure::new(FailureKind::CaptureEnded, at, "before it was ended"));
    }
    Ok(())
}

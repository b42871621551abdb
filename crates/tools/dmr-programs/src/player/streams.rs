//! Steps about streams: wait, delay, replace, adopt.

use std::sync::Arc;

use cudarc::driver::result;
use dmr_core::ResourceError;

use super::state::{ProgramStream, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};

/// The length of a delay, in nanoseconds.
const DELAY: u64 = 50_000;

impl Player {
    pub(super) fn synchronize(&self, at: usize, stream: usize) -> Played {
        let Some(lease) = self.state().lease(stream) else { return Ok(()) };
        if self.is_anything_captured() {
            return Ok(());
        }
        let synchronized = self.rig.streams().synchronize(lease.id());
        synchronized.map_err(|error| self.unexpected(at, "synchronize", &error))
    }

    pub(super) fn delay(&self, at: usize, stream: usize) -> Played {
        let Some(lease) = self.state().lease(stream) else { return Ok(()) };
        if self.state().captures.contains_key(&slot_of(&lease)) {
            return Ok(());
        }
        let delayed = self.rig.ops().delay(lease.id(), DELAY);
        delayed.map_err(|error| self.unexpected(at, "delay", &error))
    }

    /// Drops a lease and acquires another: of the same stream half of the time.
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

    /// Drops a lease, and adopts a stream that the pool does not own in its place.
    pub(super) fn adopt(&self, at: usize, stream: usize) -> Played {
        if self.state().streams.get(stream).is_none_or(|slot| slot.is_adopted) {
            return Ok(());
        }
        if self.is_anything_captured() {
            return Ok(());
        }
        let Some(before) = self.take_away(stream) else { return Ok(()) };
        let kind = result::stream::StreamKind::NonBlocking;
        let made = result::stream::create(kind)
            .map_err(|error| Failure::new(FailureKind::UnexpectedError, at, error))?;
        // SAFETY: the stream lives until it is retired, or until its machine ends.
        let lease =
            self.library(at, || unsafe { self.rig.streams().adopt_raw(made.cast(), ()) })?;
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

    /// Takes a lease away from a stream of the program, unless the stream captures or its home work
    /// is not declared.
    fn take_away(&self, stream: usize) -> Option<Arc<dmr_streams::StreamLease>> {
        let mut state = self.state();
        let lease = state.lease(stream)?;
        if state.captures.contains_key(&slot_of(&lease)) {
            return None;
        }
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

    pub(super) fn put(
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
        self.state().streams[stream] = ProgramStream { lease, is_adopted };
        Ok(())
    }
}

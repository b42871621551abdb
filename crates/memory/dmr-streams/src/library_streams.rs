//! The streams of a pool for the library's own work, which no program captures or waits on.
//!
//! A driver call that must be ordered on some stream, but on none of the program's, goes here: the
//! reclaim stream takes frees that wait for uses on several streams, the others serve home streams
//! that may wait for them. They are created when they are first needed.

use dmr_core::ResourceResult;

use crate::config::LIBRARY_STREAMS;
use crate::{StreamGuard, StreamPool};

impl StreamPool {
    /// Returns a stream that no user's work waits on, for frees that must wait: the first library
    /// stream. Non-blocking, never leased, created when it is first needed.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver) if it cannot be created.
    pub fn reclaim_stream(&self) -> ResourceResult<StreamGuard<'_>> {
        self.library_stream_at(0)
    }

    /// Returns the library stream that serves the stream in slot `home`, which may wait for it:
    /// never the reclaim stream. Several streams share one if the pool has more of them than
    /// library streams. Created when it is first needed.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver) if it cannot be created, or if the pool had one
    /// stream so far and no event can be recorded there.
    pub(crate) fn library_stream(&self, home: usize) -> ResourceResult<StreamGuard<'_>> {
        self.library_stream_at(1 + home % (LIBRARY_STREAMS - 1))
    }

    fn library_stream_at(&self, index: usize) -> ResourceResult<StreamGuard<'_>> {
        let slot = self.max_streams() + index;
        if self.entry(slot).is_some_and(|slot| slot.own().is_none()) {
            self.create(slot, self.priority)?;
            let name = match self.is_reclaim(slot) {
                true => "reclaim".to_owned(),
                false => format!("library {index}"),
            };
            dmr_recorder::name_stream(self.permanent_id(slot), &name);
        }
        self.enter(self.permanent_id(slot))
    }
}

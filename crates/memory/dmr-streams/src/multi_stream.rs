//! New streams of cudarc: cudarc's multi-stream mode is entered without ending a capture.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};
use dmr_core::ResourceResult;

use crate::Device;
use crate::event::DriverEvent;

/// A stream of the current context, destroyed with its owner.
struct RawStream(sys::CUstream);

impl Device {
    /// Makes a stream of this priority.
    pub(crate) fn new_stream(&self, priority: i32) -> ResourceResult<Arc<CudaStream>> {
        self.bind()?;
        let context = self.context();
        // cudarc would return an error that an earlier call has left behind. It is put back
        // afterwards, for the program, instead of one that the end of the first stream leaves.
        let earlier = context.check_err();
        let stream = self.enter_multi_stream_mode().and_then(|_first| {
            context
                .new_stream_with_priority(priority)
                .map_err(|error| self.driver_error("cuStreamCreateWithPriority", error))
        });
        let _ = context.check_err();
        context.record_err(earlier);
        stream
    }

    /// Returns a stream that keeps cudarc in multi-stream mode, unless cudarc is in it already or
    /// records no events.
    ///
    /// With its first stream cudarc synchronises the context, because it has recorded no uses until
    /// then. That ends every capture of the context, in whichever mode. A stream that is forked
    /// from another is not its first.
    fn enter_multi_stream_mode(&self) -> ResourceResult<Option<Arc<CudaStream>>> {
        let context = self.context();
        if context.is_in_multi_stream_mode() || !context.is_event_tracking() {
            return Ok(None);
        }
        let forked = fork_of_new_stream(context);
        // The device has the context, and so has the fork. Through any other value of it, work may
        // have been submitted to CUDA's default stream; cudarc may be in the mode even if the fork
        // has failed.
        if Arc::strong_count(context) > 1 + usize::from(forked.is_ok()) {
            self.wait_for_default_stream()?;
        }
        forked.map(Some).map_err(|error| self.driver_error("cuStreamCreate", error))
    }

    /// Waits for the work on CUDA's default stream so far, and for what that is ordered after.
    fn wait_for_default_stream(&self) -> ResourceResult<()> {
        let legacy = self.context().default_stream();
        // Ends the capture of a blocking stream otherwise.
        self.refuse_capture_of(&legacy)?;
        let event = DriverEvent::new(self)?;
        event.record_on_other(&legacy)?;
        self.relaxed(|relaxed| event.synchronize(relaxed))
    }
}

fn fork_of_new_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, DriverError> {
    let first = RawStream(result::stream::create(result::stream::StreamKind::NonBlocking)?);
    // SAFETY: the stream is of this context, and outlives the wrapper. The fork waits for no work
    // of it.
    unsafe { context.wrap_borrowed_stream(first.0) }.fork()
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: made by `fork_of_new_stream` in the current context, and destroyed once.
        let _: Result<(), DriverError> = unsafe { result::stream::destroy(self.0) };
    }
}

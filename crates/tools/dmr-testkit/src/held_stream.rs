//! Holds a stream up until the test releases it, on either driver.

#![allow(unsafe_code, reason = "makes a stream wait for a word of host memory")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaStream, result, sys};
use dmr_core::StreamId;
use dmr_streams::StreamPool;

/// A stream that waits for a word in page-locked memory, and goes on when this is released or
/// dropped. The drop waits for the stream.
#[derive(Debug)]
pub struct HeldStream {
    /// Of page-locked memory, which this frees when the stream has gone on.
    word: &'static AtomicU32,
    stream: Arc<CudaStream>,
}

impl HeldStream {
    /// Makes the work that is submitted to the stream from now on wait.
    pub fn hold(streams: &Arc<StreamPool>, stream: impl Into<StreamId>) -> Self {
        streams.device().bind().expect("the context");
        // SAFETY: 4 bytes, which are written before they are read, and freed by the drop of this.
        let word = unsafe {
            let word = result::malloc_host(4, 0).expect("pinned memory").cast::<u32>();
            word.write(0);
            AtomicU32::from_ptr(word)
        };
        let stream = streams.enter(stream.into()).expect("the stream");
        let at = word.as_ptr().expose_provenance() as u64;
        let flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the stream is alive while it is entered, and the word until the stream has gone
        // on.
        let wait = |stream| unsafe { sys::cuStreamWaitValue32_v2(stream, at, 1, flags) }.result();
        stream.call(wait).expect("cuStreamWaitValue32");
        Self { word, stream: Arc::clone(stream.stream()) }
    }

    /// Lets the stream go on.
    pub fn release(&self) {
        self.word.store(1, Ordering::Release);
    }
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        self.release();
        // Also where a test has failed: a second panic would hide the first.
        let _ = self.stream.synchronize();
        // SAFETY: allocated by `hold`; the stream is past its wait, or its device is lost.
        let _ = unsafe { result::free_host(self.word.as_ptr().cast()) };
    }
}

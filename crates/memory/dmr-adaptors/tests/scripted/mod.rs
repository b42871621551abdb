//! A resource whose calls fail by a script, and which records its calls.

use std::collections::VecDeque;
use std::sync::Mutex;

use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError,
    ResourceResult, StreamId,
};

/// Forwards to `upstream`, except for calls that the script has an error for. Tracks no uses.
#[derive(Debug)]
pub(crate) struct Scripted<R> {
    pub(crate) inner: R,
    script: Mutex<VecDeque<(&'static str, ResourceError)>>,
    calls: Mutex<Vec<&'static str>>,
}

impl<R> Scripted<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, script: Mutex::default(), calls: Mutex::default() }
    }

    /// Makes one call of `method` fail: the next, or the one after those that were scripted before.
    pub(crate) fn fail(&self, method: &'static str, error: ResourceError) {
        self.script.lock().unwrap().push_back((method, error));
    }

    /// Returns the calls since it was last called.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    fn called(&self, method: &'static str) -> ResourceResult<()> {
        self.calls.lock().unwrap().push(method);
        let mut script = self.script.lock().unwrap();
        match script.iter().position(|(scripted, _)| *scripted == method) {
            Some(at) => Err(script.remove(at).unwrap().1),
            None => Ok(()),
        }
    }
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Scripted<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.called("allocate")?;
        self.inner.allocate(bytes, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        match self.called("deallocate") {
            Ok(()) => self.inner.deallocate(block),
            Err(error) => Err(DeallocateError::new(error, block)),
        }
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.called("try_grow")?;
        self.inner.try_grow(block, bytes)
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.called("try_reap")?;
        self.inner.try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.called("reap_pending")?;
        self.inner.reap_pending()
    }

    dmr_core::forward!(
        inner: is_retired, device_ordinal, stream_pool, usage,
    );
}

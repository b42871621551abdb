//! [`FailureCallbackResource`]: when memory runs out, reaps, calls the program's callbacks, and
//! tries again.
//!
//! **Inside or outside.** Outside a budget it also handles
//! [`OutOfBudget`](ResourceError::OutOfBudget), and bytes that a callback frees are free in the
//! budget. Inside, the budget refuses before a callback is called.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::{
    AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, forward,
    panics,
};

use crate::ResourceLayer;

/// A failed allocation, as a callback sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AllocationFailure<'a> {
    /// Requested bytes.
    pub bytes: usize,
    /// The stream that the caller named.
    pub stream: StreamId,
    /// The tag of the allocation.
    pub tag: AllocTag,
    /// CUDA device ordinal.
    pub device_ordinal: usize,
    /// The error of the last attempt: out of memory, or out of budget.
    pub error: &'a ResourceError,
    /// The number of calls of this callback for this allocation, including this one. A callback
    /// that never declines may be called for ever.
    pub calls: u32,
    /// The number of calls of all callbacks for this allocation, including this one.
    pub total_calls: u32,
}

/// The return value of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// Tries again, and calls the same callback again if that fails.
    Retry,
    /// Continues with the next callback.
    Decline,
}

type Callback = Arc<dyn Fn(&AllocationFailure<'_>) -> Response + Send + Sync>;

/// Makes a [`FailureCallbackResource`].
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a resource"]
pub struct FailureCallbackLayer {
    callbacks: Vec<Callback>,
    waits: bool,
}

impl FailureCallbackLayer {
    /// Makes a layer without callbacks, which reaps and waits only.
    pub const fn new() -> Self {
        Self { callbacks: Vec::new(), waits: true }
    }

    /// Adds a callback, to be called after those that were added before.
    ///
    /// It runs on the thread whose allocation failed, without a lock, and on several threads at
    /// once. It may allocate, free and reap through the whole stack; an allocation that fails
    /// inside it returns its error at once, without a call of this resource's callbacks. A panic of
    /// the callback is caught, counted
    /// ([`callback_panics`](FailureCallbackResource::callback_panics)) and treated as
    /// [`Decline`](Response::Decline).
    pub fn with_callback(
        mut self,
        callback: impl Fn(&AllocationFailure<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.callbacks.push(Arc::new(callback));
        self
    }

    /// Sets whether a failed allocation waits for device work that still uses freed memory
    /// (`reap_pending`). The default is `true`. With `false`, `allocate` never waits for device
    /// work.
    pub const fn with_waiting(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }
}

impl Default for FailureCallbackLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FailureCallbackLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callbacks = self.callbacks.len();
        let waits = self.waits;
        write!(f, "FailureCallbackLayer({callbacks} callbacks, waits: {waits})")
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for FailureCallbackLayer {
    type Resource = FailureCallbackResource<R>;

    fn layer(&self, upstream: R) -> FailureCallbackResource<R> {
        FailureCallbackResource { upstream, layer: self.clone(), panics: AtomicU64::new(0) }
    }
}

/// Retries allocations that are out of memory or out of budget.
///
/// It makes these attempts, until one succeeds: after `try_reap`; after `reap_pending`; and after
/// each [`Retry`](Response::Retry) of a callback, at once, after `try_reap` and after
/// `reap_pending`. Callbacks are called in order. When all have declined, the error of the last
/// attempt is returned. Any other error is returned at once.
pub struct FailureCallbackResource<R> {
    upstream: R,
    layer: FailureCallbackLayer,
    panics: AtomicU64,
}

impl<R> FailureCallbackResource<R> {
    /// Returns how often a callback has panicked.
    #[must_use]
    pub fn callback_panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Returns the upstream resource.
    pub const fn upstream(&self) -> &R {
        &self.upstream
    }

    /// Returns the upstream resource, and drops the callbacks.
    pub fn into_upstream(self) -> R {
        self.upstream
    }
}

impl<R: DeviceMemoryResource> FailureCallbackResource<R> {
    /// Allocates. If that is refused, it is tried again, and no recording is written yet.
    #[inline]
    fn attempt(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let _retrying = dmr_recorder::is_on().then(dmr_recorder::Retrying::enter);
        self.upstream.allocate(bytes, stream, tag)
    }

    /// Retries an allocation that failed with `error`.
    #[cold]
    fn rescue(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
        error: ResourceError,
    ) -> ResourceResult<DeviceBlock> {
        let Some(_rescue) = Rescue::begin(&self.panics) else { return Err(error) };
        let device_ordinal = self.upstream.device_ordinal();
        let allocate = || self.attempt(bytes, stream, tag);
        let mut result = self.retry_after_reaping(allocate);
        let mut total_calls = 0_u32;
        for callback in &self.layer.callbacks {
            let mut calls = 0_u32;
            while let Err(error) = &result
                && is_no_room(error)
            {
                calls = calls.saturating_add(1);
                total_calls = total_calls.saturating_add(1);
                let failure = AllocationFailure {
                    bytes,
                    stream,
                    tag,
                    device_ordinal,
                    error,
                    calls,
                    total_calls,
                };
                if self.call(callback, &failure) == Response::Decline {
                    break;
                }
                result = allocate();
                if matches!(&result, Err(error) if is_no_room(error)) {
                    result = self.retry_after_reaping(allocate);
                }
            }
        }
        result
    }

    /// Allocates after `try_reap`, and if there is still no room, after `reap_pending`.
    fn retry_after_reaping(
        &self,
        allocate: impl Fn() -> ResourceResult<DeviceBlock>,
    ) -> ResourceResult<DeviceBlock> {
        // An error of the reap is ignored: the allocation after it returns what is wrong.
        let _ = self.upstream.try_reap();
        match allocate() {
            Err(error) if is_no_room(&error) && self.layer.waits => {
                let _ = self.upstream.reap_pending();
                allocate()
            }
            result => result,
        }
    }

    fn call(&self, callback: &Callback, failure: &AllocationFailure<'_>) -> Response {
        panics::catch(|| callback(failure)).unwrap_or_else(|| {
            self.panics.fetch_add(1, Ordering::Relaxed);
            Response::Decline
        })
    }
}

const fn is_no_room(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}

thread_local! {
    /// The resources for which this thread is in a rescue. Each is named by the address of its
    /// counter of panics, which differs from that of a resource inside it.
    static RESCUING: RefCell<Vec<*const AtomicU64>> = const { RefCell::new(Vec::new()) };
}

/// Marks the thread as in a rescue for one resource, until it is dropped. A callback may allocate
/// from the resource: if that allocation were rescued, it would call the callbacks again.
struct Rescue;

impl Rescue {
    /// Returns `None` if the thread is in a rescue for this resource already, or has lost its
    /// thread-locals.
    fn begin(resource: *const AtomicU64) -> Option<Self> {
        let is_new = RESCUING.try_with(|rescuing| {
            let mut rescuing = rescuing.borrow_mut();
            let is_new = !rescuing.contains(&resource);
            if is_new {
                rescuing.push(resource);
            }
            is_new
        });
        // Not `then_some`: dropping the eager value would end the outer rescue.
        is_new.is_ok_and(|is_new| is_new).then(|| Self)
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        // Rescues end in the reverse of the order in which they began.
        let _ = RESCUING.try_with(|rescuing| rescuing.borrow_mut().pop());
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for FailureCallbackResource<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        match self.attempt(bytes, stream, tag) {
            Err(error) if is_no_room(&error) => {
                let rescued = self.rescue(bytes, stream, tag, error);
                if matches!(&rescued, Err(error) if is_no_room(error)) {
                    dmr_recorder::gave_up();
                }
                rescued
            }
            result => result,
        }
    }

    forward!(
        upstream: deallocate,
        give_away,
        // Not rescued: a block that cannot grow in place returns `false`, which is no error.
        try_grow,
        is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        try_reap,
        reap_pending,
        trim_to,
        allow_access,
        use_tracking,
        // Not rescued: a pool that maps pages reaps and retries itself.
        virtual_memory,
    );
}

impl<R: fmt::Debug> fmt::Debug for FailureCallbackResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailureCallbacks({}, {:?})", self.layer.callbacks.len(), self.upstream)
    }
}

impl<R: fmt::Debug> fmt::Display for FailureCallbackResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

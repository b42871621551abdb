//! [`FailureCallbackResource`]: when memory runs out, reap, ask the user's callbacks, try again.
//!
//! **Inside or outside.** Outside a budget it answers to
//! [`OutOfBudget`](ResourceError::OutOfBudget) too, and what a callback frees counts for the
//! budget. Inside a budget, the budget has refused before a callback hears of it.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::{
    AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};

use crate::ResourceLayer;
use crate::forward::forward;

/// An allocation that found no room, as a callback sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AllocationFailure<'a> {
    /// Bytes asked for.
    pub bytes: usize,
    /// The stream named by the caller.
    pub stream: StreamId,
    /// Who asked.
    pub tag: AllocTag,
    /// CUDA device ordinal.
    pub device_ordinal: usize,
    /// Why the last try failed: out of memory, or out of budget.
    pub error: &'a ResourceError,
    /// How many times this callback has been asked about this allocation, this time included.
    /// What ends an endless loop: decline when it is too many.
    pub asked: u32,
    /// How many times any callback has, this time included.
    pub attempt: u32,
}

/// What a callback answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// There may be room now: try again, and ask me again if there is not.
    Retry,
    /// I have nothing to give: ask the next callback.
    Decline,
}

type Callback = Arc<dyn Fn(&AllocationFailure<'_>) -> Response + Send + Sync>;

/// Makes a [`FailureCallbackResource`].
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct FailureCallbackLayer {
    callbacks: Vec<Callback>,
    waits: bool,
}

impl FailureCallbackLayer {
    /// No callbacks yet: only reaps, and waits for what is retired.
    pub const fn new() -> Self {
        Self { callbacks: Vec::new(), waits: true }
    }

    /// Adds a callback, which is asked after those that were added before.
    ///
    /// It runs on the thread whose allocation failed, with no lock held, and on several threads
    /// at once. It may allocate, free and reap through the whole stack; an allocation that fails
    /// inside it fails at once, without asking the callbacks of this resource again. A panic in
    /// it is a [`Decline`](Response::Decline) and is counted
    /// ([`callback_panics`](FailureCallbackResource::callback_panics)).
    pub fn with_callback(
        mut self,
        callback: impl Fn(&AllocationFailure<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.callbacks.push(Arc::new(callback));
        self
    }

    /// Whether to wait for device work when memory that was given back is not free yet
    /// (`reap_pending`). `true` if this is not called; `false` makes `allocate` never wait for
    /// work, and fail or ask callbacks earlier.
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
        let (callbacks, waits) = (self.callbacks.len(), self.waits);
        write!(f, "FailureCallbackLayer({callbacks} callbacks, waits: {waits})")
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for FailureCallbackLayer {
    type Resource = FailureCallbackResource<R>;

    fn layer(&self, inner: R) -> FailureCallbackResource<R> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        FailureCallbackResource {
            inner,
            callbacks: self.callbacks.as_slice().into(),
            waits: self.waits,
            number: MADE.fetch_add(1, Ordering::Relaxed),
            panics: AtomicU64::new(0),
        }
    }
}

/// Rescues allocations that found no room.
///
/// When `allocate` is out of memory or out of budget: `try_reap` and try again; `reap_pending`
/// and try again; then ask the callbacks in order. After each [`Retry`](Response::Retry) all
/// three tries are made again, and the same callback is asked again if they fail. If all decline,
/// the answer is the error of the last try. Any other error is answered at once.
pub struct FailureCallbackResource<R> {
    inner: R,
    callbacks: Arc<[Callback]>,
    waits: bool,
    /// Tells this resource from others in a thread's list of those that it is rescuing for.
    number: u64,
    panics: AtomicU64,
}

impl<R> FailureCallbackResource<R> {
    /// How many times a callback has panicked.
    #[must_use]
    pub fn callback_panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// The resource inside.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The resource inside, without the callbacks.
    pub fn into_inner(self) -> R {
        self.inner
    }

    const fn inner(&self) -> &R {
        &self.inner
    }
}

/// What one call of `allocate` asks for.
#[derive(Clone, Copy)]
struct Request {
    bytes: usize,
    stream: StreamId,
    tag: AllocTag,
}

impl<R: DeviceMemoryResource> FailureCallbackResource<R> {
    #[cold]
    fn rescue(&self, request: Request, error: ResourceError) -> ResourceResult<DeviceBlock> {
        let Some(_inside) = Inside::enter(self.number) else { return Err(error) };
        let mut error = match self.reap_and_try(request)? {
            Ok(block) => return Ok(block),
            Err(no_room) => no_room,
        };
        let mut attempt = 0_u32;
        for callback in &*self.callbacks {
            let mut asked = 0_u32;
            loop {
                (attempt, asked) = (attempt.saturating_add(1), asked.saturating_add(1));
                if self.ask(callback, request, &error, asked, attempt) == Response::Decline {
                    break;
                }
                error = match self.try_once(request)? {
                    Ok(block) => return Ok(block),
                    Err(_) => match self.reap_and_try(request)? {
                        Ok(block) => return Ok(block),
                        Err(no_room) => no_room,
                    },
                };
            }
        }
        Err(error)
    }

    fn ask(
        &self,
        callback: &Callback,
        request: Request,
        error: &ResourceError,
        asked: u32,
        attempt: u32,
    ) -> Response {
        let Request { bytes, stream, tag } = request;
        let device_ordinal = self.inner.device_ordinal();
        let failure =
            AllocationFailure { bytes, stream, tag, device_ordinal, error, asked, attempt };
        catch_unwind(AssertUnwindSafe(|| callback(&failure))).unwrap_or_else(|_| {
            self.panics.fetch_add(1, Ordering::Relaxed);
            Response::Decline
        })
    }

    /// Frees what is done and tries; waits for the rest, if it may, and tries again.
    fn reap_and_try(&self, request: Request) -> ResourceResult<Try> {
        // Reaping that fails leaves what there was; the try that follows says what is the matter.
        let _ = self.inner.try_reap();
        let answer = self.try_once(request)?;
        if answer.is_ok() || !self.waits {
            return Ok(answer);
        }
        let _ = self.inner.reap_pending();
        self.try_once(request)
    }

    fn try_once(&self, request: Request) -> ResourceResult<Try> {
        match self.inner.allocate(request.bytes, request.stream, request.tag) {
            Ok(block) => Ok(Ok(block)),
            Err(error) if is_no_room(&error) => Ok(Err(error)),
            Err(other) => Err(other),
        }
    }
}

/// A block, or why there was no room.
type Try = Result<DeviceBlock, ResourceError>;

const fn is_no_room(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}

thread_local! {
    /// The resources that this thread is inside a rescue of.
    static RESCUING: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, the thread is inside a rescue of one resource.
struct Inside(u64);

impl Inside {
    /// `None` if the thread is inside already, or is ending and cannot know.
    fn enter(number: u64) -> Option<Self> {
        let entered = RESCUING.try_with(|rescuing| {
            let mut rescuing = rescuing.borrow_mut();
            let is_new = !rescuing.contains(&number);
            if is_new {
                rescuing.push(number);
            }
            is_new
        });
        // Not `then_some`: a mark that is made and dropped would take the outer one away.
        entered.is_ok_and(|is_new| is_new).then(|| Self(number))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A thread that has lost its list has nothing to be taken off.
        let _ = RESCUING.try_with(|rescuing| rescuing.borrow_mut().retain(|n| *n != self.0));
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
        match self.inner.allocate(bytes, stream, tag) {
            Err(error) if is_no_room(&error) => self.rescue(Request { bytes, stream, tag }, error),
            answer => answer,
        }
    }

    forward!(
        inner: deallocate,
        // A block that does not grow is no failure: it is `false`, not an error.
        try_grow,
        is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        try_reap,
        reap_pending,
        trim_to,
        use_tracking,
        // Past it: the callbacks help blocks, a pool that maps pages has its own ways.
        virtual_memory,
    );
}

impl<R: fmt::Debug> fmt::Debug for FailureCallbackResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailureCallbacks({}, {:?})", self.callbacks.len(), self.inner)
    }
}

impl<R: fmt::Debug> fmt::Display for FailureCallbackResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

//! One spillable buffer: where it is, its guards, and its moves between device and host.
//!
//! A buffer is on the device, on the host, lent to its exclusive guard, or moving. A move takes the
//! state out and leaves `Moving` behind, so that no lock is held while the memory for the copy is
//! allocated: that allocation may spill other buffers, on this thread or on another one. Other
//! threads wait for the end of the move; this thread, which would wait for itself, gets an error.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer, Pod};
use dmr_core::sync::{ignore_poison, lock};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_recorder::hooks;
use dmr_streams::{DeviceContext, PinnedResources, StreamLease, StreamPool};

use crate::SpillError;
use crate::stats::Counter;

/// A spillable buffer of any element type, as the registry sees it.
pub(crate) trait Movable: Send + Sync {
    /// Returns where the buffer is.
    fn place(&self) -> Place;

    /// Returns when the last guard was dropped, in nanoseconds of the registry's clock.
    fn last_use(&self) -> u64;

    /// Moves the buffer to the host, if it is cold, with a copy on this stream. Returns its bytes;
    /// 0 if it is not cold any more. After an error it is still on the device.
    fn spill(&self, copies: &StreamLease) -> Result<u64, BufferError>;

    /// Waits while another thread moves the buffer to the host. Returns its bytes if it is there
    /// then.
    fn wait_for_spill(&self) -> u64;
}

/// The place of a buffer, with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the device, without a guard.
    Cold(u64),
    /// On the device with a guard, or on its way there.
    InUse(u64),
    /// On its way to the host.
    Spilling(u64),
    /// On the host.
    OnHost(u64),
}

pub(crate) struct Entry<T: Pod> {
    state: Mutex<State<T>>,
    /// Notified at the end of each move.
    moved: Condvar,
    last_use: AtomicU64,
}

enum State<T: Pod> {
    OnDevice(Resident<T>),
    OnHost(Spilled<T>),
    /// A thread moves it. No lock is held meanwhile.
    Moving {
        by: ThreadId,
        is_spill: bool,
        bytes: u64,
    },
    /// The exclusive guard has it; or nothing has, once the `Spillable` was dropped.
    Lent {
        bytes: u64,
    },
}

/// A buffer on the device: shared once there has been a shared guard, so that an exclusive guard
/// after another allocates nothing.
enum Resident<T: Pod> {
    Alone(DeviceBuffer<T>),
    Shared(Arc<DeviceBuffer<T>>),
}

/// A buffer on the host, with what a restore needs.
struct Spilled<T: Pod> {
    elements: PinnedBuffer<T>,
    context: Context,
    tag: AllocTag,
}

/// The resources and the streams that a spilled buffer was made with.
struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
    pinned: Option<Arc<PinnedResources>>,
}

impl<T: Pod> Entry<T> {
    pub(crate) fn new(buffer: DeviceBuffer<T>, now: u64) -> Self {
        let state = Mutex::new(State::OnDevice(Resident::Alone(buffer)));
        Self { state, moved: Condvar::new(), last_use: AtomicU64::new(now) }
    }

    /// Returns the buffer for a shared guard. Counts the bytes in `restored` if it was on the host.
    pub(crate) fn share(
        &self,
        stream: StreamId,
        restored: &Counter,
    ) -> Result<Arc<DeviceBuffer<T>>, SpillError> {
        let mut state = self.on_device(stream, restored)?;
        let bytes = state.bytes();
        match mem::replace(&mut *state, State::Lent { bytes }) {
            State::OnDevice(resident) => {
                let shared = resident.share();
                *state = State::OnDevice(Resident::Shared(Arc::clone(&shared)));
                Ok(shared)
            }
            other => {
                *state = other;
                Err(SpillError::Unavailable)
            }
        }
    }

    /// Takes the buffer out for the exclusive guard, which returns it with
    /// [`return_lent`](Self::return_lent).
    pub(crate) fn lend(
        &self,
        stream: StreamId,
        restored: &Counter,
    ) -> Result<DeviceBuffer<T>, SpillError> {
        let mut state = self.on_device(stream, restored)?;
        state.take_alone().ok_or(SpillError::Unavailable)
    }

    pub(crate) fn return_lent(&self, buffer: DeviceBuffer<T>, now: u64) {
        self.touch(now);
        *lock(&self.state) = State::OnDevice(Resident::Alone(buffer));
    }

    /// Takes back a buffer that was lent, and returns it for a shared guard.
    pub(crate) fn share_lent(&self, buffer: DeviceBuffer<T>) -> Arc<DeviceBuffer<T>> {
        let shared = Arc::new(buffer);
        *lock(&self.state) = State::OnDevice(Resident::Shared(Arc::clone(&shared)));
        shared
    }

    /// Records the end of a use.
    pub(crate) fn touch(&self, now: u64) {
        self.last_use.store(now, Ordering::Relaxed);
    }

    /// Drops the buffer, unless a thread is moving it: then that thread drops it.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        if !matches!(&*state, State::Moving { .. }) {
            let dropped = mem::replace(&mut *state, State::Lent { bytes: 0 });
            drop(state);
            drop(dropped);
        }
    }

    /// Returns where the buffer is.
    pub(crate) fn place(&self) -> Place {
        let state = lock(&self.state);
        let bytes = state.bytes();
        match &*state {
            State::OnDevice(resident) if resident.is_shared() => Place::InUse(bytes),
            State::OnDevice(_) => Place::Cold(bytes),
            State::OnHost(_) => Place::OnHost(bytes),
            State::Moving { is_spill: true, .. } => Place::Spilling(bytes),
            State::Moving { is_spill: false, .. } | State::Lent { .. } => Place::InUse(bytes),
        }
    }

    /// Makes sure that the buffer is on the device, restoring it with work on `stream`. Returns the
    /// locked state, so that nothing spills it again before the caller has changed it.
    fn on_device(
        &self,
        stream: StreamId,
        restored: &Counter,
    ) -> Result<MutexGuard<'_, State<T>>, SpillError> {
        let mut state = lock(&self.state);
        loop {
            match &*state {
                State::OnDevice(_) => return Ok(state),
                State::Lent { .. } => return Err(SpillError::Unavailable),
                // A callback of this thread's own move requests the buffer.
                State::Moving { by, .. } if *by == thread::current().id() => {
                    return Err(SpillError::Unavailable);
                }
                State::Moving { .. } => state = ignore_poison(self.moved.wait(state)),
                State::OnHost(_) => break,
            }
        }
        let mut moving = Move::begin(self, &mut state, false);
        // The allocation of the restore may spill others, whose state it locks.
        drop(state);
        let buffer = match &moving.state {
            State::OnHost(spilled) => spilled.restore(stream)?,
            _ => return Err(SpillError::Unavailable),
        };
        restored.add(buffer.size_in_bytes() as u64);
        record(&buffer, true);
        let spilled = moving.become_state(State::OnDevice(Resident::Alone(buffer)));
        let state = moving.end();
        drop(spilled);
        Ok(state)
    }
}

impl<T: Pod + Send + Sync> Movable for Entry<T> {
    fn place(&self) -> Place {
        Self::place(self)
    }

    fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    fn spill(&self, copies: &StreamLease) -> Result<u64, BufferError> {
        let mut state = lock(&self.state);
        if !matches!(&*state, State::OnDevice(resident) if !resident.is_shared()) {
            return Ok(0);
        }
        let mut moving = Move::begin(self, &mut state, true);
        drop(state);
        let spilled = match &moving.state {
            State::OnDevice(resident) => {
                let spilled = Spilled::copy_of(resident.buffer(), copies)?;
                record(resident.buffer(), false);
                spilled
            }
            _ => return Ok(0),
        };
        let bytes = moving.state.bytes();
        // Its memory is freed after the copy, which is recorded. Before the move ends: a thread
        // that waits for the spill retries its allocation then.
        drop(moving.become_state(State::OnHost(spilled)));
        drop(moving.end());
        Ok(bytes)
    }

    fn wait_for_spill(&self) -> u64 {
        let mut state = lock(&self.state);
        while let State::Moving { by, is_spill: true, .. } = &*state {
            if *by == thread::current().id() {
                return 0;
            }
            state = ignore_poison(self.moved.wait(state));
        }
        if matches!(&*state, State::OnHost(_)) { state.bytes() } else { 0 }
    }
}

/// A move that this thread makes, without a lock. Whatever happens, its end puts a state back:
/// before the copy has succeeded that is the state before the move.
struct Move<'a, T: Pod> {
    entry: &'a Entry<T>,
    state: State<T>,
}

impl<'a, T: Pod> Move<'a, T> {
    fn begin(entry: &'a Entry<T>, state: &mut State<T>, is_spill: bool) -> Self {
        let by = thread::current().id();
        let bytes = state.bytes();
        let before = mem::replace(state, State::Moving { by, is_spill, bytes });
        Self { entry, state: before }
    }

    /// Sets the state that the move ends with, and returns the one before.
    fn become_state(&mut self, after: State<T>) -> State<T> {
        mem::replace(&mut self.state, after)
    }

    /// Ends the move, and returns the locked state.
    fn end(self) -> MutexGuard<'a, State<T>> {
        let entry = self.entry;
        let mut state = lock(&entry.state);
        // The drop of `self` swaps nothing in once its state is `Lent`.
        let mut ended = self;
        *state = ended.become_state(State::Lent { bytes: 0 });
        drop(ended);
        entry.moved.notify_all();
        state
    }
}

impl<T: Pod> Drop for Move<'_, T> {
    fn drop(&mut self) {
        if matches!(&self.state, State::Lent { .. }) {
            return;
        }
        let state = self.become_state(State::Lent { bytes: 0 });
        *lock(&self.entry.state) = state;
        self.entry.moved.notify_all();
    }
}

impl<T: Pod> State<T> {
    fn bytes(&self) -> u64 {
        match self {
            Self::OnDevice(resident) => resident.buffer().size_in_bytes() as u64,
            Self::OnHost(spilled) => spilled.bytes(),
            Self::Moving { bytes, .. } | Self::Lent { bytes } => *bytes,
        }
    }

    /// Takes the buffer out, if it is on the device without a guard: it is lent then.
    fn take_alone(&mut self) -> Option<DeviceBuffer<T>> {
        let bytes = self.bytes();
        match mem::replace(self, Self::Lent { bytes }) {
            Self::OnDevice(resident) => match resident.into_alone() {
                Ok(buffer) => Some(buffer),
                Err(shared) => {
                    *self = Self::OnDevice(Resident::Shared(shared));
                    None
                }
            },
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<T: Pod> Resident<T> {
    fn buffer(&self) -> &DeviceBuffer<T> {
        match self {
            Self::Alone(buffer) => buffer,
            Self::Shared(buffer) => buffer,
        }
    }

    /// Returns whether there is a shared guard. Guards are made under the lock of the state only.
    fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(buffer) if Arc::strong_count(buffer) > 1)
    }

    fn share(self) -> Arc<DeviceBuffer<T>> {
        match self {
            Self::Alone(buffer) => Arc::new(buffer),
            Self::Shared(buffer) => buffer,
        }
    }

    fn into_alone(self) -> Result<DeviceBuffer<T>, Arc<DeviceBuffer<T>>> {
        match self {
            Self::Alone(buffer) => Ok(buffer),
            Self::Shared(buffer) => Arc::try_unwrap(buffer),
        }
    }
}

/// Records that a buffer was spilled, or `returns`.
fn record<T: Pod>(buffer: &DeviceBuffer<T>, returns: bool) {
    if let Some(block) = buffer.block() {
        hooks::spilled(returns, || block.into());
    }
}

impl<T: Pod> Spilled<T> {
    /// Copies a buffer to pinned memory, on this stream. Does not wait.
    fn copy_of(buffer: &DeviceBuffer<T>, copies: &StreamLease) -> Result<Self, BufferError> {
        let of = buffer.context();
        let context = Context {
            resource: Arc::clone(of.resource()),
            streams: Arc::clone(of.streams()),
            pinned: of.pinned_resources().cloned(),
        };
        let tag = buffer.block().map_or(AllocTag::UNTAGGED, DeviceBlock::tag);
        let mut elements = PinnedBuffer::uninit_tagged(&context, copies, buffer.len(), tag)?;
        elements.copy_from_device(buffer, copies)?;
        Ok(Self { elements, context, tag })
    }

    /// Copies the elements to a new buffer, on this stream. Does not wait.
    fn restore(&self, stream: StreamId) -> Result<DeviceBuffer<T>, BufferError> {
        let context = &self.context;
        let len = self.elements.len();
        let mut buffer = DeviceBuffer::uninit_tagged(context, stream, len, self.tag)?;
        self.elements.copy_to_device(&mut buffer, stream)?;
        Ok(buffer)
    }

    fn bytes(&self) -> u64 {
        (self.elements.len() * size_of::<T>()) as u64
    }
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        self.pinned.as_ref()
    }
}

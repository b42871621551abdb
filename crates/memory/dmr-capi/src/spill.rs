//! Buffers that may be spilled, by handle, and by address while they are pinned.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmr::DeviceRuntime;
use dmr::dmr_buffer::DeviceBuffer;
use dmr::dmr_buffer::failures::{DropFailure, take_drop_failures};
use dmr::dmr_core::process::PerProcess;
use dmr::dmr_core::sync::lock;
use dmr::dmr_core::{AllocTag, StreamId};
use dmr::dmr_launch::LaunchRecorder;
use dmr::dmr_spill::{OnDevice, Spillable};
use dmr::dmr_streams::TrackedMemory;

use crate::runtime::UseOf;
use crate::status::{Failure, Outcome, Status};
use crate::{Address, AddressMap, SpillableHandle};

/// The step between two handles, as for runtimes.
const STEP: usize = 16;

/// The spillable buffers of a runtime.
#[derive(Default)]
pub(crate) struct Spillables {
    by_handle: AddressMap<usize, Arc<Buffer>>,
    /// The buffers that are pinned. No entry is locked across a driver call.
    pinned: AddressMap<Address, Arc<Buffer>>,
    last: AtomicUsize,
}

/// A spillable buffer. Its lock is held while it is restored: by calls for this buffer only.
struct Buffer(Mutex<State>);

struct State {
    spillable: Arc<Spillable<u8>>,
    /// `Some` while there are pins.
    pinned: Option<Pinned>,
    pins: usize,
}

/// A buffer that stays on the device.
struct Pinned {
    /// Borrows the spillable buffer, so it is dropped before that.
    guard: OnDevice<'static, u8>,
    _spillable: Arc<Spillable<u8>>,
}

impl Pinned {
    fn new(spillable: &Arc<Spillable<u8>>, stream: StreamId) -> Outcome<Self> {
        // SAFETY: the value is kept by the `Arc` beside the guard, which is dropped after it.
        let borrowed: &'static Spillable<u8> = unsafe { &*Arc::as_ptr(spillable) };
        let guard = borrowed.on_device(stream)?;
        Ok(Self { guard, _spillable: Arc::clone(spillable) })
    }

    fn address(&self) -> Address {
        self.guard.device_ptr()
    }
}

/// The memory of buffers whose free has failed, of all runtimes. Never locked across a driver call.
static NOT_FREED: PerProcess<Mutex<Vec<DropFailure>>> = PerProcess::new(Mutex::default);

/// Frees the memory of a runtime's buffers whose free has failed. Returns the first error; the
/// other buffers are freed all the same.
pub(crate) fn free_again(gpu: &DeviceRuntime) -> Outcome<()> {
    let is_own = |failed: &DropFailure| Arc::ptr_eq(failed.resource(), gpu.resource());
    let mut kept = lock(NOT_FREED.get());
    kept.extend(take_drop_failures());
    let (own, others) = std::mem::take(&mut *kept).into_iter().partition(is_own);
    *kept = others;
    drop(kept);
    let own: Vec<DropFailure> = own;
    let mut outcome = Ok(());
    for failed in own {
        if let Err(failed) = failed.retry() {
            outcome = outcome.and(Err(failed.error().clone().into()));
            lock(NOT_FREED.get()).push(failed);
        }
    }
    outcome
}

impl Spillables {
    /// Allocates a buffer, and returns its handle.
    pub(crate) fn create(
        &self,
        gpu: &DeviceRuntime,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> Outcome<*mut SpillableHandle> {
        let spill = gpu.spill().ok_or_else(|| {
            Failure::new(
                Status::Unsupported,
                "the runtime spills nothing: set `spill` in its configuration",
            )
        })?;
        if bytes == 0 {
            let text =
                "a spillable buffer of zero bytes has nothing to spill: request one at least";
            return Err(Failure::new(Status::InvalidArgument, text));
        }
        let buffer = DeviceBuffer::<u8>::uninit_tagged(gpu, stream, bytes, tag)?;
        let spillable = spill.insert(buffer).map_err(|refused| refused.error)?;
        let state = State { spillable: Arc::new(spillable), pinned: None, pins: 0 };
        let number = self.last.fetch_add(STEP, Ordering::Relaxed) + STEP;
        self.by_handle.insert(number, Arc::new(Buffer(Mutex::new(state))));
        Ok(std::ptr::without_provenance_mut(number))
    }

    /// Keeps a buffer on the device, and returns its address. Restores it, with `stream` as its
    /// stream, if it was spilled.
    pub(crate) fn pin(&self, handle: *const SpillableHandle, stream: StreamId) -> Outcome<Address> {
        let buffer = self.find(handle)?;
        let mut state = lock(&buffer.0);
        let pinned = match state.pinned.take() {
            Some(pinned) => pinned,
            None => Pinned::new(&state.spillable, stream)?,
        };
        let address = pinned.address();
        state.pinned = Some(pinned);
        state.pins += 1;
        self.pinned.insert(address, Arc::clone(&buffer));
        Ok(address)
    }

    /// Takes back one pin. After the last one the buffer may be spilled again.
    pub(crate) fn unpin(&self, handle: *const SpillableHandle) -> Outcome<()> {
        let buffer = self.find(handle)?;
        let mut state = lock(&buffer.0);
        if state.pins == 0 {
            let text = "the spillable buffer is not pinned: call `dmr_spillable_pin` before";
            return Err(Failure::new(Status::InvalidArgument, text));
        }
        state.pins -= 1;
        if state.pins == 0
            && let Some(pinned) = state.pinned.take()
        {
            self.pinned.remove(&pinned.address());
        }
        Ok(())
    }

    /// Frees a buffer that is not pinned.
    pub(crate) fn destroy(&self, handle: *const SpillableHandle) -> Outcome<()> {
        let buffer = self.find(handle)?;
        let state = lock(&buffer.0);
        if state.pins > 0 {
            let text = "the spillable buffer is pinned: call `dmr_spillable_unpin` before";
            return Err(Failure::new(Status::Busy, text));
        }
        self.by_handle.remove(&handle.addr());
        drop(state);
        Ok(())
    }

    /// Frees all buffers, also those that are pinned.
    pub(crate) fn destroy_all(&self) {
        self.pinned.clear();
        let handles: Vec<usize> = self.by_handle.iter().map(|buffer| *buffer.key()).collect();
        for handle in handles {
            if let Some((_, buffer)) = self.by_handle.remove(&handle) {
                lock(&buffer.0).pinned = None;
            }
        }
    }

    /// Records in a launch that it uses the buffer that is pinned at an address. Returns `false` if
    /// there is none.
    pub(crate) fn record(
        &self,
        launch: &mut LaunchRecorder,
        address: Address,
        access: UseOf,
    ) -> bool {
        let Some(buffer) = self.pinned.get(&address).map(|buffer| Arc::clone(&buffer)) else {
            return false;
        };
        let mut state = lock(&buffer.0);
        match &mut state.pinned {
            Some(pinned) if pinned.address() == address => {
                access.record(launch, &mut pinned.guard);
                true
            }
            _ => false,
        }
    }

    fn find(&self, handle: *const SpillableHandle) -> Outcome<Arc<Buffer>> {
        self.by_handle.get(&handle.addr()).map(|buffer| Arc::clone(&buffer)).ok_or_else(|| {
            let text = format!(
                "{handle:p} is no spillable buffer of this runtime: it was destroyed, or is no \
                 handle of `dmr_spillable_create`"
            );
            Failure::new(Status::UnknownAddress, text)
        })
    }
}

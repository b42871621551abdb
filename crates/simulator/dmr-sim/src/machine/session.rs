//! One driver call inside a universe: the lock, and the objects that the handles of its arguments
//! name.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};

use crate::abi::handle::{self, Kind};
use crate::abi::*;
use crate::host::{current_context::current_context, sync::lock};
use crate::kernel::Refusal;
use crate::machine::{Machine, Shared, StreamKind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is inside a call of the simulated driver.
///
/// For test allocators that count the allocations of a program on the host heap, without those of
/// the simulator.
#[must_use]
pub fn is_inside_driver_call() -> bool {
    INSIDE.get()
}

/// Marks the calling thread as inside a driver call until it is dropped.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Self {
        INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Makes the null stream mean the calling thread's own one, instead of the legacy stream, until it
/// is dropped.
pub(crate) struct PerThreadDefault;

impl PerThreadDefault {
    pub(crate) fn enter() -> Self {
        PER_THREAD_DEFAULT.set(true);
        Self
    }
}

impl Drop for PerThreadDefault {
    fn drop(&mut self) {
        PER_THREAD_DEFAULT.set(false);
    }
}

/// A driver call in progress: holds the lock, except while it waits for a host callback or runs a
/// kernel.
pub(crate) struct Session<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    /// `None` only inside of `wait_while` and `run_kernel`.
    pub(crate) machine: Option<MutexGuard<'a, Machine>>,
    pub(crate) context: Option<u32>,
    /// `true` if the words that streams wait for can be written no more.
    pub(crate) is_last: bool,
    /// The driver's function that was called; empty for calls of a `Universe`.
    pub(crate) call: &'static str,
    /// The refusals of this call.
    pub(crate) refused: Vec<Refusal>,
}

impl Deref for Session<'_> {
    type Target = Machine;

    #[allow(clippy::expect_used, reason = "`None` only inside of `wait_while` and `run_kernel`")]
    fn deref(&self) -> &Machine {
        self.machine.as_deref().expect("the lock is held")
    }
}

impl DerefMut for Session<'_> {
    #[allow(clippy::expect_used, reason = "`None` only inside of `wait_while` and `run_kernel`")]
    fn deref_mut(&mut self) -> &mut Machine {
        self.machine.as_deref_mut().expect("the lock is held")
    }
}

impl Session<'_> {
    /// Returns the calling thread's context.
    pub(crate) fn context(&self) -> Outcome<u32> {
        if let Some(context) = self.context {
            return Ok(context);
        }
        let (id, context) =
            handle::decode(Kind::Context, current_context()).map_err(|_| ERROR_INVALID_CONTEXT)?;
        if id != self.shared.id {
            return Err(ERROR_INVALID_CONTEXT);
        }
        self.check_context(context)?;
        Ok(context)
    }

    /// Ends the session: unlocks the machine, and reports the refusals of the call.
    pub(crate) fn report_refusals(mut self) {
        let refused = std::mem::take(&mut self.refused);
        let report = self.config.report_refusal;
        drop(self);
        if let Some(report) = report {
            refused.iter().for_each(report);
        }
    }

    /// Returns the device of the calling thread's context.
    pub(crate) fn device(&self) -> Outcome<usize> {
        Ok(self.contexts[self.context()? as usize].device)
    }

    /// Returns the stream of a handle, or the sticky error of its device.
    pub(crate) fn stream(&mut self, handle: Handle) -> Outcome<u32> {
        let stream = match handle {
            0 if PER_THREAD_DEFAULT.get() => self.per_thread_stream()?,
            0 | STREAM_LEGACY => self.contexts[self.context()? as usize].legacy,
            STREAM_PER_THREAD => self.per_thread_stream()?,
            handle => self.stream_index(handle)?,
        };
        let found = self.streams.get(stream as usize).ok_or(ERROR_INVALID_HANDLE)?;
        self.check_context(found.context)?;
        if found.destroyed { Err(ERROR_INVALID_HANDLE) } else { Ok(stream) }
    }

    /// Returns the event of a handle, or the sticky error of its device.
    pub(crate) fn event_index(&self, handle: Handle) -> Outcome<u32> {
        let index = self.index_of(Kind::Event, handle)?;
        let event = self.events.get(&index).ok_or(ERROR_INVALID_HANDLE)?;
        self.check_context(event.context)?;
        Ok(index)
    }

    /// Returns the index in a handle of this universe.
    pub(crate) fn index_of(&self, kind: Kind, handle: Handle) -> Outcome<u32> {
        let (id, index) = handle::decode(kind, handle)?;
        if id == self.shared.id { Ok(index) } else { Err(ERROR_INVALID_HANDLE) }
    }

    /// Returns the index of the stream that a handle names. That of a destroyed one names none.
    pub(crate) fn stream_index(&self, handle: Handle) -> Outcome<u32> {
        let number = self.index_of(Kind::Stream, handle)?;
        self.numbers.index_of.get(&number).copied().ok_or(ERROR_INVALID_HANDLE)
    }

    /// Returns the handle of a stream.
    pub(crate) fn stream_handle(&self, index: u32) -> Handle {
        self.handle(Kind::Stream, self.streams[index as usize].number)
    }

    /// Returns the handle of an object of this universe.
    pub(crate) fn handle(&self, kind: Kind, index: u32) -> Handle {
        handle::encode(kind, self.shared.id, index)
    }

    /// Returns the universe's device that a `CUdevice` names.
    pub(crate) fn device_index(&self, device: CUdevice) -> Outcome<usize> {
        let position = self.shared.ordinals.iter().position(|&o| o as CUdevice == device);
        position.ok_or(ERROR_INVALID_DEVICE)
    }

    pub(crate) fn check_context(&self, context: u32) -> Outcome {
        let context = self.contexts.get(context as usize).ok_or(ERROR_INVALID_CONTEXT)?;
        if context.destroyed {
            return Err(ERROR_CONTEXT_IS_DESTROYED);
        }
        self.devices[context.device].lost.map_or(Ok(()), Err)
    }

    fn per_thread_stream(&mut self) -> Outcome<u32> {
        let context = self.context()?;
        let key = (std::thread::current().id(), context);
        if let Some(&stream) = self.numbers.per_thread.get(&key) {
            return Ok(stream);
        }
        let device = self.contexts[context as usize].device;
        let stream = self.new_stream(context, device, StreamKind::Blocking, 0);
        self.numbers.per_thread.insert(key, stream);
        Ok(stream)
    }
}

impl Shared {
    /// Locks the machine for the calling thread.
    pub(crate) fn session(self: &Arc<Self>) -> Session<'_> {
        self.session_of(self.lock())
    }

    /// Locks the machine for a call of the driver: also while a kernel runs, if the call does not
    /// need its memory.
    pub(crate) fn session_for(self: &Arc<Self>, call: &str) -> Session<'_> {
        let machine = lock(&self.machine);
        let is_beside = machine.scheduler.runs_kernel && runs_beside_kernels(call);
        self.session_of(if is_beside { machine } else { self.wait_for_kernel(machine) })
    }

    fn session_of<'a>(self: &'a Arc<Self>, machine: MutexGuard<'a, Machine>) -> Session<'a> {
        Session {
            shared: self,
            machine: Some(machine),
            context: None,
            is_last: false,
            call: "",
            refused: Vec::new(),
        }
    }
}

/// Returns whether a call uses neither the memory nor the checks, which a kernel that runs has.
fn runs_beside_kernels(call: &str) -> bool {
    match call {
        "cuCtxSynchronize" | "cuCtxSynchronize_v2" | "cuCtxDestroy_v2" => false,
        "cuEventQuery" | "cuStreamQuery" | "cuMemGetInfo_v2" | "cuStreamIsCapturing" => true,
        "cuDeviceGet" | "cuDeviceTotalMem_v2" | "cuDeviceComputeCapability" => true,
        _ => call.starts_with("cuCtx"),
    }
}

//! One driver call inside a universe: the lock, and the objects that the handles of its arguments
//! name.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::abi::handle::{self, Kind};
use crate::abi::*;
use crate::host::callback;
use crate::host::current_context::current_context;
use crate::host::faults::{Faults, Instead};
use crate::host::fork::refuse_in_child;
use crate::host::initialised::refuse_before;
use crate::host::label::Frames;
use crate::host::python;
use crate::host::sync::{ignore_poison, lock};
use crate::machine::refusals::Refusal;
use crate::machine::registry;
use crate::machine::state::{Machine, StreamKind};

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

/// A universe, shared by the driver's functions.
pub(crate) struct Shared {
    /// The id of the universe in handles.
    pub(crate) id: u32,
    /// The CUDA ordinals of its devices.
    pub(crate) ordinals: Vec<usize>,
    pub(crate) faults: Faults,
    pub(crate) ended: AtomicBool,
    /// The frames that reports show.
    frames: Frames,
    /// Locked directly only where a kernel may run: other users of it need the memory that the
    /// kernel has.
    pub(crate) machine: Mutex<Machine>,
    /// Notified when a host callback has returned, and when a kernel has ended.
    pub(crate) changed: Condvar,
}

impl Shared {
    pub(crate) fn new(id: u32, ordinals: Vec<usize>, machine: Machine) -> Self {
        Self {
            id,
            ordinals,
            faults: Faults::default(),
            ended: AtomicBool::new(false),
            frames: machine.config.frames,
            machine: Mutex::new(machine),
            changed: Condvar::new(),
        }
    }

    /// Locks the machine for the calling thread.
    pub(crate) fn session(self: &Arc<Self>) -> Session<'_> {
        self.session_of(self.lock())
    }

    /// Locks the machine for a call of the driver: also while a kernel runs, if the call does not
    /// need its memory.
    fn session_for(self: &Arc<Self>, call: &str) -> Session<'_> {
        let machine = lock(&self.machine);
        let is_beside = machine.runs_kernel && runs_beside_kernels(call);
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.wait_for_kernel(lock(&self.machine))
    }

    /// Unlocks the machine until no kernel runs.
    pub(crate) fn wait_for_kernel<'a>(
        &'a self,
        mut machine: MutexGuard<'a, Machine>,
    ) -> MutexGuard<'a, Machine> {
        while machine.runs_kernel {
            machine.held_up += 1;
            machine = ignore_poison(self.changed.wait(machine));
            machine.held_up -= 1;
        }
        machine
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

/// The argument by which a call finds its universe.
#[derive(Clone, Copy)]
pub(crate) enum Scope {
    /// The calling thread's current context.
    Context,
    /// A context whose device may be lost.
    AnyContext(Handle),
    /// A stream; the null and per-thread handles mean the current context's.
    Stream(Handle),
    Event(Handle),
    Pool(Handle),
    /// A handle of physical memory.
    Memory(Handle),
    /// The calling thread's current context; without one, the universe of this module or function.
    ContextOr(Handle),
    /// A `CUdevice`.
    Device(CUdevice),
    /// A context's handle.
    ContextHandle(Handle),
}

/// Makes one call of the driver: resolves the universe, counts, injects faults, does the work under
/// the lock, and runs some work of the device afterwards. A panic does not leave it. Refused in
/// kernels, host callbacks and forked children.
pub(crate) fn driver_call(
    name: &'static str,
    scope: Scope,
    work: impl FnOnce(&mut Session<'_>) -> Outcome,
) -> Code {
    if let Err(code) = refuse_in_child().and_then(|()| refuse_before()) {
        return code;
    }
    if callback::is_running() {
        return ERROR_NOT_PERMITTED;
    }
    let _inside = Inside::enter();
    let call = std::panic::AssertUnwindSafe(|| {
        let (id, context) = match scope {
            Scope::ContextOr(object) if current_context() == 0 => (handle::universe(object), None),
            Scope::Context | Scope::ContextOr(_) | Scope::Stream(0..=STREAM_PER_THREAD) => {
                let (id, context) = handle::decode(Kind::Context, current_context())
                    .map_err(|_| ERROR_INVALID_CONTEXT)?;
                (id, Some(context))
            }
            Scope::Stream(stream) => (handle::decode(Kind::Stream, stream)?.0, None),
            Scope::Event(event) => (handle::decode(Kind::Event, event)?.0, None),
            Scope::Pool(pool) => (handle::decode(Kind::Pool, pool)?.0, None),
            Scope::Memory(memory) => {
                let decoded = handle::decode(Kind::Memory, memory);
                (decoded.map_err(|_| ERROR_INVALID_VALUE)?.0, None)
            }
            Scope::ContextHandle(context) => {
                let (id, context) =
                    handle::decode(Kind::Context, context).map_err(|_| ERROR_INVALID_CONTEXT)?;
                (id, Some(context))
            }
            Scope::AnyContext(context) => {
                let decoded = handle::decode(Kind::Context, context);
                (decoded.map_err(|_| ERROR_INVALID_CONTEXT)?.0, None)
            }
            Scope::Device(device) => (registry::universe_of_ordinal(device)?.id, None),
        };
        let shared = registry::universe(id)?;
        let planted = shared.faults.enter(name);
        // Dropped after the lock: other threads continue while this one is held.
        let _held_after = planted.after;
        match planted.instead {
            Some(Instead::Fail(code)) => return Err(code),
            Some(Instead::Swallow) => return Ok(()),
            None => {}
        }
        if shared.ended.load(Ordering::Acquire) {
            return Err(ERROR_CONTEXT_IS_DESTROYED);
        }
        if shared.frames != Frames::None {
            python::note_lines();
        }
        let mut session = shared.session_for(name);
        session.call = name;
        session.calls += 1;
        if let Some(context) = context {
            session.check_context(context)?;
            session.context = Some(context);
        }
        let device = session.device_of(scope);
        let outcome = work(&mut session);
        // A fault of the device while the call waited is the call's result.
        let fault = device.and_then(|device| session.devices[device].lost);
        session.let_run();
        session.run_for_host();
        session.report_refusals();
        outcome.and(fault.map_or(Ok(()), Err))
    });
    match std::panic::catch_unwind(call) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => ERROR_UNKNOWN,
    }
}

/// A driver call in progress: holds the lock, except while it waits for a host callback or runs a
/// kernel.
pub(crate) struct Session<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    /// `None` only inside of `wait_while` and `run_kernel`.
    pub(crate) machine: Option<MutexGuard<'a, Machine>>,
    context: Option<u32>,
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
    fn report_refusals(mut self) {
        let refused = std::mem::take(&mut self.refused);
        let report = self.config.report_refusal;
        drop(self);
        if let Some(report) = report {
            refused.iter().for_each(report);
        }
    }

    /// Returns the device that a call concerns, if there is one.
    fn device_of(&self, scope: Scope) -> Option<usize> {
        let context = match (self.context, scope) {
            (Some(context), _) => context,
            (None, Scope::Stream(stream)) => {
                let index = self.stream_index(stream).ok()?;
                return self.streams.get(index as usize).map(|stream| stream.device);
            }
            (None, Scope::Event(event)) => {
                let index = self.index_of(Kind::Event, event).ok()?;
                self.events.get(&index)?.context
            }
            _ => return None,
        };
        self.contexts.get(context as usize).map(|context| context.device)
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
    fn stream_index(&self, handle: Handle) -> Outcome<u32> {
        let number = self.index_of(Kind::Stream, handle)?;
        self.stream_of_number.get(&number).copied().ok_or(ERROR_INVALID_HANDLE)
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

    fn check_context(&self, context: u32) -> Outcome {
        let context = self.contexts.get(context as usize).ok_or(ERROR_INVALID_CONTEXT)?;
        if context.destroyed {
            return Err(ERROR_CONTEXT_IS_DESTROYED);
        }
        self.devices[context.device].lost.map_or(Ok(()), Err)
    }

    fn per_thread_stream(&mut self) -> Outcome<u32> {
        let context = self.context()?;
        let key = (std::thread::current().id(), context);
        if let Some(&stream) = self.per_thread.get(&key) {
            return Ok(stream);
        }
        let device = self.contexts[context as usize].device;
        let stream = self.new_stream(context, device, StreamKind::Blocking, 0);
        self.per_thread.insert(key, stream);
        Ok(stream)
    }
}

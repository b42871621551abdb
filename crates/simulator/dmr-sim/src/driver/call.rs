//! One call of the driver: its universe, counting, faults, the lock, and its work.

use std::sync::atomic::Ordering;

use crate::abi::handle::{self, Kind};
use crate::abi::*;
use crate::host::{
    Frames, Instead, callback, current_context::current_context, fork::refuse_in_child,
    initialised::refuse_before, python,
};
use crate::machine::{Inside, Session, registry};

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
        let context_of =
            |handle| handle::decode(Kind::Context, handle).map_err(|_| ERROR_INVALID_CONTEXT);
        let (id, context) = match scope {
            Scope::ContextOr(object) if current_context() == 0 => (handle::universe(object), None),
            Scope::Context | Scope::ContextOr(_) | Scope::Stream(0..=STREAM_PER_THREAD) => {
                let (id, context) = context_of(current_context())?;
                (id, Some(context))
            }
            Scope::ContextHandle(context) => {
                let (id, context) = context_of(context)?;
                (id, Some(context))
            }
            Scope::AnyContext(context) => (context_of(context)?.0, None),
            Scope::Stream(stream) => (handle::decode(Kind::Stream, stream)?.0, None),
            Scope::Event(event) => (handle::decode(Kind::Event, event)?.0, None),
            Scope::Pool(pool) => (handle::decode(Kind::Pool, pool)?.0, None),
            Scope::Memory(memory) => {
                let decoded = handle::decode(Kind::Memory, memory);
                (decoded.map_err(|_| ERROR_INVALID_VALUE)?.0, None)
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
            python::record_lines();
        }
        let mut session = shared.session_for(name);
        session.call = name;
        session.count_call();
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

impl Session<'_> {
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
}

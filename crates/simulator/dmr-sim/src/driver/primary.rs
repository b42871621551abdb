//! Primary contexts.

use std::ffi::{c_int, c_uint};

use super::context::end;
use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Session, registry};
use crate::memory::{Home, address};

chapter![
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset,
    cuDevicePrimaryCtxReset_v2,
    cuDevicePrimaryCtxSetFlags,
    cuDevicePrimaryCtxSetFlags_v2,
    cuDevicePrimaryCtxGetState,
];

unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: CUdevice) -> Code {
    let code = driver_call("cuDevicePrimaryCtxRetain", Scope::Device(device), |session| {
        required(context)?;
        let index = session.device_index(device)?;
        if let Some(code) = session.devices[index].lost {
            return Err(code);
        }
        let primary = match session.devices[index].primary {
            Some(primary) => primary,
            None => session.new_context(index),
        };
        let device = &mut session.devices[index];
        device.primary = Some(primary);
        device.retained += 1;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(context, session.handle(Kind::Context, primary)) }
    });
    if code == SUCCESS {
        registry::retained(device);
    }
    code
}

extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Code {
    let code = driver_call("cuDevicePrimaryCtxRelease_v2", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        let device = &mut session.devices[index];
        device.retained = device.retained.checked_sub(1).ok_or(ERROR_INVALID_CONTEXT)?;
        if device.retained == 0
            && let Some(primary) = device.primary.take()
        {
            end(session, primary);
        }
        Ok(())
    });
    // The last two mean that the universe has ended.
    if matches!(code, SUCCESS | ERROR_INVALID_DEVICE | ERROR_CONTEXT_IS_DESTROYED) {
        registry::released(device);
    }
    code
}

unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Code {
    driver_call("cuDevicePrimaryCtxGetState", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        let is_active = session.devices[index].primary.is_some();
        let set = session.objects.primary_flags.get(&index).copied().unwrap_or(0);
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(flags, set)?;
            put(active, c_int::from(is_active))
        }
    })
}

extern "C" fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Code {
    cuDevicePrimaryCtxRelease_v2(device)
}

extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) -> Code {
    driver_call("cuDevicePrimaryCtxSetFlags_v2", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        super::context::check_flags(flags)?;
        session.objects.primary_flags.insert(index, flags);
        Ok(())
    })
}

extern "C" fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) -> Code {
    cuDevicePrimaryCtxSetFlags_v2(device, flags)
}

/// Ends the primary context, with its streams and events after their work, and the memory of its
/// device. The handle stays that of a destroyed context (as observed on an H200); the next retain
/// makes another one. The context stays retained as often as it was, and a fault of the device is
/// over.
extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Code {
    driver_call("cuDevicePrimaryCtxReset_v2", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        session.objects.primary_flags.remove(&index);
        let Some(primary) = session.devices[index].primary.take() else { return Ok(()) };
        end(session, primary);
        session.devices[index].lost = None;
        session.devices[index].lost_by = None;
        free_all(session, index)
    })
}

extern "C" fn cuDevicePrimaryCtxReset(device: CUdevice) -> Code {
    cuDevicePrimaryCtxReset_v2(device)
}

/// Frees the memory of a device, unless another context of it can have allocated some.
fn free_all(session: &mut Session<'_>, device: usize) -> Outcome {
    if session.contexts.iter().any(|context| context.device == device && !context.destroyed) {
        return Ok(());
    }
    let is_freed = |home: Home| home.device() == Some(device);
    let allocations = session.memory.present.allocations();
    let blocks: Vec<u64> =
        allocations.filter(|(_, block)| is_freed(block.home)).map(|(at, _)| at).collect();
    blocks.into_iter().try_for_each(|at| session.free_now(at))?;
    // Modules of the context stay loaded, without their variables.
    let is_gone = |at: u64| address::device_of(at) == Some(device);
    session.objects.variables.retain(|&at| !is_gone(at));
    for module in session.kernels.modules.values_mut() {
        module.variables.retain(|variable| !is_gone(variable.at));
    }
    for pool in 0..session.pools.len() {
        if session.pools[pool].device == device {
            session.trim(pool, 0);
        }
    }
    session.trim_graph_memory(device);
    session.release_graph_addresses();
    Ok(())
}

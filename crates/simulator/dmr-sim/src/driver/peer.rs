//! Peer access between contexts.

use std::ffi::{c_int, c_uint};

use super::{Scope, chapter, driver_call, put};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::Session;

chapter![cuDeviceCanAccessPeer, cuCtxEnablePeerAccess, cuCtxDisablePeerAccess];

unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> Code {
    driver_call("cuDeviceCanAccessPeer", Scope::Device(device), |session| {
        let yes = session.has_peer_path(session.device_index(device)?, session.device_index(peer)?);
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(can, c_int::from(yes)) }
    })
}

extern "C" fn cuCtxEnablePeerAccess(peer: Handle, _flags: c_uint) -> Code {
    driver_call("cuCtxEnablePeerAccess", Scope::Context, |session| {
        let (context, peer) = both(session, peer)?;
        if !session.has_peer_path(session.device()?, peer) {
            return Err(ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let reaches = &mut session.contexts[context as usize].reaches;
        if reaches.contains(&peer) {
            return Err(ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        reaches.push(peer);
        Ok(())
    })
}

extern "C" fn cuCtxDisablePeerAccess(peer: Handle) -> Code {
    driver_call("cuCtxDisablePeerAccess", Scope::Context, |session| {
        let (context, peer) = both(session, peer)?;
        if peer == session.device()? {
            return Err(ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        let reaches = &mut session.contexts[context as usize].reaches;
        let at = reaches.iter().position(|&device| device == peer);
        reaches.remove(at.ok_or(ERROR_PEER_ACCESS_NOT_ENABLED)?);
        Ok(())
    })
}

/// Returns the calling context and the device of the other one.
fn both(session: &Session<'_>, peer: Handle) -> Outcome<(u32, usize)> {
    let peer = session.index_of(Kind::Context, peer).map_err(|_| ERROR_INVALID_CONTEXT)?;
    let peer = session.contexts.get(peer as usize).ok_or(ERROR_INVALID_CONTEXT)?.device;
    Ok((session.context()?, peer))
}

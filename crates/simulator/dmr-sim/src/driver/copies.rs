//! Copies of one dimension: which sides may be pageable host memory, and when the host waits.

use super::{Scope, chapter, driver_call};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Action, CopyWork, NodeWork, Rows, Session};
use crate::memory::address;

chapter![
    cuMemcpy,
    cuMemcpyAsync,
    cuMemcpyHtoD_v2,
    cuMemcpyHtoDAsync_v2,
    cuMemcpyDtoH_v2,
    cuMemcpyDtoHAsync_v2,
    cuMemcpyDtoD_v2,
    cuMemcpyDtoDAsync_v2,
    cuMemcpyPeer,
    cuMemcpyPeerAsync,
];

/// The side of a copy that may be pageable host memory.
#[derive(Clone, Copy)]
pub(super) enum Pageable {
    /// `by_address`: the call names no contexts.
    Neither {
        by_address: bool,
    },
    Source,
    Target,
    /// Both can be, too.
    Either,
}

/// Submits a copy. Device and pinned memory can be on either side, as unified addressing allows.
/// Synchronous copies (`waits`) use the legacy stream, and wait according to the manual's "API
/// synchronization behavior".
///
/// # Safety
///
/// A side that may be pageable, and is neither device nor pinned memory, is valid for `len` bytes
/// until this returns.
unsafe fn memcpy(
    name: &'static str,
    stream: Handle,
    to: u64,
    from: u64,
    len: usize,
    pageable: Pageable,
    waits: bool,
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        if to == 0 || from == 0 {
            return if len == 0 { Ok(()) } else { Err(ERROR_INVALID_VALUE) };
        }
        let to = Rows::one(to, len as u64);
        let from = Rows::one(from, len as u64);
        // SAFETY: by this function's contract.
        unsafe { submit_copy(session, stream, to, from, pageable, waits, &[]) }
    })
}

/// Submits a copy of rows, as [`memcpy`] does of one. A copy on the device comes after all work of
/// the streams `serialised_with` that has been submitted, and before all that will be.
///
/// # Safety
///
/// As [`memcpy`], for each row.
pub(super) unsafe fn submit_copy(
    session: &mut Session<'_>,
    stream: u32,
    to: Rows,
    from: Rows,
    pageable: Pageable,
    waits: bool,
    serialised_with: &[u32],
) -> Outcome {
    let Some(work) = copy_work(session, to, from, pageable)? else { return Ok(()) };
    if session.capture(stream, || NodeWork::Copy(work.clone()))? {
        return Ok(());
    }
    if work.to_host && work.from_host {
        // Both sides are valid during the call.
        let epoch = session.copy(stream, &work)?;
        session.wait_for(epoch);
        return Ok(());
    }
    if work.to_host {
        let epoch = session.copy_out(stream, &work)?;
        session.wait_for(epoch);
        return Ok(());
    }
    if work.from_host {
        if waits {
            // Waits for earlier work of the stream; the transfer itself need not be complete.
            session.synchronize_stream(stream);
        }
        let len = work.from.len as usize;
        // SAFETY: by this function's contract, pageable memory is readable during the call. It is
        // read only if the range fits on the device.
        let take =
            |at: u64| unsafe { std::slice::from_raw_parts(at as usize as *const u8, len) }.into();
        return session.copy_in(stream, &work, take).map(drop);
    }
    session.come_after(stream, serialised_with);
    let epoch = session.copy(stream, &work)?;
    for other in serialised_with {
        session.come_after(*other, &[stream]);
    }
    let is_on_device = |rows: &Rows| rows.first().is_some_and(address::is_on_device);
    if waits && !(is_on_device(&work.to) && is_on_device(&work.from)) {
        session.wait_for(epoch);
    }
    Ok(())
}

/// Returns the copy of these rows; `None` if they are empty. One that is not allowed is an error.
pub(super) fn copy_work(
    session: &Session<'_>,
    to: Rows,
    from: Rows,
    pageable: Pageable,
) -> Outcome<Option<CopyWork>> {
    let (Some(to_start), Some(from_start)) = (to.first(), from.first()) else { return Ok(None) };
    if to.len > isize::MAX as u64 {
        return Err(ERROR_INVALID_VALUE);
    }
    let on_device = address::is_on_device;
    let is_pageable = |at| !on_device(at) && !session.is_pinned(at);
    let from_host = is_pageable(from_start);
    let to_host = is_pageable(to_start);
    let allowed = match (from_host, to_host) {
        (false, false) => true,
        (true, false) => matches!(pageable, Pageable::Source | Pageable::Either),
        (false, true) => matches!(pageable, Pageable::Target | Pageable::Either),
        (true, true) => matches!(pageable, Pageable::Either),
    };
    if !allowed {
        return Err(ERROR_INVALID_VALUE);
    }
    // Without access, it copies memory of `cuMemAlloc` of other devices only (as observed on an
    // H200).
    let by_address = matches!(pageable, Pageable::Neither { by_address: true });
    Ok(Some(CopyWork { to, from, to_host, from_host, by_address }))
}

pub(super) unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: u64, len: usize) -> Code {
    // SAFETY: the driver's contract is that of `memcpy`; so for all copies here.
    unsafe { memcpy("cuMemcpyHtoD_v2", 0, to, from, len, Pageable::Source, true) }
}

pub(super) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: u64,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyHtoDAsync_v2", stream, to, from, len, Pageable::Source, false) }
}

pub(super) unsafe extern "C" fn cuMemcpyDtoH_v2(to: u64, from: CUdeviceptr, len: usize) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoH_v2", 0, to, from, len, Pageable::Target, true) }
}

pub(super) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: u64,
    from: CUdeviceptr,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoHAsync_v2", stream, to, from, len, Pageable::Target, false) }
}

/// Between two addresses of a call that names no contexts.
const BY_ADDRESS: Pageable = Pageable::Neither { by_address: true };
/// Between two addresses of a call that names their contexts.
const BY_CONTEXT: Pageable = Pageable::Neither { by_address: false };

pub(super) unsafe extern "C" fn cuMemcpyDtoD_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoD_v2", 0, to, from, len, BY_ADDRESS, true) }
}

pub(super) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoDAsync_v2", stream, to, from, len, BY_ADDRESS, false) }
}

pub(super) unsafe extern "C" fn cuMemcpy(to: u64, from: u64, len: usize) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpy", 0, to, from, len, Pageable::Either, true) }
}

pub(super) unsafe extern "C" fn cuMemcpyAsync(
    to: u64,
    from: u64,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyAsync", stream, to, from, len, Pageable::Either, false) }
}

pub(super) unsafe extern "C" fn cuMemcpyPeer(
    to: CUdeviceptr,
    to_context: Handle,
    from: CUdeviceptr,
    from_context: Handle,
    len: usize,
) -> Code {
    driver_call("cuMemcpyPeer", Scope::Stream(0), |session| {
        let stream = session.stream(0)?;
        if to == 0 || from == 0 {
            return if len == 0 { Ok(()) } else { Err(ERROR_INVALID_VALUE) };
        }
        let others = session.others_of(stream, [to_context, from_context]);
        let to = Rows::one(to, len as u64);
        let from = Rows::one(from, len as u64);
        // SAFETY: as above.
        unsafe { submit_copy(session, stream, to, from, BY_CONTEXT, true, &others) }
    })
}

pub(super) unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    _to_context: Handle,
    from: CUdeviceptr,
    _from_context: Handle,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyPeerAsync", stream, to, from, len, BY_CONTEXT, false) }
}

impl Session<'_> {
    /// Returns the streams, but for this one, of its context and of these: those that a copy
    /// between contexts on it is serialised with. Captures are not.
    pub(super) fn others_of(&self, stream: u32, contexts: [Handle; 2]) -> Vec<u32> {
        let own = self.streams[stream as usize].context;
        let named = contexts.map(|context| self.index_of(Kind::Context, context).unwrap_or(own));
        let others = self.streams.iter().enumerate().filter(|(other, stream_of)| {
            let is_one = stream_of.context == own || named.contains(&stream_of.context);
            is_one && *other != stream as usize && stream_of.capture.is_none()
        });
        others.map(|(other, _)| other as u32).collect()
    }

    /// Makes later work of a stream come after all submitted work of other streams.
    fn come_after(&mut self, stream: u32, others: &[u32]) {
        if others.is_empty() {
            return;
        }
        let (epoch, mut deps) = self.begin(stream);
        for other in others {
            let last = self.last(*other);
            let clock = self.streams[*other as usize].clock.clone();
            self.streams[stream as usize].clock.join(&clock);
            deps.push(last);
        }
        self.push(epoch, deps, Action::Order);
    }
}

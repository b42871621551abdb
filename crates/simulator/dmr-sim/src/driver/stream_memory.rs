//! Stream memory operations: words that streams write and wait for.

use std::ffi::{c_int, c_uint};

use super::{Scope, chapter, driver_call};
use crate::abi::*;
use crate::check::{How, Test, Value};
use crate::machine::{Machine, NodeWork, Session, WordOperation};

chapter![
    cuStreamWriteValue32,
    cuStreamWriteValue32_v2,
    cuStreamWriteValue64,
    cuStreamWriteValue64_v2,
    cuStreamWaitValue32,
    cuStreamWaitValue32_v2,
    cuStreamWaitValue64,
    cuStreamWaitValue64_v2,
    cuStreamBatchMemOp,
    cuStreamBatchMemOp_v2,
];

/// `CUstreamBatchMemOpType`.
const WAIT_32: c_int = 1;
const WRITE_32: c_int = 2;
const FLUSH_REMOTE_WRITES: c_int = 3;
const WAIT_64: c_int = 4;
const WRITE_64: c_int = 5;
const BARRIER: c_int = 6;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, of the first version.
const NO_MEMORY_BARRIER: c_uint = 1;
/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const FLUSH: c_uint = 1 << 30;
/// The limit of a batch, which is shorter than this, and may be empty.
const MOST: c_uint = 256;

/// The two versions of the interface, of which a device need not support the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

macro_rules! operations {
    ($($name:ident($value:ty) = $operation:expr, $version:expr;)*) => {
        $(pub(super) extern "C" fn $name(
            stream: Handle,
            at: CUdeviceptr,
            value: $value,
            flags: c_uint,
        ) -> Code {
            driver_call(stringify!($name), Scope::Stream(stream), |session| {
                let stream = session.stream(stream)?;
                let parameters = CUstreamBatchMemOpParams {
                    operation: $operation,
                    barrier_flags: 0,
                    at,
                    value: value.into(),
                    flags,
                    rest: [0; 2],
                };
                submit(session, stream, &[parameters], $version)
            })
        })*
    };
}

operations! {
    cuStreamWriteValue32(u32) = WRITE_32, Version::First;
    cuStreamWriteValue32_v2(u32) = WRITE_32, Version::Second;
    cuStreamWriteValue64(u64) = WRITE_64, Version::First;
    cuStreamWriteValue64_v2(u64) = WRITE_64, Version::Second;
    cuStreamWaitValue32(u32) = WAIT_32, Version::First;
    cuStreamWaitValue32_v2(u32) = WAIT_32, Version::Second;
    cuStreamWaitValue64(u64) = WAIT_64, Version::First;
    cuStreamWaitValue64_v2(u64) = WAIT_64, Version::Second;
}

pub(super) unsafe extern "C" fn cuStreamBatchMemOp(
    stream: Handle,
    count: c_uint,
    parameters: *const CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Code {
    // SAFETY: the caller's pointer is null or valid for `count` elements.
    unsafe { batch("cuStreamBatchMemOp", stream, count, parameters, flags, Version::First) }
}

pub(super) unsafe extern "C" fn cuStreamBatchMemOp_v2(
    stream: Handle,
    count: c_uint,
    parameters: *const CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Code {
    // SAFETY: as above.
    unsafe { batch("cuStreamBatchMemOp_v2", stream, count, parameters, flags, Version::Second) }
}

/// # Safety
///
/// `parameters` is null, or points to `count` of them.
unsafe fn batch(
    name: &'static str,
    stream: Handle,
    count: c_uint,
    parameters: *const CUstreamBatchMemOpParams,
    flags: c_uint,
    version: Version,
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        if count >= MOST || parameters.is_null() || flags != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: by this function's contract.
        let read = |i| unsafe { parameters.add(i).read_unaligned() };
        let all: Vec<_> = (0..count as usize).map(read).collect();
        submit(session, stream, &all, version)
    })
}

/// Queues all operations in this order, or none if one is malformed.
fn submit(
    session: &mut Session<'_>,
    stream: u32,
    parameters: &[CUstreamBatchMemOpParams],
    version: Version,
) -> Outcome {
    let understood: Outcome<Vec<_>> =
        parameters.iter().map(|one| understand(session, one, version)).collect();
    let understood = understood?;
    let words: Vec<_> = understood.into_iter().flatten().collect();
    if session.capture(stream, || NodeWork::Words(words.clone()))? {
        return Ok(());
    }
    for (at, operation) in words {
        session.word(stream, at, operation)?;
    }
    Ok(())
}

/// Returns the operation of the parameters; none if the order of the stream has the same effect.
fn understand(
    machine: &Machine,
    one: &CUstreamBatchMemOpParams,
    version: Version,
) -> Outcome<Option<(u64, WordOperation)>> {
    let first = version == Version::First;
    if first {
        machine.require(&[attribute::STREAM_MEM_OPS_V1])?;
    }
    let wide = match one.operation {
        WAIT_32 | WRITE_32 => false,
        WAIT_64 | WRITE_64 => {
            let bits = if first {
                attribute::STREAM_MEM_OPS_64_BIT_V1
            } else {
                attribute::STREAM_MEM_OPS_64_BIT
            };
            machine.require(&[bits])?;
            true
        }
        FLUSH_REMOTE_WRITES => {
            machine.require(&[attribute::FLUSH_REMOTE_WRITES])?;
            return Ok(None);
        }
        BARRIER if !first => return Ok(None),
        _ => return Err(ERROR_INVALID_VALUE),
    };
    let bits = if wide { one.value } else { u64::from(one.value as u32) };
    let value = Value { bits, wide };
    if one.at == 0 || !one.at.is_multiple_of(value.bytes()) {
        return Err(ERROR_INVALID_VALUE);
    }
    if matches!(one.operation, WRITE_32 | WRITE_64) {
        return match one.flags {
            0 => Ok(Some((one.at, WordOperation::Write(value)))),
            // A write that orders nothing is not simulated.
            NO_MEMORY_BARRIER if first => Err(ERROR_NOT_SUPPORTED),
            _ => Err(ERROR_INVALID_VALUE),
        };
    }
    if one.flags & FLUSH != 0 {
        machine.require(&[attribute::FLUSH_REMOTE_WRITES])?;
    }
    let how = match one.flags & !FLUSH {
        0 => How::AtLeast,
        1 => How::Equal,
        2 => How::And,
        3 => {
            machine.require(&[if first {
                attribute::STREAM_WAIT_VALUE_NOR_V1
            } else {
                attribute::STREAM_WAIT_VALUE_NOR
            }])?;
            How::Nor
        }
        _ => return Err(ERROR_INVALID_VALUE),
    };
    Ok(Some((one.at, WordOperation::Wait(Test { how, value }))))
}

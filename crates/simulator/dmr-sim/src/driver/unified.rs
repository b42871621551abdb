//! Unified addressing: managed memory, and what is known about a pointer.
//!
//! Managed memory is memory of the host that all devices access, as pinned memory is. What the host
//! reads and writes there is not seen: a race between the host and a device is not reported, and
//! bytes that only the host has written count as written.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Action, Session};
use crate::memory::Home;

chapter![
    cuMemAllocManaged,
    cuMemAdvise,
    cuMemAdvise_v2,
    cuMemPrefetchAsync,
    cuMemPrefetchAsync_v2,
    cuStreamAttachMemAsync,
    cuMemGetAddressRange_v2,
    cuPointerGetAttribute,
    cuPointerGetAttributes,
    cuPointerSetAttribute,
];

/// `CU_MEM_ATTACH_GLOBAL` and `CU_MEM_ATTACH_HOST`.
const ATTACH_FLAGS: std::ops::RangeInclusive<c_uint> = 1..=2;

unsafe extern "C" fn cuMemAllocManaged(at: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> Code {
    driver_call("cuMemAllocManaged", Scope::Context, |session| {
        required(at)?;
        session.refuse_while_capturing()?;
        if !ATTACH_FLAGS.contains(&flags) {
            return Err(ERROR_INVALID_VALUE);
        }
        let allocated = session.allocate_pinned(bytes, 0)?;
        session.objects.managed.insert(allocated);
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(at, allocated) }
    })
}

impl Session<'_> {
    /// Returns the start of the managed allocation around a range of bytes.
    fn managed(&self, at: u64, bytes: u64) -> Outcome<u64> {
        let (start, block) =
            self.memory.present.allocation_around(at).ok_or(ERROR_INVALID_VALUE)?;
        let is_inside = bytes <= block.bytes - (at - start);
        let is_managed = self.objects.managed.contains(&start);
        if is_inside && is_managed { Ok(start) } else { Err(ERROR_INVALID_VALUE) }
    }

    /// Frees managed memory after all work, which the host then has found complete. Returns whether
    /// the address is that of managed memory.
    pub(super) fn free_managed(&mut self, at: u64) -> Outcome<bool> {
        if !self.objects.managed.contains(&at) {
            return Ok(false);
        }
        self.synchronize(|_| true);
        self.objects.managed.remove(&at);
        self.unpin(at, false).map(|()| true)
    }
}

/// Refuses what is no `CUmem_advise`.
fn check_advice(advice: c_int) -> Outcome {
    if (1..=6).contains(&advice) { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
}

extern "C" fn cuMemAdvise(at: CUdeviceptr, bytes: usize, advice: c_int, _device: CUdevice) -> Code {
    driver_call("cuMemAdvise", Scope::Context, |session| {
        check_advice(advice)?;
        session.managed(at, bytes as u64).map(drop)
    })
}

extern "C" fn cuMemAdvise_v2(
    at: CUdeviceptr,
    bytes: usize,
    advice: c_int,
    _location: CUmemLocation,
) -> Code {
    driver_call("cuMemAdvise_v2", Scope::Context, |session| {
        check_advice(advice)?;
        session.managed(at, bytes as u64).map(drop)
    })
}

pub(super) extern "C" fn cuMemPrefetchAsync(
    at: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
    stream: Handle,
) -> Code {
    /// `CU_DEVICE_CPU`
    const HOST: CUdevice = -1;
    on_managed("cuMemPrefetchAsync", at, bytes, stream, |session| match device {
        HOST => Ok(()),
        device => session.device_index(device).map(drop),
    })
}

pub(super) extern "C" fn cuMemPrefetchAsync_v2(
    at: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    _flags: c_uint,
    stream: Handle,
) -> Code {
    on_managed("cuMemPrefetchAsync_v2", at, bytes, stream, |session| match location.kind {
        LOCATION_DEVICE => session.device_index(location.id).map(drop),
        _ => Ok(()),
    })
}

pub(super) extern "C" fn cuStreamAttachMemAsync(
    stream: Handle,
    at: CUdeviceptr,
    bytes: usize,
    _flags: c_uint,
) -> Code {
    on_managed("cuStreamAttachMemAsync", at, bytes, stream, |_| Ok(()))
}

/// Submits an operation that moves managed memory and does not change it. It is no access: it is
/// ordered with its stream, and races with nothing. `check` refuses a place that does not exist.
fn on_managed(
    name: &'static str,
    at: CUdeviceptr,
    bytes: usize,
    stream: Handle,
    check: impl FnOnce(&Session<'_>) -> Outcome,
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        check(session)?;
        session.managed(at, bytes as u64)?;
        if session.captured(index)? {
            return Err(ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let (epoch, deps) = session.begin(index);
        session.push(epoch, deps, Action::Order);
        Ok(())
    })
}

unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut CUdeviceptr,
    bytes: *mut usize,
    at: CUdeviceptr,
) -> Code {
    driver_call("cuMemGetAddressRange_v2", Scope::Context, |session| {
        let (found, block) = session.memory.present.allocation_around(at).ok_or(ERROR_NOT_FOUND)?;
        let known = block.bytes;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put_optional(start, found);
            put_optional(bytes, known as usize);
        }
        Ok(())
    })
}

/// The value of a `CUpointer_attribute`, in the size that the driver writes.
enum Value {
    Flag(bool),
    Int(c_int),
    Long(c_ulonglong),
}

/// Memory that the driver has allocated or mapped.
struct KnownMemory {
    start: u64,
    bytes: u64,
    home: Home,
}

impl Value {
    /// # Safety
    ///
    /// `to` is null, or valid for writing a value of the attribute's type.
    unsafe fn put(self, to: *mut c_void) -> Outcome {
        // SAFETY: by this function's contract; `CU_POINTER_ATTRIBUTE` flags are of C's type `bool`
        // or wider, and the driver writes one byte of them.
        unsafe {
            match self {
                Self::Flag(value) => put(to.cast::<u8>(), u8::from(value)),
                Self::Int(value) => put(to.cast::<c_int>(), value),
                Self::Long(value) => put(to.cast::<c_ulonglong>(), value),
            }
        }
    }
}

impl Session<'_> {
    /// Returns an attribute of a pointer; `None` for memory that the driver has not allocated or
    /// registered.
    fn pointer_attribute(&self, attribute: c_int, at: u64) -> Outcome<Option<Value>> {
        if !(1..=21).contains(&attribute) {
            return Err(ERROR_INVALID_VALUE);
        }
        let Some(KnownMemory { start, bytes, home }) = self.known_memory(at) else {
            return Ok(None);
        };
        let device = home.device();
        let is_managed = self.objects.managed.contains(&start);
        let on_host = device.is_none();
        let ordinal = self.shared.ordinals[device.map_or_else(|| self.device(), Ok)?];
        let is_pool = matches!(home, Home::Pool { .. });
        Ok(Some(match attribute {
            1 => Value::Long(self.context_of(device)?),
            // `CUmemorytype`: 1 is the host's, 2 a device's.
            2 => Value::Int(if on_host && !is_managed { 1 } else { 2 }),
            3 => Value::Long(at),
            4 if on_host => Value::Long(at),
            6 => Value::Int(0), // copies of it do not synchronise
            7 | 20 => Value::Long(start),
            8 => Value::Int(c_int::from(is_managed)),
            9 => Value::Int(ordinal as c_int),
            10 | 15 | 21 => Value::Flag(false), // exporting, RDMA, decompression
            11 | 19 => Value::Long(start),
            12 | 18 => Value::Long(bytes),
            13 => Value::Flag(true),
            14 => Value::Long(0),
            16 => Value::Int(3), // read and write
            17 => Value::Long(match home {
                Home::Pool { pool, .. } if is_pool => self.handle(Kind::Pool, pool),
                _ => 0,
            }),
            _ => return Err(ERROR_INVALID_VALUE), // a host pointer of device memory; peer tokens
        }))
    }

    /// Returns the memory at an address: an allocation, or what is mapped there.
    fn known_memory(&self, at: u64) -> Option<KnownMemory> {
        let present = &self.memory.present;
        match present.allocation_around(at) {
            Some((start, block)) => {
                Some(KnownMemory { start, bytes: block.bytes, home: block.home })
            }
            None => present.mappings.around(at).map(|(start, mapping)| {
                let home = Home::Device(mapping.device);
                KnownMemory { start, bytes: mapping.bytes, home }
            }),
        }
    }

    /// Returns the context of memory: of a device's, its primary context; of the host's, the
    /// calling thread's.
    fn context_of(&self, device: Option<usize>) -> Outcome<Handle> {
        let current = self.context()?;
        let primary = device.and_then(|device| self.devices[device].primary);
        let is_here = device.is_none_or(|device| self.contexts[current as usize].device == device);
        let found = if is_here { current } else { primary.unwrap_or(current) };
        Ok(self.handle(Kind::Context, found))
    }
}

unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: c_int,
    at: CUdeviceptr,
) -> Code {
    driver_call("cuPointerGetAttribute", Scope::Context, |session| {
        let known = session.pointer_attribute(attribute, at)?.ok_or(ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer is null, or writable as the attribute's type.
        unsafe { known.put(value) }
    })
}

/// Memory that the driver has not allocated or registered is no error here: its attributes are
/// written as null.
unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    values: *const *mut c_void,
    at: CUdeviceptr,
) -> Code {
    driver_call("cuPointerGetAttributes", Scope::Context, |session| {
        if count == 0 || attributes.is_null() || values.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: by the driver's contract there are `count` attributes and pointers for their
            // values.
            let (attribute, value) =
                unsafe { (attributes.add(i).read_unaligned(), values.add(i).read_unaligned()) };
            let none = match attribute {
                2 | 6 | 8 | 16 => Value::Int(0),
                9 => Value::Int(-2),
                10 | 13 | 15 | 21 => Value::Flag(false),
                _ => Value::Long(0),
            };
            // An attribute that this memory has not is written as null, too.
            let known = match (1..=21).contains(&attribute) {
                true => session.pointer_attribute(attribute, at).ok().flatten(),
                false => return Err(ERROR_INVALID_VALUE),
            };
            // SAFETY: the caller's pointer is null, or writable as the attribute's type.
            unsafe { known.unwrap_or(none).put(value)? };
        }
        Ok(())
    })
}

/// Accepts `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, which makes copies wait more often than they must.
extern "C" fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: c_int,
    at: CUdeviceptr,
) -> Code {
    driver_call("cuPointerSetAttribute", Scope::Context, |session| {
        let is_known = session.memory.present.allocation_around(at).is_some();
        let is_valid = attribute == 6 && !value.is_null() && is_known;
        if is_valid { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
    })
}

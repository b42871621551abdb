//! Copies of two and three dimensions, between linear memory. Arrays are refused.

use std::ffi::{c_uint, c_void};

use super::copies::{Pageable, submit_copy};
use super::{Scope, chapter, driver_call};
use crate::abi::*;
use crate::machine::Rows;

chapter![
    cuMemcpy2D_v2,
    cuMemcpy2DUnaligned_v2,
    cuMemcpy2DAsync_v2,
    cuMemcpy3D_v2,
    cuMemcpy3DAsync_v2,
    cuMemcpy3DPeer,
    cuMemcpy3DPeerAsync,
];

/// One side of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side2D {
    x: usize,
    y: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: *const c_void,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy2D {
    from: Side2D,
    to: Side2D,
    width: usize,
    height: usize,
}

/// One side of a `CUDA_MEMCPY3D` or a `CUDA_MEMCPY3D_PEER`, which has a context where the other is
/// reserved.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: *const c_void,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy3D {
    from: Side3D,
    to: Side3D,
    width: usize,
    height: usize,
    depth: usize,
}

impl From<Copy2D> for Copy3D {
    fn from(copy: Copy2D) -> Self {
        let side = |side: Side2D| {
            let Side2D { x, y, kind, host, device, array, pitch } = side;
            Side3D {
                x,
                y,
                z: 0,
                level: 0,
                kind,
                host,
                device,
                array,
                reserved: 0,
                pitch,
                height: 0,
            }
        };
        let Copy2D { from, to, width, height } = copy;
        Self { from: side(from), to: side(to), width, height, depth: 1 }
    }
}

/// `CUmemorytype`: host, device, unified, which is an address of either.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
const UNIFIED: c_uint = 4;

/// The most rows of a copy that are not one range.
const MOST_ROWS: usize = 1 << 24;

impl Copy3D {
    /// Returns the rows of the target and of the source.
    pub(super) fn rows(&self) -> Outcome<(Rows, Rows)> {
        let to = self.to.shape(self)?;
        let from = self.from.shape(self)?;
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return Ok((Rows::one(0, 0), Rows::one(0, 0)));
        }
        let all = self.height.checked_mul(self.depth).filter(|rows| *rows <= MOST_ROWS);
        let is_one = |side: &Placement| {
            let rows = side.pitch == self.width || self.height == 1;
            let planes = self.depth == 1 || Some(side.plane) == self.width.checked_mul(self.height);
            rows && planes
        };
        if is_one(&to) && is_one(&from) {
            let planes = self.width.checked_mul(self.height);
            let bytes = planes.and_then(|bytes| bytes.checked_mul(self.depth));
            let bytes = bytes.ok_or(ERROR_INVALID_VALUE)? as u64;
            return Ok((Rows::one(to.start, bytes), Rows::one(from.start, bytes)));
        }
        all.ok_or(ERROR_INVALID_VALUE)?;
        Ok((to.rows(self)?, from.rows(self)?))
    }

    /// Returns which sides may be pageable host memory: those that the call says are on the host.
    pub(super) fn pageable(&self) -> Pageable {
        match (self.from.kind, self.to.kind) {
            (DEVICE, DEVICE) => Pageable::Neither { by_address: true },
            (_, DEVICE) => Pageable::Source,
            (DEVICE, _) => Pageable::Target,
            _ => Pageable::Either,
        }
    }
}

/// The start of a copy on one side, and the bytes from row to row and from plane to plane.
struct Placement {
    start: u64,
    pitch: usize,
    plane: usize,
}

impl Side3D {
    fn shape(&self, copy: &Copy3D) -> Outcome<Placement> {
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            3 => return Err(ERROR_NOT_SUPPORTED), // an array
            _ => return Err(ERROR_INVALID_VALUE),
        };
        let is_empty = copy.width == 0 || copy.height == 0 || copy.depth == 0;
        if (base == 0 && !is_empty) || self.level != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let right = self.x.checked_add(copy.width).ok_or(ERROR_INVALID_VALUE)?;
        let below = self.y.checked_add(copy.height).ok_or(ERROR_INVALID_VALUE)?;
        // Without a pitch or a height, rows and planes follow each other.
        let pitch = if self.pitch == 0 { right } else { self.pitch };
        let height = if self.height == 0 { below } else { self.height };
        if pitch < right || (copy.depth > 1 && height < below) {
            return Err(ERROR_INVALID_VALUE);
        }
        let place = || {
            let plane = pitch.checked_mul(height)?;
            let skipped = plane.checked_mul(self.z)?.checked_add(pitch.checked_mul(self.y)?)?;
            let start = base.checked_add(skipped.checked_add(self.x)? as u64)?;
            Some(Placement { start, pitch, plane })
        };
        place().ok_or(ERROR_INVALID_VALUE)
    }
}

impl Placement {
    fn rows(&self, copy: &Copy3D) -> Outcome<Rows> {
        let pitch = self.pitch as u64;
        let plane = self.plane as u64;
        let end = plane.checked_mul(copy.depth as u64).and_then(|all| self.start.checked_add(all));
        end.ok_or(ERROR_INVALID_VALUE)?;
        let planes = (0..copy.depth as u64).map(|z| self.start + z * plane);
        let starts = planes.flat_map(|at| (0..copy.height as u64).map(move |y| at + y * pitch));
        Ok(Rows { starts: starts.collect(), len: copy.width as u64 })
    }
}

/// The other work that a copy is ordered with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Its stream's.
    Stream,
    /// Its stream's, and the host waits as the manual's "API synchronization behavior" says.
    Host,
    /// All of the contexts that it names, and of the calling thread's.
    Contexts,
}

/// Submits a copy on a stream.
///
/// # Safety
///
/// `copy` is null or points to a description; a side in pageable host memory is valid until this
/// returns.
unsafe fn copy<T: Copy + Into<Copy3D>>(
    name: &'static str,
    stream: Handle,
    copy: *const T,
    order: Order,
) -> Code {
    if copy.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so valid by this function's contract.
    let copy: Copy3D = unsafe { copy.read_unaligned() }.into();
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        let (to, from) = copy.rows()?;
        let others = match order {
            Order::Contexts => session.others_of(stream, [copy.to.reserved, copy.from.reserved]),
            Order::Stream | Order::Host => Vec::new(),
        };
        let pageable = copy.pageable();
        let waits = order != Order::Stream;
        // SAFETY: by this function's contract.
        unsafe { submit_copy(session, stream, to, from, pageable, waits, &others) }
    })
}

pub(super) unsafe extern "C" fn cuMemcpy2D_v2(description: *const Copy2D) -> Code {
    // SAFETY: the driver's contract is that of `copy`; so for all copies here.
    unsafe { copy("cuMemcpy2D_v2", 0, description, Order::Host) }
}

pub(super) unsafe extern "C" fn cuMemcpy2DUnaligned_v2(description: *const Copy2D) -> Code {
    // SAFETY: as above.
    unsafe { copy("cuMemcpy2DUnaligned_v2", 0, description, Order::Host) }
}

pub(super) unsafe extern "C" fn cuMemcpy2DAsync_v2(
    description: *const Copy2D,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { copy("cuMemcpy2DAsync_v2", stream, description, Order::Stream) }
}

pub(super) unsafe extern "C" fn cuMemcpy3D_v2(description: *const Copy3D) -> Code {
    // SAFETY: as above.
    unsafe { copy("cuMemcpy3D_v2", 0, description, Order::Host) }
}

pub(super) unsafe extern "C" fn cuMemcpy3DAsync_v2(
    description: *const Copy3D,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { copy("cuMemcpy3DAsync_v2", stream, description, Order::Stream) }
}

pub(super) unsafe extern "C" fn cuMemcpy3DPeer(description: *const Copy3D) -> Code {
    // SAFETY: as above.
    unsafe { copy("cuMemcpy3DPeer", 0, description, Order::Contexts) }
}

pub(super) unsafe extern "C" fn cuMemcpy3DPeerAsync(
    description: *const Copy3D,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { copy("cuMemcpy3DPeerAsync", stream, description, Order::Stream) }
}

//! Memsets, of one and two dimensions.

use super::{Scope, chapter, driver_call};
use crate::abi::*;
use crate::machine::{FillWork, Rows};
use crate::memory::address;

chapter![
    cuMemsetD8_v2,
    cuMemsetD8Async,
    cuMemsetD16_v2,
    cuMemsetD16Async,
    cuMemsetD32_v2,
    cuMemsetD32Async,
    cuMemsetD2D8_v2,
    cuMemsetD2D8Async,
    cuMemsetD2D16_v2,
    cuMemsetD2D16Async,
    cuMemsetD2D32_v2,
    cuMemsetD2D32Async,
];

/// The memory of a memset: `height` rows of `width` elements each.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) at: u64,
    /// The bytes from row to row.
    pub(super) pitch: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Area {
    fn row(at: u64, width: usize) -> Self {
        Self { at, pitch: 0, width, height: 1 }
    }

    /// Returns the work that fills the area with an element.
    pub(super) fn fill(self, element: &[u8]) -> Outcome<FillWork> {
        let Self { at, pitch, width, height } = self;
        let bytes = element.len() as u64;
        let aligned = element.len();
        let len = (width as u64).checked_mul(bytes).ok_or(ERROR_INVALID_VALUE)?;
        let is_one = height == 1 || pitch as u64 == len;
        if !at.is_multiple_of(bytes) || (!is_one && !pitch.is_multiple_of(aligned)) {
            return Err(ERROR_INVALID_VALUE);
        }
        let rows = if is_one {
            Rows::one(at, len.checked_mul(height as u64).ok_or(ERROR_INVALID_VALUE)?)
        } else {
            let all = (pitch as u64).checked_mul(height as u64);
            let end = all.and_then(|bytes| at.checked_add(bytes));
            if end.is_none() || (pitch as u64) < len || height > 1 << 24 {
                return Err(ERROR_INVALID_VALUE);
            }
            let starts = (0..height as u64).map(|row| at + row * pitch as u64);
            Rows { starts: starts.collect(), len }
        };
        Ok(FillWork { rows, pattern: std::array::from_fn(|i| element[i % aligned]) })
    }
}

/// Submits a memset. Those to device memory do not wait, also those that name no stream; to other
/// memory these wait (the manual's "API synchronization behavior").
fn memset(name: &'static str, stream: Option<Handle>, area: Area, element: &[u8]) -> Code {
    driver_call(name, Scope::Stream(stream.unwrap_or(0)), |session| {
        let index = session.stream(stream.unwrap_or(0))?;
        let work = area.fill(element)?;
        let Some(epoch) = session.fill(index, work)? else { return Ok(()) };
        if stream.is_none() && !address::is_on_device(area.at) {
            session.wait_for(epoch);
        }
        Ok(())
    })
}

pub(super) extern "C" fn cuMemsetD8_v2(at: CUdeviceptr, value: u8, count: usize) -> Code {
    memset("cuMemsetD8_v2", None, Area::row(at, count), &[value])
}

pub(super) extern "C" fn cuMemsetD8Async(
    at: CUdeviceptr,
    value: u8,
    count: usize,
    stream: Handle,
) -> Code {
    memset("cuMemsetD8Async", Some(stream), Area::row(at, count), &[value])
}

pub(super) extern "C" fn cuMemsetD16_v2(at: CUdeviceptr, value: u16, count: usize) -> Code {
    memset("cuMemsetD16_v2", None, Area::row(at, count), &value.to_le_bytes())
}

pub(super) extern "C" fn cuMemsetD16Async(
    at: CUdeviceptr,
    value: u16,
    count: usize,
    stream: Handle,
) -> Code {
    memset("cuMemsetD16Async", Some(stream), Area::row(at, count), &value.to_le_bytes())
}

pub(super) extern "C" fn cuMemsetD32_v2(at: CUdeviceptr, value: u32, count: usize) -> Code {
    memset("cuMemsetD32_v2", None, Area::row(at, count), &value.to_le_bytes())
}

pub(super) extern "C" fn cuMemsetD32Async(
    at: CUdeviceptr,
    value: u32,
    count: usize,
    stream: Handle,
) -> Code {
    memset("cuMemsetD32Async", Some(stream), Area::row(at, count), &value.to_le_bytes())
}

macro_rules! two_dimensions {
    ($($now:ident $later:ident $element:ty),* $(,)?) => { $(
        pub(super) extern "C" fn $now(
            at: CUdeviceptr,
            pitch: usize,
            value: $element,
            width: usize,
            height: usize,
        ) -> Code {
            let area = Area { at, pitch, width, height };
            memset(stringify!($now), None, area, &value.to_le_bytes())
        }

        pub(super) extern "C" fn $later(
            at: CUdeviceptr,
            pitch: usize,
            value: $element,
            width: usize,
            height: usize,
            stream: Handle,
        ) -> Code {
            let area = Area { at, pitch, width, height };
            memset(stringify!($later), Some(stream), area, &value.to_le_bytes())
        }
    )* };
}

two_dimensions! {
    cuMemsetD2D8_v2 cuMemsetD2D8Async u8,
    cuMemsetD2D16_v2 cuMemsetD2D16Async u16,
    cuMemsetD2D32_v2 cuMemsetD2D32Async u32,
}

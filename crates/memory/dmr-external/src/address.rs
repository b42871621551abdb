//! Checks an address that is to be adopted against the allocations of the driver.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{self, CUpointer_attribute};
use dmr_core::error::AddressProblem;
use dmr_core::{ResourceError, ResourceResult};
use dmr_streams::Device;

/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: c_uint = 2;

/// The attributes of an address; zeros where the driver does not know it.
#[derive(Clone, Copy, Default)]
struct Known {
    memory_type: c_uint,
    is_managed: c_uint,
    ordinal: c_int,
}

/// Refuses memory whose first or last byte the driver has not allocated, or has on another
/// device. Accepts device memory, managed memory and page-locked host memory.
///
/// # Errors
///
/// [`InvalidSize`](ResourceError::InvalidSize) for no bytes;
/// [`NotAdopted`](ResourceError::NotAdopted); [`Driver`](ResourceError::Driver).
pub(crate) fn check(device: &Device, ptr: u64, bytes: usize) -> ResourceResult<()> {
    let refused = |problem| Err(ResourceError::not_adopted(ptr, bytes, device.ordinal(), problem));
    let Some(last) = bytes.checked_sub(1) else { return Err(ResourceError::zero_size()) };
    let Some(end) = ptr.checked_add(last as u64) else { return refused(AddressProblem::Overflow) };
    device.bind()?;
    for (at, offset) in [(ptr, 0), (end, last)] {
        let known = known(device, at)?;
        if known.memory_type == 0 || at == 0 {
            return refused(AddressProblem::unknown(offset));
        }
        let is_device_memory = known.memory_type == DEVICE_MEMORY && known.is_managed == 0;
        if is_device_memory && known.ordinal != device.ordinal() as c_int {
            return refused(AddressProblem::other_device(known.ordinal));
        }
    }
    Ok(())
}

fn known(device: &Device, at: u64) -> ResourceResult<Known> {
    let mut known = Known::default();
    let mut attributes = [
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    ];
    let mut values: [*mut c_void; 3] = [
        (&raw mut known.memory_type).cast(),
        (&raw mut known.is_managed).cast(),
        (&raw mut known.ordinal).cast(),
    ];
    let count = attributes.len() as c_uint;
    // SAFETY: there is one writable number of four bytes for each attribute; the address is only
    // looked up.
    unsafe { sys::cuPointerGetAttributes(count, attributes.as_mut_ptr(), values.as_mut_ptr(), at) }
        .result()
        .map_err(|error| device.driver_error("cuPointerGetAttributes", error))?;
    Ok(known)
}

//! Importing managed tensors, versioned or not.

use std::any::Any;

use dlpark::ffi::{DLDeviceType, DLPackVersion, DLTensor};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use dmr_buffer::{AdoptedColumn, AllowedAccess, Column};
use dmr_core::{AllocTag, StreamId};
use dmr_external::{ForeignMemory, Ready};
use dmr_streams::DeviceContext;

use crate::Tensor;
use crate::error::{FieldProblem, ImportError};
use crate::layout::Layout;

/// Imports a managed tensor: a `DLManagedTensor`, or a `DLManagedTensorVersioned`. The next work on
/// `stream`, its home stream, comes after the work of `ready`, and uses on other streams come after
/// that. Does not wait.
///
/// Its deleter is called once, when the tensor was dropped and the device has completed the last
/// use, by a thread of this library or by the thread that drops it; for a tensor without elements,
/// here.
///
/// Every field is checked that can be. A tensor whose flags say so, and one that repeats elements
/// by a stride of 0, is [read-only](AllowedAccess::ReadOnly). Strides may be null, and negative.
/// Refused are elements that fill no whole bytes, more than 64 dimensions, and memory that is on
/// no CUDA device: managed and page-locked memory is accepted.
///
/// # Errors
///
/// The tensor was not consumed: its deleter is still the caller's to call.
/// [`Field`](ImportError::Field) with the first field that is wrong; of another major version no
/// other field was read. [`Resource`](ImportError::Resource), as
/// [`AdoptedColumn::adopt`].
///
/// # Safety
///
/// - `tensor` is null, or the address of a tensor of this kind that is the caller's: from here on
///   it belongs to the tensor that is returned. (Of another major version only the version is
///   there.)
/// - Its shape has as many numbers as `ndim` says, and so have its strides, unless null.
/// - Its memory has its elements, and stays allocated until the deleter is called.
/// - From the work of `ready` on nothing accesses them but the recorded uses; if the tensor is
///   only read, others may read them, too.
/// - Its deleter may be called on any thread, without a context, and does not unwind.
pub unsafe fn import<C: DeviceContext + ?Sized, M: ManagedTensorBase + 'static>(
    ctx: &C,
    stream: impl Into<StreamId>,
    tensor: *mut M,
    ready: Ready,
    tag: AllocTag,
) -> Result<Tensor, ImportError> {
    if tensor.is_null() || !tensor.is_aligned() {
        return Err(ImportError::field("tensor", FieldProblem::Null));
    }
    // SAFETY: not null; the caller's obligation. `M::version` reads only the version.
    let version = unsafe { &*tensor }.version();
    if let Some(DLPackVersion { major, .. }) = version
        && major != DLPackVersion::CURRENT.major
    {
        return Err(ImportError::field("version.major", FieldProblem::Version(major)));
    }
    // SAFETY: as above, and of this version.
    let managed = unsafe { &*tensor };
    let descriptor = managed.tensor();
    check_device(descriptor, ctx)?;
    // SAFETY: the caller's obligation.
    let layout = unsafe { Layout::of(descriptor) }?;
    let ptr = address(descriptor, &layout)?;
    let access = match managed.flags().contains(DlpackFlags::READ_ONLY) || layout.repeats_elements()
    {
        true => AllowedAccess::ReadOnly,
        false => AllowedAccess::ReadWrite,
    };
    // SAFETY: the caller's obligation; the version was checked, so it is not released here.
    let owned = match unsafe { Managed::from_raw(tensor) } {
        Ok(owned) => owned,
        Err(_) => return Err(ImportError::field("tensor", FieldProblem::Null)),
    };
    let memory = ForeignMemory::new(ptr, layout.span, owned);
    // SAFETY: the caller's obligations: the owner is the tensor, whose deleter its drop calls.
    match unsafe { AdoptedColumn::<u8>::adopt(ctx, stream, memory, ready, access, tag) } {
        Ok(column) => Ok(Tensor::new(Column::Adopted(column), layout)),
        Err(refused) => {
            let owner: Box<dyn Any> = refused.memory.into_owner();
            if let Ok(owned) = owner.downcast::<Managed<M>>() {
                // It is the caller's again.
                let _ = owned.into_raw();
            }
            Err(refused.error.into())
        }
    }
}

fn check_device<C: DeviceContext + ?Sized>(tensor: &DLTensor, ctx: &C) -> Result<(), ImportError> {
    let expected = ctx.streams().device().ordinal();
    let found = tensor.device.device_id;
    match tensor.device.device_type {
        DLDeviceType::CUDA if usize::try_from(found) != Ok(expected) => {
            let problem = FieldProblem::Device { found, expected };
            Err(ImportError::field("device.device_id", problem))
        }
        // The id of the last two has no meaning.
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED | DLDeviceType::CUDAHOST => Ok(()),
        DLDeviceType(other) => {
            Err(ImportError::field("device.device_type", FieldProblem::DeviceType(other)))
        }
    }
}

/// Returns the lowest address of an element; 0 without elements.
fn address(tensor: &DLTensor, layout: &Layout) -> Result<u64, ImportError> {
    if layout.span == 0 {
        return Ok(0);
    }
    if tensor.data.is_null() {
        return Err(ImportError::field("data", FieldProblem::Null));
    }
    let overflow = ImportError::field("byte_offset", FieldProblem::Overflow);
    let first = (tensor.data.addr() as u64).checked_add(tensor.byte_offset);
    let lowest = first.and_then(|first| first.checked_sub(layout.first as u64));
    let end = lowest.and_then(|lowest| lowest.checked_add(layout.span as u64));
    lowest.filter(|lowest| end.is_some() && *lowest != 0).ok_or(overflow)
}

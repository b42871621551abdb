//! The promise that a resource's blocks are host memory, which the host may read and write.

use std::sync::Arc;

use crate::DeviceMemoryResource;

/// A resource whose blocks are page-locked host memory. The device accesses them at the host's
/// addresses.
///
/// A pinned buffer gives slices of such blocks to safe code, so it accepts no other resource: any
/// safe code can implement [`DeviceMemoryResource`], with any addresses. An adaptor implements this
/// trait if its upstream does and it keeps the promises below; it need do nothing but forward the
/// blocks.
///
/// ```
/// use dmr_core::{DeviceMemoryResource, HostMemoryResource};
///
/// fn accepts_only_host_memory(_: &dyn HostMemoryResource) {}
/// ```
///
/// ```compile_fail,E0277
/// # use dmr_core::{DeviceMemoryResource, HostMemoryResource};
/// # fn accepts_only_host_memory(_: &dyn HostMemoryResource) {}
/// fn any_resource(resource: &(impl DeviceMemoryResource + Sized)) {
///     accepts_only_host_memory(resource);
/// }
/// ```
///
/// # Safety
///
/// The addresses of each block that [`allocate`](DeviceMemoryResource::allocate) returns, `bytes`
/// bytes from `ptr` on, are in initialised memory of the process. From then until
/// [`deallocate`](DeviceMemoryResource::deallocate) takes the block,
///
/// - no other block has one of these bytes, and the resource neither reads, writes nor frees them;
/// - no device work uses them, except work of the block's owner. This includes work that was
///   submitted before `allocate` returned and is not done.
///
/// The resource frees the memory, and returns it from `allocate` again, only when all recorded uses
/// of the block are done, and the work that was submitted to its home stream before `deallocate`.
///
/// The [slot](crate::DeviceBlock::id) of each block is a use slot,
/// [marked](crate::BlockSlot::of_host_memory) as one of host memory.
#[allow(unsafe_code, reason = "a promise that the compiler cannot check")]
pub unsafe trait HostMemoryResource: DeviceMemoryResource {}

// SAFETY: forwards every call.
#[allow(unsafe_code, reason = "forwards every call")]
unsafe impl<R: HostMemoryResource + ?Sized> HostMemoryResource for &R {}

// SAFETY: forwards every call.
#[allow(unsafe_code, reason = "forwards every call")]
unsafe impl<R: HostMemoryResource + ?Sized> HostMemoryResource for Box<R> {}

// SAFETY: forwards every call.
#[allow(unsafe_code, reason = "forwards every call")]
unsafe impl<R: HostMemoryResource + ?Sized> HostMemoryResource for Arc<R> {}

//! The exported functions of tensors. Their documentation is that of the header, in the names of C.

use std::ffi::{c_char, c_void};

use dmr::dmr_core::sync::lock;
use dmr::dmr_dlpack::dlpark::ffi::{DLDataType, DLDataTypeCode};
use dmr::dmr_dlpack::layout::MOST_DIMENSIONS;
use dmr::dmr_dlpack::{Consumer, Layout};
use dmr::dmr_external::Ready;
use dmr::dmr_streams::{CurrentContext, TrackedMemory};

use crate::entry::{call, call_on};
use crate::functions::{require, tag_of};
use crate::status::{Failure, Status};
use crate::streams::Handle;
use crate::tensors::{self, Kind};
use crate::versioned::{Versioned, write};
use crate::{Address, RuntimeHandle, TensorHandle, registry};

/// The work before a tensor is ready: it is done.
pub const DMR_READY_DONE: u32 = 0;
/// The work before a tensor is ready: that of a `CUstream` so far.
pub const DMR_READY_STREAM: u32 = 1;
/// The work before a tensor is ready: that behind a `CUevent`.
pub const DMR_READY_EVENT: u32 = 2;

/// The uses of a consumer are on its stream, which the runtime adopts.
pub const DMR_CONSUMER_STREAM: u32 = 0;
/// The consumer's stream waits, and is not adopted: its uses after that are unknown.
pub const DMR_CONSUMER_WAITS: u32 = 1;
/// The consumer orders its uses itself, after those that the runtime has recorded.
pub const DMR_CONSUMER_UNKNOWN: u32 = 2;

/// The most dimensions of a tensor.
pub const DMR_MOST_DIMENSIONS: usize = 64;

const _: () = assert!(DMR_MOST_DIMENSIONS == MOST_DIMENSIONS);

/// The version of `dmr_tensor_info`.
pub const DMR_TENSOR_INFO_VERSION: u32 = 1;

/// A tensor, as DLPack describes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorInfo {
    /// `sizeof(dmr_tensor_info)`, in the program.
    pub size: u32,
    /// `DMR_TENSOR_INFO_VERSION`.
    pub version: u32,
    /// The lowest address of an element, for `dmr_record_use` and `dmr_wait_for_uses`; 0 without
    /// elements.
    pub address: Address,
    /// The bytes from there to the end of the highest element.
    pub bytes: u64,
    /// The address of the element whose indices are 0.
    pub first_element: Address,
    /// The code, the bits and the lanes of the type.
    pub type_code: u32,
    /// The bits of a lane.
    pub type_bits: u32,
    /// The lanes of an element.
    pub type_lanes: u32,
    /// The number of dimensions.
    pub dimensions: u32,
    /// 1 if the owner of the memory forbids to write it.
    pub read_only: u32,
    /// 0.
    pub reserved: u32,
    /// The sizes of the dimensions.
    pub shape: [i64; DMR_MOST_DIMENSIONS],
    /// The strides of the dimensions, in elements.
    pub strides: [i64; DMR_MOST_DIMENSIONS],
}

const _: () = assert!(size_of::<TensorInfo>() == 56 + 16 * DMR_MOST_DIMENSIONS);

// SAFETY: as declared: 32-bit fields in pairs, and 64-bit fields.
unsafe impl Versioned for TensorInfo {
    const NAME: &'static str = "dmr_tensor_info";
    const VERSION: u32 = DMR_TENSOR_INFO_VERSION;
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Allocates a tensor in C order for work on `stream`, and writes its handle to `tensor`. Its
/// content is undefined. The type is one of DLPack, whose elements fill whole bytes.
///
/// Errors: as `dmr_allocate_tagged`; `DMR_STATUS_INVALID_ARGUMENT` for a type or a shape that is
/// none.
///
/// # Safety
///
/// As `dmr_allocate_tagged`; `shape` has `dimensions` numbers, and may be null if that is 0;
/// `tensor` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_tensor_create(
    runtime: *mut RuntimeHandle,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *const i64,
    dimensions: usize,
    stream: *mut c_void,
    tag: *const c_char,
    tensor: *mut *mut TensorHandle,
) -> Status {
    call_on(runtime, |runtime| {
        require(tensor, "tensor")?;
        let shape = match dimensions {
            0 => &[][..],
            _ if shape.is_null() => return Err(Failure::null("shape")),
            // SAFETY: the caller's obligation, and not null.
            _ => unsafe { std::slice::from_raw_parts(shape, dimensions) },
        };
        // SAFETY: as above.
        let tag = unsafe { tag_of(tag) }?;
        let dtype =
            DLDataType { code: DLDataTypeCode(type_code), bits: type_bits, lanes: type_lanes };
        let layout = Layout::contiguous(dtype, shape)?;
        let stream = runtime.open_stream(Handle::new(stream))?;
        let created = runtime.tensors().create(runtime.gpu(), &layout, stream, tag)?;
        // SAFETY: as above, and not null.
        unsafe { tensor.write(created) };
        Ok(())
    })
}

/// Imports a tensor of another library: a `DLManagedTensor*`, or with `versioned` other than 0 a
/// `DLManagedTensorVersioned*`. Writes its handle to `tensor`. Its home stream is `stream`, which
/// waits for the work that `ready` names: `DMR_READY_DONE`, or `DMR_READY_STREAM` and
/// `DMR_READY_EVENT` with the handle in `producer`.
///
/// Its deleter is called once, after `dmr_tensor_destroy`, when the device has completed the last
/// recorded use: by that call, or by a thread of the library. Each field that can be checked is.
///
/// Errors: `managed` is the program's as before. `DMR_STATUS_INVALID_ARGUMENT`, with the field that
/// is wrong, for null pointers, another `ready`, and memory that no driver has allocated; for the
/// streams as `dmr_allocate`.
///
/// # Safety
///
/// `managed` is null, or a managed tensor of that kind that is the program's, whose shape and
/// strides have as many numbers as its dimensions, whose memory has its elements, and whose deleter
/// may be called on any thread. `stream` is as for `dmr_allocate`. `producer` is a stream or an
/// event that was not destroyed. `tensor` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_tensor_from_dlpack(
    runtime: *mut RuntimeHandle,
    managed: *mut c_void,
    versioned: u32,
    ready: u32,
    producer: *mut c_void,
    stream: *mut c_void,
    tensor: *mut *mut TensorHandle,
) -> Status {
    call_on(runtime, |runtime| {
        require(tensor, "tensor")?;
        let ready = match ready {
            DMR_READY_DONE => Ready::Done,
            DMR_READY_STREAM => Ready::Stream(producer),
            DMR_READY_EVENT => Ready::Event(producer),
            other => return Err(no_constant("ready", other)),
        };
        let stream = runtime.open_stream(Handle::new(stream))?;
        let kind = kind_of(versioned);
        // SAFETY: the caller's obligation.
        let imported =
            unsafe { runtime.tensors().import(runtime.gpu(), managed, kind, ready, stream) }?;
        // SAFETY: as above, and not null.
        unsafe { tensor.write(imported) };
        Ok(())
    })
}

/// Exports a tensor to one consumer, and writes a `DLManagedTensor*`, or with `versioned` other
/// than 0 a `DLManagedTensorVersioned*`, to `managed`. The memory stays until the consumer deletes
/// it, also when the tensor was destroyed before. Any thread may delete it, without a context.
///
/// With `DMR_CONSUMER_STREAM` the stream waits for all recorded uses, and its work until the
/// deletion is recorded as a use. With `DMR_CONSUMER_WAITS` it waits, and may be the per-thread
/// default stream; with `DMR_CONSUMER_UNKNOWN` nothing waits: in both the deletion waits for the
/// device.
///
/// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no tensor of the runtime;
/// `DMR_STATUS_UNSUPPORTED` for a read-only tensor without a version, and for the direct backend;
/// `DMR_STATUS_INVALID_ARGUMENT` for another `consumer`; for the stream as `dmr_record_use`.
///
/// # Safety
///
/// `stream` is as for `dmr_allocate`; `managed` is null, or the address of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_tensor_to_dlpack(
    runtime: *mut RuntimeHandle,
    tensor: *const TensorHandle,
    versioned: u32,
    consumer: u32,
    stream: *mut c_void,
    managed: *mut *mut c_void,
) -> Status {
    call_on(runtime, |runtime| {
        require(managed, "managed")?;
        let waiting = (consumer == DMR_CONSUMER_WAITS).then_some(stream);
        let consumer = match consumer {
            DMR_CONSUMER_STREAM => Consumer::Stream(runtime.open_stream(Handle::new(stream))?),
            DMR_CONSUMER_WAITS | DMR_CONSUMER_UNKNOWN => Consumer::Unknown,
            other => return Err(no_constant("consumer", other)),
        };
        let kind = kind_of(versioned);
        // SAFETY: the caller's obligation.
        let exported =
            unsafe { runtime.tensors().export(runtime.gpu(), tensor, kind, consumer, waiting) }?;
        // SAFETY: as above, and not null.
        unsafe { managed.write(exported) };
        Ok(())
    })
}

/// Writes the description of a tensor to `info`, whose `size` and `version` the program has set.
///
/// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no tensor of the runtime;
/// `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a struct of another version.
///
/// # Safety
///
/// `info` is null, or of a `dmr_tensor_info` of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_tensor_describe(
    runtime: *mut RuntimeHandle,
    tensor: *const TensorHandle,
    info: *mut TensorInfo,
) -> Status {
    call_on(runtime, |runtime| {
        let found = runtime.tensors().find(tensor)?;
        let found = lock(&found);
        let layout = found.layout();
        let mut described = TensorInfo::zeroed(size_of::<TensorInfo>() as u32);
        described.address = found.device_ptr();
        described.bytes = layout.span() as u64;
        described.first_element = found.first_element();
        described.type_code = u32::from(layout.dtype().code.0);
        described.type_bits = u32::from(layout.dtype().bits);
        described.type_lanes = u32::from(layout.dtype().lanes);
        described.dimensions = layout.shape().len() as u32;
        described.read_only = u32::from(found.is_read_only());
        for (to, from) in described.shape.iter_mut().zip(layout.shape()) {
            *to = *from;
        }
        for (to, from) in described.strides.iter_mut().zip(layout.strides()) {
            *to = *from;
        }
        // SAFETY: the caller's obligation.
        unsafe { write(info, described, "info") }
    })
}

/// Destroys a tensor. Its memory is freed, or its deleter called, after its recorded uses; if it
/// was exported, not before its consumers have deleted it.
///
/// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no tensor of the runtime;
/// `DMR_STATUS_FORKED_PROCESS`.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_tensor_destroy(
    runtime: *mut RuntimeHandle,
    tensor: *mut TensorHandle,
) -> Status {
    call_on(runtime, |runtime| runtime.tensors().destroy(tensor))
}

/// Calls the deleter of a managed tensor that the program has not passed on: of one that was
/// exported here, or of another library. Null is fine. Does nothing in a forked child.
///
/// Errors: `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `managed` is null, or a managed tensor of that kind that is the program's to delete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_dlpack_delete(managed: *mut c_void, versioned: u32) -> Status {
    call(|| {
        registry::refuse_fork()?;
        let _current = CurrentContext::keep();
        // SAFETY: the caller's obligation.
        unsafe { tensors::delete(managed, kind_of(versioned)) };
        Ok(())
    })
}

fn kind_of(versioned: u32) -> Kind {
    if versioned == 0 { Kind::Unversioned } else { Kind::Versioned }
}

fn no_constant(argument: &str, value: u32) -> Failure {
    let text = format!("`{argument}` is {value}: pass one of the constants of the header");
    Failure::new(Status::InvalidArgument, text)
}

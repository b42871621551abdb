//! C9: tensors are exported and imported in order, and what is wrong is a status.

use std::ffi::c_void;
use std::ptr;

use dmr_capi::*;

use crate::support::{Calls, Gpu, Raw, checked, last_error, raw};

const BYTES: usize = 1 << 10;

fn create(gpu: &Calls, bits: u8, shape: &[i64], on: Raw) -> Result<*mut TensorHandle, Status> {
    let mut tensor = ptr::null_mut();
    let len = shape.len();
    let shape = shape.as_ptr();
    // SAFETY: the shape has that many numbers; the stream is alive.
    let status = unsafe {
        dmr_tensor_create(gpu.handle, 1, bits, 1, shape, len, on, ptr::null(), &mut tensor)
    };
    checked(status).map(|()| tensor)
}

fn export(gpu: &Calls, tensor: *const TensorHandle, on: Raw) -> Result<*mut c_void, Status> {
    let mut managed = ptr::null_mut();
    // SAFETY: the stream is alive.
    let status = unsafe {
        dmr_tensor_to_dlpack(gpu.handle, tensor, 1, DMR_CONSUMER_STREAM, on, &mut managed)
    };
    checked(status).map(|()| managed)
}

fn import(gpu: &Calls, managed: *mut c_void, on: Raw) -> Result<*mut TensorHandle, Status> {
    let mut tensor = ptr::null_mut();
    // SAFETY: the tensor was exported here; the stream is alive.
    let status = unsafe {
        dmr_tensor_from_dlpack(gpu.handle, managed, 1, DMR_READY_STREAM, on, on, &mut tensor)
    };
    checked(status).map(|()| tensor)
}

fn describe(gpu: &Calls, tensor: *const TensorHandle) -> Result<TensorInfo, Status> {
    // SAFETY: all zeros are a value of it.
    let mut info: TensorInfo = unsafe { std::mem::zeroed() };
    info.size = size_of::<TensorInfo>() as u32;
    info.version = DMR_TENSOR_INFO_VERSION;
    // SAFETY: the struct has its size.
    checked(unsafe { dmr_tensor_describe(gpu.handle, tensor, &mut info) }).map(|()| info)
}

fn destroy(gpu: &Calls, tensor: *mut TensorHandle) -> Result<(), Status> {
    checked(dmr_tensor_destroy(gpu.handle, tensor))
}

#[test]
fn c9_a_tensor_goes_out_and_comes_back_with_its_bytes() {
    let gpu = Gpu::new();
    let mine = gpu.stream();
    let mine = raw(&mine);
    let theirs = gpu.stream();
    let theirs = raw(&theirs);
    let tensor = create(&gpu, 8, &[4, BYTES as i64 / 4], mine).unwrap();
    let info = describe(&gpu, tensor).unwrap();
    assert_eq!((info.bytes, info.dimensions, info.read_only), (BYTES as u64, 2, 0));
    assert_eq!(
        (info.shape[..2].to_vec(), info.strides[..2].to_vec()),
        (vec![4, 256], vec![256, 1])
    );
    gpu.fill_with(5, info.address, BYTES, mine);
    gpu.record(info.address, mine, DMR_ACCESS_WRITE).unwrap();
    // Out: `theirs` waits. The consumer keeps the memory of a tensor that is destroyed.
    let managed = export(&gpu, tensor, theirs).unwrap();
    destroy(&gpu, tensor).unwrap();
    assert_eq!(destroy(&gpu, tensor), Err(Status::UnknownAddress));
    assert_eq!(gpu.content(info.address, BYTES, theirs), vec![5; BYTES]);
    gpu.fill_with(6, info.address, BYTES, theirs);
    // And back.
    let back = import(&gpu, managed, theirs).unwrap();
    assert_eq!(describe(&gpu, back).unwrap().address, info.address);
    gpu.wait(info.address, mine, DMR_ACCESS_READ).unwrap();
    assert_eq!(gpu.content(info.address, BYTES, mine), vec![6; BYTES]);
    gpu.record(info.address, mine, DMR_ACCESS_READ).unwrap();
    destroy(&gpu, back).unwrap();
    assert_eq!(gpu.record(info.address, mine, DMR_ACCESS_READ), Err(Status::UnknownAddress));
    gpu.end();
}

#[test]
fn c9_a_runtime_that_is_destroyed_destroys_its_tensors() {
    let gpu = Gpu::new();
    let mine = gpu.stream();
    let mine = raw(&mine);
    let tensor = create(&gpu, 32, &[16], mine).unwrap();
    let managed = export(&gpu, tensor, mine).unwrap();
    let back = import(&gpu, managed, mine).unwrap();
    assert_ne!(tensor, back);
    gpu.end();
}

#[test]
fn c9_what_is_wrong_is_a_status_that_says_so() {
    let gpu = Gpu::new();
    let mine = gpu.stream();
    let mine = raw(&mine);
    assert_eq!(create(&gpu, 7, &[4], mine), Err(Status::InvalidArgument));
    assert!(last_error().contains("dtype.bits"), "{}", last_error());
    assert_eq!(create(&gpu, 8, &[-4], mine), Err(Status::InvalidArgument));
    assert!(last_error().contains("shape"), "{}", last_error());
    assert_eq!(create(&gpu, 8, &[i64::MAX, 4], mine), Err(Status::InvalidArgument));
    assert_eq!(import(&gpu, ptr::null_mut(), mine), Err(Status::InvalidArgument));
    let none = ptr::without_provenance_mut(7);
    assert_eq!(export(&gpu, none, mine), Err(Status::UnknownAddress));
    assert_eq!(describe(&gpu, none).map(drop), Err(Status::UnknownAddress));
    let tensor = create(&gpu, 8, &[], mine).unwrap();
    let mut managed = ptr::null_mut();
    // SAFETY: the stream is alive.
    let status = unsafe { dmr_tensor_to_dlpack(gpu.handle, tensor, 1, 9, mine, &mut managed) };
    assert_eq!(checked(status), Err(Status::InvalidArgument));
    // A tensor that no consumer has taken is the program's to delete; null is fine.
    let managed = export(&gpu, tensor, mine).unwrap();
    for managed in [managed, ptr::null_mut()] {
        // SAFETY: it was exported here, and is deleted once.
        assert_eq!(unsafe { dmr_dlpack_delete(managed, 1) }, Status::Ok);
    }
    gpu.end();
}

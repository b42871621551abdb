//! C6: no call changes the context of its thread, and a forked child is refused at once, whatever
//! the threads of its parent were doing.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use dmr::cudarc::driver::{CudaContext, sys};
use dmr::dmr_dlpack::dlpark::ManagedTensorBase;
use dmr::dmr_dlpack::dlpark::ffi::{DLDataType, DLDevice, DLManagedTensorVersioned, DLTensor};
use dmr_capi::*;
use dmr_testkit::exit_code;

use crate::support::{Gpu, LEGACY, MIB, empty_usage, last_error, raw};

fn current() -> sys::CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: the driver writes one pointer.
    unsafe { sys::cuCtxGetCurrent(&mut context) }.result().unwrap();
    context
}

fn make_current(context: sys::CUcontext) {
    // SAFETY: null, or a context that exists.
    unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
}

#[test]
fn c6_the_context_of_the_thread_stays_current() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let other = CudaContext::new(gpu.rig.universe().ordinal(1)).unwrap();
    for context in [ptr::null_mut(), other.cu_ctx()] {
        make_current(context);
        let address = gpu.allocate(40 * MIB, raw(&stream)).unwrap();
        assert_eq!(current(), context);
        gpu.record(address, LEGACY, DMR_ACCESS_READ).unwrap();
        assert_eq!(current(), context);
        gpu.free_on(address, LEGACY).unwrap();
        assert_eq!(current(), context);
        // SAFETY: the number is not written.
        let trimmed = unsafe { dmr_runtime_trim(gpu.handle, 0, ptr::null_mut()) };
        assert_eq!(trimmed, Status::Ok);
        gpu.retire(raw(&stream)).unwrap();
        assert_eq!(current(), context);
    }
    make_current(other.cu_ctx());
    let second = crate::support::Calls::on(&gpu.rig, |_| {});
    assert_eq!(current(), other.cu_ctx());
    second.destroy().unwrap();
    assert_eq!(current(), other.cu_ctx());
    drop((second, other));
    gpu.end();
}

/// A tensor of another library, with what it points to. The tensor is first, so that both have one
/// address.
#[repr(C)]
struct Theirs {
    managed: DLManagedTensorVersioned,
    shape: [i64; 1],
    /// The context that the deleter makes current.
    context: sys::CUcontext,
    deletions: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the first field of a `Theirs` that was boxed, and is deleted once.
    let theirs = unsafe { Box::from_raw(tensor.cast::<Theirs>()) };
    make_current(theirs.context);
    theirs.deletions.fetch_add(1, Ordering::SeqCst);
}

/// Makes a tensor of another library whose deleter makes `context` current.
fn theirs(gpu: &Gpu, address: Address, elements: i64, context: sys::CUcontext) -> *mut Theirs {
    let descriptor = DLTensor {
        data: ptr::with_exposed_provenance_mut(address as usize),
        device: DLDevice::cuda(gpu.rig.ordinal() as i32),
        ndim: 1,
        dtype: DLDataType::U8,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned::from_parts(descriptor, ptr::null_mut(), Some(delete));
    let deletions = Arc::default();
    let theirs = Box::into_raw(Box::new(Theirs { managed, shape: [elements], context, deletions }));
    // SAFETY: just made; the shape does not move.
    unsafe { (*theirs).managed.tensor_mut().shape = (&raw mut (*theirs).shape).cast() };
    theirs
}

fn import(gpu: &Gpu, theirs: *mut Theirs) -> *mut TensorHandle {
    let mut tensor = ptr::null_mut();
    // SAFETY: just made; its memory is a block that outlives it.
    let status = unsafe {
        let ready = DMR_READY_DONE;
        dmr_tensor_from_dlpack(gpu.handle, theirs.cast(), 1, ready, LEGACY, LEGACY, &mut tensor)
    };
    assert_eq!(status, Status::Ok, "{}", last_error());
    tensor
}

#[test]
fn c6_the_context_stays_current_when_a_deleter_of_another_library_changes_it() {
    let gpu = Gpu::new();
    let other = CudaContext::new(gpu.rig.universe().ordinal(1)).unwrap();
    let own = gpu.rig.device().context().cu_ctx();
    let memory = gpu.allocate(64, LEGACY).unwrap();
    let contexts = [own, other.cu_ctx(), ptr::null_mut()];
    for (before, changed) in contexts.iter().flat_map(|a| contexts.map(|b| (*a, b))) {
        for elements in [0, 64] {
            let address = if elements == 0 { 0 } else { memory };
            let imported = theirs(&gpu, address, elements, changed);
            let not_imported = theirs(&gpu, address, elements, changed);
            // SAFETY: just made.
            let deletions = unsafe { [&*imported, &*not_imported] }.map(|it| it.deletions.clone());
            make_current(before);
            // Without elements, the import deletes it.
            let tensor = import(&gpu, imported);
            assert_eq!(deletions[0].load(Ordering::SeqCst) > 0, elements == 0);
            assert_eq!(current(), before, "the import of {elements} elements");
            assert_eq!(dmr_tensor_destroy(gpu.handle, tensor), Status::Ok);
            assert_eq!(current(), before, "the destruction");
            // SAFETY: it is the program's.
            let deleted = unsafe { dmr_dlpack_delete(not_imported.cast(), 1) };
            assert_eq!((deleted, current()), (Status::Ok, before), "the deletion");
            while deletions.iter().any(|deletions| deletions.load(Ordering::SeqCst) == 0) {
                thread::yield_now();
            }
        }
    }
    // Whatever is left is deleted by the destruction.
    let tensor = import(&gpu, theirs(&gpu, memory, 64, ptr::null_mut()));
    assert!(!tensor.is_null());
    make_current(other.cu_ctx());
    assert_eq!(gpu.destroy(), Ok(()));
    assert_eq!(current(), other.cu_ctx());
    drop(other);
}

/// Makes every call. Returns the number of the first one that does not refuse the child.
fn first_wrong_call(gpu: &Gpu, address: Address) -> i32 {
    let handle = gpu.handle;
    let mut usage = empty_usage();
    let mut number = 0;
    let mut found = 0;
    let mut runtime = ptr::null_mut();
    let mut spillable = ptr::null_mut();
    let config = crate::support::default_config();
    // SAFETY: the pointers are of what the functions write.
    let statuses = unsafe {
        [
            dmr_allocate(handle, 256, LEGACY, &mut found),
            dmr_allocate_tagged(handle, 256, LEGACY, c"child".as_ptr(), &mut found),
            dmr_free(handle, address),
            dmr_free_on(handle, address, LEGACY),
            dmr_record_use(handle, address, LEGACY, DMR_ACCESS_READ),
            dmr_wait_for_uses(handle, address, LEGACY, DMR_ACCESS_READ),
            dmr_stream_retire(handle, LEGACY),
            dmr_runtime_usage(handle, &mut usage),
            dmr_runtime_statistics(handle, ptr::null_mut()),
            dmr_runtime_snapshot(handle, ptr::null_mut(), size_of::<Block>(), 0, &mut 0),
            dmr_runtime_reap(handle, 1, &mut number),
            dmr_runtime_trim(handle, 0, &mut number),
            dmr_spillable_create(handle, 1, LEGACY, ptr::null(), &mut spillable),
            dmr_spillable_pin(handle, spillable, LEGACY, &mut found),
            dmr_spillable_unpin(handle, spillable),
            dmr_spillable_destroy(handle, spillable),
            dmr_runtime_create(&config, &mut runtime),
            dmr_runtime_destroy(handle),
        ]
    };
    let is_wrong = |status: &Status| *status != Status::ForkedProcess;
    let wrong = statuses.iter().position(is_wrong).map_or(0, |at| at as i32 + 1);
    let has_text = last_error().contains("forked");
    if has_text { wrong } else { 99 }
}

#[test]
fn c6_a_child_that_is_forked_under_load_is_refused_by_each_call() {
    let gpu = Gpu::with(|config| config.statistics = 1);
    let kept = gpu.allocate(MIB, LEGACY).unwrap();
    let is_over = AtomicBool::new(false);
    let work = || {
        let stream = gpu.stream();
        while !is_over.load(Ordering::Relaxed) {
            let address = gpu.allocate(4096, raw(&stream)).unwrap();
            gpu.record(address, LEGACY, DMR_ACCESS_READ).unwrap();
            gpu.free(address).unwrap();
        }
        gpu.retire(raw(&stream)).unwrap();
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(work);
        }
        for _ in 0..40 {
            // SAFETY: the child calls functions that take no lock, allocates, and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork");
            if child == 0 {
                // SAFETY: a child that hangs is killed.
                unsafe { libc::alarm(20) };
                let wrong = first_wrong_call(&gpu, kept);
                // SAFETY: ends the child without the handlers of the parent.
                unsafe { libc::_exit(wrong) };
            }
            let code = exit_code(child);
            if code != Some(0) {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!(code, Some(0), "the number of the call");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(gpu.free(kept), Ok(()));
    gpu.end();
}

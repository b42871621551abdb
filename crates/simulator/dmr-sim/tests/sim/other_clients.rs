//! Promises of the driver that programs in other languages rely on, and that no function's manual
//! states.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::{CStr, c_int, c_void};

use crate::support::gpu::{self, machine, malloc};
use cudarc::driver::sys::{self, CUdeviceptr};

/// Returns the function of this name, as a program finds it that has only the library.
fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the simulated driver is loaded, and stays so; both names are C strings.
    let address = unsafe {
        let driver = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!driver.is_null());
        libc::dlsym(driver, name.as_ptr())
    };
    assert!(!address.is_null(), "{name:?}");
    address
}

type OneHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
type OneResult = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

const SUCCESS: c_int = 0;
const INVALID_HANDLE: c_int = 400;
const NOT_SUPPORTED: c_int = 801;

#[test]
fn sim_the_first_versions_of_functions_do_what_the_later_ones_do() {
    let (_universe, gpu) = machine();
    // SAFETY: each is a function of the driver with these arguments.
    let [destroy_event, destroy_stream, begin_capture, push] =
        [c"cuEventDestroy", c"cuStreamDestroy", c"cuStreamBeginCapture", c"cuCtxPushCurrent"]
            .map(|name| unsafe { std::mem::transmute::<*mut c_void, OneHandle>(function(name)) });
    // SAFETY: as above.
    let pop: OneResult = unsafe { std::mem::transmute(function(c"cuCtxPopCurrent")) };
    let event = gpu::event();
    let stream = gpu::stream();
    let mut popped = std::ptr::null_mut();
    // SAFETY: the simulator checks handles; the pointer is to a live local.
    unsafe {
        assert_eq!(destroy_event(event.cast()), SUCCESS);
        assert_eq!(destroy_event(event.cast()), INVALID_HANDLE);
        assert_eq!(push(gpu.context.cast()), SUCCESS);
        assert_eq!(pop(&mut popped), SUCCESS);
        assert_eq!(popped, gpu.context.cast());
        assert_eq!(begin_capture(stream.cast()), SUCCESS);
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        sys::cuStreamIsCapturing(stream, &mut status).result().unwrap();
        assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        let mut graph = std::ptr::null_mut();
        sys::cuStreamEndCapture(stream, &mut graph).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
        assert_eq!(destroy_stream(stream.cast()), SUCCESS);
        assert_eq!(destroy_stream(stream.cast()), INVALID_HANDLE);
    }
}

#[test]
fn sim_a_first_version_with_addresses_of_32_bits_is_refused() {
    let (_universe, _gpu) = machine();
    // SAFETY: a function of the driver with these arguments.
    let allocate: unsafe extern "C" fn(*mut u32, u32) -> c_int =
        unsafe { std::mem::transmute(function(c"cuMemAlloc")) };
    let mut address = 7;
    // SAFETY: the pointer is to a live local.
    assert_eq!(unsafe { allocate(&mut address, 64) }, NOT_SUPPORTED);
    assert_eq!(address, 7);
}

#[test]
fn sim_the_functions_for_graphics_exist_and_are_refused() {
    let (_universe, _gpu) = machine();
    for name in [c"cuGraphicsGLRegisterBuffer", c"cuGLGetDevices_v2", c"cuGraphicsEGLRegisterImage"]
    {
        // SAFETY: functions of the driver, which are refused before they use their arguments.
        let refused: unsafe extern "C" fn() -> c_int =
            unsafe { std::mem::transmute(function(name)) };
        // SAFETY: as above.
        assert_eq!(unsafe { refused() }, NOT_SUPPORTED, "{name:?}");
    }
}

#[test]
fn sim_a_handle_is_positive_as_a_signed_number() {
    let (_universe, gpu) = machine();
    let handles: [*mut c_void; 4] = [
        gpu.context.cast(),
        gpu::stream().cast(),
        gpu::event().cast(),
        gpu::pool(gpu.device).cast(),
    ];
    for handle in handles {
        assert!(handle as isize > 0, "{handle:?}");
    }
}

#[test]
fn an_allocation_of_a_mebibyte_begins_at_a_page() {
    const PAGE: CUdeviceptr = 2 << 20;
    let (_universe, _gpu) = machine();
    for bytes in [1 << 20, (1 << 20) + 1, 5 << 20] {
        let small = malloc(512).unwrap();
        let large = malloc(bytes).unwrap();
        assert!(large.is_multiple_of(PAGE), "{bytes} bytes at {large:#x}");
        for block in [small, large] {
            // SAFETY: allocated above, and not used.
            unsafe { sys::cuMemFree_v2(block) }.result().unwrap();
        }
    }
}

#[test]
fn sim_an_event_has_no_flags_but_those_of_the_manual() {
    let (_universe, _gpu) = machine();
    let mut event = std::ptr::null_mut();
    let create = |event: &mut sys::CUevent, flags| {
        // SAFETY: the pointer is to a live local.
        unsafe { sys::cuEventCreate(event, flags) }
    };
    for flags in [8, 0xff00, 4, 5] {
        assert_eq!(create(&mut event, flags), sys::CUresult::CUDA_ERROR_INVALID_VALUE, "{flags}");
        assert!(event.is_null());
    }
    for flags in [0, 1, 2, 3, 6, 7] {
        assert_eq!(create(&mut event, flags), sys::CUresult::CUDA_SUCCESS, "{flags}");
        gpu::destroy_event(std::mem::replace(&mut event, std::ptr::null_mut())).unwrap();
    }
}

//! Modules, libraries, linked images, functions by name, and the forms of a launch.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};

use crate::support::gpu::{self, fill, kinds, machine, malloc, order};
use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};
use dmr_sim::{Footprint, ReportKind, Universe};

use CUresult::CUDA_SUCCESS;

const PTX: &CStr = c"
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter[4] = {1, 2, 3, 4};
.visible .entry write(.param .u64 write_at, .param .u8 write_byte, .param .u64 write_len) { ret; }
.visible .entry other() { ret; }
";

/// Registers `write`: fills memory with a byte. Returns the bytes of its second parameter in each
/// launch.
fn register(universe: &Universe) -> Arc<Mutex<Vec<u8>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    universe.register_kernel(
        "write",
        |args| Footprint::new().writes(args.u64(0), args.u64(2)),
        move |args, memory| {
            log.lock().unwrap().push(args.bytes(1)[0]);
            memory.fill(args.u64(0), args.u64(2), args.bytes(1)[0]);
        },
    );
    seen
}

fn load(image: *const c_void) -> CUmodule {
    let mut module = null_mut();
    // SAFETY: the image is PTX text or of this driver, the pointer to a live local; so for all
    // calls here.
    assert_eq!(unsafe { sys::cuModuleLoadData(&mut module, image) }, CUDA_SUCCESS);
    module
}

fn function(module: CUmodule, name: &CStr) -> CUfunction {
    let mut function = null_mut();
    // SAFETY: as above.
    let code = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    assert_eq!(code, CUDA_SUCCESS);
    function
}

/// The arguments of `write`, laid out as the driver packs them.
#[repr(C)]
struct WriteArguments {
    at: u64,
    byte: u8,
    len: u64,
}

#[test]
fn sim_arguments_arrive_packed_in_a_buffer_as_they_do_one_by_one() {
    let (universe, _gpu) = machine();
    let seen = register(&universe);
    let write = function(load(PTX.as_ptr().cast()), c"write");
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let mut arguments = WriteArguments { at: block, byte: 7, len: 64 };
    let mut bytes = size_of::<WriteArguments>();
    let packed = |bytes: &mut usize, arguments: &mut WriteArguments| {
        [
            without_provenance_mut(1),
            (&raw mut *arguments).cast(),
            without_provenance_mut(2),
            (&raw mut *bytes).cast(),
            null_mut(),
        ]
    };
    let mut extra = packed(&mut bytes, &mut arguments);
    // SAFETY: as above.
    let launch = |extra: &mut [*mut c_void; 5]| unsafe {
        sys::cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, a, null_mut(), extra.as_mut_ptr())
    };
    assert_eq!(launch(&mut extra), CUDA_SUCCESS);
    assert_eq!(gpu::sync(a), Ok(()));
    assert_eq!(*seen.lock().unwrap(), [7]);
    assert_eq!(gpu::read(block, 64).unwrap(), [7; 64]);
    bytes -= 1;
    let mut extra = packed(&mut bytes, &mut arguments);
    assert_eq!(launch(&mut extra), CUresult::CUDA_ERROR_INVALID_VALUE, "the buffer is too short");
}

#[test]
fn sim_a_launch_with_a_configuration_is_one_of_its_stream() {
    let (universe, _gpu) = machine();
    let _seen = register(&universe);
    let write = function(load(PTX.as_ptr().cast()), c"write");
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    let mut at = block;
    let mut byte = 2u8;
    let mut len = 64u64;
    let mut params: [*mut c_void; 3] =
        [(&raw mut at).cast(), (&raw mut byte).cast(), (&raw mut len).cast()];
    // SAFETY: plain data, for which zero is valid.
    let mut config: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
    config.gridDimX = 1;
    config.gridDimY = 1;
    config.gridDimZ = 1;
    config.blockDimX = 32;
    config.blockDimY = 1;
    config.blockDimZ = 1;
    config.hStream = b;
    // SAFETY: as above.
    let mut launch = |config: &sys::CUlaunchConfig| unsafe {
        sys::cuLaunchKernelEx(config, write, params.as_mut_ptr(), null_mut())
    };
    order(a, b);
    assert_eq!(launch(&config), CUDA_SUCCESS);
    assert_eq!(kinds(&universe), []);
    config.hStream = a;
    assert_eq!(launch(&config), CUDA_SUCCESS);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    // SAFETY: as for the configuration.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.attrs = &mut attribute;
    config.numAttrs = 1;
    assert_eq!(launch(&config), CUresult::CUDA_ERROR_NOT_SUPPORTED, "it would be ordered too much");
}

#[test]
fn sim_a_cooperative_launch_must_fit_on_the_device() {
    let (universe, _gpu) = machine();
    let _seen = register(&universe);
    let write = function(load(PTX.as_ptr().cast()), c"write");
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let mut at = block;
    let mut byte = 2u8;
    let mut len = 64u64;
    let mut params: [*mut c_void; 3] =
        [(&raw mut at).cast(), (&raw mut byte).cast(), (&raw mut len).cast()];
    // SAFETY: as above.
    let mut launch = |grid| unsafe {
        sys::cuLaunchCooperativeKernel(write, grid, 1, 1, 1024, 1, 1, 0, a, params.as_mut_ptr())
    };
    assert_eq!(launch(2 * 132), CUDA_SUCCESS);
    assert_eq!(launch(2 * 132 + 1), CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

#[test]
fn sim_a_variable_of_a_module_has_its_initial_bytes_and_takes_part_in_races() {
    let (universe, _gpu) = machine();
    let module = load(PTX.as_ptr().cast());
    let mut at = 0;
    let mut bytes = 0;
    // SAFETY: as above.
    let mut find = |name: &CStr| unsafe {
        sys::cuModuleGetGlobal_v2(&mut at, &mut bytes, module, name.as_ptr())
    };
    assert_eq!(find(c"nothing"), CUresult::CUDA_ERROR_NOT_FOUND);
    assert_eq!(find(c"counter"), CUDA_SUCCESS);
    assert_eq!(bytes, 16);
    let words = [1u32, 2, 3, 4].map(u32::to_le_bytes).concat();
    assert_eq!(gpu::read(at, 16).unwrap(), words);
    let a = gpu::stream();
    let b = gpu::stream();
    fill(at, 1, 4, a).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(at, 2, 4, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    assert_eq!(universe.finish().reports.len(), 1, "a variable is no leak");
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuModuleUnload(module) }, CUDA_SUCCESS);
    assert!(fill(at, 3, 4, a).is_err());
    assert_eq!(kinds(&universe).last(), Some(&ReportKind::UseAfterFree));
}

#[test]
fn sim_linked_ptx_is_an_image_that_this_driver_loads() {
    let (_universe, _gpu) = machine();
    let second = c".version 8.0 .target sm_80 .visible .entry third(.param .u32 n) { ret; }";
    let mut linker = null_mut();
    let mut image = null_mut();
    let mut bytes = 0;
    let ptx = sys::CUjitInputType::CU_JIT_INPUT_PTX;
    // SAFETY: as above; the texts are as long as the calls say.
    unsafe {
        let none = null_mut();
        let nothing = null_mut();
        assert_eq!(sys::cuLinkCreate_v2(0, none, nothing, &mut linker), CUDA_SUCCESS);
        for (text, expected) in [
            (PTX, CUDA_SUCCESS),
            (second, CUDA_SUCCESS),
            (c"not ptx", CUresult::CUDA_ERROR_INVALID_PTX),
        ] {
            let data = text.as_ptr().cast_mut().cast();
            let len = text.count_bytes() + 1;
            let name = c"name".as_ptr();
            let code =
                sys::cuLinkAddData_v2(linker, ptx, data, len, name, 0, null_mut(), null_mut());
            assert_eq!(code, expected);
        }
        assert_eq!(sys::cuLinkComplete(linker, &mut image, &mut bytes), CUDA_SUCCESS);
    }
    // SAFETY: the image is this long, and lives as long as the linker.
    let copied = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), bytes) }.to_vec();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuLinkDestroy(linker) }, CUDA_SUCCESS);
    let module = load(copied.as_ptr().cast());
    for name in [c"write", c"other", c"third"] {
        function(module, name);
    }
    let mut count = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuModuleGetFunctionCount(&mut count, module) }, CUDA_SUCCESS);
    assert_eq!(count, 3);
}

#[test]
fn sim_a_module_and_its_functions_need_no_current_context() {
    let (_universe, _gpu) = machine();
    let module = load(PTX.as_ptr().cast());
    let mut context = null_mut();
    let mut bytes = 0;
    let mut threads = 0;
    let mut blocks = 0;
    let mut at = 0;
    // SAFETY: the pointers are to live locals; so below.
    assert_eq!(unsafe { sys::cuCtxPopCurrent_v2(&mut context) }, CUDA_SUCCESS);
    let found = function(module, c"other");
    let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: as above; the handles are of this driver.
    unsafe {
        let name = c"counter".as_ptr();
        assert_eq!(sys::cuModuleGetGlobal_v2(&mut at, &mut bytes, module, name), CUDA_SUCCESS);
        assert_eq!(sys::cuFuncGetAttribute(&mut threads, most, found), CUDA_SUCCESS);
        let code = sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, found, 32, 0);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(sys::cuModuleUnload(module), CUDA_SUCCESS);
        assert_eq!(sys::cuModuleUnload(module), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(sys::cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    }
    assert_eq!((bytes, threads), (16, 1024));
}

#[test]
fn sim_an_error_of_the_ptx_compiler_is_in_the_programs_buffer() {
    let (_universe, _gpu) = machine();
    use sys::CUjit_option::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut log = [1u8; 64];
    let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let image = c"not ptx";
    let mut module = null_mut();
    // SAFETY: as above; the buffer is as long as its option says.
    let code = unsafe {
        let image = image.as_ptr().cast();
        let options = options.as_mut_ptr();
        let values = values.as_mut_ptr();
        sys::cuModuleLoadDataEx(&mut module, image, 2, options, values)
    };
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    let text = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
    assert!(text.contains("PTX"), "{text}");
    assert_eq!(values[1] as usize, text.len());
}

#[test]
fn sim_a_kernel_of_a_library_is_launched_like_a_function() {
    let (universe, _gpu) = machine();
    let seen = register(&universe);
    let mut library = null_mut();
    let mut kernel = null_mut();
    let mut name = null();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let mut at = block;
    let mut byte = 9u8;
    let mut len = 64u64;
    let mut params: [*mut c_void; 3] =
        [(&raw mut at).cast(), (&raw mut byte).cast(), (&raw mut len).cast()];
    let mut offset = 0;
    let mut bytes = 0;
    // SAFETY: as above.
    unsafe {
        let n = null_mut();
        let image = PTX.as_ptr().cast();
        let nn = null_mut();
        let n2 = null_mut();
        let nn2 = null_mut();
        assert_eq!(sys::cuLibraryLoadData(&mut library, image, n, nn, 0, n2, nn2, 0), CUDA_SUCCESS);
        let code = sys::cuLibraryGetKernel(&mut kernel, library, c"write".as_ptr());
        assert_eq!(code, CUDA_SUCCESS);
        assert_eq!(sys::cuKernelGetName(&mut name, kernel), CUDA_SUCCESS);
        assert_eq!(CStr::from_ptr(name), c"write");
        let code = sys::cuKernelGetParamInfo(kernel, 2, &mut offset, &mut bytes);
        assert_eq!((code, offset, bytes), (CUDA_SUCCESS, 16, 8));
        let none = null_mut();
        let params = params.as_mut_ptr();
        let code = sys::cuLaunchKernel(kernel.cast(), 1, 1, 1, 1, 1, 1, 0, a, params, none);
        assert_eq!(code, CUDA_SUCCESS);
    }
    gpu::sync(a).unwrap();
    assert_eq!(*seen.lock().unwrap(), [9]);
}

#[test]
fn sim_a_function_that_is_looked_up_at_run_time_is_the_drivers() {
    let (_universe, _gpu) = machine();
    let name = CString::new("cuCtxGetDevice").unwrap();
    let mut found = null_mut();
    let mut status =
        sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    let mut device = -1;
    // SAFETY: as above; the function has this type.
    unsafe {
        let code = sys::cuGetProcAddress_v2(name.as_ptr(), &mut found, 12_000, 4, &mut status);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
        let code = sys::cuGetProcAddress_v2(name.as_ptr(), &mut found, 12_000, 0, &mut status);
        assert_eq!(code, CUDA_SUCCESS);
        let get: unsafe extern "C" fn(*mut i32) -> CUresult = std::mem::transmute(found);
        assert_eq!(get(&mut device), CUDA_SUCCESS);
    }
    assert_eq!(device, _gpu.device);
}

#[test]
fn sim_occupancy_follows_threads_and_shared_memory() {
    let (_universe, _gpu) = machine();
    let write = function(load(PTX.as_ptr().cast()), c"write");
    let blocks = |threads, shared| {
        let mut blocks = -1;
        // SAFETY: as above.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, write, threads, shared)
        };
        assert_eq!(code, CUDA_SUCCESS);
        blocks
    };
    assert_eq!(blocks(1024, 0), 2);
    assert_eq!(blocks(32, 0), 32);
    assert_eq!(blocks(33, 0), 32);
    assert_eq!(blocks(32, 48 << 10), 4);
    assert_eq!(blocks(32, 49 << 10), 0, "more than the function may have");
    let mut grid = 0;
    let mut block = 0;
    // SAFETY: as above.
    let code =
        unsafe { sys::cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, write, None, 0, 0) };
    assert_eq!((code, grid, block), (CUDA_SUCCESS, 2 * 132, 1024));
}

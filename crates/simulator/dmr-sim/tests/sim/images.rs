//! Module images: fat binaries, linked texts, variables with addresses; and what cannot be loaded,
//! with the reason.
#![allow(unsafe_code)] // the driver is called directly

use crate::support;
use std::ffi::{CStr, CString, c_void};
use std::io::Write;
use std::ptr::null_mut;

use crate::support::gpu::{self, fill, launch_threads, machine, malloc};
use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUjitInputType, CUmodule, CUresult};
use dmr_sim::Footprint;

use CUresult::CUDA_SUCCESS;

/// Fat binaries with `scale(float* values, float factor)`, which multiplies the value of each
/// thread.
const FAT_BINARIES: [&[u8]; 4] = [
    include_bytes!("../../../dmr-ptx/tests/fixtures/fatbin_plain.fatbin"),
    include_bytes!("../../../dmr-ptx/tests/fixtures/fatbin_lz4.fatbin"),
    include_bytes!("../../../dmr-ptx/tests/fixtures/fatbin_zstd.fatbin"),
    include_bytes!("../../../dmr-ptx/tests/fixtures/fatbin_concat.fatbin"),
];
const MACHINE_CODE: &[u8] = include_bytes!("../../../dmr-ptx/tests/fixtures/fatbin_cubin.fatbin");

/// Writes an image to a file, which is removed when it is dropped, and returns the file's path.
fn file_of(image: &[u8]) -> (tempfile::NamedTempFile, CString) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(image).unwrap();
    let path = CString::new(file.path().to_str().unwrap()).unwrap();
    (file, path)
}

/// `__fatBinC_Wrapper_t`
#[repr(C)]
struct Wrapper {
    magic: i32,
    version: i32,
    data: *const c_void,
    names: *const c_void,
}

fn wrapper(image: &[u8]) -> Wrapper {
    let data = image.as_ptr().cast();
    Wrapper { magic: 0x4662_43B1, version: 1, data, names: null_mut() }
}

/// The messages of the PTX compiler that a call has written.
struct Logs {
    information: Vec<u8>,
    errors: Vec<u8>,
    options: [CUjit_option; 4],
    values: [*mut c_void; 4],
}

impl Logs {
    fn new() -> Box<Self> {
        use CUjit_option::*;
        let options = [
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let information = vec![0; 4096];
        let errors = vec![0; 4096];
        let values = [null_mut(); 4];
        let mut logs = Box::new(Self { information, errors, options, values });
        let size = std::ptr::without_provenance_mut(4096);
        logs.values =
            [logs.information.as_mut_ptr().cast(), size, logs.errors.as_mut_ptr().cast(), size];
        logs
    }

    fn information(&self) -> String {
        CStr::from_bytes_until_nul(&self.information).unwrap().to_str().unwrap().to_owned()
    }

    fn errors(&self) -> String {
        let text = CStr::from_bytes_until_nul(&self.errors).unwrap().to_str().unwrap();
        assert_eq!(self.values[3].addr(), text.len());
        text.to_owned()
    }
}

fn load(image: *const c_void) -> Result<CUmodule, CUresult> {
    load_with(image, &mut Logs::new())
}

fn load_with(image: *const c_void, logs: &mut Logs) -> Result<CUmodule, CUresult> {
    let mut module = null_mut();
    let options = logs.options.as_mut_ptr();
    let values = logs.values.as_mut_ptr();
    // SAFETY: the image is PTX text or a whole binary, the buffers are as long as the options say,
    // all pointers are valid; so for all calls here.
    match unsafe { sys::cuModuleLoadDataEx(&mut module, image, 4, options, values) } {
        CUDA_SUCCESS => Ok(module),
        code => Err(code),
    }
}

fn load_text(text: &str) -> Result<CUmodule, CUresult> {
    load(CString::new(text).unwrap().as_ptr().cast())
}

fn function(module: CUmodule, name: &CStr) -> CUfunction {
    let mut function = null_mut();
    // SAFETY: as above.
    let code = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    assert_eq!(code, CUDA_SUCCESS);
    function
}

/// Runs `scale` and checks what it does.
#[track_caller]
fn scales(scale: CUfunction) {
    let values = malloc(16).unwrap();
    let stream = gpu::stream();
    fill(values, 0x3f, 16, stream).unwrap();
    launch_threads(scale, 1, 4, &[values, u64::from(2_f32.to_bits())], stream).unwrap();
    gpu::sync(stream).unwrap();
    let doubled = f32::from_bits(0x3f3f_3f3f) * 2.0;
    assert_eq!(gpu::read(values, 16).unwrap(), doubled.to_le_bytes().repeat(4));
}

/// Links an input, and returns the module of the result.
fn link(kind: CUjitInputType, image: Option<&[u8]>, file: &CStr) -> Result<CUmodule, CUresult> {
    let mut linker = null_mut();
    let mut linked = null_mut();
    let mut bytes = 0;
    let none = null_mut();
    let nothing = null_mut();
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuLinkCreate_v2(0, none, nothing, &mut linker), CUDA_SUCCESS);
        let code = match image {
            Some(image) => {
                let data = image.as_ptr().cast_mut().cast();
                let bytes = image.len();
                let name = c"image".as_ptr();
                sys::cuLinkAddData_v2(linker, kind, data, bytes, name, 0, none, nothing)
            }
            None => sys::cuLinkAddFile_v2(linker, kind, file.as_ptr(), 0, none, nothing),
        };
        if code != CUDA_SUCCESS {
            return Err(code);
        }
        assert_eq!(sys::cuLinkComplete(linker, &mut linked, &mut bytes), CUDA_SUCCESS);
        let module = load(linked);
        assert_eq!(sys::cuLinkDestroy(linker), CUDA_SUCCESS);
        module
    }
}

#[test]
fn sim_a_fat_binary_is_loaded_by_every_call_with_and_without_a_wrapper() {
    let (universe, _gpu) = machine();
    let fat = CUjitInputType::CU_JIT_INPUT_FATBINARY;
    for image in FAT_BINARIES {
        let (_file, path) = file_of(image);
        let wrapper = wrapper(image);
        let wrapped = (&raw const wrapper).cast::<c_void>();
        let plain = image.as_ptr().cast();
        for image in [wrapped, plain] {
            let mut first = null_mut();
            let mut second = null_mut();
            let mut library = null_mut();
            let mut kernel = null_mut();
            let n = null_mut();
            let nn = null_mut();
            let n2 = null_mut();
            let nn2 = null_mut();
            // SAFETY: as above; a kernel is launched like a function.
            unsafe {
                assert_eq!(sys::cuModuleLoadData(&mut first, image), CUDA_SUCCESS);
                assert_eq!(sys::cuModuleLoadFatBinary(&mut second, image), CUDA_SUCCESS);
                let code = sys::cuLibraryLoadData(&mut library, image, n, nn, 0, n2, nn2, 0);
                assert_eq!(code, CUDA_SUCCESS);
                let code = sys::cuLibraryGetKernel(&mut kernel, library, c"scale".as_ptr());
                assert_eq!(code, CUDA_SUCCESS);
            }
            scales(kernel.cast());
            for module in [first, second, load(image).unwrap()] {
                scales(function(module, c"scale"));
            }
        }
        let mut module = null_mut();
        let mut library = null_mut();
        let mut kernel = null_mut();
        let n = null_mut();
        let nn = null_mut();
        let n2 = null_mut();
        let nn2 = null_mut();
        // SAFETY: as above.
        unsafe {
            assert_eq!(sys::cuModuleLoad(&mut module, path.as_ptr()), CUDA_SUCCESS);
            let path = path.as_ptr();
            let code = sys::cuLibraryLoadFromFile(&mut library, path, n, nn, 0, n2, nn2, 0);
            assert_eq!(code, CUDA_SUCCESS);
            let code = sys::cuLibraryGetKernel(&mut kernel, library, c"scale".as_ptr());
            assert_eq!(code, CUDA_SUCCESS);
        }
        scales(kernel.cast());
        scales(function(module, c"scale"));
        // SAFETY: the wrapper is this long.
        let wrapped = unsafe { std::slice::from_raw_parts(wrapped.cast(), size_of::<Wrapper>()) };
        for input in [Some(wrapped), Some(image), None] {
            scales(function(link(fat, input, &path).unwrap(), c"scale"));
        }
    }
    assert!(universe.refusals().is_empty(), "{:?}", universe.refusals());
}

#[test]
fn sim_machine_code_alone_is_refused_with_the_reason() {
    const NO_BINARY: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
    let (universe, _gpu) = machine();
    let mut cubin = [0u8; 64];
    cubin[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08");
    cubin[48..52].copy_from_slice(&0x0600_5A04u32.to_le_bytes());
    let wrapper = wrapper(MACHINE_CODE);
    let wrapped = (&raw const wrapper).cast();
    for image in [MACHINE_CODE.as_ptr().cast(), wrapped, cubin.as_ptr().cast()] {
        let mut logs = Logs::new();
        assert_eq!(load_with(image, &mut logs), Err(NO_BINARY));
        assert!(logs.errors().contains("machine code for sm_90 and no PTX"), "{}", logs.errors());
    }
    let mut module = null_mut();
    let (_file, path) = file_of(MACHINE_CODE);
    // SAFETY: as above.
    let code = unsafe { sys::cuModuleLoad(&mut module, path.as_ptr()) };
    assert_eq!(code, NO_BINARY);
    let fat = CUjitInputType::CU_JIT_INPUT_FATBINARY;
    assert_eq!(link(fat, Some(MACHINE_CODE), c""), Err(NO_BINARY));
    let machine_code = CUjitInputType::CU_JIT_INPUT_CUBIN;
    assert_eq!(link(machine_code, Some(&cubin), c""), Err(NO_BINARY));
    let refusals = universe.refusals();
    let calls: Vec<_> = refusals.iter().map(|refusal| refusal.call).collect();
    let data = "cuModuleLoadDataEx";
    let file = "cuModuleLoad";
    assert_eq!(calls, [data, file, "cuLinkAddData_v2", "cuLinkAddData_v2"]);
    assert!(refusals[1].to_string().contains("compile it with PTX"), "{}", refusals[1]);
    assert!(universe.finish().is_clean(), "an error code is no finding");
}

#[test]
fn sim_a_damaged_fat_binary_or_wrapper_is_an_invalid_image() {
    let (_universe, _gpu) = machine();
    let image = FAT_BINARIES[2];
    let mut damaged = image.to_vec();
    damaged[16 + 64 + 900..].fill(0x55);
    let mut logs = Logs::new();
    let code = load_with(damaged.as_ptr().cast(), &mut logs);
    assert_eq!(code, Err(CUresult::CUDA_ERROR_INVALID_IMAGE));
    assert!(logs.errors().contains("damaged"), "{}", logs.errors());
    let wrapper = Wrapper { data: null_mut(), ..wrapper(image) };
    let code = load((&raw const wrapper).cast());
    assert_eq!(code, Err(CUresult::CUDA_ERROR_INVALID_IMAGE));
}

#[test]
fn sim_a_text_that_is_not_ptx_is_refused_with_line_and_column() {
    let (universe, _gpu) = machine();
    let text = c".version 8.0\n.target sm_80\n.visible .entry k() {\n  add.s32 %r1, %r1, 1;\n}\n";
    let mut logs = Logs::new();
    let code = load_with(text.as_ptr().cast(), &mut logs);
    assert_eq!(code, Err(CUresult::CUDA_ERROR_INVALID_PTX));
    assert!(
        logs.errors().contains("line 4, column 11: `%r1` is not declared"),
        "{}",
        logs.errors()
    );
    assert_eq!(universe.refusals()[0].line, Some(4));
    let code = load(c"\xff".as_ptr().cast());
    assert_eq!(code, Err(CUresult::CUDA_ERROR_INVALID_PTX));
}

/// A module with one kernel that cannot run, and one that can.
const PARTLY: &CStr = c".version 8.0
.target sm_80
.address_size 64
.global .texref image;
.visible .entry textured(.param .u64 out)
{
    .reg .b32 %r<8>;
    mov.u32 %r5, 0;
    tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [image, {%r5}];
    ret;
}
.visible .entry plain(.param .u64 out)
{
    .reg .b64 %d;
    ld.param.u64 %d, [out];
    st.global.u32 [%d], 7;
    ret;
}
";

#[test]
fn sim_an_unsupported_kernel_is_named_at_load_with_its_line_and_the_others_run() {
    const NOT_SUPPORTED: Option<i32> = Some(CUresult::CUDA_ERROR_NOT_SUPPORTED as i32);
    let (universe, _gpu) = machine();
    let mut logs = Logs::new();
    let module = load_with(PARTLY.as_ptr().cast(), &mut logs).unwrap();
    assert!(logs.errors().is_empty());
    let log = logs.information();
    assert!(log.starts_with("kernel `textured` cannot run: ") && log.contains("line 9"), "{log}");
    let refusals = universe.refusals();
    let [refusal] = &refusals[..] else { panic!("{refusals:?}") };
    assert_eq!((refusal.call, refusal.line), ("cuModuleLoadDataEx", Some(9)));
    assert_eq!(refusal.kernel.as_deref(), Some("textured"));
    let stream = gpu::stream();
    let out = malloc(4).unwrap();
    launch_threads(function(module, c"plain"), 1, 1, &[out], stream).unwrap();
    gpu::sync(stream).unwrap();
    assert_eq!(gpu::read(out, 4).unwrap(), [7, 0, 0, 0]);
    let textured = function(module, c"textured");
    for _ in 0..2 {
        let launched = launch_threads(textured, 1, 1, &[out], stream);
        assert_eq!(gpu::code(launched), NOT_SUPPORTED);
    }
    let refusals = universe.refusals();
    let text = refusals[1].to_string();
    assert_eq!(refusals.len(), 2, "each once");
    assert!(text.starts_with("cuLaunchKernel: kernel `textured` cannot run: "), "{text}");
    assert!(text.contains("`tex.1d.v4.s32.s32`") && text.contains("line 9"), "{text}");
    universe.register_kernel("textured", |_| Footprint::new(), |_, _| {});
    launch_threads(textured, 1, 1, &[out], stream).unwrap();
    assert_eq!(universe.refusals().len(), 2);
}

#[test]
fn sim_a_function_that_is_not_simulated_is_named() {
    let (universe, _gpu) = machine();
    // SAFETY: the function does nothing.
    let code = unsafe { sys::cuTexObjectDestroy(0) };
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(universe.refusals()[0].call, "cuTexObjectDestroy");
}

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Adds texts to a linker, and completes it.
fn link_texts(texts: &[String], logs: &mut Logs) -> Result<CUmodule, CUresult> {
    let mut linker = null_mut();
    let mut linked = null_mut();
    let mut bytes = 0;
    let options = logs.options.as_mut_ptr();
    let values = logs.values.as_mut_ptr();
    let ptx = CUjitInputType::CU_JIT_INPUT_PTX;
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuLinkCreate_v2(4, options, values, &mut linker), CUDA_SUCCESS);
        for text in texts {
            let data = text.as_ptr().cast_mut().cast();
            let name = c"text".as_ptr();
            let none = null_mut();
            let nothing = null_mut();
            let code = sys::cuLinkAddData_v2(linker, ptx, data, text.len(), name, 0, none, nothing);
            assert_eq!(code, CUDA_SUCCESS);
        }
        let code = sys::cuLinkComplete(linker, &mut linked, &mut bytes);
        let module = if code == CUDA_SUCCESS { load(linked) } else { Err(code) };
        assert_eq!(sys::cuLinkDestroy(linker), CUDA_SUCCESS);
        module
    }
}

#[test]
fn sim_linked_texts_call_each_other_and_share_variables() {
    let (_universe, _gpu) = machine();
    let texts = [
        ".extern .func (.param .b32 r) seven(); .extern .global .u32 more;
         .visible .entry sum(.param .u64 out) {
             .reg .b32 %r<4>; .reg .b64 %d; .param .b32 r;
             call (r), seven, ();
             ld.param.b32 %r1, [r]; ld.global.u32 %r2, [more]; add.u32 %r3, %r1, %r2;
             ld.param.u64 %d, [out]; st.global.u32 [%d], %r3; ret; }",
        ".visible .global .u32 more = 30;
         .visible .func (.param .b32 r) seven() { st.param.b32 [r], 7; ret; }",
    ];
    let texts = texts.map(|text| format!("{HEAD}{text}"));
    let module = link_texts(&texts, &mut Logs::new()).unwrap();
    let stream = gpu::stream();
    let out = malloc(4).unwrap();
    launch_threads(function(module, c"sum"), 1, 1, &[out], stream).unwrap();
    gpu::sync(stream).unwrap();
    assert_eq!(gpu::read(out, 4).unwrap(), [37, 0, 0, 0]);
    let mut logs = Logs::new();
    let twice = [texts[1].clone(), texts[1].clone()];
    assert_eq!(link_texts(&twice, &mut logs), Err(CUresult::CUDA_ERROR_INVALID_PTX));
    assert!(logs.errors().contains("cannot link `more`: two texts define it"), "{}", logs.errors());
}

#[test]
fn sim_a_variable_is_initialised_with_the_address_of_another() {
    let (universe, _gpu) = machine();
    let text = format!(
        "{HEAD}.visible .global .u32 numbers[2] = {{11, 22}};
         .global .u64 table[3] = {{5, numbers+4, 0}};
         .visible .global .u64 zeros[1000];
         .visible .entry follow(.param .u64 out) {{
             .reg .b32 %r; .reg .b64 %d<3>;
             ld.global.u64 %d1, [table+8]; ld.global.u32 %r, [%d1];
             ld.param.u64 %d2, [out]; st.global.u32 [%d2], %r; ret; }}"
    );
    let module = load_text(&text).unwrap();
    let stream = gpu::stream();
    let out = malloc(4).unwrap();
    launch_threads(function(module, c"follow"), 1, 1, &[out], stream).unwrap();
    gpu::sync(stream).unwrap();
    assert_eq!(gpu::read(out, 4).unwrap(), [22, 0, 0, 0]);
    let mut at = 0;
    let mut bytes = 0;
    // SAFETY: as above.
    let code = unsafe { sys::cuModuleGetGlobal_v2(&mut at, &mut bytes, module, c"zeros".as_ptr()) };
    assert_eq!((code, bytes), (CUDA_SUCCESS, 8000));
    assert_eq!(gpu::read(at, 8000).unwrap(), [0; 8000]);
    assert_eq!(support::gpu::kinds(&universe), []);
}

//! Compiles CUDA C++ to PTX with NVRTC, which is loaded at run time.

#![allow(unsafe_code, reason = "calls a C library")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

/// The error of compiling.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The library cannot be loaded, or has not a function.
    #[error("NVRTC: {0}")]
    Load(#[from] libloading::Error),
    /// The source or an option has a zero byte.
    #[error("NVRTC: {0}")]
    Zero(#[from] std::ffi::NulError),
    /// A function of the library has failed.
    #[error("NVRTC: {call} returned {code}")]
    #[non_exhaustive]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: c_int,
    },
    /// The source has errors.
    #[error("NVRTC: {0}")]
    Source(String),
}

/// Headers of the C and C++ libraries that NVRTC does not have: what kernels use of them.
const HEADERS: [(&str, &str); 6] = [
    ("stdint.h", INTEGERS),
    ("cstdint", INTEGERS),
    ("math.h", MATHEMATICS),
    ("cmath", MATHEMATICS),
    ("cassert", "#pragma once\n"),
    ("cstdio", "#pragma once\n"),
];

const INTEGERS: &str = "#pragma once\n\
    typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;\n\
    typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;\n\
    typedef unsigned long uint64_t; typedef long intptr_t; typedef unsigned long uintptr_t;\n";

const MATHEMATICS: &str = "#pragma once\n\
    #ifndef INFINITY\n\
    #define INFINITY (__int_as_float(0x7f800000))\n\
    #define NAN (__int_as_float(0x7fffffff))\n\
    #endif\n\
    #define M_2_SQRTPI 1.12837916709551257390\n\
    #define M_SQRT1_2 0.70710678118654752440\n";

/// A compiler, and its options.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The library: `libnvrtc.so.12`.
    pub library: PathBuf,
    /// The folders of headers.
    pub include: Vec<PathBuf>,
    /// Further options.
    pub options: Vec<String>,
}

type Program = *mut c_void;

impl Compiler {
    /// Returns the PTX of a source, for compute capability 9.0.
    ///
    /// # Errors
    ///
    /// The library is missing, or the source has errors.
    pub fn compile(&self, name: &str, source: &str) -> Result<String, CompileError> {
        let mut options =
            vec!["--gpu-architecture=compute_90".to_owned(), "--std=c++17".to_owned()];
        options.push("-default-device".to_owned());
        options.extend(self.include.iter().map(|folder| format!("-I{}", Path::display(folder))));
        options.extend(self.options.iter().cloned());
        let options = Strings::new(options)?;
        // SAFETY: NVRTC has no initialisation that depends on the state of the process.
        let library = unsafe { Library::new(&self.library)? };
        let program = Open::create(&library, name, source)?;
        if program.compile(&options)? != 0 {
            let log = program.text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            return Err(CompileError::Source(log));
        }
        program.text("nvrtcGetPTXSize", "nvrtcGetPTX")
    }
}

/// A program of NVRTC, destroyed on drop.
#[derive(Debug)]
struct Open<'a> {
    library: &'a Library,
    program: Program,
}

impl<'a> Open<'a> {
    fn create(library: &'a Library, name: &str, source: &str) -> Result<Self, CompileError> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        let name = CString::new(name)?;
        let source = CString::new(source)?;
        let names = Strings::new(HEADERS.iter().map(|(name, _)| (*name).to_owned()))?;
        let texts = Strings::new(HEADERS.iter().map(|(_, text)| (*text).to_owned()))?;
        let mut program = std::ptr::null_mut();
        // SAFETY: the function has this type; all strings end with a zero and outlive the call.
        let code = unsafe {
            let create = library.get::<Create>(b"nvrtcCreateProgram\0")?;
            let headers = texts.pointers.as_ptr();
            let names = names.pointers.as_ptr();
            let count = HEADERS.len() as c_int;
            create(&mut program, source.as_ptr(), name.as_ptr(), count, headers, names)
        };
        check("nvrtcCreateProgram", code)?;
        Ok(Self { library, program })
    }

    fn compile(&self, options: &Strings) -> Result<c_int, CompileError> {
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        // SAFETY: the function has this type; the program is live, and so are the options.
        unsafe {
            let compile = self.library.get::<Compile>(b"nvrtcCompileProgram\0")?;
            Ok(compile(self.program, options.pointers.len() as c_int, options.pointers.as_ptr()))
        }
    }

    /// Returns a text whose size one function gives, and whose bytes another.
    fn text(&self, size: &'static str, bytes: &'static str) -> Result<String, CompileError> {
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        let mut length = 0;
        // SAFETY: the functions have these types; the buffer is as long as the library says.
        unsafe {
            check(size, self.library.get::<Size>(size.as_bytes())?(self.program, &mut length))?;
            let mut buffer = vec![0_u8; length];
            let start = buffer.as_mut_ptr().cast();
            check(bytes, self.library.get::<Bytes>(bytes.as_bytes())?(self.program, start))?;
            buffer.truncate(length.saturating_sub(1));
            Ok(String::from_utf8_lossy(&buffer).into_owned())
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        // SAFETY: the function has this type, and nothing else destroys the program.
        unsafe {
            if let Ok(destroy) = self.library.get::<Destroy>(b"nvrtcDestroyProgram\0") {
                destroy(&mut self.program);
            }
        }
    }
}

/// C strings, and pointers to them.
#[derive(Debug)]
struct Strings {
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    fn new(texts: impl IntoIterator<Item = String>) -> Result<Self, CompileError> {
        let texts = texts.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Ok(Self { _texts: texts, pointers })
    }
}

const fn check(call: &'static str, code: c_int) -> Result<(), CompileError> {
    if code == 0 { Ok(()) } else { Err(CompileError::Call { call, code }) }
}

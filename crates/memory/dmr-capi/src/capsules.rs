//! The destructor of Python's capsules with structs of Arrow: native, because Python code cannot
//! run while an exception is raised, which is when a consumer drops a capsule that it has refused.

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::sync::OnceLock;

use dmr::dmr_arrow::{ArrowDeviceArray, ArrowSchema};
use dmr::dmr_core::panics;

/// `PyCapsule_GetName`.
type GetName = unsafe extern "C" fn(*mut c_void) -> *const c_char;
/// `PyCapsule_GetPointer`.
type GetPointer = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The functions of the interpreter that has loaded the library.
struct Functions {
    get_name: GetName,
    get_pointer: GetPointer,
}

impl Functions {
    /// Returns the functions; `None` outside of Python.
    fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        let find = |name: &CStr| {
            // SAFETY: the name ends with a NUL.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let functions = FUNCTIONS.get_or_init(|| {
            let name = find(c"PyCapsule_GetName")?;
            let pointer = find(c"PyCapsule_GetPointer")?;
            // SAFETY: the type is that of the function in Python's header.
            let get_name = unsafe { mem::transmute::<*mut c_void, GetName>(name) };
            // SAFETY: as above.
            let get_pointer = unsafe { mem::transmute::<*mut c_void, GetPointer>(pointer) };
            Some(Self { get_name, get_pointer })
        });
        functions.as_ref()
    }
}

/// Destroys a capsule of Python with a struct of Arrow, by its name `arrow_schema` or
/// `arrow_device_array`: releases the struct, unless it was moved out, and frees it. For bindings
/// to Python, which pass it to `PyCapsule_New`. It leaves an exception that is being raised as it
/// is. Outside of Python it does nothing.
///
/// # Safety
///
/// `capsule` is one of Python, whose struct was allocated by `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_capsule_destroy(capsule: *mut c_void) {
    let Some(functions) = Functions::get() else { return };
    // SAFETY: the caller's obligation.
    let name = unsafe { (functions.get_name)(capsule) };
    if name.is_null() {
        return;
    }
    // SAFETY: as above.
    let at = unsafe { (functions.get_pointer)(capsule, name) };
    if at.is_null() {
        return;
    }
    // SAFETY: a name of a capsule ends with a NUL.
    let is_schema = unsafe { CStr::from_ptr(name) } == c"arrow_schema";
    let _ = panics::catch(|| {
        if is_schema {
            // SAFETY: the caller's obligation.
            drop(unsafe { ArrowSchema::take(at.cast()) });
        } else {
            // SAFETY: as above.
            drop(unsafe { ArrowDeviceArray::take(at.cast()) });
        }
    });
    // SAFETY: as above.
    unsafe { libc::free(at) };
}

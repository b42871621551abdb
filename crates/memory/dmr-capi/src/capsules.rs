//! The destructor of Python's capsules with tensors of DLPack and structs of Arrow: native, because
//! Python code cannot run while an exception is raised, which is when a consumer drops a capsule
//! that it has refused.

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::sync::OnceLock;

use dmr::dmr_arrow::{ArrowDeviceArray, ArrowSchema};
use dmr::dmr_core::panics;

use crate::registry;
use crate::tensors::{self, Kind};

/// `PyCapsule_GetName`.
type GetName = unsafe extern "C" fn(*mut c_void) -> *const c_char;
/// `PyCapsule_GetPointer`.
type GetPointer = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
/// `PyEval_SaveThread`.
type SaveThread = unsafe extern "C" fn() -> *mut c_void;
/// `PyEval_RestoreThread`.
type RestoreThread = unsafe extern "C" fn(*mut c_void);

/// The functions of the interpreter that has loaded the library.
struct Functions {
    get_name: GetName,
    get_pointer: GetPointer,
    save_thread: SaveThread,
    restore_thread: RestoreThread,
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
            let save = find(c"PyEval_SaveThread")?;
            let restore = find(c"PyEval_RestoreThread")?;
            // SAFETY: the type is that of the function in Python's header.
            let get_name = unsafe { mem::transmute::<*mut c_void, GetName>(name) };
            // SAFETY: as above.
            let get_pointer = unsafe { mem::transmute::<*mut c_void, GetPointer>(pointer) };
            // SAFETY: as above.
            let save_thread = unsafe { mem::transmute::<*mut c_void, SaveThread>(save) };
            // SAFETY: as above.
            let restore_thread = unsafe { mem::transmute::<*mut c_void, RestoreThread>(restore) };
            Some(Self { get_name, get_pointer, save_thread, restore_thread })
        });
        functions.as_ref()
    }

    /// Runs `body` without the interpreter's lock: a deletion may wait for the device, whose host
    /// functions may need the lock.
    ///
    /// # Safety
    ///
    /// The thread has the lock.
    unsafe fn without_lock(&self, body: impl FnOnce()) {
        // SAFETY: the caller's obligation.
        let thread = unsafe { (self.save_thread)() };
        // Nothing unwinds into Python.
        let _ = panics::catch(body);
        // SAFETY: what the call above has returned.
        unsafe { (self.restore_thread)(thread) };
    }
}

/// The content of a capsule, by its name.
#[derive(Clone, Copy)]
enum Content {
    Tensor(Kind),
    Schema,
    Array,
}

impl Content {
    /// Returns the content; `None` for a name that stands for none, or for one that was taken.
    fn of(name: &CStr) -> Option<Self> {
        match name.to_bytes() {
            b"dltensor" => Some(Self::Tensor(Kind::Unversioned)),
            b"dltensor_versioned" => Some(Self::Tensor(Kind::Versioned)),
            b"arrow_schema" => Some(Self::Schema),
            b"arrow_device_array" => Some(Self::Array),
            _ => None,
        }
    }

    /// Deletes a tensor; releases a struct, unless it was moved out, and frees it.
    ///
    /// # Safety
    ///
    /// This content is at `at`, and the caller's.
    unsafe fn destroy(self, at: *mut c_void) {
        match self {
            Self::Tensor(kind) => {
                if registry::refuse_fork().is_ok() {
                    // SAFETY: the caller's obligation.
                    unsafe { tensors::delete(at, kind) };
                }
                return;
            }
            // SAFETY: as above.
            Self::Schema => drop(unsafe { ArrowSchema::take(at.cast()) }),
            // SAFETY: as above.
            Self::Array => drop(unsafe { ArrowDeviceArray::take(at.cast()) }),
        }
        // SAFETY: as above.
        unsafe { libc::free(at) };
    }
}

/// Destroys a capsule of Python, by its name: deletes a tensor of DLPack (`dltensor`,
/// `dltensor_versioned`); releases a struct of Arrow (`arrow_schema`, `arrow_device_array`), unless
/// it was moved out, and frees it. Leaves a capsule of another name alone, such as one whose tensor
/// was taken. For bindings to Python, which pass it to `PyCapsule_New`. It leaves an exception that
/// is being raised as it is. Outside of Python it does nothing.
///
/// # Safety
///
/// `capsule` is one of Python, whose tensor was exported here, or whose struct was allocated by
/// `malloc`; the thread has the interpreter's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_capsule_destroy(capsule: *mut c_void) {
    let Some(functions) = Functions::get() else { return };
    // SAFETY: the caller's obligation.
    let name = unsafe { (functions.get_name)(capsule) };
    if name.is_null() {
        return;
    }
    // SAFETY: a name of a capsule ends with a NUL.
    let Some(content) = Content::of(unsafe { CStr::from_ptr(name) }) else { return };
    // SAFETY: the caller's obligation.
    let at = unsafe { (functions.get_pointer)(capsule, name) };
    if !at.is_null() {
        // SAFETY: as above.
        unsafe { functions.without_lock(|| content.destroy(at)) };
    }
}

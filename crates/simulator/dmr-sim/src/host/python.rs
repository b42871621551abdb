//! The lines of a Python program on the way to a call, read through Python's stable C interface, if
//! it is in the process.

#![allow(non_snake_case, reason = "names of Python's functions")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

type Object = *mut c_void;

thread_local! {
    static LINES: RefCell<Option<Arc<[String]>>> = const { RefCell::new(None) };
}

/// Returns the lines that were noted for the call that this thread makes, the innermost first.
pub(crate) fn lines() -> Option<Arc<[String]>> {
    LINES.try_with(|lines| lines.borrow().clone()).ok().flatten()
}

/// Notes the lines of this thread's Python frames. Waits for Python's global lock, so the caller
/// must hold no lock that a Python thread can wait for.
pub(crate) fn record_lines() {
    let lines = Python::find().and_then(|python| python.lines_of_this_thread());
    let _ = LINES.try_with(|noted| *noted.borrow_mut() = lines.map(Arc::from));
}

macro_rules! python {
    ($($name:ident: $type:ty),+ $(,)?) => {
        /// The functions of Python that are used, of the same names.
        struct Python { $($name: $type),+ }

        impl Python {
            /// Finds the functions, unless there is no Python in the process.
            fn find() -> Option<Self> {
                $(let $name = symbol(concat!(stringify!($name), "\0"))?;)+
                // SAFETY: the symbols are functions of these types.
                Some(unsafe { Self { $($name: std::mem::transmute::<Object, $type>($name)),+ } })
            }
        }
    };
}

python! {
    Py_IsInitialized: extern "C" fn() -> c_int,
    PyGILState_GetThisThreadState: extern "C" fn() -> Object,
    PyGILState_Check: extern "C" fn() -> c_int,
    PyGILState_Ensure: unsafe extern "C-unwind" fn() -> c_int,
    PyGILState_Release: unsafe extern "C" fn(c_int),
    PyErr_Occurred: unsafe extern "C" fn() -> Object,
    PyErr_Clear: unsafe extern "C" fn(),
    PyThreadState_GetFrame: unsafe extern "C" fn(Object) -> Object,
    PyFrame_GetBack: unsafe extern "C" fn(Object) -> Object,
    PyFrame_GetCode: unsafe extern "C" fn(Object) -> Object,
    PyFrame_GetLineNumber: unsafe extern "C" fn(Object) -> c_int,
    PyObject_GetAttrString: unsafe extern "C" fn(Object, *const c_char) -> Object,
    PyUnicode_AsUTF8AndSize: unsafe extern "C" fn(Object, *mut isize) -> *const c_char,
    Py_DecRef: unsafe extern "C" fn(Object),
}

/// Returns the address of a symbol of the process. The name ends with a zero.
fn symbol(name: &str) -> Option<Object> {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast()) };
    (!found.is_null()).then_some(found)
}

/// Returns whether Python is ending: a thread that then asks for its lock never gets it.
fn is_finalizing() -> bool {
    let function = symbol("Py_IsFinalizing\0").or_else(|| symbol("_Py_IsFinalizing\0"));
    function.is_some_and(|function| {
        // SAFETY: both are functions of this type, which need no lock.
        let function: extern "C" fn() -> c_int = unsafe { std::mem::transmute(function) };
        function() != 0
    })
}

/// A thread whose lines another thread reads.
struct Request {
    python: Python,
    state: Object,
    lines: Vec<String>,
}

/// Reads the lines of a thread that waits for this one. Python ends this thread while it waits for
/// the lock, if the program ends meanwhile: by an unwinding that no frame of the simulator stops,
/// because this function has no destructors.
unsafe extern "C-unwind" fn read(request: *mut c_void) -> *mut c_void {
    // SAFETY: the thread that made the request waits for the end of this one.
    let Request { python, state, lines } = unsafe { &mut *request.cast::<Request>() };
    // SAFETY: the functions are Python's, and the lock is released after it was acquired.
    unsafe {
        let lock = (python.PyGILState_Ensure)();
        python.read_lines(*state, lines);
        (python.PyGILState_Release)(lock);
    }
    std::ptr::null_mut()
}

impl Python {
    /// Returns the file and line of each frame of this thread, the innermost first; `None` on a
    /// thread without frames.
    fn lines_of_this_thread(self) -> Option<Vec<String>> {
        let state = (self.PyGILState_GetThisThreadState)();
        if (self.Py_IsInitialized)() == 0 || state.is_null() {
            return None;
        }
        let mut request = Request { python: self, state, lines: Vec::new() };
        if (request.python.PyGILState_Check)() != 0 {
            // SAFETY: this thread has the lock.
            unsafe { request.python.read_lines(state, &mut request.lines) };
        } else if !is_finalizing() {
            // SAFETY: the function takes what it is passed, which lives until the thread has ended.
            unsafe {
                let start: extern "C" fn(*mut c_void) -> *mut c_void =
                    std::mem::transmute(read as unsafe extern "C-unwind" fn(_) -> _);
                let mut thread = 0;
                let made = libc::pthread_create(
                    &mut thread,
                    std::ptr::null(),
                    start,
                    (&raw mut request).cast(),
                );
                if made == 0 {
                    libc::pthread_join(thread, std::ptr::null_mut());
                }
            }
        }
        (!request.lines.is_empty()).then_some(request.lines)
    }

    /// Adds the file and line of each frame of a thread.
    ///
    /// # Safety
    ///
    /// The calling thread has the lock, and the thread of the state runs no Python meanwhile.
    unsafe fn read_lines(&self, state: Object, lines: &mut Vec<String>) {
        // SAFETY: by this function's contract; each frame is owned until its reference is dropped.
        unsafe {
            if !(self.PyErr_Occurred)().is_null() {
                return;
            }
            let mut frame = (self.PyThreadState_GetFrame)(state);
            while !frame.is_null() {
                lines.extend(self.line(frame));
                let outer = (self.PyFrame_GetBack)(frame);
                (self.Py_DecRef)(frame);
                frame = outer;
            }
        }
    }

    /// Returns the file and line of a frame.
    ///
    /// # Safety
    ///
    /// A live frame, and the thread has the lock.
    unsafe fn line(&self, frame: Object) -> Option<String> {
        // SAFETY: by this function's contract; the text lives as long as the object that it is read
        // from.
        unsafe {
            let code = (self.PyFrame_GetCode)(frame);
            let file = (self.PyObject_GetAttrString)(code, c"co_filename".as_ptr());
            (self.Py_DecRef)(code);
            let mut line = None;
            if !file.is_null() {
                let text = (self.PyUnicode_AsUTF8AndSize)(file, std::ptr::null_mut());
                if !text.is_null() {
                    let text = CStr::from_ptr(text).to_string_lossy();
                    line = Some(format!("{text}:{}", (self.PyFrame_GetLineNumber)(frame)));
                }
                (self.Py_DecRef)(file);
            }
            (self.PyErr_Clear)();
            line
        }
    }
}

/// Returns whether a place is in a file of a program, and in none of a package or of Python's own
/// library.
pub(crate) fn is_users(place: &str) -> bool {
    let is_package = |folder: &str| matches!(folder, "site-packages" | "dist-packages");
    let is_library = |folder: &str| folder.starts_with("python3.");
    !place.starts_with('<')
        && !place.split('/').any(|folder| is_package(folder) || is_library(folder))
}

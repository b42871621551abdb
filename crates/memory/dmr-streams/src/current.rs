//! The context that is current on a thread of another library: a call leaves it as it was.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use crate::{Device, library};

/// The context that is current on this thread: it is again when this is dropped.
///
/// For calls that another library makes, or that run code of another library, such as a deleter.
/// Without a driver it does nothing. In a forked child do not make one: it calls the driver.
#[derive(Debug)]
#[must_use = "the context is current again when this is dropped"]
pub struct CurrentContext {
    /// `None` if the driver has returned none; null if no context is current.
    before: Option<*mut c_void>,
}

impl CurrentContext {
    /// Notes the context that is current.
    pub fn keep() -> Self {
        Self { before: current() }
    }

    /// Begins the part of the call in which no context but that of `device` is made current: if
    /// that is current already, nothing has to be restored, which saves a driver call.
    pub fn only_changed_by(&mut self, device: &Device) {
        self.before = self.before.filter(|before| *before != device.handle());
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && current().is_some_and(|now| now != before)
            && let Some(functions) = Functions::get()
        {
            // SAFETY: null, or a context that was current on this thread during the call.
            let _ = unsafe { (functions.set_current)(before) };
        }
    }
}

/// The driver's functions, which are also there before the driver is initialised.
struct Functions {
    get_current: unsafe extern "system" fn(*mut *mut c_void) -> c_int,
    set_current: unsafe extern "system" fn(*mut c_void) -> c_int,
}

impl Functions {
    /// Returns the functions; `None` while there is no driver.
    fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
        if let Some(known) = FUNCTIONS.get() {
            return Some(known);
        }
        // SAFETY: the type is that of the function in the driver's header.
        let get_current = unsafe { library::optional("cuCtxGetCurrent") }?;
        // SAFETY: as above.
        let set_current = unsafe { library::optional("cuCtxSetCurrent") }?;
        Some(FUNCTIONS.get_or_init(|| Self { get_current, set_current }))
    }
}

/// Returns the context that is current on this thread, which may be null.
fn current() -> Option<*mut c_void> {
    /// `CUDA_ERROR_NOT_INITIALIZED`: then no context is current.
    const NOT_INITIALISED: c_int = 3;
    let mut context = ptr::null_mut();
    // SAFETY: the driver writes one pointer.
    match unsafe { (Functions::get()?.get_current)(&mut context) } {
        0 => Some(context),
        NOT_INITIALISED => Some(ptr::null_mut()),
        _ => None,
    }
}

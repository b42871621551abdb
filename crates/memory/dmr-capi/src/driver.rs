//! The driver's functions that the memory itself does not need: the context that is current on a
//! thread, and the id of a stream.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr;
use std::sync::OnceLock;

use dmr::dmr_streams::{Device, library};

/// A `CUstream`.
pub(crate) type Stream = *mut c_void;

type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type IsCapturing = unsafe extern "C" fn(Stream, *mut c_int) -> c_int;
type GetId = unsafe extern "C" fn(Stream, *mut c_ulonglong) -> c_int;

struct Functions {
    get_current: GetCurrent,
    set_current: SetCurrent,
    is_capturing: IsCapturing,
    get_id: Option<GetId>,
}

impl Functions {
    /// Returns the functions; `None` while there is no driver.
    fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
        if let Some(known) = FUNCTIONS.get() {
            return Some(known);
        }
        // SAFETY: the types are those of the functions in the driver's header.
        let found = unsafe {
            Self {
                get_current: library::optional("cuCtxGetCurrent")?,
                set_current: library::optional("cuCtxSetCurrent")?,
                is_capturing: library::optional("cuStreamIsCapturing")?,
                get_id: library::optional("cuStreamGetId"),
            }
        };
        Some(FUNCTIONS.get_or_init(|| found))
    }
}

/// The context that is current on this thread: it is again when this is dropped. The library makes
/// its device's context current where the driver needs that, and no other.
#[must_use = "the context is current again when this is dropped"]
pub(crate) struct CurrentContext {
    /// `None` if the driver did not say.
    before: Option<*mut c_void>,
}

impl CurrentContext {
    pub(crate) fn keep() -> Self {
        Self { before: current() }
    }

    /// Begins the part of the call in which no context but that of `device` is made current: if
    /// that is current already, nothing has to be restored.
    pub(crate) fn only_changed_by(&mut self, device: &Device) {
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

/// Returns the number of a stream, which no other stream of the process gets; `None` if the driver
/// returns none, and while the stream captures a graph: the question would end the capture.
///
/// # Safety
///
/// The handle is of a stream that was not destroyed.
pub(crate) unsafe fn id_of_stream(stream: Stream) -> Option<u64> {
    /// `CU_STREAM_CAPTURE_STATUS_NONE`.
    const NONE: c_int = 0;
    let functions = Functions::get()?;
    let get_id = functions.get_id?;
    let mut status = NONE;
    // SAFETY: the caller's obligation; the driver writes one number.
    let looked = unsafe { (functions.is_capturing)(stream, &mut status) };
    if looked != 0 || status != NONE {
        return None;
    }
    let mut id = 0;
    // SAFETY: as above.
    match unsafe { get_id(stream, &mut id) } {
        0 => Some(id),
        _ => None,
    }
}

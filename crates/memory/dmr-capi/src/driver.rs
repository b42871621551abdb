//! The driver's functions that the memory itself does not need: the id of a stream.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::OnceLock;

use dmr::dmr_streams::library;

/// A `CUstream`.
pub(crate) type Stream = *mut c_void;

type IsCapturing = unsafe extern "C" fn(Stream, *mut c_int) -> c_int;
type GetId = unsafe extern "C" fn(Stream, *mut c_ulonglong) -> c_int;

struct Functions {
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
                is_capturing: library::optional("cuStreamIsCapturing")?,
                get_id: library::optional("cuStreamGetId"),
            }
        };
        Some(FUNCTIONS.get_or_init(|| found))
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

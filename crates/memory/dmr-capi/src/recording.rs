//! The flight recorder of the process, which is the same for all runtimes.

use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dmr::dmr_recorder::{self, RecorderConfig};

use crate::config::text;
use crate::entry::call;
use crate::registry;
use crate::status::{Failure, Status};

/// Starts to record what the memory of this process does: allocations, frees, waits of streams,
/// refusals. Call it before the first runtime is created to have all of them.
///
/// The last events of each thread are kept, 1 MiB a thread. If `folder` is not null, a recording is
/// written there when memory runs out and when a device is lost. If `file` is not null, all events
/// are appended to it continuously. `dmr report` reads such files.
///
/// Errors: `DMR_STATUS_INVALID_ARGUMENT` if the process records already, or the file is no
/// recording or cannot be written; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `folder` and `file` are null, or strings that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_recording_start(folder: *const c_char, file: *const c_char) -> Status {
    call(|| {
        registry::refuse_fork()?;
        let mut config = RecorderConfig::new();
        // SAFETY: the caller's obligation.
        if let Some(folder) = unsafe { path(folder) } {
            config = config.with_folder(folder);
        }
        // SAFETY: as above.
        if let Some(file) = unsafe { path(file) } {
            config = config.stream_to(file);
        }
        dmr_recorder::start(config).map_err(refused)
    })
}

/// Writes the events that are kept, and the memory as it is now, to a file, which is created or
/// emptied. Other threads go on meanwhile.
///
/// Errors: `DMR_STATUS_INVALID_ARGUMENT` for a null `file`, one that cannot be written, or if the
/// process does not record; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `file` is null, or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_recording_write(file: *const c_char) -> Status {
    call(|| {
        registry::refuse_fork()?;
        // SAFETY: the caller's obligation.
        let file = unsafe { path(file) }.ok_or_else(|| Failure::null("file"))?;
        dmr_recorder::write_recording(file).map(drop).map_err(refused)
    })
}

/// Stops to record, and ends the file to which events were appended. Does nothing if the process
/// does not record.
///
/// Errors: `DMR_STATUS_FORKED_PROCESS`.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_recording_stop() -> Status {
    call(|| {
        registry::refuse_fork()?;
        dmr_recorder::stop();
        Ok(())
    })
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(Status::InvalidArgument, error.to_string())
}

/// # Safety
///
/// As `text`.
unsafe fn path<'a>(pointer: *const c_char) -> Option<&'a Path> {
    // SAFETY: the caller's obligation.
    let text = unsafe { text(pointer) }?;
    Some(Path::new(OsStr::from_bytes(text.to_bytes())))
}

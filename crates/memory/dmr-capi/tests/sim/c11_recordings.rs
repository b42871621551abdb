//! C11: a recording of the C interface has the blocks of the program.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use dmr_capi::*;
use dmr_recording::{Event, Reader};

use crate::support::{Gpu, last_error, raw};

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Returns the number of allocations of this size.
fn allocations(path: &Path, bytes: u64) -> usize {
    let is_it = |event| matches!(event, Event::Allocate(block) if block.bytes == bytes);
    Reader::open(path).unwrap().filter(|record| is_it(record.as_ref().unwrap().event)).count()
}

#[test]
fn c11_what_is_allocated_is_in_the_file_that_is_written_and_in_the_one_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("written.rec");
    let appended = folder.path().join("appended.rec");
    // SAFETY: null is none.
    let status = unsafe { dmr_recording_write(ptr::null()) };
    assert_eq!(status, Status::InvalidArgument);
    let written_c = c_path(&written);
    // SAFETY: a string that ends with a NUL.
    let status = unsafe { dmr_recording_write(written_c.as_ptr()) };
    assert_eq!(status, Status::InvalidArgument);
    assert!(last_error().contains("not started"), "{}", last_error());
    let appended_c = c_path(&appended);
    // SAFETY: as above.
    let status = unsafe { dmr_recording_start(ptr::null(), appended_c.as_ptr()) };
    assert_eq!(status, Status::Ok, "{}", last_error());
    // SAFETY: as above.
    let again = unsafe { dmr_recording_start(ptr::null(), ptr::null()) };
    assert_eq!(again, Status::InvalidArgument);
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let bytes = 123_457;
    let address = gpu.allocate(bytes, raw(&stream)).unwrap();
    // SAFETY: as above.
    let status = unsafe { dmr_recording_write(written_c.as_ptr()) };
    assert_eq!(status, Status::Ok, "{}", last_error());
    gpu.free(address).unwrap();
    assert_eq!(dmr_recording_stop(), Status::Ok);
    assert_eq!(allocations(&written, bytes as u64), 1);
    assert_eq!(allocations(&appended, bytes as u64), 1);
    gpu.end();
    drop(stream);
}

//! The other library as a consumer: it reads the structs of the crate, and releases them.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use cudarc::driver::{CudaStream, result};
use dmr_arrow::{ArrowColumn, ArrowDeviceArray, ArrowSchema};

use super::{Array, DeviceArray, Schema, Spec};

/// Passes the structs of the crate to another library.
pub(crate) fn given(array: ArrowDeviceArray, schema: ArrowSchema) -> (DeviceArray, Schema) {
    let mut to_array = MaybeUninit::<DeviceArray>::uninit();
    let mut to_schema = MaybeUninit::<Schema>::uninit();
    // SAFETY: the layouts are the same.
    unsafe {
        array.give(to_array.as_mut_ptr().cast());
        schema.give(to_schema.as_mut_ptr().cast());
        (to_array.assume_init(), to_schema.assume_init())
    }
}

/// Releases what another library has.
pub(crate) fn release(mut array: DeviceArray, mut schema: Schema) {
    // SAFETY: each is of the crate, or released.
    unsafe {
        if let Some(release) = schema.release {
            release(&mut schema);
        }
        if let Some(release) = array.array.release {
            release(&mut array.array);
        }
    }
    assert!(array.array.release.is_none() && schema.release.is_none());
}

/// Reads a column of the crate as another library does: its stream waits for the event, and copies
/// as many bytes as `expected` has.
pub(crate) fn read(
    stream: &CudaStream,
    array: &DeviceArray,
    schema: &Schema,
    expected: &Spec,
    waits: bool,
) -> Spec {
    if waits && !array.sync_event.is_null() {
        // SAFETY: the address of an event of the driver.
        unsafe {
            let event = array.sync_event.cast::<*mut c_void>().read();
            let flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(stream.cu_stream(), event.cast(), flags).expect("a wait");
        }
    }
    // SAFETY: both are of the crate, and not released.
    unsafe { read_below(stream, &array.array, schema, expected) }
}

unsafe fn read_below(stream: &CudaStream, array: &Array, schema: &Schema, expected: &Spec) -> Spec {
    let text = |at: *const c_char| {
        // SAFETY: the text ends with a NUL.
        unsafe { std::ffi::CStr::from_ptr(at) }.to_str().expect("UTF-8").to_owned()
    };
    let is_view = expected.is_view();
    assert_eq!(array.n_buffers as usize, expected.buffers.len() + usize::from(is_view));
    let mut buffers = Vec::new();
    for (index, bytes) in expected.buffers.iter().enumerate() {
        // SAFETY: the array has that many.
        let at = unsafe { array.buffers.add(index).read() };
        let Some(bytes) = bytes.as_ref().filter(|bytes| !bytes.is_empty() && !at.is_null()) else {
            buffers.push(None);
            continue;
        };
        let mut host = vec![0; bytes.len()];
        // SAFETY: the buffer has the bytes; the stream is waited for.
        unsafe {
            result::memcpy_dtoh_async(&mut host, at.addr() as u64, stream.cu_stream())
                .expect("a copy");
            result::stream::synchronize(stream.cu_stream()).expect("the copy");
        }
        buffers.push(Some(host));
    }
    if is_view {
        // SAFETY: page-locked memory, which the host reads as well.
        let sizes = unsafe { array.buffers.add(expected.buffers.len()).read() }.cast::<i64>();
        assert!(!sizes.is_null());
        for (nth, size) in expected.sizes().into_iter().enumerate() {
            // SAFETY: as above; there is one for each buffer.
            assert_eq!(unsafe { sizes.add(nth).read() }, size);
        }
    }
    assert_eq!(array.n_children as usize, expected.children.len());
    assert_eq!(array.n_children, schema.n_children);
    let below = |(index, expected): (usize, &Spec)| {
        // SAFETY: both have that many children.
        unsafe {
            let array = array.children.add(index).read();
            let schema = schema.children.add(index).read();
            read_below(stream, &*array, &*schema, expected)
        }
    };
    let children = expected.children.iter().enumerate().map(below).collect();
    assert_eq!(array.dictionary.is_null(), schema.dictionary.is_null());
    let dictionary = expected.dictionary.as_deref().map(|expected| {
        // SAFETY: both have one, which the next line would find.
        Box::new(unsafe { read_below(stream, &*array.dictionary, &*schema.dictionary, expected) })
    });
    Spec {
        format: text(schema.format),
        name: text(schema.name),
        flags: schema.flags,
        metadata: match schema.metadata.is_null() {
            true => Vec::new(),
            // SAFETY: as long as the expected one, by its own lengths.
            false => unsafe {
                std::slice::from_raw_parts(schema.metadata.cast(), expected.metadata.len())
            }
            .to_vec(),
        },
        length: array.length as usize,
        offset: array.offset as usize,
        null_count: array.null_count,
        buffers,
        children,
        dictionary,
    }
}

/// Compares a column with what its producer has made.
pub(crate) fn assert_same(column: &ArrowColumn, spec: &Spec, on: dmr_core::StreamId) {
    assert_eq!(column.format().as_str(), spec.format);
    assert_eq!(column.name(), spec.name);
    assert_eq!(column.metadata(), spec.metadata);
    assert_eq!((column.len(), column.offset()), (spec.length, spec.offset));
    assert_eq!(column.buffers().len(), spec.buffers.len());
    for (found, expected) in column.buffers().iter().zip(&spec.buffers) {
        if let Some(found) = found {
            let expected = expected.as_ref().expect("a buffer");
            let found = found.view().unwrap().to_host(on).unwrap();
            assert_eq!(found[..], expected[..found.len()], "{spec:?}");
        } else if spec.length > 0 {
            assert!(expected.as_ref().is_none_or(Vec::is_empty), "{spec:?}");
        }
    }
    for (found, expected) in column.children().iter().zip(&spec.children) {
        assert_same(found, expected, on);
    }
    assert_eq!(column.dictionary().is_some(), spec.dictionary.is_some());
    if let (Some(found), Some(expected)) = (column.dictionary(), &spec.dictionary) {
        assert_same(found, expected, on);
    }
}

//! C10: columns of Arrow by handle: what is wrong is an error that changes nothing.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr;

use dmr_capi::*;

use crate::support::{Gpu, LEGACY, checked, last_error, raw};

/// The places of both structs, as a program in C has them.
struct Structs {
    array: MaybeUninit<dmr::dmr_arrow::ArrowDeviceArray>,
    schema: MaybeUninit<dmr::dmr_arrow::ArrowSchema>,
}

impl Structs {
    fn new() -> Self {
        Self {
            array: MaybeUninit::new(dmr::dmr_arrow::ArrowDeviceArray::released()),
            schema: MaybeUninit::new(dmr::dmr_arrow::ArrowSchema::released()),
        }
    }

    fn array(&mut self) -> *mut ArrowDeviceArray {
        self.array.as_mut_ptr().cast()
    }

    fn schema(&mut self) -> *mut ArrowSchema {
        self.schema.as_mut_ptr().cast()
    }

    /// Releases both, as a consumer does.
    fn release(mut self) {
        // SAFETY: both are of the library, or released.
        unsafe {
            drop(dmr::dmr_arrow::ArrowDeviceArray::take(self.array.as_mut_ptr()));
            drop(dmr::dmr_arrow::ArrowSchema::take(self.schema.as_mut_ptr()));
        }
    }
}

fn parts(format: *const c_char, length: u64, buffers: &[Address]) -> ColumnPartsOfC {
    ColumnPartsOfC {
        size: size_of::<ColumnPartsOfC>() as u32,
        version: DMR_COLUMN_PARTS_VERSION,
        format,
        name: c"x".as_ptr(),
        flags: 0,
        length,
        offset: 0,
        null_count: 0,
        buffers: buffers.as_ptr(),
        buffer_count: buffers.len() as u64,
        children: ptr::null(),
        child_count: 0,
        dictionary: ptr::null(),
    }
}

fn create(gpu: &Gpu, parts: &ColumnPartsOfC) -> Result<*mut ColumnHandle, Status> {
    let mut column = ptr::null_mut();
    // SAFETY: the parts are as they say.
    checked(unsafe { dmr_column_create(gpu.handle, parts, &mut column) }).map(|()| column)
}

#[test]
fn c10_pointers_and_handles_that_are_none_are_errors() {
    let gpu = Gpu::new();
    let mut structs = Structs::new();
    let mut column = ptr::null_mut::<ColumnHandle>();
    let array = structs.array();
    let schema = structs.schema();
    let no_array = ptr::null_mut::<ArrowDeviceArray>();
    let no_schema = ptr::null_mut::<ArrowSchema>();
    let unknown = ptr::without_provenance_mut::<ColumnHandle>(48);
    // SAFETY: null, or places of structs that are released.
    unsafe {
        let import = |array, schema, column| {
            checked(dmr_column_import(gpu.handle, array, schema, LEGACY, column))
        };
        assert_eq!(import(no_array, schema, &mut column), Err(Status::InvalidArgument));
        assert_eq!(import(array, no_schema, &mut column), Err(Status::InvalidArgument));
        assert_eq!(import(array, schema, ptr::null_mut()), Err(Status::InvalidArgument));
        assert_eq!(import(array, schema, &mut column), Err(Status::InvalidArgument));
        assert!(last_error().contains("ArrowSchema.release is null"), "{}", last_error());
        let export = |column, array, schema| {
            checked(dmr_column_export(gpu.handle, column, LEGACY, array, schema))
        };
        assert_eq!(export(unknown, array, schema), Err(Status::UnknownAddress));
        assert_eq!(export(unknown, no_array, schema), Err(Status::InvalidArgument));
        assert_eq!(export(unknown, array, no_schema), Err(Status::InvalidArgument));
        let refused = [
            dmr_column_wait(gpu.handle, unknown, LEGACY),
            dmr_column_record_read(gpu.handle, unknown, LEGACY),
            dmr_column_child(gpu.handle, unknown, 0, &mut column),
            dmr_column_destroy(gpu.handle, unknown),
            dmr_column_destroy(gpu.handle, ptr::null_mut()),
        ];
        assert_eq!(refused, [Status::UnknownAddress; 5]);
        let none = ptr::null_mut::<RuntimeHandle>();
        assert_eq!(dmr_column_destroy(none, unknown), Status::UnknownRuntime);
    }
    assert!(column.is_null());
    structs.release();
    gpu.end();
}

#[test]
fn c10_a_column_that_is_not_made_leaves_its_blocks() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let block = gpu.allocate(4096, raw(&stream)).unwrap();
    let values = [0, block];
    let twice = [block, block];
    let inside = [0, block + 256];
    let refused = [
        (parts(ptr::null(), 1, &values), Status::InvalidArgument),
        (parts(c"\xff".as_ptr(), 1, &values), Status::InvalidArgument),
        (parts(c"i".as_ptr(), 1025, &values), Status::InvalidArgument),
        (parts(c"i".as_ptr(), u64::MAX, &values), Status::InvalidArgument),
        (parts(c"i".as_ptr(), 1, &values[1..]), Status::InvalidArgument),
        (parts(c"i".as_ptr(), 1, &twice), Status::UnknownAddress),
        (parts(c"i".as_ptr(), 1, &inside), Status::UnknownAddress),
        (
            ColumnPartsOfC { buffers: ptr::null(), ..parts(c"i".as_ptr(), 1, &values) },
            Status::InvalidArgument,
        ),
        (
            ColumnPartsOfC { version: 9, ..parts(c"i".as_ptr(), 1, &values) },
            Status::InvalidArgument,
        ),
    ];
    for (parts, status) in refused {
        assert_eq!(create(&gpu, &parts), Err(status), "{}", last_error());
    }
    let column = create(&gpu, &parts(c"i".as_ptr(), 1024, &values)).unwrap();
    assert_eq!(gpu.free(block), Err(Status::UnknownAddress));
    let mut address = 0;
    // SAFETY: the numbers are there.
    unsafe {
        let buffer =
            |index, address| dmr_column_buffer(gpu.handle, column, index, address, ptr::null_mut());
        assert_eq!(buffer(1, &mut address), Status::Ok);
        assert_eq!(buffer(2, &mut address), Status::InvalidArgument);
        assert_eq!(buffer(1, ptr::null_mut()), Status::InvalidArgument);
    }
    assert_eq!(address, block);
    assert_eq!(gpu.usage().live, 4096);
    assert_eq!(dmr_column_destroy(gpu.handle, column), Status::Ok);
    assert_eq!(gpu.usage().live, 0);
    gpu.end();
    drop(stream);
}

#[test]
fn c10_a_runtime_that_is_destroyed_waits_for_no_column_but_for_exports() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let make = || {
        let block = gpu.allocate(64, raw(&stream)).unwrap();
        let values = [0, block];
        create(&gpu, &parts(c"C".as_ptr(), 64, &values)).unwrap()
    };
    let mut structs = Structs::new();
    let array = structs.array();
    let schema = structs.schema();
    // SAFETY: the places are of released structs.
    let exported = unsafe { dmr_column_export(gpu.handle, make(), raw(&stream), array, schema) };
    assert_eq!(exported, Status::Ok, "{}", last_error());
    let _left = make();
    assert_eq!(gpu.destroy(), Err(Status::Busy), "the array has memory of the runtime");
    structs.release();
    assert_eq!(gpu.usage().live, 0);
    gpu.end();
    drop(stream);
}

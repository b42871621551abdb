//! The exported functions for columns of Arrow. Their documentation is that of the header.

use std::ffi::{c_char, c_void};

use dmr::dmr_arrow::{ColumnParts, ExportedColumn};

use crate::columns::{ColumnInfo, utf8};
use crate::config;
use crate::entry::call_on;
use crate::functions::require;
use crate::status::Status;
use crate::streams::Handle;
use crate::versioned::{Versioned, read, write};
use crate::{Address, ArrowDeviceArray, ArrowSchema, ColumnHandle, RuntimeHandle};

/// The version of `dmr_column_parts`.
pub const DMR_COLUMN_PARTS_VERSION: u32 = 1;

/// The parts of a column that `dmr_column_create` makes of blocks. Set what you need, and the rest
/// to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColumnPartsOfC {
    /// `sizeof(dmr_column_parts)`, in the program.
    pub size: u32,
    /// `DMR_COLUMN_PARTS_VERSION`.
    pub version: u32,
    /// The type, as a format string of Arrow: `"i"` for `int32_t`, `"+s"` for a struct.
    pub format: *const c_char,
    /// The name, or null.
    pub name: *const c_char,
    /// The flags of Arrow's schema.
    pub flags: i64,
    /// The number of rows.
    pub length: u64,
    /// The rows in the buffers before the first one.
    pub offset: u64,
    /// The number of null rows; -1 if it is not known.
    pub null_count: i64,
    /// The addresses of blocks, as Arrow lists the buffers of the type, without the sizes of the
    /// data of binary views; 0 for absent ones.
    pub buffers: *const Address,
    /// The number of `buffers`.
    pub buffer_count: u64,
    /// The columns below, which may be used for others as well.
    pub children: *const *const ColumnHandle,
    /// The number of `children`.
    pub child_count: u64,
    /// The values, if the column has their indices; otherwise null.
    pub dictionary: *const ColumnHandle,
}

// SAFETY: as declared; without padding, because the 32-bit fields are two.
unsafe impl Versioned for ColumnPartsOfC {
    const NAME: &'static str = "dmr_column_parts";
    const VERSION: u32 = DMR_COLUMN_PARTS_VERSION;
    const FIRST_SIZE: usize = 96;
}

const _: () = assert!(size_of::<ColumnPartsOfC>() == 96);

/// Imports a column of another library by Arrow's C device interface, and writes its handle to
/// `column`. `stream` waits for the event of the array, and so does other work that
/// `dmr_column_wait` orders. The host waits for the event only if the type has values of variable
/// size.
///
/// Both structs are moved: they are marked as released, and the array's callback is called once,
/// when the handles of the column are destroyed and the device has done its recorded uses, by any
/// thread. An array that this runtime has exported shares its memory with the column, and is
/// released at once.
///
/// Errors: nothing has changed, and both structs are as they were. `DMR_STATUS_INVALID_ARGUMENT`
/// for a null pointer, and for a field with a value that it must not have: the text has its name
/// and the path to it; `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_STREAM_MISUSE`;
/// `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `array` and `schema` are null, or of structs that keep Arrow's specification, whose buffers have
/// the bytes that the type, the rows and the offsets say and are not written any more. `stream` is
/// null or a stream that was not destroyed. `column` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_import(
    runtime: *mut RuntimeHandle,
    array: *mut ArrowDeviceArray,
    schema: *mut ArrowSchema,
    stream: *mut c_void,
    column: *mut *mut ColumnHandle,
) -> Status {
    call_on(runtime, |runtime| {
        require(array, "array")?;
        require(schema, "schema")?;
        require(column, "column")?;
        // SAFETY: the caller's obligation.
        let imported =
            unsafe { runtime.import_column(array.cast(), schema.cast(), Handle::new(stream)) }?;
        // SAFETY: as above, and not null.
        unsafe { column.write(imported) };
        Ok(())
    })
}

/// Exports a column by Arrow's C device interface, and writes the structs to `array` and `schema`,
/// whose content is overwritten. The array has one event, behind all recorded uses of all buffers,
/// for which `stream` waits; the thread does not.
///
/// The memory stays until both the array is released and the handle is destroyed. The release may
/// be called on any thread, and waits for the device as `cudaFree` does.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// column of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer;
/// `DMR_STATUS_UNSUPPORTED` if the runtime records no uses; `DMR_STATUS_BUSY`;
/// `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`. The structs are
/// not written then.
///
/// # Safety
///
/// `array` and `schema` are null, or the addresses of structs that are released or not initialised.
/// `stream` is null or a stream that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_export(
    runtime: *mut RuntimeHandle,
    column: *const ColumnHandle,
    stream: *mut c_void,
    array: *mut ArrowDeviceArray,
    schema: *mut ArrowSchema,
) -> Status {
    call_on(runtime, |runtime| {
        require(array, "array")?;
        require(schema, "schema")?;
        let exported = runtime.export_column(column, Handle::new(stream))?;
        let ExportedColumn { array: from, schema: of, .. } = exported;
        // SAFETY: the caller's obligation.
        unsafe { from.give(array.cast()) };
        // SAFETY: as above.
        unsafe { of.give(schema.cast()) };
        Ok(())
    })
}

/// Makes a column of blocks, and writes its handle to `column`. The blocks are the column's from
/// then on: their addresses are unknown to other functions, and they are freed after the recorded
/// uses when the column and its exports are gone. What the buffers contain is not read: offsets and
/// indices are the program's word.
///
/// Record the work that has written the blocks before (`dmr_record_use`), unless it was submitted
/// to the stream of the allocation, which the export waits for.
///
/// Errors: nothing has changed. `DMR_STATUS_INVALID_ARGUMENT` for a null pointer, a struct of
/// another version, and parts that do not belong together, named by the text;
/// `DMR_STATUS_UNKNOWN_ADDRESS` for a buffer that is no live block, one that is named twice, and a
/// handle that is no column; `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `parts` is null, or of a `dmr_column_parts` of the size that it says, whose texts end with a NUL
/// and whose arrays have the elements that it says. `column` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_create(
    runtime: *mut RuntimeHandle,
    parts: *const ColumnPartsOfC,
    column: *mut *mut ColumnHandle,
) -> Status {
    call_on(runtime, |runtime| {
        require(column, "column")?;
        // SAFETY: the caller's obligation.
        let parts = unsafe { read(parts, "parts") }?;
        // SAFETY: as above.
        let format = utf8(unsafe { config::text(parts.format) }, "format")?;
        // SAFETY: as above.
        let name = utf8(Some(unsafe { config::text(parts.name) }.unwrap_or_default()), "name")?;
        // SAFETY: as above.
        let buffers = unsafe { elements(parts.buffers, parts.buffer_count, "buffers") }?;
        // SAFETY: as above.
        let children = unsafe { elements(parts.children, parts.child_count, "children") }?;
        let child = |handle: &*const ColumnHandle| runtime.columns().get(*handle);
        let children = children.iter().map(child).collect::<Result<_, _>>()?;
        let dictionary = match parts.dictionary.is_null() {
            true => None,
            false => Some(Box::new(runtime.columns().get(parts.dictionary)?)),
        };
        let rows = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let parts = ColumnParts {
            format: format.to_owned(),
            name: name.to_owned(),
            flags: parts.flags,
            length: rows(parts.length),
            offset: rows(parts.offset),
            null_count: usize::try_from(parts.null_count).ok(),
            buffers: Vec::new(),
            children,
            dictionary,
        };
        let made = runtime.create_column(parts, buffers)?;
        // SAFETY: as above, and not null.
        unsafe { column.write(made) };
        Ok(())
    })
}

/// Writes the type of a column, its rows, and the numbers of its parts to `info`, whose `size` and
/// `version` the program has set.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// column of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a struct of another
/// version; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `info` is null, or of a `dmr_column_info` of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_describe(
    runtime: *mut RuntimeHandle,
    column: *const ColumnHandle,
    info: *mut ColumnInfo,
) -> Status {
    call_on(runtime, |runtime| {
        let described = runtime.columns().info(column)?;
        // SAFETY: the caller's obligation.
        unsafe { write(info, described, "info") }
    })
}

/// Writes the address of a buffer of a column, which is only read, to `address`, 0 for an absent
/// one, and its size to `bytes`, unless that is null.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// column of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a number that no
/// buffer has; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `address` is null, or the address of an address; `bytes` is null, or the address of a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_buffer(
    runtime: *mut RuntimeHandle,
    column: *const ColumnHandle,
    index: usize,
    address: *mut Address,
    bytes: *mut u64,
) -> Status {
    call_on(runtime, |runtime| {
        require(address, "address")?;
        let buffer = runtime.columns().buffer(column, index)?;
        // SAFETY: the caller's obligation, and not null.
        unsafe { address.write(buffer.address) };
        // SAFETY: as above.
        unsafe { crate::functions::write_number(bytes, buffer.bytes as u64) };
        Ok(())
    })
}

/// Writes a handle of a column below another one to `child`: the dictionary, if `index` is the
/// number of children. It shares the memory, and is destroyed apart.
///
/// Errors: as `dmr_column_buffer`.
///
/// # Safety
///
/// `child` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_child(
    runtime: *mut RuntimeHandle,
    column: *const ColumnHandle,
    index: usize,
    child: *mut *mut ColumnHandle,
) -> Status {
    call_on(runtime, |runtime| {
        require(child, "child")?;
        let found = runtime.columns().child(column, index)?;
        // SAFETY: the caller's obligation, and not null.
        unsafe { child.write(found) };
        Ok(())
    })
}

/// Makes a stream wait for the work that reads of a column, and of all below it, must come after:
/// its producer's. Call it before you submit work that reads the column.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// column of the runtime; `DMR_STATUS_UNSUPPORTED` if the runtime records no uses;
/// `DMR_STATUS_STREAM_MISUSE`; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`;
/// `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `stream` is null or a stream that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_wait(
    runtime: *mut RuntimeHandle,
    column: *const ColumnHandle,
    stream: *mut c_void,
) -> Status {
    call_on(runtime, |runtime| runtime.read_column(column, Handle::new(stream), false))
}

/// Records that the work which was submitted to a stream so far reads a column, and all below it:
/// its memory is released after that work.
///
/// Errors: as `dmr_column_wait`.
///
/// # Safety
///
/// `stream` is null or a stream that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_column_record_read(
    runtime: *mut RuntimeHandle,
    column: *const ColumnHandle,
    stream: *mut c_void,
) -> Status {
    call_on(runtime, |runtime| runtime.read_column(column, Handle::new(stream), true))
}

/// Destroys a handle of a column. Its memory is freed, or its array released, after the recorded
/// uses, once no other handle and no export has it.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// column of the runtime; `DMR_STATUS_FORKED_PROCESS`.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_column_destroy(
    runtime: *mut RuntimeHandle,
    column: *mut ColumnHandle,
) -> Status {
    call_on(runtime, |runtime| runtime.columns().destroy(column))
}

/// # Safety
///
/// `from` is null, or has `count` elements.
unsafe fn elements<'a, T>(
    from: *const T,
    count: u64,
    argument: &str,
) -> crate::status::Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    require(from.cast_mut(), argument)?;
    // SAFETY: the caller's obligation.
    Ok(unsafe { std::slice::from_raw_parts(from, count as usize) })
}

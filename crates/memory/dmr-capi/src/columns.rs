//! Columns of Arrow, by handle.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmr::DeviceRuntime;
use dmr::dmr_arrow::{
    ArrowColumn, ArrowDeviceArray, ArrowSchema, ColumnImportError, ExportedColumn,
};
use dmr::dmr_core::StreamId;

use crate::runtime::recorder;
use crate::status::{Failure, Outcome, Status};
use crate::versioned::Versioned;
use crate::{Address, AddressMap, ColumnHandle};

/// The version of `dmr_column_info`.
pub const DMR_COLUMN_INFO_VERSION: u32 = 1;

/// A column: its type, its rows, and what it has. The texts are those of the column, and stay until
/// its handle is destroyed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColumnInfo {
    /// `sizeof(dmr_column_info)`, in the program.
    pub size: u32,
    /// `DMR_COLUMN_INFO_VERSION`.
    pub version: u32,
    /// The type, as a format string of Arrow.
    pub format: *const c_char,
    /// The name; empty for none.
    pub name: *const c_char,
    /// The flags of Arrow's schema.
    pub flags: i64,
    /// The number of rows.
    pub length: u64,
    /// The rows in the buffers before the first one.
    pub offset: u64,
    /// The number of null rows; -1 if it is not known.
    pub null_count: i64,
    /// The number of buffers, as Arrow lists them, without the sizes of the data of binary views.
    pub buffers: u64,
    /// The number of columns below.
    pub children: u64,
    /// 1 if the column has the indices of values in a dictionary, otherwise 0.
    pub has_dictionary: u64,
}

// SAFETY: as declared; without padding, because the 32-bit fields are two.
unsafe impl Versioned for ColumnInfo {
    const NAME: &'static str = "dmr_column_info";
    const VERSION: u32 = DMR_COLUMN_INFO_VERSION;
    const FIRST_SIZE: usize = 80;
}

const _: () = assert!(size_of::<ColumnInfo>() == 80);

/// The step between two handles, as for runtimes.
const STEP: usize = 16;

/// The columns of a runtime.
#[derive(Default)]
pub(crate) struct Columns {
    by_handle: AddressMap<usize, Arc<Known>>,
    last: AtomicUsize,
}

/// A column, with its texts as C has them.
pub(crate) struct Known {
    column: ArrowColumn,
    format: CString,
    name: CString,
}

/// A buffer of a column.
pub(crate) struct BufferAt {
    pub(crate) address: Address,
    pub(crate) bytes: usize,
}

impl Columns {
    /// Adds a column, and returns its handle.
    pub(crate) fn add(&self, column: ArrowColumn) -> *mut ColumnHandle {
        // Neither has a NUL: both come from C, or were checked when the column was made.
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let format = text(column.format().as_str());
        let name = text(column.name());
        let number = self.last.fetch_add(STEP, Ordering::Relaxed) + STEP;
        self.by_handle.insert(number, Arc::new(Known { column, format, name }));
        ptr::without_provenance_mut(number)
    }

    /// Imports a column of another library, whose structs are taken only if that succeeds.
    ///
    /// # Safety
    ///
    /// As [`ArrowColumn::import`], of the structs at these places.
    pub(crate) unsafe fn import(
        &self,
        gpu: &DeviceRuntime,
        stream: StreamId,
        array: *mut ArrowDeviceArray,
        schema: *mut ArrowSchema,
    ) -> Outcome<*mut ColumnHandle> {
        // SAFETY: the caller's obligation.
        let taken = unsafe { ArrowDeviceArray::take(array) };
        // SAFETY: as above.
        let of = unsafe { ArrowSchema::take(schema) };
        // SAFETY: as above.
        match unsafe { ArrowColumn::import(gpu, stream, taken, of) } {
            Ok(column) => Ok(self.add(column)),
            Err(refused) => {
                let ColumnImportError { error, array: back, schema: of, .. } = *refused;
                // SAFETY: both places are marked as released.
                unsafe { back.give(array) };
                // SAFETY: as above.
                unsafe { of.give(schema) };
                Err(error.into())
            }
        }
    }

    /// Exports a column.
    pub(crate) fn export(
        &self,
        gpu: &DeviceRuntime,
        column: *const ColumnHandle,
        stream: StreamId,
    ) -> Outcome<ExportedColumn> {
        Ok(self.find(column)?.column.export(gpu, stream)?)
    }

    pub(crate) fn get(&self, column: *const ColumnHandle) -> Outcome<ArrowColumn> {
        Ok(self.find(column)?.column.clone())
    }

    /// Returns what a column is.
    pub(crate) fn info(&self, column: *const ColumnHandle) -> Outcome<ColumnInfo> {
        let known = self.find(column)?;
        let column = &known.column;
        let count = column.null_count().map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        Ok(ColumnInfo {
            // The handle keeps both texts.
            format: known.format.as_ptr(),
            name: known.name.as_ptr(),
            flags: column.flags(),
            length: column.len() as u64,
            offset: column.offset() as u64,
            null_count: count.unwrap_or(-1),
            buffers: column.buffers().len() as u64,
            children: column.children().len() as u64,
            has_dictionary: u64::from(column.dictionary().is_some()),
            ..ColumnInfo::zeroed(0)
        })
    }

    /// Returns a buffer; at address 0 if it is absent.
    pub(crate) fn buffer(&self, column: *const ColumnHandle, index: usize) -> Outcome<BufferAt> {
        let known = self.find(column)?;
        let buffers = known.column.buffers();
        let buffer = buffers.get(index).ok_or_else(|| no_part("buffers", index, buffers.len()))?;
        let buffer = buffer.as_ref();
        Ok(BufferAt {
            address: buffer.map_or(0, |it| it.device_ptr()),
            bytes: buffer.map_or(0, |it| it.size_in_bytes()),
        })
    }

    /// Adds a column below another one, and returns its handle. Behind the last child is the
    /// dictionary.
    pub(crate) fn child(
        &self,
        column: *const ColumnHandle,
        index: usize,
    ) -> Outcome<*mut ColumnHandle> {
        let known = self.find(column)?;
        let children = known.column.children();
        let child = match index.checked_sub(children.len()) {
            Some(0) => known.column.dictionary(),
            Some(_) => None,
            None => Some(&children[index]),
        };
        let child = child.ok_or_else(|| no_part("children", index, children.len()))?;
        Ok(self.add(child.clone()))
    }

    /// Makes a stream wait for the work that reads of the column must come after, or records that
    /// the work of the stream so far reads it.
    pub(crate) fn read(
        &self,
        gpu: &DeviceRuntime,
        column: *const ColumnHandle,
        stream: StreamId,
        records: bool,
    ) -> Outcome<()> {
        let known = self.find(column)?;
        let mut launch = recorder(stream);
        known.column.record_reads(&mut launch);
        let prepared = launch.prepare(gpu)?;
        match records {
            true => Ok(prepared.finish()?),
            false => Ok(prepared.cancel()?),
        }
    }

    /// Destroys a handle. The memory of the column is released after its recorded uses.
    pub(crate) fn destroy(&self, column: *const ColumnHandle) -> Outcome<()> {
        let removed = self.by_handle.remove(&column.addr());
        removed.map(drop).ok_or_else(|| unknown(column))
    }

    pub(crate) fn destroy_all(&self) {
        let handles: Vec<usize> = self.by_handle.iter().map(|known| *known.key()).collect();
        for handle in handles {
            drop(self.by_handle.remove(&handle));
        }
    }

    fn find(&self, column: *const ColumnHandle) -> Outcome<Arc<Known>> {
        let known = self.by_handle.get(&column.addr()).map(|known| Arc::clone(&known));
        known.ok_or_else(|| unknown(column))
    }
}

/// Returns a text of a program.
pub(crate) fn utf8<'a>(text: Option<&'a CStr>, argument: &str) -> Outcome<&'a str> {
    let Some(text) = text else { return Err(Failure::null(argument)) };
    text.to_str().map_err(|_| {
        Failure::new(Status::InvalidArgument, format!("`{argument}` is no UTF-8 text"))
    })
}

fn no_part(of: &str, index: usize, count: usize) -> Failure {
    let text = format!("the column has {count} {of}, and none of the number {index}");
    Failure::new(Status::InvalidArgument, text)
}

fn unknown(column: *const ColumnHandle) -> Failure {
    let text = format!(
        "{column:p} is no column of this runtime: it was destroyed, or is no handle of a column"
    );
    Failure::new(Status::UnknownAddress, text)
}

//! Export: a column becomes structs that another library reads and releases.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use dmr_buffer::PinnedBuffer;
use dmr_core::{ResourceError, StreamId, panics};
use dmr_launch::LaunchRecorder;
use dmr_streams::event::DriverEvent;
use dmr_streams::{DeviceContext, StreamGuard, StreamPool, TrackedMemory};

use crate::abi::{ARROW_DEVICE_CUDA, ArrowArray, ArrowDeviceArray, ArrowSchema};
use crate::column::Head;
use crate::error::Path;
use crate::format::Layout;
use crate::returned::Returned;
use crate::{ArrowColumn, ColumnBuffer, ColumnError};

/// The time that an export waits for launches that use the buffers.
const PATIENCE: Duration = Duration::from_secs(1);

/// The structs of an exported column. Dropping them releases them.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedColumn {
    /// The buffers, and the event behind which they can be read.
    pub array: ArrowDeviceArray,
    /// The type.
    pub schema: ArrowSchema,
}

impl ArrowColumn {
    /// Exports the column, whose buffers are kept until the array is released. Does not wait.
    ///
    /// The array has one event for all buffers of the tree. It is recorded on `stream`, which waits
    /// for all recorded uses of all buffers first; it was recorded when this returns, and is
    /// destroyed with the last struct of the array. A column without buffers has no event.
    ///
    /// # Release
    ///
    /// On any thread, with any context current or none, which stays so. Children may be moved out
    /// of the array and released apart, as the specification allows. The specification does not say
    /// that a consumer has waited for its work when it releases an array, and frees the memory with
    /// `cudaFree` in its example. So this does what `cudaFree` does: it waits for the device. While
    /// a stream of the pool captures a graph, that would end the capture: then, and if the wait
    /// fails, the buffers stay until a later release or export has waited. On a lost device they
    /// are dropped at once, and in a forked child never.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ColumnError::Invalid) for buffers of different device types, which one array
    /// cannot have; [`Launch`](ColumnError::Launch) if `stream` captures a graph, if a prepared
    /// launch that uses a buffer is not finished in a second, and if the context does not track
    /// uses; [`Resource`](ColumnError::Resource); [`Buffer`](ColumnError::Buffer).
    pub fn export<C: DeviceContext + ?Sized>(
        &self,
        context: &C,
        stream: impl Into<StreamId>,
    ) -> Result<ExportedColumn, ColumnError> {
        let stream = stream.into();
        Returned::free_waiting(context.streams());
        let device_type = self.device_type()?;
        let sizes = self.pinned_sizes(context, stream)?;
        let schema = schema_of(self)?;
        let event = self.event(context, stream)?;
        let sync_event = event.as_ref().map_or(ptr::null_mut(), |event| event.address());
        let mut sizes = sizes.into_iter();
        let array = array_of(self, &mut sizes, context.streams(), event.as_ref());
        let device_id = context.streams().device().ordinal() as i64;
        let array =
            ArrowDeviceArray { array, device_id, device_type, sync_event, reserved: [0; 3] };
        Ok(ExportedColumn { array, schema })
    }

    fn device_type(&self) -> Result<i32, ColumnError> {
        let mut first = None;
        let mut is_mixed = false;
        self.each_buffer(&mut |buffer| {
            is_mixed |= *first.get_or_insert(buffer.device_type) != buffer.device_type;
        });
        match is_mixed {
            true => {
                let problem = "are in memory of different kinds: copy them to the device";
                Err(Path::Root.invalid("ArrowColumn", "buffers", problem))
            }
            false => Ok(first.unwrap_or(ARROW_DEVICE_CUDA)),
        }
    }

    /// Records the event behind all uses of all buffers; `None` without buffers.
    fn event<C: DeviceContext + ?Sized>(
        &self,
        context: &C,
        stream: StreamId,
    ) -> Result<Option<Arc<ExportEvent>>, ColumnError> {
        let mut views = Vec::new();
        let mut failed = None;
        self.each_buffer(&mut |buffer| match buffer.view() {
            Ok(view) => views.push(view),
            Err(error) => failed = Some(error),
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        if views.is_empty() {
            return Ok(None);
        }
        let event = ExportEvent::new(context.streams())?;
        let mut launch = LaunchRecorder::new_strict(stream).with_timeout(PATIENCE);
        for view in &mut views {
            // Of all uses, also of reads: a consumer may write all the same.
            launch.read_write(view);
        }
        launch.launch(context, |stream| event.record(stream))?;
        Ok(Some(Arc::new(event)))
    }

    /// Makes the sizes of the data of each column of binary views, in the order of the tree: in
    /// page-locked memory, because some consumers read them on the device and some on the host.
    fn pinned_sizes<C: DeviceContext + ?Sized>(
        &self,
        context: &C,
        stream: StreamId,
    ) -> Result<Vec<PinnedBuffer<i64>>, ColumnError> {
        let mut made = Vec::new();
        if *self.head.format.layout() == Layout::BinaryView {
            let bytes =
                |it: &Option<ColumnBuffer>| it.as_ref().map_or(0, |it| it.size_in_bytes() as i64);
            let mut sizes: Vec<i64> = self.buffers.iter().skip(2).map(bytes).collect();
            // Not null without data.
            if sizes.is_empty() {
                sizes.push(0);
            }
            made.push(PinnedBuffer::from_slice(context, stream, &sizes)?);
        }
        for below in self.children.iter().chain(self.dictionary.as_deref()) {
            made.extend(below.pinned_sizes(context, stream)?);
        }
        Ok(made)
    }
}

/// The event of an export, and its handle at an address that stays.
pub(crate) struct ExportEvent {
    handle: *mut c_void,
    event: DriverEvent,
}

// SAFETY: the handle is the event's, which is both.
unsafe impl Send for ExportEvent {}
// SAFETY: as above.
unsafe impl Sync for ExportEvent {}

impl ExportEvent {
    fn new(streams: &StreamPool) -> Result<Self, ResourceError> {
        let event = DriverEvent::new(streams.device())?;
        Ok(Self { handle: event.as_raw(), event })
    }

    fn record(&self, stream: &StreamGuard<'_>) -> Result<(), ResourceError> {
        stream
            .record_event(&self.event)
            .map_err(|error| stream.device().driver_error("cuEventRecord", error))?;
        // A capture that has begun meanwhile would have the event.
        stream.refuse_capture()
    }

    /// Returns the address of the handle, which is that of a `cudaEvent_t`.
    fn address(&self) -> *mut c_void {
        (&raw const self.handle).cast_mut().cast()
    }
}

/// The data of an exported array: of each column of the tree, so that each can be released
/// apart.
struct ExportedArray {
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
    kept: Returned,
}

fn array_of(
    column: &ArrowColumn,
    sizes: &mut std::vec::IntoIter<PinnedBuffer<i64>>,
    streams: &Arc<StreamPool>,
    event: Option<&Arc<ExportEvent>>,
) -> ArrowArray {
    let own = match column.head.format.layout() {
        Layout::BinaryView => sizes.next(),
        _ => None,
    };
    let address = |ptr: u64| ptr::with_exposed_provenance::<c_void>(ptr as usize);
    let buffer =
        |it: &Option<ColumnBuffer>| address(it.as_ref().map_or(0, ColumnBuffer::device_ptr));
    let mut buffers: Vec<_> = column.buffers.iter().map(buffer).collect();
    buffers.extend(own.iter().map(|sizes| address(sizes.device_ptr())));
    let mut boxed = |column: &ArrowColumn| {
        Box::into_raw(Box::new(array_of(column, &mut *sizes, streams, event)))
    };
    let children = column.children.iter().map(&mut boxed).collect();
    let dictionary = column.dictionary.as_deref().map_or(ptr::null_mut(), boxed);
    let kept = Returned::new(
        streams,
        column.buffers.iter().flatten().cloned().collect(),
        own,
        event.map(Arc::clone),
    );
    let rows = column.rows;
    let null_count = match column.head.format.layout() {
        Layout::Null => Some(rows.length),
        _ => rows.null_count,
    };
    let mut exported = Box::new(ExportedArray { buffers, children, dictionary, kept });
    ArrowArray {
        length: rows.length as i64,
        null_count: null_count.map_or(-1, |count| count as i64),
        offset: rows.offset as i64,
        n_buffers: exported.buffers.len() as i64,
        n_children: exported.children.len() as i64,
        buffers: exported.buffers.as_mut_ptr(),
        children: exported.children.as_mut_ptr(),
        dictionary: exported.dictionary,
        release: Some(release_array),
        private_data: Box::into_raw(exported).cast(),
    }
}

/// Releases an exported array, with the children that were not moved out.
///
/// # Safety
///
/// The array was exported here, and is not released.
unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // Nothing unwinds into another library.
    let _ = panics::catch(|| {
        let mut returned = Vec::new();
        // SAFETY: the caller's obligation.
        unsafe { collect(array, &mut returned) };
        Returned::free(returned);
    });
}

/// Returns the buffers of an array and of those below it, if it was exported here by a context of
/// these streams: they are tracked already, and are not adopted a second time.
///
/// # Safety
///
/// The array keeps the protocol, and is not released.
pub(crate) unsafe fn own_buffers(
    array: &ArrowArray,
    streams: &Arc<StreamPool>,
) -> Option<Vec<ColumnBuffer>> {
    type Release = unsafe extern "C" fn(*mut ArrowArray);
    if !array.release.is_some_and(|release| ptr::fn_addr_eq(release, release_array as Release)) {
        return None;
    }
    // SAFETY: made by `array_of`; the consumer does not change it.
    let exported = unsafe { &*array.private_data.cast::<ExportedArray>() };
    let mut buffers = exported.kept.buffers_of(streams)?.to_vec();
    let dictionary = (!exported.dictionary.is_null()).then_some(exported.dictionary);
    for below in exported.children.iter().copied().chain(dictionary) {
        // SAFETY: as above.
        let below = unsafe { &*below };
        if !below.is_released() {
            // SAFETY: as above.
            buffers.extend(unsafe { own_buffers(below, streams) }?);
        }
    }
    Some(buffers)
}

/// Marks an array as released, and takes what it has kept.
///
/// # Safety
///
/// As [`release_array`].
unsafe fn collect(array: *mut ArrowArray, returned: &mut Vec<Returned>) {
    // SAFETY: the caller's obligation.
    let array = unsafe { &mut *array };
    array.release = None;
    let private = std::mem::replace(&mut array.private_data, ptr::null_mut());
    // SAFETY: made by `array_of`, and taken once.
    let exported = unsafe { Box::from_raw(private.cast::<ExportedArray>()) };
    let ExportedArray { children, dictionary, kept, .. } = *exported;
    returned.push(kept);
    for below in children.into_iter().chain((!dictionary.is_null()).then_some(dictionary)) {
        // SAFETY: made by `array_of`; the consumer does not free it.
        let mut below = unsafe { Box::from_raw(below) };
        // One that was moved out is marked as released, and released apart.
        if !below.is_released() {
            // SAFETY: as for the array.
            unsafe { collect(&mut *below, returned) };
        }
    }
}

/// The data of an exported schema.
struct ExportedSchema {
    _format: CString,
    _name: CString,
    _metadata: Vec<u8>,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

impl ArrowColumn {
    /// Exports the type of the column.
    ///
    /// # Errors
    ///
    /// None, for a column whose texts have no NUL, which those of this crate have not.
    pub fn export_schema(&self) -> Result<ArrowSchema, ColumnError> {
        schema_of(self)
    }
}

fn schema_of(column: &ArrowColumn) -> Result<ArrowSchema, ColumnError> {
    let Head { format, name, flags, metadata } = &column.head;
    let text = |text: &str| {
        let problem = "has a NUL, which a text in C cannot have";
        CString::new(text).map_err(|_| Path::Root.invalid("ArrowColumn", "name", problem))
    };
    let format = text(format.as_str())?;
    let name = text(name)?;
    let below: Vec<ArrowSchema> =
        column.children.iter().map(schema_of).collect::<Result<_, _>>()?;
    let dictionary = column.dictionary.as_deref().map(schema_of).transpose()?;
    let boxed = |schema: ArrowSchema| Box::into_raw(Box::new(schema));
    let metadata = metadata.clone();
    let mut exported = Box::new(ExportedSchema {
        children: below.into_iter().map(boxed).collect(),
        dictionary: dictionary.map_or(ptr::null_mut(), boxed),
        _format: format,
        _name: name,
        _metadata: metadata,
    });
    let metadata = &exported._metadata;
    let metadata: *const c_char =
        if metadata.is_empty() { ptr::null() } else { metadata.as_ptr().cast() };
    Ok(ArrowSchema {
        format: exported._format.as_ptr(),
        name: exported._name.as_ptr(),
        metadata,
        flags: *flags,
        n_children: exported.children.len() as i64,
        children: exported.children.as_mut_ptr(),
        dictionary: exported.dictionary,
        release: Some(release_schema),
        private_data: Box::into_raw(exported).cast(),
    })
}

/// Releases an exported schema, with the children that were not moved out.
///
/// # Safety
///
/// The schema was exported here, and is not released.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the caller's obligation.
    let schema = unsafe { &mut *schema };
    schema.release = None;
    let private = std::mem::replace(&mut schema.private_data, ptr::null_mut());
    // SAFETY: made by `schema_of`, and taken once.
    let exported = unsafe { Box::from_raw(private.cast::<ExportedSchema>()) };
    let dictionary = (!exported.dictionary.is_null()).then_some(exported.dictionary);
    for below in exported.children.iter().copied().chain(dictionary) {
        // SAFETY: made by `schema_of`. Its drop releases it, unless it was moved out.
        drop(unsafe { Box::from_raw(below) });
    }
}

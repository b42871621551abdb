//! Import: the structs of another library become a column whose memory is adopted.

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUpointer_attribute};
use dmr_buffer::{AdoptedColumn, AllowedAccess, Column};
use dmr_core::sync::lock;
use dmr_core::{AllocTag, ResourceError, StreamId};
use dmr_external::{ForeignBlocks, ForeignMemory, Ready};
use dmr_streams::DeviceContext;

use crate::abi::{ARROW_DEVICE_CUDA, ARROW_DEVICE_CUDA_HOST, ARROW_DEVICE_CUDA_MANAGED};
use crate::error::Path;
use crate::export::own_buffers;
use crate::format::Offsets;
use crate::plan::{ARRAY, Limits, Plan, PlannedBuffer, SCHEMA};
use crate::shape::Need;
use crate::{
    ArrowColumn, ArrowDeviceArray, ArrowSchema, ColumnBuffer, ColumnError, ColumnImportError,
};

const DEVICE_ARRAY: &str = "ArrowDeviceArray";
const TAG: AllocTag = AllocTag::new("arrow");

impl ArrowColumn {
    /// Imports a column of another library, and adopts its buffers as blocks whose home stream is
    /// `stream`. The next work on `stream` comes after the array's event, and uses on other streams
    /// come after that, too. The array is released once, when the column and its clones are dropped
    /// and the device has completed the last recorded use, as
    /// [`ForeignBlocks`] does it.
    ///
    /// Waits for the event only if the type has values of variable size (binary, text, and their
    /// views), whose sizes are in device memory: then small copies on `stream` read them, and the
    /// host waits for these.
    ///
    /// The column is not to be written, by this program or another.
    ///
    /// An array that was exported here, by a context of the same streams, has buffers that are
    /// tracked: the column shares them, nothing is adopted, and the array is released at once.
    ///
    /// # Errors
    ///
    /// Both structs are in the error, as they were; `stream` may have been made to wait.
    /// [`Invalid`](ColumnError::Invalid) with the path of the field: each that can be checked is,
    /// before anything is adopted. Texts may have 16 MiB, a tree 65,536 columns and buffers and a
    /// depth of 64. [`Resource`](ColumnError::Resource) as for
    /// [`ForeignBlocks::adopt`]: another device, a stream that captures a graph.
    ///
    /// # Safety
    ///
    /// - Both structs keep the protocol that [`ArrowDeviceArray::take`] requires.
    /// - Their pointers are null or of what the specification says, and the event is one of the
    ///   driver or the CUDA runtime.
    /// - The buffers have the bytes that the length, the offset and their content say, which are
    ///   not written after the event, until the array is released.
    pub unsafe fn import<C: DeviceContext + ?Sized>(
        context: &C,
        stream: impl Into<StreamId>,
        array: ArrowDeviceArray,
        schema: ArrowSchema,
    ) -> Result<Self, Box<ColumnImportError>> {
        // SAFETY: the caller's obligation.
        let planned = unsafe { checked(context, &array, &schema) };
        let plan = match planned {
            Ok(plan) => plan,
            Err(error) => return Err(Box::new(ColumnImportError { error, array, schema })),
        };
        let device_type = array.device_type;
        // SAFETY: the caller's obligation; it is not released.
        let own = unsafe { own_buffers(&array.array, context.streams()) };
        if let Some(own) = own.filter(|own| plan.is_of(own)) {
            let share = |ptr, _| own.iter().find(|it| it.device_ptr() == ptr).cloned();
            return Ok(column_of(plan, &share));
        }
        // SAFETY: the caller's obligation.
        let ready = unsafe { event_of(&array) };
        let lease = Arc::new(Lease(Mutex::new(Some(array))));
        let foreign = ForeignBlocks::of(context);
        let mut adoption = Adoption { foreign, home: stream.into(), ready, lease: &lease };
        // SAFETY: the caller's obligation; the plan is of this array.
        match unsafe { adoption.adopt(plan, device_type) } {
            Ok(column) => Ok(column),
            Err(error) => {
                // A block that was adopted already releases nothing then.
                let array = lock(&lease.0).take().unwrap_or(ArrowDeviceArray::released());
                Err(Box::new(ColumnImportError { error, array, schema }))
            }
        }
    }
}

/// An imported array, which the adopted blocks share.
struct Lease(Mutex<Option<ArrowDeviceArray>>);

/// Reads both structs, and checks what can be.
///
/// # Safety
///
/// As [`ArrowColumn::import`].
unsafe fn checked<C: DeviceContext + ?Sized>(
    context: &C,
    array: &ArrowDeviceArray,
    schema: &ArrowSchema,
) -> Result<Plan, ColumnError> {
    context.streams().device().check()?;
    let invalid = |field, problem| Err(Path::Root.invalid(DEVICE_ARRAY, field, problem));
    if schema.is_released() {
        let problem = "is null: the struct is released, or was moved out";
        return Err(Path::Root.invalid(SCHEMA, "release", problem));
    }
    if array.is_released() {
        let problem = "is null: the struct is released, or was moved out";
        return Err(Path::Root.invalid(ARRAY, "release", problem));
    }
    let ordinal = context.streams().device().ordinal();
    let is_device = i64::try_from(ordinal).is_ok_and(|it| it == array.device_id);
    match array.device_type {
        ARROW_DEVICE_CUDA if is_device => {}
        // Memory of the host may have no device.
        ARROW_DEVICE_CUDA_HOST | ARROW_DEVICE_CUDA_MANAGED
            if is_device || array.device_id == -1 => {}
        ARROW_DEVICE_CUDA | ARROW_DEVICE_CUDA_HOST | ARROW_DEVICE_CUDA_MANAGED => {
            let problem = format!(
                "is {}: it must be {ordinal}, the device of the streams; copy the column there",
                array.device_id
            );
            return invalid("device_id", problem);
        }
        other => {
            let problem = format!(
                "is {other}: it must be 2 (CUDA), 3 (page-locked) or 13 (managed); copy the column \
                 to the device"
            );
            return invalid("device_type", problem);
        }
    }
    if array.reserved != [0; 3] {
        let problem = "is not zero: the struct is of a later version".to_owned();
        return invalid("reserved", problem);
    }
    // SAFETY: the caller's obligation; neither is released.
    let has_null = !array.sync_event.is_null() && unsafe { event_of(array) } == Ready::Done;
    if has_null {
        let problem = "is the address of a null event: it must be null, or of an event".to_owned();
        return invalid("sync_event", problem);
    }
    // SAFETY: as above.
    unsafe { Plan::read(schema, &array.array, &Path::Root, &mut Limits::default()) }
}

/// Returns the event of an array.
///
/// # Safety
///
/// The array has none, or the address of one.
unsafe fn event_of(array: &ArrowDeviceArray) -> Ready {
    if array.sync_event.is_null() {
        return Ready::Done;
    }
    // SAFETY: the caller's obligation.
    let event = unsafe { array.sync_event.cast::<*mut c_void>().read_unaligned() };
    if event.is_null() { Ready::Done } else { Ready::Event(event) }
}

/// The adoption of one array.
struct Adoption<'l> {
    foreign: ForeignBlocks,
    home: StreamId,
    /// Done once the home stream waits for it.
    ready: Ready,
    lease: &'l Arc<Lease>,
}

/// Memory of buffers that overlap, adopted as one block.
struct Span {
    start: u64,
    end: u64,
    memory: Option<Arc<Column<u8>>>,
}

impl Adoption<'_> {
    /// # Safety
    ///
    /// As [`ArrowColumn::import`]; the plan is of its array.
    unsafe fn adopt(
        &mut self,
        mut plan: Plan,
        device_type: i32,
    ) -> Result<ArrowColumn, ColumnError> {
        // SAFETY: the caller's obligation.
        unsafe { self.read_sizes(&mut plan, &Path::Root) }?;
        let mut spans = spans_of(&plan)?;
        for span in &mut spans {
            let bytes = (span.end - span.start) as usize;
            // SAFETY: the caller's obligation; no other span has these bytes.
            let adopted = unsafe { self.buffer(span.start, bytes, Arc::clone(self.lease)) };
            span.memory = Some(Arc::new(adopted.map_err(|error| about(error, &plan, span.start))?));
        }
        Ok(column_of(plan, &|ptr, bytes| {
            let after = spans.partition_point(|span| span.start <= ptr);
            let span = spans.get(after.checked_sub(1)?).filter(|_| bytes > 0)?;
            let memory = Arc::clone(span.memory.as_ref()?);
            Some(ColumnBuffer::new(memory, (ptr - span.start) as usize, bytes, device_type))
        }))
    }

    /// # Safety
    ///
    /// The bytes are there until the owner is dropped.
    unsafe fn buffer(
        &mut self,
        ptr: u64,
        bytes: usize,
        owner: impl Any + Send,
    ) -> Result<Column<u8>, ResourceError> {
        let memory = ForeignMemory::new(ptr, bytes, owner);
        let access = AllowedAccess::ReadOnly;
        let Self { foreign, home, ready, .. } = self;
        // SAFETY: the caller's obligation.
        let adopted = unsafe { AdoptedColumn::adopt(foreign, *home, memory, *ready, access, TAG) };
        let column = adopted.map_err(|refused| refused.error)?;
        self.ready = Ready::Done;
        Ok(column.into())
    }

    /// Reads the sizes of buffers that are in device memory.
    ///
    /// # Safety
    ///
    /// As [`adopt`](Self::adopt).
    unsafe fn read_sizes(&mut self, plan: &mut Plan, path: &Path<'_>) -> Result<(), ColumnError> {
        for index in 0..plan.buffers.len() {
            let Need::LastOffset { offsets, index: last } = plan.buffers[index].need else {
                continue;
            };
            let at = plan.buffers[index - 1].ptr + (last * offsets.bytes()) as u64;
            // SAFETY: the caller's obligation: the offsets have this one.
            let bytes = unsafe { self.read(at, offsets.bytes()) }?;
            let size = size_of_offset(offsets, &bytes);
            plan.buffers[index].need = checked_size(plan, index, size, path)?;
        }
        let variadic = plan.buffers.iter().filter(|it| it.need == Need::Variadic).count();
        if variadic > 0 {
            // SAFETY: the caller's obligation: each of these buffers has a size.
            let bytes = unsafe { self.read_anywhere(plan.sizes, 8 * variadic) }?;
            let is_empty = plan.rows.length == 0;
            for (nth, size) in bytes.chunks_exact(8).enumerate() {
                let size = if is_empty { 0 } else { size_of_offset(Offsets::Int64, size) };
                plan.buffers[2 + nth].need = checked_size(plan, 2 + nth, size, path)?;
            }
        }
        for (index, child) in plan.children.iter_mut().enumerate() {
            // SAFETY: as above.
            unsafe { self.read_sizes(child, &Path::Child { of: path, index }) }?;
        }
        match &mut plan.dictionary {
            // SAFETY: as above.
            Some(it) => unsafe { self.read_sizes(it, &Path::Dictionary { of: path }) },
            None => Ok(()),
        }
    }

    /// Copies bytes to the host, in the order of the home stream.
    ///
    /// # Safety
    ///
    /// They are there.
    unsafe fn read(&mut self, ptr: u64, bytes: usize) -> Result<Vec<u8>, ColumnError> {
        // SAFETY: the caller's obligation. The use is over when this returns.
        Ok(unsafe { self.buffer(ptr, bytes, ()) }?.to_host(self.home)?)
    }

    /// Copies bytes of the device, or of the host: the specification says the device, and cudf and
    /// Arrow C++ have them in ordinary memory.
    ///
    /// # Safety
    ///
    /// They are there.
    unsafe fn read_anywhere(&mut self, ptr: u64, bytes: usize) -> Result<Vec<u8>, ColumnError> {
        let device = self.foreign.streams().device();
        device.bind()?;
        let mut memory_type: u32 = 0;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: the driver writes one number, and only looks the address up.
        let looked =
            unsafe { sys::cuPointerGetAttribute((&raw mut memory_type).cast(), attribute, ptr) };
        if looked == sys::CUresult::CUDA_SUCCESS && memory_type != 0 {
            // SAFETY: the caller's obligation.
            return unsafe { self.read(ptr, bytes) };
        }
        let from = std::ptr::with_exposed_provenance::<u8>(ptr as usize);
        // SAFETY: the caller's obligation: the driver has no such memory, so it is the host's.
        Ok(unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec())
    }
}

fn size_of_offset(offsets: Offsets, bytes: &[u8]) -> i64 {
    match (offsets, bytes) {
        (Offsets::Int32, &[a, b, c, d]) => i64::from(i32::from_ne_bytes([a, b, c, d])),
        (_, bytes) => bytes.try_into().map_or(-1, i64::from_ne_bytes),
    }
}

/// Returns what a buffer needs that has `size` bytes.
fn checked_size(
    plan: &Plan,
    index: usize,
    size: i64,
    path: &Path<'_>,
) -> Result<Need, ColumnError> {
    let ptr = plan.buffers[index].ptr;
    let bytes = usize::try_from(size).ok().filter(|bytes| ptr.checked_add(*bytes as u64).is_some());
    let field = format_args!("buffers[{index}]").to_string();
    match bytes {
        Some(1..) if ptr == 0 => {
            Err(path.invalid(ARRAY, field, format_args!("is null: it must have {size} bytes")))
        }
        Some(bytes) => Ok(Need::Bytes(bytes)),
        None => Err(path.invalid(
            ARRAY,
            field,
            format_args!("has {size} bytes, as its offsets or sizes say: it cannot"),
        )),
    }
}

/// Returns the memory of all buffers: those that overlap are one span.
fn spans_of(plan: &Plan) -> Result<Vec<Span>, ColumnError> {
    let mut spans: Vec<Span> = Vec::new();
    plan.walk(&Path::Root, &mut |plan, _| {
        let buffers = plan.buffers.iter().filter(|it| it.ptr != 0 && it.bytes() > 0);
        spans.extend(buffers.map(|it| Span {
            start: it.ptr,
            end: it.ptr + it.bytes() as u64,
            memory: None,
        }));
        Ok::<(), ColumnError>(())
    })?;
    spans.sort_by_key(|span| span.start);
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    Ok(merged)
}

/// Names the buffer whose memory could not be adopted.
fn about(error: ResourceError, plan: &Plan, start: u64) -> ColumnError {
    if !matches!(error, ResourceError::NotAdopted { .. }) {
        return error.into();
    }
    let named = plan.walk(&Path::Root, &mut |plan, path| match plan
        .buffers
        .iter()
        .position(|it| it.ptr == start && it.bytes() > 0)
    {
        Some(index) => Err(path.invalid(ARRAY, format_args!("buffers[{index}]"), &error)),
        None => Ok(()),
    });
    named.err().unwrap_or_else(|| error.into())
}

impl Plan {
    /// Returns whether each buffer is one of these.
    fn is_of(&self, own: &[ColumnBuffer]) -> bool {
        let is_own = |it: &PlannedBuffer| {
            let is_it = |own: &ColumnBuffer| {
                own.device_ptr() == it.ptr && own.size_in_bytes() >= it.bytes()
            };
            it.ptr == 0 || own.iter().any(is_it)
        };
        let all = self.walk(&Path::Root, &mut |plan, _| {
            if plan.buffers.iter().all(is_own) { Ok(()) } else { Err(()) }
        });
        all.is_ok()
    }
}

/// Makes a column whose buffers `memory_of` returns, by their addresses and sizes.
fn column_of(plan: Plan, memory_of: &impl Fn(u64, usize) -> Option<ColumnBuffer>) -> ArrowColumn {
    let memory = |it: &PlannedBuffer| match it.ptr {
        0 => None,
        ptr => memory_of(ptr, it.bytes()),
    };
    let buffers = plan.buffers.iter().map(memory).collect();
    let Plan { head, rows, children, dictionary, .. } = plan;
    let below = |plan: Plan| column_of(plan, memory_of);
    let children = children.into_iter().map(below).collect();
    let dictionary = dictionary.map(|plan| Box::new(below(*plan)));
    ArrowColumn { head, rows, buffers, children, dictionary }
}

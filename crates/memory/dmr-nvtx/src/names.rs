//! Names of streams and of ranges, for the timeline of Nsight Systems: NVTX's core, whose tables a
//! tool fills as `nvtxTypes.h` and `nvtxImpl.h` describe.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use dmr_core::process::{PerProcess, Process};
use dmr_core::sync::lock;

use crate::abi::{Handle, MESSAGE_ASCII, NVTX_VERSION};
use crate::injection;

/// The name of the domain that the library's ranges are in.
const DOMAIN: &CStr = c"dmr";

/// Runs `work` in a range of the domain `dmr`, which Nsight Systems draws on the thread's timeline.
pub fn range<T>(name: &CStr, work: impl FnOnce() -> T) -> T {
    let Some(core) = core() else { return work() };
    core.push(name);
    let _range = Range(core);
    work()
}

/// Names a stream, a `CUstream`, on the timelines of Nsight Systems. A name with a zero byte is
/// ignored.
///
/// # Safety
///
/// The stream is alive.
pub unsafe fn name_stream(stream: *mut c_void, name: &str) {
    let Some(core) = core() else { return };
    let (Some(function), Ok(name)) = (core.name_stream, CString::new(name)) else { return };
    // SAFETY: the stream is alive; the name outlives the call.
    unsafe { function(stream, name.as_ptr()) };
}

/// A range that ends when it is dropped.
struct Range(&'static Core);

impl Drop for Range {
    fn drop(&mut self) {
        self.0.pop();
    }
}

type DomainCreate = unsafe extern "C" fn(*const c_char) -> Handle;
type RangePush = unsafe extern "C" fn(Handle, *const EventAttributes) -> c_int;
type RangePop = unsafe extern "C" fn(Handle) -> c_int;
type NameStream = unsafe extern "C" fn(*mut c_void, *const c_char);

/// The functions of the tool's core. Made once, and never freed.
struct Core {
    made_in: Process,
    domain: Handle,
    range_push: Option<RangePush>,
    range_pop: Option<RangePop>,
    name_stream: Option<NameStream>,
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

impl Core {
    fn push(&self, name: &CStr) {
        let attributes = EventAttributes {
            version: NVTX_VERSION,
            size: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: MESSAGE_ASCII as i32,
            message: name.as_ptr(),
        };
        if let Some(function) = self.range_push {
            // SAFETY: the structure that the header defines, read during the call.
            unsafe { function(self.domain, &raw const attributes) };
        }
    }

    fn pop(&self) {
        if let Some(function) = self.range_pop.filter(|_| self.made_in.is_current()) {
            // SAFETY: takes no pointer but the domain.
            unsafe { function(self.domain) };
        }
    }
}

/// Null: not looked for yet.
static FOUND: AtomicPtr<Core> = AtomicPtr::new(ptr::null_mut());
static LOOKING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// The value of [`FOUND`] when there is no tool.
const NO_TOOL: *mut Core = ptr::dangling_mut();

/// Returns the functions of NVTX's core of the attached tool; looks for them in the first call.
#[inline]
fn core() -> Option<&'static Core> {
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        found = look_for_core();
    }
    if ptr::eq(found, NO_TOOL) {
        return None;
    }
    // SAFETY: neither null nor NO_TOOL: made by `Box::into_raw` below, and never freed.
    let core = unsafe { &*found };
    core.made_in.is_current().then_some(core)
}

#[cold]
fn look_for_core() -> *mut Core {
    let _looking = lock(LOOKING.get());
    let before = FOUND.load(Ordering::Acquire);
    if !before.is_null() {
        return before;
    }
    // A stream is named before the first launch, so both searches are done before that, and the
    // launch makes no allocation on the host's heap.
    let _ = crate::tool::tool();
    let found = initialize().map_or(NO_TOOL, |core| Box::into_raw(Box::new(core)));
    FOUND.store(found, Ordering::Release);
    found
}

/// `NvtxInitializeInjectionNvtxFunc_t`: takes the function that returns export tables.
type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;

fn initialize() -> Option<Core> {
    // SAFETY: NVTX gives this symbol this type.
    let initialize: Initialize =
        unsafe { injection::entry_point(c"InitializeInjectionNvtx2".to_bytes_with_nul()) }?;
    // SAFETY: called once, with a function of the type that the header gives.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    /// Returns the function in a slot, as `$type`; `None` if the tool has set none.
    macro_rules! function {
        ($table:ident, $index:literal, $type:ty) => {{
            let function = $table[$index].load(Ordering::Acquire);
            // SAFETY: the tool has set a function, with the prototype that the header defines for
            // this index; null is none.
            unsafe { std::mem::transmute::<*mut c_void, Option<$type>>(function) }
        }};
    }
    let create = function!(CORE2, 12, DomainCreate);
    // SAFETY: the name is a constant.
    let domain = create.map_or(ptr::null_mut(), |create| unsafe { create(DOMAIN.as_ptr()) });
    Some(Core {
        made_in: Process::current(),
        domain,
        range_push: function!(CORE2, 4, RangePush),
        range_pop: function!(CORE2, 5, RangePop),
        name_stream: function!(CUDA, 5, NameStream),
    })
}

/// The number of slots of each table: one more than the highest index of a function.
const TABLE: usize = 16;
type Table = [AtomicPtr<c_void>; TABLE];

/// The modules of functions that a tool fills, by NVTX's numbers: 1, 2 and 5.
static CORE: Table = [const { AtomicPtr::new(ptr::null_mut()) }; TABLE];
static CUDA: Table = [const { AtomicPtr::new(ptr::null_mut()) }; TABLE];
static CORE2: Table = [const { AtomicPtr::new(ptr::null_mut()) }; TABLE];

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    module_table: extern "C" fn(c_int, *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

extern "C" fn export_table(id: u32) -> *const c_void {
    static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module_table };
    static VERSION: VersionInfo = VersionInfo {
        size: size_of::<VersionInfo>(),
        version: NVTX_VERSION as u32,
        reserved: 0,
        set_tool_version,
    };
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn set_tool_version(_: u32) {}

/// Returns an array of the addresses of a module's slots to the tool. The first slot is unused.
extern "C" fn module_table(
    module: c_int,
    table: *mut *mut *mut c_void,
    size: *mut c_uint,
) -> c_int {
    let (slots, functions) = match module {
        1 => (&CORE, 16),
        2 => (&CUDA, 9),
        5 => (&CORE2, 16),
        _ => return 0,
    };
    let mut addresses = [ptr::null_mut::<c_void>(); TABLE + 1];
    for (address, slot) in addresses.iter_mut().zip(slots).take(functions).skip(1) {
        *address = slot.as_ptr().cast();
    }
    // The tool may keep the array.
    let addresses: &'static mut [*mut c_void] = Box::leak(Box::new(addresses));
    // SAFETY: null, or the tool's variables.
    let (table, size) = unsafe { (table.as_mut(), size.as_mut()) };
    if let Some(table) = table {
        *table = addresses.as_mut_ptr();
    }
    if let Some(size) = size {
        *size = functions as c_uint;
    }
    1
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are what g++ 12 gives for the C headers of NVTX 3.
    #[test]
    fn event_attributes_are_laid_out_as_the_c_header_lays_them_out() {
        let offsets =
            (offset_of!(EventAttributes, message_type), offset_of!(EventAttributes, message));
        assert_eq!((size_of::<EventAttributes>(), offsets), (48, (32, 40)));
    }

    #[test]
    fn without_a_tool_a_range_is_its_work_and_a_name_is_nothing() {
        assert_eq!(range(c"nothing", || 42), 42);
        // SAFETY: without a tool the stream is not used.
        unsafe { name_stream(ptr::null_mut(), "nothing") };
    }
}

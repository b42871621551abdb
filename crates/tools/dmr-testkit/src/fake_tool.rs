//! A fake tool with NVTX's memory extension: it records its calls, and the errors in them.
//!
//! It reads its arguments by the offsets of the C headers of NVTX 3, on a 64-bit machine, and does
//! not use the structures of `dmr-nvtx`.

#![allow(unsafe_code, reason = "stands in for a C library")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use dmr_core::sync::lock;

/// A call of one of the tool's functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A heap of a sub-allocator was registered.
    HeapRegister {
        /// Its address, which is its handle, too.
        ptr: u64,
        /// Its size.
        bytes: u64,
    },
    /// The heap with this handle was unregistered.
    HeapUnregister(u64),
    /// A region was registered.
    Register {
        /// The handle of its heap.
        heap: u64,
        /// Its address.
        ptr: u64,
        /// Its size.
        bytes: u64,
    },
    /// The region at this address was unregistered.
    Unregister(u64),
    /// A region was named.
    Name {
        /// Its address.
        ptr: u64,
        /// Its name.
        name: String,
    },
    /// A permissions object was made.
    Create(u64),
    /// Permissions were assigned.
    Assign {
        /// The object.
        permissions: u64,
        /// Address and flags of each region.
        regions: Vec<(u64, u32)>,
    },
    /// An object was bound to the thread.
    Bind(u64),
    /// The thread's object was unbound.
    Unbind,
    /// An object was destroyed.
    Destroy(u64),
}

/// Flags of a region that a launch may read.
pub const READ: u32 = 1;
/// Flags of a region that a launch may read, write and use with atomic operations.
pub const READ_WRITE: u32 = 7;
/// Flags of a region that a launch must not touch.
pub const NOTHING: u32 = 0;

#[derive(Debug, Default)]
struct ToolState {
    calls: Vec<(ThreadId, Call)>,
    wrong: Vec<String>,
    heaps: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, (u64, u64)>,
    permissions: BTreeSet<u64>,
    objects: u64,
    bound: Vec<(ThreadId, u64)>,
    refuses_heaps: bool,
}

static STATE: Mutex<Option<ToolState>> = Mutex::new(None);
static SESSION: Mutex<()> = Mutex::new(());

/// Exclusive use of the tool of the process by one test.
#[derive(Debug)]
pub struct Session(
    #[expect(dead_code, reason = "held for others to wait")] MutexGuard<'static, ()>,
);

/// Waits until no other test uses the tool, and clears its recorded calls.
pub fn session() -> Session {
    let turn = lock(&SESSION);
    *lock(&STATE) = Some(ToolState::default());
    Session(turn)
}

impl Session {
    /// Lets the tool refuse every heap from now on, as Compute Sanitizer does over other memory
    /// than that of `cuMemAlloc`.
    pub fn refuse_heaps(&self) {
        with(|state| state.refuses_heaps = true);
    }

    /// Returns the recorded calls, and clears them.
    pub fn take_calls(&self) -> Vec<Call> {
        with(|state| std::mem::take(&mut state.calls)).into_iter().map(|(_, call)| call).collect()
    }

    /// Returns the recorded calls of this thread, and clears them.
    pub fn take_own_calls(&self) -> Vec<Call> {
        let own = thread::current().id();
        with(|state| state.calls.extract_if(.., |(thread, _)| *thread == own).collect::<Vec<_>>())
            .into_iter()
            .map(|(_, call)| call)
            .collect()
    }

    /// Returns address and bytes of the regions that are registered.
    pub fn regions(&self) -> Vec<(u64, u64)> {
        with(|state| state.regions.iter().map(|(&ptr, &(bytes, _))| (ptr, bytes)).collect())
    }

    /// Returns how many heaps are registered.
    pub fn heaps(&self) -> usize {
        with(|state| state.heaps.len())
    }

    /// Returns the objects that are bound, and those that were not destroyed.
    pub fn permissions(&self) -> (usize, usize) {
        with(|state| (state.bound.len(), state.permissions.len()))
    }

    /// Returns what a tool would have counted as an error.
    pub fn wrong(&self) -> Vec<String> {
        with(|state| state.wrong.clone())
    }
}

fn with<T>(look: impl FnOnce(&mut ToolState) -> T) -> T {
    let mut state = lock(&STATE);
    look(state.get_or_insert_default())
}

fn note(call: Call) {
    with(|state| state.calls.push((thread::current().id(), call)));
}

fn wrong(what: String) {
    with(|state| state.wrong.push(what));
}

/// The tool's `InitializeInjectionNvtxExtension`.
///
/// # Safety
///
/// `module` is the address of an `nvtxExtModuleInfo_t` of the memory extension.
pub unsafe extern "C" fn initialize(module: *mut c_void) -> c_int {
    // SAFETY: as the caller promises; offsets as the header has them.
    unsafe {
        let [version, size, id, compat] = read::<[u16; 4]>(module, 0);
        assert_eq!((version, size, id, compat), (3, 40, 1, 0x0102), "the module");
        assert_eq!(read::<usize>(module, 8), 1, "one segment");
        let segment = read::<*const c_void>(module, 16);
        assert_eq!((read::<usize>(segment, 0), read::<usize>(segment, 8)), (1, 63), "the segment");
        let slots = read::<*mut isize>(segment, 16);
        let functions: [(usize, *const ()); 10] = [
            (0, heap_register as *const ()),
            (1, heap_unregister as *const ()),
            (3, regions_register as *const ()),
            (5, regions_unregister as *const ()),
            (6, regions_name as *const ()),
            (7, permissions_assign as *const ()),
            (8, permissions_create as *const ()),
            (9, permissions_destroy as *const ()),
            (11, permissions_bind as *const ()),
            (12, permissions_unbind as *const ()),
        ];
        for (slot, function) in functions {
            *slots.add(slot) = function as isize;
        }
    }
    1
}

/// # Safety
///
/// A `T` is at this offset.
unsafe fn read<T: Copy>(from: *const c_void, offset: usize) -> T {
    // SAFETY: as the caller promises.
    unsafe { from.byte_add(offset).cast::<T>().read() }
}

/// Looks at the two fields that every structure begins with.
///
/// # Safety
///
/// `desc` is a structure of the extension.
unsafe fn check_head(what: &str, desc: *const c_void, size: u16) {
    // SAFETY: as the caller promises.
    let head = unsafe { read::<[u16; 2]>(desc, 0) };
    if head != [0x0102, size] {
        wrong(format!("{what}: compatibility and size are {head:?}"));
    }
}

unsafe extern "C" fn heap_register(_: *mut c_void, desc: *const c_void) -> *mut c_void {
    // SAFETY: an `nvtxMemHeapDesc_t`.
    let (kind, range) = unsafe {
        check_head("heap", desc, 48);
        (read::<[u32; 2]>(desc, 8), read::<*const c_void>(desc, 24))
    };
    // SAFETY: an `nvtxMemVirtualRangeDesc_t`.
    let [bytes, ptr] = unsafe { read::<[u64; 2]>(range, 0) };
    if kind != [1, 1] {
        wrong(format!("heap: usage and type are {kind:?}"));
    }
    if with(|state| state.refuses_heaps) {
        wrong(format!("heap: refused at {ptr:#x}"));
        return std::ptr::null_mut();
    }
    with(|state| state.heaps.insert(ptr, bytes));
    note(Call::HeapRegister { ptr, bytes });
    ptr as *mut c_void
}

unsafe extern "C" fn heap_unregister(_: *mut c_void, heap: *mut c_void) {
    let heap = heap as u64;
    let known = with(|state| {
        state.regions.retain(|_, (_, of)| *of != heap);
        state.heaps.remove(&heap).is_some()
    });
    if !known {
        wrong(format!("no heap {heap:#x}"));
    }
    note(Call::HeapUnregister(heap));
}

unsafe extern "C" fn regions_register(_: *mut c_void, desc: *const c_void) {
    // SAFETY: an `nvtxMemRegionsRegisterBatch_t`, of one `nvtxMemVirtualRangeDesc_t`.
    let (kind, heap, count, size, range) = unsafe {
        check_head("regions", desc, 48);
        let elements = read::<*const c_void>(desc, 32);
        let [count, size] = read::<[usize; 2]>(desc, 16);
        (read::<u32>(desc, 4), read::<u64>(desc, 8), count, size, read::<[u64; 2]>(elements, 0))
    };
    let [bytes, ptr] = range;
    let outside = with(|state| {
        let end = state.heaps.get(&heap).map(|bytes| heap + bytes);
        let overlaps = |(&at, &(len, _)): (&u64, &(u64, u64))| at < ptr + bytes && ptr < at + len;
        end.is_none_or(|end| ptr < heap || ptr + bytes > end) || state.regions.iter().any(overlaps)
    });
    if (kind, count, size) != (1, 1, 16) || outside {
        wrong(format!("region {ptr:#x} of {bytes} in heap {heap:#x}"));
    }
    with(|state| state.regions.insert(ptr, (bytes, heap)));
    note(Call::Register { heap, ptr, bytes });
}

unsafe extern "C" fn regions_unregister(_: *mut c_void, desc: *const c_void) {
    // SAFETY: an `nvtxMemRegionsUnregisterBatch_t`, of one pointer.
    let (kind, counts, ptr) = unsafe {
        check_head("regions", desc, 32);
        let elements = read::<*const c_void>(desc, 24);
        (read::<u32>(desc, 4), read::<[usize; 2]>(desc, 8), read::<u64>(elements, 0))
    };
    if (kind, counts) != (1, [1, 8]) || with(|state| state.regions.remove(&ptr)).is_none() {
        wrong(format!("no region {ptr:#x}"));
    }
    note(Call::Unregister(ptr));
}

unsafe extern "C" fn regions_name(_: *mut c_void, desc: *const c_void) {
    // SAFETY: an `nvtxMemRegionsNameBatch_t`, of one `nvtxMemRegionNameDesc_t`, whose name is a C
    // string.
    let (counts, kinds, ptr, name) = unsafe {
        check_head("names", desc, 40);
        let element = read::<*const c_void>(desc, 24);
        let name = CStr::from_ptr(read::<*const c_char>(element, 16));
        let kinds = read::<[u32; 2]>(element, 0);
        (read::<[usize; 2]>(desc, 8), kinds, read::<u64>(element, 8), name)
    };
    let name = name.to_string_lossy().into_owned();
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if counts != [1, 32] || kinds != [1, 1] || !printable || !(1..=49).contains(&name.len()) {
        wrong(format!("name {name:?} of {ptr:#x}"));
    }
    note(Call::Name { ptr, name });
}

unsafe extern "C" fn permissions_create(_: *mut c_void, flags: c_int) -> *mut c_void {
    let permissions = with(|state| {
        state.objects += 1;
        state.permissions.insert(state.objects);
        state.objects
    });
    if flags != 0 {
        wrong(format!("flags {flags}"));
    }
    note(Call::Create(permissions));
    permissions as *mut c_void
}

unsafe extern "C" fn permissions_assign(_: *mut c_void, desc: *const c_void) {
    // SAFETY: an `nvtxMemPermissionsAssignBatch_t`, of `nvtxMemPermissionsAssignRegionDesc_t`.
    let (permissions, regions) = unsafe {
        check_head("permissions", desc, 48);
        let [count, size] = read::<[usize; 2]>(desc, 16);
        let elements = read::<*const c_void>(desc, 32);
        let element = |index| {
            let element = elements.byte_add(index * size);
            let [flags, kind] = read::<[u32; 2]>(element, 0);
            assert_eq!((size, kind), (16, 1), "an element");
            (read::<u64>(element, 8), flags)
        };
        (read::<u64>(desc, 8), (0..count).map(element).collect::<Vec<_>>())
    };
    for &(ptr, _) in &regions {
        // Outside of the heaps it would be an allocation, which a tool sees by itself.
        let unknown = with(|state| {
            let in_heap = state.heaps.iter().any(|(&at, &bytes)| (at..at + bytes).contains(&ptr));
            in_heap && !state.regions.contains_key(&ptr)
        });
        if unknown {
            wrong(format!("permissions of {ptr:#x}, which is no region"));
        }
    }
    note(Call::Assign { permissions, regions });
}

unsafe extern "C" fn permissions_bind(_: *mut c_void, object: *mut c_void, scope: u32, flags: u32) {
    let object = object as u64;
    let own = thread::current().id();
    let known = with(|state| {
        state.bound.retain(|(thread, _)| *thread != own);
        state.bound.push((own, object));
        state.permissions.contains(&object)
    });
    if (scope, flags, known) != (2, 0, true) {
        wrong(format!("bound {object} with scope {scope} and flags {flags}"));
    }
    note(Call::Bind(object));
}

unsafe extern "C" fn permissions_unbind(_: *mut c_void, scope: u32) {
    let own = thread::current().id();
    with(|state| state.bound.retain(|(thread, _)| *thread != own));
    if scope != 2 {
        wrong(format!("unbound with scope {scope}"));
    }
    note(Call::Unbind);
}

unsafe extern "C" fn permissions_destroy(_: *mut c_void, object: *mut c_void) {
    let object = object as u64;
    let bound = with(|state| {
        let known = state.permissions.remove(&object);
        !known || state.bound.iter().any(|&(_, bound)| bound == object)
    });
    if bound {
        wrong(format!("destroyed {object}, which is bound or gone"));
    }
    note(Call::Destroy(object));
}

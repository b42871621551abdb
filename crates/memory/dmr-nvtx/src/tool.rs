//! The attached tool with the memory extension: finding it, and calling its functions.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use dmr_core::process::{PerProcess, Process};
use dmr_core::sync::lock;

use crate::abi::{
    self, AssignBatch, AssignDesc, COMPAT_MEMORY, Handle, HeapDesc, Initialize, MESSAGE_ASCII,
    MODULE_MEMORY, ModuleInfo, ModuleSegment, NO_DOMAIN, NVTX_VERSION, NameBatch, NameDesc,
    REF_POINTER, Range, RegisterBatch, SCOPE_CUDA_STREAM, SLOTS, TYPE_VIRTUAL_ADDRESS,
    USAGE_SUB_ALLOCATOR, UnregisterBatch, slot,
};
use crate::injection;
use crate::regions::Regions;

/// The functions of an attached tool, and what was announced to it. Made once, and never freed.
#[derive(Debug)]
pub(crate) struct Tool {
    made_in: Process,
    functions: Functions,
    regions: Mutex<Regions>,
}

#[derive(Debug)]
struct Functions {
    heap_register: abi::HeapRegister,
    heap_unregister: abi::HeapUnregister,
    regions_register: abi::RegionsRegister,
    regions_unregister: abi::RegionsUnregister,
    regions_name: abi::RegionsName,
    permissions_create: abi::PermissionsCreate,
    permissions_assign: abi::PermissionsAssign,
    permissions_destroy: abi::PermissionsDestroy,
    permissions_bind: abi::PermissionsBind,
    permissions_unbind: abi::PermissionsUnbind,
}

/// Null: not looked for yet.
static FOUND: AtomicPtr<Tool> = AtomicPtr::new(ptr::null_mut());

/// The lock that is held while a tool is looked for.
static LOOKING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// The value of [`FOUND`] when there is no tool.
const NO_TOOL: *mut Tool = ptr::dangling_mut();

/// Returns the attached tool. Looks for one in the first call of the process; a later call without
/// a tool costs one load. A forked child has none: the tool is attached to its parent.
#[inline]
pub(crate) fn tool() -> Option<&'static Tool> {
    let found = FOUND.load(Ordering::Acquire);
    if ptr::eq(found, NO_TOOL) {
        return None;
    }
    known(if found.is_null() { look_for_tool(injection::memory_extension) } else { found })
}

/// Attaches the tool with this initializer, unless one was looked for before.
///
/// # Safety
///
/// `initialize` is an initializer as NVTX's header describes it.
pub(crate) unsafe fn attach(initialize: Initialize) -> bool {
    known(look_for_tool(|| Some(initialize))).is_some()
}

fn known(found: *mut Tool) -> Option<&'static Tool> {
    if ptr::eq(found, NO_TOOL) {
        return None;
    }
    // SAFETY: neither null nor NO_TOOL: made by `Box::into_raw` below, and never freed.
    let tool = unsafe { &*found };
    tool.made_in.is_current().then_some(tool)
}

#[cold]
fn look_for_tool(initializer: impl FnOnce() -> Option<Initialize>) -> *mut Tool {
    let _looking = lock(LOOKING.get());
    let before = FOUND.load(Ordering::Acquire);
    if !before.is_null() {
        return before;
    }
    let tool = initializer().and_then(Tool::initialize);
    let found = tool.map_or(NO_TOOL, |tool| Box::into_raw(Box::new(tool)));
    FOUND.store(found, Ordering::Release);
    found
}

impl Tool {
    /// Lets the tool fill the table of functions.
    fn initialize(initialize: Initialize) -> Option<Self> {
        // The tool may keep their address.
        let slots: &'static mut [isize; SLOTS] = Box::leak(Box::new([0; SLOTS]));
        let mut segment = ModuleSegment { id: 1, slot_count: SLOTS, slots: slots.as_mut_ptr() };
        let mut module = ModuleInfo {
            nvtx_version: NVTX_VERSION,
            size: abi::size::<ModuleInfo>(),
            module: MODULE_MEMORY,
            compat: COMPAT_MEMORY,
            segment_count: 1,
            segments: &raw mut segment,
            get_export_function: ptr::null(),
            info: ptr::null(),
        };
        // SAFETY: an initializer, called once, with the structure that the header defines; the
        // slots live forever.
        let takes_part = unsafe { initialize(&raw mut module) } != 0;
        // A slot of 0 was not filled, one of 1 is switched off.
        let filled = |index: usize| {
            let function = slots[index];
            (function != 0 && function != 1).then_some(function as *const c_void)
        };
        if !takes_part {
            return None;
        }
        /// Returns the function in a slot, with the type that belongs to the slot.
        macro_rules! function {
            ($slot:ident: $type:ty) => {
                // SAFETY: the tool has set a function, with the prototype that the header defines
                // for this slot.
                unsafe { std::mem::transmute::<*const c_void, $type>(filled(slot::$slot)?) }
            };
        }
        let functions = Functions {
            heap_register: function!(HEAP_REGISTER: abi::HeapRegister),
            heap_unregister: function!(HEAP_UNREGISTER: abi::HeapUnregister),
            regions_register: function!(REGIONS_REGISTER: abi::RegionsRegister),
            regions_unregister: function!(REGIONS_UNREGISTER: abi::RegionsUnregister),
            regions_name: function!(REGIONS_NAME: abi::RegionsName),
            permissions_create: function!(PERMISSIONS_CREATE: abi::PermissionsCreate),
            permissions_assign: function!(PERMISSIONS_ASSIGN: abi::PermissionsAssign),
            permissions_destroy: function!(PERMISSIONS_DESTROY: abi::PermissionsDestroy),
            permissions_bind: function!(PERMISSIONS_BIND: abi::PermissionsBind),
            permissions_unbind: function!(PERMISSIONS_UNBIND: abi::PermissionsUnbind),
        };
        Some(Self { made_in: Process::current(), functions, regions: Mutex::default() })
    }

    /// Locks the announced regions. Hold it while regions are announced and while permissions are
    /// assigned: a tool counts a permission for a region that was unregistered as an error.
    pub(crate) fn regions(&self) -> MutexGuard<'_, Regions> {
        lock(&self.regions)
    }

    /// Returns whether this is the process that the tool is attached to, and not a forked child.
    pub(crate) fn is_attached(&self) -> bool {
        self.made_in.is_current()
    }

    /// Registers a heap of a sub-allocator; null if the tool refuses it.
    pub(crate) fn register_heap(&self, ptr: u64, bytes: usize) -> Handle {
        let range = Range { bytes, ptr };
        let desc = HeapDesc {
            compat: COMPAT_MEMORY,
            size: abi::size::<HeapDesc>(),
            reserved: 0,
            usage: USAGE_SUB_ALLOCATOR,
            kind: TYPE_VIRTUAL_ADDRESS,
            desc_size: size_of::<Range>(),
            desc: &raw const range,
            category: 0,
            message_type: 0,
            message: ptr::null(),
        };
        // SAFETY: structures as the header defines them, which the tool reads during the call. This
        // and the calls below announce device memory; they access none.
        unsafe { (self.functions.heap_register)(NO_DOMAIN, &raw const desc) }
    }

    pub(crate) fn unregister_heap(&self, heap: Handle) {
        // SAFETY: a handle that the tool returned, and that is not used again.
        unsafe { (self.functions.heap_unregister)(NO_DOMAIN, heap) };
    }

    pub(crate) fn register_region(&self, heap: Handle, ptr: u64, bytes: usize) {
        let range = Range { bytes, ptr };
        let batch = RegisterBatch {
            compat: COMPAT_MEMORY,
            size: abi::size::<RegisterBatch>(),
            kind: TYPE_VIRTUAL_ADDRESS,
            heap,
            count: 1,
            element_size: size_of::<Range>(),
            elements: &raw const range,
            handles_out: ptr::null_mut(),
        };
        // SAFETY: as in `register_heap`; the heap is registered.
        unsafe { (self.functions.regions_register)(NO_DOMAIN, &raw const batch) };
    }

    pub(crate) fn unregister_region(&self, ptr: u64) {
        let batch = UnregisterBatch {
            compat: COMPAT_MEMORY,
            size: abi::size::<UnregisterBatch>(),
            ref_type: REF_POINTER,
            count: 1,
            element_size: size_of::<u64>(),
            elements: &raw const ptr,
        };
        // SAFETY: as in `register_heap`.
        unsafe { (self.functions.regions_unregister)(NO_DOMAIN, &raw const batch) };
    }

    pub(crate) fn name_region(&self, ptr: u64, name: &CStr) {
        let desc = NameDesc {
            ref_type: REF_POINTER,
            name_type: MESSAGE_ASCII,
            region: ptr,
            name: name.as_ptr(),
            category: 0,
            reserved: 0,
        };
        let batch = NameBatch {
            compat: COMPAT_MEMORY,
            size: abi::size::<NameBatch>(),
            reserved0: 0,
            count: 1,
            element_size: size_of::<NameDesc>(),
            elements: &raw const desc,
            reserved1: 0,
        };
        // SAFETY: as in `register_heap`; the name outlives the call.
        unsafe { (self.functions.regions_name)(NO_DOMAIN, &raw const batch) };
    }

    /// Makes a permissions object with these regions.
    pub(crate) fn create_permissions(&self, assigned: &[AssignDesc]) -> Handle {
        // The flags that exclude memory without an assignment have no effect in Compute Sanitizer
        // 2025.3.1 on memory without process-wide permissions, so the caller assigns permissions to
        // every region.
        // SAFETY: takes no pointer but the domain.
        let permissions = unsafe { (self.functions.permissions_create)(NO_DOMAIN, 0) };
        if assigned.is_empty() || permissions.is_null() {
            return permissions;
        }
        let batch = AssignBatch {
            compat: COMPAT_MEMORY,
            size: abi::size::<AssignBatch>(),
            reserved0: 0,
            permissions,
            count: assigned.len(),
            element_size: size_of::<AssignDesc>(),
            elements: assigned.as_ptr(),
            reserved1: 0,
        };
        // SAFETY: as in `register_heap`; the object was made just now.
        unsafe { (self.functions.permissions_assign)(NO_DOMAIN, &raw const batch) };
        permissions
    }

    /// Binds a permissions object to the calling thread, whose launches the tool checks against it.
    pub(crate) fn bind(&self, permissions: Handle) {
        // SAFETY: an object that `create_permissions` returned, and that was not destroyed.
        unsafe { (self.functions.permissions_bind)(NO_DOMAIN, permissions, SCOPE_CUDA_STREAM, 0) };
    }

    pub(crate) fn unbind(&self) {
        // SAFETY: takes no pointer but the domain.
        unsafe { (self.functions.permissions_unbind)(NO_DOMAIN, SCOPE_CUDA_STREAM) };
    }

    pub(crate) fn destroy_permissions(&self, permissions: Handle) {
        // SAFETY: an object that `create_permissions` returned, and that is not used again.
        unsafe { (self.functions.permissions_destroy)(NO_DOMAIN, permissions) };
    }
}

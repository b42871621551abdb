//! The ABI of NVTX's memory extension, from `nvToolsExtMem.h` and `nvtxExtTypes.h` of NVTX 3.

use std::ffi::{c_int, c_void};

/// A tool's handle of a heap or a permissions object; null if the tool refused it.
pub(crate) type Handle = *mut c_void;

/// The process-wide domain, which needs no registration: every call of the memory extension accepts
/// it.
pub(crate) const NO_DOMAIN: Handle = std::ptr::null_mut();

pub(crate) const NVTX_VERSION: u16 = 3;
pub(crate) const MODULE_MEMORY: u16 = 1;
pub(crate) const COMPAT_MEMORY: u16 = 0x0102;
pub(crate) const SLOTS: usize = 63;

pub(crate) const USAGE_SUB_ALLOCATOR: u32 = 1;
pub(crate) const TYPE_VIRTUAL_ADDRESS: u32 = 1;
pub(crate) const REF_POINTER: u32 = 1;
pub(crate) const MESSAGE_ASCII: u32 = 1;
pub(crate) const SCOPE_CUDA_STREAM: u32 = 2;

/// The indices of the functions in the table that the tool fills.
pub(crate) mod slot {
    pub(crate) const HEAP_REGISTER: usize = 0;
    pub(crate) const HEAP_UNREGISTER: usize = 1;
    pub(crate) const REGIONS_REGISTER: usize = 3;
    pub(crate) const REGIONS_UNREGISTER: usize = 5;
    pub(crate) const REGIONS_NAME: usize = 6;
    pub(crate) const PERMISSIONS_ASSIGN: usize = 7;
    pub(crate) const PERMISSIONS_CREATE: usize = 8;
    pub(crate) const PERMISSIONS_DESTROY: usize = 9;
    pub(crate) const PERMISSIONS_BIND: usize = 11;
    pub(crate) const PERMISSIONS_UNBIND: usize = 12;
}

/// The accesses that a region permits.
pub(crate) mod access {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const READ: u32 = 1;
    pub(crate) const WRITE: u32 = 2;
    pub(crate) const ATOMIC: u32 = 4;
}

/// `InitializeInjectionNvtxExtension`. Returns zero if the tool does not take part.
pub(crate) type Initialize = unsafe extern "C" fn(*mut ModuleInfo) -> c_int;

// The functions of the table. The first argument is the domain.
pub(crate) type HeapRegister = unsafe extern "C" fn(Handle, *const HeapDesc) -> Handle;
pub(crate) type HeapUnregister = unsafe extern "C" fn(Handle, Handle);
pub(crate) type RegionsRegister = unsafe extern "C" fn(Handle, *const RegisterBatch);
pub(crate) type RegionsUnregister = unsafe extern "C" fn(Handle, *const UnregisterBatch);
pub(crate) type RegionsName = unsafe extern "C" fn(Handle, *const NameBatch);
pub(crate) type PermissionsCreate = unsafe extern "C" fn(Handle, i32) -> Handle;
pub(crate) type PermissionsAssign = unsafe extern "C" fn(Handle, *const AssignBatch);
pub(crate) type PermissionsDestroy = unsafe extern "C" fn(Handle, Handle);
pub(crate) type PermissionsBind = unsafe extern "C" fn(Handle, Handle, u32, u32);
pub(crate) type PermissionsUnbind = unsafe extern "C" fn(Handle, u32);

#[repr(C)]
pub(crate) struct ModuleSegment {
    pub(crate) id: usize,
    pub(crate) slot_count: usize,
    pub(crate) slots: *mut isize,
}

#[repr(C)]
pub(crate) struct ModuleInfo {
    pub(crate) nvtx_version: u16,
    pub(crate) size: u16,
    pub(crate) module: u16,
    pub(crate) compat: u16,
    pub(crate) segment_count: usize,
    pub(crate) segments: *mut ModuleSegment,
    pub(crate) get_export_function: *const c_void,
    pub(crate) info: *const c_void,
}

#[repr(C)]
pub(crate) struct Range {
    pub(crate) bytes: usize,
    pub(crate) ptr: u64,
}

#[repr(C)]
pub(crate) struct HeapDesc {
    pub(crate) compat: u16,
    pub(crate) size: u16,
    pub(crate) reserved: u32,
    pub(crate) usage: u32,
    pub(crate) kind: u32,
    pub(crate) desc_size: usize,
    pub(crate) desc: *const Range,
    pub(crate) category: u32,
    pub(crate) message_type: u32,
    pub(crate) message: *const c_void,
}

#[repr(C)]
pub(crate) struct RegisterBatch {
    pub(crate) compat: u16,
    pub(crate) size: u16,
    pub(crate) kind: u32,
    pub(crate) heap: Handle,
    pub(crate) count: usize,
    pub(crate) element_size: usize,
    pub(crate) elements: *const Range,
    pub(crate) handles_out: *mut Handle,
}

#[repr(C)]
pub(crate) struct UnregisterBatch {
    pub(crate) compat: u16,
    pub(crate) size: u16,
    pub(crate) ref_type: u32,
    pub(crate) count: usize,
    pub(crate) element_size: usize,
    pub(crate) elements: *const u64,
}

#[repr(C)]
pub(crate) struct NameDesc {
    pub(crate) ref_type: u32,
    pub(crate) name_type: u32,
    pub(crate) region: u64,
    pub(crate) name: *const std::ffi::c_char,
    pub(crate) category: u32,
    pub(crate) reserved: u32,
}

#[repr(C)]
pub(crate) struct NameBatch {
    pub(crate) compat: u16,
    pub(crate) size: u16,
    pub(crate) reserved0: u32,
    pub(crate) count: usize,
    pub(crate) element_size: usize,
    pub(crate) elements: *const NameDesc,
    pub(crate) reserved1: usize,
}

#[repr(C)]
pub(crate) struct AssignDesc {
    pub(crate) flags: u32,
    pub(crate) ref_type: u32,
    pub(crate) region: u64,
}

#[repr(C)]
pub(crate) struct AssignBatch {
    pub(crate) compat: u16,
    pub(crate) size: u16,
    pub(crate) reserved0: u32,
    pub(crate) permissions: Handle,
    pub(crate) count: usize,
    pub(crate) element_size: usize,
    pub(crate) elements: *const AssignDesc,
    pub(crate) reserved1: usize,
}

/// Returns the size of a structure, in the type of its size field.
pub(crate) const fn size<T>() -> u16 {
    size_of::<T>() as u16
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are those of g++ 12 for the C headers of NVTX 3.
    #[test]
    fn structures_are_laid_out_as_the_c_headers_lay_them_out() {
        assert_eq!((size_of::<ModuleSegment>(), offset_of!(ModuleSegment, slots)), (24, 16));
        let module = [
            offset_of!(ModuleInfo, compat),
            offset_of!(ModuleInfo, segment_count),
            offset_of!(ModuleInfo, segments),
            offset_of!(ModuleInfo, get_export_function),
            offset_of!(ModuleInfo, info),
        ];
        assert_eq!((size_of::<ModuleInfo>(), module), (40, [6, 8, 16, 24, 32]));
        assert_eq!((size_of::<Range>(), offset_of!(Range, ptr)), (16, 8));
        let heap = [
            offset_of!(HeapDesc, usage),
            offset_of!(HeapDesc, kind),
            offset_of!(HeapDesc, desc_size),
            offset_of!(HeapDesc, desc),
            offset_of!(HeapDesc, category),
            offset_of!(HeapDesc, message_type),
            offset_of!(HeapDesc, message),
        ];
        assert_eq!((size_of::<HeapDesc>(), heap), (48, [8, 12, 16, 24, 32, 36, 40]));
        let register = [
            offset_of!(RegisterBatch, kind),
            offset_of!(RegisterBatch, heap),
            offset_of!(RegisterBatch, count),
            offset_of!(RegisterBatch, element_size),
            offset_of!(RegisterBatch, elements),
            offset_of!(RegisterBatch, handles_out),
        ];
        assert_eq!((size_of::<RegisterBatch>(), register), (48, [4, 8, 16, 24, 32, 40]));
        let unregister = [
            offset_of!(UnregisterBatch, ref_type),
            offset_of!(UnregisterBatch, count),
            offset_of!(UnregisterBatch, element_size),
            offset_of!(UnregisterBatch, elements),
        ];
        assert_eq!((size_of::<UnregisterBatch>(), unregister), (32, [4, 8, 16, 24]));
        let name = [
            offset_of!(NameDesc, name_type),
            offset_of!(NameDesc, region),
            offset_of!(NameDesc, name),
            offset_of!(NameDesc, category),
        ];
        assert_eq!((size_of::<NameDesc>(), name), (32, [4, 8, 16, 24]));
        let names = [
            offset_of!(NameBatch, count),
            offset_of!(NameBatch, element_size),
            offset_of!(NameBatch, elements),
            offset_of!(NameBatch, reserved1),
        ];
        assert_eq!((size_of::<NameBatch>(), names), (40, [8, 16, 24, 32]));
        let assign = [offset_of!(AssignDesc, ref_type), offset_of!(AssignDesc, region)];
        assert_eq!((size_of::<AssignDesc>(), assign), (16, [4, 8]));
        let assigns = [
            offset_of!(AssignBatch, permissions),
            offset_of!(AssignBatch, count),
            offset_of!(AssignBatch, element_size),
            offset_of!(AssignBatch, elements),
            offset_of!(AssignBatch, reserved1),
        ];
        assert_eq!((size_of::<AssignBatch>(), assigns), (48, [8, 16, 24, 32, 40]));
    }
}

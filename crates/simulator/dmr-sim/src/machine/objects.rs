//! Settings and objects that programs make through the driver, and that no work of a stream depends
//! on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_int;

use crate::kernel::Linker;

/// The objects and settings of a machine besides its streams, events, pools and memory.
#[derive(Default)]
pub(crate) struct Objects {
    /// The flags of contexts of `cuCtxCreate`.
    pub(crate) context_flags: HashMap<u32, u32>,
    /// The flags of the primary context of each device.
    pub(crate) primary_flags: BTreeMap<usize, u32>,
    /// The values of `CUlimit` that programs have set, by context.
    pub(crate) limits: HashMap<(u32, c_int), usize>,
    /// The attributes of functions that programs have set.
    pub(crate) function_attributes: HashMap<(u32, c_int), c_int>,
    /// The attributes of streams that programs have set, as the bytes of a `CUstreamAttrValue`.
    pub(crate) stream_attributes: HashMap<(u32, c_int), [u8; 64]>,
    pub(crate) linkers: HashMap<u32, Linker>,
    pub(crate) last_linker: u32,
    /// The addresses of variables of modules, which end with their modules.
    pub(crate) variables: HashSet<u64>,
    /// The addresses of managed memory.
    pub(crate) managed: HashSet<u64>,
}

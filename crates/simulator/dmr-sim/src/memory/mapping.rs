//! Mappings: virtual addresses, the physical memory behind them, and the access rights of devices.
//!
//! Physical memory has addresses of its own, in the range of its device, which programs never get.
//! Bytes and their history are stored by these addresses, so two mappings of one memory share them.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::abi::{ERROR_INVALID_VALUE, Outcome};
use crate::access::{Access, AddressRange, Epoch, Origin};
use crate::memory::address::{device_of, is_virtual};

/// All mappings, by virtual address. They do not overlap.
#[derive(Default)]
pub(crate) struct Mappings(BTreeMap<u64, Mapping>);

/// One `cuMemMap`.
#[derive(Clone)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    /// The index of the physical memory.
    pub(crate) memory: u32,
    /// The physical address of its first byte.
    pub(crate) physical: u64,
    /// The device of the memory.
    pub(crate) device: usize,
    pub(crate) origin: Arc<Origin>,
    /// The access rights of devices.
    rights: SmallVec<[(usize, Rights); 2]>,
    /// The latest use of each stream through these addresses.
    used: SmallVec<[Use; 2]>,
}

/// The access right of a device to mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rights {
    None,
    Read,
    ReadWrite,
}

impl Rights {
    /// Returns the right that an access needs.
    pub(crate) fn needed(writes: bool) -> Self {
        if writes { Self::ReadWrite } else { Self::Read }
    }

    /// Returns the right that a value of `CUmemAccess_flags` names.
    pub(crate) fn of_flags(flags: c_uint) -> Outcome<Self> {
        match flags {
            0 => Ok(Self::None),
            1 => Ok(Self::Read),
            3 => Ok(Self::ReadWrite),
            _ => Err(ERROR_INVALID_VALUE),
        }
    }

    /// Returns its `CUmemAccess_flags`.
    pub(crate) fn flags(self) -> c_uint {
        match self {
            Self::None => 0,
            Self::Read => 1,
            Self::ReadWrite => 3,
        }
    }
}

/// A use of mapped memory.
#[derive(Clone)]
pub(crate) struct Use {
    pub(crate) access: Access,
    pub(crate) bytes: AddressRange,
}

/// The accessor of memory.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    /// The device that executes the work.
    pub(crate) device: usize,
    /// For a kernel: the devices whose allocations it may access. Copy engines access all.
    pub(crate) peers: Option<&'a [usize]>,
}

/// A range of addresses whose bytes are contiguous.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// The physical address of the bytes; `at`, if that is not virtual.
    pub(crate) physical: u64,
}

impl Mapping {
    pub(crate) fn new(bytes: u64, memory: u32, physical: u64, origin: Arc<Origin>) -> Self {
        let device = device_of(physical).unwrap_or(0);
        let rights = SmallVec::new();
        let used = SmallVec::new();
        Self { bytes, memory, physical, device, origin, rights, used }
    }

    pub(crate) fn rights(&self, device: usize) -> Rights {
        let found = self.rights.iter().find(|(other, _)| *other == device);
        found.map_or(Rights::None, |(_, rights)| *rights)
    }

    pub(crate) fn set_rights(&mut self, device: usize, rights: Rights) {
        self.rights.retain(|(other, _)| *other != device);
        self.rights.push((device, rights));
    }

    /// Returns a use that needs more than the rights `left` and may still be in progress.
    pub(crate) fn first_pending(
        &self,
        known: impl Fn(Epoch) -> bool,
        left: Rights,
    ) -> Option<&Use> {
        let needs = |used: &Use| Rights::needed(used.access.kind.writes());
        self.used.iter().find(|used| left < needs(used) && !known(used.access.epoch()))
    }

    fn allows(&self, by: Reach<'_>, writes: bool) -> bool {
        let may = |device| self.rights(device) >= Rights::needed(writes);
        may(by.device) || (by.peers.is_none() && may(self.device))
    }
}

impl Mappings {
    /// Returns the mapping that contains the address, and its start.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.0.range(..=at).next_back()?;
        (at - start < mapping.bytes).then_some((start, mapping))
    }

    pub(crate) fn insert(&mut self, at: u64, mapping: Mapping) {
        self.0.insert(at, mapping);
    }

    pub(crate) fn remove(&mut self, at: u64) -> Option<Mapping> {
        self.0.remove(&at)
    }

    pub(crate) fn get_mut(&mut self, at: u64) -> Option<&mut Mapping> {
        self.0.get_mut(&at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.0.iter().map(|(&at, mapping)| (at, mapping))
    }

    /// Returns whether there is a mapping in the range.
    pub(crate) fn overlaps(&self, at: u64, bytes: u64) -> bool {
        let last = self.0.range(..at.saturating_add(bytes)).next_back();
        last.is_some_and(|(start, mapping)| start + mapping.bytes > at)
    }

    /// Returns the starts of the mappings in the range; `None` if the range cuts one.
    pub(crate) fn whole(&self, at: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = at.checked_add(bytes)?;
        let is_cut = |at| self.around(at).is_some_and(|(start, _)| start < at);
        let starts = || self.0.range(at..end).map(|(&start, _)| start).collect();
        (!is_cut(at) && !is_cut(end)).then(starts)
    }

    /// Returns how many of the bytes, from the first on, are mapped with the rights for an access.
    pub(crate) fn reachable(&self, at: u64, bytes: u64, by: Reach<'_>, writes: bool) -> u64 {
        let allowed = self.stretch(at, bytes).take_while(|(_, m)| m.allows(by, writes));
        let end = allowed.last().map_or(at, |(start, mapping)| start + mapping.bytes);
        bytes.min(end - at)
    }

    /// Returns the physical ranges of the bytes, up to the first that is not mapped. Addresses that
    /// are not virtual are physical.
    pub(crate) fn pieces(&self, at: u64, bytes: u64) -> SmallVec<[Piece; 1]> {
        if !is_virtual(at) {
            return SmallVec::from_buf([Piece { at, bytes, physical: at }]);
        }
        let piece = |(start, mapping): (u64, &Mapping)| {
            let from = start.max(at);
            let to = (start + mapping.bytes).min(at.saturating_add(bytes));
            Piece { at: from, bytes: to - from, physical: mapping.physical + (from - start) }
        };
        self.stretch(at, bytes).map(piece).collect()
    }

    /// Records a use of the mappings in the range.
    pub(crate) fn record_use(&mut self, range: AddressRange, access: &Access) {
        let at = range.start();
        if !is_virtual(at) {
            return;
        }
        let first = self.around(at).map_or(at, |(start, _)| start);
        for (&start, mapping) in self.0.range_mut(first..range.end()) {
            let used =
                AddressRange::between(start.max(at), (start + mapping.bytes).min(range.end()));
            let stream = access.epoch().stream;
            let writes = access.kind.writes();
            // A write needs more rights: a later read does not hide it.
            mapping.used.retain(|used| {
                used.access.epoch().stream != stream || (used.access.kind.writes() && !writes)
            });
            mapping.used.push(Use { access: access.clone(), bytes: used });
        }
    }

    /// Returns the mappings of the range, in order, up to the first hole.
    fn stretch(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, &Mapping)> {
        let end = at.saturating_add(bytes);
        let mut next = at;
        let first = self.around(at).map(|(start, _)| start);
        first.into_iter().flat_map(move |first| self.0.range(first..end)).map_while(
            move |(&start, mapping)| {
                let is_next = start <= next;
                next = start + mapping.bytes;
                is_next.then_some((start, mapping))
            },
        )
    }
}

//! The effects of the virtual memory calls: reserve addresses, create physical memory, map it,
//! and set access rights.

use std::collections::BTreeSet;

use crate::abi::*;
use crate::access::{AddressRange, Origin, Site};
use crate::check::{Findings, Report, ReportKind};
use crate::machine::Machine;
use crate::memory::virtual_memory::{GRANULARITY, is_granular};
use crate::memory::{Mapping, Physical, Reserved, Rights};

impl Machine {
    /// `cuMemAddressReserve`.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64, hint: u64) -> Outcome<u64> {
        if !is_granular(bytes) || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(ERROR_INVALID_VALUE);
        }
        let alignment = alignment.max(GRANULARITY);
        let origin = self.origin("reserve addresses");
        let addresses = &mut self.virtual_memory.addresses;
        let at = if hint.is_multiple_of(alignment) && addresses.take_at(hint, bytes) {
            hint
        } else {
            addresses.take_aligned(bytes, alignment).ok_or(ERROR_OUT_OF_MEMORY)?
        };
        self.check(move |machine| machine.checks.shadow.unreserve(AddressRange::new(at, bytes)));
        self.virtual_memory.reserved.insert(at, Reserved { bytes, origin });
        Ok(at)
    }

    /// `cuMemAddressFree`.
    pub(crate) fn unreserve(&mut self, at: u64, bytes: u64) -> Outcome {
        let reserved = self.virtual_memory.reserved.get(&at);
        let is_whole = reserved.is_some_and(|reserved| reserved.bytes == bytes);
        if !is_whole || self.memory.present.mappings.overlaps(at, bytes) {
            return Err(ERROR_INVALID_VALUE);
        }
        self.virtual_memory.reserved.remove(&at);
        self.virtual_memory.addresses.free_range(at, bytes);
        self.check(move |machine| machine.checks.shadow.unreserve(AddressRange::new(at, bytes)));
        Ok(())
    }

    /// `cuMemCreate`.
    pub(crate) fn create(
        &mut self,
        device: usize,
        bytes: u64,
        properties: CUmemAllocationProp,
    ) -> Outcome<u32> {
        if !is_granular(bytes) {
            return Err(ERROR_INVALID_VALUE);
        }
        let at = self.take_from_device(device, bytes).ok_or(ERROR_OUT_OF_MEMORY)?;
        self.check(move |machine| {
            machine.checks.shadow.clear_physical(AddressRange::new(at, bytes))
        });
        let origin = self.origin("create memory");
        let references = 1;
        let mappings = 0;
        let memory = Physical { at, bytes, device, properties, references, mappings, origin };
        let index = self.virtual_memory.next;
        self.virtual_memory.next += 1;
        self.virtual_memory.physical.insert(index, memory);
        Ok(index)
    }

    /// `cuMemGetAllocationPropertiesFromHandle`.
    pub(crate) fn properties(&mut self, memory: u32) -> Outcome<CUmemAllocationProp> {
        self.virtual_memory.held(memory).map(|memory| memory.properties)
    }

    /// `cuMemRelease`.
    pub(crate) fn release(&mut self, memory: u32) -> Outcome {
        self.virtual_memory.held(memory)?.references -= 1;
        self.end_physical(memory);
        Ok(())
    }

    /// `cuMemRetainAllocationHandle`.
    pub(crate) fn retain(&mut self, at: u64) -> Outcome<u32> {
        let memory = self.memory.present.mappings.around(at).ok_or(ERROR_INVALID_VALUE)?.1.memory;
        let physical = self.virtual_memory.physical.get_mut(&memory).ok_or(ERROR_INVALID_VALUE)?;
        physical.references += 1;
        Ok(memory)
    }

    /// `cuMemMap`: of a whole memory, which is checked before the addresses.
    pub(crate) fn map(&mut self, at: u64, bytes: u64, offset: u64, memory: u32) -> Outcome {
        let origin = self.origin("map");
        let is_free = self.virtual_memory.is_mappable(at, bytes)
            && !self.memory.present.mappings.overlaps(at, bytes);
        let physical = self.virtual_memory.held(memory)?;
        if bytes == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if offset != 0 || bytes != physical.bytes {
            return Err(ERROR_NOT_SUPPORTED);
        }
        if !is_free {
            return Err(ERROR_INVALID_VALUE);
        }
        physical.mappings += 1;
        let mapping = Mapping::new(bytes, memory, physical.at, origin);
        self.memory.present.mappings.insert(at, mapping.clone());
        self.check(move |machine| machine.checks.shadow.map(at, mapping));
        Ok(())
    }

    /// `cuMemUnmap`: does not wait, so the program must have waited. The range may have no mapping.
    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Outcome {
        let whole = self.mapped_in(at, bytes)?;
        let by = self.site("unmap");
        for start in whole {
            self.check_pending(start, Rights::None, &by);
            let by = by.clone();
            self.check(move |machine| machine.checks.shadow.unmap(start, by));
            if let Some(mapping) = self.memory.present.mappings.remove(start) {
                if let Some(physical) = self.virtual_memory.physical.get_mut(&mapping.memory) {
                    physical.mappings -= 1;
                }
                self.end_physical(mapping.memory);
            }
        }
        Ok(())
    }

    /// `cuMemSetAccess`, of one device: for the mappings in the range. There must be at least one.
    pub(crate) fn set_access(
        &mut self,
        at: u64,
        bytes: u64,
        device: usize,
        rights: Rights,
    ) -> Outcome {
        let whole = self.mapped_in(at, bytes)?;
        let is_out_of_reach = |start: &u64| {
            let mapping = self.memory.present.mappings.around(*start).map(|(_, mapping)| mapping);
            mapping.is_some_and(|it| it.device != device && !self.has_peer_path(device, it.device))
        };
        if rights > Rights::None && whole.iter().any(is_out_of_reach) {
            return Err(ERROR_INVALID_DEVICE);
        }
        // The driver sets the rights up to the first hole, and returns success if there is a
        // mapping behind it.
        let mut next = at;
        let mut reached = Vec::new();
        for &start in &whole {
            let Some((_, mapping)) = self.memory.present.mappings.around(start) else { break };
            if start != next {
                break;
            }
            next = start + mapping.bytes;
            reached.push(start);
        }
        let goes_on = reached.len() < whole.len();
        if reached.is_empty() || next != at.saturating_add(bytes) && !goes_on {
            return Err(ERROR_INVALID_VALUE);
        }
        let by = self.site("set access");
        for start in reached {
            let had = self.rights(start, device)?;
            if rights < had {
                self.check_pending(start, rights, &by);
            }
            self.memory.present.set_rights(start, device, rights);
            self.check(move |machine| machine.checks.shadow.map.set_rights(start, device, rights));
        }
        Ok(())
    }

    /// `cuMemGetAccess`.
    pub(crate) fn rights(&self, at: u64, device: usize) -> Outcome<Rights> {
        let (_, mapping) = self.memory.present.mappings.around(at).ok_or(ERROR_INVALID_VALUE)?;
        Ok(mapping.rights(device))
    }

    /// Reports mapped, reserved and physical memory at the end, but none with a block of a library
    /// (`has_blocks`).
    pub(crate) fn virtual_leaks(
        &self,
        has_blocks: &dyn Fn(u64, u64) -> bool,
        findings: &mut Findings,
    ) {
        let mut found = |device, at, bytes, origin: &Origin| {
            let memory = AddressRange::new(at, bytes);
            findings.push(Report { device, ..Report::leak(memory, origin.site(None)) });
        };
        let mut used = BTreeSet::new();
        for (at, mapping) in self.memory.present.mappings.iter() {
            if has_blocks(at, mapping.bytes) {
                used.insert(mapping.memory);
            } else {
                found(Some(mapping.device), at, mapping.bytes, &mapping.origin);
            }
        }
        for (&at, reserved) in &self.virtual_memory.reserved {
            if !has_blocks(at, reserved.bytes) {
                found(None, at, reserved.bytes, &reserved.origin);
            }
        }
        for (memory, physical) in &self.virtual_memory.physical {
            if physical.references > 0 && !used.contains(memory) {
                found(Some(physical.device), physical.at, physical.bytes, &physical.origin);
            }
        }
    }

    /// Returns the starts of the mappings in a range of pages, which must not cut one.
    fn mapped_in(&self, at: u64, bytes: u64) -> Outcome<Vec<u64>> {
        let whole = self.memory.present.mappings.whole(at, bytes);
        let whole = whole.filter(|_| self.virtual_memory.is_mappable(at, bytes));
        whole.ok_or(ERROR_INVALID_VALUE)
    }

    /// Reports a use of a mapping that the host has not found complete, and that needs more rights
    /// than `left`.
    fn check_pending(&mut self, start: u64, left: Rights, by: &Site) {
        let clock = self.host.of_this_thread();
        let by = by.clone();
        self.check(move |machine| {
            let clock = machine.checks.shadow.words.up_to_date(clock);
            let Some((_, mapping)) = machine.checks.shadow.map.mappings.around(start) else {
                return;
            };
            let is_complete = |epoch| clock.covers(epoch);
            let Some(used) = mapping.first_pending(is_complete, left) else { return };
            let found = Report::new(ReportKind::UnmapBeforeUse, by).after(Some(used.access.site()));
            machine.checks.findings.push(found.about(Some(mapping.device), used.bytes));
        });
    }

    /// Frees physical memory that has neither references nor mappings.
    fn end_physical(&mut self, memory: u32) {
        let Some(physical) = self.virtual_memory.physical.get(&memory) else { return };
        if physical.references > 0 || physical.mappings > 0 {
            return;
        }
        let device = physical.device;
        let at = physical.at;
        let bytes = physical.bytes;
        self.virtual_memory.physical.remove(&memory);
        self.check(move |machine| {
            machine.checks.shadow.clear_physical(AddressRange::new(at, bytes))
        });
        self.free_on_device(device, at, bytes);
    }
}

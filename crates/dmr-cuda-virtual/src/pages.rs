//! Addresses and pages apart: [`VirtualMemory`], and the table of what is mapped where.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr_core::{
    AddressRange, AllocTag, PhysicalMemory, RefusedMemory, RefusedRange, ResourceError,
    ResourceResult, VirtualMemory,
};

use crate::VirtualCudaResource;

/// What was created and not destroyed. Never locked across a driver call.
#[derive(Default)]
pub(crate) struct Pages(Mutex<Table>);

#[derive(Default)]
struct Table {
    created: HashMap<u64, Created>,
    /// Addresses that were set aside, by the first: their bytes.
    ranges: BTreeMap<u64, u64>,
    /// Bytes that were taken from the device, destroyed or not by a call that is under way.
    bytes: u64,
    stale: Vec<Stale>,
}

struct Created {
    bytes: u64,
    mapped_at: Vec<u64>,
}

/// A mapping that its owner knows nothing of: access could not be given, and it could not be
/// undone. It is tried again before whatever it is in the way of.
struct Stale {
    handle: u64,
    bytes: u64,
    address: u64,
    in_hand: bool,
}

impl Pages {
    /// Bytes that were taken from the device.
    pub(crate) fn bytes(&self) -> u64 {
        self.table().bytes
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let before = self.ranges.range(..=address).next_back();
        before.is_some_and(|(base, length)| address - base <= length.saturating_sub(bytes))
    }

    fn known(&mut self, memory: &PhysicalMemory) -> Option<&mut Created> {
        let created = self.created.get_mut(&memory.handle());
        created.filter(|created| created.bytes == memory.bytes())
    }
}

impl VirtualMemory for VirtualCudaResource {
    fn granularity(&self) -> u64 {
        self.driver.granularity()
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        self.check_granular(bytes)?;
        let base = self.driver.reserve(bytes)?;
        self.pages.table().ranges.insert(base, bytes);
        // SAFETY: the driver has just set them aside, and has them back only from `release`.
        Ok(unsafe { AddressRange::from_parts(base, bytes) })
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<RefusedRange>> {
        if let Err(error) = self.device().refuse_fork() {
            return Err(RefusedRange::new(error, range));
        }
        self.undo_stale();
        let (base, bytes) = (range.base(), range.bytes());
        // Taken out first: nothing is mapped there from now on.
        if self.pages.table().ranges.remove(&base).is_none() {
            return Err(RefusedRange::new(self.invalid("cuMemAddressFree"), range));
        }
        // SAFETY: whoever gives a range back has it from `reserve`, and does not use it any more.
        // The driver refuses it while anything is mapped there.
        if let Err(error) = unsafe { self.driver.release(base, bytes) } {
            self.pages.table().ranges.insert(base, bytes);
            return Err(RefusedRange::new(error, range));
        }
        Ok(())
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        self.check_granular(bytes)?;
        let total = self.device().total_memory();
        if bytes > total {
            return Err(ResourceError::beyond_device(bytes as usize, total));
        }
        if let Some(memory) = self.try_create(bytes, tag)? {
            return Ok(memory);
        }
        // Blocks that were given back may be in the way. What cannot be freed stays retired.
        let _ = self.try_sweep();
        let again = self.try_create(bytes, tag)?;
        again.ok_or_else(|| self.out_of_memory(bytes as usize))
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<RefusedMemory>> {
        match self.try_destroy(&memory) {
            Ok(()) => Ok(()),
            Err(error) => Err(RefusedMemory::new(error, memory)),
        }
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.device().check()?;
        self.undo_stale();
        self.check_known(memory)?;
        let (handle, bytes) = (memory.handle(), memory.bytes());
        // The driver does not look at the end of a range: it maps beyond it.
        if !self.pages.table().is_reserved(address, bytes) {
            return Err(self.invalid("cuMemMap"));
        }
        // SAFETY: known just now, and borrowed: it is alive until this returns. The addresses are
        // set aside; whether something is mapped there already, the driver knows.
        unsafe { self.driver.map(handle, bytes, address) }?;
        // SAFETY: just mapped.
        if let Err(error) = unsafe { self.driver.give_access(bytes, address) } {
            // SAFETY: just mapped, and nothing could use it without access.
            if unsafe { self.driver.unmap(bytes, address) }.is_err() {
                let stale = Stale { handle, bytes, address, in_hand: false };
                self.pages.table().stale.push(stale);
            }
            return Err(error);
        }
        if let Some(created) = self.pages.table().known(memory) {
            created.mapped_at.push(address);
        }
        Ok(())
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        self.check_known(memory)?;
        // Taken out first: of two threads that unmap the same, one finds nothing.
        let taken = self.pages.table().known(memory).and_then(|created| {
            let at = created.mapped_at.iter().position(|mapped| *mapped == address)?;
            Some(created.mapped_at.swap_remove(at))
        });
        if taken.is_none() {
            return Err(self.invalid("cuMemUnmap"));
        }
        // SAFETY: this memory is mapped there, as a whole; that the work is done is what whoever
        // unmaps answers for.
        let unmapped = unsafe { self.driver.unmap(memory.bytes(), address) };
        if unmapped.is_err()
            && let Some(created) = self.pages.table().known(memory)
        {
            created.mapped_at.push(address);
        }
        unmapped
    }
}

impl VirtualCudaResource {
    /// A file descriptor by which another process can import this memory
    /// (`cuMemImportFromShareableHandle`), for as long as either of them has it.
    ///
    /// # Errors
    ///
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver), also if
    /// [`export`](crate::VirtualConfig::export) was not set to
    /// [`PosixFileDescriptor`](crate::ExportHandle::PosixFileDescriptor).
    #[cfg(unix)]
    pub fn export(&self, memory: &PhysicalMemory) -> ResourceResult<std::os::fd::OwnedFd> {
        self.device().refuse_fork()?;
        self.check_known(memory)?;
        // SAFETY: known just now, and borrowed: it is alive until this returns.
        unsafe { self.driver.export(memory.handle()) }
    }

    /// `None` if the device has no room.
    pub(crate) fn try_create(
        &self,
        bytes: u64,
        tag: AllocTag,
    ) -> ResourceResult<Option<PhysicalMemory>> {
        let Some(handle) = self.driver.create(bytes)? else { return Ok(None) };
        let mut table = self.pages.table();
        table.created.insert(handle, Created { bytes, mapped_at: Vec::new() });
        table.bytes += bytes;
        // SAFETY: the driver has just created these bytes, and has them back only from `destroy`.
        Ok(Some(unsafe { PhysicalMemory::from_parts(handle, bytes, self.device().ordinal(), tag) }))
    }

    fn try_destroy(&self, memory: &PhysicalMemory) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        self.undo_stale();
        let (handle, bytes) = (memory.handle(), memory.bytes());
        let created = {
            let mut table = self.pages.table();
            let stale = table.stale.iter().filter(|stale| stale.handle == handle).count();
            let Some(created) = table.known(memory) else { return Err(self.foreign(memory)) };
            let mappings = created.mapped_at.len() + stale;
            if mappings > 0 {
                return Err(ResourceError::still_mapped(memory, mappings as u32));
            }
            table.created.remove(&handle)
        };
        // SAFETY: it has just left the table, where it was mapped nowhere; its owner gives it back.
        let destroyed = unsafe { self.driver.destroy(handle) };
        let mut table = self.pages.table();
        match &destroyed {
            Ok(()) => table.bytes -= bytes,
            Err(_) => table.created.extend(created.map(|created| (handle, created))),
        }
        destroyed
    }

    /// Undoes what could not be undone before. What still cannot be stays.
    pub(crate) fn undo_stale(&self) {
        if self.device().is_forked() {
            return;
        }
        loop {
            let next = {
                let mut table = self.pages.table();
                let Some(stale) = table.stale.iter_mut().find(|stale| !stale.in_hand) else {
                    break;
                };
                stale.in_hand = true;
                (stale.bytes, stale.address)
            };
            // SAFETY: mapped as a whole, by `map`, and nothing could use it without access.
            let undone = unsafe { self.driver.unmap(next.0, next.1) };
            let mut table = self.pages.table();
            if undone.is_ok() {
                table.stale.retain(|stale| stale.address != next.1);
                continue;
            }
            for stale in table.stale.iter_mut().filter(|stale| stale.address == next.1) {
                stale.in_hand = false;
            }
            break;
        }
    }

    fn check_granular(&self, bytes: u64) -> ResourceResult<()> {
        let granularity = self.driver.granularity();
        let requested = usize::try_from(bytes).unwrap_or(usize::MAX);
        match bytes {
            0 => Err(ResourceError::zero_size()),
            _ if bytes.is_multiple_of(granularity) => Ok(()),
            _ => Err(ResourceError::not_granular(requested, granularity)),
        }
    }

    /// What the driver answers, or would if it looked.
    fn invalid(&self, call: &'static str) -> ResourceError {
        const INVALID_VALUE: i32 = 1;
        let (name, ordinal) = ("CUDA_ERROR_INVALID_VALUE", self.device().ordinal());
        ResourceError::driver(call, INVALID_VALUE, name, ordinal)
    }

    fn check_known(&self, memory: &PhysicalMemory) -> ResourceResult<()> {
        let is_known = self.pages.table().known(memory).is_some();
        if is_known { Ok(()) } else { Err(self.foreign(memory)) }
    }

    fn foreign(&self, memory: &PhysicalMemory) -> ResourceError {
        ResourceError::foreign_memory(memory, self.device().ordinal())
    }
}

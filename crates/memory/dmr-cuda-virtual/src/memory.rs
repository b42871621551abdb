//! [`VirtualMemory`]: reserving addresses, creating memory, and mapping memory at addresses.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard};

use dmr_core::sync::{ignore_poison, lock};
use dmr_core::{
    AddressRange, AllocTag, DestroyError, PhysicalMemory, ReleaseError, ResourceError,
    ResourceResult, VirtualMemory,
};
use dmr_streams::uses::Patience;

use crate::VirtualCudaResource;

/// The memory and the mappings that a resource has from the driver. Never locked across a driver
/// call.
#[derive(Default)]
pub(crate) struct Memory {
    table: Mutex<MappingTable>,
    /// Notified when the state of a stale mapping has changed.
    stale_changed: Condvar,
    /// Held while a device is granted access, by one call at a time.
    granting: Mutex<()>,
}

#[derive(Default)]
struct MappingTable {
    /// Created and not destroyed, by handle.
    created: HashMap<u64, Created>,
    /// Bytes of each reserved range, by its first address.
    ranges: BTreeMap<u64, u64>,
    /// Bytes of all created memory, including what is being destroyed.
    bytes: u64,
    stale: Vec<StaleMapping>,
    /// The ordinals of other devices that can access the mappings.
    peers: Vec<usize>,
}

struct Created {
    bytes: u64,
    /// The addresses that it is mapped at, stale mappings excluded.
    mapped_at: Vec<u64>,
}

/// A mapping that a failed [`map`](VirtualMemory::map) left behind: neither could access be set nor
/// the mapping be undone. It is undone before the next call that it would make fail.
#[derive(Clone, Copy)]
struct StaleMapping {
    handle: u64,
    bytes: u64,
    address: u64,
    /// A thread is unmapping it.
    is_unmapping: bool,
}

impl Memory {
    /// Returns the bytes of all created memory, including what is being destroyed.
    pub(crate) fn bytes(&self) -> u64 {
        self.table().bytes
    }

    fn table(&self) -> MutexGuard<'_, MappingTable> {
        lock(&self.table)
    }

    fn wait_for_stale<'t>(
        &self,
        table: MutexGuard<'t, MappingTable>,
    ) -> MutexGuard<'t, MappingTable> {
        ignore_poison(self.stale_changed.wait(table))
    }
}

/// Memory that is mapped at an address.
struct Mapping {
    handle: u64,
    bytes: u64,
    address: u64,
}

impl MappingTable {
    /// Returns whether one reserved range contains all of these addresses.
    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let before = self.ranges.range(..=address).next_back();
        before.is_some_and(|(base, length)| address - base <= length.saturating_sub(bytes))
    }

    fn mappings(&self) -> Vec<Mapping> {
        let each = self.created.iter().flat_map(|(&handle, created)| {
            let mapping = move |&address| Mapping { handle, bytes: created.bytes, address };
            created.mapped_at.iter().map(mapping)
        });
        each.collect()
    }

    fn is_mapped(&self, handle: u64, address: u64) -> bool {
        self.created.get(&handle).is_some_and(|it| it.mapped_at.contains(&address))
    }

    fn created(&mut self, memory: &PhysicalMemory) -> Option<&mut Created> {
        let created = self.created.get_mut(&memory.handle());
        created.filter(|created| created.bytes == memory.bytes())
    }
}

impl StaleMapping {
    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address.saturating_add(bytes)
            && address < self.address.saturating_add(self.bytes)
    }
}

impl VirtualMemory for VirtualCudaResource {
    fn granularity(&self) -> u64 {
        self.driver.granularity()
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        self.check_granular(bytes)?;
        let base = self.driver.reserve(bytes)?;
        self.memory.table().ranges.insert(base, bytes);
        // SAFETY: the driver has just reserved them, and only `release` frees them.
        Ok(unsafe { AddressRange::from_parts(base, bytes) })
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<ReleaseError>> {
        let base = range.base();
        let bytes = range.bytes();
        match self.try_release(base, bytes) {
            Ok(()) => Ok(()),
            Err(error) => Err(ReleaseError::new(error, range)),
        }
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
        // Retired blocks may have the memory. A block that cannot be freed stays retired.
        let _ = self.sweep(Patience::Poll);
        let again = self.try_create(bytes, tag)?;
        again.ok_or_else(|| self.out_of_memory(bytes as usize))
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        match self.try_destroy(&memory) {
            Ok(()) => Ok(()),
            Err(error) => Err(DestroyError::new(error, memory)),
        }
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.device().check()?;
        self.check_created(memory)?;
        let handle = memory.handle();
        let bytes = memory.bytes();
        // The driver does not check the end of a range: it maps beyond it.
        if !self.memory.table().is_reserved(address, bytes) {
            return Err(self.invalid_value("cuMemMap"));
        }
        self.undo_stale(|stale| stale.overlaps(address, bytes))?;
        // SAFETY: the memory is in the table, and borrowed: it is not destroyed before this
        // returns. The addresses are reserved; the driver refuses those that are mapped.
        unsafe { self.driver.map(handle, bytes, address) }?;
        let mut peers = self.memory.table().peers.clone();
        loop {
            // SAFETY: just mapped.
            if let Err(error) = unsafe { self.driver.set_access(bytes, address, &peers) } {
                // SAFETY: just mapped, and the caller has not got the mapping: no work can have
                // used it.
                if unsafe { self.driver.unmap(bytes, address) }.is_err() {
                    let stale = StaleMapping { handle, bytes, address, is_unmapping: false };
                    self.memory.table().stale.push(stale);
                }
                return Err(error);
            }
            let mut table = self.memory.table();
            // A device that was added since did not find this mapping in the table.
            if table.peers == peers {
                if let Some(created) = table.created(memory) {
                    created.mapped_at.push(address);
                }
                return Ok(());
            }
            peers.clone_from(&table.peers);
        }
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        self.check_created(memory)?;
        // Removed first: of two threads that unmap the same mapping, one does not find it.
        let removed = self.memory.table().created(memory).and_then(|created| {
            let at = created.mapped_at.iter().position(|mapped| *mapped == address)?;
            Some(created.mapped_at.swap_remove(at))
        });
        if removed.is_none() {
            return Err(self.invalid_value("cuMemUnmap"));
        }
        // SAFETY: all of this memory is mapped there. That the work is done is the caller's
        // obligation.
        let unmapped = unsafe { self.driver.unmap(memory.bytes(), address) };
        if unmapped.is_err()
            && let Some(created) = self.memory.table().created(memory)
        {
            created.mapped_at.push(address);
        }
        unmapped
    }
}

impl VirtualCudaResource {
    /// Returns a file descriptor by which another process can import the memory
    /// (`cuMemImportFromShareableHandle`), as long as one of the processes holds it.
    ///
    /// # Errors
    ///
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver),
    /// including if [`export`](crate::VirtualConfig::export) is not
    /// [`PosixFileDescriptor`](crate::ExportHandle::PosixFileDescriptor).
    #[cfg(unix)]
    pub fn export(&self, memory: &PhysicalMemory) -> ResourceResult<std::os::fd::OwnedFd> {
        self.device().refuse_fork()?;
        self.check_created(memory)?;
        // SAFETY: the memory is in the table, and borrowed: it is not destroyed before this
        // returns.
        unsafe { self.driver.export(memory.handle()) }
    }

    /// Makes all mappings accessible to another device, also those that are made later.
    pub(crate) fn add_peer(&self, peer: usize) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        let _granting = lock(&self.memory.granting);
        self.device().bind()?;
        let mut table = self.memory.table();
        if peer == self.device().ordinal() || table.peers.contains(&peer) {
            return Ok(());
        }
        table.peers.push(peer);
        let mappings = table.mappings();
        let peers = table.peers.clone();
        drop(table);
        for Mapping { handle, bytes, address } in mappings {
            // SAFETY: it was a mapping, and the context is current. If another thread has unmapped
            // it since, the driver refuses the call, or sets the access of a new mapping there, to
            // which it was set already.
            let set = unsafe { self.driver.set_access(bytes, address, &peers) };
            let mut table = self.memory.table();
            if let Err(error) = set
                && table.is_mapped(handle, address)
            {
                table.peers.retain(|known| *known != peer);
                return Err(error);
            }
        }
        self.device().check()
    }

    /// Creates memory. Returns `None` if the device has too little.
    pub(crate) fn try_create(
        &self,
        bytes: u64,
        tag: AllocTag,
    ) -> ResourceResult<Option<PhysicalMemory>> {
        let Some(handle) = self.driver.create(bytes)? else { return Ok(None) };
        let mut table = self.memory.table();
        table.created.insert(handle, Created { bytes, mapped_at: Vec::new() });
        table.bytes += bytes;
        // SAFETY: the driver has just created these bytes, and only `destroy` releases them.
        Ok(Some(unsafe { PhysicalMemory::from_parts(handle, bytes, self.device().ordinal(), tag) }))
    }

    fn try_destroy(&self, memory: &PhysicalMemory) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        let handle = memory.handle();
        let bytes = memory.bytes();
        // A mapping that cannot be undone is counted below.
        let _ = self.undo_stale(|stale| stale.handle == handle);
        let created = {
            let mut table = self.memory.table();
            let stale = table.stale.iter().filter(|stale| stale.handle == handle).count();
            let Some(created) = table.created(memory) else { return Err(self.foreign(memory)) };
            let mappings = created.mapped_at.len() + stale;
            if mappings > 0 {
                return Err(ResourceError::still_mapped(memory, mappings as u32));
            }
            table.created.remove(&handle)
        };
        // SAFETY: it was in the table, without a mapping, and its owner no longer uses it.
        let destroyed = unsafe { self.driver.destroy(handle) };
        let mut table = self.memory.table();
        match &destroyed {
            Ok(()) => table.bytes -= bytes,
            Err(_) => table.created.extend(created.map(|created| (handle, created))),
        }
        destroyed
    }

    fn try_release(&self, base: u64, bytes: u64) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        self.undo_stale(|stale| stale.overlaps(base, bytes))?;
        // Removed first: nothing is mapped there from now on.
        if self.memory.table().ranges.remove(&base).is_none() {
            return Err(self.invalid_value("cuMemAddressFree"));
        }
        // SAFETY: the addresses come from `reserve`, and their owner no longer uses them. The
        // driver refuses a range in which something is mapped.
        let released = unsafe { self.driver.release(base, bytes) };
        if released.is_err() {
            self.memory.table().ranges.insert(base, bytes);
        }
        released
    }

    /// Unmaps the stale mappings that match `is_in_the_way`. Where another thread is unmapping one
    /// of them, waits for that driver call.
    ///
    /// # Errors
    ///
    /// The first mapping that cannot be unmapped stays stale.
    fn undo_stale(&self, is_in_the_way: impl Fn(&StaleMapping) -> bool) -> ResourceResult<()> {
        let mut table = self.memory.table();
        while let Some(stale) = table.stale.iter_mut().find(|stale| is_in_the_way(stale)) {
            if stale.is_unmapping {
                table = self.memory.wait_for_stale(table);
                continue;
            }
            stale.is_unmapping = true;
            let StaleMapping { bytes, address, .. } = *stale;
            drop(table);
            // SAFETY: `map` mapped all of it, and without access no work can have used it.
            let unmapped = unsafe { self.driver.unmap(bytes, address) };
            table = self.memory.table();
            match &unmapped {
                Ok(()) => table.stale.retain(|stale| stale.address != address),
                Err(_) => {
                    let stale = table.stale.iter_mut().find(|stale| stale.address == address);
                    stale.into_iter().for_each(|stale| stale.is_unmapping = false);
                }
            }
            self.memory.stale_changed.notify_all();
            unmapped?;
        }
        Ok(())
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

    /// Returns the error that the driver reports for addresses or handles that it does not accept.
    fn invalid_value(&self, call: &'static str) -> ResourceError {
        const INVALID_VALUE: i32 = 1;
        let name = "CUDA_ERROR_INVALID_VALUE";
        let ordinal = self.device().ordinal();
        ResourceError::driver(call, INVALID_VALUE, name, ordinal)
    }

    fn check_created(&self, memory: &PhysicalMemory) -> ResourceResult<()> {
        let is_created = self.memory.table().created(memory).is_some();
        if is_created { Ok(()) } else { Err(self.foreign(memory)) }
    }

    fn foreign(&self, memory: &PhysicalMemory) -> ResourceError {
        ResourceError::foreign_memory(memory, self.device().ordinal())
    }
}

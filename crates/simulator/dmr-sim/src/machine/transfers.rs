//! The effects of the driver's memory calls: allocate, free, fill, copy.

use std::ffi::c_void;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::abi::*;
use crate::access::{AccessKind, AccessedRanges, AddressRange, Clock, Epoch, Operation, Site};
use crate::machine::{Action, CopyWork, FillWork, HostPtr, Machine, NodeWork, Rows, Session};
use crate::memory::{Allocation, Grant, Home, Known, Rights, address::ALIGNMENT, driver_pool};

impl Machine {
    /// `cuMemAlloc`: of exactly these bytes, and ordered before all later work of the caller.
    pub(crate) fn allocate_now(&mut self, device: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let set_aside = driver_pool::set_aside(bytes).ok_or(ERROR_OUT_OF_MEMORY)?;
        let at = self.take_from_device(device, set_aside).ok_or(ERROR_OUT_OF_MEMORY)?;
        let origin = self.origin("allocate");
        let home = Home::Device(device);
        self.add_allocation(at, Allocation { bytes, home, made: None, origin, tag: None });
        Ok(at)
    }

    /// `cuMemAllocAsync` from a pool.
    pub(crate) fn allocate_from_pool(
        &mut self,
        pool: u32,
        bytes: u64,
        stream: u32,
    ) -> Outcome<u64> {
        let device = self.pool(pool)?.device;
        if bytes == 0 {
            return Ok(0); // the driver returns the null pointer, and accepts it in a free
        }
        // The stream's work comes after the work that the host has found complete.
        self.join_host_clock(stream);
        let grant = self.grant(pool, bytes, stream, device)?;
        let (epoch, mut deps) = self.begin(stream);
        deps.extend(grant.wait_for);
        self.push(epoch, deps, Action::Order);
        let origin = self.origin("allocate");
        let made = Some(Operation { epoch, origin: origin.clone() });
        let home = Home::Pool { device, pool };
        self.add_allocation(grant.at, Allocation { bytes, home, made, origin, tag: None });
        Ok(grant.at)
    }

    /// `cuMemFreeAsync`.
    pub(crate) fn free_on_stream(&mut self, at: u64, stream: u32) -> Outcome {
        if at == 0 {
            return Ok(());
        }
        self.device_block(at)?;
        let (epoch, deps) = self.begin(stream);
        let origin = self.origin("free");
        let by = origin.site(Some(epoch));
        let freed = self.remove_allocation(at, by, self.streams[stream as usize].clock.clone());
        let action = match freed {
            Some(Allocation { home: Home::Pool { pool, .. }, .. }) => {
                self.pools[pool as usize].free(at, Some(epoch));
                Action::Order
            }
            // Not documented, but an H200 (driver 580) accepts memory of cuMemAlloc here.
            Some(Allocation { home: Home::Device(_), bytes, .. }) => {
                Action::GiveBack { at, bytes: bytes.next_multiple_of(ALIGNMENT) }
            }
            Some(Allocation { home: Home::Graph(device), bytes, .. }) => {
                self.free_in_graph(device, bytes);
                self.graphs.frees.insert(at, Operation { epoch, origin });
                Action::Order
            }
            Some(Allocation { home: Home::Host, .. }) | None => Action::Order,
        };
        self.push(epoch, deps, action);
        Ok(())
    }

    /// Returns the origin of the block of device memory at `at`; reports a free of anything else.
    fn device_block(&mut self, at: u64) -> Outcome<Home> {
        let home = self.memory.present.allocation(at).map(|allocation| allocation.home);
        if let Some(home) = home.filter(|home| *home != Home::Host) {
            return Ok(home);
        }
        let by = self.site("free");
        self.check(move |machine| {
            machine.checks.findings.push(machine.checks.shadow.bad_free(at, by))
        });
        Err(ERROR_INVALID_VALUE)
    }

    /// Submits a memset. Returns `None` if it is empty, or becomes part of a graph.
    pub(crate) fn fill(&mut self, stream: u32, work: FillWork) -> Outcome<Option<Epoch>> {
        if work.rows.is_empty() || self.capture(stream, || NodeWork::Fill(work.clone()))? {
            return Ok(None);
        }
        let FillWork { rows, pattern } = work;
        let fill = |at| Action::Fill { at, len: rows.len, pattern };
        let action = || rows.starts.iter().map(|&at| fill(at)).collect();
        self.transfer("memset", stream, &[], &rows.ranges(), None, action).map(Some)
    }

    /// Submits a copy between memory that the device reads and writes when the operation executes.
    /// Pageable memory, which only a copy of a graph has, is not checked: the program keeps it
    /// valid until then. A copy by address needs the right to memory of other devices that is not
    /// of `cuMemAlloc`.
    pub(crate) fn copy(&mut self, stream: u32, work: &CopyWork) -> Outcome<Epoch> {
        let devices: SmallVec<[usize; 8]> = (0..self.devices.len()).collect();
        let peers = work.by_address.then_some(&devices[..]);
        let copy = |(to, from)| Action::Copy { to, from, len: work.to.len };
        let action = || work.pairs().map(copy).collect();
        let unless = |is_host, rows: &Rows| if is_host { SmallVec::new() } else { rows.ranges() };
        let reads = unless(work.from_host, &work.from);
        let writes = unless(work.to_host, &work.to);
        self.transfer("copy", stream, &reads, &writes, peers, action)
    }

    /// Submits a copy from pageable memory, whose bytes `take` reads now, row by row.
    pub(crate) fn copy_in(
        &mut self,
        stream: u32,
        work: &CopyWork,
        take: impl Fn(u64) -> Box<[u8]>,
    ) -> Outcome<Epoch> {
        let write = |(to, from)| Action::Write { to, bytes: take(from) };
        let action = || work.pairs().map(write).collect();
        self.transfer("copy", stream, &[], &work.to.ranges(), None, action)
    }

    /// Submits a copy to pageable memory: the caller must run it before it returns.
    pub(crate) fn copy_out(&mut self, stream: u32, work: &CopyWork) -> Outcome<Epoch> {
        let read = |(to, from)| {
            let to = HostPtr(to as usize as *mut c_void);
            Action::ReadOut { from, to, len: work.from.len }
        };
        let action = || work.pairs().map(read).collect();
        self.transfer("copy", stream, &work.from.ranges(), &[], None, action)
    }

    /// Queues a memset or copy. One that leaves an allocation is reported, and refused, as by the
    /// driver; it does nothing.
    fn transfer(
        &mut self,
        name: &'static str,
        stream: u32,
        reads: &[AddressRange],
        writes: &[AddressRange],
        peers: Option<&[usize]>,
        actions: impl FnOnce() -> Vec<Action>,
    ) -> Outcome<Epoch> {
        let (epoch, deps) = self.begin(stream);
        let origin = self.origin(name);
        let operation = Operation { epoch, origin: self.declared(stream, origin) };
        let valid = !self.is_illegal(stream, reads, writes, peers);
        let mut shown_reads = reads;
        let mut shown_writes = writes;
        if !valid && reads.len().max(writes.len()) > 1 {
            // One report is enough for many rows: of the first that leaves the allocation.
            let out = |range: &&AddressRange| self.is_illegal(stream, &[**range], &[], peers);
            shown_reads = reads.iter().find(out).map_or(&[], std::slice::from_ref);
            let out = |range: &&AddressRange| self.is_illegal(stream, &[], &[**range], peers);
            shown_writes = writes.iter().find(out).map_or(&[], std::slice::from_ref);
        }
        let ranges = [
            AccessedRanges::new(AccessKind::Read, shown_reads),
            AccessedRanges::new(AccessKind::Write, shown_writes),
        ];
        self.access(&operation, &ranges, peers, valid);
        let mut actions = if valid { actions() } else { vec![Action::Order] };
        let action = match actions.len() {
            1 => actions.swap_remove(0),
            _ => Action::Several(actions),
        };
        self.push(epoch, deps, action);
        if valid { Ok(epoch) } else { Err(ERROR_INVALID_VALUE) }
    }

    /// Releases unused pool memory down to the threshold, as a synchronisation does.
    pub(crate) fn apply_release_thresholds(&mut self) {
        for pool in 0..self.pools.len() {
            let keep = self.pools[pool].release_threshold;
            self.trim(pool, keep);
        }
        self.release_graph_addresses();
    }

    /// Returns fully free chunks of a pool to the device, as long as `keep` bytes stay
    /// reserved.
    pub(crate) fn trim(&mut self, pool: usize, keep: u64) {
        let streams = &self.streams;
        let executed = |epoch: Epoch| streams[epoch.stream as usize].executed >= epoch.seq;
        let device = self.pools[pool].device;
        for chunk in self.pools[pool].release(keep, executed) {
            self.free_on_device(device, chunk.start(), chunk.len());
        }
    }

    fn grant(&mut self, pool: u32, bytes: u64, stream: u32, device: usize) -> Outcome<Grant> {
        let grown =
            bytes.checked_next_multiple_of(driver_pool::CHUNK).ok_or(ERROR_OUT_OF_MEMORY)?;
        if let Some(grant) = self.with_pool(pool, stream, |pool, known| pool.reuse(bytes, known)) {
            return Ok(grant);
        }
        if self.pools[pool as usize].may_grow(grown)
            && let Some(at) = self.take_from_device(device, grown)
        {
            self.pools[pool as usize].grow(at, grown);
        }
        self.with_pool(pool, stream, |pool, known| {
            pool.reuse(bytes, known).or_else(|| pool.reuse_by_waiting(bytes, known))
        })
        .ok_or(ERROR_OUT_OF_MEMORY)
    }

    fn with_pool<T>(
        &mut self,
        pool: u32,
        stream: u32,
        ask: impl FnOnce(&mut driver_pool::DriverPool, &Known<'_>) -> T,
    ) -> T {
        let streams = &self.streams;
        let executed = |epoch: Epoch| streams[epoch.stream as usize].executed >= epoch.seq;
        let clock = &streams[stream as usize].clock;
        let host = &self.host.of_this_thread();
        ask(&mut self.pools[pool as usize], &Known { stream, clock, host, executed: &executed })
    }

    /// Sets the right of `device` to the memory of a pool of another device.
    pub(crate) fn set_pool_rights(&mut self, pool: u32, device: usize, rights: Rights) {
        self.memory.present.set_pool_rights(pool, device, rights);
        self.check(move |machine| machine.checks.shadow.map.set_pool_rights(pool, device, rights));
    }

    /// Names an allocation or region for reports.
    pub(crate) fn name_allocation(&mut self, at: u64, tag: Arc<str>) {
        self.check(move |machine| machine.checks.shadow.name(at, tag));
    }

    /// Adds an allocation. All uses by previous owners of the addresses are complete: the driver
    /// has waited for them.
    pub(crate) fn add_allocation(&mut self, at: u64, allocation: Allocation) {
        self.memory.present.insert(at, allocation.clone());
        self.check(move |machine| machine.checks.shadow.allocate(at, allocation));
    }

    /// Removes the allocation at `at`; its free is ordered after all of `clock`.
    pub(crate) fn remove_allocation(
        &mut self,
        at: u64,
        by: Site,
        clock: Clock,
    ) -> Option<Allocation> {
        let freed = self.memory.present.remove(at);
        if let Some(freed) = &freed
            && !self.checks.log.is_empty()
        {
            self.memory.late_frees.add(at, freed);
        }
        self.check_after(clock, move |shadow, before, out| shadow.free(at, by, before, out));
        freed
    }

    /// Takes addresses and as many bytes of a device.
    pub(crate) fn take_from_device(&mut self, device: usize, bytes: u64) -> Option<u64> {
        if !self.has_free(device, bytes) {
            return None;
        }
        let device = &mut self.devices[device];
        let at = device.addresses.take(bytes)?;
        device.used += bytes;
        Some(at)
    }

    /// Returns whether a device has these bytes free, if need be after a trim of the memory of
    /// graphs.
    pub(crate) fn has_free(&mut self, device: usize, bytes: u64) -> bool {
        let is_free = |machine: &Self| {
            bytes <= machine.config.capacity.saturating_sub(machine.devices[device].used)
        };
        is_free(self) || {
            self.trim_graph_memory(device);
            is_free(self)
        }
    }

    pub(crate) fn free_on_device(&mut self, device: usize, at: u64, bytes: u64) {
        self.memory.store.erase(at, bytes);
        let device = &mut self.devices[device];
        device.addresses.release(at, bytes);
        device.used -= bytes;
    }
}

impl Session<'_> {
    /// `cuMemFree`: waits for all work of the device, if the memory is not a pool's. That need not
    /// be all work on the memory: other devices may use it.
    pub(crate) fn free_now(&mut self, at: u64) -> Outcome {
        if let Home::Device(device) | Home::Graph(device) = self.device_block(at)? {
            self.synchronize(|stream| stream.device == device);
        }
        let by = self.site("free");
        let clock = self.host.of_this_thread();
        let machine = &mut **self;
        let freed = machine.remove_allocation(at, by, clock);
        match freed.ok_or(ERROR_INVALID_VALUE)? {
            Allocation { home: Home::Device(device), bytes, .. } => {
                machine.free_on_device(device, at, bytes.next_multiple_of(ALIGNMENT));
            }
            Allocation { home: Home::Pool { pool, .. }, .. } => {
                machine.pools[pool as usize].free(at, None);
            }
            Allocation { home: Home::Graph(device), bytes, .. } => {
                machine.free_in_graph(device, bytes);
            }
            Allocation { home: Home::Host, .. } => {}
        }
        Ok(())
    }
}

//! What the driver's memory calls do: allocating, freeing, filling, copying.

use std::alloc::Layout;
use std::sync::Arc;

use crate::abi::*;
use crate::address::ALIGNMENT;
use crate::clock::Epoch;
use crate::driver_pool::{self, Grant, Known};
use crate::engine::Deps;
use crate::history::Access;
use crate::machine::{Action, HostPtr, Machine};
use crate::report::Site;
use crate::session::Session;
use crate::shadow::{Allocation, Home};

/// Pinned memory starts on a page.
const PAGE: usize = 4096;

impl Machine {
    /// `cuMemAlloc`: exact, and ordered before whatever the caller submits next.
    pub(crate) fn allocate_now(&mut self, device: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let set_aside = driver_pool::set_aside(bytes).ok_or(ERROR_OUT_OF_MEMORY)?;
        let at = self.take_from_device(device, set_aside).ok_or(ERROR_OUT_OF_MEMORY)?;
        let origin = self.origin("allocate");
        let home = Home::Device(device);
        self.shadow.allocate(at, Allocation { bytes, home, made: None, origin, tag: None });
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
            return Ok(0); // the driver gives the null pointer, and takes it back
        }
        // The stream knows at the call what the host knows.
        self.join_host_clock(stream);
        let grant = self.grant(pool, bytes, stream, device)?;
        let (epoch, mut deps) = self.begin(stream);
        deps.extend(grant.wait_for);
        self.push(epoch, deps, Action::Order);
        let origin = self.origin("allocate");
        let made = Some(Access { epoch, origin: origin.clone() });
        let home = Home::Pool { device, pool };
        self.shadow.allocate(grant.at, Allocation { bytes, home, made, origin, tag: None });
        Ok(grant.at)
    }

    /// `cuMemFreeAsync`.
    pub(crate) fn free_on_stream(&mut self, at: u64, stream: u32) -> Outcome {
        if at == 0 {
            return Ok(());
        }
        let origin = self.origin("free");
        let found = self.shadow.allocation(at).map(|a| (a.home, a.bytes));
        let Some((home, bytes)) = found.filter(|(home, _)| *home != Home::Host) else {
            let by = origin.site(None);
            if found.is_none() {
                self.shadow.free(at, by, None, &mut self.findings);
            }
            return Err(ERROR_INVALID_VALUE);
        };
        let (epoch, deps) = self.begin(stream);
        let clock = &self.streams[stream as usize].clock;
        self.shadow.free(at, origin.site(Some(epoch)), Some(clock), &mut self.findings);
        let action = match home {
            Home::Pool { pool, .. } => {
                self.pools[pool as usize].free(at, Some(epoch));
                Action::Order
            }
            // Not documented, but an H200 (driver 580) takes memory of cuMemAlloc here.
            _ => Action::GiveBack { at, bytes: bytes.next_multiple_of(ALIGNMENT) },
        };
        self.push(epoch, deps, action);
        Ok(())
    }

    /// A memset of `len` bytes.
    pub(crate) fn fill(
        &mut self,
        stream: u32,
        at: u64,
        len: u64,
        pattern: [u8; 4],
    ) -> Outcome<Option<Epoch>> {
        if len == 0 {
            return Ok(None);
        }
        if self.captured(stream)? {
            return Ok(None);
        }
        let (epoch, deps) = self.begin(stream);
        let access = Access { epoch, origin: self.origin("memset") };
        self.access(&access, &[], &[(at, len)], None);
        self.push_if_valid(epoch, deps, &[(at, len)], Action::Fill { at, len, pattern })?;
        Ok(Some(epoch))
    }

    /// A copy between memory that the device reads and writes when the operation executes.
    pub(crate) fn copy(&mut self, stream: u32, to: u64, from: u64, len: u64) -> Outcome<Epoch> {
        let (epoch, deps) = self.begin(stream);
        let access = Access { epoch, origin: self.origin("copy") };
        self.access(&access, &[(from, len)], &[(to, len)], None);
        self.push_if_valid(epoch, deps, &[(from, len), (to, len)], Action::Copy { to, from, len })?;
        Ok(epoch)
    }

    /// A copy from pageable memory: its bytes are taken now.
    pub(crate) fn copy_in(&mut self, stream: u32, to: u64, bytes: Box<[u8]>) -> Outcome<Epoch> {
        let (epoch, deps) = self.begin(stream);
        let access = Access { epoch, origin: self.origin("copy") };
        let written = [(to, bytes.len() as u64)];
        self.access(&access, &[], &written, None);
        self.push_if_valid(epoch, deps, &written, Action::Write { to, bytes })?;
        Ok(epoch)
    }

    /// A copy to pageable memory: the caller must run it before it returns.
    pub(crate) fn copy_out(
        &mut self,
        stream: u32,
        to: HostPtr,
        from: u64,
        len: u64,
    ) -> Outcome<Epoch> {
        let (epoch, deps) = self.begin(stream);
        let access = Access { epoch, origin: self.origin("copy") };
        self.access(&access, &[(from, len)], &[], None);
        self.push_if_valid(epoch, deps, &[(from, len)], Action::ReadOut { from, to, len })?;
        Ok(epoch)
    }

    /// Queues a memset or copy; one that leaves an allocation is refused, as the driver does, and
    /// does nothing.
    fn push_if_valid(
        &mut self,
        epoch: Epoch,
        deps: Deps,
        touched: &[(u64, u64)],
        action: Action,
    ) -> Outcome {
        let valid = touched.iter().all(|&(at, len)| {
            self.shadow
                .allocation_around(at)
                .is_some_and(|(start, allocation)| len <= allocation.bytes - (at - start))
        });
        self.push(epoch, deps, if valid { action } else { Action::Order });
        if valid { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
    }

    /// Whether the range is inside one pinned allocation.
    pub(crate) fn is_pinned(&self, at: u64, len: u64) -> bool {
        self.shadow.allocation_around(at).is_some_and(|(start, allocation)| {
            allocation.home == Home::Host && len <= allocation.bytes - (at - start)
        })
    }

    /// Pins host memory: the simulator's own, or the program's.
    pub(crate) fn pin(&mut self, at: u64, bytes: u64) {
        let origin = self.origin("allocate");
        let home = Home::Host;
        self.shadow.allocate(at, Allocation { bytes, home, made: None, origin, tag: None });
    }

    /// `cuMemHostAlloc`.
    pub(crate) fn allocate_pinned(&mut self, bytes: usize) -> Outcome<u64> {
        let layout = pinned_layout(bytes)?;
        // SAFETY: the layout is not of size 0.
        let at = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        if at == 0 {
            return Err(ERROR_OUT_OF_MEMORY);
        }
        self.pin(at, bytes as u64);
        self.pinned.insert(at, bytes);
        Ok(at)
    }

    /// Releases idle pool memory down to the threshold, as a synchronisation does.
    pub(crate) fn apply_release_thresholds(&mut self) {
        for pool in 0..self.pools.len() {
            let keep = self.pools[pool].release_threshold;
            self.trim(pool, keep);
        }
    }

    /// Gives wholly idle memory of a pool back to the device, as long as `keep` bytes stay
    /// reserved.
    pub(crate) fn trim(&mut self, pool: usize, keep: u64) {
        let streams = &self.streams;
        let executed = |epoch: Epoch| streams[epoch.stream as usize].executed >= epoch.seq;
        let device = self.pools[pool].device;
        for (at, bytes) in self.pools[pool].release(keep, executed) {
            self.give_back_to_device(device, at, bytes);
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
        let (clock, host) = (&streams[stream as usize].clock, &self.host_clock());
        ask(&mut self.pools[pool as usize], &Known { stream, clock, host, executed: &executed })
    }

    fn take_from_device(&mut self, device: usize, bytes: u64) -> Option<u64> {
        let capacity = self.config.capacity;
        let device = &mut self.devices[device];
        if bytes > capacity.saturating_sub(device.used) {
            return None;
        }
        let at = device.addresses.take(bytes)?;
        device.used += bytes;
        Some(at)
    }

    pub(crate) fn give_back_to_device(&mut self, device: usize, at: u64, bytes: u64) {
        self.store.erase(at, bytes);
        let device = &mut self.devices[device];
        device.addresses.give_back(at, bytes);
        device.used -= bytes;
    }
}

impl Session<'_> {
    /// `cuMemFree`: waits for all work of the device, if the memory is not a pool's.
    pub(crate) fn free_now(&mut self, at: u64) -> Outcome {
        let by = self.site("free");
        match self.shadow.allocation(at).map(|allocation| allocation.home) {
            Some(Home::Device(device)) => {
                self.synchronize(|stream| stream.device == device);
                self.free_waited(at, by, None);
                Ok(())
            }
            Some(Home::Pool { pool, .. }) => {
                // Documented not to synchronise: the program must have.
                let clock = self.host_clock();
                let machine = &mut **self;
                machine.shadow.free(at, by, Some(&clock), &mut machine.findings);
                machine.pools[pool as usize].free(at, None);
                Ok(())
            }
            Some(Home::Host) | None => {
                let machine = &mut **self;
                machine.shadow.free(at, by, None, &mut machine.findings);
                Err(ERROR_INVALID_VALUE)
            }
        }
    }

    /// `cuMemFreeHost` and `cuMemHostUnregister`. All work runs first, so that nothing touches
    /// the memory any more; but the program must have ordered the free itself.
    pub(crate) fn unpin(&mut self, at: u64, registered: bool) -> Outcome {
        let is_pinned = self.shadow.allocation(at).is_some_and(|a| a.home == Home::Host);
        if !is_pinned || self.pinned.contains_key(&at) == registered {
            return Err(ERROR_INVALID_VALUE);
        }
        let clock = self.host_clock();
        let by = self.site("free");
        for stream in 0..self.streams.len() as u32 {
            let last = self.last(stream);
            self.run_until(last);
        }
        let machine = &mut **self;
        machine.shadow.free(at, by, Some(&clock), &mut machine.findings);
        machine.shadow.forget_freed(at, 1);
        if let Some(bytes) = machine.pinned.remove(&at) {
            release_pinned(at, bytes);
        }
        Ok(())
    }

    fn free_waited(&mut self, at: u64, by: Site, clock: Option<&crate::clock::Clock>) {
        let machine = &mut **self;
        let freed = machine.shadow.free(at, by, clock, &mut machine.findings);
        if let Some(Allocation { bytes, home: Home::Device(device), .. }) = freed {
            let set_aside = bytes.next_multiple_of(ALIGNMENT);
            machine.give_back_to_device(device, at, set_aside);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.pinned) {
            release_pinned(at, bytes);
        }
    }
}

fn pinned_layout(bytes: usize) -> Outcome<Layout> {
    if bytes == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    Layout::from_size_align(bytes, PAGE).map_err(|_| ERROR_OUT_OF_MEMORY)
}

fn release_pinned(at: u64, bytes: usize) {
    if let Ok(layout) = pinned_layout(bytes) {
        // SAFETY: `allocate_pinned` made it with this layout, and its entry in `pinned` is gone,
        // so this happens once. No operation is left that touches it: all have run, or the
        // machine is gone.
        unsafe { std::alloc::dealloc(at as usize as *mut u8, layout) };
    }
}

/// What a launch of this kernel touches; the closure is the program's and may panic.
pub(crate) fn declare(
    kernel: &crate::kernel::Kernel,
    args: &crate::kernel::KernelArgs,
) -> Outcome<crate::kernel::Footprint> {
    let declare = Arc::clone(&kernel.footprint);
    let call = std::panic::AssertUnwindSafe(|| declare(args));
    std::panic::catch_unwind(call).map_err(|_| ERROR_LAUNCH_FAILED)
}

//! An observer that checks the reports of a pool: it passes them on to the simulator, and work with
//! a region notes itself whether it was done when the region was freed.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use dmr_core::{AllocTag, Generation, MemoryObserver, StreamId};
use dmr_testkit::Rig;

#[derive(Debug)]
pub(crate) struct Witness {
    simulator: Arc<dyn MemoryObserver>,
    follows_streams: bool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    heaps: BTreeMap<u64, usize>,
    regions: BTreeMap<u64, Region>,
    /// The number of regions that were freed.
    freed: u64,
    /// The wrong reports.
    wrong: Vec<String>,
}

#[derive(Debug)]
struct Region {
    bytes: usize,
    generation: Generation,
    /// One for each piece of work with it: whether that was done.
    work: Vec<Arc<AtomicBool>>,
}

impl Witness {
    /// Makes one that gets a report when the device is done with a region.
    pub(crate) fn new(rig: &Rig) -> Arc<Self> {
        Self::make(rig, false)
    }

    /// Makes one that gets a report when a block is deallocated, as the simulator does.
    pub(crate) fn following_streams(rig: &Rig) -> Arc<Self> {
        Self::make(rig, true)
    }

    fn make(rig: &Rig, follows_streams: bool) -> Arc<Self> {
        let simulator = rig.device().memory_observer().expect("the simulated driver");
        Arc::new(Self { simulator, follows_streams, seen: Mutex::default() })
    }

    /// Work with the region at `ptr` was submitted to `stream`.
    pub(crate) fn expect_work(&self, rig: &Rig, stream: StreamId, ptr: u64) {
        let done = Arc::new(AtomicBool::new(false));
        let mut seen = self.seen.lock().unwrap();
        seen.regions.get_mut(&ptr).expect("a region").work.push(Arc::clone(&done));
        drop(seen);
        let stream = rig.streams().resolve(stream).unwrap().cu_stream();
        let done = Arc::into_raw(done).cast_mut().cast();
        // SAFETY: the stream is alive; the function is called once, with what it takes over.
        unsafe { result::stream::launch_host_function(stream, note_done, done) }.unwrap();
    }

    /// The regions: address and bytes.
    pub(crate) fn regions(&self) -> Vec<(u64, usize)> {
        let seen = self.seen.lock().unwrap();
        seen.regions.iter().map(|(&ptr, region)| (ptr, region.bytes)).collect()
    }

    /// The heaps: address and bytes.
    pub(crate) fn heaps(&self) -> Vec<(u64, usize)> {
        self.seen.lock().unwrap().heaps.iter().map(|(&ptr, &bytes)| (ptr, bytes)).collect()
    }

    /// Returns the number of regions that were freed.
    pub(crate) fn freed(&self) -> u64 {
        self.seen.lock().unwrap().freed
    }

    /// Returns the wrong reports.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.seen.lock().unwrap().wrong.clone()
    }

    /// Asserts that every report was right, and that no region and no heap is left.
    pub(crate) fn assert_settled(&self) {
        assert_eq!(self.wrong(), [""; 0]);
        assert_eq!((self.regions(), self.heaps()), (vec![], vec![]));
    }
}

/// Reports the regions of a program, and the work with them.
#[derive(Clone, Copy)]
pub(crate) struct Reporter<'a> {
    pub(crate) rig: &'a Rig,
    /// The observer of the pool; without one, regions are reported to the simulator here.
    pub(crate) witness: Option<&'a Witness>,
}

impl Reporter<'_> {
    pub(crate) fn allocated(self, ptr: u64, bytes: usize) {
        if self.witness.is_none() {
            self.rig.universe().region_allocated(ptr, bytes, "block");
        }
    }

    pub(crate) fn freed(self, ptr: u64) {
        if self.witness.is_none() {
            self.rig.universe().region_freed(ptr);
        }
    }

    pub(crate) fn works(self, stream: StreamId, ptr: u64) {
        if let Some(witness) = self.witness {
            witness.expect_work(self.rig, stream, ptr);
        }
    }
}

/// Notes that its stream has come so far.
unsafe extern "C" fn note_done(done: *mut c_void) {
    // SAFETY: it came out of `into_raw`, and only this call takes it.
    unsafe { Arc::from_raw(done.cast::<AtomicBool>()) }.store(true, Ordering::Release);
}

impl MemoryObserver for Witness {
    fn heap_created(&self, ptr: u64, bytes: usize) {
        self.simulator.heap_created(ptr, bytes);
        let mut seen = self.seen.lock().unwrap();
        if seen.heaps.insert(ptr, bytes).is_some() {
            seen.wrong.push(format!("a heap at {ptr:#x} once more"));
        }
    }

    fn heap_destroyed(&self, ptr: u64) {
        self.simulator.heap_destroyed(ptr);
        let mut seen = self.seen.lock().unwrap();
        let Some(bytes) = seen.heaps.remove(&ptr) else {
            return seen.wrong.push(format!("no heap at {ptr:#x}"));
        };
        if seen.regions.range(ptr..ptr + bytes as u64).next().is_some() {
            seen.wrong.push(format!("regions in the heap at {ptr:#x}"));
        }
    }

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation) {
        self.simulator.region_allocated(ptr, bytes, tag, generation);
        let mut seen = self.seen.lock().unwrap();
        let region = Region { bytes, generation, work: Vec::new() };
        if seen.regions.insert(ptr, region).is_some() {
            seen.wrong.push(format!("a region at {ptr:#x} once more"));
        }
    }

    fn region_freed(&self, ptr: u64, generation: Generation) {
        self.simulator.region_freed(ptr, generation);
        let mut seen = self.seen.lock().unwrap();
        let Some(region) = seen.regions.remove(&ptr) else {
            return seen.wrong.push(format!("no region at {ptr:#x}"));
        };
        seen.freed += 1;
        if region.generation != generation {
            seen.wrong.push(format!("another generation at {ptr:#x}"));
        }
        let is_done = region.work.iter().all(|done| done.load(Ordering::Acquire));
        if !is_done && !self.follows_streams {
            seen.wrong.push(format!("freed under work: {ptr:#x}"));
        }
    }

    fn follows_streams(&self) -> bool {
        self.follows_streams
    }
}

/// `cuMemsetD8Async`.
pub(crate) fn set_bytes(rig: &Rig, stream: StreamId, ptr: u64, bytes: usize) {
    let stream = rig.streams().resolve(stream).unwrap().cu_stream();
    let ptr: sys::CUdeviceptr = ptr;
    rig.device().bind().unwrap();
    // SAFETY: the simulator says whether that is in order.
    unsafe { result::memset_d8_async(ptr, 7, bytes, stream) }.unwrap();
}

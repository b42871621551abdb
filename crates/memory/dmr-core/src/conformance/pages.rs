//! The check that an adaptor forwards virtual memory management: to a [`Spy`], whose pages are only
//! numbers.

use super::Spy;
use super::forwarding::Calls;
use super::support::TAG;
use crate::{
    AddressRange, AllocTag, DestroyError, PhysicalMemory, ReleaseError, ResourceResult,
    VirtualMemory,
};

const PAGE: u64 = 4096;
const BASE: u64 = 1 << 40;
const HANDLE: u64 = 7;

/// Returns the methods that do not reach the spy exactly once, or whose result is changed.
pub(super) fn missed_pages(calls: &Calls, pages: Option<&dyn VirtualMemory>) -> Vec<String> {
    let Some(pages) = pages else {
        return vec!["virtual_memory (returns None)".into()];
    };
    let mut missed = Vec::new();
    let mut check = |method: &str, is_unchanged: bool| {
        let count = calls.count(method);
        if count != 1 {
            missed.push(format!("{method} ({count} calls)"));
        } else if !is_unchanged {
            missed.push(format!("{method} (another result)"));
        }
    };
    let granularity = pages.granularity();
    check("granularity", granularity == PAGE);
    let range = pages.reserve(2 * PAGE);
    let is_ours = |range: &AddressRange| (range.base(), range.bytes()) == (BASE, 2 * PAGE);
    check("reserve", range.as_ref().is_ok_and(is_ours));
    let memory = pages.create(PAGE, TAG);
    let is_ours = |memory: &PhysicalMemory| {
        (memory.handle(), memory.bytes(), memory.tag()) == (HANDLE, PAGE, TAG)
    };
    check("create", memory.as_ref().is_ok_and(is_ours));
    if let Ok(memory) = memory {
        check("map", { pages.map(&memory, BASE) }.is_ok());
        check("unmap", { pages.unmap(&memory, BASE) }.is_ok());
        check("destroy", { pages.destroy(memory) }.is_ok());
    }
    if let Ok(range) = range {
        check("release", { pages.release(range) }.is_ok());
    }
    missed
}

impl VirtualMemory for Spy<'_> {
    fn granularity(&self) -> u64 {
        self.calls.add("granularity");
        PAGE
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        self.calls.add("reserve");
        // SAFETY: no work accesses these addresses.
        #[allow(unsafe_code, reason = "addresses of nothing")]
        Ok(unsafe { AddressRange::from_parts(BASE, bytes) })
    }

    fn release(&self, _: AddressRange) -> Result<(), Box<ReleaseError>> {
        self.calls.add("release");
        Ok(())
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        self.calls.add("create");
        // SAFETY: only the spy maps it, which does nothing.
        #[allow(unsafe_code, reason = "memory that does not exist")]
        Ok(unsafe { PhysicalMemory::from_parts(HANDLE, bytes, 0, tag) })
    }

    fn destroy(&self, _: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        self.calls.add("destroy");
        Ok(())
    }

    fn map(&self, _: &PhysicalMemory, _: u64) -> ResourceResult<()> {
        self.calls.add("map");
        Ok(())
    }

    fn unmap(&self, _: &PhysicalMemory, _: u64) -> ResourceResult<()> {
        self.calls.add("unmap");
        Ok(())
    }
}

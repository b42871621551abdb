//! Memory in pages that the pool maps itself, where upstream has virtual memory.
//!
//! Every arena has addresses of its own, far more than there is memory, and all pages have one
//! size. What is mapped is a heap like any other. When nothing in it fits, a *window* is chosen, a
//! run of free chunks and of addresses without memory, and the pages that it lacks are mapped into
//! it: new ones as long as the pool holds hardly more than its peak, and then pages that are free
//! as a whole elsewhere. So no memory is kept in a hole that another address could use.
//!
//! A page that moves is mapped at its new address at once, because its new user comes after its old
//! ones on its stream. At the old address it is *leaving*: it is unmapped when all work there is
//! known to be done, and only the address waits for that.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `detached` | a chunk that is out of its arena while pages are mapped and unmapped in it |
//! | `map` | choosing a window and filling it |
//! | `supply` | where the pages come from that it lacks |
//! | `unmap` | unmapping, and the way back to upstream |

mod detached;
mod map;
mod supply;
mod unmap;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::process::LeakedInChild;
use dmr_core::{DeviceMemoryResource, StreamId, VirtualMemory};
use dmr_streams::uses::Dependencies;

use crate::PoolConfig;
use crate::span::Page;
use crate::sync::{self, Mutex, MutexGuard};

/// The pages of a pool that are in no arena. Neither lock is held while the driver is called.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Bytes of each.
    pub(crate) size: u64,
    /// The pool may exceed its peak by 1/`slack_divisor` before pages are moved.
    pub(crate) slack_divisor: u64,
    /// The number of pages that were moved.
    moved: AtomicU64,
    /// Mapped at no address in use, and used by no work. Locked before an arena.
    spare: LeakedInChild<Mutex<VecDeque<Page>>>,
    /// The addresses at which pages are to be unmapped.
    leaving: LeakedInChild<Mutex<VecDeque<Leaving>>>,
}

/// The pages of a pool and the upstream that maps them.
#[derive(Clone, Copy)]
pub(crate) struct Paging<'p> {
    pub(crate) pages: &'p Pages,
    pub(crate) memory: &'p dyn VirtualMemory,
}

/// The pool can have at least this many pages.
const FEWEST: u64 = 16;

/// An address that a page is to be unmapped at.
#[derive(Clone, Debug)]
struct Leaving {
    /// The arena's stream.
    home: StreamId,
    address: u64,
    /// All work with the page there.
    after: Dependencies,
}

impl Pages {
    /// Returns `None` if upstream has no virtual memory, or the configuration asks for blocks.
    pub(crate) fn of<U: DeviceMemoryResource>(
        upstream: &U,
        config: &PoolConfig,
        device_bytes: u64,
    ) -> Option<Self> {
        let memory = upstream.virtual_memory().filter(|_| config.page_size > 0)?;
        let unit = memory.granularity().max(config.alignment as u64);
        // A few large pages would not be enough for a few streams.
        let all = config.maximum_size.unwrap_or(u64::MAX).min(device_bytes);
        let size = config.page_size.min(all / FEWEST).checked_next_multiple_of(unit)?.max(unit);
        Some(Self {
            size,
            slack_divisor: u64::from(config.page_slack_divisor.max(1)),
            moved: AtomicU64::new(0),
            spare: LeakedInChild::default(),
            leaving: LeakedInChild::default(),
        })
    }

    /// Returns the bytes of the spare pages.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare().len() as u64 * self.size
    }

    /// Returns the number of pages that were moved so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    fn spare(&self) -> MutexGuard<'_, VecDeque<Page>> {
        sync::lock(&self.spare)
    }

    fn leaving(&self) -> MutexGuard<'_, VecDeque<Leaving>> {
        sync::lock(&self.leaving)
    }
}

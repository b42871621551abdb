//! The configuration of a pool.

use dmr_core::size::BLOCK_ALIGNMENT;

/// The step in which a pool reserves memory from upstream, in bytes: a large page of the device.
pub(crate) const SEGMENT_STEP: u64 = 2 << 20;

/// The configuration of a [`PoolResource`](crate::PoolResource): how it reserves memory, keeps it
/// and returns it to upstream. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Reserved when the pool is made, for the default stream. Rounded up to 2 MiB, or to pages.
    pub initial_size: u64,
    /// The most that is ever reserved from upstream at one time; `None` for what upstream has.
    pub maximum_size: Option<u64>,
    /// A reap returns free memory to upstream as long as more than this is reserved. A trim also
    /// returns what upstream keeps of it to the driver.
    pub release_threshold: u64,
    /// The most that is reserved at once, unless one block needs more; less while little is
    /// reserved, and where many streams have memory of their own. Rounded up to 2 MiB.
    pub growth: u64,
    /// Blocks of this many bytes and more are dedicated: each has a segment of its own, which
    /// serves one block at a time. Cut into smaller chunks it would leave holes that no other large
    /// block fits.
    pub dedicated_from: u64,
    /// The pool may exceed its live bytes by 1/`slack_divisor` before it returns free segments to
    /// upstream, has streams wait for each other's memory, or reserves more. Contention of threads
    /// raises that, up to 7/16 more than the peak.
    pub slack_divisor: u32,
    /// The bytes of the pages that the pool maps itself, if upstream has virtual memory
    /// ([`DeviceMemoryResource::virtual_memory`]); 0 for blocks even then. Rounded up to upstream's
    /// granularity; less if the pool can have only a few of them. To map a page costs tens of
    /// microseconds, whatever its size; a page is returned to upstream, or moves to another
    /// address, when all of it is free. `growth`, `dedicated_from` and `slack_divisor` have no
    /// effect then.
    ///
    /// [`DeviceMemoryResource::virtual_memory`]: dmr_core::DeviceMemoryResource::virtual_memory
    pub page_size: u64,
    /// With pages, the pool may exceed its peak by 1/`page_slack_divisor` before it moves free
    /// pages rather than create more. Contention of threads raises that.
    pub page_slack_divisor: u32,
    /// With pages, whether a stream waits for another's memory before the pool creates pages; else
    /// it creates pages first, up to its slack.
    pub waits_first: bool,
    /// The alignment of every block: a power of two, at least 256, at most 2 MiB.
    pub alignment: usize,
}

impl PoolConfig {
    /// Returns a configuration that puts time first: large blocks are cut from the same memory as
    /// small ones, and found in a few dozen instructions. Over an upstream that has virtual memory,
    /// pages of 32 MiB are mapped where they are needed.
    #[must_use]
    pub const fn fast() -> Self {
        Self {
            initial_size: 0,
            maximum_size: None,
            release_threshold: u64::MAX,
            growth: 64 << 20,
            dedicated_from: u64::MAX,
            slack_divisor: 16,
            page_size: 32 << 20,
            page_slack_divisor: 14,
            waits_first: false,
            alignment: BLOCK_ALIGNMENT,
        }
    }

    /// Returns a configuration that puts memory first. Over an upstream that has virtual memory,
    /// pages of 8 MiB are mapped where they are needed. Over others blocks from 64 MiB on are
    /// dedicated, and go back to upstream rather than leave a hole: over the driver's pool, which
    /// moves pages, that costs a few hundred nanoseconds.
    /// [`PoolStats::page_size`](crate::PoolStats::page_size) says which.
    #[must_use]
    pub const fn compact() -> Self {
        let mut compact = Self::fast();
        compact.dedicated_from = 64 << 20;
        compact.page_size = 8 << 20;
        compact.page_slack_divisor = 50;
        compact.waits_first = true;
        compact
    }

    /// Sets [`initial_size`](Self::initial_size).
    #[must_use]
    pub const fn with_initial_size(mut self, bytes: u64) -> Self {
        self.initial_size = bytes;
        self
    }

    /// Sets [`maximum_size`](Self::maximum_size).
    #[must_use]
    pub const fn with_maximum_size(mut self, bytes: u64) -> Self {
        self.maximum_size = Some(bytes);
        self
    }

    /// Sets [`release_threshold`](Self::release_threshold).
    #[must_use]
    pub const fn with_release_threshold(mut self, bytes: u64) -> Self {
        self.release_threshold = bytes;
        self
    }

    /// Sets [`growth`](Self::growth).
    #[must_use]
    pub const fn with_growth(mut self, bytes: u64) -> Self {
        self.growth = bytes;
        self
    }

    /// Sets [`dedicated_from`](Self::dedicated_from).
    #[must_use]
    pub const fn with_dedicated_from(mut self, bytes: u64) -> Self {
        self.dedicated_from = bytes;
        self
    }

    /// Sets [`slack_divisor`](Self::slack_divisor). 0 means 1.
    #[must_use]
    pub const fn with_slack_divisor(mut self, divisor: u32) -> Self {
        self.slack_divisor = divisor;
        self
    }

    /// Sets [`page_size`](Self::page_size).
    #[must_use]
    pub const fn with_page_size(mut self, bytes: u64) -> Self {
        self.page_size = bytes;
        self
    }

    /// Sets [`waits_first`](Self::waits_first).
    #[must_use]
    pub const fn with_waits_first(mut self, waits: bool) -> Self {
        self.waits_first = waits;
        self
    }

    /// Sets [`page_slack_divisor`](Self::page_slack_divisor). 0 means 1.
    #[must_use]
    pub const fn with_page_slack_divisor(mut self, divisor: u32) -> Self {
        self.page_slack_divisor = divisor;
        self
    }

    /// Sets [`alignment`](Self::alignment), rounded up to a power of two between 256 and 2 MiB.
    #[must_use]
    pub const fn with_alignment(mut self, bytes: usize) -> Self {
        let most = SEGMENT_STEP as usize;
        let least = if bytes < BLOCK_ALIGNMENT { BLOCK_ALIGNMENT } else { bytes };
        self.alignment = if least > most { most } else { least.next_power_of_two() };
        self
    }
}

impl Default for PoolConfig {
    /// Returns [`fast`](Self::fast).
    fn default() -> Self {
        Self::fast()
    }
}

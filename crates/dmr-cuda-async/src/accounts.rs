//! Who holds how many bytes: a set of counters per home stream, which no other stream touches.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::StreamId;

/// The accounting by home stream. Sums are exact whenever no call is under way.
pub(crate) struct Accounts {
    /// By slot, made when a part's first stream allocates: few pools use many slots.
    parts: [OnceLock<Box<[Account]>>; PARTS],
}

const PART: usize = 64;
const PARTS: usize = StreamId::MAX_SLOTS / PART;

/// Bytes asked for; none of these ever decreases. On cache lines of its own: streams of different
/// threads do not meet here.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Account {
    allocated: AtomicU64,
    given_back: AtomicU64,
    freed: AtomicU64,
}

/// Bytes of one or of all home streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) allocated: u64,
    pub(crate) given_back: u64,
    pub(crate) freed: u64,
}

impl Accounts {
    pub(crate) fn new() -> Self {
        Self { parts: [const { OnceLock::new() }; PARTS] }
    }

    pub(crate) fn allocated(&self, home: StreamId, bytes: u64) {
        self.of(home).allocated.fetch_add(bytes, Ordering::Release);
    }

    pub(crate) fn given_back(&self, home: StreamId, bytes: u64) {
        self.of(home).given_back.fetch_add(bytes, Ordering::Release);
    }

    pub(crate) fn freed(&self, home: StreamId, bytes: u64) {
        self.of(home).freed.fetch_add(bytes, Ordering::Release);
    }

    pub(crate) fn on(&self, home: StreamId) -> Totals {
        self.of(home).totals()
    }

    pub(crate) fn all(&self) -> Totals {
        let accounts = self.parts.iter().filter_map(OnceLock::get).flatten();
        accounts.map(Account::totals).fold(Totals::default(), |sum, part| Totals {
            allocated: sum.allocated + part.allocated,
            given_back: sum.given_back + part.given_back,
            freed: sum.freed + part.freed,
        })
    }

    fn of(&self, home: StreamId) -> &Account {
        let part = self.parts[home.slot() / PART]
            .get_or_init(|| (0..PART).map(|_| Account::default()).collect());
        &part[home.slot() % PART]
    }
}

impl Account {
    /// Read against the order in which a block goes through them, so that no difference is
    /// negative.
    fn totals(&self) -> Totals {
        let freed = self.freed.load(Ordering::Acquire);
        let given_back = self.given_back.load(Ordering::Acquire);
        let allocated = self.allocated.load(Ordering::Acquire);
        Totals { allocated, given_back, freed }
    }
}

impl Totals {
    pub(crate) fn live(self) -> u64 {
        self.allocated.saturating_sub(self.given_back)
    }

    pub(crate) fn retired(self) -> u64 {
        self.given_back.saturating_sub(self.freed)
    }
}

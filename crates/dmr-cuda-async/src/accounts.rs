//! Who holds how many bytes: a set of counters per home stream, which no other stream touches.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::StreamId;

/// The accounting by home stream. Sums are exact whenever no call is under way.
pub(crate) struct Accounts {
    /// By slot.
    first: Box<[Account; PART]>,
    /// The slots after those, made when a part's first stream allocates: few pools have so many.
    later: [OnceLock<Box<[Account]>>; PARTS],
}

const PART: usize = 64;
const PARTS: usize = StreamId::MAX_SLOTS / PART - 1;

/// Bytes asked for; none of these ever decreases. A block that goes to the driver when it is given
/// back is counted once for both, in `handed_through`. On cache lines of its own: streams of different
/// threads do not meet here.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Account {
    allocated: AtomicU64,
    handed_through: AtomicU64,
    retired: AtomicU64,
    freed_later: AtomicU64,
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
        let first = Box::new(std::array::from_fn(|_| Account::default()));
        Self { first, later: [const { OnceLock::new() }; PARTS] }
    }

    #[inline]
    pub(crate) fn allocated(&self, home: StreamId, bytes: u64) {
        self.of(home).allocated.fetch_add(bytes, Ordering::Release);
    }

    /// Given back and freed in one go.
    #[inline]
    pub(crate) fn handed_through(&self, home: StreamId, bytes: u64) {
        self.of(home).handed_through.fetch_add(bytes, Ordering::Release);
    }

    /// Given back, and not freed yet.
    pub(crate) fn retired(&self, home: StreamId, bytes: u64) {
        self.of(home).retired.fetch_add(bytes, Ordering::Release);
    }

    /// Was retired, and is freed now.
    pub(crate) fn freed_later(&self, home: StreamId, bytes: u64) {
        self.of(home).freed_later.fetch_add(bytes, Ordering::Release);
    }

    pub(crate) fn on(&self, home: StreamId) -> Totals {
        self.of(home).totals()
    }

    pub(crate) fn all(&self) -> Totals {
        let later = self.later.iter().filter_map(OnceLock::get).flatten();
        let accounts = self.first.iter().chain(later);
        accounts.map(Account::totals).fold(Totals::default(), |sum, part| Totals {
            allocated: sum.allocated + part.allocated,
            given_back: sum.given_back + part.given_back,
            freed: sum.freed + part.freed,
        })
    }

    #[inline]
    fn of(&self, home: StreamId) -> &Account {
        match self.first.get(home.slot()) {
            Some(account) => account,
            None => self.of_later(home.slot() - PART),
        }
    }

    #[cold]
    fn of_later(&self, slot: usize) -> &Account {
        let part =
            self.later[slot / PART].get_or_init(|| (0..PART).map(|_| Account::default()).collect());
        &part[slot % PART]
    }
}

impl Account {
    /// Read against the order in which a block goes through them, so that no difference is
    /// negative.
    fn totals(&self) -> Totals {
        let freed_later = self.freed_later.load(Ordering::Acquire);
        let retired = self.retired.load(Ordering::Acquire);
        let handed_through = self.handed_through.load(Ordering::Acquire);
        let allocated = self.allocated.load(Ordering::Acquire);
        let (given_back, freed) = (handed_through + retired, handed_through + freed_later);
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

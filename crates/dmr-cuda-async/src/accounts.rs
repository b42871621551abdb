//! What is kept for each home stream, which no other stream touches: how many bytes who holds, and
//! slots of the use table for its next blocks.

use std::sync::OnceLock;

use dmr_core::StreamId;
use dmr_streams::uses::Vacancy;
use dmr_streams::{Latch, Latched};

/// The accounting by home stream. Sums are exact whenever no call is under way.
pub(crate) struct Accounts {
    /// By slot.
    first: Box<[Account; PART]>,
    /// The slots after those, made when a part's first stream allocates: few pools have so many.
    later: [OnceLock<Box<[Account]>>; PARTS],
}

const PART: usize = 64;
const PARTS: usize = StreamId::MAX_SLOTS / PART - 1;

/// On cache lines of its own: streams of different threads do not meet here.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Account(Latch<Entries>);

/// Bytes asked for; none of these ever decreases. A block that goes to the driver when it is given
/// back is counted once for both, in `handed_through`.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    allocated: u64,
    handed_through: u64,
    retired: u64,
    freed_later: u64,
    /// Slots that blocks of the stream have left.
    vacancies: Vec<Vacancy>,
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

    /// A block was allocated; answers a slot for it, if one has been left.
    #[inline]
    pub(crate) fn allocated(&self, home: StreamId, bytes: u64) -> Option<Vacancy> {
        let mut entries = self.of(home);
        entries.allocated += bytes;
        entries.vacancies.pop()
    }

    /// It was not, after all.
    #[cold]
    pub(crate) fn not_allocated(&self, home: StreamId, bytes: u64) {
        self.of(home).allocated -= bytes;
    }

    /// Given back and freed in one go. The slot that the block has left is for the next one.
    #[inline]
    pub(crate) fn handed_through(&self, home: StreamId, bytes: u64, vacancy: Option<Vacancy>) {
        let mut entries = self.of(home);
        entries.handed_through += bytes;
        entries.vacancies.extend(vacancy);
    }

    /// Given back, and not freed yet.
    pub(crate) fn retired(&self, home: StreamId, bytes: u64) {
        self.of(home).retired += bytes;
    }

    /// Was retired, and is freed now.
    pub(crate) fn freed_later(&self, home: StreamId, bytes: u64) {
        self.of(home).freed_later += bytes;
    }

    /// All slots that are kept.
    pub(crate) fn take_vacancies(&self) -> impl Iterator<Item = Vacancy> {
        self.accounts().flat_map(|account| std::mem::take(&mut account.0.lock().vacancies))
    }

    pub(crate) fn on(&self, home: StreamId) -> Totals {
        self.of(home).totals()
    }

    pub(crate) fn all(&self) -> Totals {
        self.accounts().map(|account| account.0.lock().totals()).fold(
            Totals::default(),
            |sum, part| Totals {
                allocated: sum.allocated + part.allocated,
                given_back: sum.given_back + part.given_back,
                freed: sum.freed + part.freed,
            },
        )
    }

    fn accounts(&self) -> impl Iterator<Item = &Account> {
        let later = self.later.iter().filter_map(OnceLock::get).flatten();
        self.first.iter().chain(later)
    }

    #[inline]
    fn of(&self, home: StreamId) -> Latched<'_, Entries> {
        let account = match self.first.get(home.slot()) {
            Some(account) => account,
            None => self.of_later(home.slot() - PART),
        };
        account.0.lock()
    }

    #[cold]
    fn of_later(&self, slot: usize) -> &Account {
        let part =
            self.later[slot / PART].get_or_init(|| (0..PART).map(|_| Account::default()).collect());
        &part[slot % PART]
    }
}

impl Entries {
    fn totals(&self) -> Totals {
        let given_back = self.handed_through + self.retired;
        let freed = self.handed_through + self.freed_later;
        Totals { allocated: self.allocated, given_back, freed }
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

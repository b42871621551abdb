//! Statistics of a stretch of code: what one thread does between a push and its pop.

use std::marker::PhantomData;

use dmr_core::AllocTag;

use super::counts::Counts;

/// Counts what the calling thread does through one resource, from
/// [`push`](super::StatisticsResource::push) until it is popped or dropped.
///
/// Scopes nest, as RMM's pushed counters do: a scope counts alone while it is the innermost, and
/// what it counted is added to the one around it when it is popped. A scope that is popped before
/// those inside it takes them along; they answer nothing afterwards.
///
/// It stays on its thread: blocks that other threads allocate or free are not counted.
#[derive(Debug)]
#[must_use = "a scope that is dropped at once counts nothing"]
pub struct StatisticsScope<'a> {
    counts: &'a Counts,
    tag: AllocTag,
    /// `None` on a thread that is ending and in a forked child, where nothing is counted.
    number: Option<u64>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<'a> StatisticsScope<'a> {
    pub(super) fn open(counts: &'a Counts, tag: AllocTag) -> Self {
        Self { counts, tag, number: counts.push(tag), stays_on_its_thread: PhantomData }
    }

    /// Ends the scope and answers what it counted, scopes inside it included.
    #[must_use = "it says what the scope counted; drop the scope if nobody asks"]
    pub fn pop(mut self) -> ScopeStatistics {
        let counted = self.number.take().and_then(|number| self.counts.pop(number));
        counted.unwrap_or_else(|| ScopeStatistics::new(self.tag))
    }

    /// What it has counted so far, open scopes inside it included.
    #[must_use]
    pub fn so_far(&self) -> ScopeStatistics {
        let counted = self.number.and_then(|number| self.counts.peek(number));
        counted.unwrap_or_else(|| ScopeStatistics::new(self.tag))
    }
}

impl Drop for StatisticsScope<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.counts.pop(number);
        }
    }
}

/// What a scope counted. Always exact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeStatistics {
    /// The scope's name.
    pub tag: AllocTag,
    /// Bytes, as asked for.
    pub bytes: ScopeCounter,
    /// Blocks.
    pub allocations: ScopeCounter,
    /// Blocks given back.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
}

/// A number that goes up and down from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeCounter {
    /// What was added and not removed again: below zero if the scope gave back more than it took.
    pub current: i64,
    /// The most it has been, and at least zero.
    pub peak: u64,
    /// All that was added.
    pub total: u64,
}

impl ScopeStatistics {
    fn new(tag: AllocTag) -> Self {
        let (bytes, allocations) = (ScopeCounter::default(), ScopeCounter::default());
        Self { tag, bytes, allocations, frees: 0, failures: 0 }
    }

    /// Adds what a scope inside this one counted after everything that this one has.
    fn add(&mut self, inner: &Self) {
        self.bytes.add(&inner.bytes);
        self.allocations.add(&inner.allocations);
        self.frees += inner.frees;
        self.failures += inner.failures;
    }
}

impl ScopeCounter {
    fn add(&mut self, inner: &Self) {
        // As high as the inner one was, on top of what was there when it began.
        let reached = self.current.saturating_add_unsigned(inner.peak).max(0).unsigned_abs();
        self.peak = self.peak.max(reached);
        self.current += inner.current;
        self.total += inner.total;
    }

    fn change(&mut self, added: u64, removed: u64) {
        let current = self.current.saturating_add_unsigned(added);
        self.current = current.saturating_sub_unsigned(removed);
        self.total += added;
        self.peak = self.peak.max(self.current.max(0).unsigned_abs());
    }
}

/// The open scopes of one thread, the innermost last.
#[derive(Debug, Default)]
pub(super) struct Frames {
    open: Vec<(u64, ScopeStatistics)>,
    pushed: u64,
}

impl Frames {
    pub(super) fn allocated(&mut self, bytes: u64) {
        self.innermost(|scope| {
            scope.bytes.change(bytes, 0);
            scope.allocations.change(1, 0);
        });
    }

    pub(super) fn grown(&mut self, more_bytes: u64) {
        self.innermost(|scope| scope.bytes.change(more_bytes, 0));
    }

    pub(super) fn freed(&mut self, bytes: u64) {
        self.innermost(|scope| {
            scope.bytes.change(0, bytes);
            scope.allocations.change(0, 1);
            scope.frees += 1;
        });
    }

    pub(super) fn failed(&mut self) {
        self.innermost(|scope| scope.failures += 1);
    }

    fn innermost(&mut self, count: impl FnOnce(&mut ScopeStatistics)) {
        if let Some((_, scope)) = self.open.last_mut() {
            count(scope);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens a scope; answers its number, which no other on this thread has.
    pub(super) fn push(&mut self, tag: AllocTag) -> u64 {
        self.pushed += 1;
        self.open.push((self.pushed, ScopeStatistics::new(tag)));
        self.pushed
    }

    /// Closes a scope and those inside it, and adds them to the one around it.
    pub(super) fn pop(&mut self, number: u64) -> Option<ScopeStatistics> {
        let counted = self.peek(number)?;
        self.open.retain(|(open, _)| *open < number);
        self.innermost(|outer| outer.add(&counted));
        Some(counted)
    }

    /// What a scope and those inside it have counted.
    pub(super) fn peek(&self, number: u64) -> Option<ScopeStatistics> {
        let at = self.open.iter().position(|(open, _)| *open == number)?;
        let (_, mut counted) = self.open[at].clone();
        // The innermost into the one around it, and so on outwards: each began when the one
        // around it stopped.
        let inside = self.open[at + 1..].iter().rev();
        let folded = inside.map(|(_, scope)| scope.clone()).reduce(|inner, mut outer| {
            outer.add(&inner);
            outer
        });
        if let Some(inner) = folded {
            counted.add(&inner);
        }
        Some(counted)
    }
}
